"""The records that run_pretraining.py trains and evaluates on."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from absl import logging

from bert_tf2.config import BertConfig
from bert_tf2.data import batching, example, record_index, record_order, records, tfrecords
from bert_tf2.pretraining import dynamic_masking, manifest
from bert_tf2.pretraining.options import PretrainingOptions
from bert_tf2.support import outputs
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.training.forward import explained
from bert_tf2.training.workers import Team

_FIRST_BYTES = 1 << 16


class RecordSource:
    """The records of files, with masks or without."""

    def __init__(
        self,
        options: PretrainingOptions,
        config: BertConfig,
        tokenizer: FullTokenizer | None,
        input_file: str,
        held_out: Sequence[str] = (),
    ):
        """Finds the files of `input_file` without `held_out`, and reads the first record."""
        self._options = options
        self._files = manifest.find(input_file, held_out)
        self.paths = self._files.paths
        if pipe := next(filter(outputs.is_device, self.paths), None):
            raise UserError(f"{pipe}: is a pipe or a device, and records are read more than once; copy them to a file")
        self._sizes = {
            "max_seq_length": options.max_seq_length,
            "max_predictions_per_seq": options.max_predictions_per_seq,
            "vocab_size": config.vocab_size,
            "type_vocab_size": config.type_vocab_size,
        }
        block = _first_block(self.paths)
        self._has_masks = _has_masks(block)
        self._vocabulary = tokenizer and tokenizer.vocab
        if not self._has_masks:
            self._kind = records.UNMASKED_WORDS if options.objective == "mlm" else records.UNMASKED
            self._check_unmasked(block)
        else:
            self._kind = records.MASKED_WORDS if options.objective == "mlm" else records.PRETRAINING
            if options.masked_lm_prob != PretrainingOptions.masked_lm_prob:
                logging.warning("--masked_lm_prob=%g has no effect: the records hold masks", options.masked_lm_prob)
        logging.info("Reading records from %s", and_more(self.paths, 8))

    def _check_unmasked(self, block: tfrecords.Block) -> None:
        """Raises UserError for records without masks that do not fit; `block`: the first records."""
        if self._vocabulary is None:
            raise UserError(
                f"{self.paths[0]}: its records hold no masks (create_pretraining_data.py --dynamic_masking); give the"
                " vocabulary that they were made with, --vocab_file"
            )
        first = records.check(block, 0, self._kind, self._sizes).values["input_ids"][0]
        # With another vocabulary, [MASK] would be an ordinary word of the records, and nothing else would fail.
        if first != self._vocabulary["[CLS]"]:
            raise UserError(
                f"{self._options.vocab_file}: [CLS] is entry {self._vocabulary['[CLS]']}, but the first record of"
                f" {self.paths[0]} begins with {first}; give the vocabulary that the records were made with"
            )
        logging.info("The records hold no masks: new masks are drawn in each pass")

    def _read(self, batch_size: int, purpose: int, *, repeat: bool = True, **order):
        transform = None
        if not self._has_masks:
            seeds = self._options.random_seed, purpose
            transform = dynamic_masking.Masker(self._vocabulary, self._options, seeds=seeds)
        order = {**order, "repeat": repeat, "drop_remainder": repeat, "transform": transform}
        return record_order.read_records(self.paths, self._kind, self._sizes, batch_size, **order)

    def for_training(self, index: record_index.RecordIndex, first: int, share: record_order.Share | None):
        """The records in the order of the seed, without the `first` examples; with a `share`, only its parts."""
        options = self._options
        order = {"shuffle_seed": options.random_seed, "index": index, "first": first, "share": share}
        data = self._read(options.train_batch_size, dynamic_masking.TRAINING, **order)
        parts = options.gradient_accumulation_steps
        return batching.with_packed_rows(data, parts) if options.pack_rows else data

    def index(self, team: Team) -> record_index.RecordIndex:
        """The places of the records. The first of several workers reads the files and keeps the index for all."""
        records.check_first_records(self.paths, self._kind, self._sizes, must_have_some=True)
        if not team.is_chief:
            team.wait()

        def check(counts: Mapping[str, int], unlike: Sequence[str]) -> None:
            self._files.check(counts)
            records.check_first_records(unlike, self._kind, self._sizes, must_have_some=False)

        index, _ = record_index.read(self.paths, self._options.output_dir, keep=team.is_chief, check=check)
        if team.is_chief:
            team.wait()
        return index

    def for_evaluation(self, *, once: bool):
        """The records in order (endless as in the reference, or `once`), and the number of batches that count."""
        options = self._options
        batches_there = -(-self._check_framing() // options.eval_batch_size)
        data = self._read(options.eval_batch_size, dynamic_masking.EVALUATION, repeat=not once)
        if not once:
            return data, options.max_eval_steps
        with explained(self.find_fault):
            first = next(iter(data), None)
        if first is None:
            raise UserError(f"{and_more(self.paths, 8)}: no records to evaluate on; give others to --eval_input_file")
        return data, min(batches_there, options.max_eval_steps)

    def _check_framing(self) -> int:
        """Checks and counts the records of an evaluation; a damaged length would end TensorFlow's reader."""
        found, needed = 0, self._options.max_eval_steps * self._options.eval_batch_size
        for path in self.paths:
            before = found
            for block in tfrecords.read_blocks(path):
                if block.first == 1:
                    records.check(block, 0, self._kind, self._sizes)
                found += len(block)
                if found >= needed:
                    self._files.check({path: None})
                    return found
            self._files.check({path: found - before})
        return found

    def find_fault(self) -> UserError | None:
        return records.find_fault(self.paths, self._kind, self._sizes)


def _first_block(paths: Sequence[str]) -> tfrecords.Block | None:
    """The block of the first record; None if the first files are empty."""
    blocks = (next(tfrecords.read_blocks(path, _FIRST_BYTES), None) for path in paths[: records.FILES_TO_CHECK])
    return next(filter(None, blocks), None)


def _has_masks(block: tfrecords.Block | None) -> bool:
    """Whether the first record of a block has masks; True if there is no record, which `records` reports later."""
    with contextlib.suppress(example.NotAnExample):
        return block is None or "segment_lengths" not in example.parse(block.record(0))
    return True

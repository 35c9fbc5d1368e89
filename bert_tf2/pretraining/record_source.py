"""The records that run_pretraining.py trains and evaluates on."""

from __future__ import annotations

import numpy as np
from absl import logging

from bert_tf2 import tokenization
from bert_tf2.config import BertConfig
from bert_tf2.data import record_checks, record_order, records, stored_index, tfrecords
from bert_tf2.pretraining import dynamic_masking, record_files
from bert_tf2.pretraining.options import PretrainingOptions
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.training.forward import explained
from bert_tf2.training.workers import ALONE, Team

# What masks are drawn for: the second seed of dynamic_masking.Masker.
_EVALUATION, _TRAINING = 0, 1


class Source:
    """The records of files, with masks or without."""

    def __init__(
        self,
        options: PretrainingOptions,
        config: BertConfig,
        tokenizer: tokenization.FullTokenizer | None,
        input_file: str,
    ):
        self._options = options
        self._files = record_files.find(input_file)
        self._paths = self._files.paths
        self._kind = dynamic_masking.find_kind(self._paths)
        self._has_masks = self._kind is records.PRETRAINING
        if self._has_masks and options.objective == "mlm":
            self._kind = records.MASKED_WORDS
        self._vocabulary = tokenizer and tokenizer.vocab
        if not self._has_masks:
            self._check_unmasked()
        elif options.masked_lm_prob != PretrainingOptions.masked_lm_prob:
            logging.warning("--masked_lm_prob=%g has no effect: the records hold masks", options.masked_lm_prob)
        logging.info("Reading records from %s", and_more(self._paths, 8))
        self._sizes = {
            "max_seq_length": options.max_seq_length,
            "max_predictions_per_seq": options.max_predictions_per_seq,
            "vocab_size": config.vocab_size,
            "type_vocab_size": config.type_vocab_size,
        }

    def _check_unmasked(self) -> None:
        if self._vocabulary is None:
            raise UserError(
                f"{self._paths[0]}: its records hold no masks (create_pretraining_data.py --dynamic_masking); give the"
                " vocabulary that they were made with, --vocab_file"
            )
        if self._options.objective == "mlm_nsp" and "next_sentence_labels" not in self._kind.features:
            raise UserError(
                f"{self._paths[0]}: its records hold no next_sentence_labels, so they are for masked words only; give"
                " --objective=mlm"
            )
        dynamic_masking.check_vocabulary(self._paths, self._vocabulary, self._options.vocab_file)
        logging.info("The records hold no masks: they are drawn now, other ones in each pass")

    def _read(self, batch_size: int, purpose: int, *, repeat: bool = True, **order):
        transform = None
        if not self._has_masks:
            options = self._options
            transform = dynamic_masking.Masker(
                self._vocabulary,
                options.masked_lm_prob,
                options.max_seq_length,
                options.max_predictions_per_seq,
                seeds=(options.random_seed, purpose),
            )
        return records.read_records(
            self._paths,
            self._kind,
            self._sizes,
            batch_size,
            repeat=repeat,
            drop_remainder=repeat,
            transform=transform,
            **order,
        )

    def for_training(self, index: record_order.RecordIndex, first: int, share: record_order.Share | None = None):
        """The records in the order of the seed, without the `first` examples; of several workers, a share of them."""
        options = self._options
        order = {"shuffle_seed": options.random_seed, "index": index, "first": first, "share": share}
        return self._read(options.train_batch_size, _TRAINING, **order)

    def index(self, team: Team = ALONE) -> record_order.RecordIndex:
        """Where the records lie. The first of several workers reads the files for it, and keeps it for the others.

        Raises:
          UserError: a file is damaged, of another kind, or not what a manifest beside it says.
        """
        record_checks.check_first_records(self._paths, self._kind, self._sizes, must_have_some=True)
        options = self._options
        if not team.is_chief:
            team.wait()
        index, fresh = stored_index.read(
            self._paths, options.output_dir, keep=team.is_chief, anew=options.check_records and team.is_chief
        )
        counts = np.bincount(index.files, index.counts, len(index.paths)).astype(np.int64)
        found = dict(zip(index.paths, counts.tolist(), strict=True))
        self._files.check({path: found[path] for path in fresh})
        if team.is_chief:
            team.wait()
        return index

    def for_evaluation(self):
        """The records in order, repeated without end as in the reference, and how many batches of them count.

        Raises:
          UserError: a record is damaged; names the file and the record.
        """
        self._check_framing()
        return self._read(self._options.eval_batch_size, _EVALUATION), self._options.max_eval_steps

    def held_out(self):
        """The records in order, once, and how many batches of them count.

        Raises:
          UserError: there is none, or one is damaged.
        """
        options = self._options
        there = -(-self._check_framing() // options.eval_batch_size)
        data = self._read(options.eval_batch_size, _EVALUATION, repeat=False)
        with explained(self.find_fault):
            first = next(iter(data), None)
        if first is None:
            raise UserError(f"{and_more(self._paths, 8)}: no records to evaluate on; give others to --eval_input_file")
        return data, min(there, options.max_eval_steps)

    def _check_framing(self) -> int:
        """Checks and counts the records of an evaluation, as far as it needs them.

        They have no index, and a damaged length would end TensorFlow's reader.
        """
        found, needed = 0, self._options.max_eval_steps * self._options.eval_batch_size
        for path in self._paths:
            before, whole = found, True
            for block in tfrecords.read_blocks(path):
                found += len(block)
                if found >= needed:
                    whole = False
                    break
            self._files.check({path: found - before if whole else None})
            if not whole:
                break
        return found

    def find_fault(self) -> UserError | None:
        return record_checks.find_fault(self._paths, self._kind, self._sizes)

"""Pretraining examples as TFRecord files: the implementation of create_pretraining_data.py."""

from __future__ import annotations

import functools
import itertools
import os
import random
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from absl import logging

from bert_tf2 import tokenization
from bert_tf2.data import example, records, tfrecords
from bert_tf2.data.example import Ragged
from bert_tf2.pretraining import corpus, drawn_examples, sentences
from bert_tf2.pretraining.corpus import Tokenizer
from bert_tf2.pretraining.draws import BufferedDraws
from bert_tf2.pretraining.instances import TrainingInstance
from bert_tf2.pretraining.options import CreatePretrainingDataOptions, PretrainingDataOptions
from bert_tf2.support import console, files, outputs, progress
from bert_tf2.support.errors import and_more
from bert_tf2.weights import text_rules

_VALUES_PER_BATCH = 1 << 17  # they take a few megabytes while they are encoded
_MANY_PASSES = 5
_MANY_SINGLE = 0.9
FEW_DOCUMENTS = "leave empty lines between documents only, or give --objective=mlm, which has no next sentences"


def write_instance_to_example_files(
    instances: Collection[TrainingInstance],
    tokenizer: Tokenizer,
    max_seq_length: int,
    max_predictions_per_seq: int,
    output_files: Sequence[str],
) -> None:
    """Writes examples to TFRecord files in turn: the first to the first file, the second to the second, and so on.

    The files appear under their names when all of them are complete. Logs the first example as text.

    Args:
      instances: objects with the attributes `tokens`, `segment_ids`, `masked_lm_positions`, `masked_lm_labels` and
        `is_random_next`, such as TrainingInstance. If `is_random_next` is None (in all instances), the records are for
        masked words only.
      tokenizer: converts the tokens to ids.
      max_seq_length, max_predictions_per_seq: the lengths to which the features are padded.
      output_files: the names of the files; those that end in .gz are compressed.

    Raises:
      ValueError: an instance is longer than `max_seq_length` or `max_predictions_per_seq`.
    """
    for instance in itertools.islice(instances, 1):
        _log_first(instance.tokens, len(instances))
    rows = (_features(instance, tokenizer, max_seq_length, max_predictions_per_seq) for instance in instances)
    size = _rows_per_batch(max_seq_length, max_predictions_per_seq)
    batches = (
        records.columns(records.PRETRAINING if "next_sentence_labels" in some[0] else records.MASKED_WORDS, some)
        for some in iter(lambda: [*itertools.islice(rows, size)], [])
    )
    _write(batches, len(instances), output_files)


def _rows_per_batch(max_seq_length: int, max_predictions_per_seq: int) -> int:
    return max(1, _VALUES_PER_BATCH // (max_seq_length + max_predictions_per_seq))


def _log_first(tokens: Iterable[str], total: int) -> None:
    logging.info("The first of %d examples: %s", total, " ".join(map(tokenization.printable_text, tokens)))


def _write(batches: Iterable[Mapping[str, np.ndarray | Ragged]], total: int, output_files: Sequence[str]) -> None:
    """Writes examples to files in turn."""
    done = 0
    with tfrecords.writing(*output_files) as outs, progress.Progress("Writing", total, "examples") as shown:
        for batch in batches:
            encoded = example.encode(batch)
            for number, append in enumerate(outs):
                append(encoded[(number - done) % len(outs) :: len(outs)])
            done += len(encoded)
            shown.advance(len(encoded))
    logging.info("Wrote %d examples", total)


def _features(
    instance: TrainingInstance, tokenizer: Tokenizer, max_seq_length: int, max_predictions_per_seq: int
) -> dict[str, list]:
    input_ids = tokenizer.convert_tokens_to_ids(instance.tokens)
    masked_lm_ids = tokenizer.convert_tokens_to_ids(instance.masked_lm_labels)
    if len(input_ids) > max_seq_length or len(masked_lm_ids) > max_predictions_per_seq:
        raise ValueError(
            f"an instance of {len(input_ids)} tokens and {len(masked_lm_ids)} predictions does not fit"
            f" max_seq_length {max_seq_length} and max_predictions_per_seq {max_predictions_per_seq}"
        )
    padding = [0] * (max_seq_length - len(input_ids))
    no_predictions = [0] * (max_predictions_per_seq - len(masked_lm_ids))
    of_pair = {} if instance.is_random_next is None else {"next_sentence_labels": [int(instance.is_random_next)]}
    return {
        "input_ids": input_ids + padding,
        "input_mask": [1] * len(input_ids) + padding,
        "segment_ids": [*instance.segment_ids, *padding],
        "masked_lm_positions": [*instance.masked_lm_positions, *no_predictions],
        "masked_lm_ids": masked_lm_ids + no_predictions,
        "masked_lm_weights": [1.0] * len(masked_lm_ids) + [0.0] * len(no_predictions),
        **of_pair,
    }


def run(options: CreatePretrainingDataOptions) -> None:
    """Creates TFRecord files from text files, in this process; create_pretraining_data.run also makes shards."""
    output_files = [name.strip() for name in options.output_file.split(",")]
    input_files, tokenizer = prepare(options, output_files)
    logging.info("Reading %s", and_more(input_files, 8))
    _, examples = make_files(input_files, output_files, tokenizer, options, options.random_seed)
    tell_summary(output_files, options, len(examples))


def prepare(
    options: CreatePretrainingDataOptions, output_files: Sequence[str]
) -> tuple[list[str], tokenization.FullTokenizer]:
    """Checks what can be checked before the work; returns the input files and the tokenizer.

    A pattern that matches nothing is ignored, as in the reference, but with a warning.
    """

    sentences.splitter_version(options)  # raises an error if the library is missing
    input_files = files.match_files(options.input_file, skip_unmatched=True)
    outputs.check(
        {name: getattr(options, name) for name in ("input_file", "vocab_file")},
        [outputs.Output("output_file", name) for name in output_files],
    )
    tokenizer = text_rules.load_tokenizer(options.vocab_file, options.do_lower_case)
    _warn_of_settings(options)
    return input_files, tokenizer


def _warn_of_settings(options: PretrainingDataOptions) -> None:
    if options.dynamic_masking and options.dupe_factor >= _MANY_PASSES:
        logging.warning(
            "--dupe_factor=%d: with --dynamic_masking, the passes differ only in their pairs; 1 needs less disk",
            options.dupe_factor,
        )
    wanted = round(options.max_seq_length * options.masked_lm_prob)
    if options.max_predictions_per_seq < wanted:
        logging.warning(
            "--max_predictions_per_seq=%d: a full sequence of %d tokens would have %d at --masked_lm_prob=%g",
            options.max_predictions_per_seq, options.max_seq_length, wanted, options.masked_lm_prob,
        )  # fmt: skip


def _warn_of_documents(name: str, text: corpus.Corpus, options: CreatePretrainingDataOptions) -> None:
    """Warns if documents give no next sentences; create_pretraining_data.run warns about shards before the work."""
    count = len(text.documents)
    single = sum(stop - start == 1 for start, stop in text.documents)
    if single > _MANY_SINGLE * count and count > 1:
        problem = f'{single:,} of {count:,} documents are a single sentence: the next is always labelled "random"'
    elif count == 1 and options.num_shards is None:
        problem = 'is one document, from which the "random" second texts are taken too'
    else:
        return
    if options.objective == "mlm_nsp":
        logging.warning("%s: %s; %s", name, problem, FEW_DOCUMENTS)


def make_files(
    texts: Sequence[str | sentences.Piece],
    output_files: Sequence[str],
    tokenizer: tokenization.FullTokenizer,
    options: CreatePretrainingDataOptions,
    seed: int,
) -> tuple[corpus.Corpus, drawn_examples.DrawnExamples]:
    """Makes the examples of texts (see sentences.read) and writes them to TFRecord files in turn."""
    folder = os.path.dirname(output_files[0]) or "."
    text = corpus.read(texts, tokenizer, options)
    examples = drawn_examples.make(text, tokenizer, options, BufferedDraws(random.Random(seed)), folder)
    unknown = np.count_nonzero(text.tokens == tokenizer.vocab.get("[UNK]", -1))
    text_rules.check_unknown(and_more(texts, 3), unknown, len(text.tokens))
    _warn_of_documents(and_more(texts, 3), text, options)
    size = _rows_per_batch(options.max_seq_length, options.max_predictions_per_seq)
    batches = functools.partial(drawn_examples.batches, examples, text, tokenizer, options)
    for first in itertools.islice(batches(1), 1):
        length = first["input_mask"].sum() if "input_mask" in first else None
        _log_first(tokenizer.convert_ids_to_tokens(first["input_ids"].tolist()[0][:length]), len(examples))
    _write(batches(size), len(examples), output_files)
    return text, examples


def tell_summary(written: Sequence[str], options: CreatePretrainingDataOptions, num_examples: int) -> None:
    if not num_examples:
        logging.warning("%s: not a single token; the output has no records", options.input_file)
    console.summary(written)

"""Pretraining examples as TFRecord files: the implementation of create_pretraining_data.py."""

from __future__ import annotations

import functools
import itertools
import os
import random
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from bert_tf2 import tokenization
from bert_tf2.data import example, records, tfrecords
from bert_tf2.data.varints import Ragged
from bert_tf2.pretraining import compact_examples, corpus, drawn_examples, sentences
from bert_tf2.pretraining.corpus import Tokenizer
from bert_tf2.pretraining.draws import BufferedDraws
from bert_tf2.pretraining.instances import TrainingInstance
from bert_tf2.pretraining.options import CreatePretrainingDataOptions, PretrainingDataOptions
from bert_tf2.support import console, environment, files, gzip_files, outputs, progress
from bert_tf2.support.errors import and_more
from bert_tf2.vocabulary import check_unknown

_Batch = Mapping[str, np.ndarray | Ragged]
_LOGGED_EXAMPLES = 20
_VALUES_PER_BATCH = 1 << 17  # a few megabytes while they are encoded
_MANY_PASSES = 5


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
        `is_random_next`, such as TrainingInstance. If `is_random_next` is None, which it then is in all of them, the
        records are for masked words only.
      tokenizer: converts the tokens to ids.
      max_seq_length, max_predictions_per_seq: the lengths to which the features are padded.
      output_files: the names of the files; those that end in .gz are compressed.

    Raises:
      UserError: a file cannot be written.
      ValueError: an instance is longer than `max_seq_length` or `max_predictions_per_seq`.
    """
    first = [
        (instance, _features(instance, tokenizer, max_seq_length, max_predictions_per_seq))
        for instance in itertools.islice(instances, _LOGGED_EXAMPLES)
    ]
    rows = (_features(instance, tokenizer, max_seq_length, max_predictions_per_seq) for instance in instances)
    size = _rows_per_batch(max_seq_length, max_predictions_per_seq)
    batches = (_columns(some) for some in iter(lambda: [*itertools.islice(rows, size)], []))
    sample = example.encode(_columns([row for _, row in first])) if first else []
    _write(batches, len(instances), first, sample, output_files)


def _rows_per_batch(max_seq_length: int, max_predictions_per_seq: int) -> int:
    return max(1, _VALUES_PER_BATCH // (max_seq_length + max_predictions_per_seq))


def _columns(rows: Sequence[dict[str, list]]) -> _Batch:
    kind = records.PRETRAINING if "next_sentence_labels" in rows[0] else records.MASKED_WORDS
    return records.columns(kind, rows)


def _write(
    batches: Iterable[_Batch],
    total: int,
    first: Sequence[tuple[TrainingInstance, dict[str, list]]],
    sample: Sequence[bytes],
    output_files: Sequence[str],
) -> None:
    """Writes batches of features to files in turn.

    Args:
      batches: the features.
      total: the number of examples.
      first: the examples that are logged, and their features.
      sample: a few records, whose mean size is that of all.
      output_files: the names of the files.
    """
    if sample:
        share = total * sum(map(len, sample)) // len(sample) * 9 // 10 // len(output_files)
        if any(map(tfrecords.is_compressed, output_files)):
            share = round(share * gzip_files.share_left(tfrecords.frames(sample)))
        folders = [os.path.dirname(name) or "." for name in output_files]
        for folder in dict.fromkeys(folders):
            environment.check_space(folder, share * folders.count(folder), "the records")
    for number, (instance, row) in enumerate(first):
        _log_example(instance, number, total, row)
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
    """The features of one record, padded with zeros."""
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


def _rows(batch: _Batch, tokenizer: tokenization.FullTokenizer) -> list[tuple[types.SimpleNamespace, dict[str, list]]]:
    """Each example of a batch with the attributes of a TrainingInstance that are logged, and its features."""
    rows = [
        dict(zip(batch, values, strict=True))
        for values in zip(*(values.tolist() for values in batch.values()), strict=True)
    ]
    examples = []
    for row in rows:
        length = sum(row.get("input_mask", [1] * len(row["input_ids"])))
        num_masked = int(sum(row.get("masked_lm_weights", [])))
        shown = types.SimpleNamespace(
            tokens=tokenizer.convert_ids_to_tokens(row["input_ids"][:length]),
            masked_lm_positions=row.get("masked_lm_positions", [])[:num_masked],
            masked_lm_labels=tokenizer.convert_ids_to_tokens(row.get("masked_lm_ids", [])[:num_masked]),
            is_random_next=bool(row["next_sentence_labels"][0]) if "next_sentence_labels" in row else None,
        )
        examples.append((shown, row))
    return examples


def _log_example(instance: TrainingInstance, number: int, total: int, row: dict[str, list]) -> None:
    """Logs the first example as text, and several examples as numbers if --verbose_logging is set."""
    if number == 0:
        facts = _in_words(instance)
        if "masked_lm_positions" not in row:
            facts["to predict"] = "drawn by run_pretraining.py"
        logging.info("%s", console.table(f"The first of {total:,} examples:", facts))
    logging.debug("*** Example ***")
    logging.debug("tokens: %s", " ".join(map(tokenization.printable_text, instance.tokens)))
    for name, values in row.items():
        logging.debug("%s: %s", name, " ".join(map(str, values)))


def _in_words(instance: TrainingInstance) -> dict[str, str]:
    found = []
    for label, position in zip(instance.masked_lm_labels, instance.masked_lm_positions, strict=True):
        replacement = instance.tokens[position]
        how = {"[MASK]": "", label: " (kept)"}.get(replacement, " (a random word)")
        found.append(f"{label} -> {replacement}{how}")
    words = {
        "tokens": " ".join(map(tokenization.printable_text, instance.tokens)),
        "to predict": ", ".join(found),
    }
    if instance.is_random_next is not None:
        how = "is a random one" if instance.is_random_next else "follows the first"
        words["next"] = f"the second text {how}"
    return words


def run(options: CreatePretrainingDataOptions) -> None:
    """Creates TFRecord files from text files, in this process; sharded.run also makes shards.

    A name or a pattern in input_file that matches nothing is left out with a warning, unless none matches.

    Raises:
      UserError: an input is missing or not what input_format says, or the library for that is missing; the vocabulary
        lacks a special token; an output cannot be written or would overwrite an input or another output.
      ValueError: the options ask for shards.
    """
    if options.is_sharded:
        raise ValueError("these options ask for shards; call bert_tf2.pretraining.sharded.run")
    from bert_tf2.weights import metadata  # late: it imports the readers of many formats

    sentences.splitter_version(options)  # raises an error if the library is missing
    input_files = find_inputs(options.input_file)
    output_files = [name.strip() for name in options.output_file.split(",")]
    outputs.check(
        [outputs.Input(f"--{name}", getattr(options, name), once=True) for name in ("input_file", "vocab_file")],
        [outputs.Output("--output_file", name) for name in output_files],
    )
    tokenizer = metadata.load_tokenizer(options.vocab_file, options.do_lower_case)
    warn_of_settings(options)
    logging.info("Reading %s", and_more(input_files, 8))
    _, examples = make_files(input_files, output_files, tokenizer, options, options.random_seed)
    if not examples:
        logging.warning("%s: not a single token; the output has no records", options.input_file)
    console.summary(output_files, next_command=next_command(output_files, options) if examples else None)


def make_files(
    input_files: Sequence[str],
    output_files: Sequence[str],
    tokenizer: tokenization.FullTokenizer,
    options: PretrainingDataOptions,
    seed: int,
) -> tuple[corpus.Corpus, drawn_examples.DrawnExamples]:
    """Makes the examples of text files and writes them to TFRecord files in turn; returns the text and the examples.

    Args:
      input_files: text files.
      output_files: the names of the TFRecord files, which are complete or absent, and compressed if they end in .gz.
      tokenizer: a FullTokenizer with the rules of this project.
      options: the settings of the examples, except for the seed.
      seed: where the random numbers start.

    Raises:
      UserError: see `sentences.read`; or an output cannot be written.
    """
    folder = os.path.dirname(output_files[0]) or "."
    text, examples, batches = _made(input_files, tokenizer, options, seed, folder)
    unknown = np.count_nonzero(text.tokens == tokenizer.vocab.get("[UNK]", -1))
    check_unknown(and_more(input_files, 3), unknown, len(text.tokens))
    first = next(batches(_LOGGED_EXAMPLES), {})
    sample = example.encode(first) if first else []
    size = _rows_per_batch(options.max_seq_length, options.max_predictions_per_seq)
    _write(batches(size), len(examples), _rows(first, tokenizer), sample, output_files)
    return text, examples


def measure(
    input_files: Sequence[str], tokenizer: tokenization.FullTokenizer, options: CreatePretrainingDataOptions
) -> tuple[int, float]:
    """The number of examples of text files, and about the bytes of their records in the output."""
    _, examples, batches = _made(input_files, tokenizer, options, seed=0)
    size = _rows_per_batch(options.max_seq_length, options.max_predictions_per_seq)
    framed = b"".join(tfrecords.frames(example.encode(batch)) for batch in batches(size))
    packed = framed and tfrecords.is_compressed(options.output_file)
    return len(examples), len(framed) * (gzip_files.share_left(framed) if packed else 1.0)


def _made(
    input_files: Sequence[str],
    tokenizer: tokenization.FullTokenizer,
    options: PretrainingDataOptions,
    seed: int,
    folder: str | None = None,
) -> tuple[corpus.Corpus, drawn_examples.DrawnExamples, Callable[[int], Iterator[_Batch]]]:
    """The text, its examples, and a function that yields their features in batches of a size."""
    text = corpus.read(input_files, tokenizer, options)
    examples = compact_examples.make(text, tokenizer, options, BufferedDraws(random.Random(seed)), folder)
    return text, examples, functools.partial(compact_examples.batches, examples, text, tokenizer, options)


def next_command(output_files: Sequence[str], options: CreatePretrainingDataOptions) -> str | None:
    """The command that trains on the output; None if no configuration lies beside the vocabulary or here."""
    beside = os.path.join(os.path.dirname(options.vocab_file), "bert_config.json")
    config = next(filter(files.exists, (beside, "bert_config.json")), None)
    return config and console.command(
        "run_pretraining.py",
        do_train=True,
        do_eval=True,
        input_file=",".join(output_files),
        bert_config_file=config,
        output_dir=os.path.join(os.path.dirname(output_files[0]), "pretraining_output"),
        max_seq_length=options.max_seq_length,
        max_predictions_per_seq=options.max_predictions_per_seq,
        objective=None if options.objective == "mlm_nsp" else options.objective,
        **_for_masks(options),
    )


def _for_masks(options: CreatePretrainingDataOptions) -> dict[str, Any]:
    """The flags of the training for records without masks."""
    if not options.dynamic_masking:
        return {}
    same = {"vocab_file": options.vocab_file, "do_lower_case": options.do_lower_case}
    default = PretrainingDataOptions.masked_lm_prob
    return same | ({"masked_lm_prob": options.masked_lm_prob} if options.masked_lm_prob != default else {})


def find_inputs(input_file: str) -> list[str]:
    """The input files. A pattern that matches nothing is ignored, as in the reference, but with a warning.

    Raises:
      UserError: nothing matches.
    """
    unmatched: list[str] = []
    input_files = files.match_files(input_file, unmatched)
    for complaint in unmatched:
        logging.warning("--input_file: left out %s", complaint)
    return input_files


def warn_of_settings(options: PretrainingDataOptions) -> None:
    """Logs a warning if max_predictions_per_seq limits the number of predictions of a full sequence.

    And one if there are many passes over the text although training draws the masks.
    """
    if options.dynamic_masking and options.dupe_factor >= _MANY_PASSES:
        logging.warning(
            "--dupe_factor=%d: with --dynamic_masking, training draws new masks each time it reads a record, so the"
            " passes differ only in their pairs; --dupe_factor=1 needs a fraction of the disk",
            options.dupe_factor,
        )
    wanted = round(options.max_seq_length * options.masked_lm_prob)
    if options.max_predictions_per_seq < wanted:
        logging.warning(
            "--max_predictions_per_seq=%d: a full sequence of %d tokens would have %d at --masked_lm_prob=%g",
            options.max_predictions_per_seq, options.max_seq_length, wanted, options.masked_lm_prob,
        )  # fmt: skip

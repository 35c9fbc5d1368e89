"""Features for classification: examples become padded ids in records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from absl import logging

from bert_tf2 import tokenization
from bert_tf2.data import records
from bert_tf2.data.rows import kept_lengths, pack
from bert_tf2.finetuning.classification.examples import InputExample, label_problem, texts_of
from bert_tf2.support import progress
from bert_tf2.support.errors import UserError


class PaddingInputExample:
    """Fills up a batch of fixed size, in forks of the reference; the scripts do not need it."""


@dataclasses.dataclass
class InputFeatures:
    """The input of the model for one example."""

    # input_ids, input_mask, segment_ids: max_seq_length numbers each; as many as the text has tokens if it is not cut
    input_ids: list[int]
    input_mask: list[int]
    segment_ids: list[int]
    # the label's index, or the score of a regression; with several labels of an example, 1 or 0 for each label
    label_id: int | float | list[int]
    is_real_example: bool = True  # False for a PaddingInputExample
    is_cut: bool = False  # whether the text had more tokens than fit


def log_cut(cut: int, count: int, max_seq_length: int) -> None:
    """Warns of texts that were cut."""
    if cut:
        logging.warning("%d of %d texts are longer than %d tokens, and were cut", cut, count, max_seq_length)


def truncate_seq_pair(tokens_a: list[str], tokens_b: list[str], max_length: int) -> None:
    """Truncates two lists of tokens in place to `max_length` tokens together, as the reference's function does.

    Tokens are removed from the end of the longer list, or of the second list if both have the same length.
    """
    kept_a, kept_b = kept_lengths(len(tokens_a), len(tokens_b), max_length)
    del tokens_a[kept_a:], tokens_b[kept_b:]


_truncate_seq_pair = truncate_seq_pair  # its name in the reference


def pack_texts(
    text_a: str, text_b: str | None, max_seq_length: int | None, tokenizer: tokenization.FullTokenizer
) -> tuple[list[str], list[int], list[int], list[int], bool]:
    """Packs a text or a pair for the model: `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`; None cuts and pads nothing.

    A second text that has no tokens, also after truncation, is ignored.

    Returns the tokens, max_seq_length at most; the input ids, the input mask and the segment ids, each padded with 0;
    and whether tokens were cut off. Raises UserError if the delimiters alone are too many.
    """
    tokens_a = tokenizer.tokenize(text_a)
    tokens_b = tokenizer.tokenize(text_b) if text_b else []
    delimiters = 3 if tokens_b else 2
    length = len(tokens_a) + len(tokens_b) + delimiters
    max_seq_length = length if max_seq_length is None else max_seq_length
    if max_seq_length < delimiters:
        raise UserError(f"max_seq_length={max_seq_length}: must be at least {delimiters}, for [CLS] and each [SEP]")
    is_cut = length > max_seq_length
    truncate_seq_pair(tokens_a, tokens_b, max_seq_length - delimiters)
    tokens, segment_ids = pack(tokens_a, tokens_b)
    padding = [0] * (max_seq_length - len(tokens))
    input_ids = tokenizer.convert_tokens_to_ids(tokens) + padding
    return tokens, input_ids, [1] * len(tokens) + padding, segment_ids + padding, is_cut


def convert_single_example(
    ex_index: int,
    example: InputExample | PaddingInputExample,
    label_list: Sequence[str],
    max_seq_length: int | None,
    tokenizer: tokenization.FullTokenizer,
) -> InputFeatures:
    """Makes the features of one example; see `pack_texts`. The index is not used; the reference has this argument.

    `label_list`: the labels in order; empty if the label is a number. Raises UserError for another label, and for an
    object that is not a text.
    """
    if isinstance(example, PaddingInputExample):
        return InputFeatures(*([0] * max_seq_length for _ in range(3)), 0, is_real_example=False)
    if isinstance(label_list, set | frozenset):  # the order of its texts is another in each process
        raise UserError("label_list: a set has no order, which the numbers of the labels need; give a list")
    where, labels = f"example {example.guid}", [*label_list]  # which may be an array
    _, *inputs, is_cut = pack_texts(*texts_of(example, where), max_seq_length, tokenizer)
    if isinstance(example.label, tuple):
        label_id = [int(name in example.label) for name in labels]
    else:
        if labels and (problem := label_problem(example.label, labels)):
            raise UserError(f"{where}: {problem}")
        label_id = labels.index(example.label) if labels else float(example.label)
    return InputFeatures(*inputs, label_id, is_cut=is_cut)


def convert_examples_to_features(
    examples: Sequence[InputExample],
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
) -> list[InputFeatures]:
    """The features of all examples, in order."""
    return list(iterate_features(examples, label_list, max_seq_length, tokenizer))


def iterate_features(
    examples: Sequence[InputExample],
    label_list: Sequence[str],
    max_seq_length: int | None,
    tokenizer: tokenization.FullTokenizer,
) -> Iterator[InputFeatures]:
    """Yields the features of all examples, in order; `max_seq_length` is None for texts that are not cut."""
    cut = 0
    for index, example in enumerate(progress.track(examples, "Writing features", unit="examples")):
        features = convert_single_example(index, example, label_list, max_seq_length, tokenizer)
        cut += features.is_cut
        yield features
    log_cut(cut, len(examples), max_seq_length)


def record_kind(label_list: Sequence[str], multi_label: bool = False) -> records.RecordKind:
    """The kind of record for features that were made with this label list."""
    if multi_label:
        return records.MULTI_LABEL
    return records.CLASSIFICATION if label_list else records.REGRESSION


def as_record(features: InputFeatures) -> dict[str, Sequence[float]]:
    """A row for `records.write_records`, also of a kind for whole texts."""
    second = sum(features.segment_ids)
    return {
        "input_ids": features.input_ids,
        "input_mask": features.input_mask,
        "segment_ids": features.segment_ids,
        "segment_lengths": [sum(features.input_mask) - second, *([second] if second else [])],
        "label_ids": features.label_id if isinstance(features.label_id, list) else [features.label_id],
        "is_real_example": [int(features.is_real_example)],
    }


def file_based_convert_examples_to_features(
    examples: Sequence[InputExample],
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
    output_file: str,
) -> int:
    """Writes the features of all examples to a TFRecord file, which is complete or absent; returns their number."""
    rows = map(as_record, iterate_features(examples, label_list, max_seq_length, tokenizer))
    return records.write_records(output_file, record_kind([*label_list]), rows)

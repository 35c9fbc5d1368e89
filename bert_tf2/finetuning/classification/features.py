"""Features for classification: examples as padded ids, and as TFRecord files with the reference's names and numbers.

An empty list of labels means regression: the label is a number and the model has one output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from absl import logging

from bert_tf2 import tokenization
from bert_tf2.data import records
from bert_tf2.finetuning.classification.examples import InputExample, label_problem
from bert_tf2.finetuning.options import check_least_length
from bert_tf2.support import progress
from bert_tf2.support.errors import UserError


@dataclasses.dataclass
class InputFeatures:
    """The input of the model for one example."""

    # input_ids, input_mask, segment_ids: max_seq_length numbers each
    input_ids: list[int]
    input_mask: list[int]
    segment_ids: list[int]
    # the label's index, or the score of a regression; with several labels of an example, 1 or 0 for each label
    label_id: int | float | list[int]
    is_cut: bool = False  # whether the text has more tokens


def log_cut(cut: int, count: int, max_seq_length: int) -> None:
    """Warns of texts that are not read to their end."""
    if cut:
        logging.warning("%d of %d texts are longer than %d tokens, and were cut", cut, count, max_seq_length)


def truncate_seq_pair(tokens_a: list[str], tokens_b: list[str], max_length: int) -> None:
    """Truncates two lists of tokens in place to `max_length` tokens together, as the reference's `_truncate_seq_pair`.

    Tokens are removed from the end of the longer list, or of the second list if both have the same length.
    """
    if len(tokens_a) + len(tokens_b) <= max_length:
        return
    keep_b = min(len(tokens_b), max(max_length // 2, max_length - len(tokens_a)))
    del tokens_b[keep_b:]
    del tokens_a[max_length - keep_b :]


def pack_texts(
    text_a: str, text_b: str | None, max_seq_length: int, tokenizer: tokenization.FullTokenizer
) -> tuple[list[str], list[int], list[int], list[int], bool]:
    """Packs a text or a pair for the model: `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.

    A second text that has no tokens, or none after truncation, is ignored.

    Returns the tokens, max_seq_length at most; the input ids, the input mask and the segment ids, each padded with 0;
    and whether tokens were cut off.
    """
    check_least_length(max_seq_length)
    tokens_a = tokenizer.tokenize(text_a)
    tokens_b = tokenizer.tokenize(text_b) if text_b else []
    is_cut = len(tokens_a) + len(tokens_b) > max_seq_length - (3 if tokens_b else 2)
    if tokens_b:
        truncate_seq_pair(tokens_a, tokens_b, max_seq_length - 3)
    else:
        del tokens_a[max_seq_length - 2 :]
    first = ["[CLS]", *tokens_a, "[SEP]"]
    second = [*tokens_b, "[SEP]"] if tokens_b else []
    tokens, padding = first + second, [0] * (max_seq_length - len(first) - len(second))
    input_ids = tokenizer.convert_tokens_to_ids(tokens) + padding
    return tokens, input_ids, [1] * len(tokens) + padding, [0] * len(first) + [1] * len(second) + padding, is_cut


def convert_single_example(
    ex_index: int,
    example: InputExample,
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
) -> InputFeatures:
    """Makes the features of one example; see `pack_texts`. The index is an argument of the reference, and not used.

    `label_list`: the labels in order; empty if the label is a number.
    """
    if problem := label_problem(example.label, label_list):
        raise UserError(f"example {example.guid}: {problem}")
    _, *inputs, is_cut = pack_texts(example.text_a, example.text_b, max_seq_length, tokenizer)
    if isinstance(example.label, tuple):
        label_id = [int(name in example.label) for name in label_list]
    else:
        label_id = label_list.index(example.label) if label_list else float(example.label)
    return InputFeatures(*inputs, label_id, is_cut)


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
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
) -> Iterator[InputFeatures]:
    """Yields what `convert_examples_to_features` returns."""
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
    """A row for `records.write_records`."""
    return {
        "input_ids": features.input_ids,
        "input_mask": features.input_mask,
        "segment_ids": features.segment_ids,
        "label_ids": features.label_id if isinstance(features.label_id, list) else [features.label_id],
        "is_real_example": [1],  # read by the reference, whose padding examples do not exist here
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
    return records.write_records(output_file, record_kind(label_list), rows)

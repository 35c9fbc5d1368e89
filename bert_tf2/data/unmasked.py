"""Records without masks: create_pretraining_data.py --dynamic_masking writes them, training draws the masks.

A record has what the masks are drawn from, and nothing that can be computed: ids without padding, and the numbers of
tokens of segments and words. It takes a third of the bytes of a record with masks.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator

import numpy as np

from bert_tf2.data.schemas import Columns, Condition, Feature, RecordKind

MOST_SEGMENTS = 2
_LONGEST = 1 << 20


def num_maskable(num_tokens, num_segments):
    """The number of tokens without [CLS] and the [SEP] of each segment; integers or arrays."""
    return num_tokens - 1 - num_segments


def sums(num_tokens, num_segments) -> dict:
    """What the lengths of a record must add up to; integers or arrays."""
    return {"segment_lengths": num_tokens, "word_lengths": num_maskable(num_tokens, num_segments)}


def _conditions(values: Columns, counts: Columns) -> Iterator[Condition]:
    tokens, segments = counts["input_ids"], counts["segment_lengths"]
    yield segments > MOST_SEGMENTS, lambda row: f"has {segments[row]} segments, at most {MOST_SEGMENTS} are possible"

    def describe(name: str, found: np.ndarray, wanted: np.ndarray, row: int) -> str:
        return f"the sum of {name} is {found[row]}, and {wanted[row]} is needed for {tokens[row]} tokens"

    for name, wanted in sums(tokens, segments).items():
        if name in values:
            found = values[name].sum(axis=1)
            yield found != wanted, functools.partial(describe, name, found, wanted)


ALL = RecordKind(
    "unmasked pretraining",
    {
        "input_ids": Feature("int64", "max_seq_length", exclusive_maximum="vocab_size", varies=True),
        "segment_lengths": Feature("int64", "type_vocab_size", minimum=2, exclusive_maximum=_LONGEST, varies=True),
        "next_sentence_labels": Feature("int64", 1, exclusive_maximum=2),
        "word_lengths": Feature("int64", "max_seq_length", minimum=1, exclusive_maximum=_LONGEST, varies=True),
    },
    _conditions,
)
"""All features, by which the record

    [CLS] A [SEP] B [SEP]

is described: its ids; the number of tokens of `[CLS] A [SEP]` and of `B [SEP]`, or of a single segment; whether B is
random, for pairs; and for whole-word masking the number of tokens of each word in order, without [CLS] and [SEP].
"""


@functools.cache
def kind(*, pairs: bool, words: bool) -> RecordKind:
    """The kind of records that have labels for the next sentence (`pairs`), and the lengths of words (`words`)."""
    absent = {"next_sentence_labels": not pairs, "word_lengths": not words}
    features = {name: feature for name, feature in ALL.features.items() if not absent.get(name)}
    return RecordKind(ALL.name, features, ALL.conditions)


def kind_of(names: Collection[str]) -> RecordKind | None:
    """The kind of a record with these features; None if it is another one than an example without masks."""
    if not {"input_ids", "segment_lengths"} <= {*names}:
        return None
    return kind(pairs="next_sentence_labels" in names, words="word_lengths" in names)


def are_of(kind: RecordKind) -> bool:
    """Whether the records of a kind are examples without masks."""
    return kind.conditions is _conditions

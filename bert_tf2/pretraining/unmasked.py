"""Records without masks: create_pretraining_data.py --dynamic_masking writes them, `dynamic_masking` masks them.

A record has what the masks are drawn from, and nothing that can be computed: ids without padding, and the numbers of
tokens of segments and words. It takes a third of the bytes of a record with masks.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from bert_tf2.data.records import Feature, RecordKind

MOST_SEGMENTS = 2
_LONGEST = 1 << 20


def num_maskable(num_tokens, num_segments):
    """The number of tokens without [CLS] and the [SEP] of each segment; integers or arrays."""
    return num_tokens - 1 - num_segments


def sums(num_tokens, num_segments) -> dict:
    """What the lengths of a record must add up to; integers or arrays."""
    return {"segment_lengths": num_tokens, "word_lengths": num_maskable(num_tokens, num_segments)}


def _problem(row: Mapping[str, Sequence[int]]) -> str | None:
    tokens, segments = len(row["input_ids"]), len(row["segment_lengths"])
    if segments > MOST_SEGMENTS:
        return f"has {segments} segments, at most {MOST_SEGMENTS} are possible"
    for name, wanted in sums(tokens, segments).items():
        if name in row and sum(row[name]) != wanted:
            return f"the sum of {name} is {sum(row[name])}, and {wanted} is needed for {tokens} tokens"
    return None


ALL = RecordKind(
    "unmasked pretraining",
    {
        "input_ids": Feature("int64", "max_seq_length", below="vocab_size", varies=True),
        "segment_lengths": Feature("int64", "type_vocab_size", least=2, below=_LONGEST, varies=True),
        "next_sentence_labels": Feature("int64", 1, below=2),
        "word_lengths": Feature("int64", "max_seq_length", least=1, below=_LONGEST, varies=True),
    },
    _problem,
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
    return RecordKind(ALL.name, features, ALL.problem)


def kind_of(names: Sequence[str]) -> RecordKind | None:
    """The kind of a record with these features; None if it is another one than an example without masks."""
    if not {"input_ids", "segment_lengths"} <= {*names}:
        return None
    return kind(pairs="next_sentence_labels" in names, words="word_lengths" in names)


def are_of(kind: RecordKind) -> bool:
    """Whether the records of a kind are examples without masks."""
    return kind.problem is _problem


def wrong(values: Mapping[str, np.ndarray], counts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Finds the records with a `problem`: bool [N].

    Args:
      values: feature name -> [N, L], padded with zeros.
      counts: feature name -> [N], the number of values of each record, for features whose number varies.
    """
    tokens, segments = counts["input_ids"], counts["segment_lengths"]
    found = segments > MOST_SEGMENTS
    for name, wanted in sums(tokens, segments).items():
        if name in values:
            found |= values[name].sum(axis=1) != wanted
    return found

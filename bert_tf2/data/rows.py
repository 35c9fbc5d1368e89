"""The rows that BERT reads: one or two texts between special tokens, cut, divided into windows, and padded.

tokens        [CLS]  a a a  [SEP]  b b  [SEP]      `pack`, of tokens or of their ids
segment_ids     0    0 0 0    0    1 1    1
input_mask      1    1 1 1    1    1 1    1   0 0  `padded`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

INPUTS = ("input_ids", "input_mask", "segment_ids")
"""The features that every model reads, int32 [B, F]."""

Token = TypeVar("Token", str, int)


class Row(NamedTuple):
    """The ids of a text or of a pair, without padding."""

    input_ids: list[int]
    segment_ids: list[int]


def pack(
    first: Sequence[Token], second: Sequence[Token] = (), cls: Token = "[CLS]", sep: Token = "[SEP]"
) -> tuple[list[Token], list[int]]:
    """Returns `[CLS] first [SEP]`, or `[CLS] first [SEP] second [SEP]` if the second has tokens, and the segments."""
    tokens = [cls, *first, sep]
    segment_ids = [0] * len(tokens)
    if second:
        tokens += [*second, sep]
        segment_ids += [1] * (len(second) + 1)
    return tokens, segment_ids


def kept_lengths(length_a: int, length_b: int, room: int) -> tuple[int, int]:
    """Returns how many tokens of a pair are kept: the longer text loses tokens, the second if both are equally long."""
    kept_b = min(length_b, max(room // 2, room - length_a))
    return min(length_a, room - kept_b), kept_b


def windows(total: int, room: int, stride: int) -> list[range]:
    """Divides `total` tokens, 1 or more, into ranges of at most `room` tokens that start min(stride, room) apart.

    Raises ValueError if the stride or the room is below 1.
    """
    step = min(room, stride)
    if step < 1:
        raise ValueError(f"no window can advance: it has room for {room} tokens, and the stride is {stride}")
    return [range(start, min(start + room, total)) for start in range(0, max(total - room, 0) + step, step)]


def padded(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Returns `INPUTS`, int32 [B, F]; F is the length of the longest row."""
    longest = max((len(row.input_ids) for row in rows), default=0)
    filled = {name: np.zeros([len(rows), longest], np.int32) for name in INPUTS}
    for number, (ids, segments) in enumerate(rows):
        for name, values in zip(INPUTS, (ids, 1, segments), strict=True):
            filled[name][number, : len(ids)] = values
    return filled

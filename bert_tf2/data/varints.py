"""Varints, the integers of protobuf, written many at a time.

A varint has 7 bits of the number in each byte, the lowest first; the highest bit tells that another byte follows. A
negative number is that of 64 bits with the same bits, and takes 10 bytes.
"""

from __future__ import annotations

import dataclasses

import numpy as np

_LONGEST = 10  # bytes of a varint


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Rows of numbers, possibly of different lengths."""

    values: np.ndarray  # [B, L] of any integer type, or float32; each row padded with zeros
    lengths: np.ndarray  # int [B], the number of values of each row, from 1 to L

    def __len__(self) -> int:
        return len(self.values)

    @property
    def used(self) -> np.ndarray:
        """Which of `values` are no padding, bool [B, L]."""
        return np.arange(self.values.shape[1]) < self.lengths[:, None]

    def tolist(self) -> list[list[int]]:
        """The rows without padding."""
        return [row[:length] for row, length in zip(self.values.tolist(), self.lengths.tolist(), strict=True)]


def encode(values: np.ndarray, used: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray | None]:
    """Encodes integers [B, L].

    Args:
      values: the integers, of any type.
      used: bool [B, L], false for those to leave out; None for all.

    Returns:
      A table of bytes, uint8 [B, W], and which of them belong to the varints, bool [B, W], or None for all. Those of a
      row are its varints, one after the other.
    """
    count, length = values.shape
    smallest, largest = (int(values.min()), int(values.max())) if values.size else (0, 0)
    if smallest >= 0 and largest < 1 << 7:
        return values.astype(np.uint8), used
    unsigned = values.astype(np.uint32) if smallest >= 0 and largest < 1 << 32 else values.astype(np.int64).view("u8")
    width = _LONGEST if smallest < 0 else -(-largest.bit_length() // 7)
    table = np.empty((count, length, width), np.uint8)
    present = np.ones((count, length, width), bool)
    if used is not None:
        present[:, :, 0] = used
    for number in range(width):
        table[:, :, number] = unsigned & 0x7F
        unsigned = unsigned >> 7
        if number + 1 < width:
            more = unsigned != 0
            table[:, :, number] |= more.view(np.uint8) << 7
            present[:, :, number + 1] = more if used is None else more & used
    return table.reshape(count, -1), present.reshape(count, -1)

"""Varints, the integers of protobuf, many at a time.

A varint has 7 bits of the number in each byte, the lowest first; the highest bit tells that another byte follows. A
negative number is that of 64 bits with the same bits, and takes 10 bytes.
"""

from __future__ import annotations

import dataclasses

import numpy as np

LONGEST = 10
"""The most bytes of a varint."""


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Rows of numbers, possibly of different lengths.

    Attributes:
      values: [B, L] of any integer type, or float32; each row padded with zeros.
      lengths: int [B], the number of values of each row, from 1 to L.
    """

    values: np.ndarray
    lengths: np.ndarray

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
    width = LONGEST if smallest < 0 else -(-largest.bit_length() // 7)
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


def decode_lists(array: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Decodes lists of varints.

    Args:
      array: uint8, bytes that contain the lists.
      starts, lengths: int64 [N], where each of them is; each has at least one byte.

    Returns:
      The numbers of all lists, one after the other, of any integer type; and how many each list has, int64 [N], -1 if
      its bytes are no varints.
    """
    width = int(lengths.max(initial=0))
    table = windows(array, starts, width)
    last = table < 0x80  # whether a byte ends a number
    within = None
    if (lengths != width).any():
        within = np.arange(width) < lengths[:, None]
        last &= within
    elif last.all():
        return table.reshape(-1), lengths
    counts = np.count_nonzero(last, axis=1)
    counts[table[np.arange(len(starts)), lengths - 1] > 0x7F] = -1  # the last number has no end
    goes_on = ~last if within is None else within & ~last
    # joined[k][:, i]: whether the k + 1 bytes before byte i + k + 1 belong to the same number.
    joined = [goes_on[:, :-1]]
    while joined[-1].any() and len(joined) < LONGEST:
        joined.append(joined[-1][:, 1:] & goes_on[:, : -len(joined) - 1])
    if len(joined) == LONGEST:
        counts[joined[-1].any(axis=1)] = -1
    # The first byte of a number is its lowest seven bits, so each step back shifts what was read by seven.
    bits = table & 0x7F
    dtype = np.uint32 if len(joined) <= 4 else np.uint64
    values = bits.astype(dtype)
    for back, same in enumerate(joined[:-1], 1):
        target = values[:, back:]
        np.copyto(target, target << dtype(7) | bits[:, :-back], where=same)
    return values.view(np.int32 if dtype is np.uint32 else np.int64)[last], counts


def decode_at(array: np.ndarray, places: np.ndarray, limits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decodes one short varint, such as a size, at each place.

    Args:
      array: uint8, which goes on behind each limit.
      places, limits: int64 [N], where each varint begins, and where no byte of it can be any more.

    Returns:
      The numbers, int64 [N]; the places behind them; and whether each is one of at most 4 bytes, bool [N].
    """
    byte = array[np.minimum(places, limits)]
    value = (byte & 0x7F).astype(np.int64)
    places = places + 1
    for shift in (7, 14, 21):
        more = byte > 0x7F
        if not more.any():
            break
        byte = np.where(more, array[np.minimum(places, limits)], 0)
        value |= (byte & 0x7F).astype(np.int64) << shift
        places = places + more
    return value, places, byte < 0x80


def windows(array: np.ndarray, starts: np.ndarray, width: int) -> np.ndarray:
    """uint8 [N, width]: the bytes from each of `starts` on; what is behind the end of the array is 0."""
    if not len(starts):
        return np.zeros((0, width), np.uint8)
    if int(starts.max()) + width > len(array):
        array = np.concatenate([array, np.zeros(width, np.uint8)])
    return np.lib.stride_tricks.sliding_window_view(array, width)[starts]

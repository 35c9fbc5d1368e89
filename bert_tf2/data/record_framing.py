"""The framing of TFRecord files, read and checked without TensorFlow.

A record is stored as

    length   8 bytes, little-endian
    checksum of the length   4 bytes
    data   `length` bytes
    checksum of the data   4 bytes

Both checksums are masked CRC32C. A file has no header and no index, so the records have to be walked one by one; what
is inside of them is decoded in blocks (see example_parser).
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from typing import BinaryIO

import google_crc32c
import numpy as np

from bert_tf2.data.example_bytes import mask
from bert_tf2.support import files, gzip_files
from bert_tf2.support.errors import UserError

_HEADER = 12
_FOOTER = 4
FRAME = _HEADER + _FOOTER
"""The bytes of a record in addition to its data."""
_BLOCK_BYTES = 1 << 22  # large enough that numpy's calls do not count, small enough for the processor's cache
_MOST_BYTES = 1 << 28  # thirty million tokens; protobuf allows 1 << 31
_AGAIN = "make it again or copy it again"


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive records of a file, whose checksums are right.

    Attributes:
      path: the file.
      first: the number of the first record, counted from 1.
      data: bytes that contain the records.
      starts: int64 [N], where the data of each record begins in `data`.
      lengths: int64 [N], the bytes of each record.
    """

    path: str
    first: int
    data: bytes
    starts: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def record(self, row: int) -> bytes:
        start = int(self.starts[row])
        return self.data[start : start + int(self.lengths[row])]

    def parts(self, most_bytes: int) -> Iterator[Block]:
        """Divides the block where a table with a row for each record, as wide as the longest, would be larger."""
        if len(self) < 2 or len(self) * int(self.lengths.max()) <= most_bytes:
            yield self
            return
        half = len(self) // 2
        for first, rows in ((0, slice(half)), (half, slice(half, None))):
            part = Block(self.path, self.first + first, self.data, self.starts[rows], self.lengths[rows])
            yield from part.parts(most_bytes)


def read_blocks(path: str, block_bytes: int = _BLOCK_BYTES, growing: bool = False) -> Iterator[Block]:
    """Yields the records of a TFRecord file in blocks.

    All records before a damaged one are yielded before the error is raised.

    Args:
      path: the file, local or remote; compressed by gzip if its name ends in .gz.
      block_bytes: how much to read at a time. A longer record makes its block as large as necessary.
      growing: whether another process may still be writing the file: an incomplete last record is then no damage.

    Raises:
      UserError: the file is missing or cannot be read, is of another kind, or is damaged; the message has the number of
        the first damaged record.
    """
    walk = _Walk()
    number, rest, wanted = 1, b"", block_bytes
    with gzip_files.open_records(path) as stream:
        while read := _read(stream, wanted, path, number):
            data = rest + read
            starts, lengths, place, problem = walk.records(data)
            if starts:
                yield Block(path, number, data, np.array(starts, np.int64), np.array(lengths, np.int64))
            number += len(starts)
            if problem:
                raise _damaged(path, number, problem)
            rest = data[place:]
            wanted = max(block_bytes, len(rest))  # doubles for a record that is longer than a block
    if rest and not growing:
        raise _damaged(path, number, _incomplete(rest))


def _read(stream: BinaryIO, wanted: int, path: str, number: int) -> bytes:
    """Reads `wanted` bytes, or those that are left. `number`: the first record that is not complete yet."""
    try:
        return stream.read(wanted)
    except gzip_files.DAMAGE as error:
        raise UserError(f"{path}, record {number} or a later one: {gzip_files.damage(error)}; {_AGAIN}") from error


class _Walk:
    """Finds the records in bytes. Remembers headers, because most records of a file have one of few lengths."""

    def __init__(self):
        self._lengths: dict[bytes, int] = {}

    def records(self, data: bytes) -> tuple[list[int], list[int], int, str | None]:
        """Returns the places and lengths of the complete records' data, the place of the rest, and a problem."""
        starts: list[int] = []
        lengths: list[int] = []
        place, end, value, known = 0, len(data), google_crc32c.value, self._lengths
        unpack = struct.Struct("<I").unpack_from
        while place + _HEADER <= end:
            header = data[place : place + _HEADER]
            length = known.get(header)
            if length is None:
                length, problem = self._read(header)
                if problem:
                    return starts, lengths, place, problem
            start = place + _HEADER
            stop = start + length
            if stop + _FOOTER > end:
                break
            if unpack(data, stop)[0] != mask(value(data[start:stop])):
                return starts, lengths, place, f"the data do not match their checksum: the file is corrupted; {_AGAIN}"
            starts.append(start)
            lengths.append(length)
            place = stop + _FOOTER
        return starts, lengths, place, None

    def _read(self, header: bytes) -> tuple[int, str | None]:
        length, checksum = struct.unpack("<QI", header)
        if checksum != mask(google_crc32c.value(header[:8])):
            return 0, f"the length does not match its checksum: the file is corrupted; {_AGAIN}"
        if length >= _MOST_BYTES:
            return 0, f"claims to have {length:,} bytes, more than any record has; {_AGAIN}"
        if len(self._lengths) < 1 << 16:
            self._lengths[header] = length
        return length, None


def _incomplete(rest: bytes) -> str:
    """Describes the incomplete record at the end of a file."""
    if len(rest) < _HEADER:
        return f"the file is truncated: {len(rest)} bytes of {_HEADER} before the data; {_AGAIN}"
    length = struct.unpack_from("<Q", rest)[0]
    found = len(rest) - _HEADER
    if found < length:
        return f"the file is truncated: {found:,} of {length:,} bytes of data; {_AGAIN}"
    return f"the file is truncated: {found - length} of {_FOOTER} bytes of the checksum after the data; {_AGAIN}"


def _damaged(path: str, number: int, problem: str) -> UserError:
    if number == 1 and gzip_files.is_named_gzip(path):
        if found := gzip_files.problem_of_records(path):
            return UserError(f"{path}: {found}")
    elif number == 1:
        files.expect_kind(path, "a TFRecord file", "TFRecord")  # raises a better message for text, a table, an archive
    return UserError(f"{path}, record {number}: {problem}")

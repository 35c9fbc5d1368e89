"""TFRecord files, written, read and checked without TensorFlow.

A record is stored as

    length   8 bytes, little-endian
    checksum of the length   4 bytes
    data   `length` bytes
    checksum of the data   4 bytes

Both checksums are masked CRC32C. A file has no header and no index, so the records are walked one by one. A file whose
name ends in .gz is written compressed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import struct
from collections.abc import Callable, Iterable, Iterator

import google_crc32c
import numpy as np

from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.support.file_kinds import HEAD_BYTES, mismatch

_HEADER = 12
_FOOTER = 4
FRAME = _HEADER + _FOOTER
"""The bytes of a record in addition to its data."""
_BLOCK_BYTES = 1 << 22  # large enough that numpy's calls do not count, small enough for the processor's cache
_MOST_BYTES = 1 << 28  # of a record: thirty million tokens; protobuf allows 1 << 31
# Records of 128 tokens: level 1 leaves 31 % at 90 MB/s, level 6 29 % at 50 MB/s, level 9 29 % at 20 MB/s.
_COMPRESSION = 1
_AGAIN = "make it again or copy it again"
_FROM_TEXT = "create_pretraining_data.py makes records of text, to be given here"


def mask(checksum: int) -> int:
    """TensorFlow stores checksums rotated and offset, so that a checksum of stored checksums stays useful."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


# Writing


def frames(records: Iterable[bytes]) -> bytes:
    """The bytes of these records in a file."""
    parts: list[bytes] = []
    for record in records:
        parts += (_header(len(record)), record, _checksum(record))
    return b"".join(parts)


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", mask(google_crc32c.value(data)))


@functools.lru_cache(maxsize=4096)  # records of one file have few lengths
def _header(length: int) -> bytes:
    data = struct.pack("<Q", length)
    return data + _checksum(data)


@contextlib.contextmanager
def writing(*paths: str) -> Iterator[list[Callable[[Iterable[bytes]], None]]]:
    """Opens files for writing. They appear under their names, complete, at the end of the context, or not at all.

    Yields a list with one function for each file, which appends records to the file.
    """
    with files.complete_or_absent(*paths) as beside, contextlib.ExitStack() as stack:
        streams = []
        for name, path in zip(beside, paths, strict=True):
            stream = stack.enter_context(files.open_binary(name, "wb"))
            if path.endswith(files.GZIP_ENDING):  # without name and time, so equal records give equal bytes
                stream = stack.enter_context(gzip.GzipFile("", "wb", _COMPRESSION, stream, mtime=0))
            streams.append(stream)
        yield [lambda records, stream=stream: stream.write(frames(records)) for stream in streams]


# Reading


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive records of a file, whose checksums are right."""

    path: str  # the file
    first: int  # the number of the first record, counted from 1
    data: bytes  # bytes that contain the records
    starts: np.ndarray  # int64 [N], where the data of each record begins in `data`
    lengths: np.ndarray  # int64 [N], the bytes of each record

    def __len__(self) -> int:
        return len(self.starts)

    def record(self, row: int) -> bytes:
        start = int(self.starts[row])
        return self.data[start : start + int(self.lengths[row])]

    def checksums(self) -> bytes:
        """The checksums behind the records in the file, 4 bytes each."""
        ends = (self.starts + self.lengths)[:, np.newaxis] + np.arange(_FOOTER)
        return np.frombuffer(self.data, np.uint8)[ends].tobytes()


def read_blocks(path: str, block_bytes: int = _BLOCK_BYTES) -> Iterator[Block]:
    """Yields the records of a TFRecord file, which gzip may have compressed, in blocks.

    Raises UserError at the first damaged record. A record that is longer than `block_bytes` makes its block as large as
    necessary.
    """
    lengths_of_headers: dict[bytes, int] = {}
    number, rest, wanted = 1, b"", block_bytes
    with files.open_unpacked(path) as stream:
        while read := stream.read(wanted):
            data = rest + read
            starts, lengths, place, problem = _walk(data, lengths_of_headers)
            if starts:
                yield Block(path, number, data, np.array(starts, np.int64), np.array(lengths, np.int64))
            number += len(starts)
            if problem:
                raise _damaged(path, number, f"{problem}; {_AGAIN}")
            rest = data[place:]
            wanted = max(block_bytes, len(rest))  # doubles for a record that is longer than a block
    if rest:
        raise _damaged(path, number, f"the file is truncated: {len(rest):,} bytes of a record; {_AGAIN}")


def _walk(data: bytes, known: dict[bytes, int]) -> tuple[list[int], list[int], int, str | None]:
    """Returns the places and lengths of the complete records' data, the place of the rest, and the problem there.

    The problem is None if there is no problem. `known`: header -> length, of the headers that were read before, because
    most records of a file have one of few lengths.
    """
    starts: list[int] = []
    lengths: list[int] = []
    place, end, value = 0, len(data), google_crc32c.value
    unpack = struct.Struct("<I").unpack_from
    while place + _HEADER <= end:
        header = data[place : place + _HEADER]
        length = known.get(header)
        if length is None:
            length, checksum = struct.unpack("<QI", header)
            if checksum != mask(value(header[:8])):
                return starts, lengths, place, "the length does not match its checksum: the file is corrupted"
            if length >= _MOST_BYTES:
                return starts, lengths, place, f"claims to have {length:,} bytes, more than any record has"
            if len(known) < 1 << 16:
                known[header] = length
        start = place + _HEADER
        stop = start + length
        if stop + _FOOTER > end:
            break
        if unpack(data, stop)[0] != mask(value(data[start:stop])):
            return starts, lengths, place, "the data do not match their checksum: the file is corrupted"
        starts.append(start)
        lengths.append(length)
        place = stop + _FOOTER
    return starts, lengths, place, None


def _damaged(path: str, number: int, problem: str) -> UserError:
    if number == 1:
        with files.open_unpacked(path) as stream:
            head = stream.read(HEAD_BYTES)
        if other := mismatch(head, path, "TFRecord", of_text=_FROM_TEXT):
            return UserError(f"{path}: {other}")
        problem += " (is this a TFRecord file?)"
    return UserError(f"{path}, record {number}: {problem}")

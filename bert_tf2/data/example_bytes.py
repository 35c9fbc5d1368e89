"""The bytes of `tf.train.Example` messages and TFRecord files, without TensorFlow and protobuf.

A message object for every record takes most of the time of writing. The bytes themselves are simple, and numpy makes
those of many records at a time.

An Example is a map from names to lists of numbers. Each level is a field: a tag, the size in bytes, the content.

    Example  0a SIZE  Features
    Features 0a SIZE  entry, for each name in the order of its bytes
    entry    0a SIZE  name   12 SIZE  Feature
    Feature  1a SIZE  (0a SIZE  varints)            int64
             12 SIZE  (0a SIZE  floats, 4 bytes)    float32

A varint has 7 bits of the number in each byte, the lowest first; the highest bit tells that another byte follows. A
size is a varint too.

A record of a TFRecord file is: its length (8 bytes), the checksum of these, the record, its checksum.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Iterable, Mapping

import google_crc32c
import numpy as np

_LENGTH_DELIMITED = {"features": b"\x0a", "entry": b"\x0a", "key": b"\x0a", "value": b"\x12", "list": b"\x0a"}
_KIND = {"int64": b"\x1a", "float32": b"\x12"}


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Rows of integers with different lengths.

    Attributes:
      values: [B, L] of any integer type, each row padded with zeros.
      lengths: int [B], the number of values of each row, from 1 to L.
    """

    values: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def tolist(self) -> list[list[int]]:
        """The rows without padding."""
        return [row[:length] for row, length in zip(self.values.tolist(), self.lengths.tolist(), strict=True)]


def encode(columns: Mapping[str, np.ndarray | Ragged]) -> list[bytes]:
    """Serializes rows, each to the bytes of `Example.SerializeToString(deterministic=True)`.

    Args:
      columns: feature name -> array [B, L] of integers or of float32, or Ragged. L >= 1 may differ between features.

    Returns:
      B records.

    Raises:
      ValueError: an array is not [B, L] with the same B, has no values, or has another type; or a ragged row is empty.
    """
    rows = _Rows(len(next(iter(columns.values()))))
    for name in sorted(columns, key=str.encode):  # by the bytes of the name, as protobuf sorts
        values, used = columns[name], None
        if isinstance(values, Ragged):
            if len(values) and values.lengths.min() < 1:
                raise ValueError(f"{name}: a row has no values")
            values, used = values.values, np.arange(values.values.shape[1]) < values.lengths[:, None]
        if values.ndim != 2 or len(values) != rows.count or not values.shape[1]:
            raise ValueError(f"{name}: an array of shape {values.shape} is not [{rows.count}, L] with L >= 1")
        rows = rows.followed_by(_entry(name, values, used))
    return rows.within(_LENGTH_DELIMITED["features"]).split()


def _entry(name: str, values: np.ndarray, used: np.ndarray | None) -> _Rows:
    """The entries of one feature; `used`: bool [B, L] for integers of which some are padding, otherwise None."""
    if np.issubdtype(values.dtype, np.integer):
        kind, content = "int64", _varints(values, used)
    elif values.dtype == np.float32 and used is None:
        kind, content = "float32", _Rows(len(values), np.ascontiguousarray(values, "<f4").view(np.uint8))
    else:
        raise ValueError(f"{name}: values of type {values.dtype} are neither integers nor float32")
    feature = content.within(_LENGTH_DELIMITED["list"]).within(_KIND[kind]).within(_LENGTH_DELIMITED["value"])
    encoded = name.encode()
    key = _constant(len(values), encoded).within(_LENGTH_DELIMITED["key"])
    return key.followed_by(feature).within(_LENGTH_DELIMITED["entry"])


class _Rows:
    """The beginning of every record: a table of bytes, some of which are left out.

    Attributes:
      count: the number of records, B.
      tables: uint8 arrays [B, W], or [1, W] where all rows are equal, side by side.
      kept: for each table a bool array [B, W], or None where no byte is left out.
      sizes: int64 [B], the bytes that are kept.
    """

    def __init__(self, count: int, table: np.ndarray | None = None, kept: np.ndarray | None = None):
        self.count = count
        self.tables = [] if table is None else [table]
        self.kept = [] if table is None else [kept]
        width = 0 if table is None else table.shape[1]
        self.sizes = np.full(count, width, np.int64) if kept is None else np.count_nonzero(kept, axis=1)

    def followed_by(self, other: _Rows) -> _Rows:
        rows = _Rows(self.count)
        rows.tables, rows.kept = self.tables + other.tables, self.kept + other.kept
        rows.sizes = self.sizes + other.sizes
        return rows

    def within(self, tag: bytes) -> _Rows:
        """A field with this content: tag, size, content."""
        return _constant(self.count, tag).followed_by(_varints(self.sizes[:, None])).followed_by(self)

    def split(self) -> list[bytes]:
        """The records."""
        width = sum(table.shape[1] for table in self.tables)
        table, kept = np.empty((self.count, width), np.uint8), np.ones((self.count, width), bool)
        place = 0
        for part, part_kept in zip(self.tables, self.kept, strict=True):
            end = place + part.shape[1]
            table[:, place:end] = part
            if part_kept is not None:
                kept[:, place:end] = part_kept
            place = end
        data = table[kept].tobytes()
        ends = np.cumsum(self.sizes).tolist()
        return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _constant(count: int, content: bytes) -> _Rows:
    return _Rows(count, np.frombuffer(content, np.uint8)[None])


def _varints(values: np.ndarray, used: np.ndarray | None = None) -> _Rows:
    """The varints of integers [B, L], each row one after the other. A negative number takes 10 bytes, as in C.

    With `used`, bool [B, L], only those for which it is true.
    """
    count, length = values.shape
    least, most = (int(values.min()), int(values.max())) if count else (0, 0)
    if least >= 0 and most < 1 << 7:
        return _Rows(count, values.astype(np.uint8), used)
    unsigned = values.astype(np.uint32) if least >= 0 and most < 1 << 32 else values.astype(np.int64).view(np.uint64)
    width = 10 if least < 0 else -(-most.bit_length() // 7)
    table = np.empty((count, length, width), np.uint8)
    kept = np.ones((count, length, width), bool)
    if used is not None:
        kept[:, :, 0] = used
    for number in range(width):
        table[:, :, number] = unsigned & 0x7F
        unsigned = unsigned >> 7
        if number + 1 < width:
            more = unsigned != 0
            table[:, :, number] |= more.view(np.uint8) << 7
            kept[:, :, number + 1] = more if used is None else more & used
    return _Rows(count, table.reshape(count, -1), kept.reshape(count, -1))


def mask(checksum: int) -> int:
    """TensorFlow stores checksums rotated and offset, so that a checksum of stored checksums stays useful."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frames(records: Iterable[bytes]) -> bytes:
    """The part of a TFRecord file that these records make; files are such parts one after the other."""
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

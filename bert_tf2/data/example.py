"""Serialized `tf.train.Example`s without TensorFlow: written many at a time, read by protobuf.

numpy makes the bytes of many records at once, because a message object for each record would take most of the time.

An Example is a map from names to lists of numbers. Each level is a field: a tag, the size in bytes, the content.

    Example  0a SIZE  Features
    Features 0a SIZE  entry, for each name in the order of its bytes
    entry    0a SIZE  name   12 SIZE  Feature
    Feature  1a SIZE  (0a SIZE  varints)            int64
             12 SIZE  (0a SIZE  floats, 4 bytes)    float32
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping

import numpy as np

_FLOATS, _INTEGERS = 2, 3  # the numbers of the fields of tf.train.Feature

_LENGTH_DELIMITED = 2  # the wire type of messages and packed lists
_LONGEST_VARINT = 10  # bytes


class NotAnExample(ValueError):
    """The bytes are not a serialized tf.train.Example."""


# Writing


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Rows of numbers, possibly of different lengths."""

    values: np.ndarray  # [B, L] of any integer type, or float32; each row padded with zeros
    lengths: np.ndarray  # int [B], the number of values of each row, from 1 to L

    def __len__(self) -> int:
        return len(self.values)

    @property
    def used(self) -> np.ndarray:
        """True for each of `values` that is not padding, bool [B, L]."""
        return np.arange(self.values.shape[1]) < self.lengths[:, None]

    def tolist(self) -> list[list[int]]:
        """The rows without padding."""
        return [row[:length] for row, length in zip(self.values.tolist(), self.lengths.tolist(), strict=True)]


def encode(columns: Mapping[str, np.ndarray | Ragged]) -> list[bytes]:
    """Serializes B rows, each to the bytes of `Example.SerializeToString(deterministic=True)`.

    `columns`: feature name -> array [B, L] of integers or of float32, or Ragged. L >= 1 may differ between features.
    """
    count = len(next(iter(columns.values())))
    rows = _Rows(count)
    for name in sorted(columns, key=str.encode):  # by the bytes of the name, as protobuf sorts
        values, used = columns[name], None  # `used` is false for padding
        if isinstance(values, Ragged):
            values, used = values.values, values.used
        if np.issubdtype(values.dtype, np.integer):
            kind, content = _INTEGERS, _Rows(count, *encode_varints(values, used))
        elif values.dtype == np.float32 and used is None:
            kind, content = _FLOATS, _Rows(count, np.ascontiguousarray(values, "<f4").view(np.uint8))
        else:
            raise ValueError(f"{name}: values of type {values.dtype} are neither integers nor float32")
        key = _constant(count, name.encode()).within(1)
        rows = rows.followed_by(key.followed_by(content.within(1).within(kind).within(2)).within(1))
    return rows.within(1).split()


class _Rows:
    """The beginning of every record: a table of bytes, some of which are left out."""

    def __init__(self, count: int, table: np.ndarray | None = None, present: np.ndarray | None = None):
        self.count = count  # the number of records, B
        # uint8 arrays [B, W], or [1, W] where all rows are equal, side by side
        self.tables = [] if table is None else [table]
        # for each table a bool array [B, W], or None where no byte is left out
        self.present = [] if table is None else [present]
        width = 0 if table is None else table.shape[1]
        # int64 [B], the bytes that are not left out
        self.sizes = np.full(count, width, np.int64) if present is None else np.count_nonzero(present, axis=1)

    def followed_by(self, other: _Rows) -> _Rows:
        rows = _Rows(self.count)
        rows.tables, rows.present = self.tables + other.tables, self.present + other.present
        rows.sizes = self.sizes + other.sizes
        return rows

    def within(self, number: int) -> _Rows:
        """The field of this number with this content: tag, size, content."""
        size = _Rows(self.count, *encode_varints(self.sizes[:, None]))
        tag = _constant(self.count, bytes([number << 3 | _LENGTH_DELIMITED]))
        return tag.followed_by(size).followed_by(self)

    def split(self) -> list[bytes]:
        shapes = [(self.count, table.shape[1]) for table in self.tables]
        table = np.concatenate([*map(np.broadcast_to, self.tables, shapes)], axis=1)
        every = [True if present is None else present for present in self.present]
        present = np.concatenate([*map(np.broadcast_to, every, shapes)], axis=1)
        data = table[present].tobytes()
        ends = np.cumsum(self.sizes).tolist()
        return [data[start:end] for start, end in itertools.pairwise([0, *ends])]


def _constant(count: int, content: bytes) -> _Rows:
    return _Rows(count, np.frombuffer(content, np.uint8)[None])


def encode_varints(values: np.ndarray, used: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray | None]:
    """Encodes integers [B, L] as protobuf's varints.

    A byte has 7 bits of the number, the lowest first, and a bit that is 1 if another byte follows. A negative number is
    encoded as the unsigned number of 64 bits with the same bits. `used`, bool [B, L], is false for the integers to
    leave out; None uses all.

    Returns the bytes, uint8 [B, W], and bool [B, W], true for the bytes that belong to the varints; None if all do.
    """
    count, length = values.shape
    smallest, largest = (int(values.min()), int(values.max())) if values.size else (0, 0)
    if smallest >= 0 and largest < 1 << 7:
        return values.astype(np.uint8), used
    unsigned = values.astype(np.uint32) if smallest >= 0 and largest < 1 << 32 else values.astype(np.int64).view("u8")
    width = _LONGEST_VARINT if smallest < 0 else -(-largest.bit_length() // 7)
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


# Reading


def messages(table: Mapping[str, str]) -> dict[str, type]:
    """Makes classes of protobuf, because TensorFlow's own classes take seconds to import.

    `table`: name of a message -> its fields with commas between them: name, number, type; * for a repeated field.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # late: not every script needs it

    proto = descriptor_pb2.FileDescriptorProto(name="messages.proto", package="here", syntax="proto3")
    for message, fields in table.items():
        made = proto.message_type.add(name=message)
        for name, number, kind in map(str.split, filter(None, fields.split(", "))):
            field = made.field.add(name=name, number=int(number), label=3 if kind.endswith("*") else 1)
            kind = kind.rstrip("*")
            if kind in table:
                field.type, field.type_name = field.TYPE_MESSAGE, f".here.{kind}"
            else:
                field.type = getattr(field, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    found = pool.FindFileByName(proto.name).message_types_by_name
    return {name: message_factory.GetMessageClass(found[name]) for name in table}


@functools.cache
def _example() -> type:
    return messages(
        {
            "FloatList": "value 1 float*",
            "Int64List": "value 1 int64*",
            "Feature": "float_list 2 FloatList, int64_list 3 Int64List",
            "Entry": "key 1 string, value 2 Feature",
            "Features": "feature 1 Entry*",
            "Example": "features 1 Features",
        }
    )["Example"]


def parse(data: bytes) -> dict[str, np.ndarray]:
    """Returns the numeric features of an Example: name -> int64 or float32 [L]. Raises NotAnExample."""
    from google.protobuf import message

    try:
        entries = _example().FromString(data).features.feature
    except message.DecodeError as error:
        raise NotAnExample(str(error)) from error
    return {
        entry.key: np.array(getattr(entry.value, kind).value, dtype)
        for entry in entries
        for kind, dtype in (("int64_list", np.int64), ("float_list", np.float32))
        if entry.value.HasField(kind)
    }

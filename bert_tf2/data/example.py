"""Serialized `tf.train.Example`s, written and read many at a time, without TensorFlow.

A message object for every record takes most of the time of writing and reading. The bytes themselves are simple, and
numpy makes and reads those of many records at a time.

An Example is a map from names to lists of numbers. Each level is a field: a tag, the size in bytes, the content.

    Example  0a SIZE  Features
    Features 0a SIZE  entry, for each name in the order of its bytes
    entry    0a SIZE  name   12 SIZE  Feature
    Feature  1a SIZE  (0a SIZE  varints)            int64
             12 SIZE  (0a SIZE  floats, 4 bytes)    float32

Nearly all writers serialize an Example in this way. `locate` follows it with one cursor for each record of a block, all
of which advance by the same step of numpy. A record of any other valid form (lists that are not packed, messages in
several parts, unknown fields) is first written in this form by protobuf.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

from bert_tf2.data import varints
from bert_tf2.data.varints import Ragged

if TYPE_CHECKING:
    from google.protobuf.message import Message

BYTES, FLOATS, INTEGERS = 1, 2, 3
"""The kinds of a feature: the numbers of the fields of tf.train.Feature."""

_LENGTH_DELIMITED = 2  # the wire type of messages and packed lists
_MOST_ENTRIES = 64  # protobuf reads records with more features


class NotAnExample(ValueError):
    """The bytes are no serialized tf.train.Example."""


def _tag(number: int) -> bytes:
    """What a field of this number begins with."""
    return bytes([number << 3 | _LENGTH_DELIMITED])


# Writing


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
            values, used = values.values, values.used
        if values.ndim != 2 or len(values) != rows.count or not values.shape[1]:
            raise ValueError(f"{name}: an array of shape {values.shape} is not [{rows.count}, L] with L >= 1")
        rows = rows.followed_by(_entry(name, values, used))
    return rows.within(1).split()


def _entry(name: str, values: np.ndarray, used: np.ndarray | None) -> _Rows:
    """The entries of one feature; `used`: bool [B, L] for integers of which some are padding, otherwise None."""
    if np.issubdtype(values.dtype, np.integer):
        kind, content = INTEGERS, _Rows(len(values), *varints.encode(values, used))
    elif values.dtype == np.float32 and used is None:
        kind, content = FLOATS, _Rows(len(values), np.ascontiguousarray(values, "<f4").view(np.uint8))
    else:
        raise ValueError(f"{name}: values of type {values.dtype} are neither integers nor float32")
    key = _constant(len(values), name.encode()).within(1)
    return key.followed_by(content.within(1).within(kind).within(2)).within(1)


class _Rows:
    """The beginning of every record: a table of bytes, some of which are left out.

    Attributes:
      count: the number of records, B.
      tables: uint8 arrays [B, W], or [1, W] where all rows are equal, side by side.
      present: for each table a bool array [B, W], or None where no byte is left out.
      sizes: int64 [B], the bytes that are not left out.
    """

    def __init__(self, count: int, table: np.ndarray | None = None, present: np.ndarray | None = None):
        self.count = count
        self.tables = [] if table is None else [table]
        self.present = [] if table is None else [present]
        width = 0 if table is None else table.shape[1]
        self.sizes = np.full(count, width, np.int64) if present is None else np.count_nonzero(present, axis=1)

    def followed_by(self, other: _Rows) -> _Rows:
        rows = _Rows(self.count)
        rows.tables, rows.present = self.tables + other.tables, self.present + other.present
        rows.sizes = self.sizes + other.sizes
        return rows

    def within(self, number: int) -> _Rows:
        """The field of this number with this content: tag, size, content."""
        size = _Rows(self.count, *varints.encode(self.sizes[:, None]))
        return _constant(self.count, _tag(number)).followed_by(size).followed_by(self)

    def split(self) -> list[bytes]:
        """The records."""
        shapes = [(self.count, table.shape[1]) for table in self.tables]
        table = np.concatenate([*map(np.broadcast_to, self.tables, shapes)], axis=1)
        every = [True if present is None else present for present in self.present]
        present = np.concatenate([*map(np.broadcast_to, every, shapes)], axis=1)
        data = table[present].tobytes()
        ends = np.cumsum(self.sizes).tolist()
        return [data[start:end] for start, end in itertools.pairwise([0, *ends])]


def _constant(count: int, content: bytes) -> _Rows:
    return _Rows(count, np.frombuffer(content, np.uint8)[None])


# Reading one record


# Of the messages of tf.train.Example. TensorFlow's own classes need TensorFlow.
_SCHEMA = """
name: "example" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "FloatList" field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Int64List" field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type {
  name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".Int64List" oneof_index: 0 }
}
message_type {
  name: "Features"
  field { name: "feature" number: 1 type: TYPE_MESSAGE label: LABEL_REPEATED type_name: ".Features.FeatureEntry" }
  nested_type {
    name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".Feature" }
  }
}
message_type { name: "Example" field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".Features" } }
"""


@functools.cache
def _message() -> type[Message]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Example"))


def _features(data: bytes) -> Mapping[str, Message]:
    from google.protobuf import message

    try:
        return _message().FromString(data).features.feature
    except message.DecodeError as error:
        raise NotAnExample(str(error)) from error


def parse(data: bytes) -> dict[str, np.ndarray]:
    """Parses one Example of any valid form.

    Returns:
      Feature name -> its values, int64 or float32 [L]; an empty array of bytes for a feature that has no numbers.

    Raises:
      NotAnExample: the bytes are not valid.
    """
    dtypes = {"int64_list": np.int64, "float_list": np.float32}
    found = {}
    for name, feature in _features(data).items():
        kind = feature.WhichOneof("kind")
        found[name] = np.array(getattr(feature, kind).value if kind in dtypes else (), dtypes.get(kind, np.bytes_))
    return found


def _rewritten(data: bytes, names: Collection[str]) -> bytes:
    """Serializes an Example in the usual form, with some of its features only."""
    given, made = _features(data), _message()()
    for name in {*names}.intersection(given):
        if not given[name].WhichOneof("kind"):
            continue  # as if it were not there
        made.features.feature[name].CopyFrom(given[name])
    made.DiscardUnknownFields()
    return made.SerializeToString(deterministic=True) or _tag(1) + b"\0"


# Reading many records


@dataclasses.dataclass(frozen=True)
class Located:
    """Where the values of one feature are, in N records.

    Attributes:
      kinds: uint8 [N], BYTES, FLOATS or INTEGERS; 0 if a record lacks the feature.
      starts, lengths: int64 [N], the packed values in the bytes; length 0 if there are none.
    """

    kinds: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


def locate(
    data: bytes, starts: np.ndarray, lengths: np.ndarray, names: Collection[str]
) -> tuple[np.ndarray, dict[str, Located], list[int]]:
    """Finds the features of many records.

    Args:
      data: bytes that contain the records.
      starts, lengths: int64 [N], where each record is.
      names: the features to find.

    Returns:
      The bytes as an array, which `integers` and `floats` take, and may hold rewritten records; feature name ->
      Located; and the rows that are no Example. Such a row has no features.
    """
    array = _padded(data)
    cursors = _Cursors(array, starts, lengths)
    found = cursors.features(names)
    odd = np.flatnonzero(~cursors.ok)
    if not len(odd):
        return array, found, []
    pieces, invalid, place = [data], [], len(data)
    starts, lengths = starts.copy(), lengths.copy()
    for row in odd.tolist():
        try:
            piece = _rewritten(data[starts[row] : starts[row] + lengths[row]], names)
        except NotAnExample:
            piece = _tag(1) + b"\0"
            invalid.append(row)
        pieces.append(piece)
        starts[row], lengths[row] = place, len(piece)
        place += len(piece)
    array = _padded(b"".join(pieces))
    return array, _Cursors(array, starts, lengths).features(names), invalid


def _padded(data: bytes) -> np.ndarray:
    """The bytes as an array, with zeros behind them, so that a cursor at the end can read a whole number."""
    return np.frombuffer(data + bytes(16), np.uint8)


class _Cursors:
    """One cursor per record; a row whose bytes have another form than the usual one is no longer `ok`."""

    def __init__(self, array: np.ndarray, starts: np.ndarray, lengths: np.ndarray):
        self._array = array
        self._at, self._limit = starts, starts + lengths
        self.ok = np.ones(len(starts), bool)

    def features(self, names: Collection[str]) -> dict[str, Located]:
        """Locates the features in all records that are `ok` afterwards."""
        count = len(self._at)
        found = {
            name: Located(np.zeros(count, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.int64))
            for name in names
        }
        self._expect(self._open(1) == self._limit)
        for _ in range(_MOST_ENTRIES):
            active = self.ok & (self._at < self._limit)
            if not active.any():
                return found
            self._entry(active, found)
        self.ok &= self._at >= self._limit
        return found

    def _entry(self, active: np.ndarray, found: dict[str, Located]) -> None:
        """Reads one entry of the map of features in the rows that are `active`; the others stay at their limit."""
        stop = self._open(1, active)
        key_stop = self._open(1, active)
        key, size = self._at, key_stop - self._at
        self._at = key_stop
        self._expect(self._open(2, active) == stop, active)
        kind = self._array[self._at] >> 3
        self._expect((self._array[self._at] & 7) == _LENGTH_DELIMITED, active)
        self._expect((kind >= BYTES) & (kind <= INTEGERS), active)
        self._expect(self._length(self._at + 1, active) == stop, active)
        with_values = active & self.ok & (self._at < stop) & (kind != BYTES)
        if with_values.any():
            self._expect(self._open(1, with_values) == stop, with_values)
        self._store(found, active & self.ok, (key, size), kind, np.where(with_values, stop - self._at, 0))
        self._at = np.where(active, stop, self._at)

    def _open(self, number: int, active: np.ndarray | None = None) -> np.ndarray:
        """Enters a message or list of this field number; returns its end."""
        self._expect(self._array[self._at] == number << 3 | _LENGTH_DELIMITED, active)
        return self._length(self._at + 1, active)

    def _length(self, at: np.ndarray, active: np.ndarray | None) -> np.ndarray:
        """Reads the length at these places, moves the cursors of `active` behind it; returns where the content ends."""
        value, at, fits = varints.decode_at(self._array, at, self._limit)
        stop = at + value
        self._expect(fits & (stop <= self._limit), active)
        good = self.ok if active is None else self.ok & active
        self._at = np.where(good, at, self._at)
        return np.where(good, stop, self._at)

    def _expect(self, fits: np.ndarray, active: np.ndarray | None = None) -> None:
        self.ok &= fits if active is None else fits | ~active
        self._at = np.where(self.ok, self._at, self._limit)

    def _store(self, found: dict[str, Located], rows: np.ndarray, key, kind: np.ndarray, lengths: np.ndarray) -> None:
        starts, sizes = key
        for name, target in found.items():
            text = np.frombuffer(name.encode(), np.uint8)
            where = np.flatnonzero(rows & (sizes == len(text)))
            where = where[(varints.windows(self._array, starts[where], len(text)) == text).all(axis=1)]
            target.kinds[where], target.lengths[where] = kind[where], lengths[where]
            target.starts[where] = self._at[where]


def integers(array: np.ndarray, located: Located) -> Ragged:
    """Decodes an integer feature.

    Args:
      array: the bytes, from `locate`.
      located: where the values are, in N records.

    Returns:
      The values of the records before the first one that has none, or whose bytes are no list of integers.
    """
    count = _first((located.kinds != INTEGERS) | (located.lengths == 0))
    values, counts = varints.decode_lists(array, located.starts[:count], located.lengths[:count])
    counts = counts[: _first(counts < 0)]
    values, longest = values[: counts.sum()], counts.max(initial=0)
    if (counts == longest).all():
        return Ragged(values.reshape(len(counts), longest), counts)
    found = Ragged(np.zeros((len(counts), longest), values.dtype), counts)
    found.values[found.used] = values
    return found


def floats(array: np.ndarray, located: Located) -> Ragged:
    """Decodes a float feature, to float32; see `integers`."""
    lengths = located.lengths
    lengths = lengths[: _first((located.kinds != FLOATS) | (lengths == 0) | (lengths % 4 != 0))]
    table = varints.windows(array, located.starts[: len(lengths)], int(lengths.max(initial=0)))
    found = Ragged(table.view("<f4"), lengths // 4)
    if len(found) and lengths.min() < lengths.max():
        found.values[~found.used] = 0
    return found


def _first(bad: np.ndarray) -> int:
    """The index of the first true value, or the number of values if there is none."""
    return int(bad.argmax()) if bad.any() else len(bad)

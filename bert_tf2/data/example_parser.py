"""Decodes serialized `tf.train.Example`s without protobuf, many at a time.

Nearly all writers serialize an Example in one way (each level of messages once, lists packed). `locate` follows this
form with one cursor for each record of a block, all of which advance by the same step of numpy. A record of any other
valid form (lists that are not packed, messages in several parts, unknown fields) is first rewritten by `parse`, which
has protobuf's rules: parts of a message are merged, the last of several map entries with the same key wins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator

import numpy as np

from bert_tf2.data.example_bytes import Ragged

BYTES, FLOATS, INTEGERS = 1, 2, 3
"""The kinds of a feature: the numbers of the fields of tf.train.Feature."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # the wire types of protobuf
_MOST_ENTRIES = 64  # `parse` reads records with more features
_LONGEST_VARINT = 10


class NotAnExample(ValueError):
    """The bytes are no serialized tf.train.Example."""


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


# One record


def parse(data: bytes, names: Collection[str]) -> dict[str, tuple[int, bytes]]:
    """Parses one Example of any valid form.

    Args:
      data: the serialized Example.
      names: the features to return; others are skipped.

    Returns:
      Feature name -> its kind and its values, packed as protobuf packs them. A feature without a list has kind 0.

    Raises:
      NotAnExample: the bytes are not valid.
    """
    wanted = {name.encode() for name in names}
    features = b"".join(value for number, wire, value in _fields(data) if (number, wire) == (1, _LENGTH))
    found: dict[str, tuple[int, bytes]] = {}
    for number, wire, entry in _fields(features):
        if (number, wire) == (1, _LENGTH):
            parts = [(number, value) for number, wire, value in _fields(entry) if wire == _LENGTH]
            key = next((value for number, value in reversed(parts) if number == 1), b"")
            feature = b"".join(value for number, value in parts if number == 2)  # joining serialized parts merges them
            if key in wanted:
                found[key.decode()] = _parse_feature(feature)
    return found


def first_integer(packed: bytes) -> int | None:
    """The first value of an integer feature from `parse`; None if it has none.

    Raises:
      NotAnExample: the bytes end within it.
    """
    return _varint(packed, 0)[0] if packed else None


def _parse_feature(data: bytes) -> tuple[int, bytes]:
    kind, content = 0, b""
    for number, wire, value in _fields(data):
        if wire == _LENGTH and number in (BYTES, FLOATS, INTEGERS):
            content = content + value if number == kind else value  # another kind replaces the former
            kind = number
    if kind in (0, BYTES):
        return kind, b""
    own = _FIXED32 if kind == FLOATS else _VARINT
    packed = b"".join(value for number, wire, value in _fields(content) if number == 1 and wire in (own, _LENGTH))
    if packed and (len(packed) % 4 if kind == FLOATS else packed[-1] > 0x7F):
        raise NotAnExample("a list is cut off")
    return kind, packed


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yields the number, the wire type and the content of each field of a message, without the content's length."""
    place, end = 0, len(data)
    while place < end:
        tag, place = _varint(data, place)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            stop = _varint(data, place)[1]
        elif wire == _LENGTH:
            size, place = _varint(data, place)
            stop = place + size
        elif wire in (_FIXED32, _FIXED64):
            stop = place + (4 if wire == _FIXED32 else 8)
        else:
            raise NotAnExample(f"a field of the wire type {wire}")
        if stop > end or not number:
            raise NotAnExample("a field is longer than its message" if number else "a field with the number 0")
        yield number, wire, data[place:stop]
        place = stop


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for count, byte in enumerate(data[place : place + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, place + count + 1
    raise NotAnExample("a number is cut off")


def _rewrite(data: bytes, names: Collection[str]) -> bytes:
    """Serializes an Example in the form that `_Cursors` reads, with some of its features only."""
    entries = b""
    for name, (kind, packed) in parse(data, names).items():
        values = _field(1, packed) if packed else b""
        entries += _field(1, _field(1, name.encode()) + _field(2, _field(kind or BYTES, values)))
    return _field(1, entries)


def _field(number: int, content: bytes) -> bytes:
    size, header = len(content), bytearray([number << 3 | _LENGTH])
    while size > 0x7F:
        header.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*header, size]) + content


# Many records


def locate(
    data: bytes, starts: np.ndarray, lengths: np.ndarray, names: Collection[str]
) -> tuple[np.ndarray, dict[str, Located], dict[int, str]]:
    """Finds the features of many records.

    Args:
      data: bytes that contain the records.
      starts, lengths: int64 [N], where each record is.
      names: the features to find.

    Returns:
      The bytes as an array, which `integers` and `floats` take, and may hold rewritten records; feature name ->
      Located; and row -> what is wrong with it, for rows that are no Example. Such a row has no features.
    """
    array = _padded(data)
    cursors = _Cursors(array, starts, lengths)
    found = cursors.features(names)
    odd = np.flatnonzero(~cursors.ok)
    if not len(odd):
        return array, found, {}
    pieces, problems, place = [data], {}, len(data)
    starts, lengths = starts.copy(), lengths.copy()
    for row in odd.tolist():
        try:
            piece = _rewrite(data[starts[row] : starts[row] + lengths[row]], names)
        except NotAnExample as error:
            piece, problems[row] = _field(1, b""), str(error)
        pieces.append(piece)
        starts[row], lengths[row] = place, len(piece)
        place += len(piece)
    array = _padded(b"".join(pieces))
    return array, _Cursors(array, starts, lengths).features(names), problems


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
        self._expect((self._array[self._at] & 7) == _LENGTH, active)
        self._expect((kind >= BYTES) & (kind <= INTEGERS), active)
        self._expect(self._length(self._at + 1, active) == stop, active)
        with_values = active & self.ok & (self._at < stop) & (kind != BYTES)
        if with_values.any():
            self._expect(self._open(1, with_values) == stop, with_values)
        self._store(found, active & self.ok, (key, size), kind, np.where(with_values, stop - self._at, 0))
        self._at = np.where(active, stop, self._at)

    def _open(self, number: int, active: np.ndarray | None = None) -> np.ndarray:
        """Enters a message or list of this field number; returns its end."""
        self._expect(self._array[self._at] == number << 3 | _LENGTH, active)
        return self._length(self._at + 1, active)

    def _length(self, at: np.ndarray, active: np.ndarray | None) -> np.ndarray:
        """Reads the length at these places, moves the cursors of `active` behind it; returns where the content ends."""
        byte = self._array[np.minimum(at, self._limit)]
        value = (byte & 0x7F).astype(np.int64)
        at = at + 1
        for shift in (7, 14, 21):
            more = byte > 0x7F
            if not more.any():
                break
            byte = np.where(more, self._array[np.minimum(at, self._limit)], 0)
            value |= (byte & 0x7F).astype(np.int64) << shift
            at = at + more
        stop = at + value
        self._expect((byte < 0x80) & (stop <= self._limit), active)
        good = self.ok if active is None else self.ok & active
        self._at = np.where(good, at, self._at)
        return np.where(good, stop, self._at)

    def _expect(self, fits: np.ndarray, active: np.ndarray | None = None) -> None:
        self.ok &= fits if active is None else fits | ~active
        self._at = np.where(self.ok, self._at, self._limit)

    def _store(self, found: dict[str, Located], rows: np.ndarray, key, kind: np.ndarray, lengths: np.ndarray) -> None:
        starts, sizes = key
        for name in found:
            text = np.frombuffer(name.encode(), np.uint8)
            same = rows & (sizes == len(text))
            # Most names differ in their length or their first and last letter.
            for place in (0, len(text) - 1):
                if same.any():
                    same &= self._array[np.minimum(starts + place, self._limit)] == text[place]
            if not same.any():
                continue
            where = np.flatnonzero(same)
            where = where[(_rows(self._array, starts[where], len(text)) == text).all(axis=1)]
            target = found[name]
            target.kinds[where], target.lengths[where] = kind[where], lengths[where]
            target.starts[where] = self._at[where]
            rows = rows.copy()
            rows[where] = False
            if not rows.any():
                return


def _rows(array: np.ndarray, starts: np.ndarray, width: int) -> np.ndarray:
    """uint8 [N, width]: the bytes at each of `starts`; what is behind the end of the array is 0."""
    if not len(starts):
        return np.zeros((0, width), np.uint8)
    if int(starts.max()) + width > len(array):
        array = np.concatenate([array, np.zeros(width, np.uint8)])
    return np.lib.stride_tricks.sliding_window_view(array, width)[starts]


def integers(array: np.ndarray, located: Located, wanted: int) -> tuple[np.ndarray, int]:
    """Decodes an integer feature of which every record should have the same number of values.

    Args:
      array: the bytes, from `locate`.
      located: where the values are, in N records.
      wanted: the number of values of a record, at least 1.

    Returns:
      [rows, wanted] of any integer type, the values of the records before the first one that has another number of
      them, or of all N; and the number that this one has, -1 if its bytes are no list of integers.
    """
    lengths = located.lengths
    # The limits also keep the rectangle of bytes below at ten times the bytes of its rows.
    possible = (located.kinds == INTEGERS) & (lengths >= wanted) & (lengths <= _LONGEST_VARINT * wanted)
    count = _first(~possible)
    if count:
        values, counts = _varints(array, located.starts[:count], lengths[:count])
        right = _first(counts != wanted)
        if right < count:
            return values[: right * wanted].reshape(right, wanted), int(counts[right])
        values = values.reshape(count, wanted)
    else:
        values = np.zeros((0, wanted), np.int64)
    if count == len(lengths) or located.kinds[count] != INTEGERS:
        return values, 0
    own = array[located.starts[count] :][: lengths[count]]
    return values, int((own < 0x80).sum()) if not len(own) or own[-1] < 0x80 else -1


def varying_integers(array: np.ndarray, located: Located) -> Ragged:
    """Decodes an integer feature of which records may have different numbers of values; see `integers`.

    Returns:
      The values of the records before the first one that has none, or whose bytes are no list of integers.
    """
    count = _first((located.kinds != INTEGERS) | (located.lengths == 0))
    if not count:
        return Ragged(np.zeros((0, 0), np.int64), np.zeros(0, np.int64))
    values, counts = _varints(array, located.starts[:count], located.lengths[:count])
    counts = counts[: _first(counts < 0)]
    table = np.zeros((len(counts), counts.max(initial=0)), values.dtype)
    table[np.arange(table.shape[1]) < counts[:, None]] = values[: counts.sum()]
    return Ragged(table, counts)


def _first(bad: np.ndarray) -> int:
    """The index of the first true value, or the number of values if there is none."""
    return int(bad.argmax()) if bad.any() else len(bad)


def _varints(array: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns all numbers in N ranges of bytes, one after the other, and how many each range has, -1 if invalid."""
    width = int(lengths.max())
    bytes_of = _rows(array, starts, width)
    last = bytes_of < 0x80  # whether a byte ends a number
    within = None
    if (lengths != width).any():
        within = np.arange(width) < lengths[:, None]
        last &= within
    elif last.all():
        return bytes_of.reshape(-1), lengths
    counts = np.count_nonzero(last, axis=1)
    counts[bytes_of[np.arange(len(starts)), lengths - 1] > 0x7F] = -1  # the last number has no end
    goes_on = ~last if within is None else within & ~last
    # joined[k][:, i]: whether the k + 1 bytes before byte i + k + 1 belong to the same number.
    joined = [goes_on[:, :-1]]
    while joined[-1].any() and len(joined) < _LONGEST_VARINT:
        joined.append(joined[-1][:, 1:] & goes_on[:, : -len(joined) - 1])
    if len(joined) == _LONGEST_VARINT:
        counts[joined[-1].any(axis=1)] = -1
    # The first byte of a number is its lowest seven bits, so each step back shifts what was read by seven.
    bits = bytes_of & 0x7F
    kind = np.uint32 if len(joined) <= 4 else np.uint64
    values = bits.astype(kind)
    for back, same in enumerate(joined[:-1], 1):
        target = values[:, back:]
        np.copyto(target, target << kind(7) | bits[:, :-back], where=same)
    return values.view(np.int32 if kind is np.uint32 else np.int64)[last], counts


def floats(array: np.ndarray, located: Located, wanted: int) -> tuple[np.ndarray, int]:
    """Decodes a float feature; see `integers`. The values are float32."""
    count = _first((located.kinds != FLOATS) | (located.lengths != 4 * wanted))
    values = _rows(array, located.starts[:count], 4 * wanted).view("<f4")
    if count == len(located.lengths) or located.kinds[count] != FLOATS:
        return values, 0
    length = int(located.lengths[count])
    return values, -1 if length % 4 else length // 4

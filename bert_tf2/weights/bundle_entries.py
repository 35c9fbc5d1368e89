"""Entries of a TensorFlow checkpoint index, and the encoding of tensors as bytes.

A checkpoint stores the bytes of each tensor in little-endian order, and BundleEntryProto messages (TensorFlow's
tensor_bundle.proto) with their offsets. Strings have a separate layout.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import NamedTuple

import google_crc32c
import ml_dtypes
import numpy as np

from bert_tf2.weights import sstable

# Numbers and names of the TensorFlow dtypes (DataType in types.proto) that occur in checkpoints of weights.
_DTYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 9: "int64", 10: "bool",
    14: "bfloat16", 17: "uint16", 19: "float16", 22: "uint32", 23: "uint64",
}  # fmt: skip
_NUMBERS = {name: number for number, name in _DTYPES.items()}
_LARGEST_NUMBER = 1 << 62  # of bytes or values; numpy counts no further


class Entry(NamedTuple):
    """An entry of the index (BundleEntryProto in TensorFlow's tensor_bundle.proto)."""

    dtype: str
    shape: list[int]
    shard: int
    offset: int
    size: int
    checksum: int


def fields_of(message: bytes) -> dict[int, list]:
    """Parses a protocol buffer: field number -> values; nested messages remain bytes."""
    fields: dict[int, list] = {}
    place = 0
    while place < len(message):
        tag, place = sstable.read_varint(message, place)
        if tag & 7 == 0:
            value, place = sstable.read_varint(message, place)
        elif tag & 7 in (1, 2, 5):
            size, place = {1: (8, place), 5: (4, place)}.get(tag & 7) or sstable.read_varint(message, place)
            value, place = message[place : place + size], place + size
            if len(value) != size:
                raise sstable.DamagedTable("an entry is cut off")
        else:
            raise sstable.DamagedTable("an entry makes no sense")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def number_in(fields: Mapping[int, list], field: int, default: int = 0) -> int:
    """Returns the number in a field, the last one if there are several. Raises DamagedTable if it is no number."""
    value = fields.get(field, [default])[-1]
    if not isinstance(value, int) or value > _LARGEST_NUMBER:
        raise sstable.DamagedTable("an entry makes no sense")
    return value


def _message_in(fields: Mapping[int, list], field: int) -> dict[int, list]:
    """Returns the fields of the message in a field. Raises DamagedTable if it is none."""
    value = fields.get(field, [b""])[-1]
    if not isinstance(value, bytes):
        raise sstable.DamagedTable("an entry makes no sense")
    return fields_of(value)


def parse_entry(message: bytes) -> Entry:
    """Parses an entry. Raises DamagedTable or struct.error if it is invalid."""
    fields = fields_of(message)
    sizes = _message_in(fields, 2).get(2, [])
    shape = [number_in(_message_in({0: [size]}, 0), 1) for size in sizes]
    dtype = _DTYPES.get(number_in(fields, 1))
    if dtype is None or 7 in fields:
        raise sstable.DamagedTable("an entry is of a type that weights do not have, or in slices")
    checksum = fields.get(6, [bytes(4)])[-1]
    if not isinstance(checksum, bytes):
        raise sstable.DamagedTable("an entry makes no sense")
    place = (number_in(fields, field) for field in (3, 4, 5))
    return Entry(dtype, shape, *place, struct.unpack("<I", checksum)[0])


def encode_entry(entry: Entry) -> bytes:
    def number(field: int, value: int) -> bytes:
        return sstable.varint(field << 3) + sstable.varint(value) if value else b""

    def nested(field: int, message: bytes) -> bytes:
        return sstable.varint(field << 3 | 2) + sstable.varint(len(message)) + message

    shape = b"".join(nested(2, number(1, size)) for size in entry.shape)
    return (
        number(1, _NUMBERS[entry.dtype])
        + nested(2, shape)
        + number(3, entry.shard)
        + number(4, entry.offset)
        + number(5, entry.size)
        + sstable.varint(6 << 3 | 5)
        + struct.pack("<I", entry.checksum)
    )


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def bytes_of(value: np.ndarray) -> np.ndarray:
    """Returns a read-only view of the bytes of an array in C order, for checksums and files."""
    view = np.asarray(value, order="C").reshape(-1).view(np.uint8)
    view.flags.writeable = False  # google_crc32c requires it
    return view


def decode_strings(data: bytes, entry: Entry) -> np.ndarray:
    """Decodes lengths, their checksum, and the concatenated strings. The entry's checksum covers all of these."""
    lengths, place, checksum = [], 0, 0
    for _ in range(math.prod(entry.shape)):
        length, place = sstable.read_varint(data, place)
        lengths.append(length)
        checksum = google_crc32c.extend(checksum, struct.pack("<I" if length < 2**32 else "<Q", length))
    checksum = google_crc32c.extend(checksum, struct.pack("<I", sstable.mask(checksum)))
    place += 4
    if sstable.mask(google_crc32c.extend(checksum, data[place:])) != entry.checksum:
        raise sstable.DamagedTable("its bytes do not match their checksum")
    strings = np.empty(len(lengths), object)
    for index, length in enumerate(lengths):
        strings[index], place = data[place : place + length], place + length
    return strings.reshape(entry.shape)


def encode_array(value: np.ndarray) -> tuple[str, np.ndarray | bytes, int]:
    """Returns the dtype, bytes and checksum for a checkpoint. Encodes arrays of bytes objects for `decode_strings`."""
    if value.dtype != object:
        data = bytes_of(value)
        return value.dtype.name, data, sstable.mask(google_crc32c.value(data))
    strings = value.reshape(-1).tolist()
    checksum = google_crc32c.value(struct.pack(f"<{len(strings)}I", *map(len, strings)))
    middle, content = struct.pack("<I", sstable.mask(checksum)), b"".join(strings)
    checksum = google_crc32c.extend(google_crc32c.extend(checksum, middle), content)
    return "string", b"".join(sstable.varint(len(text)) for text in strings) + middle + content, sstable.mask(checksum)

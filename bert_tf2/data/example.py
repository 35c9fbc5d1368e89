"""Serialized `tf.train.Example`s without TensorFlow: written many at a time, read by protobuf.

numpy makes the numbers of many records at once, because a list of Python for each would take most of the time; protobuf
puts them into messages.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping

import numpy as np

_LONGEST_VARINT = 10  # bytes


class NotAnExample(ValueError):
    """The bytes are not a serialized tf.train.Example."""


# Writing


def encode(columns: Mapping[str, np.ndarray]) -> list[bytes]:
    """Serializes B rows, each to the bytes of `Example.SerializeToString(deterministic=True)`.

    `columns`: feature name -> array [B, L] of integers or of float32. L >= 1 may differ between features. Integers
    that an array of `numpy.ma` hides, such as padding, are left out.
    """
    message = _example("bytes")()
    slots, contents = [], []
    for name in sorted(columns, key=str.encode):  # by the bytes of the name, as protobuf sorts
        values, used = columns[name], None
        feature = message.features.feature.add(key=name).value
        if np.ma.isMaskedArray(values):
            values, used = values.data, ~np.ma.getmaskarray(values)
        if np.issubdtype(values.dtype, np.integer):
            slots.append(feature.int64_list)
            contents.append(_encode_varints(values, used))
        elif values.dtype == np.float32 and used is None:
            slots.append(feature.float_list)
            sizes = np.full(len(values), values.shape[1] * values.itemsize)
            contents.append(_cut(np.ascontiguousarray(values, "<f4").tobytes(), sizes))
        else:
            raise ValueError(f"{name}: values of type {values.dtype} are neither integers nor float32")
    rows = []
    for row in zip(*contents, strict=True):
        for slot, content in zip(slots, row, strict=True):
            slot.value = content
        rows.append(message.SerializeToString())
    return rows


def _encode_varints(values: np.ndarray, used: np.ndarray | None) -> list[bytes]:
    """Encodes integers [B, L] as protobuf's varints; returns for each row its varints, one after the other.

    A byte has 7 bits of the number, the lowest first, and a bit that is 1 if another byte follows. A negative number is
    encoded as the unsigned number of 64 bits with the same bits. `used`, bool [B, L], is false for the integers to
    leave out; None uses all.
    """
    count, length = values.shape
    smallest, largest = (int(values.min()), int(values.max())) if values.size else (0, 0)
    unsigned = values.astype(np.uint32) if smallest >= 0 and largest < 1 << 32 else values.astype(np.int64).view("u8")
    width = _LONGEST_VARINT if smallest < 0 else max(1, -(-largest.bit_length() // 7))
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
    return _cut(table[present].tobytes(), np.count_nonzero(present, axis=(1, 2)))


def _cut(data: bytes, sizes: np.ndarray) -> list[bytes]:
    """Cuts bytes into parts of these sizes, int [B]."""
    return [data[start:end] for start, end in itertools.pairwise([0, *np.cumsum(sizes).tolist()])]


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
def _example(numbers: str = "") -> type:
    """A class of `tf.train.Example`. With "bytes", the caller gives the encoded numbers of a list as one value.

    Both classes write the same record, because protobuf writes a list of numbers like the bytes of the encoded numbers.
    """
    return messages(
        {
            "FloatList": f"value 1 {numbers or 'float*'}",
            "Int64List": f"value 1 {numbers or 'int64*'}",
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

"""The protocol buffers of TensorFlow's checkpoints, and the encoding of tensors as bytes.

The messages are those of TensorFlow's tensor_bundle.proto and trackable_object_graph.proto, with the fields that are
used here; TensorFlow's own classes for them take seconds to import. The bytes of a tensor are little-endian. Strings
have a separate layout.
"""

from __future__ import annotations

import functools
import math
import struct

import google_crc32c
import numpy as np

from bert_tf2.weights import sstable
from bert_tf2.weights.base import bytes_of

# Numbers and names of the TensorFlow dtypes (DataType in types.proto) that occur in checkpoints of weights.
_DTYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 9: "int64", 10: "bool",
    14: "bfloat16", 17: "uint16", 19: "float16", 22: "uint32", 23: "uint64",
}  # fmt: skip
_NUMBERS = {name: number for number, name in _DTYPES.items()}

# The fields of each message: name, number, type; * for a repeated one.
_MESSAGES = {
    "Version": "producer 1 int32",
    "Header": "num_shards 1 int32, version 3 Version",
    "Dim": "size 1 int64",
    "Shape": "dim 2 Dim*",
    "Slice": "",
    "Entry": "dtype 1 int32, shape 2 Shape, shard_id 3 int32, offset 4 int64, size 5 int64, crc32c 6 fixed32,"
    " slices 7 Slice*",
    "Child": "node_id 1 int32, local_name 2 string",
    "Attribute": "name 1 string, full_name 2 string, checkpoint_key 3 string",
    "Slot": "slot_variable_node_id 3 int32",
    "Node": "children 1 Child*, attributes 2 Attribute*, slot_variables 3 Slot*",
    "Graph": "nodes 1 Node*",
}


@functools.cache
def _message_classes() -> dict[str, type]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # late: not every script needs it

    proto = descriptor_pb2.FileDescriptorProto(name="checkpoint.proto", package="checkpoint", syntax="proto3")
    for message, fields in _MESSAGES.items():
        made = proto.message_type.add(name=message)
        for name, number, kind in map(str.split, filter(None, fields.split(", "))):
            field = made.field.add(name=name, number=int(number), label=3 if kind.endswith("*") else 1)
            kind = kind.rstrip("*")
            if kind in _MESSAGES:
                field.type, field.type_name = field.TYPE_MESSAGE, f".checkpoint.{kind}"
            else:
                field.type = getattr(field, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    found = pool.FindFileByName(proto.name).message_types_by_name
    return {name: message_factory.GetMessageClass(found[name]) for name in _MESSAGES}


def new(message: str, **fields):
    """Creates a message, for example new("Entry", dtype=1)."""
    return _message_classes()[message](**fields)


def parse(message: str, data: bytes):
    """Parses a message. Raises DamagedTable if the bytes are none."""
    from google.protobuf.message import DecodeError

    try:
        return _message_classes()[message].FromString(data)
    except DecodeError as error:
        raise sstable.DamagedTable("an entry makes no sense") from error


def parse_entry(data: bytes):
    """Parses an Entry. Raises DamagedTable if it is invalid, or of a tensor that weights do not have."""
    entry = parse("Entry", data)
    if entry.dtype not in _DTYPES or entry.slices or min(entry.offset, entry.size, *shape_of(entry)) < 0:
        raise sstable.DamagedTable("an entry is of a type that weights do not have, in slices, or makes no sense")
    return entry


def shape_of(entry) -> list[int]:
    return [dim.size for dim in entry.shape.dim]


def dtype_of(entry) -> str:
    return _DTYPES[entry.dtype]


def encode_entry(dtype: str, shape: tuple[int, ...], offset: int, size: int, checksum: int) -> bytes:
    """Returns the bytes of the Entry of a tensor in the first data file."""
    dims = [new("Dim", size=size) for size in shape]
    entry = new("Entry", dtype=_NUMBERS[dtype], shape=new("Shape", dim=dims), offset=offset, size=size, crc32c=checksum)
    return entry.SerializeToString(deterministic=True)


def decode_strings(data: bytes, shape: list[int], checksum: int) -> np.ndarray:
    """Decodes lengths, their checksum, and the concatenated strings. `checksum` covers all of these."""
    lengths, place, found = [], 0, 0
    for _ in range(math.prod(shape)):
        length, place = sstable.read_varint(data, place)
        lengths.append(length)
        found = google_crc32c.extend(found, struct.pack("<I" if length < 2**32 else "<Q", length))
    found = google_crc32c.extend(found, struct.pack("<I", sstable.mask(found)))
    place += 4
    if sstable.mask(google_crc32c.extend(found, data[place:])) != checksum:
        raise sstable.DamagedTable("its bytes do not match their checksum")
    strings = np.empty(len(lengths), object)
    for index, length in enumerate(lengths):
        strings[index], place = data[place : place + length], place + length
    return strings.reshape(shape)


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

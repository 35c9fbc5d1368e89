"""The index of a TensorFlow checkpoint: a table of its tensors, read and written without TensorFlow.

The format is LevelDB's (its doc/table_format.md): blocks of entries whose keys omit the prefix that they share with the
previous key, an index of the blocks, and a footer. A key is the name of a tensor; its entry is a protocol buffer of
TensorFlow's tensor_bundle.proto. The graph of objects of a TensorFlow 2 checkpoint is a protocol buffer of
trackable_object_graph.proto. The messages are declared here with the fields that are used. The bytes of a tensor are
little-endian; strings have their own layout.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np

from bert_tf2.data import example
from bert_tf2.data.tfrecords import mask  # TFRecord files have the same checksums

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5  # one byte for the compression, four for the checksum
_BLOCK_BYTES = 4096


class DamagedTable(Exception):
    """The bytes are not a valid table. The text describes the first error."""


# The messages

# Numbers and names of the TensorFlow dtypes (DataType in types.proto) that occur in checkpoints of weights.
_DTYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 9: "int64", 10: "bool",
    14: "bfloat16", 17: "uint16", 19: "float16", 22: "uint32", 23: "uint64",
}  # fmt: skip
_NUMBERS = {name: number for number, name in _DTYPES.items()}

# See `example.messages`.
_MESSAGES = {
    "Version": "producer 1 int32",
    "Header": "num_shards 1 int32, version 3 Version",
    "Dim": "size 1 int64",
    "Shape": "dim 2 Dim*",
    "Extent": "start 1 int64, length 2 int64",
    "Slice": "extent 1 Extent*",
    "Entry": "dtype 1 int32, shape 2 Shape, shard_id 3 int32, offset 4 int64, size 5 int64, crc32c 6 fixed32,"
    " slices 7 Slice*",
    "Child": "node_id 1 int32, local_name 2 string",
    "Attribute": "name 1 string, full_name 2 string, checkpoint_key 3 string",
    "Slot": "slot_variable_node_id 3 int32",
    "Node": "children 1 Child*, attributes 2 Attribute*, slot_variables 3 Slot*",
    "Graph": "nodes 1 Node*",
}


_classes = functools.cache(lambda: example.messages(_MESSAGES))


def new(message: str, **fields):
    """Creates a message, for example new("Entry", dtype=1)."""
    return _classes()[message](**fields)


def parse(message: str, data: bytes):
    """Parses a message. Raises DamagedTable if the bytes are not a message."""
    from google.protobuf.message import DecodeError

    try:
        return _classes()[message].FromString(data)
    except DecodeError as error:
        raise DamagedTable("an entry makes no sense") from error


class Entry(NamedTuple):
    """The entry of a tensor in an index."""

    dtype: str  # as a numpy name; "string" for bytes objects
    shape: list[int]  # its sizes
    shard: int  # the number of the data file
    offset: int  # the place of the bytes in the data file
    size: int  # the number of bytes
    checksum: int  # a masked CRC-32C of the bytes
    # of a partitioned variable, which has no bytes itself: (start, length) in each dimension of each part; 0: all
    slices: Sequence[Sequence[tuple[int, int]]] = ()

    @classmethod
    def parse(cls, data: bytes) -> Entry:
        """Raises DamagedTable if the bytes are not an entry, or are the entry of a tensor that weights do not have."""
        entry = parse("Entry", data)
        shape = [dim.size for dim in entry.shape.dim]
        if entry.dtype not in _DTYPES or min(entry.offset, entry.size, *shape) < 0:
            raise DamagedTable("an entry is of a type that weights do not have, or makes no sense")
        slices = sorted([(extent.start, extent.length) for extent in part.extent] for part in entry.slices)
        return cls(_DTYPES[entry.dtype], shape, entry.shard_id, entry.offset, entry.size, entry.crc32c, slices)

    def with_places(self, parts: Sequence[Entry]) -> list[tuple[tuple[slice, ...], Entry]]:
        """The places of the parts in this tensor, in the order of `slices`; a tensor without slices is one part.

        Raises DamagedTable or ValueError if the parts do not make up the tensor.
        """
        if not self.slices:
            return [((), self)]
        found = []
        for extents, part in zip(self.slices, parts, strict=True):
            ends = [start + (length or size) for (start, length), size in zip(extents, self.shape, strict=True)]
            lengths = [end - start for end, (start, _) in zip(ends, extents, strict=True)]
            if (part.dtype, part.shape) != (self.dtype, lengths) or any(map(operator.gt, ends, self.shape)):
                raise DamagedTable("a part of a tensor makes no sense")
            found.append((tuple(slice(start, end) for (start, _), end in zip(extents, ends, strict=True)), part))
        if sum(math.prod(part.shape) for part in parts) != math.prod(self.shape):
            raise DamagedTable("parts of a tensor are missing")
        return found

    def encode(self) -> bytes:
        shape = new("Shape", dim=[new("Dim", size=size) for size in self.shape])
        entry = new("Entry", dtype=_NUMBERS[self.dtype], shape=shape, shard_id=self.shard, offset=self.offset)
        entry.size, entry.crc32c = self.size, self.checksum
        return entry.SerializeToString(deterministic=True)


# The table


def varint(value: int) -> bytes:
    """Encodes a number in as few bytes as possible, seven bits in each, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _read_varints(data: bytes, place: int, count: int) -> tuple[list[int], int]:
    """Returns `count` numbers from an offset on, and the offset after them. Raises DamagedTable if there are fewer."""
    numbers: list[int] = []
    value = shift = 0
    while len(numbers) < count:
        if shift >= 70 or place >= len(data):
            raise DamagedTable("a number has no end")
        value |= (data[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if data[place - 1] < 0x80:
            numbers.append(value)
            value = shift = 0
    return numbers, place


def read_table(data: bytes) -> dict[bytes, bytes]:
    """Returns all entries of a table. Raises DamagedTable if it is truncated, changed, or another kind of file."""
    if len(data) < _FOOTER or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise DamagedTable("it does not end as such a file does")
    # The footer has the offset and size of the metaindex block, which is empty here, and of the index of the blocks.
    (_, _, *index), _ = _read_varints(data[-_FOOTER:], 0, 4)
    entries: dict[bytes, bytes] = {}
    for _, handle in _entries(_read_block(data, *index)):
        entries.update(_entries(_read_block(data, *_read_varints(handle, 0, 2)[0])))
    return entries


def _read_block(data: bytes, offset: int, size: int) -> bytes:
    whole = data[offset : offset + size + _TRAILER]
    if len(whole) != size + _TRAILER:
        raise DamagedTable(f"it ends within the block at byte {offset}")
    if struct.unpack("<I", whole[-4:])[0] != mask(google_crc32c.value(whole[:-4])):
        raise DamagedTable(f"the block at byte {offset} does not match its checksum")
    if whole[size]:
        raise DamagedTable(f"the block at byte {offset} is compressed, which TensorFlow's are not")
    return whole[:size]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    restarts = int.from_bytes(block[-4:], "little")
    end, place, key = len(block) - 4 - 4 * restarts, 0, b""
    if end < 0:
        raise DamagedTable("a block is too short")
    while place < end:
        (shared, own, size), place = _read_varints(block, place, 3)
        if shared > len(key) or place + own + size > end:
            raise DamagedTable("an entry of a block makes no sense")
        key = key[:shared] + block[place : place + own]
        yield key, block[place + own : place + own + size]
        place += own + size


def write_table(entries: Mapping[bytes, bytes]) -> bytes:
    table = bytearray()
    index: list[tuple[bytes, bytes]] = []
    block: list[tuple[bytes, bytes]] = []
    for key in sorted(entries):
        block.append((key, entries[key]))
        if sum(len(k) + len(v) for k, v in block) >= _BLOCK_BYTES:
            index.append((key, _append_block(table, block)))
            block = []
    if block:
        index.append((block[-1][0], _append_block(table, block)))
    meta = _append_block(table, [])
    footer = meta + _append_block(table, index)
    return bytes(table) + footer.ljust(_FOOTER - 8, b"\0") + struct.pack("<Q", _MAGIC)


def _append_block(table: bytearray, entries: list[tuple[bytes, bytes]]) -> bytes:
    """Appends a block, with every key in full as a restart point; returns its encoded offset and size."""
    block, restarts = bytearray(), []
    for key, value in entries:
        restarts.append(len(block))
        block += varint(0) + varint(len(key)) + varint(len(value)) + key + value
    restarts = restarts or [0]
    block += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    handle = varint(len(table)) + varint(len(block))
    block.append(0)  # not compressed
    table += block + struct.pack("<I", mask(google_crc32c.value(bytes(block))))
    return handle


def decode_strings(data: bytes, shape: list[int], checksum: int) -> np.ndarray:
    """Decodes a tensor of strings: the lengths, their checksum, and the concatenated strings. `checksum` covers all."""
    lengths, place = _read_varints(data, 0, math.prod(shape))
    of_lengths = google_crc32c.value(struct.pack(f"<{len(lengths)}I", *lengths))
    if mask(google_crc32c.extend(of_lengths, data[place:])) != checksum:
        raise DamagedTable("its bytes do not match their checksum")
    strings, ends = np.empty(len(lengths), object), np.cumsum([place + 4, *lengths])
    strings[:] = [data[start:end] for start, end in itertools.pairwise(ends)]
    return strings.reshape(shape)

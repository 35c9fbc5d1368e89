"""The sorted key-value table of a TensorFlow checkpoint index, read and written without TensorFlow.

The format is LevelDB's (its doc/table_format.md): blocks of entries whose keys omit the prefix that they share with the
previous key, an index of the blocks, and a footer. TensorFlow does not compress these tables.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

import google_crc32c

from bert_tf2.data.tfrecords import mask as mask  # TFRecord files have the same checksums

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5  # one byte for the compression, four for the checksum
_BLOCK_BYTES = 4096
# Keys are stored without the prefix that they share, and an index can name a block twice: a small file could state
# gigabytes.
_MOST_BYTES = 1 << 26
_BYTES_OF_ENTRY = 64


class DamagedTable(Exception):
    """The bytes are not a valid table. The text describes the first error."""


def varint(value: int) -> bytes:
    """Encodes a number in as few bytes as possible, seven bits in each, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Returns the number at an offset, and the offset after it. Raises DamagedTable if there is no number."""
    value = shift = 0
    while shift < 70 and place < len(data):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise DamagedTable("a number has no end")


def read(data: bytes) -> dict[bytes, bytes]:
    """Returns all entries of a table.

    Raises:
      DamagedTable: it is truncated, a checksum does not match, or it is another kind of file.
    """
    if len(data) < _FOOTER or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise DamagedTable("it does not end as such a file does")
    footer = data[-_FOOTER:]
    _, place = _read_handle(footer, 0)  # of the metaindex block, which is empty here
    index, _ = _read_handle(footer, place)
    entries: dict[bytes, bytes] = {}
    num_bytes = 0
    for _, handle in _entries(_read_block(data, *index)):
        for key, value in _entries(_read_block(data, *_read_handle(handle, 0)[0])):
            num_bytes += len(key) + _BYTES_OF_ENTRY
            if num_bytes > _MOST_BYTES:
                raise DamagedTable("its names take more memory than those of any model")
            entries[key] = value
    return entries


def _read_handle(data: bytes, place: int) -> tuple[tuple[int, int], int]:
    """Returns the offset and size of a block, and the offset after them."""
    offset, place = read_varint(data, place)
    size, place = read_varint(data, place)
    return (offset, size), place


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
    if len(block) < 4:
        raise DamagedTable("a block is too short")
    restarts = struct.unpack("<I", block[-4:])[0]
    end, place, key = len(block) - 4 - 4 * restarts, 0, b""
    if end < 0:
        raise DamagedTable("a block is too short")
    while place < end:
        shared, place = read_varint(block, place)
        own, place = read_varint(block, place)
        size, place = read_varint(block, place)
        if shared > len(key) or place + own + size > end:
            raise DamagedTable("an entry of a block makes no sense")
        key = key[:shared] + block[place : place + own]
        yield key, block[place + own : place + own + size]
        place += own + size


def write(entries: Mapping[bytes, bytes]) -> bytes:
    """Returns a table of these entries."""
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
    """Appends a block and returns its encoded offset and size.

    Every key is written in full as a restart point: the index of a checkpoint is small.
    """
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

"""Locates the tensors in a `torch.save` file; executes nothing in the file and does not require PyTorch.

Such a file contains a pickle, which describes how tensors refer to arrays of numbers ("storages"), and then the
storages. `torch_unpickler` reads the pickle. PyTorch's serialization.py describes both formats. Since 1.6 the file is a
zip archive: the pickle is `NAME/data.pkl` and storage K is `NAME/data/K`, uncompressed. The older format is a sequence
of pickles: a magic number, a version and machine properties, the tensors, and the keys of the storages; then the
storages in the order of these keys, each after its length.
"""

from __future__ import annotations

import io
import math
import pickletools
import struct
import zipfile
from collections.abc import Sequence
from typing import BinaryIO, NamedTuple

from bert_tf2.support.errors import UserError
from bert_tf2.weights.base import numpy_dtype
from bert_tf2.weights.torch_unpickler import Refused, Tensor, Unpickler, load, printable, span


class Stored(NamedTuple):
    """A tensor in a file.

    Attributes:
      offset: of its first value, in bytes from the start of the file.
      dtype: as a numpy name.
      shape, strides: in elements, as in numpy or PyTorch.
    """

    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return span(self.shape, self.strides) * numpy_dtype(self.dtype).itemsize


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a contiguous tensor."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


_LONGEST_PICKLE = 1 << 20  # bytes; BERT-Large's has less than 100,000. In memory it may take 100 times as much
_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL_VERSION = 1001
_ZIP = b"PK\x03\x04"
# The exceptions of zipfile for damaged archives: it trusts lengths, names and versions.
_ARCHIVE_ERRORS = (zipfile.BadZipFile, struct.error, EOFError, RuntimeError, ValueError, LookupError, OSError)
_OTHER_ORDER = "has its numbers in another order of bytes than this machine"


class Layout(NamedTuple):
    """The content of a file.

    Attributes:
      tensors: name -> location.
      archive: name of each part of a zip archive, which has checksums -> the tensors in it.
    """

    tensors: dict[str, Stored]
    archive: dict[str, list[str]]


def read_layout(stream: BinaryIO, size: int, path: str) -> Layout:
    """Locates the tensors of a dictionary in a torch.save file of `size` bytes; ignores its other entries.

    Raises:
      UserError: the file would require running code, is damaged, contains no tensors, or places one outside of the
        file.
    """
    try:
        stream.seek(0)
        is_zip = stream.read(len(_ZIP)) == _ZIP
        return _zip_layout(stream, size) if is_zip else _legacy_layout(stream, size)
    except Refused as error:
        raise UserError(f"{path}: {error}. {error.advice}") from error
    except _ARCHIVE_ERRORS as error:
        raise UserError(f"{path}: is a damaged archive ({printable(error)}). {Refused.advice}") from error


def _tensors_of(content: object) -> dict[str, Tensor]:
    found = content if isinstance(content, dict) else {}
    tensors = {str(name): value for name, value in found.items() if isinstance(value, Tensor)}
    if not tensors:
        raise Refused("holds no dictionary of tensors, which is what a model's state_dict() is")
    return tensors


def _placed(tensors: dict[str, Tensor], storages: dict[str, tuple[int, int]]) -> dict[str, Stored]:
    """Returns the tensors of a file, given the offset and number of bytes of each storage."""
    placed = {}
    for name, tensor in tensors.items():
        storage, size = tensor.storage, numpy_dtype(tensor.storage.dtype).itemsize
        if storage.key not in storages:
            raise Refused(f"is damaged: the numbers of {printable(name)} are missing")
        start, num_bytes = storages[storage.key]
        if (storage.first + storage.count) * size > num_bytes:
            raise Refused(f"is damaged: {printable(name)} is larger than its part of the file")
        start += (storage.first + tensor.offset) * size
        placed[name] = Stored(start, storage.dtype, tensor.shape, tensor.strides)
    return placed


def _zip_layout(stream: BinaryIO, size: int) -> Layout:
    archive = zipfile.ZipFile(stream)
    parts = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in parts if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        raise Refused("is a zip archive, but holds no data.pkl of tensors")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}byteorder" in parts and _short_part(archive, parts[f"{root}byteorder"]) != b"little":
        raise Refused(_OTHER_ORDER)
    tensors = _tensors_of(load(Unpickler(io.BytesIO(_short_part(archive, parts[pickles[0]])))))
    storages, archived = {}, {}
    for name, tensor in tensors.items():
        part = f"{root}data/{tensor.storage.key}"
        if part in parts:
            storages[tensor.storage.key] = _place_in_zip(stream, parts[part], size)
            archived.setdefault(part, []).append(name)
    return Layout(_placed(tensors, storages), archived)


def _short_part(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> bytes:
    if part.compress_type != zipfile.ZIP_STORED or max(part.file_size, part.compress_size) > _LONGEST_PICKLE:
        raise Refused(f"is damaged: {printable(part.filename)} is compressed, or far too long")
    return archive.read(part)


def _place_in_zip(stream: BinaryIO, part: zipfile.ZipInfo, size: int) -> tuple[int, int]:
    """Returns offset and size of an uncompressed part, which follows 30 bytes, its name and an extra field."""
    if part.compress_type != zipfile.ZIP_STORED:
        raise Refused(f"has a compressed part, {printable(part.filename)}, which torch.save does not write")
    stream.seek(part.header_offset)
    header = stream.read(30)
    if header[:4] != _ZIP:
        raise Refused(f"is damaged at its part {printable(part.filename)}")
    start = part.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
    if start + part.file_size > size:
        raise Refused(f"is cut off in its part {printable(part.filename)}")
    return start, part.file_size


def _legacy_layout(stream: BinaryIO, size: int) -> Layout:
    stream.seek(0)
    pickles = io.BytesIO(stream.read(_LONGEST_PICKLE))
    if chr(*(pickles.getbuffer()[:1] or b"?")) not in pickletools.code2op:  # for example a text
        raise Refused("is not a file of torch.save")
    magic, version, machine = (load(Unpickler(pickles)) for _ in range(3))
    if magic != _MAGIC_NUMBER or version != _PROTOCOL_VERSION:
        raise Refused("is not a file of torch.save")
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise Refused(_OTHER_ORDER)
    described = Unpickler(pickles)
    tensors = _tensors_of(load(described))
    keys = load(Unpickler(pickles))
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise Refused("is damaged: the list of its storages is missing")
    storages, place = {}, pickles.tell()
    for key in keys:
        if key not in described.dtypes:
            raise Refused(f"is damaged: nothing says what its storage {printable(key)} is")
        stream.seek(place)
        num_bytes = struct.unpack("<q", stream.read(8))[0] * numpy_dtype(described.dtypes[key]).itemsize
        storages[key] = place + 8, num_bytes
        place += 8 + num_bytes
        if num_bytes < 0 or place > size:
            raise Refused(f"is cut off: it should have {place} bytes and has {size}")
    return Layout(_placed(tensors, storages), {})


def damaged_part(stream: BinaryIO, layout: Layout) -> str | None:
    """Returns the names of the tensors in the first part of a zip archive with a wrong checksum, or None.

    The old format has no checksums.
    """
    archive = zipfile.ZipFile(stream) if layout.archive else None
    for part, tensors in layout.archive.items():
        try:
            with archive.open(part) as numbers:
                while numbers.read(1 << 20):
                    pass
        except _ARCHIVE_ERRORS:
            return ", ".join(tensors[:5])
    return None

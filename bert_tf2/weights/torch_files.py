"""Where the numbers lie in a file that `torch.save` wrote; nothing of the file is run, and PyTorch is not needed.

Such a file is a pickle, which is a program for a machine with a stack, and says between which tensors and which runs of
numbers ("storages") there is what relation; the storages themselves lie behind it. Python's own `pickle` lets that
program import and call whatever it likes. The unpickler here knows only what makes up a dictionary of tensors: numbers,
texts, tuples, lists and dictionaries, and a few names of PyTorch with their stand-ins (`_KNOWN`). A name that is not
among them, or any other instruction, ends the reading.

There are two formats, both described by PyTorch's serialization.py. Since 1.6 it is a zip archive: the pickle is
`NAME/data.pkl` and storage K is `NAME/data/K`, uncompressed. Before, it was one pickle after the other, first a magic
number, a version and facts on the machine, then the tensors, then the keys of the storages; behind them the storages in
the order of these keys, each after its length.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from bert_tf2.support.errors import UserError

DTYPES = {
    "float64": np.dtype("<f8"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int64": np.dtype("<i8"),
    "int32": np.dtype("<i4"),
    "int16": np.dtype("<i2"),
    "int8": np.dtype("i1"),
    "uint8": np.dtype("u1"),
    "bool": np.dtype("?"),
}
"""The dtypes of tensors -> how their bytes are read."""

MOST_AXES = 32


class Stored(NamedTuple):
    """A tensor in a file.

    Attributes:
      offset: of its first number, in bytes from the beginning of the file.
      dtype: one of DTYPES.
      shape, strides: in numbers, as in numpy or PyTorch.
    """

    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def span(self) -> int:
        """How many numbers there are from the first to the last one."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))

    @property
    def num_bytes(self) -> int:
        return self.span * DTYPES[self.dtype].itemsize


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor whose numbers lie one after the other."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class _Storage(NamedTuple):
    """A run of `count` numbers; `first` is where in the storage of that key it begins."""

    key: str
    dtype: str
    count: int
    first: int = 0


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _StorageType(NamedTuple):
    """What stands for a class such as torch.FloatStorage."""

    dtype: str


_MOST_NUMBERS = 1 << 62
_LONGEST_PICKLE = 1 << 20  # bytes; that of BERT-Large has less than 100,000. In memory it may take 100 times as much
_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL_VERSION = 1001
_ZIP = b"PK\x03\x04"
# What zipfile raises on damaged archives: it trusts lengths, names and versions.
_ARCHIVE_ERRORS = (zipfile.BadZipFile, struct.error, EOFError, RuntimeError, ValueError, LookupError, OSError)
_OTHER_ORDER = "has its numbers in another order of bytes than this machine"


class _Refused(Exception):
    """The file is not that of plain tensors, or is damaged; the text goes behind the name of the file."""

    advice = "Copy it again"


class _NeedsCode(_Refused):
    """Only running what the file says could tell what it holds."""

    advice = "This is not done here; save the weights as model.safetensors"

    def __init__(self, what: str):
        super().__init__(f"needs code to be run: it {what}")


def _printable(text: object) -> str:
    """Text from a file as part of a one-line message."""
    return str(text)[:100].encode("unicode_escape").decode()


def _whole(value: object) -> int:
    """A count of numbers, or a place among them."""
    if type(value) is not int or not 0 <= value < _MOST_NUMBERS:
        raise _Refused("is damaged: the size or the place of a tensor makes no sense")
    return value


class _Dict(dict):
    """A dictionary with plain keys only: to hash a deep or a shared tuple may take for ever, or all of C's stack."""

    __slots__ = ()

    def __setitem__(self, key, value):
        if not isinstance(key, str | int):
            raise _Refused("is damaged: an entry of a dictionary makes no sense")
        super().__setitem__(key, value)


def _ordered_dict(pairs=()) -> _Dict:
    """collections.OrderedDict; Python 2 gave it its entries as a list of pairs."""
    made = _Dict()
    for key, value in pairs:
        made[key] = value
    if pairs:
        pairs.clear()  # or a file could ask for as many copies of a long list as it likes
    return made


def _tensor(storage, offset, shape, strides, requires_grad=False, hooks=None, metadata=None) -> _Tensor:
    """A tensor as `_rebuild_tensor` and its successor are told of it, checked against its storage."""
    if not isinstance(storage, _Storage) or metadata or len(shape) > MOST_AXES or len(strides) != len(shape):
        raise _Refused("is damaged: a tensor without a plain storage")
    tensor = _Tensor(storage, _whole(offset), tuple(map(_whole, shape)), tuple(map(_whole, strides)))
    span = Stored(0, storage.dtype, tensor.shape, tensor.strides).span
    # The second: with strides of 0 a few numbers would turn into as many as one likes.
    if span and (tensor.offset + span > storage.count or math.prod(tensor.shape) > storage.count):
        raise _Refused(f"is damaged: a tensor of shape {list(shape)} in a storage of {storage.count} numbers")
    return tensor


def _parameter(tensor, requires_grad=True, hooks=None) -> _Tensor:
    return tensor


_KNOWN = {
    "torch.DoubleStorage": _StorageType("float64"),
    "torch.FloatStorage": _StorageType("float32"),
    "torch.HalfStorage": _StorageType("float16"),
    "torch.BFloat16Storage": _StorageType("bfloat16"),
    "torch.LongStorage": _StorageType("int64"),
    "torch.IntStorage": _StorageType("int32"),
    "torch.ShortStorage": _StorageType("int16"),
    "torch.CharStorage": _StorageType("int8"),
    "torch.ByteStorage": _StorageType("uint8"),
    "torch.BoolStorage": _StorageType("bool"),
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "collections.OrderedDict": _ordered_dict,
}
"""The names that a file may use -> what they stand for here. No other function is ever called."""

_INSTRUCTIONS = frozenset(
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT"
    " STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8"
    " EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM SETITEMS"
    " PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD BINPERSID".split()
)


class _Dispatch(dict):
    """Byte of an instruction -> the method for it."""

    def __missing__(self, code: int):
        known = pickletools.code2op.get(chr(code))
        if known is None:
            raise _Refused(f"is damaged: its instruction {code:#x} makes no sense")
        raise _NeedsCode(f"has the instruction {known.name}")


class _Unpickler(pickle._Unpickler):
    """Reads one pickle; every instruction adds at most one thing, so that memory stays in proportion to the pickle.

    This is the unpickler that is written in Python, whose table of instructions can be changed. The one in C, which is
    `pickle.Unpickler`, is no base for files of strangers whatever its find_class does: a place of 0xffffffff in its
    memo takes 64 GB, and a nested tuple as a key of a dictionary ends the process or keeps it busy for ever.

    Attributes:
      dtypes: key of a storage that was met -> dtype.
    """

    dispatch = _Dispatch(
        (getattr(pickle, name)[0], pickle._Unpickler.dispatch[getattr(pickle, name)[0]]) for name in _INSTRUCTIONS
    )

    def __init__(self, stream: BinaryIO):
        super().__init__(stream, encoding="latin-1")
        self.dtypes: dict[str, str] = {}

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _KNOWN:
            raise _NeedsCode(f"wants {_printable(f'{module}.{name}')}")
        return _KNOWN[f"{module}.{name}"]

    def persistent_load(self, pid: Any) -> _Storage:
        """('storage', type, key, device, count), and in the old format the part of a storage that is meant, or None."""
        if not isinstance(pid, tuple) or len(pid) not in (5, 6) or pid[0] != "storage":
            raise _NeedsCode("refers to something that is no storage")
        _, storage_type, key, _, count = pid[:5]
        if not isinstance(storage_type, _StorageType) or not isinstance(key, str):
            raise _Refused("is damaged: a storage has no type or no name")
        dtype = storage_type.dtype
        _, first, count = pid[5] if len(pid) == 6 and pid[5] is not None else (None, 0, count)
        self.dtypes.setdefault(key, dtype)
        return _Storage(key, dtype, _whole(count), _whole(first))

    def load_empty_dict(self):
        self.append(_Dict())

    def load_dict(self):
        items = iter(self.pop_mark())
        self.append(_ordered_dict([*zip(items, items, strict=True)]))

    def load_reduce(self):
        if not callable(self.stack[-2]):
            raise _NeedsCode("calls something that is no tensor's")
        super().load_reduce()

    def load_build(self):
        """What PyTorch notes beside a dictionary of weights (`_metadata`) is of no use here."""
        self.stack.pop()
        if not isinstance(self.stack[-1], _Dict):
            raise _NeedsCode("sets the state of an object")

    dispatch.update(
        {
            pickle.EMPTY_DICT[0]: load_empty_dict,
            pickle.DICT[0]: load_dict,
            pickle.REDUCE[0]: load_reduce,
            pickle.BUILD[0]: load_build,
        }
    )


# What a damaged pickle leads to.
_PICKLE_ERRORS = (
    *(pickle.UnpicklingError, struct.error, EOFError, AttributeError),
    *(ValueError, TypeError, LookupError, OverflowError),
)


def _load(unpickler: _Unpickler) -> Any:
    """What the pickle at its stream's place describes; leaves the stream behind it."""
    try:
        return unpickler.load()
    except _PICKLE_ERRORS as error:
        reason = _printable(error) or "it ends too early"
        raise _Refused(f"is damaged, or not a file of torch.save ({reason})") from error


class Layout(NamedTuple):
    """What a file holds.

    Attributes:
      tensors: name -> where.
      archive: the names of the parts of a zip archive, which have checksums -> the tensors in them.
    """

    tensors: dict[str, Stored]
    archive: dict[str, list[str]]


def read_layout(stream: BinaryIO, size: int, path: str) -> Layout:
    """Finds the tensors of a file of `size` bytes that torch.save wrote of a dictionary of tensors.

    Raises:
      UserError: it needs code to be run, is damaged, holds no tensors, or says of one that it lies outside of the file.
        What else is in the dictionary is passed over.
    """
    try:
        stream.seek(0)
        is_zip = stream.read(len(_ZIP)) == _ZIP
        return _zip_layout(stream, size) if is_zip else _legacy_layout(stream, size)
    except _Refused as error:
        raise UserError(f"{path}: {error}. {error.advice}") from error
    except _ARCHIVE_ERRORS as error:
        raise UserError(f"{path}: is a damaged archive ({_printable(error)}). {_Refused.advice}") from error


def _tensors_of(content: object) -> dict[str, _Tensor]:
    found = content if isinstance(content, dict) else {}
    tensors = {str(name): value for name, value in found.items() if isinstance(value, _Tensor)}
    if not tensors:
        raise _Refused("holds no dictionary of tensors, which is what a model's state_dict() is")
    return tensors


def _placed(tensors: dict[str, _Tensor], storages: dict[str, tuple[int, int]]) -> dict[str, Stored]:
    """Tensors in a file whose storages lie at (offset, number of bytes)."""
    placed = {}
    for name, tensor in tensors.items():
        storage, size = tensor.storage, DTYPES[tensor.storage.dtype].itemsize
        if storage.key not in storages:
            raise _Refused(f"is damaged: the numbers of {_printable(name)} are missing")
        start, num_bytes = storages[storage.key]
        if (storage.first + storage.count) * size > num_bytes:
            raise _Refused(f"is damaged: {_printable(name)} is larger than its part of the file")
        start += (storage.first + tensor.offset) * size
        placed[name] = Stored(start, storage.dtype, tensor.shape, tensor.strides)
    return placed


def _zip_layout(stream: BinaryIO, size: int) -> Layout:
    archive = zipfile.ZipFile(stream)
    parts = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in parts if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        raise _Refused("is a zip archive, but holds no data.pkl of tensors")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}byteorder" in parts and _short_part(archive, parts[f"{root}byteorder"]) != b"little":
        raise _Refused(_OTHER_ORDER)
    tensors = _tensors_of(_load(_Unpickler(io.BytesIO(_short_part(archive, parts[pickles[0]])))))
    storages, archived = {}, {}
    for name, tensor in tensors.items():
        part = f"{root}data/{tensor.storage.key}"
        if part in parts:
            storages[tensor.storage.key] = _place_in_zip(stream, parts[part], size)
            archived.setdefault(part, []).append(name)
    return Layout(_placed(tensors, storages), archived)


def _short_part(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> bytes:
    if part.compress_type != zipfile.ZIP_STORED or max(part.file_size, part.compress_size) > _LONGEST_PICKLE:
        raise _Refused(f"is damaged: {_printable(part.filename)} is compressed, or far too long")
    return archive.read(part)


def _place_in_zip(stream: BinaryIO, part: zipfile.ZipInfo, size: int) -> tuple[int, int]:
    """Offset and number of bytes of an uncompressed part; in front of it are 30 bytes, its name and an extra field."""
    if part.compress_type != zipfile.ZIP_STORED:
        raise _Refused(f"has a compressed part, {_printable(part.filename)}, which torch.save does not write")
    stream.seek(part.header_offset)
    header = stream.read(30)
    if header[:4] != _ZIP:
        raise _Refused(f"is damaged at its part {_printable(part.filename)}")
    start = part.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
    if start + part.file_size > size:
        raise _Refused(f"is cut off in its part {_printable(part.filename)}")
    return start, part.file_size


def _legacy_layout(stream: BinaryIO, size: int) -> Layout:
    stream.seek(0)
    pickles = io.BytesIO(stream.read(_LONGEST_PICKLE))
    if chr(*(pickles.getbuffer()[:1] or b"?")) not in pickletools.code2op:  # a text, say
        raise _Refused("is not a file of torch.save")
    magic, version, machine = (_load(_Unpickler(pickles)) for _ in range(3))
    if magic != _MAGIC_NUMBER or version != _PROTOCOL_VERSION:
        raise _Refused("is not a file of torch.save")
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise _Refused(_OTHER_ORDER)
    described = _Unpickler(pickles)
    tensors = _tensors_of(_load(described))
    keys = _load(_Unpickler(pickles))
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise _Refused("is damaged: the list of its storages is missing")
    storages, place = {}, pickles.tell()
    for key in keys:
        if key not in described.dtypes:
            raise _Refused(f"is damaged: nothing says what its storage {_printable(key)} is")
        stream.seek(place)
        num_bytes = struct.unpack("<q", stream.read(8))[0] * DTYPES[described.dtypes[key]].itemsize
        storages[key] = place + 8, num_bytes
        place += 8 + num_bytes
        if num_bytes < 0 or place > size:
            raise _Refused(f"is cut off: it should have {place} bytes and has {size}")
    return Layout(_placed(tensors, storages), {})


def damaged_part(stream: BinaryIO, layout: Layout) -> str | None:
    """The names of the tensors in the first part of a zip archive that does not match its checksum; None if all do.

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

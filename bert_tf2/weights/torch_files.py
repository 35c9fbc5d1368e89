"""Locates the tensors in a `torch.save` file; executes nothing in the file and does not require PyTorch.

Such a file contains a pickle, which describes how tensors refer to arrays of numbers ("storages"), and then the
storages. PyTorch's serialization.py describes both formats. Since 1.6 the file is a zip archive: the pickle is
`NAME/data.pkl` and storage K is `NAME/data/K`, uncompressed. The older format is a sequence of pickles: a magic number,
a version and machine properties, the tensors, and the keys of the storages; then the storages in the order of these
keys, each after its length.

A pickle is a program for a stack machine. Python's `pickle` lets it import and call anything; `_Machine` has only the
instructions that a dictionary of tensors needs: numbers, strings, tuples, lists and dictionaries, and a few names of
PyTorch with substitutes (`_KNOWN`). Any other name or instruction raises an error.
"""

from __future__ import annotations

import io
import math
import pickletools
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from bert_tf2.support.errors import UserError
from bert_tf2.weights.base import numpy_dtype

MOST_AXES = 32

_MOST_NUMBERS = 1 << 62


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Returns the number of elements from the first to the last one of a tensor; strides are in elements."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


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
        return _span(self.shape, self.strides) * numpy_dtype(self.dtype).itemsize


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a contiguous tensor."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class _Storage(NamedTuple):
    """An array of `count` elements; `first` is its offset in the storage with that key."""

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
    """The substitute for a class like torch.FloatStorage."""

    dtype: str


class _Refused(Exception):
    """The file does not contain plain tensors, or is damaged; the text follows the file name in the message."""

    advice = "Copy it again"


class _NeedsCode(_Refused):
    """The content of the file cannot be determined without executing it."""

    advice = "This is not done here; save the weights as model.safetensors"

    def __init__(self, what: str):
        super().__init__(f"needs code to be run: it {what}")


def _printable(text: object) -> str:
    """Escapes text from a file for a one-line message."""
    return str(text)[:100].encode("unicode_escape").decode()


def _whole(value: object) -> int:
    """Validates a number of elements, or an offset."""
    if type(value) is not int or not 0 <= value < _MOST_NUMBERS:
        raise _Refused("is damaged: the size or the place of a tensor makes no sense")
    return value


class _Dict(dict):
    """A dictionary with plain keys: hashing a deep or shared tuple may not terminate, or may overflow the C stack."""

    __slots__ = ()

    def __setitem__(self, key, value):
        if not isinstance(key, str | int):
            raise _Refused("is damaged: an entry of a dictionary makes no sense")
        super().__setitem__(key, value)


def _ordered_dict(pairs=()) -> _Dict:
    """Substitutes collections.OrderedDict; Python 2 passed its entries as a list of pairs."""
    made = _Dict()
    for key, value in pairs:
        made[key] = value
    if pairs:
        pairs.clear()  # otherwise a file could request any number of copies of a long list
    return made


def _tensor(storage, offset, shape, strides, requires_grad=False, hooks=None, metadata=None) -> _Tensor:
    """Substitutes `_rebuild_tensor` and its successor, and checks the tensor against its storage."""
    if not isinstance(storage, _Storage) or metadata or len(shape) > MOST_AXES or len(strides) != len(shape):
        raise _Refused("is damaged: a tensor without a plain storage")
    tensor = _Tensor(storage, _whole(offset), tuple(map(_whole, shape)), tuple(map(_whole, strides)))
    count = _span(tensor.shape, tensor.strides)
    # The second condition: with strides of 0 a few elements could become arbitrarily many.
    if count and (tensor.offset + count > storage.count or math.prod(tensor.shape) > storage.count):
        raise _Refused(f"is damaged: a tensor of shape {list(shape)} in a storage of {storage.count} numbers")
    return tensor


# The class torch.FloatStorage, and so on.
_STORAGES = {
    **{"Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Bool": "bool"},
    **{"Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8"},
}
_KNOWN = {
    **{f"torch.{name}Storage": _StorageType(dtype) for name, dtype in _STORAGES.items()},
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": lambda tensor, requires_grad=True, hooks=None: tensor,
    "collections.OrderedDict": _ordered_dict,
}
"""The names that a file may use -> their substitutes. No other function is ever called."""

_MADE = {
    **{"NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False},
    **{"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": _Dict},
}
_LITERALS = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING"
    " UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8".split()
)


def _named(module: object, name: object) -> Any:
    """Returns the substitute for a name that a pickle asks for."""
    if type(module) is not str or type(name) is not str:
        raise _Refused("is damaged: a name makes no sense")
    if f"{module}.{name}" not in _KNOWN:
        raise _NeedsCode(f"wants {_printable(f'{module}.{name}')}")
    return _KNOWN[f"{module}.{name}"]


class _Machine:
    """Runs one pickle. Every instruction adds at most one object, so that memory is proportional to the pickle.

    Attributes:
      dtypes: key of each storage read so far -> dtype.
    """

    def __init__(self):
        self.dtypes: dict[str, str] = {}
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # what is below each mark, of which the last is open
        self._memo: dict[int, Any] = {}

    def load(self, stream: BinaryIO) -> Any:
        """Returns the value of the pickle at the current position of a stream, and leaves the stream after it."""
        try:
            for instruction, argument, _ in pickletools.genops(stream):
                self._run(instruction.name, argument)
            return self._stack.pop()
        except (struct.error, EOFError, AttributeError, ValueError, TypeError, LookupError, OverflowError) as error:
            reason = _printable(error) or "it ends too early"
            raise _Refused(f"is damaged, or not a file of torch.save ({reason})") from error

    def _to_mark(self) -> list[Any]:
        """Pops what was pushed since the last mark."""
        popped, self._stack = self._stack, self._below.pop()
        return popped

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _run(self, name: str, argument: Any) -> None:
        """Executes an instruction, by its name in pickletools."""
        pop = self._stack.pop
        match name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case _ if name in _MADE:
                self._push(_MADE[name]())
            case "MARK":
                self._below.append(self._stack)
                self._stack = []
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self._push(tuple([pop() for _ in range(int(name[-1]))][::-1]))
            case "TUPLE" | "LIST":
                items = self._to_mark()
                self._push(tuple(items) if name == "TUPLE" else items)
            case "APPEND" | "APPENDS":
                items = [pop()] if name == "APPEND" else self._to_mark()
                self._stack[-1].extend(items)
            case "DICT" | "SETITEM" | "SETITEMS":
                items = [pop(), pop()][::-1] if name == "SETITEM" else self._to_mark()
                if name == "DICT":
                    self._push(_Dict())
                for key, value in zip(items[::2], items[1::2], strict=True):
                    self._stack[-1][key] = value
            case "PUT" | "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self._memo[len(self._memo) if argument is None else argument] = self._stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                self._push(self._memo[argument])
            case "GLOBAL":
                self._push(_named(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                self._push(_named(*[pop(), pop()][::-1]))
            case "REDUCE":
                arguments, function = pop(), pop()
                if not callable(function):
                    raise _NeedsCode("calls something that is no tensor's")
                self._push(function(*arguments))
            case "BUILD":  # PyTorch adds an attribute to a dictionary of weights, `_metadata`
                pop()
                if not isinstance(self._stack[-1], _Dict):
                    raise _NeedsCode("sets the state of an object")
            case "BINPERSID":
                self._push(self._storage(pop()))
            case _ if name in _LITERALS:
                self._push(argument)
            case _:
                raise _NeedsCode(f"has the instruction {name}")

    def _storage(self, pid: Any) -> _Storage:
        """Reads ('storage', type, key, device, count), and in the old format an optional part of the storage."""
        if not isinstance(pid, tuple) or len(pid) not in (5, 6) or pid[0] != "storage":
            raise _NeedsCode("refers to something that is no storage")
        _, storage_type, key, _, count = pid[:5]
        if not isinstance(storage_type, _StorageType) or not isinstance(key, str):
            raise _Refused("is damaged: a storage has no type or no name")
        dtype = storage_type.dtype
        _, first, count = pid[5] if len(pid) == 6 and pid[5] is not None else (None, 0, count)
        self.dtypes.setdefault(key, dtype)
        return _Storage(key, dtype, _whole(count), _whole(first))


_LONGEST_PICKLE = 1 << 20  # bytes; BERT-Large's has less than 100,000. In memory it may take 100 times as much
_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL_VERSION = 1001
_ZIP = b"PK\x03\x04"
# The exceptions of zipfile for damaged archives: it trusts lengths, names and versions.
_ARCHIVE_ERRORS = (zipfile.BadZipFile, struct.error, EOFError, RuntimeError, ValueError, LookupError, OSError)
_OTHER_ORDER = "has its numbers in another order of bytes than this machine"


def read_layout(stream: BinaryIO, size: int, path: str) -> tuple[dict[str, Stored], dict[str, list[str]]]:
    """Locates the tensors of a dictionary in a torch.save file of `size` bytes; ignores its other entries.

    Returns:
      Name -> location of each tensor; and, of a zip archive, the name of each part -> the tensors in it.

    Raises:
      UserError: the file would require running code, is damaged, contains no tensors, or places one outside of the
        file.
    """
    try:
        stream.seek(0)
        is_zip = stream.read(len(_ZIP)) == _ZIP
        return _zip_layout(stream, size) if is_zip else (_legacy_layout(stream, size), {})
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
    """Returns the tensors of a file, given the offset and number of bytes of each storage."""
    placed = {}
    for name, tensor in tensors.items():
        storage, size = tensor.storage, numpy_dtype(tensor.storage.dtype).itemsize
        if storage.key not in storages:
            raise _Refused(f"is damaged: the numbers of {_printable(name)} are missing")
        start, num_bytes = storages[storage.key]
        if (storage.first + storage.count) * size > num_bytes:
            raise _Refused(f"is damaged: {_printable(name)} is larger than its part of the file")
        start += (storage.first + tensor.offset) * size
        placed[name] = Stored(start, storage.dtype, tensor.shape, tensor.strides)
    return placed


def _zip_layout(stream: BinaryIO, size: int) -> tuple[dict[str, Stored], dict[str, list[str]]]:
    archive = zipfile.ZipFile(stream)
    parts = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in parts if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        raise _Refused("is a zip archive, but holds no data.pkl of tensors")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}byteorder" in parts and _short_part(archive, parts[f"{root}byteorder"]) != b"little":
        raise _Refused(_OTHER_ORDER)
    tensors = _tensors_of(_Machine().load(io.BytesIO(_short_part(archive, parts[pickles[0]]))))
    storages, archived = {}, {}
    for name, tensor in tensors.items():
        part = f"{root}data/{tensor.storage.key}"
        if part in parts:
            storages[tensor.storage.key] = _place_in_zip(stream, parts[part], size)
            archived.setdefault(part, []).append(name)
    return _placed(tensors, storages), archived


def _short_part(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> bytes:
    if part.compress_type != zipfile.ZIP_STORED or max(part.file_size, part.compress_size) > _LONGEST_PICKLE:
        raise _Refused(f"is damaged: {_printable(part.filename)} is compressed, or far too long")
    return archive.read(part)


def _place_in_zip(stream: BinaryIO, part: zipfile.ZipInfo, size: int) -> tuple[int, int]:
    """Returns offset and size of an uncompressed part, which follows 30 bytes, its name and an extra field."""
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


def _legacy_layout(stream: BinaryIO, size: int) -> dict[str, Stored]:
    stream.seek(0)
    pickles = io.BytesIO(stream.read(_LONGEST_PICKLE))
    if chr(*(pickles.getbuffer()[:1] or b"?")) not in pickletools.code2op:  # for example a text
        raise _Refused("is not a file of torch.save")
    magic, version, machine = (_Machine().load(pickles) for _ in range(3))
    if magic != _MAGIC_NUMBER or version != _PROTOCOL_VERSION:
        raise _Refused("is not a file of torch.save")
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise _Refused(_OTHER_ORDER)
    described = _Machine()
    tensors = _tensors_of(described.load(pickles))
    keys = _Machine().load(pickles)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise _Refused("is damaged: the list of its storages is missing")
    storages, place = {}, pickles.tell()
    for key in keys:
        if key not in described.dtypes:
            raise _Refused(f"is damaged: nothing says what its storage {_printable(key)} is")
        stream.seek(place)
        num_bytes = struct.unpack("<q", stream.read(8))[0] * numpy_dtype(described.dtypes[key]).itemsize
        storages[key] = place + 8, num_bytes
        place += 8 + num_bytes
        if num_bytes < 0 or place > size:
            raise _Refused(f"is cut off: it should have {place} bytes and has {size}")
    return _placed(tensors, storages)


def damaged_part(stream: BinaryIO, parts: Mapping[str, Sequence[str]]) -> str | None:
    """Returns the names of the tensors in the first part of a zip archive with a wrong checksum, or None.

    The old format has no checksums, and no parts.
    """
    try:
        damaged = zipfile.ZipFile(stream).testzip() if parts else None
    except _ARCHIVE_ERRORS as error:
        return _printable(error)
    return ", ".join(parts.get(damaged, [damaged])[:5]) if damaged else None

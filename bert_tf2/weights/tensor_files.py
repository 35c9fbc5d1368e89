"""Files of named tensors in the formats of `transformers`: model.safetensors and pytorch_model.bin.

A safetensors file consists of eight bytes with the length of a header, the header in JSON (name -> dtype, shape and
offsets of each tensor), and the values, one tensor after the other. This module does not use the safetensors library,
which writes only tensors that are all in memory, and does not support bfloat16 for numpy.

A file of `torch.save` contains a pickle, which describes how tensors refer to arrays of numbers ("storages"), and then
the storages. PyTorch's serialization.py describes both formats. Since 1.6 the file is a zip archive: the pickle is
`NAME/data.pkl` and storage K is `NAME/data/K`, uncompressed. The older format is a sequence of pickles: a magic number,
a version and machine properties, the tensors, and the keys of the storages; then the storages in the order of these
keys, each after its length. Nothing in a pickle is executed (`_Unpickler`), and PyTorch is not required.

Neither safetensors nor the older format of PyTorch has checksums; `checksums` has them beside the file.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import itertools
import json
import math
import operator
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checksums
from bert_tf2.weights.base import as_float32, bytes_of, numpy_dtype

# The names of dtypes in safetensors. There are also types of 8 bits and less, which BERT weights do not use.
_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8"},
}
_METADATA = "__metadata__"
_MOST_AXES = 32


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Returns the number of elements from the first to the last one of a tensor."""
    return 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a contiguous tensor."""
    return tuple(itertools.accumulate(reversed(shape[1:]), operator.mul, initial=1))[::-1] if shape else ()


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

    def check(self, name: str) -> None:
        """Raises ValueError if a tensor cannot have these numbers."""
        numbers = (self.offset, *self.shape, *self.strides)
        if not all(type(number) is int and number >= 0 for number in numbers) or len(self.shape) > _MOST_AXES:
            raise ValueError(f"the size or the place of {name} makes no sense")


class TensorFile:
    """A file of named tensors that is read one tensor at a time.

    Attributes:
      path: of the file.
      tensors: name -> dtype, shape and offset.
      metadata: what `write_safetensors` got as such, if the checksum beside the file shows that no other program has
        changed it since; else empty.
    """

    def __init__(self, path: str):
        """Raises UserError if the file does not exist, or its header shows that it is another kind of file."""
        self.path = path
        self.tensors: dict[str, Stored] = {}
        self.metadata: dict[str, str] = {}
        self._verified = False

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor: floats as float32, other dtypes unchanged. It may be read-only.

        The first call reads the whole file once if there are checksums, in it or beside it.

        Raises:
          UserError: the file does not match them, or is truncated.
        """
        if not self._verified:
            self.verify()
            self._verified = True
        stored = self.tensors[name]
        with files.open_binary(self.path) as stream:
            stream.seek(stored.offset)
            data = stream.read(stored.num_bytes)
        if len(data) != stored.num_bytes:
            raise UserError(f"{self.path}: ends within {name}; copy it again")
        numbers = np.frombuffer(data, numpy_dtype(stored.dtype))
        if stored.strides == _row_major(stored.shape):
            array = numbers.reshape(stored.shape)
        else:
            steps = [stride * numbers.itemsize for stride in stored.strides]
            array = np.lib.stride_tricks.as_strided(numbers, stored.shape, steps, writeable=False)
        return np.ascontiguousarray(as_float32(array)).reshape(stored.shape)

    def verify(self) -> None:
        """Compares the file with its checksums. Raises UserError if they differ."""
        checksums.check(self.path)


def open_tensors(path: str) -> TensorFile:
    """Opens a .safetensors file, or else a torch.save file. Raises UserError as TensorFile does."""
    return SafetensorsFile(path) if path.endswith(".safetensors") else TorchFile(path)


# safetensors


class SafetensorsFile(TensorFile):
    """A safetensors file."""

    def __init__(self, path: str):
        super().__init__(path)
        files.expect_kind(path, "a safetensors file", "safetensors")
        size = files.size(path)
        with files.open_binary(path) as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > size - 8:
                raise UserError(
                    f"{path}: is cut off or no safetensors file (a header of {length} bytes in a file of {size});"
                    " copy it again"
                )
            header = stream.read(length)
        try:
            entries = json.loads(header)
            if files.exists(path + checksums.ENDING):
                self.metadata = {key: str(value) for key, value in entries.get(_METADATA, {}).items()}
            self._read_header(entries, 8 + length, size)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{path}: the header of the file is damaged ({reason}); copy it again") from error

    def _read_header(self, header: Mapping[str, Any], start: int, size: int) -> None:
        """Stores the entries of the header. Raises ValueError, LookupError or TypeError if they are invalid."""
        for name, entry in header.items():
            if name == _METADATA:
                continue
            shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
            if entry["dtype"] not in _DTYPES:
                raise ValueError(f"{name} is of dtype {entry['dtype']}, which is none of {', '.join(_DTYPES)}")
            stored = Stored(start + begin, _DTYPES[entry["dtype"]], shape, _row_major(shape))
            stored.check(name)
            if stored.num_bytes != end - begin:
                raise ValueError(f"{name} of shape {list(shape)} does not fit in its {end - begin} bytes")
            self.tensors[name] = stored
        reached = start
        for stored in sorted(self.tensors.values(), key=lambda stored: (stored.offset, stored.num_bytes)):
            if stored.offset != reached:
                raise ValueError(f"a tensor begins at byte {stored.offset} and what is before it ends at {reached}")
            reached += stored.num_bytes
        if reached != size:
            raise ValueError(f"the tensors end at byte {reached} of {size}")


def write_safetensors(
    path: str,
    shapes: Mapping[str, Sequence[int]],
    arrays: Iterable[tuple[str, np.ndarray]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes float32 tensors to a local file, with one of them in memory at a time.

    Args:
      path: a temporary path from checksums.complete_or_absent.
      shapes: name -> sizes of every tensor in `arrays`.
      arrays: the tensors in any order.
      metadata: what else the header states, for TensorFile.metadata.

    Raises:
      ValueError: they do not match `shapes`.
      OSError: the file cannot be written; complete_or_absent converts it to a UserError.
    """
    entries: dict[str, Any] = {_METADATA: {"format": "pt", **(metadata or {})}}  # transformers requires the format
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # for aligned values
    missing = set(shapes)
    with files.open_binary(path, "wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        for name, array in arrays:
            if name not in missing or list(array.shape) != list(shapes[name]):
                raise ValueError(f"{name} of shape {array.shape} was not announced")
            missing.remove(name)
            stream.seek(8 + len(header) + entries[name]["data_offsets"][0])
            stream.write(bytes_of(np.asarray(array, "<f4")).data)
    if missing:
        raise ValueError(f"{', '.join(sorted(missing))} did not come")


# PyTorch


class _Storage(NamedTuple):
    """An array of `count` elements; `first` is its offset in the storage with that key."""

    key: str
    dtype: str
    count: int
    first: int


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _tensor(storage, offset, shape, strides, requires_grad=False, hooks=None, metadata=None) -> _Tensor:
    """Stands for `_rebuild_tensor` and its successor."""
    if not isinstance(storage, _Storage) or metadata:
        raise ValueError("a tensor is more than the numbers of a storage")
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


_LONGEST_PICKLE = 1 << 20  # bytes; BERT-Large's has less than 100,000
_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL_VERSION = 1001
_OTHER_ORDER = "its numbers are in another order of bytes than this machine's"

# The class torch.FloatStorage, and so on.
_STORAGES = {
    **{"Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Bool": "bool"},
    **{"Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8"},
}
_KNOWN = {
    **{f"torch.{name}Storage": dtype for name, dtype in _STORAGES.items()},
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
    "collections.OrderedDict": collections.OrderedDict,
}
"""The names that a pickle may use -> what they stand for here. No other function is ever called."""


class _Unpickler(pickle.Unpickler):
    """Reads a pickle of tensors. A pickle can import and call anything; this one gets the names in _KNOWN only.

    Attributes:
      dtypes: key of each storage read so far -> dtype.
    """

    def __init__(self, stream: io.BytesIO, path: str):
        super().__init__(stream)
        self._stream, self._path = stream, path
        self.dtypes: dict[str, str] = {}

    def load(self) -> Any:
        """Returns the value of the pickle at the current position of the stream, and leaves the stream after it."""
        place = self._stream.tell()
        # A damaged length, or number of an object: pickle would set memory aside for it.
        for instruction, argument, _ in pickletools.genops(self._stream):
            if instruction.name.endswith("PUT") and argument > _LONGEST_PICKLE:
                raise ValueError("an instruction makes no sense")
        self._stream.seek(place)
        return super().load()

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _KNOWN:
            wanted = f"{module}.{name}"[:100].encode("unicode_escape").decode()
            raise UserError(
                f"{self._path}: needs code to be run: it wants {wanted}. This is not done here; save the weights as"
                " model.safetensors"
            )
        known = _KNOWN[f"{module}.{name}"]
        # A pickle can set attributes of what it gets, too: only those of a copy.
        return known if isinstance(known, str | type) else functools.partial(known)

    def persistent_load(self, pid: Any) -> _Storage:
        """Reads ('storage', type, key, device, count), and in the old format an optional part of the storage."""
        _, dtype, key, _, count, *view = pid
        _, first, count = view[0] if view and view[0] is not None else (None, 0, count)
        if dtype not in _STORAGES.values() or not isinstance(key, str):
            raise ValueError("a storage has no type or no name")
        self.dtypes.setdefault(key, dtype)
        return _Storage(key, dtype, count, first)


class TorchFile(TensorFile):
    """A torch.save file, in either of its formats. What is in it besides tensors is ignored."""

    def __init__(self, path: str):
        super().__init__(path)
        files.expect_kind(path, "weights that PyTorch saved", "zip", "pickle", "text")  # old pickles are text
        self._size = files.size(path)
        self._parts: dict[str, list[str]] = collections.defaultdict(list)  # part of a zip archive -> tensors in it
        with self._explained(), files.open_binary(path) as stream:
            is_zip = stream.read(4) == b"PK\x03\x04"
            stream.seek(0)
            self._locate_in_zip(stream) if is_zip else self._locate(stream)
        if not self.tensors:
            raise UserError(f"{path}: holds no dictionary of tensors, which is what a model's state_dict() is")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # neither pickle nor zipfile says what it raises for damaged bytes
            reason = str(error)[:200].encode("unicode_escape").decode() or type(error).__name__
            raise UserError(
                f"{self.path}: is damaged, or not a file of torch.save ({reason}); copy it again"
            ) from error

    def verify(self) -> None:
        super().verify()
        with self._explained(), files.open_binary(self.path) as stream:
            damaged = zipfile.ZipFile(stream).testzip() if self._parts else None  # the old format has no checksums
        if damaged:
            what = ", ".join(self._parts.get(damaged, [damaged])[:5])
            raise UserError(
                f"{self.path}: damaged at {what}: the checksum of the archive does not match; copy it again"
            )

    def _locate_in_zip(self, stream: BinaryIO) -> None:
        archive = zipfile.ZipFile(stream)
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError("a zip archive without the data.pkl of tensors")
        root = pickles[0].removesuffix("data.pkl")
        if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
            raise ValueError(_OTHER_ORDER)
        content = _Unpickler(io.BytesIO(archive.read(pickles[0])), self.path).load()
        for name, tensor in _tensors_in(content).items():
            part = archive.getinfo(f"{root}data/{tensor.storage.key}")
            if part.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{part.filename} is compressed")
            stream.seek(part.header_offset)  # what precedes the numbers: 30 bytes, the name and an extra field
            start = part.header_offset + 30 + sum(struct.unpack("<HH", stream.read(30)[26:]))
            self._place(name, tensor, start, part.file_size)
            self._parts[part.filename].append(name)

    def _locate(self, stream: BinaryIO) -> None:
        pickles = io.BytesIO(stream.read(_LONGEST_PICKLE))
        magic, version, machine = (_Unpickler(pickles, self.path).load() for _ in range(3))
        if magic != _MAGIC_NUMBER or version != _PROTOCOL_VERSION:
            raise ValueError("it does not begin as one")
        if machine["little_endian"] is not True:
            raise ValueError(_OTHER_ORDER)
        described = _Unpickler(pickles, self.path)
        tensors, keys = _tensors_in(described.load()), _Unpickler(pickles, self.path).load()
        storages, place = {}, pickles.tell()
        for key in keys:
            stream.seek(place)
            (count,) = struct.unpack("<Q", stream.read(8))
            storages[key] = place + 8, count * numpy_dtype(described.dtypes[key]).itemsize
            place = sum(storages[key])
        for name, tensor in tensors.items():
            self._place(name, tensor, *storages[tensor.storage.key])

    def _place(self, name: str, tensor: _Tensor, start: int, num_bytes: int) -> None:
        """Stores a tensor whose storage begins at `start`. Raises ValueError if it is not within it and the file."""
        storage, size = tensor.storage, numpy_dtype(tensor.storage.dtype).itemsize
        stored = Stored(start + (storage.first + tensor.offset) * size, storage.dtype, tensor.shape, tensor.strides)
        stored.check(name)
        # With strides of 0 a few elements could become arbitrarily many.
        inside = tensor.offset + max(_span(*stored[2:]), math.prod(stored.shape)) <= storage.count
        inside &= (storage.first + storage.count) * size <= num_bytes <= self._size - start
        if not inside or min(tensor.offset, storage.first) < 0:
            raise ValueError(f"the numbers of {name} are not where it says")
        self.tensors[name] = stored


def _tensors_in(content: Any) -> dict[str, _Tensor]:
    found = content if isinstance(content, dict) else {}
    return {str(name): value for name, value in found.items() if isinstance(value, _Tensor)}

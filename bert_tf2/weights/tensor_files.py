"""Files of named tensors in the formats of `transformers`: model.safetensors and pytorch_model.bin.

A safetensors file consists of eight bytes with the length of a header, the header in JSON (name -> dtype, shape and
offsets of each tensor), and the values, one tensor after the other. This module does not use the safetensors library,
which writes only tensors that are all in memory, and does not support bfloat16 for numpy.

The format has no checksums, nor has the older one of PyTorch; `checksums` has them beside the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checksums, torch_files
from bert_tf2.weights.base import as_float32, bytes_of, numpy_dtype
from bert_tf2.weights.torch_files import Stored

# The format's dtype names. It also defines types of 8 bits and less, which BERT weights do not use.
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
# Bytes; the format allows six times as many. A header takes up to 50 times its size in memory, and that of 1,000 blocks
# has 3 MB.
_LONGEST_HEADER = 1 << 24
_METADATA = "__metadata__"
# The metadata that `transformers` requires.
_WRITTEN_METADATA = {"format": "pt"}


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
        return _as_array(data, stored)

    def verify(self) -> None:
        """Compares the file with its checksums. Raises UserError if they differ."""
        checksums.check(self.path)


def open_tensors(path: str) -> TensorFile:
    """Opens a .safetensors file, or else a torch.save file. Raises UserError as TensorFile does."""
    return SafetensorsFile(path) if path.endswith(".safetensors") else TorchFile(path)


def _as_array(data: bytes, stored: Stored) -> np.ndarray:
    numbers = np.frombuffer(data, numpy_dtype(stored.dtype))
    if stored.strides == torch_files.row_major(stored.shape):
        array = numbers.reshape(stored.shape)
    else:
        steps = [stride * numbers.itemsize for stride in stored.strides]
        array = np.lib.stride_tricks.as_strided(numbers, stored.shape, steps, writeable=False)
    return np.ascontiguousarray(as_float32(array)).reshape(stored.shape)


class TorchFile(TensorFile):
    """A torch.save file, in either of its formats."""

    def __init__(self, path: str):
        super().__init__(path)
        files.expect_kind(path, "weights that PyTorch saved", "zip", "pickle", "text")  # old pickles are text
        with files.open_binary(path) as stream:
            self.tensors, self._parts = torch_files.read_layout(stream, files.size(path), path)

    def verify(self) -> None:
        super().verify()
        with files.open_binary(self.path) as stream:
            damaged = torch_files.damaged_part(stream, self._parts)
        if damaged:
            raise UserError(
                f"{self.path}: damaged at {damaged}: the checksum of the archive does not match; copy it again"
            )


class SafetensorsFile(TensorFile):
    """A safetensors file."""

    def __init__(self, path: str):
        super().__init__(path)
        files.expect_kind(path, "a safetensors file", "safetensors")
        size = files.size(path)
        with files.open_binary(path) as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, _LONGEST_HEADER):
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
            if len(shape) > torch_files.MOST_AXES or not all(
                type(number) is int and number >= 0 for number in (*shape, begin, end)
            ):
                raise ValueError(f"the size or the place of {name} makes no sense")
            if entry["dtype"] not in _DTYPES:
                raise ValueError(f"{name} is of dtype {entry['dtype']}, which is none of {', '.join(_DTYPES)}")
            stored = Stored(start + begin, _DTYPES[entry["dtype"]], shape, torch_files.row_major(shape))
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
    entries: dict[str, Any] = {_METADATA: {**_WRITTEN_METADATA, **(metadata or {})}}
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

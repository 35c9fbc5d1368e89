"""Files of named tensors in the formats of `transformers`: model.safetensors and pytorch_model.bin.

The safetensors library reads the first, and PyTorch the second, as weights alone: nothing in its pickle is executed.
Writing is done here, since the library writes only tensors that are all in memory. A safetensors file consists of eight
bytes with the length of a header, the header in JSON (name -> dtype, shape and offsets), and the values.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from bert_tf2.support import environment, files
from bert_tf2.support.errors import UserError
from bert_tf2.weights.base import as_float32, bytes_of

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "U8": "uint8"}
_DTYPES |= {f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)}
_METADATA = "__metadata__"


class Stored(NamedTuple):
    """A tensor in a file."""

    dtype: str  # as a numpy name, or the file's own name for one that numpy lacks
    shape: tuple[int, ...]  # its sizes
    address: int | None = None  # in memory, where PyTorch has mapped it; tensors that share their values have the same


class TensorFile:
    """A file of named tensors."""

    def __init__(self, path: str):
        """Raises UserError if the file does not exist, or cannot be read as what its name says."""
        self.path = path  # of the file
        self.tensors: dict[str, Stored] = {}  # name -> dtype and shape
        self.metadata: dict[str, str] = {}  # what `write_safetensors` got as such
        self._get: Callable[[str], np.ndarray]
        self._verified = False
        with environment.reading(self.path):
            self._open_safetensors() if path.endswith(".safetensors") else self._open_torch()

    def _open_safetensors(self) -> None:
        files.expect_kind(self.path, "a safetensors file", "safetensors")
        if files.is_remote(self.path):  # the library maps local files into memory
            with files.open_binary(self.path) as stream:
                found = safetensors.numpy.load(stream.read())
            self._get, self.tensors = found.get, {name: Stored(str(a.dtype), a.shape) for name, a in found.items()}
            return
        opened = safetensors.safe_open(self.path, "np")
        for name in sorted(opened.keys()):
            part = opened.get_slice(name)
            self.tensors[name] = Stored(_DTYPES.get(part.get_dtype(), part.get_dtype()), tuple(part.get_shape()))
        self._get = opened.get_tensor
        self.metadata = opened.metadata() or {}

    def _open_torch(self) -> None:
        files.expect_kind(self.path, "weights that PyTorch saved", "zip", "pickle")
        try:
            import torch
        except ImportError as error:
            raise UserError(
                f"{self.path}: PyTorch reads this file, and is not installed: pip install torch, or save the model as"
                " model.safetensors"
            ) from error
        with files.open_binary(self.path) as stream:
            source, is_zip = self.path, zipfile.is_zipfile(stream)
            if files.is_remote(self.path):
                stream.seek(0)
                source, is_zip = io.BytesIO(stream.read()), False
            try:
                content = torch.load(source, map_location="cpu", weights_only=True, mmap=is_zip)
            except pickle.UnpicklingError as error:
                raise UserError(
                    f"{self.path}: is damaged, or holds more than weights, which could run code and is not read here;"
                    " save the model as model.safetensors"
                ) from error
        pairs = content.items() if isinstance(content, dict) else ()
        found = {str(name): value.detach() for name, value in pairs if isinstance(value, torch.Tensor)}
        if not found:
            raise UserError(f"{self.path}: holds no dictionary of tensors, which is what a model's state_dict() is")
        for name, tensor in found.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            self.tensors[name] = Stored(dtype, tuple(tensor.shape), tensor.data_ptr())

        def get(name: str) -> np.ndarray:
            tensor = found[name]
            return (tensor.float() if tensor.is_floating_point() else tensor).numpy()  # which has no bfloat16

        self._get = get

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor: floats as float32, other dtypes unchanged. It may be read-only.

        The first call reads the whole file once if it has checksums.
        """
        with environment.reading(self.path):
            if not self._verified:
                self._verify()
                self._verified = True
            return as_float32(self._get(name))

    def _verify(self) -> None:
        if self.path.endswith(".safetensors"):
            return
        with files.open_binary(self.path) as stream:
            damaged = zipfile.ZipFile(stream).testzip() if zipfile.is_zipfile(stream) else None
        if damaged:  # PyTorch does not look
            raise UserError(f"{self.path}: damaged at {damaged}: the checksum of the archive differs; copy it again")


def write_safetensors(
    path: str,
    shapes: Mapping[str, Sequence[int]],
    arrays: Iterable[tuple[str, np.ndarray]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes float32 tensors to a local file, with one of them in memory at a time.

    Args:
      path: a temporary path from files.complete_or_absent.
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

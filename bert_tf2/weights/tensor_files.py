"""Files of named tensors in the formats of `transformers`: model.safetensors and pytorch_model.bin.

The safetensors library reads the first, and PyTorch the second, as weights alone: nothing in its pickle is executed.
Writing is done here, since the library writes only tensors that are all in memory. A safetensors file consists of eight
bytes with the length of a header, the header in JSON (name -> dtype, shape and offsets), and the values.
"""

from __future__ import annotations

import itertools
import json
import math
import pickle
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import safetensors

from bert_tf2.support import environment, files
from bert_tf2.support.errors import UserError
from bert_tf2.weights.base import as_float32, bytes_of

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "U8": "uint8"}
_DTYPES |= {f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)}


class Stored(NamedTuple):
    """A tensor in a file."""

    dtype: str  # as a numpy name, or the file's own name for one that numpy lacks
    shape: tuple[int, ...]  # its sizes


class TensorFile:
    """A local file of named tensors; `tensors` says what it holds."""

    def __init__(self, path: str):
        self.path = path
        self.tensors: dict[str, Stored] = {}
        with environment.reading(path):
            self._get = self._open_safetensors() if path.endswith(".safetensors") else self._open_torch()

    def _open_safetensors(self):
        files.expect_kind(self.path, "a safetensors file")
        opened = safetensors.safe_open(self.path, "np")
        for name in sorted(opened.keys()):
            part = opened.get_slice(name)
            self.tensors[name] = Stored(_DTYPES.get(part.get_dtype(), part.get_dtype()), tuple(part.get_shape()))
        return opened.get_tensor

    def _open_torch(self):
        files.expect_kind(self.path, "weights that PyTorch saved")
        try:
            import torch
        except ImportError as error:
            raise UserError(
                f"{self.path}: PyTorch reads this file, and is not installed: pip install torch, or save the model as"
                " model.safetensors"
            ) from error
        is_zip = zipfile.is_zipfile(self.path)
        if is_zip and (damaged := zipfile.ZipFile(self.path).testzip()):  # PyTorch does not look
            raise UserError(f"{self.path}: damaged at {damaged}: the checksum of the archive differs; copy it again")
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True, mmap=is_zip)
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
            self.tensors[name] = Stored(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

        def get(name: str) -> np.ndarray:
            tensor = found[name]
            return (tensor.float() if tensor.is_floating_point() else tensor).numpy()  # which has no bfloat16

        return get

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor: floats as float32, other dtypes unchanged. It may be read-only."""
        with environment.reading(self.path):
            return as_float32(self._get(name))


def write_safetensors(path: str, shapes: Mapping[str, Sequence[int]], arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes float32 tensors to a local file, with one of them in memory at a time.

    `shapes`: name -> sizes of every tensor in `arrays`, in their order. Raises ValueError if they differ.
    """
    places = itertools.pairwise(itertools.accumulate((4 * math.prod(shape) for shape in shapes.values()), initial=0))
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers requires the format
    for (name, shape), place in zip(shapes.items(), places, strict=True):
        entries[name] = {"dtype": "F32", "shape": [*shape], "data_offsets": place}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # for aligned values
    with files.open_binary(path, "wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        for (name, shape), (given, array) in zip(shapes.items(), arrays, strict=True):
            if given != name or [*array.shape] != [*shape]:
                raise ValueError(f"{given} of shape {array.shape} came in place of {name} of shape {shape}")
            stream.write(bytes_of(np.asarray(array, "<f4")).data)

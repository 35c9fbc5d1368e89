"""Files of named tensors in the formats of `transformers`: model.safetensors and pytorch_model.bin.

The safetensors library reads the first, and PyTorch the second, as weights alone: nothing in its pickle is executed.
This module writes safetensors itself, because the library writes only tensors that are all in memory. A safetensors
file consists of eight bytes with the length of a header, the header in JSON (name -> dtype, shape and offsets), and the
values.
"""

from __future__ import annotations

import itertools
import json
import math
import pickle
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors

from bert_tf2.support import errors, files
from bert_tf2.support.errors import UserError
from bert_tf2.weights.base import Place, as_float32, bytes_of

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "U8": "uint8"}
_DTYPES |= {f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)}


# The exceptions of the libraries for a file that is damaged, or holds something else.
_OF_ARCHIVES = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError)
_OF_PYTORCH = (RuntimeError, EOFError, OSError, ValueError, KeyError, IndexError, AttributeError, TypeError)
_OF_TENSORS = (safetensors.SafetensorError, OSError, RuntimeError, ValueError, TypeError, AttributeError, KeyError)


def damaged_member(path: str) -> str | None:
    """The first file in an archive whose bytes do not match their checksum, None if all match.

    Raises UserError if the archive is unreadable.
    """
    with files.open_binary(path) as stream, errors.reading(path, *_OF_ARCHIVES):
        return zipfile.ZipFile(stream).testzip()


class TensorFile:
    """A local file of named tensors; `tensors`: name -> Place. A dtype that numpy lacks has the file's own name."""

    def __init__(self, path: str):
        self.path = path
        is_ours = path.endswith(".safetensors")
        files.expect_kind(path, "a safetensors file" if is_ours else "weights that PyTorch saved")
        self._get, self.tensors = _open_safetensors(path) if is_ours else _open_torch(path)

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor: floats as float32, other dtypes unchanged. It may be read-only."""
        where = self.tensors[name].where
        with errors.reading(self.path, *_OF_TENSORS):
            value = self._get(where)
        return as_float32(value)


def _open_safetensors(path: str):
    with errors.reading(path, safetensors.SafetensorError, OSError, ValueError):
        opened = safetensors.safe_open(path, "np")
    parts = {name: opened.get_slice(name) for name in sorted(opened.keys())}
    kinds = {name: part.get_dtype() for name, part in parts.items()}
    places = {
        name: Place(part.get_shape(), _DTYPES.get(kinds[name], kinds[name]), name) for name, part in parts.items()
    }
    return opened.get_tensor, places


def _open_torch(path: str):
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"{path}: PyTorch reads this file, and is not installed: pip install torch, or save the model as"
            " model.safetensors"
        ) from error
    is_zip = zipfile.is_zipfile(path)
    if is_zip and (damaged := damaged_member(path)):  # PyTorch does not look
        raise UserError(f"{path}: damaged at {damaged}: the checksum of the archive differs; copy it again")
    try:
        with errors.reading(path, *_OF_PYTORCH):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path}: is damaged, or holds more than weights; such a file could run code, so it is not read. Save the"
            " model as model.safetensors"
        ) from error
    pairs = content.items() if isinstance(content, dict) else ()
    found = {str(name): value.detach() for name, value in pairs if isinstance(value, torch.Tensor)}
    if not found:
        raise UserError(f"{path}: holds no dictionary of tensors such as a model's state_dict()")
    kinds = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in found.items()}
    places = {name: Place([*tensor.shape], kinds[name], tensor) for name, tensor in found.items()}
    return lambda tensor: (tensor.float() if tensor.is_floating_point() else tensor).numpy(), places


def write_safetensors(path: str, shapes: Mapping[str, Sequence[int]], arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes float32 tensors to a local file, with one tensor in memory at a time.

    `shapes`: name -> sizes of every tensor in `arrays`, in their order. Raises ValueError if an array differs.
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

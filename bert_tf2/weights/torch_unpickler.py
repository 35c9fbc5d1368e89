"""Unpickles a dictionary of PyTorch tensors without executing the pickle's calls; PyTorch is not required.

A pickle is a program for a stack machine. Python's `pickle` lets this program import and call anything. This unpickler
supports only what a dictionary of tensors needs: numbers, strings, tuples, lists and dictionaries, and a few PyTorch
names with substitutes (`_KNOWN`). Any other name or instruction raises an error.
"""

from __future__ import annotations

import math
import pickle
import pickletools
import struct
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

MOST_AXES = 32

_MOST_NUMBERS = 1 << 62


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Returns the number of elements from the first to the last one of a tensor; strides are in elements."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


class _Storage(NamedTuple):
    """An array of `count` elements; `first` is its offset in the storage with that key."""

    key: str
    dtype: str
    count: int
    first: int = 0


class Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _StorageType(NamedTuple):
    """The substitute for a class like torch.FloatStorage."""

    dtype: str


class Refused(Exception):
    """The file does not contain plain tensors, or is damaged; the text follows the file name in the message."""

    advice = "Copy it again"


class _NeedsCode(Refused):
    """The content of the file cannot be determined without executing it."""

    advice = "This is not done here; save the weights as model.safetensors"

    def __init__(self, what: str):
        super().__init__(f"needs code to be run: it {what}")


def printable(text: object) -> str:
    """Escapes text from a file for a one-line message."""
    return str(text)[:100].encode("unicode_escape").decode()


def _whole(value: object) -> int:
    """Validates a number of elements, or an offset."""
    if type(value) is not int or not 0 <= value < _MOST_NUMBERS:
        raise Refused("is damaged: the size or the place of a tensor makes no sense")
    return value


class _Dict(dict):
    """A dictionary with plain keys: hashing a deep or shared tuple may not terminate, or may overflow the C stack."""

    __slots__ = ()

    def __setitem__(self, key, value):
        if not isinstance(key, str | int):
            raise Refused("is damaged: an entry of a dictionary makes no sense")
        super().__setitem__(key, value)


def _ordered_dict(pairs=()) -> _Dict:
    """Substitutes collections.OrderedDict; Python 2 passed its entries as a list of pairs."""
    made = _Dict()
    for key, value in pairs:
        made[key] = value
    if pairs:
        pairs.clear()  # otherwise a file could request any number of copies of a long list
    return made


def _tensor(storage, offset, shape, strides, requires_grad=False, hooks=None, metadata=None) -> Tensor:
    """Substitutes `_rebuild_tensor` and its successor, and checks the tensor against its storage."""
    if not isinstance(storage, _Storage) or metadata or len(shape) > MOST_AXES or len(strides) != len(shape):
        raise Refused("is damaged: a tensor without a plain storage")
    tensor = Tensor(storage, _whole(offset), tuple(map(_whole, shape)), tuple(map(_whole, strides)))
    count = span(tensor.shape, tensor.strides)
    # The second condition: with strides of 0 a few elements could become arbitrarily many.
    if count and (tensor.offset + count > storage.count or math.prod(tensor.shape) > storage.count):
        raise Refused(f"is damaged: a tensor of shape {list(shape)} in a storage of {storage.count} numbers")
    return tensor


def _parameter(tensor, requires_grad=True, hooks=None) -> Tensor:
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
"""The names that a file may use -> their substitutes. No other function is ever called."""

_INSTRUCTIONS = frozenset(
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT"
    " STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8"
    " EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM SETITEMS"
    " PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD BINPERSID".split()
)


class _Dispatch(dict):
    """Instruction byte -> method."""

    def __missing__(self, code: int):
        known = pickletools.code2op.get(chr(code))
        if known is None:
            raise Refused(f"is damaged: its instruction {code:#x} makes no sense")
        raise _NeedsCode(f"has the instruction {known.name}")


class Unpickler(pickle._Unpickler):
    """Reads one pickle. Every instruction adds at most one object, so that memory is proportional to the pickle.

    This subclasses the Python implementation, whose instruction table can be changed. The C implementation,
    `pickle.Unpickler`, is not safe for untrusted files regardless of its find_class: memo index 0xffffffff takes 64 GB,
    and a nested tuple as a dictionary key crashes the process or blocks it indefinitely.

    Attributes:
      dtypes: key of each storage read so far -> dtype.
    """

    dispatch = _Dispatch(
        (getattr(pickle, name)[0], pickle._Unpickler.dispatch[getattr(pickle, name)[0]]) for name in _INSTRUCTIONS
    )

    def __init__(self, stream: BinaryIO):
        super().__init__(stream, encoding="latin-1")
        self.dtypes: dict[str, str] = {}

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _KNOWN:
            raise _NeedsCode(f"wants {printable(f'{module}.{name}')}")
        return _KNOWN[f"{module}.{name}"]

    def persistent_load(self, pid: Any) -> _Storage:
        """Reads ('storage', type, key, device, count), and in the old format an optional part of the storage."""
        if not isinstance(pid, tuple) or len(pid) not in (5, 6) or pid[0] != "storage":
            raise _NeedsCode("refers to something that is no storage")
        _, storage_type, key, _, count = pid[:5]
        if not isinstance(storage_type, _StorageType) or not isinstance(key, str):
            raise Refused("is damaged: a storage has no type or no name")
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
        """Ignores the attributes that PyTorch adds to a dictionary of weights (`_metadata`)."""
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


# The exceptions that a damaged pickle causes.
_PICKLE_ERRORS = (
    *(pickle.UnpicklingError, struct.error, EOFError, AttributeError),
    *(ValueError, TypeError, LookupError, OverflowError),
)


def load(unpickler: Unpickler) -> Any:
    """Loads the pickle at the current position of the stream, and leaves the stream after it."""
    try:
        return unpickler.load()
    except _PICKLE_ERRORS as error:
        reason = printable(error) or "it ends too early"
        raise Refused(f"is damaged, or not a file of torch.save ({reason})") from error

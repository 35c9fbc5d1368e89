"""HDF5 files of weights, written so that damage is found, and without a crash where the disk is full.

Keras writes arrays in one piece each, in the oldest version of the format, which has no checksums.
`copy_with_checksums` makes of such a file one with checksums of everything: the filter Fletcher-32 for the arrays,
which divides them into chunks, and version 1.10 of the format for the rest. The HDF5 library compares them whenever it
reads, in Keras too.
"""

from __future__ import annotations

import io
import math

import h5py

_VERSION = "v110"  # the first one with checksums of all structures; HDF5 reads it since 2016
_CHUNK_BYTES = 1 << 22


class Store(io.FileIO):
    """A file that never fails a write of HDF5, which crashes the process if it cannot complete an operation.

    Attributes:
      error: the first failure; nothing is written after it.
    """

    def __init__(self, path: str):
        super().__init__(path, "w+b")
        self.error: OSError | None = None

    def write(self, data) -> int:
        rest = memoryview(data)
        while rest and self.error is None:
            try:
                rest = rest[super().write(rest) :]
            except OSError as error:
                self.error = error
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0


def copy_with_checksums(source: str, target: str) -> None:
    """Copies a file with checksums, one array in memory at a time. Raises OSError if the disk is full."""
    with Store(target) as store:
        with h5py.File(source, "r") as old, h5py.File(store, "w", libver=(_VERSION, _VERSION)) as new:
            _copy_group(old, new)
        if store.error is not None:
            raise store.error


def _copy_group(old: h5py.Group, new: h5py.Group) -> None:
    _copy_attributes(old, new)
    for name, item in old.items():
        if isinstance(item, h5py.Group):
            _copy_group(item, new.create_group(name))
            continue
        # An array without an axis or without elements cannot have chunks; no weight is one.
        checked = {"chunks": _chunks(item), "fletcher32": True} if item.shape and item.size else {}
        _copy_attributes(item, new.create_dataset(name, data=item[()], **checked))


def _copy_attributes(old: h5py.Group | h5py.Dataset, new: h5py.Group | h5py.Dataset) -> None:
    for name, value in old.attrs.items():
        new.attrs[name] = value


def _chunks(array: h5py.Dataset) -> tuple[int, ...]:
    """Returns the shape of a chunk: as many rows as fit in _CHUNK_BYTES, in chunks of about equal size."""
    rows = array.shape[0]
    count = min(rows, math.ceil(array.nbytes / _CHUNK_BYTES))
    return math.ceil(rows / count), *array.shape[1:]

"""The numbered folders of an export.

A version is written under another name and gets its number when it is complete, because TensorFlow Serving loads every
folder whose name is a number.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

from bert_tf2.support import files, outputs
from bert_tf2.support.errors import UserError


@dataclasses.dataclass
class Folder:
    """The temporary and the final path of a version."""

    beside: str
    path: str = ""


@contextlib.contextmanager
def next_version(export_dir: str) -> Iterator[Folder]:
    """Yields a folder to write to, which gets the next number on a normal exit and is removed on an exception."""
    files.make_directory(export_dir)
    outputs.remove_leftovers(export_dir)
    if left := [name.strip("/") for name in files.list_directory(export_dir) if name.strip("/").endswith(".partial")]:
        logging.warning("%s: %s: of an export that still runs, or was killed: then delete it", export_dir, left[0])
    # Not a number, so servers ignore it. A process on another machine or in another container is not detectable, but
    # uses another name.
    folder = Folder(outputs.name_beside(os.path.join(export_dir, f"version-{secrets.token_hex(4)}")))
    try:
        files.make_directory(folder.beside)
        yield folder
        folder.path = _give_number(folder.beside, export_dir)
    finally:
        _remove(folder.beside)


def _remove(folder: str) -> None:
    with contextlib.suppress(tf.errors.OpError):  # it is not there
        tf.io.gfile.rmtree(folder)


def _give_number(folder: str, export_dir: str) -> str:
    while True:
        numbers = [int(name) for name in files.list_directory(export_dir) if name.strip("/").isdecimal()]
        path = os.path.join(export_dir, str(max(numbers, default=0) + 1))
        try:
            tf.io.gfile.rename(folder, path) if files.is_remote(path) else os.rename(folder, path)
            return path
        except (tf.errors.OpError, OSError) as error:
            if not files.exists(path):  # otherwise another process has taken the number in the meantime
                raise UserError(f"{path}: cannot be written: {str(error).splitlines()[0]}") from error

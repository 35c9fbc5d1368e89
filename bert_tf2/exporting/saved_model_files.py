"""The numbered folders of an export.

A version is written under another name and gets its number when it is complete, because TensorFlow Serving loads every
folder whose name is a number.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf2.support import files, outputs
from bert_tf2.support.errors import UserError


@contextlib.contextmanager
def log_level(level: int) -> Iterator[None]:
    """Suppresses log messages that are less severe than `level`, one of absl's levels."""
    before = logging.get_verbosity()
    logging.set_verbosity(level)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def write_version(export_dir: str, write: Callable[[str], None]) -> str:
    """Calls `write` with a folder, which then gets the next number, or is removed if it raises; returns its path."""
    files.make_directory(export_dir)
    outputs.remove_leftovers(export_dir)
    # Not a number, so servers ignore it; and not that of a process on another machine, which nothing shows.
    beside = outputs.name_beside(os.path.join(export_dir, f"version-{secrets.token_hex(4)}"))
    try:
        files.make_directory(beside)
        write(beside)
        return _give_number(beside, export_dir)
    finally:
        with contextlib.suppress(tf.errors.OpError):  # it is not there
            tf.io.gfile.rmtree(beside)


def _give_number(folder: str, export_dir: str) -> str:
    while True:
        there = [name.strip("/") for name in files.list_directory(export_dir)]
        numbers = [int(name) for name in there if re.fullmatch("[0-9]{1,18}", name)]  # servers count with 64 bits
        path = os.path.join(export_dir, str(max(numbers, default=0) + 1))
        try:
            tf.io.gfile.rename(folder, path) if files.is_remote(path) else os.rename(folder, path)
            return path
        except (tf.errors.OpError, OSError) as error:
            if not files.exists(path):  # otherwise another process has taken the number in the meantime
                raise UserError(f"{path}: cannot be written: {str(error).splitlines()[0]}") from error


def save(task: tf.Module, signatures: Mapping[str, Callable], folder: str) -> dict[str, Any]:
    """Writes a SavedModel; describes its signatures: name -> inputs, outputs -> name -> dtype and shape."""
    # A server does not need the gradients of an exported model.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with log_level(logging.ERROR):  # it logs the name of each input of each function
        tf.saved_model.save(task, folder, signatures, options)

    def describe(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {name: {"dtype": it.dtype.name, "shape": it.shape.as_list()} for name, it in sorted(tensors.items())}

    return {
        name: {
            "inputs": describe({spec.name: spec for spec in function.input_signature}),
            "outputs": describe(function.get_concrete_function().structured_outputs),
        }
        for name, function in sorted(signatures.items())
    }

"""Files of TensorFlow's file systems, whose paths have a scheme (`gs://...`). Their errors are UserErrors.

TensorFlow is imported only when such a path is used, so that a script on local files can report a wrong flag or a
missing file before TensorFlow loads.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

from bert_tf2.support import errors
from bert_tf2.support.process import load_tensorflow


def call(function: str, path: str, *others: str, **settings: Any) -> Any:
    """Calls a function of `tf.io.gfile`."""
    return _ask(path, getattr(load_tensorflow().io.gfile, function), path, *others, **settings)


def _ask(path: str, function: Callable, *given: Any, problem: str = "cannot be reached: {}", **settings: Any) -> Any:
    known = load_tensorflow().errors
    web = "cannot be reached: TensorFlow opens no such address; give a local path, or ORGANIZATION/NAME of the hub"
    with (
        errors.reading(path, known.OpError, OSError, ValueError, problem=problem),
        errors.reading(path, known.UnimplementedError, problem=web),
        errors.reading(path, known.NotFoundError, problem="no such file"),
    ):
        return function(*given, **settings)


def open_file(path: str, mode: str) -> io.BufferedReader | _File:
    """Opens a file to read ("rb") or to write."""
    return io.BufferedReader(_File(path, mode), 1 << 16) if "r" in mode else _File(path, mode)


class _File(io.RawIOBase):
    """A GFile, which TensorFlow opens when it is first read, and which an object store may write in `close`."""

    def __init__(self, path: str, mode: str):
        self._stream, self._path, self._reads = call("GFile", path, mode), path, "r" in mode
        if not self._reads:
            self.write(b"")  # a GFile creates its file at the first write, and a file without records has no other

    def readable(self) -> bool:
        return self._reads

    seekable = readable

    def readinto(self, buffer) -> int:
        data = self._ask("read", len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._ask("seek", offset, whence)
        return self._stream.tell()

    def write(self, content) -> int:
        self._ask("write", bytes(content))  # unlike local files, a GFile does not accept views of arrays
        return len(content)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._ask("close")

    def _ask(self, method: str, *given: Any) -> Any:
        problem = f"cannot be {'read' if self._reads else 'written'}: {{}}"
        return _ask(self._path, getattr(self._stream, method), *given, problem=problem)

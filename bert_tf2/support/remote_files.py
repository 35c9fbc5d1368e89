"""Files behind paths with a scheme (`gs://...`): `tf.io.gfile`, whose errors become UserErrors.

TensorFlow is imported with the first call, which takes 3 seconds.
"""

from __future__ import annotations

import io
from typing import Any, BinaryIO

from bert_tf2.support import environment
from bert_tf2.support.quiet import load_tensorflow


def gfile(function: str, path: str, *others: str, **settings: Any) -> Any:
    """Calls a function of `tf.io.gfile`. Raises UserError where the file system does not answer."""
    with environment.reading(path, "cannot be reached: {}"):
        return getattr(load_tensorflow().io.gfile, function)(path, *others, **settings)


def open_binary(path: str, mode: str) -> BinaryIO:
    stream = gfile("GFile", path, mode)
    return stream if "r" in mode else _Written(stream, path)


class _Written(io.BufferedIOBase):
    """A remote file to write, whose errors are UserErrors: an object store writes all of the file when it is closed."""

    def __init__(self, stream: Any, path: str):
        self._stream, self._path = stream, path
        self.write(b"")  # a GFile creates its file at the first write, and a file without records has none

    def write(self, content) -> int:
        with environment.reading(self._path, "cannot be written: {}"):
            self._stream.write(bytes(content))  # unlike local files, a GFile does not accept views of arrays
        return len(content)

    def close(self) -> None:
        if not self.closed:
            super().close()
            with environment.reading(self._path, "cannot be written: {}"):
                self._stream.close()

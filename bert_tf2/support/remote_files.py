"""File systems behind paths with a scheme (`gs://...`, `hdfs://...`), as `files` uses them.

`TensorFlowFiles` is `tf.io.gfile`. A program that has another library for these paths gives it to `files.use_remote`;
processes that only make records then need no TensorFlow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import BinaryIO, Protocol

from bert_tf2.support import environment
from bert_tf2.support.errors import UserError
from bert_tf2.support.quiet import load_tensorflow


class RemoteFiles(Protocol):
    """A library for remote paths. `exists`, `is_directory` and `make_directory` raise UserError without an answer."""

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """The bytes of a file."""

    def modified(self, path: str) -> float | None:
        """When a file was changed, in seconds since 1970; None if that is unknown."""

    def list_directory(self, path: str) -> list[str]:
        """The names in a folder."""

    def make_directory(self, path: str) -> None:
        """Creates a folder and its parents unless it exists."""

    def remove(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Replaces `target` by `source`."""

    def open(self, path: str, mode: str) -> BinaryIO:
        """Opens a file: "rb" or "wb". A file that is read can `seek`."""

    def glob(self, pattern: str) -> list[str]:
        """The paths that match a pattern."""


class TensorFlowFiles:
    """`tf.io.gfile` as RemoteFiles. TensorFlow is imported with the first call, which takes 3 seconds."""

    def exists(self, path: str) -> bool:
        with _answering(path):
            return _gfile().exists(path)

    def is_directory(self, path: str) -> bool:
        with _answering(path):
            return _gfile().isdir(path)

    def size(self, path: str) -> int:
        return _gfile().stat(path).length

    def modified(self, path: str) -> float | None:
        return (_gfile().stat(path).mtime_nsec or 0) / 1e9 or None

    def list_directory(self, path: str) -> list[str]:
        return _gfile().listdir(path)

    def make_directory(self, path: str) -> None:
        with _answering(path):
            _gfile().makedirs(path)

    def remove(self, path: str) -> None:
        _gfile().remove(path)

    def rename(self, source: str, target: str) -> None:
        _gfile().rename(source, target, overwrite=True)

    def open(self, path: str, mode: str) -> BinaryIO:
        class RemoteFile(_gfile().GFile):
            def write(self, content) -> None:
                with _answering(path, "cannot be written"):
                    super().write(bytes(content))  # unlike local files, a GFile does not accept views of arrays

            def close(self) -> None:
                with _answering(path, "cannot be written" if "w" in mode else "cannot be read"):
                    super().close()  # an object store writes all of the file now

        stream = RemoteFile(path, mode)
        if "w" in mode:
            stream.write(b"")  # a GFile creates its file at the first write, and a file without records has none
        return stream

    def glob(self, pattern: str) -> list[str]:
        return _gfile().glob(pattern)


def _gfile():
    return load_tensorflow().io.gfile


@contextlib.contextmanager
def _answering(path: str, what: str = "cannot be reached") -> Iterator[None]:
    """Converts the exceptions of a remote file system, for example an unknown scheme, to a UserError."""
    try:
        yield
    except load_tensorflow().errors.OpError as error:
        reason = " ".join(str(error.message).split())
        raise UserError(f"{environment.final_name(path)}: {what}: {reason}") from error

"""File systems behind paths with a scheme (`gs://...`, `hdfs://...`), as `files` uses them.

`TensorFlowFiles` is `tf.io.gfile`; `FsspecFiles` needs no TensorFlow, for processes that only make records. Both raise
UserError where a file system does not answer; see `files` for what the methods do.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from bert_tf2.support import environment
from bert_tf2.support.errors import UserError
from bert_tf2.support.quiet import load_tensorflow

if TYPE_CHECKING:
    import fsspec

_ATTEMPTS = 3  # to replace a file that others replace too


@contextlib.contextmanager
def _answering(path: str, what: str = "cannot be reached") -> Iterator[None]:
    """Converts the exceptions of a file system and of the libraries behind it, whose types differ, to a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{environment.final_name(path)}: {what}: {reason}") from error


class _Written(io.BufferedIOBase):
    """A remote file to write, whose errors are UserErrors: an object store writes all of the file when it is closed."""

    def __init__(self, stream: Any, path: str):
        self._stream, self._path = stream, path

    def writable(self) -> bool:
        return True

    def write(self, content) -> int:
        with _answering(self._path, "cannot be written"):
            self._stream.write(bytes(content))  # unlike local files, a GFile does not accept views of arrays
        return len(content)

    def close(self) -> None:
        if not self.closed:
            super().close()
            with _answering(self._path, "cannot be written"):
                self._stream.close()


class TensorFlowFiles:
    """`tf.io.gfile`. TensorFlow is imported with the first call, which takes 3 seconds."""

    def exists(self, path: str) -> bool:
        with _gfile(path) as gfile:
            return gfile.exists(path)

    def is_directory(self, path: str) -> bool:
        with _gfile(path) as gfile:
            return gfile.isdir(path)

    def size(self, path: str) -> int:
        with _gfile(path) as gfile:
            return gfile.stat(path).length

    def modified(self, path: str) -> float | None:
        with _gfile(path) as gfile:
            return (gfile.stat(path).mtime_nsec or 0) / 1e9 or None

    def list_directory(self, path: str) -> list[str]:
        with _gfile(path) as gfile:
            return gfile.listdir(path)

    def make_directory(self, path: str) -> None:
        with _gfile(path) as gfile:
            gfile.makedirs(path)

    def remove(self, path: str) -> None:
        with _gfile(path) as gfile:
            gfile.remove(path)

    def rename(self, source: str, target: str) -> None:
        with _gfile(target) as gfile:
            gfile.rename(source, target, overwrite=True)

    def open(self, path: str, mode: str) -> BinaryIO:
        with _gfile(path) as gfile:
            stream = gfile.GFile(path, mode)
        if "r" in mode:
            return stream
        written = _Written(stream, path)
        written.write(b"")  # a GFile creates its file at the first write, and a file without records has none
        return written

    def glob(self, pattern: str) -> list[str]:
        with _gfile(pattern) as gfile:
            return gfile.glob(pattern)


@contextlib.contextmanager
def _gfile(path: str) -> Iterator[Any]:
    with _answering(path):
        yield load_tensorflow().io.gfile


class FsspecFiles:
    """The file systems of `fsspec`: `gs://` with the package gcsfs, `s3://` with s3fs, `hdfs://` with pyarrow."""

    def exists(self, path: str) -> bool:
        with _system(path) as system:
            return system.exists(path)

    def is_directory(self, path: str) -> bool:
        with _system(path) as system:
            return system.isdir(path)

    def size(self, path: str) -> int:
        with _system(path) as system:
            return system.size(path)

    def modified(self, path: str) -> float | None:
        with _system(path) as system, contextlib.suppress(NotImplementedError):
            return system.modified(path).timestamp()

    def list_directory(self, path: str) -> list[str]:
        with _system(path) as system:
            names = [name.rpartition("/")[2] for name in system.ls(path, detail=False)]
            return [name for name in names if name]  # some tools mark an empty folder by a file without a name

    def make_directory(self, path: str) -> None:
        with _system(path) as system:
            system.makedirs(path, exist_ok=True)

    def remove(self, path: str) -> None:
        with _system(path) as system:
            system.rm_file(path)

    def rename(self, source: str, target: str) -> None:
        """Replaces `target` by `source`; in a store of objects as a copy, which is there when it is complete."""
        import fsspec

        with _system(target) as system:
            if type(system).mv is fsspec.AbstractFileSystem.mv:
                system.cp_file(source, target)
                return system.rm_file(source)
            for _ in range(_ATTEMPTS):
                try:
                    return system.mv(source, target)
                except OSError:  # some file systems, such as HDFS, do not replace files
                    if not (system.exists(source) and system.exists(target)):
                        raise
                    with contextlib.suppress(OSError):  # another process has just removed it
                        system.rm_file(target)
            system.mv(source, target)

    def open(self, path: str, mode: str) -> BinaryIO:
        with _system(path) as system:
            stream = system.open(path, mode)
        return io.BufferedReader(stream) if "r" in mode else _Written(stream, path)

    def glob(self, pattern: str) -> list[str]:
        with _system(pattern) as system:
            begin = pattern.removesuffix(system._strip_protocol(pattern))
            return [begin + name for name in system.glob(pattern)]


@contextlib.contextmanager
def _system(path: str) -> Iterator[fsspec.AbstractFileSystem]:
    """The file system of a path, which asks for each answer: other machines change what is there."""
    with _answering(path):
        import fsspec  # here, so that its absence is such a line, too

        system, _ = fsspec.core.url_to_fs(path, use_listings_cache=False)
        yield system

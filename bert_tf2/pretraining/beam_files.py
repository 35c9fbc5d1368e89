"""Remote files through Apache Beam's file systems, which its workers have without TensorFlow."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import BinaryIO

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems

from bert_tf2.support.errors import UserError


class BeamFiles:
    """See `support.remote_files.RemoteFiles`. Every method raises UserError if the file system does not answer."""

    def exists(self, path: str) -> bool:
        with _answering(path):
            return FileSystems.exists(path)

    def is_directory(self, path: str) -> bool:
        """Whether there is something in it: stores of objects know no folders."""
        return bool(self._match(path.rstrip("/") + "/*", most=1))

    def size(self, path: str) -> int:
        with _answering(path):
            return FileSystems.get_filesystem(path).size(path)

    def modified(self, path: str) -> float | None:
        with _answering(path):
            return FileSystems.last_updated(path) or None

    def list_directory(self, path: str) -> list[str]:
        return [os.path.basename(name.rstrip("/")) for name in self._match(path.rstrip("/") + "/*")]

    def make_directory(self, path: str) -> None:
        with _answering(path):
            try:
                FileSystems.mkdirs(path)
            except OSError:  # BeamIOError too: it may be there
                if not FileSystems.exists(path):
                    raise

    def remove(self, path: str) -> None:
        with _answering(path):
            FileSystems.delete([path])

    def rename(self, source: str, target: str) -> None:
        with _answering(target):
            try:
                FileSystems.rename([source], [target])
            except BeamIOError:  # some file systems, such as HDFS, do not replace files
                if not FileSystems.exists(target):
                    raise
                FileSystems.delete([target])
                FileSystems.rename([source], [target])

    def open(self, path: str, mode: str) -> BinaryIO:
        plain = {"mime_type": "application/octet-stream", "compression_type": CompressionTypes.UNCOMPRESSED}
        with _answering(path):
            if "r" in mode:
                stream = FileSystems.open(path, **plain)
                return stream if hasattr(stream, "peek") else io.BufferedReader(stream)
            return FileSystems.create(path, **plain)

    def glob(self, pattern: str) -> list[str]:
        return self._match(pattern)

    def _match(self, pattern: str, most: int | None = None) -> list[str]:
        with _answering(pattern):
            (matched,) = FileSystems.match([pattern], [most])
            return [found.path for found in matched.metadata_list]


@contextlib.contextmanager
def _answering(path: str) -> Iterator[None]:
    """Converts the exceptions of Beam's file systems, for example for an unknown scheme, to a UserError."""
    try:
        yield
    except (ValueError, OSError) as error:  # BeamIOError is an OSError; an unknown scheme is a ValueError
        details = getattr(error, "exception_details", None) or {}
        reason = " ".join(str(next(iter(details.values()), error)).split())
        raise UserError(f"{path}: cannot be reached: {reason}") from error

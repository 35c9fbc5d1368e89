"""Remote files through Apache Beam's file systems, which its workers have without TensorFlow."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import BinaryIO

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from bert_tf2.support.errors import UserError

_ATTEMPTS = 3  # to replace a file that others replace too


class BeamFiles:
    """See `support.remote_files.RemoteFiles`. Every method raises UserError if the file system does not answer."""

    def __init__(self, options: PipelineOptions | None = None):
        """Args:
        options: Beam's, of which some file systems need their own (--hdfs_host). None where Beam has them already:
          in its workers.
        """
        if options is not None:
            FileSystems.set_options(options)

    def exists(self, path: str) -> bool:
        with _answering(path):
            return FileSystems.exists(path)

    def is_directory(self, path: str) -> bool:
        """Whether there is something in it: stores of objects know no folders. Elsewhere it may be empty."""
        with _answering(path):
            system = FileSystems.get_filesystem(path)
            if not system.has_dirs():
                return any(True for _ in _within(path))
            try:
                return system.exists(path) and next(_within(path), "") is not None
            except BeamIOError:  # a file has no list
                return False

    def size(self, path: str) -> int:
        with _answering(path):
            return FileSystems.get_filesystem(path).size(path)

    def modified(self, path: str) -> float | None:
        with _answering(path):
            return FileSystems.last_updated(path) or None

    def list_directory(self, path: str) -> list[str]:
        with _answering(path):
            names = [name.rstrip("/") for name in _within(path)]
            return [name for name in names if name and "/" not in name]

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
            for _ in range(_ATTEMPTS):
                try:
                    return FileSystems.rename([source], [target])
                except BeamIOError:  # some file systems, such as HDFS, do not replace files
                    if not (FileSystems.exists(source) and FileSystems.exists(target)):
                        raise
                    with contextlib.suppress(BeamIOError):  # another process has just removed it
                        FileSystems.delete([target])
            FileSystems.rename([source], [target])

    def open(self, path: str, mode: str) -> BinaryIO:
        plain = {"mime_type": "application/octet-stream", "compression_type": CompressionTypes.UNCOMPRESSED}
        with _answering(path):
            if "r" in mode:
                stream = FileSystems.open(path, **plain)
                return stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)
            return FileSystems.create(path, **plain)

    def glob(self, pattern: str) -> list[str]:
        with _answering(pattern):
            (matched,) = FileSystems.match([pattern])
            return [found.path for found in matched.metadata_list]


def _within(path: str) -> Iterator[str]:
    """What stands behind the name of a folder in the names of what is in it; of folders in it too, in some systems.

    It calls what `FileSystems.match` calls, which would take "[" in the name of the folder for a pattern.
    """
    folder = path.rstrip("/") + "/"
    system = FileSystems.get_filesystem(path)
    for found in system._list(folder.rstrip("/") if system.has_dirs() else folder):
        yield found.path.removeprefix(folder)


@contextlib.contextmanager
def _answering(path: str) -> Iterator[None]:
    """Converts exceptions to a UserError: an unknown scheme, a file that is missing, a refusal of the storage.

    The libraries behind Beam's file systems have many classes of exceptions, with Exception as their common base.
    """
    try:
        yield
    except Exception as error:
        details = getattr(error, "exception_details", None)
        causes = [cause for cause in details.values() if cause] if isinstance(details, dict) else []
        reason = " ".join(str(causes[0] if causes else error).split())
        raise UserError(f"{path}: cannot be reached: {reason or type(error).__name__}") from error

"""Two file systems for Beam, over local folders: `toy://` with folders, like HDFS, and `crate://`, a store of objects.

Where they are comes from an option of Beam, as the host of HDFS does. A test imports this module, and Beam finds them.
"""

from __future__ import annotations

import io
import os
import pathlib
import shutil

from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata, FileSystem
from apache_beam.options.pipeline_options import PipelineOptions


class ToyOptions(PipelineOptions):
    @classmethod
    def _add_argparse_args(cls, parser):
        parser.add_argument("--toy_root", help="the local folder of toy:// and crate://")


class Toy(FileSystem):
    """Has folders; neither creates one that exists nor renames to a name that exists."""

    def __init__(self, pipeline_options):
        super().__init__(pipeline_options)
        if pipeline_options is None:
            raise ValueError("pipeline_options is not set")  # as HDFS's answer is
        self._root = pathlib.Path(pipeline_options.view_as(ToyOptions).toy_root)

    @classmethod
    def scheme(cls):
        return "toy"

    def has_dirs(self):
        return True

    def join(self, basepath, *paths):
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path):
        return os.path.split(path)

    def _local(self, path) -> pathlib.Path:
        return self._root / path.removeprefix(f"{self.scheme()}://")

    def _list(self, dir_or_prefix):
        if not self._local(dir_or_prefix).is_dir():
            raise BeamIOError("List operation failed", {dir_or_prefix: "not a folder"})
        for found in sorted(self._local(dir_or_prefix).iterdir()):
            yield self.metadata(self.join(dir_or_prefix, found.name))

    def mkdirs(self, path):
        if self._local(path).exists():
            raise BeamIOError(f"Path already exists: {path}")
        self._local(path).mkdir(parents=True)

    def create(self, path, mime_type="", compression_type=CompressionTypes.AUTO):
        assert compression_type == CompressionTypes.UNCOMPRESSED, "a name must not decide what is written"
        return open(self._local(path), "wb")

    def open(self, path, mime_type="", compression_type=CompressionTypes.AUTO):
        assert compression_type == CompressionTypes.UNCOMPRESSED, "a name must not decide what is read"
        return io.BytesIO(self._local(path).read_bytes())  # without `peek`

    def exists(self, path):
        return self._local(path).exists()

    def metadata(self, path):
        found = self._local(path).stat()
        return FileMetadata(path, found.st_size, found.st_mtime)

    def size(self, path):
        return self._of_file(path).st_size

    def last_updated(self, path):
        return self._of_file(path).st_mtime

    def _of_file(self, path):
        if not self._local(path).is_file():
            raise BeamIOError("Status operation failed", {path: FileNotFoundError(f"no file {path}")})
        return self._local(path).stat()

    def copy(self, source_file_names, destination_file_names):
        raise NotImplementedError

    def rename(self, source_file_names, destination_file_names):
        for source, target in zip(source_file_names, destination_file_names, strict=True):
            if self._local(target).exists() or not self._local(source).exists():
                raise BeamIOError("Rename operation failed", {(source, target): None})
            self._local(source).rename(self._local(target))

    def delete(self, paths):
        for path in paths:
            place = self._local(path)
            if not place.exists():
                raise BeamIOError("Delete operation failed", {path: FileNotFoundError(path)})
            shutil.rmtree(place) if place.is_dir() else place.unlink()


class Crate(Toy):
    """Knows only files with long names. A name that ends in "/" is what some tools put in an empty folder."""

    @classmethod
    def scheme(cls):
        return "crate"

    def has_dirs(self):
        return False

    def _local(self, path):
        return self._root / path.removeprefix("crate://").replace("/", "|")

    def _list(self, dir_or_prefix):
        for found in sorted(self._root.iterdir()):
            if (name := "crate://" + found.name.replace("|", "/")).startswith(dir_or_prefix):
                yield self.metadata(name)

    def mkdirs(self, path):
        pass

    def rename(self, source_file_names, destination_file_names):
        for source, target in zip(source_file_names, destination_file_names, strict=True):
            self._local(source).replace(self._local(target))

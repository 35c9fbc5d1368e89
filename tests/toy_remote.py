"""`toy://`, a file system of fsspec over the local folder of $TOY_REMOTE, which other processes see too.

It has folders and, like HDFS, renames no file to a name that exists. A Dask worker gets it with --preload.
"""

from __future__ import annotations

import os
import pathlib

import fsspec


class Toy(fsspec.AbstractFileSystem):
    protocol = "toy"

    def _local(self, path) -> pathlib.Path:
        return pathlib.Path(os.environ["TOY_REMOTE"], self._strip_protocol(path))

    def info(self, path, **_):
        place = self._local(path)
        found = place.stat()
        kind = "directory" if place.is_dir() else "file"
        return {"name": self._strip_protocol(path), "size": found.st_size, "type": kind, "time": found.st_mtime}

    def modified(self, path):
        import datetime

        return datetime.datetime.fromtimestamp(self.info(path)["time"], datetime.timezone.utc)

    def ls(self, path, detail=True, **_):
        path = self._strip_protocol(path)
        found = [self.info(f"{path}/{name}") for name in sorted(os.listdir(self._local(path)))]
        return found if detail else [info["name"] for info in found]

    def makedirs(self, path, exist_ok=False):
        self._local(path).mkdir(parents=True, exist_ok=exist_ok)

    def _open(self, path, mode="rb", **_):
        return open(self._local(path), mode)

    def rm_file(self, path):
        self._local(path).unlink()

    def mv(self, path1, path2, **_):
        if self._local(path2).exists():
            raise FileExistsError(path2)
        self._local(path1).rename(self._local(path2))


fsspec.register_implementation("toy", Toy, clobber=True)

"""Remote files through fsspec: `toy://` has folders, as HDFS has; `memory://` is a store of objects."""

from __future__ import annotations

import io
import tempfile

import pytest

pytest.importorskip("fsspec", reason="needs the extra `dask`")

import fsspec
import toy_remote

from bert_tf2.pretraining import shard_making
from bert_tf2.pretraining.shards import Shard
from bert_tf2.support import files, outputs
from bert_tf2.support.errors import UserError
from bert_tf2.support.remote_files import FsspecFiles

REMOTE = FsspecFiles()


@pytest.fixture(autouse=True)
def _places(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "_remote", REMOTE)
    monkeypatch.setenv("TOY_REMOTE", str(tmp_path))
    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(type(memory), "store", {})
    monkeypatch.setattr(type(memory), "pseudo_dirs", [""])


def write(path, content=b""):
    with REMOTE.open(path, "wb") as stream:
        stream.write(content)


@pytest.fixture(params=["toy", "memory"])
def there(request):
    """A folder with two files of text and one in a folder within it."""
    folder = f"{request.param}://folder[1]"
    REMOTE.make_directory(f"{folder}/within")
    for name in ("a.txt", "b.txt", "within/c.txt"):
        write(f"{folder}/{name}", b"one\ntwo\n")
    return folder


def test_what_is_there(there):
    assert REMOTE.exists(f"{there}/a.txt") and not REMOTE.exists(f"{there}/c.txt")
    assert REMOTE.is_directory(there) and REMOTE.is_directory(f"{there}/")
    assert not REMOTE.is_directory(f"{there}/a.txt") and not REMOTE.is_directory(f"{there}/c")
    assert REMOTE.size(f"{there}/a.txt") == 8
    assert 1.6e9 < REMOTE.modified(f"{there}/a.txt") < 1e11
    assert sorted(REMOTE.list_directory(there)) == ["a.txt", "b.txt", "within"]
    assert files.list_directory(f"{there}/nothing") == []
    REMOTE.remove(f"{there}/a.txt")
    assert not REMOTE.exists(f"{there}/a.txt") and REMOTE.list_directory(there) != []


@pytest.mark.parametrize("scheme", ["toy", "memory"])
def test_patterns(scheme):
    folder = f"{scheme}://folder"
    REMOTE.make_directory(f"{folder}/within")
    for name in ("a.txt", "b.txt", "c.gz", "within/d.txt"):
        write(f"{folder}/{name}")
    assert sorted(REMOTE.glob(f"{folder}/?.t*")) == [f"{folder}/a.txt", f"{folder}/b.txt"]
    assert REMOTE.glob(f"{folder}/x*") == []
    assert files.match_files(f"{folder}/*.txt,{folder}/a.txt") == [f"{folder}/{name}.txt" for name in "aba"]


def test_a_pattern_keeps_the_host(tmp_path):
    class WithHost(toy_remote.Toy):  # its names, as those of HDFS, leave out the host
        protocol = "withhost"

        @classmethod
        def _strip_protocol(cls, path):
            return ("/" + path.partition("://")[2].partition("/")[2] if "://" in path else path).rstrip("/")

        def _local(self, path):
            return tmp_path / self._strip_protocol(path).lstrip("/")

    fsspec.register_implementation("withhost", WithHost, clobber=True)
    REMOTE.make_directory("withhost://host:8020/folder")
    write("withhost://host:8020/folder/a.txt")
    assert REMOTE.glob("withhost://host:8020/folder/*.txt") == ["withhost://host:8020/folder/a.txt"]


def test_folders_are_made_once_or_twice(there):
    for _ in range(2):
        REMOTE.make_directory(f"{there}/new/newer")
    write(f"{there}/new/newer/x")
    assert REMOTE.exists(f"{there}/new/newer/x")


def test_rename_replaces(there):
    write(f"{there}/new", b"new")
    REMOTE.rename(f"{there}/new", f"{there}/a.txt")
    assert REMOTE.open(f"{there}/a.txt", "rb").read() == b"new" and not REMOTE.exists(f"{there}/new")
    REMOTE.rename(f"{there}/a.txt", f"{there}/new")
    assert REMOTE.exists(f"{there}/new") and not REMOTE.exists(f"{there}/a.txt")
    with pytest.raises(UserError, match="cannot be reached"):
        REMOTE.rename(f"{there}/nothing", f"{there}/b.txt")
    assert REMOTE.size(f"{there}/b.txt") == 8


def test_two_that_rename_to_one_name(monkeypatch):
    """Between the removal of the old file and the rename, another process takes the name."""
    for name in "abn":
        write(f"toy://{name}", name.encode())
    remove, left = toy_remote.Toy.rm_file, ["toy://b"]

    def remove_and_take(self, path):
        remove(self, path)
        while left:
            self.mv(left.pop(), path)

    monkeypatch.setattr(toy_remote.Toy, "rm_file", remove_and_take)
    REMOTE.rename("toy://n", "toy://a")
    assert REMOTE.open("toy://a", "rb").read() == b"n"


def test_streams(there):
    with REMOTE.open(f"{there}/a.txt", "rb") as stream:
        assert isinstance(stream, io.BufferedReader) and stream.peek(3)[:3] == b"one"
        stream.seek(4)
        assert [*stream] == [b"two\n"]
    write(f"{there}/none.gz")
    assert REMOTE.exists(f"{there}/none.gz") and REMOTE.size(f"{there}/none.gz") == 0


CALLS = {
    "exists": lambda path: REMOTE.exists(path),
    "is_directory": lambda path: REMOTE.is_directory(path),
    "size": lambda path: REMOTE.size(path),
    "modified": lambda path: REMOTE.modified(path),
    "list_directory": lambda path: REMOTE.list_directory(path),
    "make_directory": lambda path: REMOTE.make_directory(path),
    "remove": lambda path: REMOTE.remove(path),
    "rename": lambda path: REMOTE.rename(path, path),
    "read": lambda path: REMOTE.open(path, "rb"),
    "write": lambda path: REMOTE.open(path, "wb"),
    "glob": lambda path: REMOTE.glob(path),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=[*CALLS])
def test_a_file_system_that_does_not_answer_is_one_line(monkeypatch, call):
    with pytest.raises(UserError, match=r"^nosuch://folder/x.*: cannot be reached: .*nosuch"):
        call("nosuch://folder/x")

    class Forbidden(Exception):
        """The libraries behind the file systems have exceptions of their own."""

    def refuse(*_, **__):
        raise Forbidden("403 GET\nno permission")

    for name in ("exists", "isdir", "info", "modified", "ls", "makedirs", "rm_file", "mv", "_open", "glob"):
        monkeypatch.setattr(toy_remote.Toy, name, refuse)
    with pytest.raises(UserError, match=r"^toy://x.*: cannot be reached: .*403 GET no permission$"):
        call("toy://x")


@pytest.mark.parametrize("name", ["size", "modified", "remove", "rename", "read"])
def test_a_file_that_is_missing_is_one_line(there, name):
    with pytest.raises(UserError, match=r"nothing.*: cannot be reached") as caught:
        CALLS[name](f"{there}/nothing")
    assert "\n" not in str(caught.value)


def test_a_store_that_refuses_at_the_end_is_one_line(monkeypatch):
    class Refusing(io.BytesIO):
        def close(self):
            raise RuntimeError("quota")

    monkeypatch.setattr(toy_remote.Toy, "_open", lambda self, path, mode="rb", **_: Refusing())
    with pytest.raises(UserError, match=r"^toy://x: cannot be written: quota"):
        write("toy://x", b"content")


def test_the_temporary_folder_of_a_worker_goes_with_it(monkeypatch, tmp_path):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with shard_making._workshop(Shard(0, "toy://data/x", 1, ())):
        (folder,) = (tmp_path / "temporary").iterdir()
        (folder / "x").write_bytes(b"half")
        outputs.remove_partial()
        assert not folder.exists()

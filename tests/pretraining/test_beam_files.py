"""Remote files through Beam's file systems, and create_pretraining_data.py --runner with nothing on a local disk."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tempfile

import pytest
from command_lines import ROOT
from pretraining_text import CORPUS, VOCABULARY

pytest.importorskip("apache_beam", reason="needs the extra `beam`")

import beam_toy_files
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from bert_tf2.pretraining import CreatePretrainingDataOptions, shard_results, sharded
from bert_tf2.pretraining.beam_files import BeamFiles
from bert_tf2.pretraining.shards import Shard
from bert_tf2.support import files, outputs
from bert_tf2.support.errors import UserError


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    monkeypatch.setattr(files, "_remote", files._remote)
    monkeypatch.setattr(FileSystems, "_pipeline_options", None)


@pytest.fixture
def beam(tmp_path):
    return BeamFiles(PipelineOptions([f"--toy_root={tmp_path}"]))


def write(beam, path, content=b""):
    with beam.open(path, "wb") as stream:
        stream.write(content)


@pytest.fixture(params=["toy", "crate"])
def there(request, beam):
    """A folder with two files of text and one in a folder within it."""
    folder = f"{request.param}://folder[1]"
    beam.make_directory(f"{folder}/within")
    for name in ("a.txt", "b.txt", "within/c.txt"):
        write(beam, f"{folder}/{name}", b"one\ntwo\n")
    return folder


def test_what_is_there(beam, there):
    assert beam.exists(f"{there}/a.txt") and not beam.exists(f"{there}/c.txt")
    assert beam.is_directory(there) and beam.is_directory(f"{there}/")
    assert not beam.is_directory(f"{there}/a.txt") and not beam.is_directory(f"{there}/c")
    assert beam.size(f"{there}/a.txt") == 8
    assert 1.6e9 < beam.modified(f"{there}/a.txt") < 1e11


def test_a_folder_of_folders_is_a_folder(beam, there):
    beam.remove(f"{there}/a.txt")
    beam.remove(f"{there}/b.txt")
    assert beam.is_directory(there)


def test_the_names_in_a_folder(beam, there):
    assert {"a.txt", "b.txt"} <= {*beam.list_directory(there)} <= {"a.txt", "b.txt", "within"}
    files.use_remote(beam)
    assert files.list_directory(f"{there}/nothing") == []


def test_the_mark_of_an_empty_folder_is_not_in_it(beam):
    write(beam, "crate://empty/")
    assert beam.is_directory("crate://empty") and beam.list_directory("crate://empty") == []


@pytest.mark.parametrize("scheme", ["toy", "crate"])
def test_patterns(beam, scheme):
    folder = f"{scheme}://folder"
    beam.make_directory(f"{folder}/within")
    for name in ("a.txt", "b.txt", "c.gz", "within/d.txt"):
        write(beam, f"{folder}/{name}")
    assert sorted(beam.glob(f"{folder}/?.t*")) == [f"{folder}/a.txt", f"{folder}/b.txt"]
    assert beam.glob(f"{folder}/x*") == []
    files.use_remote(beam)
    assert files.match_files(f"{folder}/*.txt,{folder}/a.txt") == [f"{folder}/{name}.txt" for name in "aba"]
    with pytest.raises(UserError, match=r"within: is a folder|no file matches"):
        files.match_files(f"{folder}/with*")


def test_folders_are_made_once_or_twice(beam, there):
    for _ in range(2):
        beam.make_directory(f"{there}/new/newer")
    write(beam, f"{there}/new/newer/x")
    assert beam.exists(f"{there}/new/newer/x")


def test_rename_replaces(beam, there):
    write(beam, f"{there}/new", b"new")
    beam.rename(f"{there}/new", f"{there}/a.txt")
    assert beam.open(f"{there}/a.txt", "rb").read() == b"new" and not beam.exists(f"{there}/new")
    beam.rename(f"{there}/a.txt", f"{there}/new")
    assert beam.exists(f"{there}/new") and not beam.exists(f"{there}/a.txt")


def test_rename_of_nothing_replaces_nothing(beam, there):
    with pytest.raises(UserError, match="cannot be reached"):
        beam.rename(f"{there}/nothing", f"{there}/a.txt")
    assert beam.size(f"{there}/a.txt") == 8


def test_two_that_rename_to_one_name(beam, there, monkeypatch):
    """Between the removal of the old file and the rename, another process takes the name."""
    delete, left = FileSystems.delete, [f"{there}/b.txt"]

    def delete_and_take(paths):
        delete(paths)
        while left:
            FileSystems.rename([left.pop()], paths)

    monkeypatch.setattr(FileSystems, "delete", delete_and_take)
    write(beam, f"{there}/new", b"new")
    beam.rename(f"{there}/new", f"{there}/a.txt")
    assert beam.open(f"{there}/a.txt", "rb").read() == b"new"


def test_streams(beam, there):
    with beam.open(f"{there}/a.txt", "rb") as stream:
        assert isinstance(stream, io.BufferedReader) and stream.peek(3)[:3] == b"one"
        stream.seek(4)
        assert [*stream] == [b"two\n"]
    write(beam, f"{there}/none.gz")
    assert beam.exists(f"{there}/none.gz") and beam.size(f"{there}/none.gz") == 0


def test_remove(beam, there):
    beam.remove(f"{there}/a.txt")
    assert not beam.exists(f"{there}/a.txt")


CALLS = {
    "exists": lambda beam, path: beam.exists(path),
    "is_directory": lambda beam, path: beam.is_directory(path),
    "size": lambda beam, path: beam.size(path),
    "modified": lambda beam, path: beam.modified(path),
    "list_directory": lambda beam, path: beam.list_directory(path),
    "make_directory": lambda beam, path: beam.make_directory(path),
    "remove": lambda beam, path: beam.remove(path),
    "rename": lambda beam, path: beam.rename(path, path),
    "read": lambda beam, path: beam.open(path, "rb"),
    "write": lambda beam, path: beam.open(path, "wb"),
    "glob": lambda beam, path: beam.glob(path),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=[*CALLS])
def test_a_file_system_that_does_not_answer_is_one_line(beam, monkeypatch, call):
    with pytest.raises(UserError, match=r"^nosuch://folder/x.*: cannot be reached: .*scheme|filesystem") as caught:
        call(beam, "nosuch://folder/x")
    assert "\n" not in str(caught.value)

    class Forbidden(Exception):
        """The libraries behind the file systems have exceptions of their own."""

    def refuse(*_, **__):
        raise Forbidden("403 GET\nno permission")

    monkeypatch.setattr(beam_toy_files.Toy, "__init__", refuse)
    with pytest.raises(UserError, match=r"^toy://x.*: cannot be reached: .*403 GET no permission$"):
        call(beam, "toy://x")


@pytest.mark.parametrize("name", ["size", "modified", "remove", "rename", "read"])
def test_a_file_that_is_missing_is_one_line(beam, there, name):
    with pytest.raises(UserError, match=r"nothing.*: cannot be reached") as caught:
        CALLS[name](beam, f"{there}/nothing")
    assert "\n" not in str(caught.value)


# The script


@pytest.fixture
def data(tmp_path):
    half = len(CORPUS) * 3
    text = f"{CORPUS}\n".encode() * 6
    for name, content in {
        "one.txt": text[:half], "two.gz": gzip.compress(text[half:], mtime=0),
        "vocab.txt": "\n".join(VOCABULARY).encode(),
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(content)
    return tmp_path


def options(place, **changes):
    return CreatePretrainingDataOptions(
        input_file=f"{place}/o*.txt,{place}/two.gz", vocab_file=f"{place}/vocab.txt",
        output_file=f"{place}/out/x", max_seq_length=24, max_predictions_per_seq=4, do_lower_case=True, num_shards=5,
        dupe_factor=2, **changes,
    )  # fmt: skip


def stored(root, scheme):
    """The files of a run by their names."""
    if scheme == "toy":
        return {path.name: path.read_bytes() for path in (root / "data" / "out").iterdir()}
    return {p.name.rpartition("|")[2]: p.read_bytes() for p in root.iterdir() if p.name.startswith("data|out|")}


@pytest.fixture
def put(data, beam, tmp_path_factory):
    """Copies the data to a file system; returns the local folder with all of it."""

    def copy(scheme):
        root = tmp_path_factory.mktemp(scheme)
        FileSystems.set_options(PipelineOptions([f"--toy_root={root}"]))
        beam.make_directory(f"{scheme}://data")
        for path in data.glob("*.*"):
            write(beam, f"{scheme}://data/{path.name}", path.read_bytes())
        FileSystems._pipeline_options = None
        return root

    return copy


@pytest.mark.parametrize("scheme", ["toy", "crate"])
def test_nothing_is_on_a_local_disk(data, put, scheme):
    root = put(scheme)
    sharded.run(options(data, num_workers=1))
    expected = {path.name: path.read_bytes() for path in (data / "out").iterdir()}
    given = options(f"{scheme}://data", runner="DirectRunner", beam_options=(f"--toy_root={root}",))
    sharded.run(given)
    found = stored(root, scheme)
    names = {*found}
    assert names == {*expected}
    assert {n: found[n] for n in names - {"manifest.json"}} == {n: expected[n] for n in names - {"manifest.json"}}
    assert b'"complete": true' in found["manifest.json"]

    files.remove(f"{scheme}://data/out/x-00001-of-00005")
    for left in (
        "x-00001-of-00005.host.7",
        "x.input-00001.host.7",
        "manifest.json.host.7",
        "x-00001-of-00005.ab.unique",
    ):
        with files.open_binary(f"{scheme}://data/out/.{left}.partial", "wb") as stream:
            stream.write(b"of a process that was killed")
    sharded.run(given)
    assert stored(root, scheme) == found


def test_the_temporary_folder_of_a_worker_goes_with_it(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with shard_results._workshop(Shard(0, "toy://data/x", 1, ())):
        (folder,) = tmp_path.iterdir()
        (folder / "x").write_bytes(b"half")
        outputs.remove_partial()
        assert not folder.exists()


SCRIPT = """
import sys, beam_toy_files
from bert_tf2 import commands
try:
    commands.run("create_pretraining_data")
finally:
    print(*{"tensorflow", "keras"} & {*sys.modules})
"""


def script(root, *more, **changes):
    given = {"input_file": "o*.txt,toy://data/two.gz", "vocab_file": "vocab.txt", "output_file": "out/x", **changes}
    flags = [f"--{name}=toy://data/{value}" for name, value in given.items()]
    more = more or ("--", f"--toy_root={root}")
    command = [sys.executable, "-c", SCRIPT, *flags, "--num_shards=5", "--runner=DirectRunner", *more]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def test_the_script_on_remote_files_loads_no_tensorflow(put):
    root = put("toy")
    done = script(root)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "", done.stdout + done.stderr
    assert len(stored(root, "toy")) == 6


def test_remote_files_that_cannot_be_reached_are_one_line(put):
    root = put("toy")
    for done, problem in (
        (script(root, input_file="nothing.txt"), "toy://data/nothing.txt: no such file"),
        (script(root, vocab_file="nothing.txt"), "toy://data/nothing.txt: no such file"),
        (script(root, "--verbosity=0"), "cannot be reached"),
    ):
        assert done.returncode == 1 and problem in done.stderr.splitlines()[-1], done.stderr
        assert "Traceback" not in done.stderr

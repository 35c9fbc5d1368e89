"""Weights by their names at a hub, and in .zip files: from servers at this machine."""

from __future__ import annotations

import fnmatch
import http.server
import inspect
import io
import logging
import os
import pathlib
import random
import subprocess
import sys
import threading
import zipfile

import pytest
from command_lines import environment
from folder_content import content
from refused import message_of

import bert_tf2
from bert_tf2 import commands
from bert_tf2.support import hub

DOORS = (
    hub.fetched,
    bert_tf2.load,
    bert_tf2.classifier,
    lambda path: commands.call("run_ner", init_checkpoint=path, output_dir="out", do_train=True),
    lambda path: commands.call("convert_checkpoint", list=path),
)


class Hub:
    """In place of the package huggingface_hub: `files` by "ORGANIZATION/NAME" and revision, in a cache."""

    def __init__(self, cache: pathlib.Path):
        self.cache, self.files, self.asked = cache, {}, []

    def snapshot_download(self, repo: str, revision: str | None, allow_patterns: list[str]) -> str:
        self.asked.append(repo)
        if (repo, revision) not in self.files:
            raise OSError("no network")
        folder = self.cache / repo
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.files[repo, revision]:
            if any(fnmatch.fnmatch(name, pattern) for pattern in allow_patterns):
                (folder / name).touch()
        return str(folder)


@pytest.fixture
def there(monkeypatch, tmp_path) -> Hub:
    """A hub, asked from an empty folder."""
    there = Hub(tmp_path / "cache")
    monkeypatch.setitem(sys.modules, "huggingface_hub", there)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return there


def test_names_of_the_hub(there):
    beside = ["config.json", "vocab.txt", "README.md", "tf_model.h5"]
    there.files = {
        ("org/new", None): [*beside, "model.safetensors", "pytorch_model.bin"],
        ("org/new", "v1"): [*beside, "model.safetensors"],
        ("org/old", None): [*beside, "pytorch_model.bin"],
        ("org/none", None): beside,
    }
    for name, weights in (
        ("org/new", "model.safetensors"),
        ("org/new@v1", "model.safetensors"),
        ("org/old", "py*.bin"),
    ):
        found = {*os.listdir(hub.fetched(name))}
        assert len(found) == 3 and {"config.json", "vocab.txt"} < found and fnmatch.filter(found, weights)
    assert "no weights" in message_of(hub.fetched, "org/none")
    for name in ("org/new@v2", "org/wrong"):
        assert message_of(hub.fetched, name).startswith(f"{name}: there is no such file or folder")
    package = pytest.importorskip("huggingface_hub")
    inspect.signature(package.snapshot_download).bind("org/new", revision="v1", allow_patterns=["*.json"])


def test_which_paths_are_names_for_every_door(there, monkeypatch):
    os.mkdir("out")
    for path in ("out/model.ckpt-7", "a/b/c", "/a/b", "model.ckpt", "~/b", "gs://b/c", "../b", ""):
        assert hub.fetched(path) == path
    os.mkdir("my_bert_2")
    for path, like in (  # with a typing error
        *(("ouput/model", "folder ouput"), ("my_berts_2/small", "my_bert_2"), ("Models/bert", "folder Models")),
        *(("berts/model.ckpt-100", ""), ("berts/bert_model.ckpt", ""), ("berts/films.keras", "")),
    ):
        told = message_of(hub.fetched, path)
        assert told.startswith(f"{path}: there is no such file or folder") and like in told and "@main" in told
    assert there.asked == []
    assert "no network" in message_of(hub.fetched, "ouput/model@main")
    for name in ("google-bert/bert-base-uncased", "prajjwal1/bert-tiny", "microsoft/mpnet-base"):
        there.asked.clear()
        assert "no network" in message_of(hub.fetched, name) and there.asked == [name]
    for call in DOORS:
        there.asked.clear()
        assert "no network" in message_of(call, "a/b") and there.asked == ["a/b"]
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in DOORS:
        told = message_of(call, "a/b")
        assert told.startswith("a/b: there is no such file or folder; ") and "pip install huggingface_hub" in told


# Archives


class Server(http.server.BaseHTTPRequestHandler):
    """Answers with `archive`; the first time with one half, and then waits until `ends` is set."""

    archive, is_half_sent, ends = b"", threading.Event(), threading.Event()

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.archive)))
        self.end_headers()
        if self.is_half_sent.is_set():
            self.wfile.write(self.archive)
        else:
            self.wfile.write(self.archive[: len(self.archive) // 2])
            self.is_half_sent.set()
            self.ends.wait(60)


@pytest.fixture
def address():
    """The address of an archive, whose first answer is cut."""
    Server.archive = zipped("tiny/")
    Server.is_half_sent.clear()
    Server.ends.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/bert.zip"
        Server.ends.set()
        server.shutdown()


@pytest.fixture
def cache(tmp_path, monkeypatch) -> pathlib.Path:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


WEIGHTS = random.Random(1).randbytes(20_000)


def zipped(*folders: str) -> bytes:
    """An archive with a model in each folder; as Google's archives."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in folders:
            archive.writestr(f"{folder}bert_model.ckpt.index", WEIGHTS)
            archive.writestr(f"{folder}vocab.txt", "[PAD]")
    return stream.getvalue()


def test_a_local_archive(cache, tmp_path, log_lines, capsys):
    """There is one copy of the files and none of the archive, the log names the copy, and the next call uses it."""
    path = tmp_path / "bert.zip"
    path.write_bytes(zipped(""))
    folder = hub.fetched(str(path))
    before = content(cache)
    assert hub.fetched(str(path)) == folder and content(cache) == before and "rm -r" in log_lines[0]
    path.write_bytes(zipped("of/ours/"))
    os.utime(path, (1, 1))
    assert hub.fetched(str(path)) == f"{folder}/of/ours" and len(os.listdir(cache / "bert_tf2")) == 1
    assert sum(path.stat().st_size for path in cache.rglob("*.*")) < 21_000 and len(log_lines) == 2
    path.write_bytes(zipped("tiny/", "small/", "__MACOSX/tiny/"))
    told = message_of(hub.fetched, str(path))
    assert f"{folder}/tiny" in told and f"{folder}/small" in told and "MACOSX" not in told
    assert capsys.readouterr().out == ""


def test_an_archive_whose_name_is_not_utf8(cache, tmp_path):
    path = os.fsdecode(bytes(tmp_path) + b"/b\xffrt.zip")
    with open(path, "wb") as stream:
        stream.write(zipped(""))
    logging.disable()  # pytest-xdist cannot send the name in what is logged
    try:
        assert hub.fetched(path) == hub.fetched(path) and len(os.listdir(cache / "bert_tf2")) == 1
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "encrypted", "other"])
def test_damaged_archives(cache, tmp_path, damage):
    path, whole, changed = tmp_path / "bert.zip", zipped("tiny/"), bytearray(zipped("tiny/"))
    if damage == "encrypted":
        changed[changed.rindex(b"PK\x01\x02") + 8] |= 1
    changed[5000] ^= damage == "flipped"
    damaged = {"cut": whole[:10_000], "empty": b"", "other": zipped()}
    path.write_bytes(damaged.get(damage, bytes(changed)))
    assert message_of(hub.fetched, str(path)).startswith(f"{path}: ")
    assert damage == "other" or not cache.exists() or os.listdir(cache / "bert_tf2") == []
    path.write_bytes(whole)
    assert hub.fetched(str(path)).endswith("/tiny")


def test_a_transfer_that_does_not_end(cache, address):
    """A second process amid the first one's transfer, and a kill: a part is never taken for the whole."""
    command = [sys.executable, "-c", f"from bert_tf2.support import hub\nhub.fetched({address!r})"]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL) as first:
        assert Server.is_half_sent.wait(120)
        assert (pathlib.Path(hub.fetched(address)) / "bert_model.ckpt.index").read_bytes() == WEIGHTS
        first.kill()
    left = [name for name in os.listdir(cache / "bert_tf2") if not name.endswith(".partial")]
    assert len(left) == 1 and not [*(cache / "bert_tf2" / left[0]).rglob("*.zip")]


def test_a_transfer_that_is_cut(cache, address):
    Server.ends.set()
    assert message_of(hub.fetched, address).startswith(f"{address}: cannot be fetched")
    assert hub.fetched(address).endswith("/tiny")

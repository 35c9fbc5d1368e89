"""Weights by their names at a hub, and in .zip files: from servers at this machine."""

from __future__ import annotations

import fnmatch
import http.server
import inspect
import io
import os
import pathlib
import signal
import subprocess
import sys
import threading
import zipfile

import pytest
from command_lines import environment
from folder_content import content
from google_folders import google_folder
from refused import message_of

import bert_tf2
from bert_tf2 import commands
from bert_tf2.support import hub

DOORS = (
    hub.fetched,
    lambda path: commands.call("run_ner", init_checkpoint=path, output_dir="out", do_train=True),
    lambda path: commands.call("convert_checkpoint", input=path, output="c", to="hf"),
    lambda path: commands.call("convert_checkpoint", list=path),
    lambda path: commands.call("explore", model=path),
    lambda path: bert_tf2.load(path),
    lambda path: bert_tf2.classifier(path),
)


# Names


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
        ("org/old", "pytorch_model.bin"),
    ):
        assert {*os.listdir(hub.fetched(name))} == {"config.json", "vocab.txt", weights}
    assert "no weights" in message_of(hub.fetched, "org/none")
    for name in ("org/new@v2", "org/wrong"):
        assert message_of(hub.fetched, name).startswith(f"{name}: there is no such file or folder")
    package = pytest.importorskip("huggingface_hub")
    inspect.signature(package.snapshot_download).bind("org/new", revision="v1", allow_patterns=["*.json"])


def test_paths_are_no_names(monkeypatch, there):
    os.mkdir("out")
    for path in ("out/model.ckpt-7", "a/b/c", "/a/b", "model.ckpt", "~/b", "gs://b/c", "../b", ""):
        assert hub.fetched(path) == path
    assert there.asked == []
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in DOORS:
        assert message_of(call, "a/b").startswith("a/b: there is no such file or folder; ")
        assert "pip install huggingface_hub" in message_of(call, "a/b")


@pytest.mark.parametrize(
    ("path", "is_there"),
    [
        *(("ouput/model", "output"), ("ouput/model", ""), ("my_berts_2/small", "my_bert_2"), ("Models/bert", "")),
        *(("berts/model.ckpt-100", ""), ("berts/bert_model.ckpt", ""), ("berts/films.keras", "")),
    ],
)
def test_a_path_with_a_typing_error_is_not_asked_for_at_the_hub(there, path, is_there):
    os.makedirs(is_there or ".", exist_ok=True)
    for call in DOORS:
        told = message_of(call, path)
        assert told.startswith(f"{path}: there is no such file or folder") and is_there in told and "@main" in told
    assert there.asked == []
    message_of(hub.fetched, f"{path}@main")
    assert there.asked == [path]


@pytest.mark.parametrize("name", ["google-bert/bert-base-uncased", "prajjwal1/bert-tiny", "microsoft/mpnet-base"])
def test_names_of_the_hub_are_asked_for_once_by_every_door(there, name):
    os.mkdir("output")
    for call in DOORS:
        told = message_of(call, name)
        assert told.startswith(f"{name}: ") and "no network" in told
    assert there.asked == [name] * len(DOORS)


# Archives


class Server(http.server.BaseHTTPRequestHandler):
    """Answers with `archive`; `cut` times with one half, and then waits until `ends` is set."""

    archive, cut = b"", 0
    is_half_sent, ends = threading.Event(), threading.Event()

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.archive)))
        self.end_headers()
        Server.cut -= 1
        if Server.cut < 0:
            self.wfile.write(self.archive)
        else:
            self.wfile.write(self.archive[: len(self.archive) // 2])
            self.is_half_sent.set()
            self.ends.wait(60)


@pytest.fixture
def address(model):
    """The address of an archive of which the first answer is cut."""
    Server.archive, Server.cut = zipped(model, "tiny/"), 1
    Server.is_half_sent.clear()
    Server.ends.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/bert.zip"
    Server.ends.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def cache(tmp_path, monkeypatch) -> pathlib.Path:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> pathlib.Path:
    return pathlib.Path(google_folder(tmp_path_factory.mktemp("model") / "uncased_L-1_H-16_A-2"))


def zipped(model: pathlib.Path, *folders: str) -> bytes:
    """An archive with copies of a model in folders; as Google's."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in folders:
            for path in model.iterdir():
                archive.write(path, f"{folder}{path.name}")
    return stream.getvalue()


def size(folder: pathlib.Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("folder", ["", "models/of/ours/"])
def test_a_local_archive(model, cache, tmp_path, folder, log_lines, capsys):
    """There is one copy of the files and none of the archive, the log names the copy, and the next call uses it."""
    path = tmp_path / "bert.zip"
    path.write_bytes(zipped(model, folder))
    vectors = bert_tf2.load(path).embed("a good film")
    assert (vectors == bert_tf2.load(model).embed("a good film")).all()
    before = content(cache)
    bert_tf2.load(path)
    assert content(cache) == before and len([line for line in log_lines if f"{cache}" in line and "rm -r" in line]) == 1
    assert size(cache) < 1.01 * size(model) + 1000 and capsys.readouterr().out == ""
    path.write_bytes(zipped(model, "changed/"))
    os.utime(path, (1, 1))
    assert "changed" in bert_tf2.load(path).path
    assert len(os.listdir(cache / "bert_tf2")) == 1 and size(cache) < 1.01 * size(model) + 1000


def test_several_models_in_an_archive_are_named(model, cache, tmp_path):
    path = tmp_path / "berts.zip"
    path.write_bytes(zipped(model, "tiny/", "small/", "__MACOSX/tiny/"))
    told = message_of(bert_tf2.load, path)
    small, tiny = (found for found in told.replace(",", " ").split() if found.endswith(("/tiny", "/small")))
    assert bert_tf2.load(tiny).config == bert_tf2.load(small).config and "MACOSX" not in told


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "encrypted", "other"])
def test_damaged_archives(model, cache, tmp_path, damage):
    path, whole, other = tmp_path / "bert.zip", zipped(model, "tiny/"), io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("a.txt", b"")
    encrypted = bytearray(whole)
    encrypted[encrypted.rindex(b"PK\x01\x02") + 8] |= 1
    flipped = whole[:5000] + bytes([whole[5000] ^ 0xFF]) + whole[5001:]
    damaged = {"cut": whole[: len(whole) // 2], "flipped": flipped, "empty": b"", "text": b"<html>"}
    path.write_bytes({**damaged, "encrypted": bytes(encrypted), "other": other.getvalue()}[damage])
    assert message_of(bert_tf2.load, path).startswith(f"{path}: ")
    if damage != "other":
        assert not cache.exists() or os.listdir(cache / "bert_tf2") == []
    path.write_bytes(whole)
    assert bert_tf2.load(path).config.num_hidden_layers == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, None])
def test_a_transfer_that_does_not_end(cache, address, number):
    """A kill, Ctrl-C, or a second process amid the first one's transfer: a part is never taken for the whole."""
    code = f"from bert_tf2.support import hub\nprint(hub.fetched({address!r}))"  # without TensorFlow, for speed
    command = [sys.executable, "-c", code]
    first = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert Server.is_half_sent.wait(120)
        if number:
            first.send_signal(number)
            first.wait(60)
        again = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=True)
        assert bert_tf2.load(again.stdout.strip()).config.num_hidden_layers == 1
    finally:
        first.kill()
        first.wait(60)
    left = [name for name in os.listdir(cache / "bert_tf2") if not name.endswith(".partial")]
    assert len(left) == 1 and not [*(cache / "bert_tf2" / left[0]).rglob("*.zip")]


def test_a_transfer_that_is_cut(cache, address):
    Server.ends.set()
    assert message_of(bert_tf2.load, address).startswith(f"{address}: cannot be fetched")
    assert bert_tf2.load(address).config.num_hidden_layers == 1

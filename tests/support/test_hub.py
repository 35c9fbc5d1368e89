"""Weights by their names at a hub, and in .zip files: from servers at this machine."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
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

MODEL = {"config.json": b"{}", "vocab.txt": b"[PAD]\n", "README.md": b"?", "tf_model.h5": b"large"}
NEW = {**MODEL, "model.safetensors": b"weights" * 999, "pytorch_model.bin": b"the same again"}
MODELS = {"org/new": NEW, "org/old": {**MODEL, "pytorch_model.bin": b"weights"}, "org/none": MODEL, "org/cut": NEW}
SHA = "a" * 40
DOORS = (
    hub.fetched,
    lambda path: commands.call("run_ner", init_checkpoint=path, output_dir="out", do_train=True),
    lambda path: commands.call("convert_checkpoint", input=path, output="c", to="hf"),
    lambda path: commands.call("convert_checkpoint", list=path),
    lambda path: commands.call("explore", model=path),
    lambda path: bert_tf2.load(path),
    lambda path: bert_tf2.classifier(path),
)


class Server(http.server.BaseHTTPRequestHandler):
    """The hub's protocol for MODELS, and /bert.zip, of which `cut` answers have one half until `ends` is set."""

    protocol_version = "HTTP/1.1"
    fetched: list[str] = []  # noqa: RUF012
    archive, cut = b"", 0
    is_half_sent, ends = threading.Event(), threading.Event()

    def log_message(self, *_):
        pass

    def _answer(self, status: int, content: bytes, missing: int = 0, **headers: str):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[: len(content) - missing])
            self.close_connection = bool(missing)

    def _zip(self):
        if not Server.cut:
            return self._answer(200, self.archive)
        Server.cut -= 1
        self._answer(200, self.archive, len(self.archive) // 2)
        self.is_half_sent.set()
        self.ends.wait(60)

    def do_GET(self):
        path = self.path.partition("?")[0].strip("/")
        if path == "bert.zip":
            return self._zip()
        parts = path.removeprefix("api/models/").split("/")
        name, files = "/".join(parts[:2]), MODELS.get("/".join(parts[:2]))
        json_type = {"Content_Type": "application/json"}
        if files is None:
            return self._answer(404, b"", X_Error_Code="RepoNotFound")
        if parts[2:3] in (["revision"], ["tree"]) and parts[3] not in ("main", "v1", SHA):
            return self._answer(404, b"", X_Error_Code="RevisionNotFound")
        if parts[2:3] == ["tree"]:
            rows = [
                {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for file, content in files.items()
            ]
            return self._answer(200, json.dumps(rows).encode(), **json_type)
        if parts[2:3] == ["resolve"]:
            content = files[parts[4]]
            if self.command == "GET":
                self.fetched.append(f"{name}/{parts[4]}")
            cut = 100 if name == "org/cut" and parts[4] == "model.safetensors" else 0
            return self._answer(200, content, cut, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=SHA)
        return self._answer(200, json.dumps({"id": name, "sha": SHA, "siblings": []}).encode(), **json_type)

    do_HEAD = do_GET


@pytest.fixture(scope="module")
def address():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    Server.ends.set()
    server.shutdown()
    server.server_close()


# Names


CODE = """
import sys
from bert_tf2.support import hub
from bert_tf2.support.errors import UserError
for name in sys.argv[1:]:
    try:
        print(hub.fetched(name))
    except UserError as error:
        print(error)
"""


def test_names_of_the_hub(address, tmp_path):
    pytest.importorskip("huggingface_hub")

    def ask(*names: str, **variables: str) -> list[str]:
        """What `hub.fetched` returns, or says, in a process with this hub."""
        own = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "0"}
        how = {"env": environment(**{**own, **variables}), "cwd": tmp_path, "timeout": 300}
        command = [sys.executable, "-c", CODE, *names]
        return subprocess.run(command, capture_output=True, text=True, check=True, **how).stdout.splitlines()

    names = ("org/new", "org/old", "org/new@v1", "org/none", "org/new@v2", "org/wrong", "org/cut")
    new, old, again, none, *failed = ask(*names)
    assert {*os.listdir(new)} == {"config.json", "vocab.txt", "model.safetensors"} and again == new
    assert {*os.listdir(old)} == {"config.json", "vocab.txt", "pytorch_model.bin"}
    assert Server.fetched.count("org/new/model.safetensors") == 1  # the second time, it is in the cache
    assert none.startswith("org/none: ") and "no weights" in none
    for told, name in zip(failed, names[4:], strict=True):
        assert told.startswith(f"{name}: there is no such file or folder") and "cannot be fetched" in told
    offline, unknown = ask("org/new", "org/other", HF_HUB_OFFLINE="1")
    assert offline == new and "cannot be fetched" in unknown


class NoHub:
    """In place of the package, so that nothing leaves this machine."""

    asked: list[str] = []  # noqa: RUF012

    @classmethod
    def snapshot_download(cls, name: str, **_):
        cls.asked.append(name)
        raise OSError("no network")


@pytest.fixture
def asked(monkeypatch, tmp_path) -> list[str]:
    """The names that were asked for at the hub, from an empty folder."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", NoHub)
    monkeypatch.chdir(tmp_path)
    del NoHub.asked[:]
    return NoHub.asked


def test_paths_are_no_names(tmp_path, monkeypatch, asked):
    (tmp_path / "out").mkdir()
    for path in ("out/model.ckpt-7", "a/b/c", "/a/b", "model.ckpt", "~/b", "gs://b/c", "../b", ""):
        assert hub.fetched(path) == path
    assert asked == []
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
def test_a_path_with_a_typing_error_is_not_asked_for_at_the_hub(tmp_path, asked, path, is_there):
    (tmp_path / is_there).mkdir(exist_ok=True)
    for call in DOORS:
        told = message_of(call, path)
        assert told.startswith(f"{path}: there is no such file or folder") and is_there in told and "@main" in told
    assert asked == []
    message_of(hub.fetched, f"{path}@main")
    assert asked == [path]


@pytest.mark.parametrize("name", ["google-bert/bert-base-uncased", "prajjwal1/bert-tiny", "microsoft/mpnet-base"])
def test_names_of_the_hub_are_asked_for_once_by_every_door(tmp_path, asked, name):
    (tmp_path / "output").mkdir()
    for call in DOORS:
        told = message_of(call, name)
        assert told.startswith(f"{name}: ") and "no network" in told
    assert asked == [name] * len(DOORS)


# Archives


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
def test_a_transfer_that_does_not_end(cache, address, model, number):
    """A kill, Ctrl-C, or a second process amid the first one's transfer: a part is never taken for the whole."""
    Server.archive, Server.cut = zipped(model, "tiny/"), 1
    Server.is_half_sent.clear()
    Server.ends.clear()
    command = [sys.executable, "-c", CODE, f"{address}/bert.zip"]
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


def test_a_transfer_that_is_cut(cache, address, model):
    Server.archive, Server.cut = zipped(model, "tiny/"), 1
    Server.ends.set()
    assert message_of(bert_tf2.load, f"{address}/bert.zip").startswith(f"{address}/bert.zip: cannot be fetched")
    assert bert_tf2.load(f"{address}/bert.zip").config.num_hidden_layers == 1
    assert message_of(bert_tf2.load, f"{address}/").startswith(f"{address}/")

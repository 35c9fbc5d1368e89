"""Weights by their names, from a server at this machine that speaks the hub's protocol."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import zipfile

import keras
import pytest
from command_lines import environment
from refused import message_of

import bert_tf2
from bert_tf2.finetuning.options import NerOptions
from bert_tf2.support import hub
from bert_tf2.weights.options import ConversionOptions

MODEL = {"config.json": b"{}", "vocab.txt": b"[PAD]\n", "README.md": b"?", "tf_model.h5": b"large"}
NEW = {**MODEL, "model.safetensors": b"weights" * 999, "pytorch_model.bin": b"the same again"}
MODELS = {"org/new": NEW, "org/old": {**MODEL, "pytorch_model.bin": b"weights"}, "org/none": MODEL, "org/cut": NEW}
SHA = "a" * 40


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fetched: list[str] = []  # noqa: RUF012

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

    def do_GET(self):
        path = self.path.partition("?")[0].strip("/")
        parts = path.removeprefix("api/models/").split("/")
        name, files = "/".join(parts[:2]), MODELS.get("/".join(parts[:2]))
        if files is None:
            return self._answer(404, b"", X_Error_Code="RepoNotFound")
        if parts[2:3] in (["revision"], ["tree"]) and parts[3] not in ("main", "v1", SHA):
            return self._answer(404, b"", X_Error_Code="RevisionNotFound")
        if parts[2:3] == ["tree"]:
            rows = [{"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for file, content in files.items()]  # fmt: skip
            return self._answer(200, json.dumps(rows).encode(), Content_Type="application/json")
        if parts[2:3] == ["resolve"]:
            content = files[parts[4]]
            if self.command == "GET":
                self.fetched.append(f"{name}/{parts[4]}")
            cut = 100 if name == "org/cut" and parts[4] == "model.safetensors" else 0
            return self._answer(200, content, cut, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=SHA)
        return self._answer(200, json.dumps({"id": name, "sha": SHA, "siblings": []}).encode(),
                            Content_Type="application/json")  # fmt: skip

    do_HEAD = do_GET


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


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """What `hub.fetched` returns, or says, in a process with this hub."""
    pytest.importorskip("huggingface_hub")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    cache = tmp_path_factory.mktemp("cache")
    address = f"http://127.0.0.1:{server.server_port}"

    def ask(*names: str, **variables: str) -> list[str]:
        own = {"HF_ENDPOINT": address, "HF_HOME": str(cache), "HF_HUB_OFFLINE": "0"}
        done = subprocess.run([sys.executable, "-c", CODE, *names], env=environment(**{**own, **variables}),
                              cwd=cache, capture_output=True, text=True, timeout=300, check=True)  # fmt: skip
        return done.stdout.splitlines()

    yield ask
    server.shutdown()
    server.server_close()


def test_names_of_the_hub(ask):
    new, old, again, none, revision, wrong = ask(
        "org/new", "org/old", "org/new@v1", "org/none", "org/new@v2", "org/wrong"
    )
    assert {*os.listdir(new)} == {"config.json", "vocab.txt", "model.safetensors"} and again == new
    assert {*os.listdir(old)} == {"config.json", "vocab.txt", "pytorch_model.bin"}
    assert Hub.fetched.count("org/new/model.safetensors") == 1  # the second time, it is in the cache
    assert "has no weights at Hugging Face's hub that can be read" in none
    for told, name in (revision, "org/new@v2"), (wrong, "org/wrong"):
        assert told.startswith(f"{name}: there is no such file or folder, and it cannot be fetched from Hugging Face's")
    offline, unknown = ask("org/new", "org/other", HF_HUB_OFFLINE="1")
    assert offline == new and "cannot be fetched from Hugging Face's hub" in unknown


def test_a_transfer_that_is_cut(ask):
    (told,) = ask("org/cut")
    assert told.startswith("org/cut: there is no such file or folder, and it cannot be fetched from Hugging Face's hub")


def test_paths_are_no_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    for path in ("out/model.ckpt-7", "a/b/c", "/a/b", "model.ckpt", "~/b", "gs://b/c", "../b", ""):
        assert hub.fetched(path) == path
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    told = "a/b: there is no such file or folder; to fetch it by its name, `pip install huggingface_hub`"
    for call in (
        lambda: hub.fetched("a/b"),
        lambda: NerOptions(init_checkpoint="a/b", output_dir="out", do_train=True),
        lambda: ConversionOptions(input="a/b", output="c", to="hf"),
        lambda: bert_tf2.load("a/b"),
        lambda: bert_tf2.classifier("a/b"),
    ):
        assert message_of(call) == told


@pytest.mark.parametrize("folder", ["", "uncased_L-2_H-16_A-2/"])
def test_archives(tmp_path, monkeypatch, capsys, folder):
    """Google's archives, as they come: with a folder in them, or without."""
    monkeypatch.setattr(keras.utils.get_file.__globals__["config"], "keras_home", lambda: str(tmp_path / "cache"))
    path = str(tmp_path / "weights.zip")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{folder}bert_model.ckpt.index", b"")
    unpacked = hub.fetched(path)
    assert os.listdir(unpacked) == ["bert_model.ckpt.index"] and hub.fetched(path) == unpacked
    assert capsys.readouterr().out == ""  # which may be the answers of a script
    assert message_of(hub.fetched, str(tmp_path / "none.zip")) == f"{tmp_path}/none.zip: no such file"
    (tmp_path / "torn.zip").write_bytes(b"PK")
    assert (
        message_of(hub.fetched, str(tmp_path / "torn.zip")) == f"{tmp_path}/torn.zip: no checkpoint is in this archive"
    )
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a.txt", b"")
    assert message_of(hub.fetched, str(tmp_path / "other.zip")).endswith("no checkpoint is in this archive")

"""Weights by their names, from a server at this machine that speaks the hub's protocol."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading

import pytest
from command_lines import environment
from refused import message_of

import bert_tf2
from bert_tf2 import commands
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
    for call in DOORS:
        assert message_of(call, "a/b") == told


DOORS = (
    hub.fetched,
    lambda path: commands.call("run_ner", init_checkpoint=path, output_dir="out", do_train=True),
    lambda path: commands.call("convert_checkpoint", input=path, output="c", to="hf"),
    lambda path: commands.call("convert_checkpoint", list=path),
    lambda path: commands.call("explore", model=path),
    bert_tf2.load,
    bert_tf2.classifier,
)


class _NoHub:
    """In place of the package, so that nothing leaves this machine."""

    asked: list[str] = []  # noqa: RUF012

    @classmethod
    def snapshot_download(cls, name: str, **_):
        cls.asked.append(name)
        raise OSError("no network")


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """The names that were asked for at the hub."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", _NoHub)
    del _NoHub.asked[:]
    return _NoHub.asked


@pytest.mark.parametrize(
    ("path", "is_there"),
    [("ouput/model", "output"), ("ouput/model", ""), ("my_berts_2/small", "my_bert_2"), ("Models/bert", ""),
     ("berts/model.ckpt-100", ""), ("berts/bert_model.ckpt", ""), ("berts/films.keras", "")],
)  # fmt: skip
def test_a_path_with_a_typing_error_is_not_asked_for_at_the_hub(tmp_path, monkeypatch, asked, path, is_there):
    monkeypatch.chdir(tmp_path)
    (tmp_path / is_there).mkdir(exist_ok=True)
    for call in DOORS:
        told = message_of(call, path)
        assert told.startswith(f"{path}: there is no such file or folder") and is_there in told and "@main" in told
    assert asked == []
    message_of(hub.fetched, f"{path}@main")
    assert asked == [path]


@pytest.mark.parametrize("name", ["google-bert/bert-base-uncased", "prajjwal1/bert-tiny", "microsoft/mpnet-base"])
def test_names_of_the_hub_are_asked_for_once_and_not_by_the_settings(tmp_path, monkeypatch, asked, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "output").mkdir()
    for call in DOORS:
        assert "cannot be fetched from Hugging Face's hub (no network)" in message_of(call, name)
    assert asked == [name] * len(DOORS)
    ConversionOptions(input=name, output="c", to="hf")
    NerOptions(
        init_checkpoint=name, output_dir="out", do_train=True, train_file="t", vocab_file="v", bert_config_file="c"
    )
    assert asked == [name] * len(DOORS)

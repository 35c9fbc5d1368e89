"""Weights in .zip files: local ones, and those at the address of a server at this machine."""

import http.server
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


@pytest.fixture(autouse=True)
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


@pytest.mark.parametrize("folder", ["", "uncased_L-2_H-16_A-2/", "models/of/ours/"])
def test_a_local_archive(model, cache, tmp_path, folder, log_lines, capsys):
    """There is one copy of the files and none of the archive, the log names the copy, and the next call uses it."""
    path = tmp_path / "bert.zip"
    path.write_bytes(zipped(model, folder))
    vectors = bert_tf2.load(path).embed("a good film")
    assert (vectors == bert_tf2.load(model).embed("a good film")).all()
    (line,) = [line for line in log_lines if line.startswith(f"{path}: ")]
    assert str(cache) in line and "rm -r" in line
    before = content(cache)
    bert_tf2.load(path)
    assert content(cache) == before and len([line for line in log_lines if str(cache) in line and "rm" in line]) == 1
    assert size(cache) < 1.01 * size(model) + 1000
    assert capsys.readouterr().out == ""


def test_a_changed_archive_takes_the_place_of_its_copy(model, cache, tmp_path):
    path = tmp_path / "bert.zip"
    for number in range(3):
        path.write_bytes(zipped(model, f"model_{number}/"))
        os.utime(path, (number, number))
        assert f"model_{number}" in bert_tf2.load(path).path
    assert len(os.listdir(cache / "bert_tf2")) == 1 and size(cache) < 1.01 * size(model) + 1000


def test_several_models_in_an_archive_are_named(model, tmp_path):
    path = tmp_path / "berts.zip"
    path.write_bytes(zipped(model, "tiny/", "small/", "__MACOSX/tiny/"))
    told = message_of(bert_tf2.load, path)
    assert told.startswith(f"{path}: ")
    small, tiny = (found for found in told.replace(",", " ").split() if found.endswith(("/tiny", "/small")))
    assert bert_tf2.load(tiny).config == bert_tf2.load(small).config and "MACOSX" not in told


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "encrypted", "other"])
def test_damaged_archives(model, cache, tmp_path, damage):
    path, whole = tmp_path / "bert.zip", zipped(model, "tiny/")
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("a.txt", b"")
    flags = bytearray(whole)
    flags[flags.rindex(b"PK\x01\x02") + 8] |= 1
    path.write_bytes({
        "cut": whole[: len(whole) // 2],
        "flipped": whole[:5000] + bytes([whole[5000] ^ 0xFF]) + whole[5001:],
        "empty": b"",
        "text": b"<html>",
        "encrypted": bytes(flags),
        "other": other.getvalue(),
    }[damage])  # fmt: skip
    assert message_of(bert_tf2.load, path).startswith(f"{path}: ")
    if damage != "other":
        assert not cache.exists() or os.listdir(cache / "bert_tf2") == []
    path.write_bytes(whole)
    assert bert_tf2.load(path).config.num_hidden_layers == 1


class _Server(http.server.BaseHTTPRequestHandler):
    """Answers the first request with half of the content, and then waits or ends the connection."""

    answers: list[bytes] = []  # noqa: RUF012
    is_half_sent, ends = threading.Event(), threading.Event()
    whole = b""

    def log_message(self, *_):
        pass

    def do_GET(self):
        answer = self.answers.pop(0) if self.answers else self.whole
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.whole)))
        self.end_headers()
        self.wfile.write(answer)
        if len(answer) < len(self.whole):
            self.is_half_sent.set()
            self.ends.wait(60)


@pytest.fixture
def address(model):
    _Server.whole = zipped(model, "tiny/")
    _Server.answers[:] = [_Server.whole[: len(_Server.whole) // 2]]
    _Server.is_half_sent.clear()
    _Server.ends.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/bert.zip"
    _Server.ends.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, None])
def test_a_transfer_that_does_not_end(cache, address, number):
    """A kill, Ctrl-C, or a second process amid the first one's transfer: a part is never taken for the whole."""
    code = f"from bert_tf2.support import hub\nprint(hub.fetched({address!r}))"  # without TensorFlow, for speed
    command = [sys.executable, "-c", code]
    first = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert _Server.is_half_sent.wait(120)
        if number:
            first.send_signal(number)
            first.wait(60)
        again = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
        assert again.returncode == 0, again.stderr
        assert bert_tf2.load(again.stdout.strip()).config.num_hidden_layers == 1
    finally:
        first.kill()
        first.wait(60)
    assert bert_tf2.load(address).config.num_hidden_layers == 1
    left = [name for name in os.listdir(cache / "bert_tf2") if not name.endswith(".partial")]
    assert len(left) == 1 and not [*(cache / "bert_tf2" / left[0]).rglob("*.zip")]


def test_a_transfer_that_is_cut(cache, address):
    _Server.ends.set()
    assert message_of(bert_tf2.load, address).startswith(f"{address}: cannot be fetched")
    assert bert_tf2.load(address).config.num_hidden_layers == 1
    assert message_of(bert_tf2.load, address.replace("bert.zip", "")).startswith(f"{address[:-8]}")

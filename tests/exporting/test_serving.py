"""The files in serving/: the client, asking a small server in this process, and the settings of TensorFlow Serving."""

from __future__ import annotations

import http.server
import importlib.util
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error

import pytest

SERVING = pathlib.Path(__file__).resolve().parents[2] / "serving"
# Not through sys.path, because PyTorch would take the folder serving/triton for the package triton.
_SPEC = importlib.util.spec_from_file_location("client", SERVING / "client.py")
client = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(client)


@pytest.fixture
def rest():
    """A server that answers as `rest.answers` says, status and body, and keeps the last path and request."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.server.asked = self.path, json.loads(content or "null")
            status, body = self.server.answers.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        do_GET = do_POST

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        server.address = f"127.0.0.1:{server.server_address[1]}"
        yield server
        server.shutdown()


def test_the_client(rest):
    outputs = {"label": ["yes", "no"], "probabilities": [[0.25, 0.75], [0.5, 0.5]]}
    failed = {"error": "assertion failed: [row 0 of input_ids: no [MASK] in it]\n\t [[{{node cond/Assert}}]]"}
    rest.answers = [(200, {"outputs": outputs}), (400, failed)]
    ids = [[2, 5, 6, 3], [2, 4, 3, 0]]
    assert client.predict({"input_ids": ids}, "serving_ids", rest.address) == outputs
    path, request = rest.asked
    assert path == "/v1/models/bert:predict"
    assert request == {"signature_name": "serving_ids", "inputs": {"input_ids": ids}}
    with pytest.raises(urllib.error.HTTPError, match=r"row 0 of input_ids: no \[MASK\] in it$"):
        client.predict({"input_ids": [[99]]}, "serving_ids", rest.address)


@pytest.mark.parametrize(
    ("words", "status", "parts"),
    [
        (["text_a=a film"], 1, "refused localhost:8501 serving/compose.yaml"),  # there is no server
        (["--help"], 0, "text_a= localhost:8501"),
        (["-h"], 0, "text_a="),
        ([], 2, "text_a="),
        (["a film"], 1, "text_a= film"),
        (["--text_a=a film"], 1, "text_a= --text_a=a"),
        (["--server"], 1, "text_a= --server"),
    ],
)
def test_the_client_as_a_command(words, status, parts):
    command = [sys.executable, client.__file__, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status and all(part in done.stdout + done.stderr for part in parts.split())
    assert status != 1 or (re.fullmatch("client.py: .*\n", done.stderr) and "urlopen" not in done.stderr)


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\n\r\n<html>", b"HTTP/1.1 200 OK\r\n\r\n[1]"]
)
def test_another_program_at_the_address_is_named(answer):
    """Also one that answers nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def reply() -> None:
            connection = listener.accept()[0]
            connection.recv(1 << 16)
            with connection:
                connection.sendall(answer)

        threading.Thread(target=reply, daemon=True).start()
        with pytest.raises(ConnectionError, match=rf"http://{address}"):
            client.predict({"text_a": ["a film"]}, "serving_text", address, timeout=5)


def compose_service() -> dict:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    (service,) = yaml.safe_load((SERVING / "compose.yaml").read_text())["services"].values()
    return service


def test_compose_file_mounts_what_the_server_is_told_to_read():
    service = compose_service()
    mounted = dict(volume.rsplit(":", 2)[:2][::-1] for volume in service["volumes"])
    flags = dict(flag.removeprefix("--").partition("=")[::2] for flag in service["command"])
    for name in ("models", "batching", "monitoring"):
        source = mounted[f"/config/{name}.config"]
        assert (SERVING / source).is_file() and f"/config/{name}.config" in flags.values()
    assert "MODEL_DIR" in mounted["/models/bert"] and "enable_batching" in flags
    assert (flags["port"], flags["rest_api_port"]) == ("8500", "8501")
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
def test_the_health_check_waits_for_the_model(rest):
    kind, *command = compose_service()["healthcheck"]["test"]
    assert kind == "CMD" and "/127.0.0.1/8501 " in command[-1]
    command[-1] = command[-1].replace("/127.0.0.1/8501 ", "/{}/{} ".format(*rest.address.split(":")))
    rest.answers = [(200, {"model_version_status": [{"state": state}]}) for state in ("LOADING", "AVAILABLE")]
    assert [subprocess.run(command, check=False, timeout=60).returncode == 0 for _ in range(2)] == [False, True]
    assert rest.asked == ("/v1/models/bert", None)

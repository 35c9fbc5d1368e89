"""The files in serving/: the client, asking a small server in this process, and the settings of TensorFlow Serving."""

from __future__ import annotations

import http.server
import importlib.util
import json
import pathlib
import shutil
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
    """A server that answers as `rest.answers` says, status and bytes, and keeps the last path and request."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.server.asked = self.path, json.loads(content or "null")
            status, body = self.server.answers.pop(0)
            if status:  # otherwise it is no server of HTTP
                self.send_response(status)
                self.end_headers()
            self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

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
    ids = {"input_ids": [[2, 5, 6, 3], [2, 4, 3, 0]]}
    assert client.predict(ids, "serving_ids", rest.address) == outputs
    assert rest.asked == ("/v1/models/bert:predict", {"signature_name": "serving_ids", "inputs": ids})
    with pytest.raises(urllib.error.HTTPError, match=r"row 0 of input_ids: no \[MASK\] in it$"):
        client.predict({"input_ids": [[99]]}, "serving_ids", rest.address)
    rest.answers = [(0, b""), (0, b"SSH-2.0-x\r\n"), (200, b"<html>"), (200, b"[1]")]  # those of other programs
    while rest.answers:
        with pytest.raises(ConnectionError, match=rf"http://{rest.address}"):
            client.predict({"text_a": ["a film"]}, "serving_text", rest.address, timeout=5)


@pytest.mark.parametrize(
    ("words", "status", "parts"),
    [
        (["text_a=a film"], 1, "refused localhost:8501 serving/compose.yaml"),  # there is no server
        (["--help"], 0, "text_a= localhost:8501"),
        ([], 2, "text_a="),
        (["a film"], 1, "text_a= film"),
        (["--text_a=a film"], 1, "text_a= --text_a=a"),
    ],
)
def test_the_client_as_a_command(words, status, parts):
    command = [sys.executable, client.__file__, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status and all(part in done.stdout + done.stderr for part in parts.split())
    assert status != 1 or (done.stderr.startswith("client.py: ") and done.stderr.count("\n") == 1)


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
def test_the_compose_file(rest):
    """It mounts the files that the server's flags name; its check of health waits for the model."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    (service,) = yaml.safe_load((SERVING / "compose.yaml").read_text())["services"].values()
    mounted = dict(volume.rsplit(":", 2)[:2][::-1] for volume in service["volumes"])
    flags = dict(flag.removeprefix("--").partition("=")[::2] for flag in service["command"])
    for name in ("models", "batching", "monitoring"):
        source = mounted[f"/config/{name}.config"]
        assert (SERVING / source).is_file() and f"/config/{name}.config" in flags.values()
    assert "MODEL_DIR" in mounted["/models/bert"] and "enable_batching" in flags
    assert (flags["port"], flags["rest_api_port"]) == ("8500", "8501")
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])

    kind, *command = service["healthcheck"]["test"]
    assert kind == "CMD" and "/127.0.0.1/8501 " in command[-1]
    command[-1] = command[-1].replace("/127.0.0.1/8501 ", "/{}/{} ".format(*rest.address.split(":")))
    rest.answers = [(200, {"model_version_status": [{"state": state}]}) for state in ("LOADING", "AVAILABLE")]
    assert [subprocess.run(command, check=False, timeout=60).returncode == 0 for _ in range(2)] == [False, True]
    assert rest.asked == ("/v1/models/bert", None)

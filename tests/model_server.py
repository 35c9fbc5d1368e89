"""A small server on a free port that serves a SavedModel like TensorFlow Serving's REST interface, in columns.

with RestServer(model) as server:
    server.plan = [5.0]  # seconds of a pause before the next answer
    client.predict({"text_a": ["a film"]}, "serving_text", server.address)
"""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf


class Model:
    """A SavedModel, which is called by the name of a signature with tensors or nested lists."""

    def __init__(self, path: str):
        self._signatures = tf.saved_model.load(path).signatures

    def predict(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        function = self._signatures[signature]
        specs = function.structured_input_signature[1]
        return function(**{name: tf.constant(value, specs[name].dtype) for name, value in inputs.items()})


class RestServer:
    """`plan` lists the reactions to the next requests: other bytes as an answer, or a pause before it."""

    def __init__(self, model: Model):
        self.model = model
        self.plan: list[Any] = []

    def __enter__(self) -> RestServer:
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exception) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: RestServer

    def log_message(self, *arguments) -> None:
        pass

    def do_GET(self) -> None:
        step = self.owner.plan.pop(0) if self.owner.plan else None
        state = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK"}}
        self._write(200, step or json.dumps({"model_version_status": [state]}).encode())

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(self.owner.plan.pop(0) if self.owner.plan else 0)
        try:
            outputs = self.owner.model.predict(request["signature_name"], request["inputs"])
        except tf.errors.InvalidArgumentError as error:
            return self._write(400, json.dumps({"error": error.message}).encode())
        values = {name: _json_value(value.numpy().tolist()) for name, value in outputs.items()}
        # A single output has no name.
        outputs = values if len(values) > 1 else next(iter(values.values()))
        return self._write(200, json.dumps({"outputs": outputs}).encode())

    def _write(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _json_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value

"""A small server on a free port that serves a SavedModel like TensorFlow Serving's REST interface.

with RestServer(model) as server:
    server.plan = [5.0]  # seconds of a pause before the next answer
    client.predict({"text_a": ["a film"]}, "serving_text", server.address)
"""

from __future__ import annotations

import base64
import http.server
import json
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

STATUSES = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404}


class RequestError(Exception):
    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


class Model:
    """A SavedModel, which is called by the name of a signature."""

    def __init__(self, path: str):
        self._loaded = tf.saved_model.load(path)
        self.signatures = list(self._loaded.signatures)

    def specs(self, signature: str) -> tuple[Mapping[str, tf.TensorSpec], Mapping[str, tf.TensorSpec]]:
        """Inputs and outputs by name."""
        if signature not in self._loaded.signatures:
            raise RequestError("INVALID_ARGUMENT", f'Serving signature key "{signature}" not found.')
        function = self._loaded.signatures[signature]
        return function.structured_input_signature[1], function.structured_outputs

    def predict(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """`inputs` are tensors, or nested lists."""
        specs, _ = self.specs(signature)
        if {*inputs} != {*specs}:
            raise RequestError("INVALID_ARGUMENT", f"inputs are {sorted(inputs)}, not {sorted(specs)}")
        try:
            tensors = {name: tf.constant(value, specs[name].dtype) for name, value in inputs.items()}
            return self._loaded.signatures[signature](**tensors)
        except (tf.errors.InvalidArgumentError, ValueError, TypeError) as error:
            raise RequestError("INVALID_ARGUMENT", getattr(error, "message", str(error))) from error


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
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body: bytes | None) -> None:
        step = self.owner.plan.pop(0) if self.owner.plan else None
        if isinstance(step, float):
            time.sleep(step)
        self._write(*((200, step) if isinstance(step, bytes) else self._result(body)))

    def _write(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _result(self, body: bytes | None) -> tuple[int, bytes]:
        found = re.fullmatch(r"/v1/models/bert(:predict|)", self.path)
        try:
            if not found:
                raise RequestError("NOT_FOUND", f"Malformed request: {self.path}")
            answer = self._status() if body is None else rest_predict(self.owner.model, json.loads(body))
        except RequestError as error:
            return STATUSES[error.code], json.dumps({"error": str(error)}).encode()
        return 200, json.dumps(answer).encode()

    def _status(self) -> dict[str, Any]:
        return {"model_version_status": [{"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK"}}]}


def rest_predict(model: Model, request: Mapping[str, Any]) -> dict[str, Any]:
    """TensorFlow Serving's REST format: rows ("instances" -> "predictions") or columns ("inputs" -> "outputs").

    The name of a single input or output is omitted.
    """
    signature = request.get("signature_name", "serving_default")
    names = list(model.specs(signature)[0])
    if ("instances" in request) == ("inputs" in request):
        raise RequestError("INVALID_ARGUMENT", "one of instances and inputs must be there, and not both")
    rows = "instances" in request
    inputs = _plain_values(request["instances" if rows else "inputs"])
    if rows:
        table = [row if isinstance(row, dict) else {names[0]: row} for row in inputs]
        inputs = {name: [row.get(name) for row in table] for name in table[0]} if table else {}
    elif not isinstance(inputs, dict):
        inputs = {names[0]: inputs}
    outputs = {name: _json_value(value.numpy().tolist()) for name, value in model.predict(signature, inputs).items()}
    if not rows:
        return {"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))}
    predictions = [dict(zip(outputs, values, strict=True)) for values in zip(*outputs.values(), strict=True)]
    return {"predictions": predictions if len(outputs) > 1 else next(iter(outputs.values()))}


def _plain_values(value: Any) -> Any:
    if isinstance(value, dict):
        if {*value} == {"b64"}:
            return base64.b64decode(value["b64"])
        return {name: _plain_values(item) for name, item in value.items()}
    return [_plain_values(item) for item in value] if isinstance(value, list) else value


def _json_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value

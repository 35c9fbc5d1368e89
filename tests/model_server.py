"""Small servers on free ports that serve a SavedModel like TensorFlow Serving's REST and gRPC interfaces.

with RestServer(model) as server:
    server.plan = [503, "drop"]  # the reactions to the next requests, instead of an answer
    RestClient(server.address).predict(...)
"""

from __future__ import annotations

import base64
import concurrent.futures
import http.server
import json
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

STATUSES = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "UNAVAILABLE": 503, "DEADLINE_EXCEEDED": 504}


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


class _Server:
    """`plan` lists the reactions to the next requests: a status instead of an answer, other bytes, a pause before the
    answer, or one of the faults that the handlers implement."""

    def __init__(self, model: Model):
        self.model = model
        self.plan: list[Any] = []
        self.requests = 0
        self._lock = threading.Lock()

    def next_step(self) -> Any:
        with self._lock:
            self.requests += 1
            return self.plan.pop(0) if self.plan else None


class RestServer(_Server):
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
        step = self.owner.next_step()
        if step == "drop":
            self.close_connection = True
            return
        if isinstance(step, float):
            time.sleep(step)
        if isinstance(step, bytes):
            self._write(200, step)
        elif isinstance(step, int):
            self._write(step, b'{"error": "as planned"}')
        elif step in ("drip", "cut", "html"):
            self._misbehave(step)
        else:
            self._write(*self._result(body))

    def _misbehave(self, how: str) -> None:
        if how == "html":
            return self._write(502, b"<html>Bad gateway</html>")
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        for _ in range(1 if how == "cut" else 200):
            self.wfile.write(b" ")
            self.wfile.flush()
            time.sleep(0.02)
        self.close_connection = True

    def _write(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _result(self, body: bytes | None) -> tuple[int, bytes]:
        found = re.fullmatch(r"/v1/models/bert(/versions/1)?(:predict|/metadata|)", self.path)
        try:
            if not found:
                raise RequestError("NOT_FOUND", f"Malformed request: {self.path}")
            if body is None:
                answer = {"/metadata": self._metadata, "": self._status}[found[2]]()
            else:
                answer = rest_predict(self.owner.model, json.loads(body))
        except RequestError as error:
            return STATUSES[error.code], json.dumps({"error": str(error)}).encode()
        return 200, json.dumps(answer).encode()

    def _status(self) -> dict[str, Any]:
        return {"model_version_status": [{"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK"}}]}

    def _metadata(self) -> dict[str, Any]:
        model = self.owner.model
        found = {name: {"outputs": {key: {} for key in model.specs(name)[1]}} for name in model.signatures}
        return {"model_spec": {"name": "bert"}, "metadata": {"signature_def": {"signature_def": found}}}


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


class GrpcServer(_Server):
    def __enter__(self) -> GrpcServer:
        import grpc  # late: only these tests need it
        from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

        owner = self

        class Servicer(prediction_service_pb2_grpc.PredictionServiceServicer):
            def Predict(self, request, context):
                step = owner.next_step()
                if isinstance(step, str):
                    context.abort(grpc.StatusCode[step], "as planned")
                time.sleep(step or 0.0)
                return owner.answer(request, context, predict_pb2.PredictResponse())

        self._grpc = grpc
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Servicer(), self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        return self

    def __exit__(self, *exception) -> None:
        self._server.stop(0).wait()

    def answer(self, request, context, response):
        """Fills and returns `response`. Types must be those of the signature, as in TensorFlow Serving."""
        try:
            inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
            for name, spec in self.model.specs(request.model_spec.signature_name)[0].items():
                if name in inputs and request.inputs[name].dtype != spec.dtype.as_datatype_enum:
                    raise RequestError("INVALID_ARGUMENT", f"{name} must be {spec.dtype.name}")
            for name, value in self.model.predict(request.model_spec.signature_name, inputs).items():
                response.outputs[name].CopyFrom(tf.make_tensor_proto(value.numpy()))
        except RequestError as error:
            context.abort(self._grpc.StatusCode[error.code], str(error))
        return response

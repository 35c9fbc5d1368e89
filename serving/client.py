"""A client for models in TensorFlow Serving, over REST or gRPC.

As a command, it prints the answer as JSON:

    python serving/client.py --text='A fine film.'
    python serving/client.py --question='Who wrote it?' --context='It was written by Ann.' --grpc
    python serving/client.py --inputs='{"input_ids": [[101, 7592, 102]]}' --signature=serving_ids

As a library:

    with RestClient("localhost:8501", deadline=1.0) as client:
        client.predict({"text_a": ["A fine film.", "A poor one."]}, "serving_text")["label"]

REST needs only Python, so this file can be copied to client machines. gRPC needs the packages grpcio and
tensorflow-serving-api. A client answers within its deadline, or raises ServingError. It retries with exponential
backoff if there is no connection, or if the server is not ready or overloaded (UNAVAILABLE, 503). Other errors are not
retried.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import itertools
import json
import os
import random
import re
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")
Outputs = dict[str, Any]  # nested lists of numbers and texts, by the names of the signature

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds

# The inverse of the mapping from status codes to HTTP status codes in TensorFlow Serving.
_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class ServingError(Exception):
    """There is no answer. `code` is the name of the gRPC status, also over REST."""

    def __init__(self, code: str, message: str):
        # The messages of the model's own checks are sentences, which TensorFlow wraps in names of its graph.
        sentence = re.search(r"assertion failed: \[(.*)\]", message)
        super().__init__(f"{code}: {sentence[1] if sentence else message}")
        self.code = code


class _Client:
    """The common base of the REST and the gRPC client."""

    def __init__(self, server: str, model: str, version: int | None, deadline: float, retries: int):
        if not 0 < deadline <= threading.TIMEOUT_MAX:
            raise ServingError("INVALID_ARGUMENT", f"the deadline must be seconds, more than 0, not {deadline:g}")
        self.server, self.model, self.version = server, model, version
        self.deadline, self.retries = deadline, retries

    def __enter__(self):
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def predict(self, inputs: Mapping[str, Any], signature: str = "serving_default") -> Outputs:
        """Returns the outputs of a signature.

        Args:
          inputs: by name, a list with one text per example, or a list with one list of ids per example, all of the
            same length. Arrays are also accepted.

        Raises:
          ServingError: there is no answer within the deadline, or the server returns an error.
        """
        inputs = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in inputs.items()}
        _check(inputs)
        return self._retrying(lambda end: self._predict(inputs, signature, end))

    def _retrying(self, attempt: Callable[[float], Result]) -> Result:
        """Calls `attempt` with the end of the deadline, and retries it."""
        end = time.monotonic() + self.deadline
        for number in itertools.count():
            try:
                return attempt(end)
            except ServingError as error:
                # Random, so that clients that were rejected together do not retry together.
                pause = min(_FIRST_PAUSE * 2**number, _LONGEST_PAUSE) * random.uniform(0.5, 1.0)
                if error.code != "UNAVAILABLE" or number >= self.retries or time.monotonic() + pause >= end:
                    raise
                time.sleep(pause)
        raise AssertionError("the loop has no end")

    def _left(self, end: float) -> float:
        left = end - time.monotonic()
        if left <= 0:
            raise self._too_late()
        return left

    def _too_late(self) -> ServingError:
        return ServingError("DEADLINE_EXCEEDED", f"{self.server} gave no answer within {self.deadline:g} s")

    def _predict(self, inputs: Mapping[str, Any], signature: str, end: float) -> Outputs:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class RestClient(_Client):
    """Keeps one connection open; use one client per thread."""

    def __init__(
        self,
        server: str = "localhost:8501",
        model: str = "bert",
        version: int | None = None,
        deadline: float = 10.0,
        retries: int = 3,
    ):
        """`server` is HOST:PORT, with the prefix https:// if the server or its proxy requires it."""
        super().__init__(server, model, version, deadline, retries)
        try:
            self._address = urllib.parse.urlsplit(server if "://" in server else f"http://{server}")
            if not self._address.hostname or self._address.port == 0:  # `port` raises ValueError too
                raise ValueError("no host or port")
        except ValueError as error:
            raise ServingError("INVALID_ARGUMENT", f"the server must be HOST:PORT, not {server!r}: {error}") from error
        self._path = f"/v1/models/{urllib.parse.quote(model)}" + (f"/versions/{version}" if version else "")
        self._connection: http.client.HTTPConnection | None = None
        self._single_outputs: dict[str, str] = {}

    def close(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = None

    def _predict(self, inputs: Mapping[str, Any], signature: str, end: float) -> Outputs:
        body = json.dumps({"signature_name": signature, "inputs": _json_value(inputs)})
        outputs = self._request("POST", f"{self._path}:predict", body, end).get("outputs")
        if outputs is None:
            raise ServingError("UNKNOWN", f"{self.server} does not answer as TensorFlow Serving does: no outputs")
        return outputs if isinstance(outputs, dict) else {self._single_output(signature, end): outputs}

    def _single_output(self, signature: str, end: float) -> str:
        """The name of a single output, which TensorFlow Serving omits from its answer."""
        if signature not in self._single_outputs:
            answer = self._request("GET", f"{self._path}/metadata", None, end)
            found = answer["metadata"]["signature_def"]["signature_def"][signature]["outputs"]
            (self._single_outputs[signature],) = found
        return self._single_outputs[signature]

    def _request(self, method: str, path: str, body: str | None, end: float) -> dict[str, Any]:
        try:
            connection = self._connect(end)
            wire = connection.sock  # the connection drops it if the server closes it after the answer
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            wire.settimeout(self._left(end))
            response = connection.getresponse()
            text = self._read(response, wire, end)
        except TimeoutError as error:
            self.close()
            raise self._too_late() from error
        except (OSError, http.client.HTTPException) as error:
            self.close()  # remaining data would be read as the answer to the next request
            reason = str(error) or type(error).__name__
            raise ServingError("UNAVAILABLE", f"no connection to {self.server}: {reason}") from error
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            answer = {"error": f"{self.server} did not answer with a JSON object: {text[:200]!r}"}
        if response.status != 200 or "error" in answer:
            code = _CODES.get(response.status, "UNKNOWN")
            raise ServingError(code, answer.get("error", f"HTTP status {response.status}"))
        return answer

    def _connect(self, end: float) -> http.client.HTTPConnection:
        if not self._connection or not self._connection.sock:
            kind = http.client.HTTPSConnection if self._address.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(self._address.hostname, self._address.port, timeout=self._left(end))
            self._connection.connect()
        self._connection.sock.settimeout(self._left(end))
        return self._connection

    def _read(self, response: http.client.HTTPResponse, wire: socket.socket, end: float) -> bytes:
        """Reads the whole answer. A socket timeout restarts with every received byte; the deadline does not."""
        parts = []
        while part := response.read1(1 << 16):
            parts.append(part)
            if not response.isclosed():
                wire.settimeout(self._left(end))
        response.close()  # read1 does not detect the end, and the connection would accept no further request
        if response.length:
            raise http.client.IncompleteRead(b"".join(parts), response.length)
        return b"".join(parts)


class GrpcClient(_Client):
    """A client that threads can share."""

    def __init__(
        self,
        server: str = "localhost:8500",
        model: str = "bert",
        version: int | None = None,
        deadline: float = 10.0,
        retries: int = 3,
    ):
        super().__init__(server, model, version, deadline, retries)
        try:
            import grpc
            from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
        except ImportError as error:
            message = f"gRPC needs {error.name or 'more'}: pip install grpcio tensorflow-serving-api"
            raise ServingError("UNIMPLEMENTED", message) from error
        self._grpc, self._messages = grpc, predict_pb2
        # Outputs can be larger than gRPC's default limit of 4 MB. The other options: reconnect to a missing server as
        # often as _retrying does.
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        pauses = {"initial": _FIRST_PAUSE, "min": _FIRST_PAUSE, "max": _LONGEST_PAUSE}
        options += [(f"grpc.{name}_reconnect_backoff_ms", int(pause * 1000)) for name, pause in pauses.items()]
        self._channel = grpc.insecure_channel(server, options)
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def _predict(self, inputs: Mapping[str, Any], signature: str, end: float) -> Outputs:
        import tensorflow as tf

        request = self._messages.PredictRequest()
        request.model_spec.name = self.model
        request.model_spec.signature_name = signature
        if self.version:
            request.model_spec.version.value = self.version
        for name, value in inputs.items():
            dtype = tf.int32 if isinstance(_first(value), int) else tf.string
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value, dtype))
        try:
            answer = self._stub.Predict(request, timeout=self._left(end))
        except self._grpc.RpcError as error:
            raise ServingError(error.code().name, error.details()) from error
        return {name: _plain(tf.make_ndarray(value).tolist()) for name, value in answer.outputs.items()}


def _first(value: Any) -> Any:
    while isinstance(value, list | tuple):
        value = value[0] if value else None
    return value


def _check(inputs: Mapping[str, Any]) -> None:
    """Raises an error for wrong shapes, which could also harm the other requests in a batch of the server."""
    rows = {name: len(value) if isinstance(value, list | tuple) else 0 for name, value in inputs.items()}
    if not rows or not min(rows.values()) or len({*rows.values()}) > 1:
        raise ServingError("INVALID_ARGUMENT", f"each input needs as many examples as the others, at least one: {rows}")
    for name, value in inputs.items():
        if all(isinstance(row, str | bytes) for row in value):
            continue
        if not all(isinstance(row, list | tuple) and all(isinstance(item, int) for item in row) for row in value):
            raise ServingError("INVALID_ARGUMENT", f"{name} must be a list of texts, or a list of lists of ids")
        if len({len(row) for row in value}) > 1:
            message = f"the examples of {name} have different lengths; fill the shorter ones with the id of [PAD]"
            raise ServingError("INVALID_ARGUMENT", message)


def _json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    return {"b64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _plain(value: Any) -> Any:
    """Converts bytes to str, as in REST."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def add_connection_arguments(parser: argparse.ArgumentParser, retries: int) -> None:
    """Adds the flags for the server and the connection."""
    parser.add_argument("--server", help="HOST:PORT; without it localhost:8501, with --grpc localhost:8500")
    parser.add_argument("--grpc", action="store_true", help="gRPC instead of REST")
    parser.add_argument("--model", default="bert", help="name of the model in models.config (default: %(default)s)")
    parser.add_argument("--version", type=int, help="version of the model (default: the latest)")
    parser.add_argument("--deadline", type=float, default=10.0, help="seconds to wait, with all tries (%(default)s)")
    parser.add_argument("--retries", type=int, default=retries, help="tries after the first one (%(default)s)")


def client_of(arguments: argparse.Namespace) -> RestClient | GrpcClient:
    """Creates the client for the flags of add_connection_arguments."""
    kind, server = (GrpcClient, "localhost:8500") if arguments.grpc else (RestClient, "localhost:8501")
    return kind(arguments.server or server, arguments.model, arguments.version, arguments.deadline, arguments.retries)


def guess_signature(names: Sequence[str]) -> str:
    """The signature of an exported model with inputs of these names."""
    if "input_ids" in names:
        return "serving_ids" if len(names) == 1 else "serving_default"
    return "serving_text_pair" if "text_b" in names else "serving_text"


def _inputs(arguments: argparse.Namespace) -> dict[str, Any]:
    texts = {
        "text_a": arguments.text,
        "text_b": arguments.text_b,
        "question": arguments.question,
        "context": arguments.context,
    }
    try:
        return {**json.loads(arguments.inputs), **{name: value for name, value in texts.items() if value}}
    except (ValueError, TypeError) as error:
        raise ServingError("INVALID_ARGUMENT", f"--inputs must be a JSON object: {error}") from error


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Asks a model that TensorFlow Serving serves; prints JSON.")
    add_connection_arguments(parser, retries=3)
    parser.add_argument("--signature", help="signature of the model; without it the one that fits the inputs")
    for name in ("text", "text_b", "question", "context"):
        parser.add_argument(f"--{name}", action="append", help="again for a further example")
    parser.add_argument("--inputs", default="{}", help='inputs as JSON: {"input_ids": [[101, 7592, 102]]}')
    arguments = parser.parse_args(argv)
    if arguments.grpc:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        inputs = _inputs(arguments)
        with client_of(arguments) as client:
            outputs = client.predict(inputs, arguments.signature or guess_signature(list(inputs)))
    except ServingError as error:
        print(f"client.py: {error}", file=sys.stderr)
        return 1
    lines = [f"  {json.dumps(name)}: {json.dumps(outputs[name], ensure_ascii=False)}" for name in sorted(outputs)]
    print("{\n" + ",\n".join(lines) + "\n}")
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # in any locale
    sys.exit(main())

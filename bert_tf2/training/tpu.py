"""Connecting to a TPU, with a time limit.

If nothing answers at the address, TensorFlow waits for minutes without a message. Therefore this module first checks
that the host exists, that the port is open, and that an HTTP/2 server answers, as every gRPC server does.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import tensorflow as tf

from bert_tf2.support.errors import UserError

_SECONDS = 5.0
_PORT = 8470  # of Cloud TPU workers; TensorFlow uses it as well
# The connection preface of an HTTP/2 client and an empty SETTINGS frame. A server answers with a SETTINGS frame.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4


def connect(address: str | None, zone: str | None, project: str | None) -> tf.distribute.Strategy:
    """Connects to a TPU and returns its strategy.

    Args:
      address: the name of a Cloud TPU, "grpc://HOST:PORT", or "local" on the machine of a TPU.
      zone, project: those of a named Cloud TPU, if they cannot be detected.

    Raises:
      UserError: the TPU cannot be reached.
    """
    try:
        with _time_limit():
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address, zone=zone, project=project)
            for endpoint in resolver.master().split(","):
                _check_answers(endpoint)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
        raise UserError(
            f"--use_tpu: no TPU can be reached ({reason}); check --tpu_name, --tpu_zone and --gcp_project, or leave"
            " --use_tpu out"
        ) from error


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    """Sets a time limit for sockets that are opened without one: TensorFlow's requests to Google Cloud."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _check_answers(endpoint: str) -> None:
    """Raises OSError if no gRPC server answers at "grpc://HOST:PORT"; other endpoints are local."""
    if not endpoint.startswith("grpc://"):
        return
    where = endpoint.removeprefix("grpc://")
    host, _, port = where.rpartition(":") if ":" in where else (where, ":", str(_PORT))
    if not port.isdecimal() or not 0 < int(port) < 2**16:
        raise OSError(f"{endpoint} is not grpc://HOST:PORT")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS) as connection:
            connection.sendall(_GREETING)
            answer = connection.recv(4)
    except TimeoutError as error:
        raise OSError(f"{where} did not answer within {_SECONDS:.0f} s") from error
    except OSError as error:
        raise OSError(f"{where}: {error.strerror or error}") from error
    if answer[3:4] != bytes([_SETTINGS]):
        raise OSError(f"what answers at {where} is no gRPC server")

"""The workers of a cluster wait for each other, before TensorFlow connects them.

TensorFlow waits for missing workers without a message and without end, and Ctrl-C does not reach it. So the workers
wait for each other first, at the address of the chief, which TensorFlow opens only later:

    each other worker -> chief: its number, and values that must agree
    all have connected: chief -> each: `go`, or the reason for a refusal
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from absl import logging

from bert_tf2.support.errors import UserError

_SECONDS_TO_ANSWER = 2.0
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_QUERIES = 2.0
_CLUSTER = "the cluster in TF_CONFIG"  # a key in `alike` of every worker
_GO, _REFUSED = "go", "refused"  # the chief's answers; a refusal has a sentence
_MOST_BYTES = 1 << 20


class Cluster(NamedTuple):
    """The workers that train together."""

    names: tuple[str, ...]  # of all workers, the chief first: their task in TF_CONFIG, such as "worker 1"
    addresses: tuple[str, ...]  # HOST:PORT of each worker
    index: int  # the number of this worker

    def name(self, index: int) -> str:
        return f"{self.names[index]} ({self.addresses[index]})"


def wait_for_workers(
    cluster: Cluster,
    alike: Mapping[str, int | str],
    *,
    seconds: float = 600.0,
    seconds_between_reminders: float = 20.0,
) -> None:
    """Returns when all workers have called this, on all of them within a second.

    Machines of a cluster start minutes apart, if a scheduler has to find or to prepare them; in Kubernetes, a pod's
    name is known only when the pod runs.

    Args:
      cluster: the workers, and the number of this worker.
      alike: name -> value, of the values that must be the same for all workers.
      seconds: the time to wait for the other workers, and for addresses of their hosts; then UserError is raised.
      seconds_between_reminders: the time between messages in the log that name the missing workers.
    """
    addresses, index = cluster.addresses, cluster.index
    alike = {**alike, _CLUSTER: " ".join(addresses)}
    names = [*map(cluster.name, range(len(addresses)))]
    try:
        listener = socket.create_server(("", _split(addresses[index])[1]), backlog=1024)
    except OSError as error:
        raise UserError(
            f"TF_CONFIG: {names[index]}: its port cannot be opened ({error.strerror}); is another worker running there?"
        ) from error
    with listener:  # at the end, the port is free again for TensorFlow
        hosts = {name: _split(address)[0] for name, address in zip(names, addresses, strict=True)}
        _wait_for_addresses(hosts, seconds)
        patience = _Patience(seconds, seconds_between_reminders)
        if index == 0:
            _gather(listener, alike, names, patience)
        else:
            _report(addresses[0], {"index": index, "alike": alike}, names[0], patience)


def listens(address: str) -> bool:
    """Whether a program accepts connections at HOST:PORT."""
    with contextlib.suppress(OSError):
        _call(address).close()
        return True
    return False


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _call(address: str) -> socket.socket:
    return socket.create_connection(_split(address), timeout=_SECONDS_TO_ANSWER)


def _wait_for_addresses(hosts: Mapping[str, str], seconds: float) -> None:
    """Returns when all `hosts`, by the names of their workers, have addresses, because TensorFlow needs addresses.

    Raises UserError after `seconds`.
    """
    end, waiting = time.monotonic() + seconds, dict(hosts)
    while waiting:
        name, host = next(iter(waiting.items()))
        try:
            socket.getaddrinfo(host, None)
            del waiting[name]
        except (OSError, UnicodeError) as error:  # UnicodeError: not a possible name
            sentence = f"the host of {name} has no address ({error}); correct its name, the same for all workers"
            if time.monotonic() >= end:
                raise UserError(f"TF_CONFIG: {sentence}") from error
            logging.log_first_n(logging.WARNING, "Waiting, because %s", 1, sentence)
            time.sleep(_SECONDS_BETWEEN_QUERIES)


class _Patience:
    """Logs from time to time which workers are missing, and limits the time to wait."""

    def __init__(self, seconds: float, between_reminders: float):
        self.seconds, self._between_reminders = seconds, between_reminders
        self._end = time.monotonic() + seconds
        self._remind_at = time.monotonic() + between_reminders

    def check(self, missing: Sequence[str]) -> None:
        """Raises UserError if the time is over for the missing workers."""
        now, who = time.monotonic(), " and ".join(missing)
        if now >= self._end:
            raise UserError(
                f"{who} did not connect within {self.seconds / 60:.0f} minutes; start the same command there, with a"
                " TF_CONFIG that differs only in its task, and check that the port can be reached"
            )
        if now >= self._remind_at:
            self._remind_at = now + self._between_reminders
            logging.info("Waiting for %s", who)


def _gather(listener: socket.socket, alike: Mapping[str, int | str], names: Sequence[str], patience: _Patience) -> None:
    """The chief's part: waits until all workers are connected at the same time, then answers all of them."""
    there: dict[int, socket.socket] = {}
    answer = {}
    with contextlib.ExitStack() as held:
        try:
            while missing := [name for number, name in enumerate(names) if number and number not in there]:
                readable, _, _ = select.select([listener, *there.values()], [], [], _SECONDS_BETWEEN_LOOKS)
                # A worker sends nothing more, so a connection that can be read has ended.
                there = {number: other for number, other in there.items() if other not in readable}
                if listener not in readable:
                    patience.check(missing)
                    continue
                connection, (caller, *_) = listener.accept()
                line = _read_line(held.enter_context(connection))
                if found := _read_worker(line, len(names)):
                    worker, theirs = found
                    there[worker] = connection
                    for what, ours in alike.items():
                        if ours != theirs.get(what):
                            both = f"{names[0]} has {ours}, {names[worker]} has {theirs.get(what)}"
                            raise UserError(f"{what} must be the same for all workers: {both}")
                elif line:
                    message = "A program at %s, not a worker, wrote to this port: %r"
                    logging.log_first_n(logging.WARNING, message, 1, caller, line[:60])
            answer = {_GO: True}
        except UserError as error:
            answer = {_REFUSED: str(error)}
            raise
        finally:
            for connection in there.values() if answer else ():
                with contextlib.suppress(OSError):  # a worker that has ended; TensorFlow will notice its end
                    connection.sendall(json.dumps(answer).encode() + b"\n")


def _read_line(connection: socket.socket) -> bytes:
    """Reads at most a line, for at most _SECONDS_TO_ANSWER, from a program that has connected; b"" for nothing."""
    end, line = time.monotonic() + _SECONDS_TO_ANSWER, b""
    with contextlib.suppress(OSError):
        while not line.endswith(b"\n") and len(line) < _MOST_BYTES and (left := end - time.monotonic()) > 0:
            connection.settimeout(left)
            if not (part := connection.recv(1 << 16)):
                break
            line += part
    return line


def _read_worker(line: bytes, count: int) -> tuple[int, Mapping[str, int | str]] | None:
    """The number of the worker, of `count` workers, that wrote a line, and its `alike`; None for any other program."""
    try:
        found = json.loads(line)
        worker, theirs = found["index"], found["alike"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    is_worker = type(worker) is int and 0 < worker < count and isinstance(theirs, dict)
    return (worker, theirs) if is_worker and isinstance(theirs.get(_CLUSTER), str) else None


def _report(chief: str, message: Mapping[str, object], name: str, patience: _Patience) -> None:
    """The part of the other workers: calls the chief until it answers. Raises UserError for a refusal."""
    answer = {}
    while not answer:
        line = b""
        with contextlib.suppress(OSError), _call(chief) as connection:
            connection.sendall(json.dumps(message).encode() + b"\n")
            # The chief answers when all workers have connected, or when its time is over.
            connection.settimeout(patience.seconds)
            line = connection.makefile("rb").readline(_MOST_BYTES)
        answer = _read_answer(line)
        if not answer:  # the chief has not begun yet, or has ended
            if line:
                message = "The program at the address of %s is not a worker; it wrote %r"
                logging.log_first_n(logging.WARNING, message, 1, name, line[:60])
            patience.check([name])
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    if _REFUSED in answer:
        raise UserError(answer[_REFUSED])


def _read_answer(line: bytes) -> Mapping[str, object]:
    """The chief's answer; empty for a line of any other program."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(line)
        if isinstance(found, dict) and (found.get(_GO) is True or isinstance(found.get(_REFUSED), str)):
            return found
    return {}

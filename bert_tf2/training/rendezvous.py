"""How the workers of a training find each other, before TensorFlow connects them.

TensorFlow waits for missing workers without a word and without an end, and Ctrl-C does not reach it. So the workers
meet first, at the address of the first one, the chief, which TensorFlow opens only later:

    each other worker -> chief: its number and the addresses it knows      all are there: chief -> each: go
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from collections.abc import Iterator, Sequence

from absl import logging

from bert_tf2.support.errors import UserError

# Machines of a cluster start minutes apart, if a scheduler has to find or to prepare them.
SECONDS = 600.0
_SECONDS_BETWEEN_REMINDERS = 20.0
_SECONDS_TO_ANSWER = 2.0
_SECONDS_BETWEEN_LOOKS = 0.2
_GO = b"go\n"
_MOST_BYTES = 1 << 20


def meet(addresses: Sequence[str], index: int, names: Sequence[str]) -> None:
    """Returns when all workers have called this, and no longer than a second apart.

    Args:
      addresses: HOST:PORT of all workers, the chief first.
      index: the number of this worker.
      names: what to call each worker.

    Raises:
      UserError: a worker does not come within SECONDS, knows other addresses, or the port of this one is in use.
    """
    clock = _Clock([f"{name} ({address})" for name, address in zip(names, addresses, strict=True)])
    with _own_port(addresses[index], clock.names[index]) as listener:
        if index == 0:
            _gather(listener, addresses, clock)
        else:
            _report(addresses, index, clock)


def listens(address: str) -> bool:
    """Whether a program accepts connections at HOST:PORT."""
    with contextlib.suppress(OSError):
        _call(address).close()
        return True
    return False


class _Clock:
    """Tells from time to time who is missing, and when the time is over."""

    def __init__(self, names: Sequence[str]):
        self.names = names
        self._began = self._told = time.monotonic()

    def check(self, missing: Sequence[int]) -> None:
        now = time.monotonic()
        who = " and ".join(self.names[number] for number in missing)
        if now - self._began >= SECONDS:
            raise UserError(
                f"{who} did not come within {SECONDS / 60:.0f} minutes; start the same command there, with a TF_CONFIG"
                " that differs only in its task, and see that the port can be reached"
            )
        if now - self._told >= _SECONDS_BETWEEN_REMINDERS:
            self._told = now
            logging.info("Waiting for %s", who)


@contextlib.contextmanager
def _own_port(address: str, name: str) -> Iterator[socket.socket]:
    """A socket that listens at the port of this worker; free again afterwards, for TensorFlow."""
    port = int(address.rpartition(":")[2])
    try:
        listener = socket.create_server(("", port), backlog=1024)
    except OSError as error:
        raise UserError(
            f"TF_CONFIG: {name}: its port cannot be opened ({error.strerror}); is another worker running there?"
        ) from error
    with listener:
        yield listener


def _call(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_ANSWER)


def _gather(listener: socket.socket, addresses: Sequence[str], clock: _Clock) -> None:
    """The chief's part: waits until all are there at the same time, then lets them go."""
    there: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as held, selectors.DefaultSelector() as waiting:
        waiting.register(listener, selectors.EVENT_READ)
        while len(there) < len(addresses) - 1:
            for key, _ in waiting.select(_SECONDS_BETWEEN_LOOKS):
                if key.fileobj is not listener:  # it says nothing more, so it has ended
                    waiting.unregister(key.fileobj)
                    there = {number: other for number, other in there.items() if other is not key.fileobj}
                    continue
                connection = held.enter_context(listener.accept()[0])
                number = _number(connection, addresses, clock)
                if number is not None:
                    there[number] = connection
                    waiting.register(connection, selectors.EVENT_READ)
            clock.check([number for number in range(1, len(addresses)) if number not in there])
        for connection in there.values():
            with contextlib.suppress(OSError):  # TensorFlow finds out, and tells
                connection.sendall(_GO)


def _number(connection: socket.socket, addresses: Sequence[str], clock: _Clock) -> int | None:
    """The number of a worker that has connected; None for whatever else connects to ports.

    Raises:
      UserError: it knows other workers.
    """
    connection.settimeout(_SECONDS_TO_ANSWER)
    try:
        with connection.makefile("rb") as stream:
            found = json.loads(stream.readline(_MOST_BYTES))
        number, known = found["index"], found["addresses"]
        valid = isinstance(number, int) and 0 < number < len(addresses)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if known != [*addresses]:
        who = clock.names[number] if valid else "a worker"
        raise UserError(
            f"TF_CONFIG: {who} has another cluster than {clock.names[0]}; it must be the same for all workers"
        )
    return number if valid else None


def _report(addresses: Sequence[str], index: int, clock: _Clock) -> None:
    """The part of the others: calls the chief until it answers."""
    line = json.dumps({"index": index, "addresses": [*addresses]}).encode() + b"\n"
    while True:
        with contextlib.suppress(OSError), _call(addresses[0]) as connection:
            connection.sendall(line)
            connection.settimeout(_SECONDS_BETWEEN_LOOKS)
            if _answer(connection, clock) == _GO:
                return
        clock.check([0])
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _answer(connection: socket.socket, clock: _Clock) -> bytes:
    """What the chief says once it has met all workers; empty if it has ended."""
    while True:
        try:
            return connection.recv(len(_GO))
        except TimeoutError:
            clock.check([0])

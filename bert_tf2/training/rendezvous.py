"""How the workers of a training find each other, before TensorFlow connects them.

TensorFlow waits for missing workers without a word and without an end, and Ctrl-C does not reach it. So the workers
meet first, at the address of the first one, the chief, which TensorFlow opens only later:

    each other worker -> chief: its number, and what must be alike      all are there: chief -> each: go, or why not
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf2.support.errors import UserError

# Machines of a cluster start minutes apart, if a scheduler has to find or to prepare them.
SECONDS = 600.0
# The names of machines are known before these start. In Kubernetes, a pod's name is known only when it runs.
SECONDS_TO_RESOLVE = 20.0
_SECONDS_BETWEEN_REMINDERS = 20.0
_SECONDS_TO_ANSWER = 2.0
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_QUERIES = 2.0
_GO = b"go\n"
_MOST_BYTES = 1 << 20


def meet(addresses: Sequence[str], index: int, names: Sequence[str], alike: Mapping[str, int | str]) -> None:
    """Returns when all workers have called this, and no longer than a second apart.

    Args:
      addresses: HOST:PORT of all workers, the chief first.
      index: the number of this worker.
      names: what to call each worker.
      alike: what must be the same for all of them, by its name in a message.

    Raises:
      UserError: a worker does not come within SECONDS, or is not like the chief, or the port of this one is in use, or
        no address is known for a host within SECONDS_TO_RESOLVE.
    """
    alike = {**alike, "the cluster in TF_CONFIG": " ".join(addresses)}
    clock = _Clock([f"{name} ({address})" for name, address in zip(names, addresses, strict=True)], addresses)
    with _own_port(addresses[index], clock.names[index]) as listener:
        if index == 0:
            _gather(listener, alike, clock)
        else:
            _report(addresses[0], {"index": index, "alike": alike}, clock)


def listens(address: str) -> bool:
    """Whether a program accepts connections at HOST:PORT."""
    with contextlib.suppress(OSError):
        _call(address).close()
        return True
    return False


class _Clock:
    """Tells from time to time who is missing, and when the time is over."""

    def __init__(self, names: Sequence[str], addresses: Sequence[str]):
        self.names = names
        self._began = self._told = time.monotonic()
        self._unresolved = dict(enumerate(map(_host, addresses)))
        self._ask_at = self._began

    def resolve(self) -> bool:
        """Whether the hosts of all workers have addresses, which TensorFlow needs; waits for names that are new.

        Raises:
          UserError: one of them had none for too long.
        """
        now = time.monotonic()
        if not self._unresolved or now < self._ask_at:
            return not self._unresolved
        problems = {number: _name_problem(host) for number, host in self._unresolved.items()}
        first = self._ask_at == self._began
        self._unresolved = {number: host for number, host in self._unresolved.items() if problems[number]}
        self._ask_at = time.monotonic() + _SECONDS_BETWEEN_QUERIES
        for number in self._unresolved:
            problem = f"the host of {self.names[number]} has no address ({problems[number]})"
            if now - self._began >= (SECONDS if "KUBERNETES_SERVICE_HOST" in os.environ else SECONDS_TO_RESOLVE):
                raise UserError(f"TF_CONFIG: {problem}; correct its name, the same for all workers")
            if first:
                logging.info("Waiting, because %s", problem)
        return not self._unresolved

    def check(self, missing: Sequence[int]) -> None:
        """Raises UserError if the time is over for the missing workers, or for the names of hosts."""
        self.resolve()
        if not missing:
            return
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


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _name_problem(host: str) -> str | None:
    """Why a host has no address; None if it has one."""
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:  # UnicodeError: no name can be like that
        return str(getattr(error, "strerror", None) or error)
    return None


def _call(address: str) -> socket.socket:
    port = int(address.rpartition(":")[2])
    return socket.create_connection((_host(address), port), timeout=_SECONDS_TO_ANSWER)


def _gather(listener: socket.socket, alike: Mapping[str, int | str], clock: _Clock) -> None:
    """The chief's part: waits until all are there at the same time, then lets them go."""
    there: dict[int, socket.socket] = {}
    total = len(clock.names)
    with contextlib.ExitStack() as held, selectors.DefaultSelector() as waiting:
        waiting.register(listener, selectors.EVENT_READ)
        try:
            while len(there) < total - 1 or not clock.resolve():
                for key, _ in waiting.select(_SECONDS_BETWEEN_LOOKS):
                    if key.fileobj is not listener:  # it says nothing more, so it has ended
                        waiting.unregister(key.fileobj)
                        there = {number: other for number, other in there.items() if other is not key.fileobj}
                        continue
                    connection = held.enter_context(listener.accept()[0])
                    number, found = _read(connection, total)
                    if number is not None:
                        there[number] = connection
                        waiting.register(connection, selectors.EVENT_READ)
                        if found != alike:
                            raise UserError(_difference(clock.names, number, alike, found))
                clock.check([number for number in range(1, total) if number not in there])
        except UserError as error:
            _tell(there.values(), f"{error}\n".encode())
            raise
        _tell(there.values(), _GO)


def _tell(connections: Iterable[socket.socket], line: bytes) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):  # it has ended, which TensorFlow will notice
            connection.sendall(line)


def _read(connection: socket.socket, total: int) -> tuple[int | None, Mapping[str, int | str]]:
    """The number of a worker that has connected, and its `alike`; None for whatever else connects to ports."""
    connection.settimeout(_SECONDS_TO_ANSWER)
    try:
        with connection.makefile("rb") as stream:
            found = json.loads(stream.readline(_MOST_BYTES))
        number, alike = found["index"], found["alike"]
        if type(number) is int and 0 < number < total and isinstance(alike, dict):
            return number, alike
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None, {}


def _difference(
    names: Sequence[str], number: int, alike: Mapping[str, int | str], found: Mapping[str, int | str]
) -> str:
    what = next(name for name in {**alike, **found} if alike.get(name) != found.get(name))
    return (
        f"{what} must be the same for all workers: {names[0]} has {alike.get(what)}, {names[number]} has"
        f" {found.get(what)}"
    )


def _report(chief: str, message: Mapping[str, Any], clock: _Clock) -> None:
    """The part of the others: calls the chief until it answers."""
    line = json.dumps(message).encode() + b"\n"
    while True:
        answer = b""
        with contextlib.suppress(OSError), _call(chief) as connection:
            connection.sendall(line)
            connection.settimeout(_SECONDS_BETWEEN_LOOKS)
            answer = _answer(connection, clock)
        if answer == _GO:
            return
        if answer.endswith(b"\n"):
            raise UserError(answer.decode(errors="replace").strip())
        clock.check([0])
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _answer(connection: socket.socket, clock: _Clock) -> bytes:
    """The line that the chief says once it has met all workers; incomplete if it has ended."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _MOST_BYTES:
        try:
            more = connection.recv(4096)
        except TimeoutError:
            clock.check([0])
            continue
        if not more:
            break
        line += more
    return line

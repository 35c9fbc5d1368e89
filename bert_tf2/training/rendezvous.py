"""How the workers of a training find each other, before TensorFlow connects them.

TensorFlow waits for missing workers without a word and without an end, and Ctrl-C does not reach it. So the workers
wait for each other first, at the address of the first one, the chief, which TensorFlow opens only later:

    each other worker -> chief: its number, and what must be alike      all are there: chief -> each: go, or why not
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Mapping, Sequence

from absl import logging

from bert_tf2.support.errors import UserError

# Machines of a cluster start minutes apart, if a scheduler has to find or to prepare them; in Kubernetes, a pod's name
# is known only when it runs.
SECONDS = 600.0
_SECONDS_BETWEEN_REMINDERS = 20.0
_SECONDS_TO_ANSWER = 2.0
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_QUERIES = 2.0
_GO = b"go\n"
_MOST_BYTES = 1 << 20


def wait_for_workers(
    addresses: Sequence[str], index: int, names: Sequence[str], alike: Mapping[str, int | str]
) -> None:
    """Returns when all workers have called this, and no longer than a second apart.

    `addresses`, HOST:PORT, begin with the chief's; `index` is this worker; `alike` must be the same for all, by name.
    """
    alike = {**alike, "the cluster in TF_CONFIG": " ".join(addresses)}
    names = [f"{name} ({address})" for name, address in zip(names, addresses, strict=True)]
    try:
        listener = socket.create_server(("", _split(addresses[index])[1]), backlog=1024)
    except OSError as error:
        raise UserError(
            f"TF_CONFIG: {names[index]}: its port cannot be opened ({error.strerror}); is another worker running there?"
        ) from error
    with listener:  # at the end, the port is free again, for TensorFlow
        _wait_for_addresses({name: _split(address)[0] for name, address in zip(names, addresses, strict=True)})
        if index == 0:
            _gather(listener, alike, names)
        else:
            _report(addresses[0], {"index": index, "alike": alike}, names[0])


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


def _wait_for_addresses(hosts: Mapping[str, str]) -> None:
    """Returns when all hosts, by the names of their workers, have addresses, which TensorFlow needs."""
    end, waiting = time.monotonic() + SECONDS, dict(hosts)
    while waiting:
        name, host = next(iter(waiting.items()))
        try:
            socket.getaddrinfo(host, None)
            del waiting[name]
        except (OSError, UnicodeError) as error:  # UnicodeError: no name can be like that
            sentence = f"the host of {name} has no address ({error}); correct its name, the same for all workers"
            if time.monotonic() >= end:
                raise UserError(f"TF_CONFIG: {sentence}") from error
            logging.log_first_n(logging.WARNING, "Waiting, because %s", 1, sentence)
            time.sleep(_SECONDS_BETWEEN_QUERIES)


class _Patience:
    """Tells from time to time who is missing, and when the time is over."""

    def __init__(self):
        self._end = time.monotonic() + SECONDS
        self._remind_at = time.monotonic() + _SECONDS_BETWEEN_REMINDERS

    def check(self, missing: Sequence[str]) -> None:
        """Raises UserError if the time is over for the missing workers."""
        now, who = time.monotonic(), " and ".join(missing)
        if now >= self._end:
            raise UserError(
                f"{who} did not come within {SECONDS / 60:.0f} minutes; start the same command there, with a TF_CONFIG"
                " that differs only in its task, and see that the port can be reached"
            )
        if now >= self._remind_at:
            self._remind_at = now + _SECONDS_BETWEEN_REMINDERS
            logging.info("Waiting for %s", who)


def _gather(listener: socket.socket, alike: Mapping[str, int | str], names: Sequence[str]) -> None:
    """The chief's part: waits until all are there at the same time, then lets them go."""
    there: dict[int, socket.socket] = {}
    patience, answer = _Patience(), b""
    with contextlib.ExitStack() as held:
        try:
            while missing := [name for number, name in enumerate(names) if number and number not in there]:
                readable, _, _ = select.select([listener, *there.values()], [], [], _SECONDS_BETWEEN_LOOKS)
                # A worker says nothing more, so one that can be read has ended.
                there = {number: other for number, other in there.items() if other not in readable}
                if listener not in readable:
                    patience.check(missing)
                    continue
                connection = held.enter_context(listener.accept()[0])
                if (found := _read(connection)) and found[0] in range(1, len(names)):
                    worker, theirs = found
                    there[worker] = connection
                    for what, ours in alike.items():
                        if ours != theirs.get(what):
                            both = f"{names[0]} has {ours}, {names[worker]} has {theirs.get(what)}"
                            raise UserError(f"{what} must be the same for all workers: {both}")
            answer = _GO
        except UserError as error:
            answer = f"{error}\n".encode()
            raise
        finally:
            for connection in there.values():
                with contextlib.suppress(OSError):  # it has ended, which TensorFlow will notice
                    connection.sendall(answer)


def _read(connection: socket.socket) -> tuple[int, Mapping[str, int | str]] | None:
    """The number of a worker that has connected, and its `alike`; None for whatever else connects to ports."""
    connection.settimeout(_SECONDS_TO_ANSWER)
    try:
        with connection.makefile("rb") as stream:
            found = json.loads(stream.readline(_MOST_BYTES))
        return found["index"], dict(found["alike"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _report(chief: str, message: Mapping[str, object], name: str) -> None:
    """The part of the others: calls the chief until it answers."""
    line = json.dumps(message).encode() + b"\n"
    patience, answer = _Patience(), b""
    while not answer.endswith(b"\n"):
        answer = b""
        with contextlib.suppress(OSError), _call(chief) as connection:
            connection.sendall(line)
            while not answer.endswith(b"\n") and len(answer) < _MOST_BYTES:
                if not select.select([connection], [], [], _SECONDS_BETWEEN_LOOKS)[0]:
                    patience.check([name])
                elif more := connection.recv(4096):
                    answer += more
                else:
                    break  # the chief has ended
        if not answer.endswith(b"\n"):
            patience.check([name])
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    if answer != _GO:
        raise UserError(answer.decode(errors="replace").strip())

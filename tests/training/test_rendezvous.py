"""Workers that meet before TensorFlow connects them: threads in place of processes."""

from __future__ import annotations

import json
import re
import socket
import threading
import time

import pytest
from refused import message_of
from worker_processes import free_ports

from bert_tf2.training import workers as rendezvous


def addresses(count: int) -> list[str]:
    return [f"localhost:{port}" for port in free_ports(count)]


def names(count: int) -> list[str]:
    return [f"worker {number}" for number in range(count)]


ALIKE = {"the number of GPUs": 0}


class Worker(threading.Thread):
    """One that meets the others; `error` is what it raised."""

    def __init__(self, where: list[str], index: int, alike: dict = ALIKE):
        super().__init__(daemon=True)
        self._arguments = where, index, names(len(where)), alike
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            rendezvous.wait_for_workers(*self._arguments)
        except Exception as error:
            self.error = error

    def is_through(self) -> bool:
        self.join(10)
        return not self.is_alive() and self.error is None


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_nobody_goes_on_before_the_last_has_come(order):
    where = addresses(3)
    first, second = (Worker(where, index) for index in order[:2])
    time.sleep(0.5)
    assert first.is_alive() and second.is_alive()
    last = Worker(where, order[2])
    assert first.is_through() and second.is_through() and last.is_through()
    with socket.create_server(("", int(where[0].split(":")[1]))):
        pass  # the port is free again


def test_other_callers_of_the_port_are_no_workers():
    where = addresses(2)
    chief = Worker(where, 0)
    for line in (b"GET / HTTP/1.1\r\n", b"", b"[" * 100_000, b'{"index": 1}\n', b'{"index":\n'):
        while not rendezvous.listens(where[0]):
            time.sleep(0.01)
        with socket.create_connection(("localhost", int(where[0].split(":")[1]))) as connection:
            connection.sendall(line)
    assert chief.is_alive()
    assert Worker(where, 1).is_through() and chief.is_through()


STRANGE = [
    {"index": 1.0, "alike": {}},
    {"index": 1, "alike": {}},
    {"index": True, "alike": {}},
    {"index": 1, "alike": {"the number of GPUs": 7}},
    {"index": 1, "alike": [["a", 1]]},
    {"index": 1, "alike": {"the cluster in TF_CONFIG": 5}},
    {"index": 7, "alike": {"the cluster in TF_CONFIG": "a"}},
    {"index": "1", "alike": None},
    [1],
    None,
]


def test_a_stranger_s_message_is_ignored_and_told_once(log_lines):
    where = addresses(2)
    chief = Worker(where, 0)
    for message in STRANGE:
        while not rendezvous.listens(where[0]):
            assert chief.is_alive()
            time.sleep(0.01)
        with socket.create_connection(("localhost", int(where[0].split(":")[1]))) as connection:
            connection.sendall(json.dumps(message).encode() + b"\n")
    assert chief.is_alive()
    assert Worker(where, 1).is_through() and chief.is_through()
    (told,) = (line for line in log_lines if "no worker" in line)
    assert "127.0.0.1" in told or "::1" in told


def test_another_program_at_the_address_of_the_chief_is_told(monkeypatch, log_lines):
    monkeypatch.setattr(rendezvous, "SECONDS", 1.0)
    with socket.create_server(("", 0)) as other:
        where = [f"localhost:{other.getsockname()[1]}", *addresses(1)]

        def answer() -> None:
            while True:
                connection = other.accept()[0]
                with connection:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        message = message_of(rendezvous.wait_for_workers, where, 1, names(2), ALIKE)
    assert f"worker 0 ({where[0]}) did not come" in message
    (told,) = (line for line in log_lines if "no worker" in line)
    assert where[0] in told and "HTTP/1.1" in told


def test_a_worker_that_ended_and_came_again_counts_once():
    where = addresses(3)
    chief = Worker(where, 0)
    while not rendezvous.listens(where[0]):
        time.sleep(0.01)
    other = Worker(where, 1)
    with socket.create_connection(("localhost", int(where[0].split(":")[1]))) as connection:
        alike = {**ALIKE, "the cluster in TF_CONFIG": " ".join(where)}
        connection.sendall(json.dumps({"index": 2, "alike": alike}).encode() + b"\n")
    time.sleep(0.5)
    if chief.is_alive():  # it may have met all three before the connection ended
        assert other.is_alive()
        assert Worker(where, 2).is_through()
    assert chief.is_through() and other.is_through()


def test_who_does_not_come_is_named(monkeypatch, log_lines):
    monkeypatch.setattr(rendezvous, "SECONDS", 1.0)
    monkeypatch.setattr(rendezvous, "_SECONDS_BETWEEN_REMINDERS", 0.3)
    where = addresses(3)
    other = Worker(where, 1)
    assert f"worker 2 ({where[2]}) did not come within" in message_of(
        rendezvous.wait_for_workers, where, 0, names(3), ALIKE
    )
    assert f"Waiting for worker 2 ({where[2]})" in log_lines
    other.join(10)
    assert re.match(r"worker [02] \(localhost:\d+\) did not come within", str(other.error))


@pytest.mark.parametrize("what", ["the number of GPUs", "the cluster in TF_CONFIG"])
def test_workers_that_differ_from_the_chief_end_all_of_them(what):
    where = addresses(3)
    other_cluster = [*where[:2], "127.0.0.9:1"]
    other = Worker(where, 1)
    wrong = Worker(where, 2, {what: 4}) if what in ALIKE else Worker(other_cluster, 2)
    message = message_of(rendezvous.wait_for_workers, where, 0, names(3), ALIKE)
    assert message.startswith(f"{what} must be the same for all workers: worker 0 ({where[0]}) has ")
    assert message.endswith("has 4" if what in ALIKE else f"has {' '.join(other_cluster)}")
    wrong.join(10)
    assert str(wrong.error) == message
    if other.error is None:  # it may have called after that
        other.join(0.1)
    assert other.error is None or str(other.error) == message


def test_a_port_in_use_is_told():
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        where = [f"localhost:{port}", "localhost:1"]
        message = message_of(rendezvous.wait_for_workers, where, 0, names(2), ALIKE)
    assert f"worker 0 (localhost:{port}): its port cannot be opened" in message


def test_a_host_without_an_address_is_told_at_once_and_ends_all(monkeypatch, log_lines):
    monkeypatch.setattr(rendezvous, "SECONDS", 1.0)
    monkeypatch.setattr(rendezvous, "_SECONDS_BETWEEN_QUERIES", 0.3)
    where = [*addresses(1), "no-such-host.invalid:2222"]
    other = Worker(where, 1)
    message = message_of(rendezvous.wait_for_workers, where, 0, names(2), ALIKE)
    assert message.startswith("TF_CONFIG: the host of worker 1 (no-such-host.invalid:2222) has no address (")
    assert log_lines[0].startswith("Waiting, because the host of worker 1 (no-such-host.invalid:2222) has no address")
    other.join(10)
    assert str(other.error).startswith("TF_CONFIG: the host of worker 1 ")

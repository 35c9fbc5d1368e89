"""Several processes that train one model: TF_CONFIG, meeting, shares of batches, equality, kills, signals, networks."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import time

import command_lines as lines
import networks
import numpy as np
import pytest
import tensorflow as tf
from refused import message_of, refuses
from small_trainings import saved
from worker_processes import WorkerProcesses, free_addresses, pretraining_command, tf_config

from bert_tf2.data.record_order import Share
from bert_tf2.training.devices import join
from bert_tf2.training.options import TrainingOptions
from bert_tf2.training.rendezvous import Cluster, listens, wait_for_workers
from bert_tf2.training.workers import Team, find_cluster, is_chief, workers_of

TWO = {"worker": ["one:2222", "two:2222"]}


def environment(cluster, kind="worker", index=0, **more) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}, **more})}


# TF_CONFIG


def test_a_cluster_has_the_chief_first():
    cluster = find_cluster(environment({"worker": ["b:1", "c:2"], "chief": ["a:1"]}, index="1", environment="cloud"))
    assert cluster == (("chief 0", "worker 0", "worker 1"), ("a:1", "b:1", "c:2"), 2)
    assert cluster.name(2) == "worker 1 (c:2)"
    assert find_cluster(environment({"worker": ["b:1"], "ps": []})) is None and find_cluster({"TF_CONFIG": " "}) is None


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"TF_CONFIG": "{'cluster'"}, "property name"),
        ({"TF_CONFIG": json.dumps({"cluster": TWO})}, '"task"'),
        (environment({"worker": ["one:1"], "ps": ["two:1"]}), "'ps' .*leave"),
        (environment({**TWO, "master": ["three:1"]}), "'master' .*worker"),
        (environment(TWO, "evaluator"), "'evaluator' .*the first worker evaluates"),
        (environment(TWO, index=2), "worker 2 .*: worker 0, worker 1"),
        *((environment({"worker": [at, "two:1"]}), f"'{at}' is not HOST:PORT") for at in ("one:70000", "one:0")),
        (environment({"worker": ["one:1", "two:1", "one:1"]}), "same.* its own address"),
    ],
)
def test_a_wrong_tf_config_is_refused_with_an_example(found, words):
    message = message_of(find_cluster, found)
    assert message.startswith("TF_CONFIG: ") and re.search(words, message) and "host1:2222" in message


def options(**more) -> TrainingOptions:
    return TrainingOptions(bert_config_file="c", output_dir="o", **more)


def test_tf_config_decides_but_with_a_tpu(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", environment(TWO, index=1)["TF_CONFIG"])
    assert workers_of(options()).index == 1 and not is_chief(options())
    assert workers_of(options(use_tpu=True)) is None and is_chief(options(use_tpu=True))
    # Before the workers wait for each other.
    for size, parts in ((1, 1), (6, 2)):
        how = {"train_batch_size": size, "gradient_accumulation_steps": parts}
        refuses(f"--train_batch_size={size}", join, options(do_train=True, **how))
    monkeypatch.delenv("TF_CONFIG")
    assert workers_of(options()) is None


# Meeting, with threads in place of processes

ALIKE, CLUSTER = {"the number of GPUs": 0}, "the cluster in TF_CONFIG"
NAMES = ["worker 0", "worker 1", "worker 2"]


def cluster(where: list[str], index: int) -> Cluster:
    return Cluster(tuple(NAMES[: len(where)]), tuple(where), index)


class Worker(threading.Thread):
    """A worker that meets the others; `error` is the error that was raised."""

    def __init__(self, where: list[str], index: int, alike: dict = ALIKE, **how):
        super().__init__(daemon=True)
        self._arguments, self._how = (cluster(where, index), alike), how
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            wait_for_workers(*self._arguments, **self._how)
        except Exception as error:
            self.error = error

    def is_through(self) -> bool:
        self.join(10)
        return not self.is_alive() and self.error is None


def say(where: str, line: bytes) -> None:
    """Another program that writes a line to a port and ends."""
    while not listens(where):
        time.sleep(0.01)
    with socket.create_connection(("localhost", int(where.split(":")[1]))) as connection:
        connection.sendall(line)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_nobody_goes_on_before_the_last_has_come(order):
    where = free_addresses(3)
    early = [Worker(where, index) for index in order[:2]]
    time.sleep(0.5)
    assert all(worker.is_alive() for worker in early)
    assert all(worker.is_through() for worker in [*early, Worker(where, order[2])])
    with socket.create_server(("", int(where[0].split(":")[1]))):
        pass  # the port is free again


STRANGE = [
    *({"index": index, "alike": {CLUSTER: "a"}} for index in (0, 7, "1", 1.0, True)),
    *({"index": 1, "alike": alike} for alike in ({}, [["a", 1]], {CLUSTER: 5}, None)),
    *([1], None),
]


def test_other_callers_of_the_port_are_no_workers_and_reported_once(log_lines):
    where = free_addresses(2)
    chief = Worker(where, 0)
    said = (json.dumps(message).encode() + b"\n" for message in STRANGE)
    for line in (b"GET / HTTP/1.1\r\n", b"", b"[" * 100_000, b'{"index":\n', *said):
        say(where[0], line)
    assert chief.is_alive() and Worker(where, 1).is_through() and chief.is_through()
    assert len([line for line in log_lines if "not a worker" in line and ("127.0.0.1" in line or "::1" in line)]) == 1


def test_a_worker_that_ended_and_came_again_counts_once():
    where = free_addresses(3)
    chief, other = Worker(where, 0), Worker(where, 1)
    say(where[0], json.dumps({"index": 2, "alike": {**ALIKE, CLUSTER: " ".join(where)}}).encode() + b"\n")
    time.sleep(0.5)
    if chief.is_alive():  # it may have met all three before the connection ended
        assert other.is_alive() and Worker(where, 2).is_through()
    assert chief.is_through() and other.is_through()


def test_who_does_not_come_is_named(log_lines):
    where, how = free_addresses(3), {"seconds": 1.0, "seconds_between_reminders": 0.3}
    other = Worker(where, 1, **how)
    refuses(f"worker 2 ({where[2]})", wait_for_workers, cluster(where, 0), ALIKE, **how)
    assert f"Waiting for worker 2 ({where[2]})" in log_lines
    other.join(10)
    assert re.match(r"worker [02] \(localhost:\d+\) did not connect", str(other.error))


@pytest.mark.parametrize("what", [*ALIKE, CLUSTER])
def test_workers_that_differ_from_the_chief_end_all_of_them(what):
    where = free_addresses(3)
    other = Worker(where, 1)
    wrong = Worker(where, 2, {what: 4}) if what in ALIKE else Worker([*where[:2], "127.0.0.9:1"], 2)
    message = message_of(wait_for_workers, cluster(where, 0), ALIKE)
    assert message.startswith(f"{what} must be the same for all workers: worker 0 ({where[0]}) has ")
    for worker in (wrong, other):
        worker.join(0.5)
    assert str(wrong.error) == message and str(other.error or message) == message  # the other one may have called late


def test_addresses_that_cannot_be_used(log_lines):
    with socket.create_server(("", 0)) as used:
        where = [f"localhost:{used.getsockname()[1]}", "localhost:1"]
        refuses(f"worker 0 ({where[0]}) port", wait_for_workers, cluster(where, 0), ALIKE)
    where = [*free_addresses(1), "no-such-host.invalid:2222"]
    message = message_of(wait_for_workers, cluster(where, 0), ALIKE, seconds=1.0)
    assert message.startswith("TF_CONFIG: the host of worker 1 (no-such-host.invalid:2222) has no address")
    assert "worker 1 (no-such-host.invalid:2222)" in log_lines[0]


# Shares


@pytest.mark.parametrize(("batch_size", "number", "devices"), [(6, 1, 1), (7, 3, 1), (11, 3, 2), (6, 3, 2)])
def test_shares_hold_every_row_once_and_in_order(batch_size, number, devices):
    rows = np.arange(3 * batch_size)
    data = tf.data.Dataset.from_tensor_slices((rows, {"record": rows})).batch(batch_size)
    parts = []
    for worker in range(number):
        taken = Share(worker * devices, devices, number * devices).take(data, batch_size).as_numpy_iterator()
        parts.append([(some.tolist(), more["record"].tolist()) for some, more in taken])
    assert [len(part) for part in parts] == [3 * devices] * number
    for step in range(3):
        of_step = [part[step * devices + device] for part in parts for device in range(devices)]
        assert [row for some, _ in of_step for row in some] == rows.tolist()[step * batch_size :][:batch_size]
        assert all(some and some == more for some, more in of_step)
        assert max(len(some) for some, _ in of_step) - min(len(some) for some, _ in of_step) <= 1


def test_of_the_devices_of_a_worker_one_gives_its_number(two):
    team = Team(Cluster(("worker 0",), ("one:1",), 0), two)
    assert team.gather(2**52 + 1) == [2**52 + 1] and team.share == Share(0, 2, 2)


# Processes


_TEAM = """
import json, os, sys
import tensorflow as tf
from bert_tf2.support.errors import UserError
from bert_tf2.training import workers
from bert_tf2.training.gradients import Gradients, global_norm, reduce_gradients
from bert_tf2.training.options import DeviceOptions
other = os.fork()  # a second process that has imported TensorFlow, and used no device
os.environ["TF_CONFIG"] = sys.argv[1 if other else 2]
team = workers.connect(workers.find_cluster())
found = [team.gather(7 + team.index), team.broadcast_from_chief(3 + team.index), team.share]
team.check_same("all", "differ in nothing")
for precision in ("float32", ["float32", "bfloat16"][team.index]):
    try:
        team.check_options(DeviceOptions(precision=precision))
    except UserError as error:
        found.append(str(error))
sums = tf.function(lambda x: team.strategy.run(lambda x: reduce_gradients(Gradients({"x": x + 0.0}, {})), args=(x,)))
summed = sums(tf.constant([3.0 - 2.0 * team.index, 3.0]))
line = json.dumps([*found, summed.dense["x"].numpy().tolist(), float(global_norm(summed))]) + "\\n"
os.write(1, line.encode())  # at once, because both processes have this output
os._exit(os.waitstatus_to_exitcode(os.wait()[1]) if other else 0)
"""


def test_workers_sum_gradients_and_compare_settings(command_lines, tmp_path):
    where = free_addresses(2)
    (tmp_path / "team.py").write_text(_TEAM)
    done = command_lines.run(str(tmp_path / "team.py"), *(tf_config(where, index) for index in range(2)))
    found = sorted(json.loads(line) for line in done.stdout.splitlines())
    assert done.status == 0 and len(found) == 2, done.stderr
    for index, (numbers, of_chief, share, differ, summed, norm) in enumerate(found):
        assert (numbers, of_chief, share, summed) == ([7, 8], 3, [index, 1, 2], [4.0, 6.0])
        assert norm == pytest.approx(52**0.5) and "--precision" in differ
        assert all(f"worker {number} ({where[number]})" in differ for number in range(2))


@pytest.fixture(scope="module")
def command(tmp_path_factory) -> list[str]:
    return pretraining_command(tmp_path_factory.mktemp("task"))


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize(("count", "steps"), [(2, 4), pytest.param(3, 20, marks=pytest.mark.soak)])
def test_workers_train_as_one_process_does(command, tmp_path, count, steps):
    command = [*command, f"--num_train_steps={steps}", f"--eval_steps={steps // 2}"]
    with WorkerProcesses([*command, f"--output_dir={tmp_path}/team"], count, tmp_path / "logs") as team:
        lines.call("run_pretraining.py", *command[2:], f"--output_dir={tmp_path}/alone")
        assert team.wait(300) == [0] * count, team.log(0)
        assert "This is worker 1 (localhost:" in team.log(1) and "Saved" not in team.log(1)
    alone, together = saved(tmp_path / "alone"), saved(tmp_path / "team")
    assert alone["global_step"] == steps
    for name, values in alone.items():
        np.testing.assert_allclose(together[name], values, rtol=0, atol=1e-6, err_msg=name)
    for name in ("eval_results.txt", "best/checkpoint"):
        alone, together = ((tmp_path / run / name).read_text() for run in ("alone", "team"))
        assert len(alone.splitlines()) == len(together.splitlines()) and alone.split()[0] == together.split()[0]


@pytest.mark.slow
def test_a_team_ends_together_and_continues(command, tmp_path):
    command = [*command, "--num_train_steps=1000000", "--save_checkpoints_steps=100", f"--output_dir={tmp_path}/out"]
    with WorkerProcesses(command, 2, tmp_path / "logs") as team:
        team.wait_for("model.ckpt-200")
        team.processes[1].send_signal(signal.SIGKILL)
        assert team.wait(60) == [1, -signal.SIGKILL]
        last = team.last_line(0)
        assert last.startswith("run_pretraining.py: error: worker 1 (localhost:") and "start all workers again" in last
    with WorkerProcesses(command, 2, tmp_path / "logs") as team:
        team.wait_for("Saved")
        team.processes[1].send_signal(signal.SIGTERM)
        assert team.wait(60) == [128 + signal.SIGTERM] * 2
        assert all("Continuing from" in team.log(index) for index in range(2))
        assert team.last_line(0) == team.last_line(1) and "by a signal to worker 1" in team.last_line(0)
        step = re.search(r"after step (\d+), which is saved", team.last_line(0))[1]
        assert (tmp_path / "out" / f"model.ckpt-{step}.index").exists()


@pytest.mark.slow
@pytest.mark.skipif(bool(networks.why_not()), reason=str(networks.why_not()))
def test_a_link_that_stays_cut(command, tmp_path):
    """Each worker takes the other one for dead, and a scheduler that starts both again ends the training."""
    command = [*command, "--num_train_steps=400", "--save_checkpoints_steps=50", f"--output_dir={tmp_path}/out"]
    with networks.Network(2) as network:
        with WorkerProcesses(command, 2, tmp_path / "logs", network) as team:
            team.wait_for("model.ckpt-100")
            network.cut(1)
            assert team.wait(60) == [1, 1]
            for index in range(2):
                last = team.last_line(index)
                assert f"error: worker {1 - index} (10.77.0.{2 - index}:" in last and "start all workers again" in last
        assert saved(tmp_path / "out")["global_step"] < 400
        network.mend(1)
        with WorkerProcesses(command, 2, tmp_path / "logs", network) as team:
            assert team.wait() == [0, 0], team.log(0)
    assert saved(tmp_path / "out")["global_step"] == 400

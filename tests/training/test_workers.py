"""Several processes that train one model: TF_CONFIG, shares of batches, equality, kills, signals."""

from __future__ import annotations

import json
import re
import signal
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from refused import message_of
from small_models import MAKERS, batch_for, tiny_config
from worker_processes import WorkerProcesses, pretraining_command, weights

from bert_tf2.data.record_order import Share
from bert_tf2.training import forward, workers
from bert_tf2.training.devices import build_model, join
from bert_tf2.training.options import TrainingOptions
from bert_tf2.training.workers import VARIABLE, find_cluster, is_chief, workers_of

TWO = {"worker": ["one:2222", "two:2222"]}


def environment(cluster, kind="worker", index=0, **more) -> dict[str, str]:
    return {VARIABLE: json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}, **more})}


# TF_CONFIG


def test_a_cluster_has_the_chief_first():
    cluster = find_cluster(environment({"worker": ["b:1", "c:2"], "chief": ["a:1"]}, index="1", environment="cloud"))
    assert cluster == (("chief 0", "worker 0", "worker 1"), ("a:1", "b:1", "c:2"), 2)
    assert cluster.name(2) == "worker 1 (c:2)"


WRONG = {
    "no JSON": ({VARIABLE: "{'cluster'"}, "property name"),
    "no task": ({VARIABLE: json.dumps({"cluster": TWO})}, 'needs a "cluster" and a "task"'),
    "index": (environment(TWO, index=2), "the task worker 2 is none of the cluster: worker 0, worker 1"),
    "evaluator": (environment({**TWO, "evaluator": ["c:1"]}, kind="evaluator"), "the task evaluator 0 is none"),
    "no port": (environment({"worker": ["one", "two:1"]}), "'one' is not HOST:PORT"),
    "large port": (environment({"worker": ["one:70000", "two:1"]}), "'one:70000' is not HOST:PORT"),
    "nobody": (environment({"worker": []}), "the task worker 0 is none"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_tf_config_is_told_with_an_example(case):
    found, expected = WRONG[case]
    message = message_of(find_cluster, found)
    assert message.startswith("TF_CONFIG: ") and expected in message
    assert """as an example: TF_CONFIG='{"cluster": {"worker": ["host1:2222", "host2:2222"]}""" in message


def options(**more) -> TrainingOptions:
    return TrainingOptions(bert_config_file="c", output_dir="o", **more)


def test_tf_config_decides_but_with_a_tpu(monkeypatch):
    monkeypatch.setenv(VARIABLE, environment(TWO, index=1)[VARIABLE])
    assert workers_of(options()).index == 1 and not is_chief(options())
    assert workers_of(options(use_tpu=True)) is None and is_chief(options(use_tpu=True))
    monkeypatch.delenv(VARIABLE)
    assert workers_of(options()) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_batch_size": 1}, "--train_batch_size=1 is smaller than the number of devices of all workers, 2"),
        (
            {"train_batch_size": 6, "gradient_accumulation_steps": 2},
            "--train_batch_size=6 is not divisible by 4, which",
        ),
    ],
)
def test_a_batch_that_cannot_be_shared_is_told_before_the_workers_wait(monkeypatch, settings, message):
    monkeypatch.setenv(VARIABLE, environment(TWO)[VARIABLE])
    monkeypatch.setattr(workers, "connect", None)
    assert message in message_of(join, options(do_train=True, **settings))


# Shares


@pytest.mark.parametrize("batch_size", [6, 7, 11])
@pytest.mark.parametrize(("number", "devices"), [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2)])
def test_shares_hold_every_row_once_and_in_order(batch_size, number, devices):
    rows = np.arange(3 * batch_size)
    data = tf.data.Dataset.from_tensor_slices((rows, {"record": rows})).batch(batch_size)
    parts = []
    for worker in range(number):
        share = Share(worker * devices, devices, number * devices)
        taken = share.take(data, batch_size).as_numpy_iterator()
        parts.append([(some.tolist(), more["record"].tolist()) for some, more in taken])
    assert [len(part) for part in parts] == [3 * devices] * number
    for step in range(3):
        of_step = [part[step * devices + device] for part in parts for device in range(devices)]
        assert [row for some, _ in of_step for row in some] == rows.tolist()[step * batch_size :][:batch_size]
        assert all(some and some == more for some, more in of_step)
        assert max(len(some) for some, _ in of_step) - min(len(some) for some, _ in of_step) <= 1


@pytest.mark.parametrize("kind", ["classifier", "pretraining"])
def test_a_worker_evaluates_on_its_own_devices_alone(two, monkeypatch, kind):
    """With two devices in one process, in place of a worker that has two; the last batch has one row."""
    model = build_model(two, lambda: MAKERS[kind](tiny_config()), 1)
    rows = {name: np.concatenate([values, values[:1]]) for name, values in batch_for(kind).items()}
    data = tf.data.Dataset.from_tensor_slices(rows).batch(4)
    expected = [*forward.Runner(model, two).run(data)]
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", tf.distribute.MirroredStrategy)
    monkeypatch.setattr(type(two), "experimental_distribute_dataset", None)  # it would ask the other workers
    found = [*forward.Runner(model, two).run(data)]
    assert [len(batch["input_ids"]) for batch in found] == [4, 1]
    for batch, other in zip(found, expected, strict=True):
        assert batch.keys() == other.keys()
        for name, values in batch.items():
            np.testing.assert_allclose(values, other[name], atol=1e-6, err_msg=name)


# Processes


@pytest.fixture(scope="module")
def command(tmp_path_factory) -> list[str]:
    return pretraining_command(tmp_path_factory.mktemp("task"))


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_workers_train_as_one_process_does(command, tmp_path, count):
    command = [*command, "--num_train_steps=20", "--eval_steps=10"]
    subprocess.run([*command, f"--output_dir={tmp_path}/alone"], check=True, capture_output=True)
    with WorkerProcesses([*command, f"--output_dir={tmp_path}/team"], count, tmp_path / "logs") as team:
        assert team.wait() == [0] * count
        assert "This is worker 1 (localhost:" in team.log(1) and "Saved" not in team.log(1)
    alone, together = weights(tmp_path / "alone"), weights(tmp_path / "team")
    assert alone.keys() == together.keys() and alone["global_step"] == 20
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
        last = team.log(0).strip().splitlines()[-1]
        assert last.startswith("run_pretraining.py: error: worker 1 (localhost:") and "start all workers again" in last
    with WorkerProcesses(command, 2, tmp_path / "logs") as team:
        team.wait_for("Saved")
        team.processes[1].send_signal(signal.SIGTERM)
        assert team.wait(60) == [128 + signal.SIGTERM] * 2
        assert all("Continuing from" in team.log(index) for index in range(2))
        stopped = [team.log(index).strip().splitlines()[-1] for index in range(2)]
        assert stopped[0] == stopped[1] and "stopped by a signal to worker 1" in stopped[0]
        step = re.search(r"after step (\d+), which is saved", stopped[0])[1]
        assert (tmp_path / "out" / f"model.ckpt-{step}.index").exists()

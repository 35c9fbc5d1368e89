"""Checkpoints that a thread writes: what was there when it began, whole, and its failures reach the training."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from bert_tf2.support import process
from bert_tf2.support.errors import UserError
from bert_tf2.training.saver import Saver, TrainingState
from bert_tf2.weights import checkpoint

STATE = TrainingState(8, {"random_seed": 1})


@pytest.fixture
def held(monkeypatch) -> threading.Event:
    """Writing does not go on until this is set."""
    event = threading.Event()
    save = checkpoint.CheckpointFolder.save

    def wait(*arguments):
        assert event.wait(10)
        return save(*arguments)

    monkeypatch.setattr(checkpoint.CheckpointFolder, "save", wait)
    return event


def value(folder) -> float:
    return float(checkpoint.Checkpoint(checkpoint.latest_checkpoint(str(folder))).get("v")[0])


def test_what_changes_after_the_call_is_not_written(tmp_path, held):
    variable = tf.Variable([1.0])
    with Saver(str(tmp_path), 5) as saver:
        saver.save({"v": variable}, 3, STATE)
        variable.assign([2.0])
        assert checkpoint.latest_checkpoint(str(tmp_path)) is None
        held.set()
        saver.wait()
        assert value(tmp_path) == 1.0
        saver.save({"v": variable}, 4, STATE)
    assert value(tmp_path) == 2.0
    assert {path.name for path in tmp_path.glob("*.json")} == {f"model.ckpt-{step}.training.json" for step in (3, 4)}


def test_the_variables_of_two_replicas(tmp_path, two):
    with two.scope():
        variable = tf.Variable([3.0])
    with Saver(str(tmp_path), 5) as saver:
        saver.save({"v": variable}, 1, STATE)
    assert value(tmp_path) == 3.0


def test_a_failure_is_raised_once_with_the_way_back(tmp_path, monkeypatch):
    saver = Saver(str(tmp_path), 5)
    saver.save({"v": tf.Variable([1.0])}, 3, STATE)
    saver.wait()

    def full(*arguments):
        raise UserError("No space left on device")

    monkeypatch.setattr(checkpoint.CheckpointFolder, "save", full)
    saver.save({"v": tf.Variable([1.0])}, 4, STATE)
    with pytest.raises(
        UserError, match=r"No space left on device; .*model\.ckpt-3 is there, the same command continues"
    ):
        saver.wait()
    saver.wait()
    with pytest.raises(UserError, match="No space left"), saver:
        saver.save({"v": tf.Variable([1.0])}, 5, STATE)


def test_an_error_of_the_training_waits_for_the_checkpoint_but_a_second_signal_does_not(tmp_path, held):
    threading.Timer(0.2, held.set).start()
    with pytest.raises(UserError, match="not finite"), Saver(str(tmp_path), 5) as saver:
        saver.save({"v": tf.Variable([1.0])}, 3, STATE)
        raise UserError("not finite")
    assert value(tmp_path) == 1.0
    held.clear()
    with pytest.raises(process.Stopped), Saver(str(tmp_path), 5) as saver:
        saver.save({"v": tf.Variable([2.0])}, 4, STATE)
        raise process.Stopped(15, "stopped at once")
    assert value(tmp_path) == 1.0
    held.set()
    saver.wait()


def test_only_so_many_are_kept(tmp_path):
    with Saver(str(tmp_path), 2) as saver:
        for step in (1, 2, 3):
            saver.save({"v": tf.Variable(np.zeros(3, np.float32))}, step, STATE)
    assert saver.count == 2
    assert {path.name for path in tmp_path.glob("*.json")} == {f"model.ckpt-{step}.training.json" for step in (2, 3)}

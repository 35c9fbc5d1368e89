"""Reading the curves of a training: what the monitor writes, resumed and running trainings, files that are none."""

from __future__ import annotations

import math

import pytest
import tensorflow as tf
from small_models import tiny_config
from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
from tensorboard.compat.proto import event_pb2

from bert_tf2.data.tfrecords import frames
from bert_tf2.support.errors import UserError
from bert_tf2.training import curves
from bert_tf2.training.monitor import TrainingMonitor, write_eval_results, write_scalars
from bert_tf2.training.options import TrainOptions


def train(folder, first, last, losses=lambda step: 1.0 / step, **options) -> None:
    """Writes the events of a training from one step to another, without training."""
    settings = {"num_train_steps": last, "num_warmup_steps": 0, "train_batch_size": 4, "log_steps": 1, **options}
    with TrainingMonitor(TrainOptions(output_dir=str(folder), **settings), first, tiny_config()) as watch:
        for step in range(first + 1, last + 1):
            watch.report(step, 1, {"loss": losses(step), "learning_rate": 0.5})


def write_events(path, *events: event_pb2.Event) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(frames(event.SerializeToString() for event in events))


def test_the_points_are_those_that_tensorboard_reads(tmp_path):
    train(tmp_path / "run", 0, 4, texts={"hyperparameters": "| setting | value |"})
    write_eval_results(str(tmp_path / "run"), {"global_step": 4, "masked_lm_accuracy": 0.25, "loss": 2.0})
    run = curves.read_run(str(tmp_path / "run"))
    assert run.name == "run" and run.folder == str(tmp_path / "run")
    for folder, prefix in ((tmp_path / "run", ""), (tmp_path / "run" / "eval", curves.EVAL)):
        theirs = event_accumulator.EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
        for name in theirs.Tags()["tensors"]:
            if name not in ("hyperparameters", "bert_config"):
                points = [(each.step, float(tf.make_ndarray(each.tensor_proto))) for each in theirs.Tensors(name)]
                assert run.scalars[prefix + name] == points
    assert [step for step, _ in run.scalars["loss"]] == [1, 2, 3, 4]
    assert run.scalars["eval/masked_lm_accuracy"] == [(4, 0.25)]
    assert {*run.scalars} == {"loss", "learning_rate", "examples/sec", "eval/loss", "eval/masked_lm_accuracy"}
    assert run.texts["hyperparameters"] == "| setting | value |" and '"hidden_size": 8' in run.texts["bert_config"]


def test_a_resumed_training_replaces_what_it_repeats(tmp_path):
    train(tmp_path, 0, 6, lambda step: step)
    train(tmp_path, 3, 5, lambda step: 10 + step)  # killed at 6, resumed from the checkpoint at 3, still running
    assert curves.read_run(str(tmp_path)).scalars["loss"] == [(1, 1), (2, 2), (3, 3), (4, 14), (5, 15)]


def test_an_older_checkpoint_evaluated_later_keeps_the_other_evaluations(tmp_path):
    for step, value in ((5, 1.0), (10, 2.0), (5, 3.0)):
        write_scalars(str(tmp_path / "eval"), step, {"accuracy": value})
    assert curves.read_run(str(tmp_path)).scalars == {"eval/accuracy": [(5, 3.0), (10, 2.0)]}


def test_files_of_one_second_are_in_the_order_of_their_numbers(tmp_path):
    for serial in (8, 9, 10, 11):
        event = event_pb2.Event(wall_time=1e9, step=5)
        event.summary.value.add(tag="accuracy", simple_value=serial)
        write_events(tmp_path / "eval" / f"events.out.tfevents.1000000000.host.77.{serial}.v2", event)
    assert curves.read_run(str(tmp_path)).scalars == {"eval/accuracy": [(5, 11.0)]}


def test_a_name_of_a_file_may_have_any_characters(tmp_path):
    train(tmp_path, 0, 2)
    write_events(tmp_path / "events.out.tfevents.²", event_pb2.Event(wall_time=1.0))
    assert len(curves.read_run(str(tmp_path)).scalars["loss"]) == 2


def test_a_training_that_is_running_may_be_in_the_middle_of_a_point(tmp_path):
    train(tmp_path, 0, 3)
    (path,) = tmp_path.glob("events*")
    path.write_bytes(path.read_bytes()[:-5])
    run = curves.read_run(str(tmp_path))
    assert [step for step, _ in run.scalars["loss"]] == [1, 2, 3] and len(run.scalars["examples/sec"]) == 2
    (tmp_path / "events.out.tfevents.99.new.v2").write_bytes(b"")  # just created
    assert curves.read_run(str(tmp_path)) == run


def test_the_files_of_tensorflow_1_and_values_that_are_no_scalars(tmp_path):
    event = event_pb2.Event(wall_time=12.5, step=100)
    event.summary.value.add(tag="loss", simple_value=7.5)
    event.summary.value.add(tag="not_finite", simple_value=math.inf)
    event.summary.value.add(tag="histogram").histo.min = 1.0
    vector = tf.make_tensor_proto([1.0, 2.0]).SerializeToString()
    event.summary.value.add(tag="vector").tensor.ParseFromString(vector)
    event.summary.value.add(
        tag="zero"
    ).tensor.dtype = tf.float32.as_datatype_enum  # no values: TensorFlow fills it with zeros
    write_events(tmp_path / "events.out.tfevents.1.host", event_pb2.Event(wall_time=1.0, file_version="2"), event)
    run = curves.read_run(str(tmp_path))
    assert run.scalars == {"loss": [(100, 7.5)], "not_finite": [(100, math.inf)], "zero": [(100, 0.0)]}
    assert run.updated == 12.5


def test_a_folder_without_events_is_told_with_those_below_it(tmp_path):
    train(tmp_path / "seeds" / "one", 0, 1)
    with pytest.raises(UserError, match=r"seeds: has no events of a training .*; there are some in one within it"):
        curves.read_run(str(tmp_path / "seeds"))
    with pytest.raises(UserError, match=r"nowhere: no such folder$"):
        curves.read_run(str(tmp_path / "nowhere"))
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"file: is a file; name the folder of the training$"):
        curves.read_run(str(tmp_path / "file"))
    assert curves.has_events(str(tmp_path / "seeds" / "one")) and not curves.has_events(str(tmp_path / "seeds"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (frames([b"\xff\xff\xff"]), "record 1: is no event of TensorBoard"),
        (b"loss 1.0\n" * 9, "is text"),
        (frames([event_pb2.Event(step=1).SerializeToString()])[:-1] + b"\0", "record 1: the data do not match"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, message):
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as raised:
        curves.read_run(str(tmp_path))
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_tensorboard_forgets_the_points_behind_a_kill(tmp_path):
    """A run that was killed at step 25 goes on from its checkpoint of step 10."""
    train(tmp_path, 0, 25, log_steps=10)
    train(tmp_path, 10, 40, log_steps=10)
    # That of the server; the other one keeps all points of TensorFlow 2.
    found = plugin_event_accumulator.EventAccumulator(str(tmp_path), tensor_size_guidance={"scalars": 0}).Reload()
    assert [event.step for event in found.Tensors("loss")] == [1, 10, 11, 20, 30, 40]

"""The curves of trainings side by side, from the events that the training loop writes."""

from __future__ import annotations

import math
import time

import pytest
import tensorflow as tf
from command_lines import call
from refused import refuses

from bert_tf2.training import plots
from bert_tf2.training.monitor import TrainingMonitor, write_scalars
from bert_tf2.training.options import LoopOptions, PlotTrainingOptions


def train(folder, first, last, losses=float, **options) -> str:
    """Writes the events of a training from one step to another, without training."""
    settings = {"num_train_steps": last, "num_warmup_steps": 0, "train_batch_size": 4, "log_steps": 1, **options}
    with TrainingMonitor(LoopOptions(output_dir=str(folder), **settings), first) as watch:
        for step in range(first + 1, last + 1):
            watch.report(step, 1, {"loss": losses(step)})
    return str(folder)


@pytest.fixture
def runs(tmp_path) -> list[str]:
    """Two trainings; of the first with an evaluation, of the second a loss was not finite."""
    first = train(tmp_path / "first", 0, 3)
    write_scalars(f"{first}/eval", 3, {"eval_loss": 1.5, "loss": 1.6, "eval_accuracy": 0.75})
    return [first, train(tmp_path / "second", 0, 3, lambda step: math.nan if step == 2 else 9.0)]


def test_a_panel_for_each_curve_and_a_color_for_each_training(runs, tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure").Figure
    drawn, savefig = [], figure.savefig
    monkeypatch.setattr(figure, "savefig", lambda self, *a, **named: (drawn.append(self), savefig(self, *a, **named)))
    options = PlotTrainingOptions(output_dir=(*runs, runs[0]), output_file=str(tmp_path / "a.svg"))
    assert plots.run(options) == options.output_file and (tmp_path / "a.svg").read_text().startswith("<?xml")
    axes = {axis.get_title(): axis for axis in drawn[0].axes}
    assert [*axes] == ["loss", "accuracy", "examples/sec", "learning_rate"]
    first, evaluated, second, *_ = axes["loss"].lines
    assert [*first.get_xdata()] == [1, 2, 3] and [*first.get_ydata()] == [1, 2, 3]
    assert [*evaluated.get_xdata()] == [3] and [*evaluated.get_ydata()] == [1.5]
    assert first.get_color() == evaluated.get_color() != second.get_color() and math.isnan(second.get_ydata()[1])
    assert [text.get_text() for text in drawn[0].legends[0].texts] == runs


def test_points_behind_a_kill_are_forgotten_and_the_later_of_two_evaluations_counts(tmp_path):
    """A run that was killed at step 25 continues from its checkpoint of step 10."""
    train(tmp_path, 0, 25, log_steps=10)
    time.sleep(1.1)  # files of events that begin in the same second are read in the order of their names
    train(tmp_path, 10, 40, lambda step: 100.0 + step, log_steps=10)
    found = plots.read_scalars(str(tmp_path))
    assert {*found} == {"loss", "learning_rate", "examples/sec"} and [*found["loss"]] == [1, 10, 11, 20, 30, 40]
    assert found["loss"][20] > 100
    with tf.summary.create_file_writer(f"{tmp_path}/new").as_default():
        for step, value in ((5, 1.0), (10, 2.0), (5, 3.0)):  # an older checkpoint is evaluated anew
            tf.summary.scalar("accuracy", value, step=step)
    assert plots.read_scalars(f"{tmp_path}/new") == {"accuracy": {5: 3.0, 10: 2.0}}
    write_scalars(f"{tmp_path}/new", 7, {"accuracy": 4.0})
    assert [*plots.read_scalars(f"{tmp_path}/new")["accuracy"]] == [5, 7, 10]


def test_files_of_tensorflow_1_are_read_and_a_folder_without_curves_is_named(tmp_path):
    with tf.Graph().as_default():
        writer = tf.compat.v1.summary.FileWriter(f"{tmp_path}/old")
        writer.add_summary(tf.compat.v1.Summary(value=[{"tag": "loss", "simple_value": 7.5}]), 100)
        writer.close()
    assert plots.read_scalars(f"{tmp_path}/old") == {"loss": {100: 7.5}}
    (tmp_path / "events.out.tfevents.1.text").write_text("loss 1.0\n")
    for folder in (tmp_path, tmp_path / "nowhere"):
        refuses(
            f"{folder} curves", call, "plot_training.py", f"--output_dir={folder}", f"--output_file={tmp_path}/x.png"
        )

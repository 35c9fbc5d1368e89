"""The curves of trainings side by side: what is drawn, from the events that the training loop writes."""

from __future__ import annotations

import math
import re

import pytest
import tensorflow as tf

from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import WrongSetting
from bert_tf2.training import plots
from bert_tf2.training.monitor import write_scalars
from bert_tf2.training.options import PlotTrainingOptions

TRAINING = {"loss": [4.0, 2.0, 1.0], "learning_rate": [0.0, 1e-3, 5e-4], "examples/sec": [1.0, 90.0, 110.0]}


def write_run(folder, **changes) -> str:
    """The events of a training of 20 steps with an evaluation, as monitor.TrainingMonitor writes them."""
    writer = tf.summary.create_file_writer(str(folder))
    for number, step in enumerate((1, 10, 20)):
        with writer.as_default(step=step):
            tf.summary.text("hyperparameters", "| setting | value |\n|-|-|\n| train_batch_size | 16 |")
            for name, values in {**TRAINING, **changes}.items():
                tf.summary.scalar(name, values[number])
    writer.close()
    write_scalars(str(folder / "eval"), 20, {"eval_loss": 1.5, "loss": 1.6, "eval_accuracy": 0.75})
    return str(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("runs")
    return [write_run(folder / "first"), write_run(folder / "second", loss=[4.0, math.nan, 3.0])]


def options(runs, path, **changes) -> PlotTrainingOptions:
    return PlotTrainingOptions(output_dir=tuple(runs), output_file=str(path), **changes)


def test_the_figure_and_the_last_values(runs, tmp_path):
    pytest.importorskip("matplotlib")
    lines = plots.run(options(runs, tmp_path / "a.svg"))
    cells = {line[: line.index("  ")]: line.split()[-2:] for line in lines[1:-1]}
    assert lines[0].split() == ["first", "second"] and lines[-1] == str(tmp_path / "a.svg")
    assert cells == {
        "loss": ["1", "3"],
        "loss, evaluation": ["1.5", "1.5"],
        "accuracy, evaluation": ["0.75", "0.75"],
        "learning_rate": ["0.0005", "0.0005"],
        "examples/sec": ["110", "110"],
    }
    assert (tmp_path / "a.svg").read_text().count('<g id="axes_') == 4


def test_what_stands_where(runs):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    panels = plots.find_panels([plots._at(run, "examples") for run in plots.read_runs(runs)])
    plots.draw(figure, panels, ["first", "second"], "examples", 0.0)
    axes = {axis.get_title("left"): axis for axis in figure.axes}
    assert [*axes] == ["loss", "accuracy", "learning_rate", "examples/sec"]
    lines = [line for line in axes["loss"].lines if len(line.get_xdata())]
    (first, evaluated, second, _, broken) = lines
    assert [*first.get_xdata()] == [16, 160, 320] and [*first.get_ydata()] == [4, 2, 1]
    assert [*evaluated.get_xdata()] == [320] and [*evaluated.get_ydata()] == [1.5]
    assert first.get_color() == evaluated.get_color() != second.get_color()
    assert math.isnan(second.get_ydata()[1]) and [*broken.get_xdata()] == [160]
    (speed, _) = axes["examples/sec"].lines
    assert [*speed.get_xdata()] == [160, 320]  # without the point in which the graph was built
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts] == ["first", "second", "evaluation"]


def test_a_moving_average_by_hand():
    points = [(1, 4.0), (2, 2.0), (3, math.nan), (4, 1.0)]
    found = plots.smoothed(points, 0.5)
    assert [place for place, _ in found] == [1, 2, 3, 4]
    assert [found[0][1], found[1][1], found[3][1]] == pytest.approx([4, (2 + 0.5 * 4) / 1.5, (1 + 1 + 1) / 1.75])
    assert math.isnan(found[2][1])
    assert plots.smoothed(points[:2], 0.0) == points[:2]


def test_runs_of_the_same_name_are_told_apart():
    assert plots.labels(["a/first", "a/second/"]) == ["first", "second"]
    assert plots.labels(["/x/a/out", "/x/b/out"]) == ["a/out", "b/out"]
    assert plots.labels(["out", "/x/out"]) == ["out", "x/out"]


def test_a_folder_named_twice_is_one_run(runs):
    assert len(plots.read_runs([runs[0], f"{runs[0]}/", runs[1]])) == 2


def test_chosen_panels(runs, tmp_path):
    pytest.importorskip("matplotlib")
    lines = plots.run(options(runs[:1], tmp_path / "a.svg", curves="accuracy, loss"))
    assert [line.split()[0] for line in lines[1:-1]] == ["accuracy,", "loss", "loss,"]
    with pytest.raises(UserError, match="--curves=los: there is no curve 'los'; these are there: loss, accuracy, "):
        plots.run(options(runs, tmp_path / "b.svg", curves="los"))
    assert not (tmp_path / "b.svg").exists()


def test_what_cannot_be_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    write_scalars(str(tmp_path / "bare"), 1, {"loss": 1.0})
    with pytest.raises(UserError, match="bare: its events do not tell the batch size; leave out --x_axis=examples"):
        plots.run(options([tmp_path / "bare"], tmp_path / "a.png", x_axis="examples"))
    writer = tf.summary.create_file_writer(str(tmp_path / "begun"))
    with writer.as_default(step=0):
        tf.summary.text("hyperparameters", "none")
    writer.close()
    with pytest.raises(UserError, match="begun: no curve has two points yet, and nothing was evaluated"):
        plots.run(options([str(tmp_path / "begun")], tmp_path / "a.png"))
    with pytest.raises(WrongSetting, match=r"--output_file=a\.jpg: give a name that ends in \.png"):
        PlotTrainingOptions(output_dir=("a",), output_file="a.jpg")
    with pytest.raises(WrongSetting, match="--output_dir must be given"):
        PlotTrainingOptions(output_dir=())
    with pytest.raises(WrongSetting, match="output_dir='runs': a list of texts is needed, output_dir=\\['runs'\\]"):
        PlotTrainingOptions(output_dir="runs")


def test_folders_are_words_or_flags(command_lines, runs, tmp_path):
    pytest.importorskip("matplotlib")
    for arguments in ([*runs, "--output_file=x.png"], [runs[0], f"--output_dir={runs[1]}", "--output_file=x.png"]):
        done = command_lines.run("plot_training.py", *arguments, cwd=tmp_path)
        assert (done.status, done.stderr) == (0, "")
        assert {*done.stdout.splitlines()[0].split()} == {"first", "second"}
        assert (tmp_path / "x.png").stat().st_size > 1000
        (tmp_path / "x.png").unlink()
    done = command_lines.run("plot_training.py", cwd=tmp_path)
    assert (done.status, done.stdout) == (2, "") and "--output_dir must be given" in done.stderr
    done = command_lines.run("plot_training.py", str(tmp_path), cwd=tmp_path)
    assert done.status == 1 and re.match(rf"plot_training.py: error: {tmp_path}: has no events", done.stderr)

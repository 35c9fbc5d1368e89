"""Draws the curves of trainings side by side: the implementation of plot_training.py.

A panel for each curve: the losses, the measures of evaluations, learning rate, gradient norm, speed. A run has one
color everywhere; its training is a line, its evaluations are points.
"""

from __future__ import annotations

import collections
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bert_tf2.support import plots
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.training import curves
from bert_tf2.training.options import PlotTrainingOptions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]

SPEED = "examples/sec"
_FIRST = ("loss", "masked_lm_loss", "next_sentence_loss")
_LAST = ("learning_rate", "gradient_norm", SPEED)
_REPEATED = re.compile(r".*_perplexity|.*_log_likelihood|left_out")  # functions of a loss; what the log tells
_SCHEDULE = "learning_rate"
_FROM_ZERO = (SPEED, "gradient_norm")
_LEAST_HEIGHT = 0.1  # of the axis of a measure: the differences of a single evaluation would look large
_COLUMNS = 3
_PANEL = (4.4, 3.0)  # inches
_STYLES = ("-", "--", ":", "-.")


class Panel(NamedTuple):
    """The curves of one name: those of the training, and those of evaluations, by the index of the run."""

    name: str
    training: Mapping[int, Points]
    evaluations: Mapping[int, Points]


def run(options: PlotTrainingOptions) -> list[str]:
    """Writes the figure, and returns the last values of each run as a table.

    Raises:
      UserError: matplotlib is missing, a folder has no events of a training, no run has a curve of --curves, the batch
        size that --x_axis=examples needs is not known, or the figure cannot be written.
    """
    plots.require("plot_training.py")
    runs = read_runs(options.output_dir)
    names = labels([each.folder for each in runs])
    panels = find_panels([_at(each, options.x_axis) for each in runs])
    if not panels:
        raise UserError(f"{and_more(options.output_dir)}: no curve has two points yet, and nothing was evaluated")
    if options.curves is not None:
        panels = _chosen(panels, options.curves)
    rows = math.ceil(len(panels) / _COLUMNS)
    width = _PANEL[0] * min(len(panels), _COLUMNS)
    with plots.drawing(options.output_file, max(width, 5.0), _PANEL[1] * rows + 0.5) as figure:
        draw(figure, panels, names, options.x_axis, options.smoothing)
    return [*_table(panels, names), options.output_file]


def read_runs(folders: Sequence[str]) -> list[curves.Run]:
    """The runs of some folders, in this order; a folder that is named twice is read once. Raises UserError."""
    return [curves.read_run(folder) for folder in {os.path.normpath(folder): folder for folder in folders}.values()]


def labels(folders: Sequence[str]) -> list[str]:
    """A name for each folder: as many of the last parts of its path as tell all of them apart."""
    parts = [[part for part in os.path.normpath(folder).split("/") if part] for folder in folders]
    longest = max(map(len, parts))
    for count in range(1, longest + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len({*names}) == len(names):
            return names
    return list(folders)


def find_panels(runs: Sequence[Mapping[str, Points]]) -> list[Panel]:
    """The panels of some runs: losses first, then the measures of evaluations, then what describes the training.

    Args:
      runs: the points of each run by the names of `curves.Run.scalars`.
    """
    training: dict[str, dict[int, Points]] = collections.defaultdict(dict)
    evaluations: dict[str, dict[int, Points]] = collections.defaultdict(dict)
    for index, scalars in enumerate(runs):
        # eval_loss and loss of run_classifier.py differ in the weight of the last batch; the former is the mean.
        for name in sorted(scalars, key=lambda name: not name.startswith(f"{curves.EVAL}eval_")):
            if name.startswith(curves.EVAL):
                shown = name.removeprefix(curves.EVAL).removeprefix("eval_")
                evaluations[shown].setdefault(index, scalars[name])
            else:
                # The first point has the time in which the graph was built.
                training[name][index] = scalars[name][1:] if name == SPEED else scalars[name]
    found = sorted({*training, *evaluations} - {*_FIRST, *_LAST})
    order = [*_FIRST, *(name for name in found if not _REPEATED.fullmatch(name)), *_LAST]
    return [
        Panel(name, training.get(name, {}), evaluations.get(name, {}))
        for name in order
        if any(training.get(name, {}).values()) or any(evaluations.get(name, {}).values())
    ]


def smoothed(points: Points, smoothing: float) -> list[tuple[float, float]]:
    """The moving average of a curve, in which a point counts `smoothing` times as much as the next one.

    It is divided by the sum of the weights, so that it begins at the first value. Values that are not finite stay as
    they are, and count in no average.
    """
    total = weight = 0.0
    result = []
    for place, value in points:
        if math.isfinite(value):
            total, weight = smoothing * total + value, smoothing * weight + 1.0
            value = total / weight
        result.append((place, value))
    return result


def draw(figure: Figure, panels: Sequence[Panel], names: Sequence[str], x_axis: str, smoothing: float) -> None:
    """Draws the panels with a legend above; `x_axis` is the name of the horizontal axis."""
    rows = math.ceil(len(panels) / _COLUMNS)
    axes = [*figure.subplots(rows, min(len(panels), _COLUMNS), squeeze=False, sharex=True).flat]
    for axis, panel in zip(axes, panels, strict=False):
        _draw_panel(axis, panel, len(names), smoothing)
    for number, axis in enumerate(axes):
        if number >= len(panels):
            axis.remove()
        elif number + _COLUMNS >= len(panels):  # nothing below it
            axis.set_xlabel(x_axis)
            axis.tick_params(labelbottom=True)
    handles = [axes[0].plot([], [], label=name, **_line(index))[0] for index, name in enumerate(names)]
    if any(panel.evaluations for panel in panels):
        handles.append(axes[0].plot([], [], "o", color="0.4", markersize=5, label="evaluation")[0])
    figure.legend(handles=handles, loc="outside upper left", ncols=min(len(handles), 4), frameon=False)


def _line(index: int) -> dict[str, str]:
    return {"color": plots.COLORS[index % len(plots.COLORS)], "linestyle": _STYLES[index // len(plots.COLORS) % 4]}


def _draw_panel(axis: Axes, panel: Panel, runs: int, smoothing: float) -> None:
    for index in range(runs):
        line = _line(index)
        points = panel.training.get(index, ())
        if smoothing and points and panel.name != _SCHEDULE:
            axis.plot(*_columns(points), **line, linewidth=0.8, alpha=0.3)
            points = smoothed(points, smoothing)
        if points:
            alone = "o" if len(points) == 1 else None
            axis.plot(*_columns(points), **line, linewidth=1.5, marker=alone, markersize=3)
        if evaluated := panel.evaluations.get(index):
            axis.plot(*_columns(evaluated), color=line["color"], linestyle=":", linewidth=1, marker="o", markersize=5)
        broken = [place for place, value in (*points, *(evaluated or ())) if not math.isfinite(value)]
        if broken:  # on the lower edge: it has no height
            axis.plot(broken, [0.02] * len(broken), "x", color=line["color"], transform=axis.get_xaxis_transform())
    if panel.name in _FROM_ZERO:
        axis.set_ylim(bottom=0)
    elif (flat := _LEAST_HEIGHT - (axis.get_ylim()[1] - axis.get_ylim()[0])) > 0 and not panel.training:
        axis.set_ylim(axis.get_ylim()[0] - flat / 2, axis.get_ylim()[1] + flat / 2)
    axis.set_title(panel.name, loc="left", fontsize=10)
    axis.grid(alpha=0.25)
    axis.margins(x=0.03)
    axis.ticklabel_format(axis="y", scilimits=(-3, 5))
    axis.locator_params(axis="x", nbins=5, integer=True)


def _columns(points: Points) -> tuple[list[float], list[float]]:
    """The places and the values; NaN, a gap in the line, for a value that is not finite."""
    places, values = zip(*points, strict=True)
    return [*places], [value if math.isfinite(value) else math.nan for value in values]


def _at(each: curves.Run, x_axis: str) -> dict[str, Points]:
    """The curves of a run at their places on the horizontal axis, steps or examples."""
    if x_axis == "steps":
        return dict(each.scalars)
    rows = each.settings.get("train_batch_size", "")
    if not rows.isdecimal():
        raise UserError(f"{each.folder}: its events do not tell the batch size; leave out --x_axis=examples")
    return {name: [(step * int(rows), value) for step, value in points] for name, points in each.scalars.items()}


def _chosen(panels: Sequence[Panel], wanted: str) -> list[Panel]:
    by_name = {panel.name: panel for panel in panels}
    names = [name.strip() for name in wanted.split(",")]
    for name in names:
        if name not in by_name:
            raise UserError(f"--curves={wanted}: there is no curve {name!r}; these are there: {and_more([*by_name])}")
    return [by_name[name] for name in names]


def _table(panels: Sequence[Panel], names: Sequence[str]) -> list[str]:
    """The last value of every curve, a column for each run; evaluations stand behind the training."""
    rows = [["", *names]]
    for panel in panels:
        for kind, curve in (("", panel.training), (", evaluation", panel.evaluations)):
            if any(curve.values()):
                last = [curve.get(index) for index in range(len(names))]
                rows.append([panel.name + kind, *(f"{points[-1][1]:.4g}" if points else "-" for points in last)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"{name:<{widths[0]}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        for name, *cells in rows
    ]

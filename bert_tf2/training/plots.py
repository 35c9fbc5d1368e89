"""Draws the curves of training runs side by side, from TensorBoard events: the implementation of plot_training.py."""

from __future__ import annotations

import collections
import math
import os

from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from bert_tf2.support import files, plots
from bert_tf2.support.errors import UserError
from bert_tf2.training.options import PlotTrainingOptions

_COLUMNS = 3


def run(options: PlotTrainingOptions) -> str:
    """Draws a panel for each curve, with a color for each training run: steps as a line, evaluations as points."""
    panels: dict[str, dict[tuple[str, str], dict[int, float]]] = collections.defaultdict(dict)
    for folder in options.output_dir:
        found = {".-": read_scalars(folder), "o:": read_scalars(os.path.join(folder, "eval"))}
        if not any(found.values()):
            raise UserError(f"{folder}: has no curves (events.out.tfevents.*); name the output_dir of a training")
        for style, curves in found.items():
            # run_classifier.py writes eval_loss and loss; eval_loss, the mean over all examples, is drawn.
            for name in sorted(curves, reverse=True):
                panels[name.removeprefix("eval_")][folder, style] = curves[name]
    rows = math.ceil(len(panels) / _COLUMNS)
    colors = {folder: f"C{number}" for number, folder in enumerate(dict.fromkeys(options.output_dir))}
    with plots.drawing(options.output_file, 4.4 * _COLUMNS, 3 * rows + 0.5) as figure:
        axes = figure.subplots(rows, _COLUMNS, squeeze=False).flat
        for name in sorted(panels, key=lambda name: (not name.endswith("loss"), name)):
            axis = next(axes)
            for (folder, style), points in panels[name].items():
                axis.plot([*points], [*points.values()], style, color=colors[folder])
            axis.set(title=name, xlabel="step")
        for unused in axes:
            unused.remove()
        handles = [figure.axes[0].plot([], [], color=color, label=folder)[0] for folder, color in colors.items()]
        figure.legend(handles=handles, loc="outside upper left")
    return options.output_file


def read_scalars(folder: str) -> dict[str, dict[int, float]]:
    """The curves in a folder's events, as TensorBoard shows them: name -> step -> value; empty if there are no curves.

    Points that a killed run wrote behind its last checkpoint are left out, because the continued run's events state
    where it starts. If a step has several points, such as evaluations, the last point counts. Points are sorted by
    their steps, because files of events that begin in the same second are read in the order of their names.
    """
    if not files.is_directory(folder):
        return {}
    events = EventAccumulator(folder, tensor_size_guidance={"scalars": 0}).Reload()  # 0: all points
    names = events.Tags()["tensors"]
    points = {name: sorted(events.Tensors(name), key=lambda point: point.step) for name in names}
    return {
        name: {each.step: float(tensor_util.make_ndarray(each.tensor_proto)) for each in points[name]}
        for name in names
        if events.SummaryMetadata(name).plugin_data.plugin_name == "scalars"
    }

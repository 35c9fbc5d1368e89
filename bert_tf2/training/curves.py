"""Reads the curves of a training: what its TensorBoard events say about the loss, the accuracy and the rest, by step.

`TrainingMonitor` writes the points of a training into its output_dir, and every evaluation adds one to its folder
`eval`. The events are read here without TensorFlow, whose import would take longer than the reading. The files of
google-research/bert on TensorFlow 1 are read as well.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

import numpy as np
from google.protobuf.message import DecodeError
from tensorboard.compat.proto import event_pb2, summary_pb2, types_pb2

from bert_tf2.data import tfrecords
from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.training.options import read_hyperparameters

EVAL = "eval/"
"""What the names of an evaluation's curves begin with; also the folder of its events within an output_dir."""

_FILE_NAME = "events.out.tfevents."  # and the time, the host, the process
_FLOATS = {types_pb2.DT_FLOAT: ("<f4", "float_val"), types_pb2.DT_DOUBLE: ("<f8", "double_val")}

Curve = list[tuple[int, float]]


@dataclasses.dataclass(frozen=True)
class Run:
    """What the events of one training say.

    Attributes:
      name: the last part of the folder's path.
      folder: the folder, as it was given.
      scalars: name of a curve -> its points (step, value), sorted by step, one for each step. Training: `loss`,
        `masked_lm_loss`, `learning_rate`, `gradient_norm`, `examples/sec` and what else the model has; every value is
        the mean over the steps since the point before. Evaluations: the same and other names behind `eval/`, as
        `eval/masked_lm_accuracy`. A value may be NaN or infinite, if the training's was.
      texts: name -> text: `hyperparameters`, a table in Markdown, and `bert_config`, of the last call.
      updated: when the last event was written, in seconds since 1970.
    """

    name: str
    folder: str
    scalars: dict[str, Curve]
    texts: dict[str, str]
    updated: float

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the last call; empty if the events do not tell them."""
        return read_hyperparameters(self.texts)


def read_run(folder: str) -> Run:
    """Reads the curves of a training, which may still be running.

    A training that was interrupted and resumed has several files of events. Those of a later call replace the points of
    the earlier ones from its first step on, as the steps between the last checkpoint and a kill are repeated.
    Evaluations replace only those of the same step, because someone may evaluate an older checkpoint later.

    Args:
      folder: the output_dir of a training, local or remote.

    Raises:
      UserError: the folder does not exist or has no events, or a file of events is damaged.
    """
    folder = os.fspath(folder)
    training = _events_in(folder)
    evaluations = _events_in(os.path.join(folder, EVAL.rstrip("/")))
    if not training and not evaluations:
        raise UserError(_nothing_in(folder))
    scalars: dict[str, dict[int, float]] = {}
    texts: dict[str, str] = {}
    for events in training:
        for name, points in events.scalars.items():
            first = min(points)
            kept = {step: value for step, value in scalars.get(name, {}).items() if step < first}
            scalars[name] = kept | points
        texts |= events.texts
    for events in evaluations:
        for name, points in events.scalars.items():
            scalars.setdefault(EVAL + name, {}).update(points)
    return Run(
        name=os.path.basename(os.path.normpath(folder if files.is_remote(folder) else os.path.abspath(folder))),
        folder=folder,
        scalars={name: sorted(points.items()) for name, points in scalars.items()},
        texts=texts,
        updated=max(events.updated for events in (*training, *evaluations)),
    )


def has_events(folder: str) -> bool:
    """Whether `read_run` would find events in a folder."""
    folders = (folder, os.path.join(folder, EVAL.rstrip("/")))
    return any(name.startswith(_FILE_NAME) for each in folders for name in files.list_directory(each))


def _nothing_in(folder: str) -> str:
    if not files.is_directory(folder):
        is_file = files.exists(folder)
        return f"{folder}: {'is a file; name the folder of the training' if is_file else 'no such folder'}"
    inside = [name for name in files.list_directory(folder) if has_events(os.path.join(folder, name.strip("/")))]
    hint = f"; there are some in {and_more(inside)} within it" if inside else ""
    return f"{folder}: has no events of a training ({_FILE_NAME}*){hint}; name the output_dir of a training"


@dataclasses.dataclass
class _Events:
    """The content of one file. `started` is the time of its first event, by which the files of a folder are sorted."""

    started: float
    updated: float
    scalars: dict[str, dict[int, float]]
    texts: dict[str, str]


def _events_in(folder: str) -> list[_Events]:
    """The files of events in a folder, in the order in which they were begun.

    A file says the second in which it was begun; those of one process and second have numbers in their names.
    """
    names = [name for name in files.list_directory(folder) if name.startswith(_FILE_NAME)]
    names.sort(key=lambda name: [int(part) if part.isdecimal() else -1 for part in name.split(".")])
    found = [_read(os.path.join(folder, name)) for name in names]
    return sorted((events for events in found if events is not None), key=lambda events: events.started)


def _read(path: str) -> _Events | None:
    """Reads one file; None for one that was only just created, and has no event yet."""
    read: _Events | None = None
    for event in _each(path):
        if read is None:
            read = _Events(event.wall_time, event.wall_time, {}, {})
        read.updated = max(read.updated, event.wall_time)
        for value in event.summary.value:
            number = _number(value)
            if number is not None:
                read.scalars.setdefault(value.tag, {})[event.step] = number
            elif value.tensor.dtype == types_pb2.DT_STRING and value.tensor.string_val:
                read.texts[value.tag] = value.tensor.string_val[0].decode("utf-8", "replace")
    return read


def _each(path: str) -> Iterator[event_pb2.Event]:
    for block in tfrecords.read_blocks(path, growing=True):
        for row in range(len(block)):
            try:
                yield event_pb2.Event.FromString(block.record(row))
            except DecodeError as error:
                raise UserError(
                    f"{path}, record {block.first + row}: is no event of TensorBoard; move the file out of the folder"
                ) from error


def _number(value: summary_pb2.Summary.Value) -> float | None:
    """The number of a scalar; None for text, histograms and other contents."""
    if value.WhichOneof("value") == "simple_value":  # TensorFlow 1
        return value.simple_value
    tensor = value.tensor
    if value.WhichOneof("value") != "tensor" or tensor.dtype not in _FLOATS:
        return None
    kind, field = _FLOATS[tensor.dtype]
    if any(dimension.size != 1 for dimension in tensor.tensor_shape.dim):
        return None
    size = np.dtype(kind).itemsize
    if tensor.tensor_content:
        return float(np.frombuffer(tensor.tensor_content, kind)[0]) if len(tensor.tensor_content) == size else None
    numbers = getattr(tensor, field)
    return float(numbers[0]) if numbers else 0.0  # a tensor without values is filled with zeros

"""Reads and checks `y` from any container: labels, numbers, or rows of numbers for each label; returns arrays."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf2.support import containers
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.support.settings import check_type
from bert_tf2.weights.task_file import LabelMap


def read(y: Any, name: str = "y") -> tuple[list, list[str] | None]:
    """The rows of `y` as values of Python, and the names of its columns if `y` is a table with several columns.

    A single text is one row. The rows of a table with several columns are lists.
    """
    if isinstance(y, str | bytes):
        y = [y]
    if (found := containers.table(y)) is not None:
        columns = [containers.values(column, name) for _, column in found]
        if len(columns) != 1:
            return [[*row] for row in zip(*columns, strict=True)], [column for column, _ in found]
        y = columns[0]
    if not isinstance(y, list | tuple) and getattr(y, "shape", None) == ():
        raise UserError(f"{name}={y!r:.60}: one value without a dimension; give a list with a value for each text")
    if isinstance(y, Mapping):
        raise UserError(f"{name}={y!r:.60}: is a dict; give a list with a value for each text")
    return [_plain(row) for row in containers.values(y, name)], None


def _plain(row: Any) -> Any:
    """Converts a row of numpy or TensorFlow to values of Python, and bytes to texts."""
    row = row.numpy() if hasattr(row, "numpy") else row
    row = row.tolist() if hasattr(row, "tolist") else row
    if isinstance(row, list):
        return [_plain(part) for part in row]
    return row.decode(errors="replace") if isinstance(row, bytes) else row


def check_labels(unknown: set, known: Sequence[str], where: str = "y") -> None:
    if unknown:
        first = sorted(map(str, unknown))[0]
        if first in known:  # in `unknown` as a number
            raise UserError(
                f"{where}: {first} could be a label or the index of a label; give the labels {and_more(known)} as texts"
            )
        raise UserError(f"{where}: {first!r} is not one of the labels {and_more(known)}")


def numbers_of(labels: Sequence[str]) -> dict[str | int, int]:
    """The index of each label, by the name of the label, and by the index itself if no index is another label's name.

    With stars as labels, "1" to "5", the number 1 is the label "1" for a reader, and the label "2" as an index.
    """
    names = {label: number for number, label in enumerate(labels)}
    are_clear = all(names.get(str(number), number) == number for number in names.values())
    return {**names, **({number: number for number in names.values()} if are_clear else {})}


def numbers(values: Any, name: str) -> np.ndarray:
    """Finite numbers, float32 [N]; `values` may have the shape [N, 1], too."""
    found = _finite(read(values, name)[0], name)
    if found.ndim > 1 and found.shape[1:] != (1,):
        raise UserError(f"{name}: of shape {[*found.shape]}; one number for each text is needed")
    return found.reshape(-1)


def _finite(values: list, name: str) -> np.ndarray:
    try:
        found = np.array(values, np.float32, ndmin=1)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{name}: has values that are not numbers: {error}") from error
    if not (good := np.isfinite(found)).all():
        raise UserError(
            f"{name}: row {np.argwhere(~good)[0, 0] + 1} is {found[~good][0]}; give a number, or remove the row"
        )
    return found


def weights_of_rows(values: Any) -> np.ndarray | None:
    """`sample_weight`, float32 [N]; None without weights."""
    if values is None:
        return None
    found = numbers(values, "sample_weight")
    if (found < 0).any():
        row = int(np.argmax(found < 0))
        raise UserError(f"sample_weight: row {row + 1} is {found[row]:g}; a weight is 0 or more")
    return found


def weights_of(
    class_weight: Mapping[str | int, float] | str, label_map: LabelMap | None, data: tf.data.Dataset | None = None
) -> np.ndarray:
    """The weights of labels, float32 [L]; `class_weight` has names or indexes. A label that is not named has 1.

    With "balanced", the weights are of `data`, batches (x, y, ...) of all rows.
    """
    if label_map is None or label_map.regression or label_map.multi_label:
        raise UserError("class_weight: is for models that give one of several labels; here, give sample_weight")
    labels = label_map.labels
    if isinstance(class_weight, str) and class_weight == "balanced" and data is not None:
        return _balanced(data, labels)
    if not isinstance(class_weight, Mapping):
        raise UserError(f"class_weight={class_weight!r:.60}: must be a dict like {{{labels[0]!r}: 2.0}}")
    named, weights = numbers_of(labels), np.ones(len(labels), np.float32)
    check_labels({*class_weight} - named.keys(), labels, "class_weight")
    for label, weight in class_weight.items():
        check_type(f"class_weight: {label}", weight, float, low=0)
        weights[named[label]] = weight
    if not weights.any():
        raise UserError("class_weight: is 0 for all labels, so no row counts; give some labels a weight above 0")
    return weights


def _balanced(data: tf.data.Dataset, labels: Sequence[str]) -> np.ndarray:
    """The weights with which each label counts alike, all rows / (L * rows of the label); see `weights_of`.

    Tags [B, F] with the weight 0 are not counted. Raises UserError if the number of batches is not known.
    """
    if data.cardinality() < 0:
        given = f"class_weight={{{labels[0]!r}: 1.0, ...}}"
        raise UserError(f'class_weight="balanced": x has an unknown number of batches; give {given}')
    counts = np.zeros(len(labels), np.int64)
    for _, y, *weights in data:
        indexes = y.numpy()
        if y.dtype.is_floating and indexes.ndim == 2:
            indexes = indexes.argmax(-1)
        elif indexes.ndim == 2 and weights and weights[0].shape == y.shape:
            indexes = indexes[weights[0].numpy() > 0]
        counts += np.bincount(indexes.reshape(-1).astype(np.int64), minlength=len(labels))
    return np.where(counts, counts.sum() / (len(labels) * np.maximum(counts, 1)), 1.0).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Targets:
    """The reader of `y` for the model of a task.

    Attributes:
      labels: the names of the outputs.
      kind: "regression", or "several" or "one" for the number of labels of a text.
      takes_vectors: whether the loss compares numbers for each label, [N, L], and not the index of a label; None if
        that is not known.
      only_0_and_1: whether the numbers must be 0 or 1 if a text may have several labels.
    """

    labels: Sequence[str]
    kind: str
    takes_vectors: bool | None
    only_0_and_1: bool = False

    @classmethod
    def of(cls, label_map: LabelMap, loss: Any) -> Targets:
        """The reader for a loss of Keras; `takes_vectors` is None for a user's function."""
        name = name_of(loss)
        takes_vectors: bool | None = "sparse" not in name
        if callable(loss) and not type(loss).__module__.startswith("keras"):
            takes_vectors = takes_vectors and (True if loss.__module__.startswith("keras") else None)
        kind = "regression" if label_map.regression else "several" if label_map.multi_label else "one"
        return cls(label_map.labels, kind, takes_vectors, name == "binary_crossentropy")

    def array(self, y: Any) -> np.ndarray:
        """`y` as indexes int32 [N], as numbers float32 [N], or with a number for each label, float32 [N, L]."""
        if self.kind == "regression":
            return numbers(y, "y")
        found, names = read(y)
        return self._of_several(found, names) if self.kind == "several" else self._of_one(found, names)

    def _of_one(self, found: list, names: list[str] | None) -> np.ndarray:
        if (matrix := self._matrix(found, names)) is not None:
            if self.takes_vectors is not False:
                return matrix
            is_one_hot = np.isin(matrix, (0, 1)).all(1) & (matrix.sum(1) == 1)
            if not is_one_hot.all():
                row = int(np.argmin(is_one_hot))
                raise UserError(
                    f"y: row {row + 1} has {found[row]!r:.60}, which is not a single 1 among 0; shares of labels need"
                    " another loss, such as kl_divergence"
                )
            return matrix.argmax(1).astype(np.int32)
        values = [row[0] if isinstance(row, list | tuple) and len(row) == 1 else row for row in found]
        if lists := [row for row in values if isinstance(row, list | tuple | dict | set | frozenset)]:
            raise UserError(f"y: {lists[0]!r:.60} is not a label; several labels of a text need multi_label=True")
        empty = [n for n, value in enumerate(values) if containers.is_missing(value) or not str(value).strip()]
        containers.refuse(empty, "y", f"of {len(values)} labels are empty", "leave these rows out")
        named = numbers_of(self.labels)
        check_labels({*values} - named.keys(), self.labels)
        indexes = np.array([named[value] for value in values], np.int32)
        return np.eye(len(self.labels), dtype=np.float32)[indexes] if self.takes_vectors else indexes

    def _of_several(self, found: list, names: list[str] | None) -> np.ndarray:
        lists = []
        for number, row in enumerate(found, 1):
            if not isinstance(row, str | list | tuple | set | frozenset):
                raise UserError(f"y: row {number} is {row!r:.60}, which is not a list of labels")
            lists.append([row] if isinstance(row, str) else [*row])
        if not lists or (matrix := self._matrix(lists, names)) is None:
            check_labels({str(label) for row in lists for label in row if label not in self.labels}, self.labels)
            return np.array([[label in row for label in self.labels] for row in lists], np.float32)
        if self.only_0_and_1 and not (good := np.isin(matrix, (0, 1))).all():
            row, place = np.argwhere(~good)[0]
            raise UserError(f"y: row {row + 1} has {matrix[row, place]:g}; 1 or 0 for each label is needed")
        return matrix

    def _matrix(self, found: list, names: list[str] | None) -> np.ndarray | None:
        """The rows, float32 [N, L], in the order of the labels, if each has a number for each label."""
        count = len(self.labels)
        if not found or not all(isinstance(row, list | tuple) and len(row) == count > 1 for row in found):
            if names:
                raise UserError(
                    f"y: a table with the columns {and_more(names, 6)}; the labels are {and_more(self.labels)}"
                )
            return None
        if any(isinstance(value, str | list | tuple) for row in found for value in row):
            return None
        matrix = _finite(found, "y")
        if names and names != [*map(str, range(count))]:
            check_labels({*names} - {*self.labels}, self.labels, "y: the column")
            return matrix[:, [names.index(label) for label in self.labels]]
        return matrix


def name_of(loss: Any) -> str:
    """The name of a loss of Keras: a name, an object or a function."""
    return str(getattr(loss, "name", None) or getattr(loss, "__name__", None) or loss)


def vector_metrics(metrics: Any) -> list[str]:
    """The names of the metrics of Keras that compare vectors, [B, L], and not indexes of labels."""
    kinds = keras.metrics
    vectors = (
        kinds.FBetaScore, kinds.Precision, kinds.Recall, kinds.AUC, kinds.PrecisionAtRecall, kinds.RecallAtPrecision,
        kinds.SensitivityAtSpecificity, kinds.SpecificityAtSensitivity, kinds.CategoricalAccuracy,
        kinds.TopKCategoricalAccuracy, kinds.CategoricalCrossentropy, kinds.KLDivergence,
    )  # fmt: skip
    given = []
    for metric in keras.tree.flatten(metrics):
        with contextlib.suppress(ValueError):  # "acc", and names that Keras will refuse
            given.append(kinds.get(metric) if isinstance(metric, str) else metric)
    return [type(metric).__name__ for metric in given if isinstance(metric, vectors)]


def weigh(weights: np.ndarray, x: Any, y: tf.Tensor, *sample_weight: tf.Tensor) -> tuple:
    """Adds to a batch the weight of the label of each row; `weights`: float32 [L], `y`: indexes or one-hot vectors."""
    has_vectors = y.dtype.is_floating and y.shape.rank == 2 and y.shape[1] == len(weights)
    found = tf.gather(weights, tf.argmax(y, -1) if has_vectors else tf.cast(y, tf.int32))
    for given in sample_weight:
        found *= tf.cast(tf.reshape(given, tf.shape(found)), found.dtype)
    return x, y, found

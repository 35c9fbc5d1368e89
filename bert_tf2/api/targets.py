"""Reads and checks `y` from any container: labels, numbers, or rows of numbers for each label; returns arrays."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

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


def clear(data: tf.data.Dataset, label_map: LabelMap | None) -> tf.data.Dataset:
    """Returns a user's dataset. Raises UserError if its `y` has numbers that could be labels or indexes of labels."""
    y = spec[1] if isinstance(spec := data.element_spec, tuple) and len(spec) > 1 else None
    are_indexes = isinstance(y, tf.TensorSpec) and y.dtype.is_integer and (y.shape.rank != 2 or y.shape[1] == 1)
    if are_indexes and label_map and label_map.labels and 0 not in numbers_of(label_map.labels):
        check_labels({*label_map.labels}, label_map.labels)
    return data


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


def warn_of_sorted(learned: np.ndarray, held_out: np.ndarray, labels: Sequence[str]) -> None:
    """Warns if the rows that are held out have labels that no other row has; compares only indexes of labels, [N]."""
    unseen = np.setdiff1d(held_out, learned) if learned.dtype.kind == "i" else ()
    if len(unseen):
        what = (
            "validation_split: holds out the last rows, and all rows of the labels %s are among them; shuffle the rows"
        )
        logging.warning(what, and_more([labels[index] for index in unseen], 6))


def weights_of_rows(values: Any) -> np.ndarray | None:
    """`sample_weight`, float32 [N]; None without weights."""
    if values is None:
        return None
    found = numbers(values, "sample_weight")
    if (found < 0).any():
        row = int(np.argmax(found < 0))
        raise UserError(f"sample_weight: row {row + 1} is {found[row]:g}; a weight is 0 or more")
    return found


def weights_of(class_weight: Mapping[str | int, float], label_map: LabelMap | None) -> np.ndarray:
    """The weights of labels, float32 [L]; `class_weight` has names or indexes. A label that is not named has 1."""
    if label_map is None or label_map.regression or label_map.multi_label:
        raise UserError("class_weight: is for models that give one of several labels; here, give sample_weight")
    labels = label_map.labels
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


def balanced(data: tf.data.Dataset, labels: Sequence[str]) -> np.ndarray:
    """The weights of labels, float32 [L], with which each label counts alike: all rows / (L * rows of the label).

    `data` has batches (x, y, ...); tags [B, F] with the weight 0 are not counted. Raises UserError if the number of
    batches is not known.
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

    # In graphs

    def tensor(self, y: tf.Tensor) -> tf.Tensor:
        """`array` for a batch of a dataset; errors are an InvalidArgumentError (in the graph) or a UserError."""
        if isinstance(y, tf.RaggedTensor) or not isinstance(y, tf.Tensor):
            raise UserError(
                f"y: the dataset has a {type(y).__name__}; a tensor [B] is needed, or one [B, L] of numbers"
            )
        if y.shape.rank == 2 and y.shape[1] == 1 and (self.kind == "regression" or self.takes_vectors is not None):
            y = tf.reshape(y, [-1])
        if self.kind == "one":
            return self._one_in_graph(y)
        if y.dtype == tf.string:
            raise UserError("y: strings; numbers are needed, for several labels 1 or 0 for each label")
        if self.kind == "regression" and y.shape.rank not in (1, None):
            raise UserError(f"y: of shape {[*y.shape]}; one number for each text is needed")
        if self.kind == "several" and y.shape.rank is not None and [*y.shape[1:]] not in ([None], [len(self.labels)]):
            raise UserError(f"y: of shape {[*y.shape]}; 1 or 0 for each of the {len(self.labels)} labels is needed")
        y = tf.cast(y, tf.float32)
        good = tf.math.is_finite(y)
        if self.kind == "several" and self.only_0_and_1:
            good = (y == 0) | (y == 1)
        wanted = "1 or 0 for each label is needed" if self.kind == "several" else "a number is needed"
        return checked(y, good, "y: ", y, f"; {wanted}")

    def _one_in_graph(self, y: tf.Tensor) -> tf.Tensor:
        is_matrix = y.shape.rank == 2 and y.shape[1] == len(self.labels) and y.dtype != tf.string
        if not is_matrix:
            if y.dtype.is_floating and self.takes_vectors is not False:
                return y
            indexes = self._indexes(y)
            return tf.one_hot(indexes, len(self.labels)) if self.takes_vectors else indexes
        y = tf.cast(y, tf.float32)
        if self.takes_vectors is not False:
            return y
        good = tf.reduce_all((y == 0) | (y == 1), 1) & (tf.reduce_sum(y, 1) == 1)
        wanted = (
            " is the largest of a row that is not a single 1 among 0; shares of labels need a loss such as"
            " kl_divergence"
        )
        return checked(tf.argmax(y, 1, tf.int32), good, "y: ", tf.reduce_max(y, 1), wanted)

    def _indexes(self, y: tf.Tensor) -> tf.Tensor:
        if y.dtype == tf.string:
            there = y[..., None] == tf.constant(self.labels)
            found, good = tf.argmax(there, -1, tf.int32), tf.reduce_any(there, -1)
        else:
            y = tf.cast(y, tf.int32) if y.dtype == tf.bool else y
            found = tf.cast(y, tf.int32) if y.dtype.is_floating else y
            good = (found >= 0) & (found < len(self.labels)) & (tf.cast(found, y.dtype) == y)
        return checked(found, good, "y: '", y, f"' is not one of the labels {and_more(self.labels)}")


def checked(found: tf.Tensor, good: tf.Tensor, before: str, values: tf.Tensor, after: str) -> tf.Tensor:
    """Returns `found` if all rows are `good`; else InvalidArgumentError with the first of `values` that is not good.

    `text_rows.in_one_line` converts the InvalidArgumentError to a UserError.
    """
    wrong = tf.boolean_mask(values, ~good)[:1]
    if wrong.dtype != tf.string:
        wrong = tf.strings.as_string(wrong, shortest=wrong.dtype.is_floating)
    sentence = tf.strings.join([before, tf.strings.reduce_join(wrong), after])
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(good), [sentence])]):
        return tf.identity(found)


def weights_in_graph(given: tf.Tensor) -> tf.Tensor:
    """A batch of `sample_weight`, or an InvalidArgumentError if a weight is below 0 or not finite."""
    good = (given >= 0) & tf.math.is_finite(tf.cast(given, tf.float32))
    return checked(given, good, "sample_weight: ", given, "; a weight is 0 or more")


def name_of(loss: Any) -> str:
    """The name of a loss of Keras: a name, an object or a function."""
    return str(getattr(loss, "name", None) or getattr(loss, "__name__", None) or loss)


def check_known(optimizer: Any, loss: Any, metrics: Any) -> None:
    """Raises UserError for an optimizer (None for a rate), or a name of a loss or metric, that Keras does not know."""
    adam = 'a learning rate, "adam", or an optimizer, for a schedule bert_tf2.AdamWeightDecay(schedule)'
    by_loss = ("accuracy", "acc", "crossentropy", "ce")  # Keras chooses the metric that fits the loss
    for name, kind, given, get, cure in (
        ("optimizer", "an optimizer", [] if optimizer is None else [optimizer], keras.optimizers.get, adam),
        ("loss", "a loss", _names_in(loss), keras.losses.get, "a name in keras.losses"),
        ("metrics", "a metric", {*_names_in(metrics)} - {*by_loss}, keras.metrics.get, "a name in keras.metrics"),
    ):
        for value in given:
            try:
                get(value)
            except ValueError as error:
                raise UserError(f"{name}={value!r:.60}: is not {kind} of Keras; give {cure}") from error


def _names_in(given: Any) -> list[str]:
    return [value for value in keras.tree.flatten(given) if isinstance(value, str)]


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

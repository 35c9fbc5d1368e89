"""What users give for texts, such as labels and weights: checked, and as the numbers of a batch."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf2.support.errors import UserError, and_more
from bert_tf2.support.settings import check_type
from bert_tf2.weights.task_file import LabelMap


def count_rows(rows: Any) -> int:
    """The rows of a column, or of the first of several."""
    while isinstance(rows, tuple | Mapping):
        rows = next(iter(rows.values() if isinstance(rows, Mapping) else rows))
    return len(rows)


def check_counts(texts: Any, **others: Any) -> int:
    """Returns the number of texts; raises UserError, which names it, if something else has not as many rows."""
    count = count_rows(texts)
    for name, rows in others.items():
        if len(rows) != count:
            raise UserError(f"{name}: {len(rows)} rows for {count} texts; each needs one")
    return count


def check_given(data: tf.data.Dataset, needs_y: bool) -> None:
    """Raises UserError if batches (x, y, ...) are none at all, or have no y."""
    if data.cardinality() == 0:
        raise UserError("x: has no texts")
    if needs_y and not (isinstance(data.element_spec, tuple) and len(data.element_spec) > 1):
        raise UserError("y: is missing; it has an answer to each row of x, and stands behind it in a dataset: (x, y)")


def divide(share: float, x: Any, y: Any, sample_weight: Any) -> tuple:
    """The first rows of each, then the last ones together, as Keras divides them."""
    count = count_rows(x)
    first = int(count * (1.0 - share))
    if not 0 < first < count:
        raise UserError(f"validation_split={share}: of {count} texts, none remain for training or validation")
    given = (x, y) if sample_weight is None else (x, y, np.asarray(sample_weight))

    def cut(rows: slice) -> list:
        return [tuple(column[rows] for column in part) if isinstance(part, tuple) else part[rows] for part in given]

    x, y, *weights = cut(slice(first))
    return x, y, next(iter(weights), None), cut(slice(first, None))


# Labels and numbers


def check_labels(unknown: set, known: Sequence[str], where: str = "y") -> None:
    if unknown:
        raise UserError(f"{where}: {sorted(map(str, unknown))[0]!r} is none of the labels {and_more(known)}")


def numbers_of(labels: Sequence[str]) -> dict[str | int, int]:
    """The index of each label, by its name and by itself."""
    return {key: number for number, label in enumerate(labels) for key in (label, number)}


def indexes(y: Any, labels: Sequence[str]) -> np.ndarray:
    """The indexes of labels, int32 [N]; `y` has their names, indexes or one-hot vectors."""
    rows = np.asarray(y, object if _is_uneven(y) else None)
    if is_one_hot(rows, len(labels)):
        return rows.argmax(1).astype(np.int32)
    values = [value.decode() if isinstance(value, bytes) else value for value in rows.reshape(-1).tolist()]
    named = numbers_of(labels)
    lists = rows.tolist() if rows.ndim > 1 and rows.shape[1] > 1 else values
    if lists := [row for row in lists if isinstance(row, list | tuple | dict | set)]:
        raise UserError(f"y: {lists[0]!r:.60} is no label; several labels of a text need multi_label=True")
    check_labels({*values} - named.keys(), labels)
    return np.array([named[value] for value in values], np.int32)


def _is_uneven(y: Any) -> bool:
    return len({len(row) if isinstance(row, list | tuple) else 0 for row in y}) > 1


def is_one_hot(rows: np.ndarray, count: int) -> bool:
    """Whether each row is a vector with one 1 and 0 for the other labels."""
    if rows.ndim != 2 or rows.shape[1] != count or rows.dtype.kind not in "fiub":
        return False
    return bool(np.isin(rows, (0, 1)).all() and (rows.sum(1) == 1).all())


def of_several(y: Any, labels: Sequence[str]) -> np.ndarray:
    """1 and 0 for each label, float32 [N, L]; `y` has that, or lists of the names, or a name alone."""
    rows = []
    for number, row in enumerate(y, 1):
        if not isinstance(row, str | list | tuple | set | frozenset | np.ndarray):
            raise UserError(f"y: row {number} is {row!r:.60}, and not a list of labels")
        rows.append([row] if isinstance(row, str) else [*row])
    if not any(isinstance(label, str) for row in rows for label in row) and all(
        len(row) == len(labels) for row in rows
    ):
        return numbers(rows, "y")
    check_labels({label for row in rows for label in row} - {*labels}, labels)
    return np.array([[label in row for label in labels] for row in rows], np.float32)


def numbers(values: Any, name: str) -> np.ndarray:
    """Finite numbers, float32 of the shape of `values`."""
    try:
        found = np.array(values, np.float32, ndmin=1)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: has something else than numbers: {error}") from error
    if not (good := np.isfinite(found)).all():
        raise UserError(
            f"{name}: row {np.argwhere(~good)[0, 0] + 1} is {found[~good][0]}; give a number, or no such row"
        )
    return found


def weights_of(class_weight: Mapping[str | int, float], label_map: LabelMap | None) -> np.ndarray:
    """The weights of labels, float32 [L], by names or indexes; 1 for a label that is not named."""
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
    return weights


# In graphs


def weigh(weights: np.ndarray, x: Any, y: tf.Tensor, *sample_weight: tf.Tensor) -> tuple:
    """A batch with the weight of the label, float32 [L], for each index in `y`, or one-hot vector."""
    has_vectors = y.dtype.is_floating and y.shape.rank == 2 and y.shape[1] == len(weights)
    found = tf.gather(weights, tf.argmax(y, -1) if has_vectors else tf.cast(y, tf.int32))
    for given in sample_weight:
        found *= tf.cast(tf.reshape(given, tf.shape(found)), found.dtype)
    return x, y, found


def as_indexes(y: tf.Tensor, labels: Sequence[str]) -> tf.Tensor:
    """Labels, strings or integers [...], as their indexes [...]; others are an InvalidArgumentError."""
    if y.dtype == tf.string:
        there = y[..., None] == tf.constant(labels)
        found, good = tf.argmax(there, -1, tf.int32), tf.reduce_any(there, -1)
    else:
        found, good = y, (y >= 0) & (y < len(labels))
    unknown = tf.boolean_mask(y, ~good)[:1]
    text = tf.strings.reduce_join(unknown if y.dtype == tf.string else tf.strings.as_string(unknown))
    sentence = tf.strings.join(["y: '", text, f"' is none of the labels {and_more(labels)}"])
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(good), [sentence])]):
        return tf.identity(found)


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Makes a UserError of what a graph found wrong in texts or labels, whose message is one sentence in many lines."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if said := re.search(r"assertion failed: \[(.*)\]", str(error)):
            raise UserError(said[1].replace("\\'", "'")) from error  # TensorFlow shows quotes like C
        raise

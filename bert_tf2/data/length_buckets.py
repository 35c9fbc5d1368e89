"""Batches with little padding, in a tf.data pipeline: cut to their longest row, or of rows of like length."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

# A window is in memory at once. A larger one has less padding.
_BATCHES_OF_WINDOW = 128
_ROWS_OF_WINDOW = 1 << 14  # at most, unless a batch is larger

PLACES = "places"
"""A feature of the batches, int32 [B, 2]: the number of the window, and the place of the row in it."""


def cut_to_longest(batch: Mapping[str, Any], wide: Container[str], multiple: int) -> dict[str, Any]:
    """Drops columns of the tensors `wide`, [B, F], that are padding in every row, up to a multiple of so many columns.

    Attention gives padding no weight, so outputs do not change.
    """
    import tensorflow as tf

    used = tf.where(tf.reduce_any(batch["input_mask"] > 0, axis=0))  # columns with a token in any row
    length = tf.maximum(tf.reduce_max(tf.concat([used, [[0]]], 0)) + 1, 1)
    length = -(-length // multiple) * multiple  # a slice ends at the last column in any case
    return {name: values[:, :length] if name in wide else values for name, values in batch.items()}


def rows_of_window(batch_size: int) -> int:
    return batch_size * max(1, min(_BATCHES_OF_WINDOW, _ROWS_OF_WINDOW // batch_size))


def batches(windows, batch_size: int):
    """Divides windows into batches of like length, the longest rows first.

    Args:
      windows: a dataset of dicts of [rows, ...] with `input_mask`.
      batch_size: the least number of rows in a batch; the last one of a window may have fewer. The shorter its rows,
        the more a batch has: as many tokens as `batch_size` rows of the full length.

    Returns:
      A dataset of dicts with the further feature PLACES.
    """
    import tensorflow as tf

    def divided(number, window):
        mask = window["input_mask"]
        width = tf.shape(mask)[1]
        lengths = tf.reduce_max(tf.where(mask > 0, tf.range(1, width + 1), 1), axis=1)
        order = tf.argsort(lengths, stable=True, direction="DESCENDING")
        longest, count = tf.gather(lengths, order), tf.size(order)
        rows = {name: tf.gather(values, order) for name, values in window.items()}
        rows[PLACES] = tf.stack([tf.fill([count], tf.cast(number, tf.int32)), order], axis=1)
        budget = tf.minimum(min(batch_size, 1 << 20), count) * width  # the tokens of a batch

        def end(start: tf.Tensor) -> tf.Tensor:
            return tf.minimum(start + budget // longest[start], count)

        _, _, ends = tf.while_loop(
            lambda start, *_: start < count,
            lambda start, size, ends: (end(start), size + 1, ends.write(size, end(start))),
            (0, 0, tf.TensorArray(tf.int32, size=0, dynamic_size=True)),
        )
        ends = ends.stack()
        bounds = tf.data.Dataset.from_tensor_slices((tf.concat([[0], ends[:-1]], 0), ends))
        return bounds.map(lambda start, end: {name: values[start:end] for name, values in rows.items()})

    return windows.enumerate().flat_map(divided)


def put_back(
    found: Iterable[Mapping[str, np.ndarray]], batch_size: int, no_score: float
) -> Iterator[dict[str, np.ndarray]]:
    """Puts batches of `batches`, or what was computed for them, into batches in the order of the windows.

    Rows that are shorter than others of their batch are filled: whole numbers with 0, which is padding, others with
    `no_score`, so that a position that was not computed is no answer.
    """
    for _, window in itertools.groupby(found, key=lambda batch: batch[PLACES][0, 0]):
        parts = list(window)
        order = np.argsort(np.concatenate([part[PLACES][:, 1] for part in parts]))
        rows = {name: [row for part in parts for row in part[name]] for name in parts[0] if name != PLACES}
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            yield {name: _stacked([values[place] for place in chosen], no_score) for name, values in rows.items()}


def _stacked(rows: Sequence[np.ndarray], no_score: float) -> np.ndarray:
    if len({row.shape for row in rows}) == 1:
        return np.stack(rows)
    fill = 0 if np.issubdtype(rows[0].dtype, np.integer) else no_score
    stacked = np.full([len(rows), max(map(len, rows))], fill, rows[0].dtype)
    for row, values in zip(stacked, rows, strict=True):
        row[: len(values)] = values
    return stacked

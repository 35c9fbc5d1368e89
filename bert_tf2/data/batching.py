"""Batches with little padding: cut to their longest row, of rows of like length, or packed.

padded_texts     pads texts of any length to the longest of the batch
cut_to_longest   drops the columns of a batch that are padding in every row
of_like_length   divides many rows into batches of like length; `put_back` restores their order
packed           lets several examples share a row, for computations of fixed shapes
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf2.data.records import MOST_SEGMENTS, PACKED
from bert_tf2.data.rows import INPUTS

# The pool from which batches of rows of like length are made. A pool is in memory at once; a larger pool gives less
# padding.
_BATCHES_OF_POOL = 128
_ROWS_OF_POOL = 1 << 14  # at most, unless a batch is larger

PLACES = "places"
"""A feature of the batches, int32 [B, 2]: the number of the pool, and the place of the row in it."""

_PACKERS = 4  # each packs about 25,000 examples in a second
_SIZES_OF_ROWS = 16  # the number of possible row counts; two to five of them are usual


def padded_texts(batch: Mapping[str, Any], origin: Mapping[str, Any]) -> dict[str, Any]:
    """The features INPUTS of a batch of records.WHOLE_TEXTS, as `transform` of `record_order.read_records`."""
    batch = dict(batch)
    ids, lengths = batch.pop("input_ids"), batch.pop("segment_lengths")
    column, total = tf.range(tf.cast(ids.bounding_shape(1), tf.int32)), tf.cast(ids.row_lengths(), tf.int32)
    first = tf.where(lengths.row_lengths() > 1, lengths.to_tensor(shape=[None, MOST_SEGMENTS])[:, 0], total)
    mask = column < total[:, tf.newaxis]
    segments = mask & (column >= first[:, tf.newaxis])
    found = (ids.to_tensor(), tf.cast(mask, tf.int32), tf.cast(segments, tf.int32))
    return {**dict(zip(INPUTS, found, strict=True)), **batch}


def lengths_of(input_mask):
    """The positions of each row that are computed, int32 [B]: up to its last token, or all if it has no token.

    `input_mask`: int [B, F].
    """
    width = tf.shape(input_mask)[1]
    last = tf.reduce_max(tf.where(input_mask > 0, tf.range(width) + 1, 0), axis=1)
    return tf.where(last > 0, last, width)


def cut_to_longest(batch: Mapping[str, Any], wide: Container[str], multiple: int) -> dict[str, Any]:
    """Drops the last columns of the tensors `wide`, [B, F], if they are padding in every row.

    The new width is a multiple of `multiple`, or F. Attention gives padding no weight, so outputs do not change.
    """
    used = tf.where(tf.reduce_any(batch["input_mask"] > 0, axis=0))  # columns with a token in any row
    length = tf.reduce_max(tf.concat([used, [[0]]], 0)) + 1
    length = -(-length // multiple) * multiple  # a slice ends at the last column in any case
    return {name: values[:, :length] if name in wide else values for name, values in batch.items()}


def rows_of_pool(batch_size: int) -> int:
    return batch_size * max(1, min(_BATCHES_OF_POOL, _ROWS_OF_POOL // batch_size))


def of_like_length(pools, batch_size: int):
    """Divides pools into batches of like length, the longest rows first.

    Args:
      pools: a dataset of dicts of [rows, ...] with `input_mask`, or with `input_ids` as a RaggedTensor.
      batch_size: the least number of rows in a batch; the last batch of a pool may have fewer. A batch of short rows
        has more rows: as many tokens as `batch_size` rows of the full length.

    Returns:
      A dataset of dicts with the additional feature PLACES.
    """

    def divided(number, pool):
        if isinstance(ids := pool["input_ids"], tf.RaggedTensor):
            width, lengths = (tf.cast(size, tf.int32) for size in (ids.bounding_shape(1), ids.row_lengths()))
        else:
            width, lengths = tf.shape(ids)[1], lengths_of(pool["input_mask"])
        order = tf.argsort(lengths, stable=True, direction="DESCENDING")
        longest, count = tf.gather(lengths, order), tf.size(order)
        rows = {name: tf.gather(values, order) for name, values in pool.items()}
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

    return pools.enumerate().flat_map(divided)


def put_back(
    found: Iterable[Mapping[str, np.ndarray]], batch_size: int, no_score: float
) -> Iterator[dict[str, np.ndarray]]:
    """Puts batches of `of_like_length`, or the outputs computed for them, into batches in the order of the pools.

    Rows that are shorter than others of their batch are filled: whole numbers with 0, which is padding, others with
    `no_score`, so that a position that was not computed cannot be an answer.
    """
    for _, of_pool in itertools.groupby(found, key=lambda batch: batch[PLACES][0, 0]):
        batches = [*of_pool]
        order = np.argsort(np.concatenate([batch[PLACES][:, 1] for batch in batches]))
        rows = {name: [row for batch in batches for row in batch[name]] for name in batches[0] if name != PLACES}
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


@tf.autograph.experimental.do_not_convert  # as for record_order.read_records
def with_packed_rows(batches, parts: int = 1):
    """A dataset of the batches of a dataset, each with `packed` rows."""
    return batches.map(lambda batch: packed(batch, parts), num_parallel_calls=_PACKERS).prefetch(2)


def packed(batch: Mapping[str, Any], parts: int = 1) -> dict[str, Any]:
    """Chooses the places of examples in rows that several examples share: the longest example first, in the first row
    with room for it.

    Each example gets as many places as `lengths_of` states, or more if a word behind them is predicted (in malformed
    records; the reference, too, computes the state of this padding). The number of rows is rounded up, so that there
    are few different row counts, and is never larger than the number of examples.

    Args:
      batch: features with `input_mask`, int [B, F].
      parts: the parts of the batch that are computed one after the other; each part has rows of its own.

    Returns:
      The features, and two more, named in records.PACKED. The first, int32 [parts * R, F], has for each place the
      number of its token among the tokens of the part, [B / parts * F], or -1. The second, int32 [B], has the place of
      each example's first token among the places of the part, [R * F].
    """
    mask = batch["input_mask"]
    width = tf.shape(mask)[1]
    count = tf.shape(mask)[0] // parts
    lengths = lengths_of(mask)
    if (positions := batch.get("masked_lm_positions")) is not None:
        counts = batch.get("masked_lm_weights", tf.ones_like(positions)) > 0
        lengths = tf.maximum(lengths, tf.reduce_max(tf.where(counts, positions + 1, 0), axis=1))
    firsts, needed = _first_fit(tf.reshape(lengths, [parts, count]), width)
    step = -(-count // _SIZES_OF_ROWS)
    size = tf.minimum(-(-needed // step) * step, count) * width  # the places of a part
    begins = tf.reshape(firsts + tf.range(parts)[:, tf.newaxis] * size, [-1])  # among the places of all parts
    # `example`: for each place, the example that begins there or before it. `token`: the number of the token in it.
    marks = tf.tensor_scatter_nd_add(tf.fill([parts * size], 0), begins[:, tf.newaxis], tf.ones_like(begins))
    example = tf.gather(tf.argsort(begins), tf.cumsum(marks) - 1)
    token = tf.range(parts * size) - tf.gather(begins, example)
    tokens = tf.where(token < tf.gather(lengths, example), example % count * width + token, -1)
    found = tf.reshape(tokens, [-1, mask.shape[1] or width]), tf.reshape(firsts, [-1])
    return {**batch, **dict(zip(PACKED, found, strict=True))}


def _first_fit(lengths, width):
    """Places examples of the given lengths, int32 [parts, count].

    Returns the place of each example's first token, [parts, count], and the largest number of rows of a part.
    """
    parts, count = tf.unstack(tf.shape(lengths))
    order = tf.argsort(lengths, stable=True, direction="DESCENDING")
    columns = tf.transpose(tf.gather(lengths, order, batch_dims=1))  # [count, parts]

    def place(number, free, firsts):
        length = columns[number][:, tf.newaxis]
        row = tf.argmax(tf.cast(free >= length, tf.int8), axis=1, output_type=tf.int32)  # the first row with room
        first = row * width + width - tf.gather(free, row, batch_dims=1)
        # Not `count`, whose value is unknown in the loop: TensorFlow would not know that one example keeps one row.
        taken = tf.one_hot(row, tf.shape(free)[1], dtype=tf.int32) * length
        return number + 1, free - taken, firsts.write(number, first)

    start = (0, tf.fill([parts, count], width), tf.TensorArray(tf.int32, count))
    _, free, firsts = tf.while_loop(lambda number, *_: number < count, place, start)
    firsts = tf.gather(tf.transpose(firsts.stack()), tf.argsort(order), batch_dims=1)
    return firsts, tf.reduce_max(tf.reduce_sum(tf.cast(free < width, tf.int32), axis=1))

"""Reads the records of TFRecord files as batches, in the order of the files or shuffled.

The shuffled order is a function of (seed, epoch, position), so that reading can continue where an earlier run ended:

    files    -> runs of 1024 consecutive records (`record_index`)
    an epoch -> all runs in the order that the seed and the epoch decide
             -> cut into windows of 16 runs' length, each shuffled: seed, epoch, number of the window

So a window holds records from sixteen places of the corpus, and every epoch holds every record once. No iterator has a
state to be saved: `shuffled(index, seed, first)` begins at the `first`-th record of the endless order, and reads only
the window that holds this record. The reference draws from a buffer of 100 records, an order that cannot be continued.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf2.data.record_index import RUN, RecordIndex, read_index
from bert_tf2.data.records import MOST_SEGMENTS, PACKED, RecordKind, Sizes, check_first_records
from bert_tf2.data.rows import INPUTS
from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more

WINDOW = 16 * RUN
"""The records that are shuffled together; they are in memory at the same time."""
_COMPRESSIONS = ("", "GZIP")  # TensorFlow's names, by whether gzip compressed the file
_BUFFER_BYTES = 1 << 18
_READERS = 32  # a store of objects answers slowly
# The window from which batches of rows of like length are made. A window is in memory at once; a larger window gives
# less padding.
_BATCHES_OF_WINDOW = 128
_ROWS_OF_WINDOW = 1 << 14  # at most, unless a batch is larger

PLACES = "places"
"""A feature of the batches, int32 [B, 2]: the number of the window, and the place of the row in it."""


@tf.autograph.experimental.do_not_convert  # it has no loops over tensors, and the conversion takes seconds
def read_records(
    paths: Sequence[str],
    kind: RecordKind,
    sizes: Sizes,
    batch_size: int,
    *,
    shuffle_seed: int | None = None,
    index: RecordIndex | None = None,
    first: int = 0,
    share: Share | None = None,
    repeat: bool = False,
    drop_remainder: bool = False,
    pad_to_max_length: bool = True,
    width_multiple: int = 1,
    like_lengths: bool = False,
    transform: Callable | None = None,
) -> tf.data.Dataset:
    """Creates a tf.data pipeline over TFRecord files.

    Args:
      paths: the files; each may be compressed by gzip.
      sizes: the value of every size that `kind` names, e.g. {"max_seq_length": 128, "vocab_size": 30522, ...}.
      batch_size: examples per batch, over all replicas.
      shuffle_seed: shuffles the records, see `shuffled`; None for the order of the files.
      first: with `shuffle_seed`, the number of examples that were read before; reading continues behind them.
      share: the rows of each batch that this process reads, with `drop_remainder`; None for all.
      repeat: whether to repeat the records endlessly. A batch may then contain the last and the first records.
      pad_to_max_length: False cuts each batch to its longest row.
      width_multiple: widths of cut batches are multiples of this number, or the whole width, so that they are few.
      like_lengths: with pad_to_max_length=False, whether to read batches of rows of like length; see `of_like_length`.
      transform: (batch, origins) -> batch. Features whose number of values varies are RaggedTensors in its argument;
        the origins are the dict of `shuffled`, each int64 [B], empty with `like_lengths`.

    Returns:
      A tf.data.Dataset of dicts: features of length 1 as [B], the others as [B, length]; int32 or float32. An invalid
        record stops the iteration with a TensorFlow error; `records.find_fault` then names the record.
    """
    check_first_records(paths, kind, sizes, must_have_some=repeat)

    def parse(serialized, origin):
        batch = _parse(serialized, kind, sizes)
        return batch if transform is None or like_lengths else transform(batch, origin)

    index = None if shuffle_seed is None else index or read_index(paths)
    if index and index.total:  # without records, there is no endless order
        data = shuffled(index, shuffle_seed, first, endless=repeat)
    else:
        data = unshuffled(paths).repeat(None if repeat else 1)
    at_once = rows_of_window(batch_size) if like_lengths else batch_size
    data = data.rebatch(at_once, drop_remainder=drop_remainder)
    data = (share.take(data, at_once) if share else data).map(parse, num_parallel_calls=2)
    if like_lengths:  # a window of rows as long as its longest text could take gigabytes
        data = of_like_length(data, batch_size)
        data = data if transform is None else data.map(lambda batch: transform(batch, {}))
    if not pad_to_max_length:
        wide = {*INPUTS, *(name for name, feature in kind.features.items() if feature.length == "max_seq_length")}
        data = data.map(lambda batch: cut_to_longest(batch, wide, width_multiple))
    options = tf.data.Options()
    options.autotune.enabled = False  # not needed, and its thread can delay the end of the program by a minute
    return data.prefetch(2).with_options(options)


def _parse(serialized, kind: RecordKind, sizes: Sizes) -> dict:
    """Parses serialized Examples [B] into a batch and checks every value against its limits."""
    named = {name for feature in kind.features.values() for name in (feature.length, feature.exclusive_maximum)}
    if missing := sorted(name for name in named - sizes.keys() if isinstance(name, str)):
        raise UserError(f"sizes: {kind.name} records also need {and_more(missing)}")
    spec = {
        name: tf.io.RaggedFeature(feature.dtype, row_splits_dtype=tf.int64)
        if feature.varies
        else tf.io.FixedLenFeature([sizes.get(feature.length, feature.length)], feature.dtype)
        for name, feature in kind.features.items()
    }
    batch = tf.io.parse_example(serialized, spec)
    checks = []
    for name, feature in kind.features.items():
        values = batch[name]
        if feature.varies:
            values, lengths = values.flat_values, values.row_lengths()
            right = (lengths > 0) & (lengths <= sizes.get(feature.length, feature.length))
            checks.append(tf.debugging.Assert(tf.reduce_all(right), [f"{name} has too many values or none"]))
        # Without this check, a GPU returns zeros for an index out of range and does not fail. Comparisons with NaN are
        # false, so NaN counts as out of range.
        if feature.exclusive_maximum is not None:
            limit = sizes.get(feature.exclusive_maximum, feature.exclusive_maximum)
            fits = (values >= feature.minimum) & (values < limit)
            checks.append(tf.debugging.Assert(tf.reduce_all(fits), [f"{name} out of range"]))
    found = {}
    with tf.control_dependencies(checks):
        for name, feature in kind.features.items():
            values = tf.cast(batch[name], tf.int32) if feature.dtype == "int64" else batch[name]  # TPUs have no int64
            found[name] = tf.identity(values[:, 0] if feature.length == 1 and not feature.varies else values)
    return found


def shuffled(index: RecordIndex, seed: int, first: int = 0, *, endless: bool = True):
    """The records in the order of the seed, epoch after epoch.

    Args:
      index: the files, which hold at least one record.
      seed: the same seed gives the same order.
      first: the number of records of this order to leave out.
      endless: False for a single epoch.

    Returns:
      A dataset of some records at a time, [N], for `rebatch`: strings, and their origins, a dict of int64: "epoch", how
      often all records were read before; "file", the number of the file among the sorted paths; "record", the number of
      the record in the file. All count from 0. A file with fewer records than in the index ends the iteration with an
      InvalidArgumentError; `record_index.find_change` names the file.
    """
    paths = tf.constant([os.fsencode(path) for path in index.paths])  # a name may have bytes that are not UTF-8
    compressions = tf.constant([_COMPRESSIONS[packed] for packed in index.packed])
    files, offsets, starts, counts = map(tf.constant, (index.files, index.offsets, index.starts, index.counts))
    first_epoch, position = divmod(first, index.total)

    def of_epoch(epoch):
        of_this = _fold(tf.constant([seed, 0], tf.int64), epoch)
        order = _permutation(len(index.counts), _fold(of_this, 0))
        begin = tf.where(epoch == first_epoch, tf.constant(position, tf.int64), 0)
        over = begin // WINDOW  # the number of windows that were read before
        sizes = tf.gather(counts, order)
        left = tf.clip_by_value(tf.cumsum(sizes) - over * WINDOW, 0, sizes)  # records still to read of each run
        wanted = tf.where(left > 0)[:, 0]
        runs = tf.data.Dataset.from_tensor_slices((tf.gather(order, wanted), tf.gather(sizes - left, wanted)))

        def of_run(run, skipped):
            file = files[run]
            records = _opened(paths[file], compressions[file], offsets[run])
            records = records.concatenate(_end_of_file()).take(counts[run])
            return _numbered(records.skip(skipped), epoch, file, starts[run] + skipped)

        def shuffle(number, window):
            count = tf.shape(window[0])[0]
            shuffled = _permutation(count, _fold(of_this, 1 + over + number))
            shuffled = shuffled[tf.where(number == 0, begin - over * WINDOW, 0) :]
            return tf.nest.map_structure(lambda values: tf.gather(values, shuffled), window)

        windows = runs.flat_map(of_run).rebatch(WINDOW).enumerate()
        return windows.map(lambda number, window: shuffle(number, window)).prefetch(1)

    epochs = tf.data.Dataset.range(first_epoch, tf.int64.max if endless else 1)
    return epochs.flat_map(of_epoch)


def _fold(seed, number):
    """A different seed, int64 [2], for each number."""
    return tf.random.experimental.stateless_fold_in(seed, tf.cast(number, tf.int64), alg="philox")


def _permutation(count, seed):
    """The numbers below `count` in an order that the seed decides, int64."""
    drawn = tf.random.stateless_uniform([count], seed, None, None, tf.int64, alg="philox")
    return tf.cast(tf.argsort(drawn, stable=True), tf.int64)


def unshuffled(paths: Sequence[str]):
    """The records in the order of the files, once, in the form that `shuffled` returns, with epoch 0."""
    ranks = {path: rank for rank, path in enumerate(sorted(paths))}
    with ThreadPoolExecutor(_READERS) as readers:
        compressions = [_COMPRESSIONS[packed] for packed in readers.map(files.is_archive, paths)]
    of_files = (
        [os.fsencode(path) for path in paths],
        compressions,
        tf.constant([ranks[path] for path in paths], tf.int64),
    )
    data = tf.data.Dataset.from_tensor_slices(of_files)
    return data.flat_map(lambda path, how, rank: _numbered(_opened(path, how), tf.constant(0, tf.int64), rank, 0))


def _numbered(records, epoch, file, start):
    """Several records of a file at a time, with their origins; the first record has the number `start`."""

    def number(part, data):
        numbers = start + part * RUN + tf.range(tf.size(data, tf.int64))
        return data, {"epoch": tf.fill(tf.shape(data), epoch), "file": tf.fill(tf.shape(data), file), "record": numbers}

    return records.batch(RUN).enumerate().map(number)


def _opened(path, compression, offset=0):
    """The records of a file from a byte on; the arguments are tensors. Call it only inside a function of a dataset."""
    # tf.data.TFRecordDataset has no argument for the offset. This operation works only inside a function of another
    # dataset, because TensorFlow 2.21 cannot serialize such a dataset by itself.
    records = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path],
        compression_type=compression,
        buffer_size=_BUFFER_BYTES,
        byte_offsets=[tf.cast(offset, tf.int64)],
    )
    return tf.data.experimental.from_variant(records, tf.TensorSpec([], tf.string))


def _end_of_file():
    """A dataset that fails when it is read. Without it, an endless order that finds no record would never end."""

    def fail(nothing):
        is_there = tf.not_equal(nothing, "")  # also where strings have the operators of numpy
        with tf.control_dependencies([tf.debugging.Assert(is_there, ["a file holds fewer records than before"])]):
            return tf.identity(nothing)

    return tf.data.Dataset.from_tensors("").map(fail)


def where(index: RecordIndex, seed: int, first: int, count: int) -> str:
    """Names the files and records, counted from 1, of `count` examples in the order of `shuffled`, for a message."""
    _, origin = next(iter(shuffled(index, seed, first).rebatch(count)))
    found: dict[int, list[int]] = {}
    for file, record in zip(origin["file"].numpy(), origin["record"].numpy(), strict=True):
        found.setdefault(int(file), []).append(int(record) + 1)
    parts = [f"{index.paths[file]}, record {and_more([*map(str, sorted(found[file]))], 16)}" for file in found]
    return and_more(parts, 4, "; ")


def padded_texts(batch: Mapping[str, Any], origin: Mapping[str, Any]) -> dict[str, Any]:
    """The features INPUTS of a batch of records.WHOLE_TEXTS, as `transform` of `read_records`."""
    batch = dict(batch)
    ids, lengths = batch.pop("input_ids"), batch.pop("segment_lengths")
    column, total = tf.range(tf.cast(ids.bounding_shape(1), tf.int32)), tf.cast(ids.row_lengths(), tf.int32)
    first = tf.where(lengths.row_lengths() > 1, lengths.to_tensor(shape=[None, MOST_SEGMENTS])[:, 0], total)
    mask = column < total[:, tf.newaxis]
    segments = mask & (column >= first[:, tf.newaxis])
    found = (ids.to_tensor(), tf.cast(mask, tf.int32), tf.cast(segments, tf.int32))
    return {**dict(zip(INPUTS, found, strict=True)), **batch}


class Share(NamedTuple):
    """The rows of each batch that one of several processes reads. All processes together read each row once.

    A batch of B rows is cut into `count` parts whose sizes differ by one at most.
    """

    first: int  # the number of the first part of this process
    parts: int  # the number of its parts; each becomes an element of its dataset, for one device
    count: int  # the number of parts of all processes

    def take(self, batches, batch_size: int):
        """Cuts this share's parts out of each batch of a dataset; a batch has B rows, B >= `count`."""
        ends = [batch_size * number // self.count for number in range(self.first, self.first + self.parts + 1)]

        def cut(*batch):
            parts = [
                tf.data.Dataset.from_tensors(tf.nest.map_structure(lambda rows: rows[begin:end], batch))  # noqa: B023
                for begin, end in itertools.pairwise(ends)
            ]
            return functools.reduce(lambda some, more: some.concatenate(more), parts)

        return batches.flat_map(cut)


# Batches with little padding: cut to their longest row, of rows of like length, or packed


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


def rows_of_window(batch_size: int) -> int:
    return batch_size * max(1, min(_BATCHES_OF_WINDOW, _ROWS_OF_WINDOW // batch_size))


def of_like_length(windows, batch_size: int):
    """Divides windows into batches of like length, the longest rows first.

    Args:
      windows: a dataset of dicts of [rows, ...] with `input_mask`, or with `input_ids` as a RaggedTensor.
      batch_size: the least number of rows in a batch; the last batch of a window may have fewer. A batch of short rows
        has more rows: as many tokens as `batch_size` rows of the full length.

    Returns:
      A dataset of dicts with the additional feature PLACES.
    """

    def divided(number, window):
        if isinstance(ids := window["input_ids"], tf.RaggedTensor):
            width, lengths = (tf.cast(size, tf.int32) for size in (ids.bounding_shape(1), ids.row_lengths()))
        else:
            width, lengths = tf.shape(ids)[1], lengths_of(window["input_mask"])
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
    """Puts batches of `of_like_length`, or the outputs computed for them, into batches in the order of the windows.

    Rows that are shorter than others of their batch are filled: whole numbers with 0, which is padding, others with
    `no_score`, so that a position that was not computed cannot be an answer.
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


_PACKERS = 4  # each packs about 25,000 examples in a second
_SIZES_OF_ROWS = 16  # the number of possible row counts; two to five of them are usual


@tf.autograph.experimental.do_not_convert  # as for read_records
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

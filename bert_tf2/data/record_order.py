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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import tensorflow as tf

from bert_tf2.data import batching
from bert_tf2.data.record_index import RUN, RecordIndex, read_index
from bert_tf2.data.records import RecordKind, Sizes, check_first_records
from bert_tf2.data.rows import INPUTS
from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more

WINDOW = 16 * RUN
"""The records that are shuffled together; they are in memory at the same time."""
_COMPRESSIONS = ("", "GZIP")  # TensorFlow's names, by whether gzip compressed the file
_BUFFER_BYTES = 1 << 18
_READERS = 32  # a store of objects answers slowly


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
      like_lengths: with pad_to_max_length=False, whether to read batches of rows of like length; see `batching`.
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
    at_once = batching.rows_of_pool(batch_size) if like_lengths else batch_size
    data = data.rebatch(at_once, drop_remainder=drop_remainder)
    data = (share.take(data, at_once) if share else data).map(parse, num_parallel_calls=2)
    if like_lengths:  # a pool of rows as long as its longest text could take gigabytes
        data = batching.of_like_length(data, batch_size)
        data = data if transform is None else data.map(lambda batch: transform(batch, {}))
    if not pad_to_max_length:
        wide = {*INPUTS, *(name for name, feature in kind.features.items() if feature.length == "max_seq_length")}
        data = data.map(lambda batch: batching.cut_to_longest(batch, wide, width_multiple))
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
    compressions = tf.constant([_COMPRESSIONS[is_archive] for is_archive in index.are_archives])
    file_of, offsets, starts, counts = map(tf.constant, (index.files, index.offsets, index.starts, index.counts))
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
            file = file_of[run]
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
        compressions = [_COMPRESSIONS[is_archive] for is_archive in readers.map(files.is_archive, paths)]
    of_files = (
        [os.fsencode(path) for path in paths],
        compressions,
        tf.constant([ranks[path] for path in paths], tf.int64),
    )
    data = tf.data.Dataset.from_tensor_slices(of_files)
    return data.flat_map(lambda path, how, rank: _numbered(_opened(path, how), tf.constant(0, tf.int64), rank, 0))


def _numbered(records, epoch, file, start):
    """Several records of a file at a time, with their origins; the first record has the number `start`."""

    def number(block, data):
        numbers = start + block * RUN + tf.range(tf.size(data, tf.int64))
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
    named = [f"{index.paths[file]}, record {and_more([*map(str, sorted(found[file]))], 16)}" for file in found]
    return and_more(named, 4, "; ")


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

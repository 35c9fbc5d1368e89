"""TFRecord files of the kinds of `schemas`: written from rows, and read as batches for a training."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bert_tf2.data import example, length_buckets, record_order, tfrecords
from bert_tf2.data.record_checks import Sizes, check_first_records
from bert_tf2.data.record_checks import find_fault as find_fault
from bert_tf2.data.record_index import RecordIndex
from bert_tf2.data.schemas import CLASSIFICATION as CLASSIFICATION
from bert_tf2.data.schemas import LARGEST_SCORE as LARGEST_SCORE
from bert_tf2.data.schemas import MASKED_WORDS as MASKED_WORDS
from bert_tf2.data.schemas import MULTI_LABEL as MULTI_LABEL
from bert_tf2.data.schemas import PRETRAINING as PRETRAINING
from bert_tf2.data.schemas import REGRESSION as REGRESSION
from bert_tf2.data.schemas import SQUAD_PREDICT as SQUAD_PREDICT
from bert_tf2.data.schemas import SQUAD_TRAIN as SQUAD_TRAIN
from bert_tf2.data.schemas import TOKEN_TAGGING as TOKEN_TAGGING
from bert_tf2.data.schemas import Feature, RecordKind

if TYPE_CHECKING:
    import tensorflow as tf

_ROWS_AT_ONCE = 256


def columns(kind: RecordKind, rows: Sequence[Mapping[str, Sequence]]) -> dict[str, np.ndarray]:
    """The features of some rows (feature name -> values, as many in each row), as `example.encode` takes them.

    Raises TypeError for no number, or a fraction where the kind has integers.
    """
    return {
        name: np.array([row[name] for row in rows]).astype(feature.dtype, casting="same_kind")
        for name, feature in kind.features.items()
    }


def encode(kind: RecordKind, row: Mapping[str, Sequence]) -> bytes:
    """Serializes a row; the same row gives the same bytes in every run."""
    return example.encode(columns(kind, [row]))[0]


def write_records(path: str, kind: RecordKind, rows: Iterable[Mapping[str, Sequence]]) -> int:
    """Writes rows (feature name -> values) to a TFRecord file, complete or absent; returns their number."""
    count, rows = 0, iter(rows)
    with tfrecords.writing(path) as (append,):
        while some := [*itertools.islice(rows, _ROWS_AT_ONCE)]:
            append(example.encode(columns(kind, some)))
            count += len(some)
    return count


def read_records(
    paths: Sequence[str],
    kind: RecordKind,
    sizes: Sizes,
    batch_size: int,
    *,
    shuffle_seed: int | None = None,
    index: RecordIndex | None = None,
    first: int = 0,
    share: record_order.Share | None = None,
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
      shuffle_seed: shuffles the records, see `record_order.shuffled`; None for the order of the files.
      first: with `shuffle_seed`, the number of examples that were read before; reading goes on behind them.
      share: the rows of each batch that this process reads, with `drop_remainder`; None for all.
      repeat: whether to repeat the records endlessly. A batch may then contain the last and the first records.
      pad_to_max_length: False cuts each batch to its longest row.
      width_multiple: the width of such a batch is a multiple of this, or the whole width; for few different widths.
      like_lengths: with pad_to_max_length=False, whether to read batches of rows of like length; see `length_buckets`.
      transform: makes another batch of each batch, in which features whose number of values varies are RaggedTensors,
        and of the origins of its records: the dict of `record_order.shuffled`, each int64 [B].

    Returns:
      A tf.data.Dataset of dicts: features of length 1 as [B], the others as [B, length]; int32 or float32. An invalid
        record stops the iteration with a TensorFlow error; `find_fault` then finds the record.
    """
    import tensorflow as tf

    check_first_records(paths, kind, sizes, must_have_some=repeat)

    def parse(serialized, origin):
        batch = _parse(serialized, kind, sizes)
        return batch if transform is None else transform(batch, origin)

    data = record_order.ordered(paths, shuffle_seed, index, first, repeat)
    at_once = length_buckets.rows_of_window(batch_size) if like_lengths else batch_size
    data = data.rebatch(at_once, drop_remainder=drop_remainder)
    data = (share.take(data, at_once) if share else data).map(parse, num_parallel_calls=2)
    if like_lengths:
        data = length_buckets.batches(data, batch_size)
    if not pad_to_max_length:
        wide = {name for name, feature in kind.features.items() if feature.length == "max_seq_length"}
        data = data.map(lambda batch: length_buckets.cut_to_longest(batch, wide, width_multiple))
    options = tf.data.Options()
    options.autotune.enabled = False  # not needed, and its thread can delay the end of the program by a minute
    return data.prefetch(2).with_options(options)


def _parse(serialized, kind: RecordKind, sizes: Sizes) -> dict:
    """Parses serialized Examples [B] into a batch, and checks every value against its limits."""
    import tensorflow as tf

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
        # On a GPU, an index out of range would return zeros, not fail. Comparisons with NaN are false: out of range.
        if feature.exclusive_maximum is not None:
            limit = sizes.get(feature.exclusive_maximum, feature.exclusive_maximum)
            fits = (values >= feature.minimum) & (values < limit)
            checks.append(tf.debugging.Assert(tf.reduce_all(fits), [f"{name} out of range"]))
    with tf.control_dependencies(checks):
        return {name: tf.identity(_narrow(batch[name], feature)) for name, feature in kind.features.items()}


def _narrow(values, feature: Feature):
    import tensorflow as tf

    values = tf.cast(values, tf.int32) if feature.dtype == "int64" else values  # TPUs have no int64
    return values[:, 0] if feature.length == 1 and not feature.varies else values

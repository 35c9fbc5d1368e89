"""The order in which the records of TFRecord files are read."""

from __future__ import annotations

from collections.abc import Sequence

from bert_tf2.support import gzip_files

_FILES_AT_A_TIME = 4
_SHUFFLE_BUFFER = 100


def opened(paths: Sequence[str]):
    """A dataset of the records of files in their order, as strings; files that end in .gz are compressed."""
    import tensorflow as tf

    if len({*map(gzip_files.is_named_gzip, paths)}) > 1:
        return tf.data.Dataset.from_tensor_slices(list(paths)).flat_map(_opened)
    kind = "GZIP" if paths and gzip_files.is_named_gzip(paths[0]) else ""
    return tf.data.TFRecordDataset(list(paths), compression_type=kind)


def _opened(path):
    """The records of a file, whose name is a tensor; within a dataset."""
    import tensorflow as tf

    is_gzip = tf.strings.regex_full_match(path, rf"(?s).*\{gzip_files.ENDING}")
    return tf.data.TFRecordDataset(path, compression_type=tf.where(is_gzip, "GZIP", ""))


def serialized(paths: Sequence[str], shuffle_seed: int | None, repeat: bool, *, with_origin: bool = False):
    """Creates a tf.data pipeline of records, one by one, as strings.

    Without `shuffle_seed`, records are read in the order of the files. With it, files are shuffled and interleaved, and
    records are drawn from a buffer of 100, as in the reference; the same seed gives the same order.

    Args:
      paths: the files; see `opened`.
      shuffle_seed: see above.
      repeat: whether to repeat the records endlessly.
      with_origin: whether to tell where each record is from. This does not change the order.

    Returns:
      A dataset of strings; or, with `with_origin`, of pairs of a string and a dict of int64: "epoch", how often the
      file was read before (always 0 without `shuffle_seed`); "file", its number among the sorted paths; "record", the
      number of the record in the file. All count from 0.
    """
    import tensorflow as tf

    if with_origin:
        in_order = sorted(range(len(paths)), key=paths.__getitem__)
        ranks = sorted(range(len(paths)), key=in_order.__getitem__)
        names = tf.data.Dataset.from_tensor_slices((list(paths), tf.constant(ranks, tf.int64)))
    else:
        names = tf.data.Dataset.from_tensor_slices(list(paths))

    def read(number, file):
        path, rank = file
        origin = {"epoch": number // len(paths), "file": rank}
        numbered = _opened(path).enumerate()
        return numbered.map(lambda record, data: (data, {**origin, "record": record}))

    if shuffle_seed is None:
        data = names.enumerate().flat_map(read) if with_origin else opened(paths)
        return data.repeat() if repeat else data
    names = names.repeat() if repeat else names
    names = names.enumerate() if with_origin else names
    names = names.shuffle(len(paths), seed=shuffle_seed)
    data = names.interleave(read if with_origin else _opened, cycle_length=min(_FILES_AT_A_TIME, len(paths)))
    return data.shuffle(_SHUFFLE_BUFFER, seed=shuffle_seed)

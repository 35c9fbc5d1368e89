"""The order in which the records of TFRecord files are read.

For training, it is a function of (seed, epoch, position), so that reading can go on where an earlier run ended:

    files    -> runs of 1024 consecutive records (`RecordIndex`)
    an epoch -> all runs in the order that the seed and the epoch decide
             -> cut into windows of 16 runs' length, each shuffled: seed, epoch, number of the window

So a window holds records from sixteen places of the corpus, of any files, and every epoch holds every record once. No
iterator has a state to be saved: `shuffled(index, seed, first)` begins at the `first`-th record of the endless order,
and reads no more than the window that holds it. The reference instead draws from a buffer of 100 records of four files,
an order that cannot be continued.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np

from bert_tf2.data import tfrecords
from bert_tf2.support import gzip_files, progress
from bert_tf2.support.errors import and_more

RUN = 1024
"""The records of a run; the last one of a file may have fewer."""
WINDOW = 16 * RUN
"""The records that are shuffled together; they are in memory at the same time."""


@dataclasses.dataclass(frozen=True)
class RecordIndex:
    """The runs of consecutive records that the files consist of, in the order of the files.

    A compressed file is one run, because reading cannot begin in its middle.

    Attributes:
      paths: the files, sorted, so that the order in which they are given does not matter.
      files: int64 [R], the number of the file of each run.
      offsets: int64 [R], the byte of the file at which the run begins.
      starts: int64 [R], the number of its first record in the file, from 0.
      counts: int64 [R], its records.
      sizes: int64 [R], their bytes, uncompressed.
    """

    paths: tuple[str, ...]
    files: np.ndarray
    offsets: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    sizes: np.ndarray

    @property
    def total(self) -> int:
        """The number of all records."""
        return int(self.counts.sum())

    @property
    def description(self) -> str:
        """Tells these records from others: their number, and a checksum of their numbers and sizes."""
        checksum = google_crc32c.value(np.concatenate([self.files, self.counts, self.sizes]).tobytes())
        return f"{self.total} records in {len(self.paths)} files ({checksum:08x})"


def read_index(paths: Sequence[str]) -> RecordIndex:
    """Reads all files, which checks every checksum.

    Raises:
      UserError: a file cannot be read or is damaged; names the file and the record.
    """
    runs: list[tuple[int, int, int, int, int]] = []
    paths = tuple(sorted(paths))
    with progress.Progress("Checking the records", unit="records") as line:
        for number, path in enumerate(paths):
            for run in runs_of(path):
                runs.append((number, *run))
                line.advance(run[2])
    table = np.array(runs, np.int64).reshape(-1, 5).T
    return RecordIndex(paths, *table)


def runs_of(path: str) -> Iterator[tuple[int, int, int, int]]:
    """Yields the offset, the number of the first record, the number of records, and the bytes of each run of a file."""
    firsts: list[int] = []  # byte offsets of the records RUN * 0, RUN * 1, ...
    count, offset = 0, 0
    for block in tfrecords.read_blocks(path):
        ends = offset + np.cumsum(block.lengths + tfrecords.FRAME)
        begins = np.concatenate([[offset], ends[:-1]])
        firsts += begins[-count % RUN :: RUN].tolist()
        count, offset = count + len(block), int(ends[-1])
    if tfrecords.is_compressed(path):
        if count:
            yield 0, 0, count, offset
        return
    for number, (first, end) in enumerate(itertools.pairwise([*firsts, offset])):
        yield first, number * RUN, min(RUN, count - number * RUN), end - first


# Pipelines


def _opened(path, offset=0):
    """The records of a file from a byte on; the name is a tensor. Within a dataset."""
    import tensorflow as tf

    is_gzip = tf.strings.regex_full_match(path, rf"(?s).*\{gzip_files.ENDING}")
    # tf.data.TFRecordDataset has no argument for the offset. This operation works only within a function of another
    # dataset: TensorFlow 2.21 cannot serialize one that stands alone.
    records = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path],
        compression_type=tf.where(is_gzip, "GZIP", ""),
        buffer_size=_BUFFER_BYTES,
        byte_offsets=[tf.cast(offset, tf.int64)],
    )
    return tf.data.experimental.from_variant(records, tf.TensorSpec([], tf.string))


_BUFFER_BYTES = 1 << 18


def ordered(paths: Sequence[str], shuffle_seed: int | None, index: RecordIndex | None, first: int, repeat: bool):
    """`in_order`, or with a seed `shuffled`; see records.read_records for the arguments."""
    if shuffle_seed is None:
        data = in_order(paths)
        return data.repeat() if repeat else data
    index = index or read_index(paths)
    if not index.total:  # it has no endless order
        return in_order(paths)
    return shuffled(index, shuffle_seed, first, endless=repeat)


def in_order(paths: Sequence[str]):
    """The records in the order of the files, once; as `shuffled` gives them, with epoch 0."""
    import tensorflow as tf

    ranks = {path: rank for rank, path in enumerate(sorted(paths))}
    files = tf.data.Dataset.from_tensor_slices((list(paths), tf.constant([ranks[path] for path in paths], tf.int64)))
    return files.flat_map(lambda path, rank: _numbered(_opened(path), tf.constant(0, tf.int64), rank, 0))


def _numbered(records, epoch, file, start):
    """Several records of a file at a time, with their origins; `start` is the number of the first one."""
    import tensorflow as tf

    def number(part, data):
        numbers = start + part * RUN + tf.range(tf.size(data, tf.int64))
        return data, {"epoch": tf.fill(tf.shape(data), epoch), "file": tf.fill(tf.shape(data), file), "record": numbers}

    return records.batch(RUN).enumerate().map(number)


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
      the record in the file. All count from 0.
    """
    import tensorflow as tf

    paths, files, offsets, starts, counts = map(
        tf.constant, (index.paths, index.files, index.offsets, index.starts, index.counts)
    )
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
            records = _opened(paths[files[run]], offsets[run]).take(counts[run]).skip(skipped)
            return _numbered(records, epoch, files[run], starts[run] + skipped)

        def shuffle(number, window):
            count = tf.shape(window[0])[0]
            shuffled = _permutation(count, _fold(of_this, 1 + over + number))
            shuffled = shuffled[tf.where(number == 0, begin - over * WINDOW, 0) :]
            return tf.nest.map_structure(lambda values: tf.gather(values, shuffled), window)

        windows = runs.flat_map(of_run).rebatch(WINDOW).enumerate()
        return windows.map(lambda number, window: shuffle(number, window)).prefetch(1)

    epochs = tf.data.Dataset.range(first_epoch, tf.int64.max if endless else 1)
    return epochs.flat_map(of_epoch)


def batched(data, batch_size: int, drop_remainder: bool, share: Share | None):
    """Batches of a dataset of some records at a time, or this process's share of each of them."""
    data = data.rebatch(batch_size, drop_remainder=drop_remainder)
    return share.take(data, batch_size) if share else data


class Share(NamedTuple):
    """The rows of each batch that one of several processes reads, so that all of them together read each row once.

    A batch of B rows is cut into `count` parts whose sizes differ by one at most.

    Attributes:
      first: the number of the first part of this process.
      parts: the number of its parts; each becomes an element of its dataset, for one device.
      count: the number of parts of all processes.
    """

    first: int
    parts: int
    count: int

    def take(self, batches, batch_size: int):
        """A dataset of this share's parts of the elements of a dataset, each of which has B rows, B >= `count`."""
        import tensorflow as tf

        ends = [batch_size * number // self.count for number in range(self.first, self.first + self.parts + 1)]

        def cut(*batch):
            parts = [
                tf.data.Dataset.from_tensors(tf.nest.map_structure(lambda rows: rows[begin:end], batch))  # noqa: B023
                for begin, end in itertools.pairwise(ends)
            ]
            return functools.reduce(lambda some, more: some.concatenate(more), parts)

        return batches.flat_map(cut)


def where(index: RecordIndex, seed: int, first: int, count: int) -> str:
    """Names the files and records, counted from 1, of some examples of the order of `shuffled`, for a message."""
    _, origin = next(iter(shuffled(index, seed, first).rebatch(count)))
    found: dict[int, list[int]] = {}
    for file, record in zip(origin["file"].numpy(), origin["record"].numpy(), strict=True):
        found.setdefault(int(file), []).append(int(record) + 1)
    parts = [f"{index.paths[file]}, record {and_more([*map(str, sorted(found[file]))], 16)}" for file in found]
    return and_more(parts, 4, "; ")


def _fold(seed, number):
    """Another seed, int64 [2], for each number."""
    import tensorflow as tf

    return tf.random.experimental.stateless_fold_in(seed, tf.cast(number, tf.int64), alg="philox")


def _permutation(count, seed):
    """The numbers below `count` in an order that the seed decides, int64."""
    import tensorflow as tf

    drawn = tf.random.stateless_uniform([count], seed, None, None, tf.int64, alg="philox")
    return tf.cast(tf.argsort(drawn, stable=True), tf.int64)

"""Where the records of TFRecord files lie, so that reading can begin at any of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import google_crc32c
import numpy as np

from bert_tf2.data import record_framing
from bert_tf2.support import gzip_files, progress

RUN = 1024
"""The records of a run; the last one of a file may have fewer."""


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


def read(paths: Sequence[str]) -> RecordIndex:
    """Reads all files, which checks every checksum.

    Raises:
      UserError: a file cannot be read or is damaged; names the file and the record.
    """
    runs: list[tuple[int, int, int, int, int]] = []
    paths = tuple(sorted(paths))
    with progress.Progress("Checking the records", unit="records") as line:
        for number, path in enumerate(paths):
            for run in _runs(path):
                runs.append((number, *run))
                line.advance(run[2])
    table = np.array(runs, np.int64).reshape(-1, 5).T
    return RecordIndex(paths, *table)


def _runs(path: str) -> Iterator[tuple[int, int, int, int]]:
    """Yields the offset, the number of the first record, the number of records, and the bytes of each run of a file."""
    firsts: list[int] = []  # byte offsets of the records RUN * 0, RUN * 1, ...
    count, offset = 0, 0
    for block in record_framing.read_blocks(path):
        ends = offset + np.cumsum(block.lengths + record_framing.FRAME)
        begins = np.concatenate([[offset], ends[:-1]])
        firsts += begins[-count % RUN :: RUN].tolist()
        count, offset = count + len(block), int(ends[-1])
    if gzip_files.is_named_gzip(path):
        if count:
            yield 0, 0, count, offset
        return
    for number, (first, end) in enumerate(itertools.pairwise([*firsts, offset])):
        yield first, number * RUN, min(RUN, count - number * RUN), end - first

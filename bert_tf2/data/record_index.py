"""An index of the records of TFRecord files: runs of 1024 records, at whose first record reading can begin.

The index is kept in `.records-index.json` beside the records, or in the output folder if the records' folder cannot be
written. A later start and the other workers then need not read the records to index them. A file of records counts as
known while its size and time of change are unchanged. A training run verifies the checksums again as it reads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import google_crc32c
import numpy as np
from absl import logging

from bert_tf2.data import records, tfrecords
from bert_tf2.support import files, progress
from bert_tf2.support.errors import UserError

RUN = 1024
"""The records of a run; the last run of a file may have fewer."""
NAME = ".records-index.json"
_SMALLEST = 100_000_000  # bytes
_READERS = 8
_STATE_READERS = 32  # a store of objects answers slowly
_VERSION = 4
_DAMAGE = (UserError, OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError)


@dataclasses.dataclass(frozen=True)
class RecordIndex:
    """The runs of consecutive records that the files consist of, in the order of the files.

    A compressed file is one run, because reading cannot begin in its middle.
    """

    paths: tuple[str, ...]  # the files, sorted, so that the order in which they are given does not matter
    files: np.ndarray  # int64 [R], the number of the file of each run
    offsets: np.ndarray  # int64 [R], the byte of the file at which the run begins
    starts: np.ndarray  # int64 [R], the number of the run's first record in the file, from 0
    counts: np.ndarray  # int64 [R], the number of records in the run
    sizes: np.ndarray  # int64 [R], the bytes of the run's records, uncompressed
    checksums: tuple[int, ...]  # the checksum of each file's content
    are_archives: tuple[bool, ...]  # whether each file is compressed by gzip

    @property
    def total(self) -> int:
        """The number of all records."""
        return int(self.counts.sum())

    @property
    def description(self) -> str:
        """Identifies these records by their number and a checksum of all of them."""
        numbers = np.concatenate([self.files, self.counts, self.sizes, np.array(self.checksums, np.int64)])
        checksum = google_crc32c.value(numbers.tobytes())
        return f"{self.total} records in {len(self.paths)} files ({checksum:08x})"


class Runs(NamedTuple):
    """The runs of a file."""

    count: int  # the number of records
    form: int  # of the first record, see records.form_of
    checksum: int  # of the records' checksums
    is_archive: bool  # whether gzip compressed the file
    sizes: list[int]  # the bytes of each run

    def to_json(self) -> list[int]:
        return [self.count, self.form, self.checksum, int(self.is_archive), *self.sizes]

    @classmethod
    def from_json(cls, row: Sequence[int]) -> Runs:
        count, form, checksum, is_archive, *sizes = row
        return cls(count, form, checksum, bool(is_archive), sizes)


_State = tuple[int, float]
"""The size of a file and its time of change. A time of 0 is unknown, and such a file is read again each time."""


def read_index(paths: Sequence[str]) -> RecordIndex:
    paths = tuple(sorted(paths))
    return _assemble(paths, _read(dict.fromkeys(paths)))


def find_change(index: RecordIndex) -> UserError | None:
    """Reads all files and returns an error about the first whose records are not the index's any more.

    None if there is no such file.
    """
    for number, path in enumerate(index.paths):
        of_file = index.files == number
        before = int(index.counts[of_file].sum()), index.checksums[number], index.sizes[of_file].tolist()
        try:
            now = runs_of(path)
        except UserError as error:
            return error
        if (now.count, now.checksum, now.sizes) != before:
            return UserError(
                f"{path}: changed while it was read: {now.count} records now, {before[0]} when the training began; put"
                " the records back, then the same command continues"
            )
    return None


def read(
    paths: Sequence[str],
    output_dir: str,
    *,
    keep: bool,
    check: Callable[[Mapping[str, int], Sequence[str]], None] | None = None,
    smallest: int = _SMALLEST,
) -> tuple[RecordIndex, list[str]]:
    """Returns the index of record files. Reads only the files that a kept index does not know.

    Args:
      output_dir: where the index is kept if it cannot be kept beside the first file.
      keep: whether to write the index; of several workers, one does.
      check: is called before anything is kept, with the number of records of each file that was read, and with one file
        for each form of first records.
      smallest: the index of records of fewer bytes is not kept: reading them again takes a second at most, and no file
        is left in their folder.

    Returns the index, equal to `read_index(paths)`, and the files that were read for it.
    """
    paths = tuple(sorted(paths))
    places = [os.path.join(folder, NAME) for folder in (os.path.dirname(paths[0]), output_dir)]
    states = _states(paths)
    stored: dict[str, tuple[_State, Runs]] = {}
    for place in places:
        stored |= _load(place)
    kept = {path: stored.get(_key(path), (None, None)) for path in paths}
    known = {path: runs for path, (state, runs) in kept.items() if state == states[path] and state[1]}
    fresh = [path for path in kept if path not in known]
    if known:
        logging.info("The index of %d record files is known, %d are read for it", len(known), len(fresh))
    known |= _read(fresh)
    if check:
        unlike = {known[path].form: path for path in reversed(paths)}
        check({path: known[path].count for path in fresh}, [*unlike.values()])
    if fresh and keep:
        _save({path: (states[path], runs) for path, runs in known.items()}, places, smallest)
    return _assemble(paths, known), fresh


def keep(rows: Mapping[str, Sequence[int]], smallest: int = _SMALLEST) -> None:
    """Keeps the index of new records, path -> `Runs.to_json`, if their folder allows it. `smallest`: see `read`."""
    with contextlib.suppress(*_DAMAGE):
        known = {path: Runs.from_json(row) for path, row in rows.items()}
        _assemble([*known], known)  # fails if the runs make no sense
        states = _states([*known])
        place = os.path.join(os.path.dirname(next(iter(known))), NAME)
        _save({path: (states[path], runs) for path, runs in known.items()}, [place], smallest)


def runs_of(path: str) -> Runs:
    """Reads a file and returns its runs."""
    begins: list[int] = []  # byte offsets of the records RUN * 0, RUN * 1, ...
    count, size, form, checksum = 0, 0, 0, 0
    is_archive = files.is_archive(path)
    for block in tfrecords.read_blocks(path):
        form = form if count else records.form_of(block)
        ends = size + np.cumsum(block.lengths + tfrecords.FRAME)
        starts = np.concatenate([[size], ends[:-1]])
        checksum = google_crc32c.extend(checksum, block.checksums())
        begins += starts[-count % RUN :: RUN].tolist()
        count, size = count + len(block), int(ends[-1])
    if is_archive:
        begins = begins[:1]
    return Runs(count, form, checksum, is_archive, np.diff([*begins, size]).tolist())


def _key(path: str) -> str:
    return path if files.is_remote(path) else os.path.abspath(path)


def _states(paths: Sequence[str]) -> dict[str, _State]:
    with ThreadPoolExecutor(_STATE_READERS) as readers:
        times = [time or 0.0 for time in readers.map(files.modified, paths)]
        return dict(zip(paths, zip(readers.map(files.size, paths), times, strict=True), strict=True))


def _read(paths: Iterable[str]) -> dict[str, Runs]:
    found: dict[str, Runs] = {}
    with progress.Progress("Checking the records", unit="records") as line, ThreadPoolExecutor(_READERS) as readers:
        try:
            for path, runs in zip(paths, readers.map(runs_of, paths), strict=True):
                found[path] = runs
                line.advance(runs.count)
        except BaseException:
            readers.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _assemble(paths: Sequence[str], known: Mapping[str, Runs]) -> RecordIndex:
    table = [np.zeros((5, 0), np.int64)]
    for number, path in enumerate(paths):
        sizes = np.array(known[path].sizes, np.int64)
        places = np.arange(len(sizes))
        counts = np.full_like(places, RUN)
        counts[-1:] += known[path].count - counts.sum()
        table.append(np.stack([np.full_like(places, number), np.cumsum(sizes) - sizes, places * RUN, counts, sizes]))
    checksums, are_archives = zip(*((known[path].checksum, known[path].is_archive) for path in paths), strict=True)
    return RecordIndex(tuple(paths), *np.concatenate(table, axis=1), checksums, are_archives)


def _load(place: str) -> dict[str, tuple[_State, Runs]]:
    """Returns the content of an index file; empty if the file is missing, damaged or of another version."""
    try:
        if not files.exists(place):
            return {}
        with files.open_binary(place) as stream:
            head, rows = stream.readline(), stream.read()
        known = json.loads(rows) if head == _head(rows) else {}
        return {name: ((size, time), Runs.from_json(row)) for name, (size, time, *row) in known.items()}
    except _DAMAGE:
        return {}


def _head(rows: bytes) -> bytes:
    return f"{_VERSION} {google_crc32c.value(rows)}\n".encode()


def _save(known: dict[str, tuple[_State, Runs]], places: Sequence[str], smallest: int) -> None:
    """Adds known runs to the first place that can be written, unless the records have fewer bytes than `smallest`."""
    if sum(size for (size, _), _ in known.values()) < smallest:
        return
    mine = {_key(path): row for path, row in known.items()}
    for place in places:
        with contextlib.suppress(UserError, OSError):
            # The place also has the runs of other records. Entries of deleted files are dropped, or they would stay.
            others = {name: row for name, row in _load(place).items() if files.is_remote(name) or os.path.exists(name)}
            every = {name: [*state, *runs.to_json()] for name, (state, runs) in (others | mine).items()}
            rows = json.dumps(every).encode()
            with files.complete_or_absent(place) as (beside,), files.open_binary(beside, "wb") as stream:
                stream.write(_head(rows) + rows)
            return logging.info("Kept the index of %d record files: %s", len(known), place)

"""The index of records, kept in a file, so that neither a later start nor another worker reads the records for it.

`.records-index.npz` stands beside the records, or in the output folder if nothing can be written there. A file of
records counts as known while its size and time of change are those of when it was read. Its checksums were verified
then; a training verifies them again as it reads.
"""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from absl import logging

from bert_tf2.data.record_order import RUN, RecordIndex, runs_of
from bert_tf2.support import files, progress
from bert_tf2.support.errors import UserError

NAME = ".records-index.npz"
SMALLEST = 100_000_000
"""Records of fewer bytes are read anew: that takes a second at most, and leaves no file in the user's folder."""
_READERS = 8
_STATE_READERS = 32  # a store of objects answers slowly
_VERSION = 1

_State = tuple[int, float]
"""The size of a file and its time of change."""


class _Known(NamedTuple):
    """What is known of a file.

    Attributes:
      state: when it was read.
      counts: int64 [R], the records of its runs.
      sizes: int64 [R], their bytes.
    """

    state: _State
    counts: np.ndarray
    sizes: np.ndarray


def read(paths: Sequence[str], output_dir: str, *, keep: bool, anew: bool = False) -> tuple[RecordIndex, list[str]]:
    """The index of record files, of which those that are not known are read.

    Args:
      paths: the files.
      output_dir: where the index is kept if it cannot be kept beside the first file.
      keep: whether to write what was read; one worker of several does.
      anew: read all files.

    Returns:
      The index, equal to that of record_order.read_index; and the files that were read for it.

    Raises:
      UserError: a file cannot be read or is damaged; names the file and the record.
    """
    paths = tuple(sorted(paths))
    places = [os.path.join(folder, NAME) for folder in (os.path.dirname(paths[0]), output_dir)]
    states = _states(paths)
    stored: dict[str, _Known] = {}
    for place in places:
        stored |= _load(place)
    known = {p: stored[_key(p)] for p in paths if _key(p) in stored and stored[_key(p)].state == states[p] and not anew}
    fresh = [path for path in dict.fromkeys(paths) if path not in known]
    if known:
        logging.info("The index of %d record files is known, %d are read for it", len(known), len(fresh))
    known |= _read(fresh, states)
    size = sum(size for size, _ in states.values())
    if fresh and keep and size >= SMALLEST:
        _save({_key(path): what for path, what in known.items() if what.state[1]}, places)
    return _assemble(paths, known), fresh


def keep(paths: Sequence[str], runs: Sequence[Sequence[int]], totals: Sequence[int]) -> None:
    """Keeps the index of records that were just written, if their folder allows it.

    Args:
      paths: their files.
      runs: the bytes of the runs of each file.
      totals: the records of each file.
    """
    try:
        states = _states(paths)
    except (UserError, OSError):
        return
    if sum(size for size, _ in states.values()) < SMALLEST:
        return
    known: dict[str, _Known] = {}
    for path, sizes, total in zip(paths, runs, totals, strict=True):
        counts = np.full(len(sizes), RUN)  # all but the last run are full; an archive is a single run
        counts[-1:] += total - counts.sum()
        known[_key(path)] = _Known(states[path], counts, np.array(sizes, np.int64))
    _save(known, [os.path.join(os.path.dirname(paths[0]), NAME)])


def _key(path: str) -> str:
    return path if files.is_remote(path) else os.path.abspath(path)


def _states(paths: Sequence[str]) -> dict[str, _State]:
    """The states of files; 0 for a time that is unknown, which makes the file unknown."""

    def state(path: str) -> _State:
        return files.size(path), files.modified(path) or 0.0

    with ThreadPoolExecutor(_STATE_READERS) as readers:
        return dict(zip(paths, readers.map(state, paths), strict=True))


def _read(paths: Sequence[str], states: dict[str, _State]) -> dict[str, _Known]:
    known: dict[str, _Known] = {}
    with progress.Progress("Checking the records", unit="records") as line, ThreadPoolExecutor(_READERS) as readers:
        try:
            for path, runs in zip(paths, readers.map(lambda path: [*runs_of(path)], paths), strict=True):
                table = np.array(runs, np.int64).reshape(-1, 4)
                known[path] = _Known(states[path], table[:, 2], table[:, 3])
                line.advance(int(table[:, 2].sum()))
        except BaseException:
            readers.shutdown(wait=False, cancel_futures=True)
            raise
    return known


def _assemble(paths: Sequence[str], known: dict[str, _Known]) -> RecordIndex:
    """The index of files of which all is known: runs stand in a file one behind the other."""
    columns: list[list[np.ndarray]] = [[], [], [], [], []]
    for number, path in enumerate(paths):
        _, counts, sizes = known[path]
        runs = len(counts)
        row = (np.full(runs, number), np.cumsum(sizes) - sizes, np.arange(runs) * RUN, counts, sizes)
        for column, values in zip(columns, row, strict=True):
            column.append(values)
    return RecordIndex(tuple(paths), *(np.concatenate(column).astype(np.int64) for column in columns))


def _load(place: str) -> dict[str, _Known]:
    """What a file knows; nothing if there is none, or one that is damaged or of another version."""
    try:
        if not files.exists(place):
            return {}
        with files.open_binary(place) as stream:
            found = np.load(io.BytesIO(stream.read()), allow_pickle=False)
            if int(found["version"]) != _VERSION:
                return {}
            ends = np.cumsum(found["runs"])[:-1]
            counts, sizes = np.split(found["counts"], ends), np.split(found["sizes"], ends)
            states = zip(found["file_sizes"].tolist(), found["times"].tolist(), strict=True)
            names = found["names"].tobytes().decode().split("\0")
            return {name: _Known(*row) for name, *row in zip(names, states, counts, sizes, strict=True)}
    except (UserError, OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return {}


def _save(known: dict[str, _Known], places: Sequence[str]) -> None:
    """Writes what is known to the first place that can be written."""
    content = io.BytesIO()
    np.savez(
        content,
        version=np.int64(_VERSION),
        names=np.frombuffer("\0".join(known).encode(), np.uint8),
        file_sizes=np.array([what.state[0] for what in known.values()], np.int64),
        times=np.array([what.state[1] for what in known.values()], np.float64),
        runs=np.array([len(what.counts) for what in known.values()], np.int64),
        counts=np.concatenate([what.counts for what in known.values()]),
        sizes=np.concatenate([what.sizes for what in known.values()]),
    )
    for place in places:
        with contextlib.suppress(UserError, OSError):
            files.make_directory(os.path.dirname(place))
            with files.complete_or_absent(place) as (beside,), files.open_binary(beside, "wb") as stream:
                stream.write(content.getvalue())
            return logging.info("Kept the index of %d record files: %s", len(known), place)

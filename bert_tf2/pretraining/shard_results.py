"""What workers on other machines leave of a shard besides its file: a small JSON file beside it, the result.

The launcher of a Beam pipeline can only wait for its end; with some runners, it gets nothing back from it. So a worker
writes its answer to `.NAME-00000-of-01000.result.json`: the shard's counts, or why it was not made. It is written after
the shard. A shard with a result of the same job is finished, also for a later run.

Beam may repeat the work on a shard, also while another worker still does it, and another container on a machine has the
same host name and other process numbers. So a worker writes to names that nobody else has, and renames what is
complete; whoever comes last replaces a file by an equal one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging as python_logging
import os
import shutil
import socket
import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from absl import logging

from bert_tf2.pretraining import manifest, shard_workers, shards
from bert_tf2.pretraining.shard_workers import Result, Setup
from bert_tf2.pretraining.shards import Piece, Shard, Source
from bert_tf2.support import files, outputs
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer

_READERS = 16  # files that are read at the same time: remote ones answer slowly
_BLOCK = 1 << 20

Packed = tuple[int, tuple[tuple[int, int, int], ...]]
"""A shard as few bytes: its number, and for each piece the number of its source, start and stop."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What all workers need; it is sent to each of them once.

    Attributes:
      setup: see shard_workers.Setup.
      sources: the files of the corpus.
      count: the number of shards.
      run: identifies the flags, the vocabulary and the inputs: a hash of the manifest's description.
      vocabulary: the SHA-256 of the vocabulary.
    """

    setup: Setup
    sources: tuple[Source, ...]
    count: int
    run: str
    vocabulary: str

    @classmethod
    def of(cls, made: manifest.Manifest, setup: Setup, sources: Sequence[Source], count: int) -> Job:
        """The job that makes the shards of a manifest."""
        return cls(setup, tuple(sources), count, made.run, manifest.sha256(setup.options.vocab_file))

    def pack(self, shard: Shard) -> Packed:
        number_of = {source: number for number, source in enumerate(self.sources)}
        return shard.number, tuple((number_of[piece.source], piece.start, piece.stop) for piece in shard.pieces)

    def unpack(self, packed: Packed) -> Shard:
        number, pieces = packed
        options = self.setup.options
        return Shard(
            number,
            shards.name_of(options.output_file, number, self.count),
            shards.seed_of(options.random_seed, number),
            tuple(Piece(self.sources[source], start, stop) for source, start, stop in pieces),
        )


class ShardFailed(Exception):
    """A shard was not made; its result says why. Beam sees this exception and decides whether to try again."""


# In a worker


def load_tokenizer(job: Job) -> FullTokenizer:
    """The tokenizer of a worker.

    Raises:
      UserError: the vocabulary cannot be read here, or is not the launcher's.
    """
    setup = job.setup
    if manifest.sha256(setup.options.vocab_file) != job.vocabulary:
        raise UserError(
            f"{setup.options.vocab_file}: is another file on {socket.gethostname()} than where the job was started;"
            " name a file that all machines see"
        )
    return FullTokenizer(setup.options.vocab_file, setup.do_lower_case)


def make(shard: Shard, tokenizer: FullTokenizer | UserError, job: Job) -> dict[str, Any]:
    """Makes a shard and its result, unless an earlier attempt of this job has finished it; returns its counts.

    Args:
      shard: the shard.
      tokenizer: see load_tokenizer; or why there is none.
      job: the job.

    Raises:
      ShardFailed: the shard cannot be made; the message has the first line of the reason.
    """
    place = result_of(shard)
    if (found := _read(shard, job)) and found.counts:
        return found.counts
    result = Result(error=str(tokenizer))
    with _collecting_log() as messages, _workshop(shard) as folder:
        private = dataclasses.replace(shard, output=os.path.join(folder, os.path.basename(shard.output)))
        if not isinstance(tokenizer, UserError):
            result = _attempt(shard, private, tokenizer, job)
        result = dataclasses.replace(result, warnings=shard_workers.named_after_input(messages, private))
        row = {"run": job.run, "shard": shard.number, "seed": shard.seed, **dataclasses.asdict(result)}
        beside = os.path.join(folder, "result.json")
        with open(beside, "w", encoding="utf-8") as stream:
            json.dump(row, stream)
        if result.counts or not files.exists(place):
            _publish(beside, place)
    if not result.counts:
        raise ShardFailed(f"{shard.output}: {result.error or result.bug.strip().splitlines()[-1]}")
    return result.counts


def _attempt(shard: Shard, private: Shard, tokenizer: FullTokenizer, job: Job) -> Result:
    """Makes a shard under a private name, then gives it its own."""
    try:
        for source in {piece.source for piece in shard.pieces}:
            if files.size(source.place) != source.size:
                raise UserError(
                    f"{source.place}: has another size on {socket.gethostname()} than where the job was started; name"
                    " files that all machines see, and leave them as they are until the job has ended"
                )
        counts = shard_workers.make_shard(private, tokenizer, job.setup.options)
        _publish(private.output, shard.output)
        return Result(counts=counts)
    except Exception as error:
        result, folder = shard_workers.explain(error), os.path.dirname(private.output)
        place = os.path.dirname(folder)  # where the user knows files: beside the shard, or the temporary disk
        line = result.error.replace(os.path.join(folder, ""), os.path.join(place, "")).replace(folder, place or ".")
        return dataclasses.replace(result, error=line)


@contextlib.contextmanager
def _workshop(shard: Shard) -> Iterator[str]:
    """A folder for the files of one attempt: beside the shard, or on a disk of this machine if that is remote."""
    if files.is_remote(shard.output):
        folder = outputs.temporary_folder("bert_tf2_shard_")
    else:
        files.make_directory(os.path.dirname(shard.output))
        folder = outputs.unique_beside(shard.output)
        os.mkdir(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _publish(source: str, target: str) -> None:
    """Gives a complete local file its final name, in one step if `target` is local; `source` is on the same disk then.

    A remote file gets another name until it is complete.
    """
    if not files.is_remote(target):
        return files.rename(source, target)
    beside = outputs.unique_beside(target)
    files.make_directory(os.path.dirname(target))
    with open(source, "rb") as found, files.open_binary(beside, "wb") as stream:
        while block := found.read(_BLOCK):
            stream.write(block)
    files.rename(beside, target)


@contextlib.contextmanager
def _collecting_log() -> Iterator[list[str]]:
    """Collects the warnings of this thread in a list; nothing else is logged.

    Workers may be threads of the launcher, whose log is the user's.
    """
    collected: list[str] = []
    this = threading.get_ident()

    def keep(record: python_logging.LogRecord) -> bool:
        if record.thread != this:
            return True
        if record.levelno >= python_logging.WARNING:
            collected.append(record.getMessage())
        return False

    logger = logging.get_absl_logger()
    logger.addFilter(keep)
    try:
        yield collected
    finally:
        logger.removeFilter(keep)


# In the launcher


def result_of(shard: Shard) -> str:
    """The name of a shard's result."""
    folder, name = os.path.split(shard.output)
    return os.path.join(folder, f".{name}.result.json")


def found(wanted: Sequence[Shard], job: Job, known: Collection[int] = ()) -> list[tuple[Shard, Result]]:
    """The results of shards that are there now, failures too, except those of the shards with the `known` numbers.

    A result counts if it belongs to this job and the shard's file is as large as it says.
    """
    if not wanted:
        return []
    there = {*files.list_directory(os.path.dirname(wanted[0].output) or ".")}
    new = [s for s in wanted if s.number not in known and os.path.basename(result_of(s)) in there]
    with ThreadPoolExecutor(_READERS) as readers:
        results = [*readers.map(lambda shard: _read(shard, job), new)]
    return [(shard, result) for shard, result in zip(new, results, strict=True) if result]


def _read(shard: Shard, job: Job) -> Result | None:
    place = result_of(shard)
    try:
        if not files.exists(place):
            return None
        row = json.loads(files.read_text(place))
        if (row["run"], row["shard"], row["seed"]) != (job.run, shard.number, shard.seed):
            return None
        result = Result(row["counts"], row["error"], row["bug"], tuple(row["warnings"]))
        if result.counts and (not files.exists(shard.output) or files.size(shard.output) != result.counts["bytes"]):
            return None
        return result
    except (UserError, OSError, ValueError, KeyError, TypeError):  # of another version, or replaced at this moment
        return None


def remove(wanted: Sequence[Shard], *, results: bool = True) -> None:
    """Removes what attempts that were killed left of shards; with `results`, the shards' results too."""
    if not wanted:
        return
    folder = os.path.dirname(wanted[0].output)
    starts = tuple(f".{os.path.basename(shard.output)}." for shard in wanted)
    ends = (".result.json", outputs.UNIQUE_END) if results else (outputs.UNIQUE_END,)
    for name in files.list_directory(folder or "."):
        if name.endswith(ends) and name.startswith(starts):
            _remove(os.path.join(folder, name))


def _remove(path: str) -> None:
    with contextlib.suppress(Exception):  # another attempt has just renamed it
        if files.is_remote(path) or not os.path.isdir(path):
            files.remove(path)
        else:
            shutil.rmtree(path)

"""Cuts a corpus into shards at the boundaries of documents, without holding it in memory, and makes a shard.

The files of a corpus are taken as one text of `total` bytes. Shard s of n begins after the first line that ends a
document (see corpus.ends_document) and whose own end is at byte total * s // n or later, so a document belongs to
the shard of its first byte. The cuts follow from the sizes of the files and from a few lines at each cut; the rest of a
file is read only to make a shard.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import logging
import multiprocessing.connection
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from bert_tf2.data import record_index
from bert_tf2.pretraining.corpus import Piece, Source, ends_document
from bert_tf2.pretraining.features import make_files
from bert_tf2.pretraining.options import CreatePretrainingDataOptions
from bert_tf2.support import errors, files, outputs, process
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer

_BLOCK = 1 << 20


@dataclasses.dataclass(frozen=True)
class Shard:
    """One shard."""

    number: int  # counts from 0
    output: str  # the file to write
    seed: int  # of the random numbers
    pieces: tuple[Piece, ...]  # its text


@dataclasses.dataclass(frozen=True)
class Job:
    """All shards of a run: sufficient to make any shard, given its number."""

    options: CreatePretrainingDataOptions  # the options of the run
    tokenizer: FullTokenizer
    sources: tuple[Source, ...]  # the files of the corpus, in order
    cuts: tuple[int, ...]  # shard s has the text from byte cuts[s] to cuts[s + 1], see `cut`

    def __len__(self) -> int:
        """The number of shards."""
        return len(self.cuts) - 1

    @functools.cached_property
    def _bases(self) -> list[int]:
        return _bases(self.sources)

    def shard(self, number: int) -> Shard:
        start, stop = self.cuts[number : number + 2]
        first, last = bisect.bisect_right(self._bases, start) - 1, bisect.bisect_left(self._bases, stop)
        pieces = (
            Piece(source, max(start - base, 0), min(stop - base, source.size))
            for source, base in zip(self.sources[first:last], self._bases[first:last], strict=True)
            if source.size and start < stop
        )
        # The value of --random_seed for a shard: the first four bytes of the SHA-256 of "SEED,NUMBER", big-endian
        seed = int.from_bytes(hashlib.sha256(f"{self.options.random_seed},{number}".encode()).digest()[:4], "big")
        return Shard(number, name_of(self.options.output_file, number, len(self)), seed, tuple(pieces))


def name_of(output_file: str, number: int | None, count: int) -> str:
    """The file of a shard: NAME-00000-of-01000, or NAME-00000-of-01000.gz for NAME.gz; for None, the pattern of all."""
    ending = files.GZIP_ENDING if output_file.endswith(files.GZIP_ENDING) else ""
    which = "*" if number is None else f"{number:05d}"
    return f"{output_file.removesuffix(ending)}-{which}-of-{count:05d}{ending}"


@contextlib.contextmanager
def opened(names: Sequence[str], output_file: str) -> Iterator[tuple[Source, ...]]:
    """The files of the corpus; compressed files are unpacked beside the output while this context is open."""
    begin = output_file.removesuffix(files.GZIP_ENDING)
    with contextlib.ExitStack() as unpacked:
        yield tuple(_open_source(name, f"{begin}-input-{number}", unpacked) for number, name in enumerate(names))


def _open_source(name: str, scratch: str, unpacked: contextlib.ExitStack) -> Source:
    if not files.is_remote(name) and not os.path.isfile(name):
        raise UserError(f"{name}: is no regular file; shards are cut at places in a file, so copy it to one first")
    place = name
    with files.open_unpacked(name, of_text=True) as stream:
        if files.is_packed(stream):
            place = outputs.name_beside(scratch)
            unpacked.callback(lambda: files.exists(place) and files.remove(place))
            with errors.writing(place), files.open_binary(place, "wb") as text:
                shutil.copyfileobj(stream, text, _BLOCK)
    with files.open_binary(place) as stream:
        next(files.decode_lines(stream, name), None)  # refuses other kinds of files
    return Source(name, place, files.size(place))


def cut(sources: Sequence[Source], count: int, input_format: str = "lines") -> tuple[int, ...]:
    """The byte at which each of `count` shards begins, and the end of the last; with few documents, some are empty."""
    bases = _bases(sources)
    total = bases[-1]
    cuts = [0]
    for number in range(1, count):
        wanted = total * number // count
        # Where the previous cut is far enough, no document ends between it and the wanted place.
        cuts.append(cuts[-1] if cuts[-1] >= wanted else _end_of_document(sources, bases, wanted, input_format))
    return (*cuts, total)


def _bases(sources: Sequence[Source]) -> list[int]:
    """The byte at which each file begins in the corpus, and the end of the last file."""
    return [0, *itertools.accumulate(source.size for source in sources)]


def _end_of_document(sources: Sequence[Source], bases: Sequence[int], wanted: int, input_format: str) -> int:
    """The end of the first line that ends a document, at byte `wanted` (at least 1) or later, or of the corpus."""
    first = bisect.bisect_right(bases, wanted - 1) - 1
    for source, base in zip(sources[first:], bases[first:], strict=False):
        with files.open_binary(source.place) as stream:
            position = _start_of_line(stream, max(wanted - 1 - base, 0))
            stream.seek(position)
            while line := stream.readline():
                position += len(line)
                if ends_document(line, input_format):
                    return base + position
    return bases[-1]


def _start_of_line(stream, position: int) -> int:
    """The start of the line that has the byte at `position`."""
    while position > 0:
        start = max(position - _BLOCK, 0)
        stream.seek(start)
        found = stream.read(position - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        position = start
    return 0


def count_documents(pieces: Sequence[Piece], input_format: str) -> int:
    """The number of documents in pieces: 0, 1, or 2 for two and more."""
    found = 0
    inside = False
    for line in itertools.chain.from_iterable(piece.lines() for piece in pieces):
        has_text = not ends_document(line, "lines")
        found += has_text and not inside
        inside = has_text and input_format != "jsonl"
        if found > 1:
            break
    return found


def placed(message: str, pieces: Sequence[Piece]) -> str:
    """A message about pieces, with line numbers of the files instead of the pieces."""
    for piece in pieces:
        if (found := re.search(rf"{re.escape(str(piece))}, line (\d+)", message)) and piece.start:
            before = sum(1 for _ in Piece(piece.source, 0, piece.start).lines())
            return message.replace(found[0], f"{piece}, line {before + int(found[1])}")
    return message


def text_sha256(pieces: Sequence[Piece]) -> str:
    found = hashlib.sha256()
    for piece in pieces:
        for line in piece.lines():
            found.update(line)
    return found.hexdigest()


# Making a shard


@dataclasses.dataclass(frozen=True)
class Result:
    """The answer of a worker."""

    counts: dict[str, Any] | None = None  # the counts of the shard, for the manifest; None if it was not made
    error: str = ""  # a line for the user, "" without an error
    bug: str = ""  # a traceback, "" without a bug
    warnings: tuple[str, ...] = ()  # the logged warnings


def attempt(shard: Shard, job: Job) -> Result:
    """Writes a shard; returns its counts, or the reason why it cannot be written."""
    counts, error, bug = None, "", ""
    with _collected_log() as messages:
        try:
            counts = make_shard(shard, job)
        except UserError as problem:
            error = str(problem)
        except Exception as problem:
            error = errors.explain(problem) or ""
            bug = "" if error else "".join(traceback.format_exception(problem))
    error, *warnings = (placed(line, shard.pieces) for line in (error, *messages))
    return Result(counts, error, bug, tuple(warnings))


@contextlib.contextmanager
def _collected_log() -> Iterator[list[str]]:
    """Collects the warnings of this thread, which may be a thread of the launcher; hides its other messages."""
    collected: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            collected.append(record.getMessage())
        return False

    with errors.filtered(collect):
        yield collected


def make_shard(shard: Shard, job: Job) -> dict[str, Any]:
    """Writes a shard like an unsharded run for its text with its seed; returns its counts for the manifest."""
    options = job.options
    corpus, examples = make_files(shard.pieces, [shard.output], job.tokenizer, options, shard.seed)
    places = options.max_seq_length * len(examples)
    tokens = examples.num_tokens + options.num_delimiters * len(examples)
    return {
        "documents": len(corpus.documents),
        "sentences": len(corpus.bounds) - 1,
        "examples": len(examples),
        "masked_tokens": examples.num_masked,
        "padding": round(1 - tokens / places, 6) if places else 0.0,
        "bytes": files.size(shard.output),
        "sha256": sha256(shard.output, durable=True),
        "text_sha256": text_sha256(shard.pieces),
        "index": record_index.runs_of(shard.output).to_json(),
    }


def sha256(path: str, *, durable: bool = False) -> str:
    """The SHA-256 of a file, in hexadecimal; with `durable`, a local file is flushed to its disk."""
    found = hashlib.sha256()
    with files.open_binary(path) as stream:
        while block := stream.read(_BLOCK):
            found.update(block)
        if durable and not files.is_remote(path):
            with contextlib.suppress(OSError):  # some file systems do not support it
                os.fsync(stream.fileno())
    return found.hexdigest()


# In worker processes
#
# A worker is a new Python process, which inherits neither memory nor threads, and imports only this module, so that the
# caller's program does not run again. Each worker has its own pipe. If the main process has ended, a worker removes its
# partial file and ends too.


def make(wanted: Sequence[Shard], job: Job) -> Iterator[tuple[Shard, Result]]:
    """Makes shards in worker processes; yields each shard with its result as soon as it is made, in any order.

    Close this generator if you do not exhaust it, because closing it ends the workers.
    """
    waiting = list(reversed(wanted))
    workers: list[_Worker] = []
    try:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        for _ in range(min(job.options.num_workers or cores, len(waiting))):
            workers.append(_Worker(job))
            workers[-1].give(waiting.pop())
        busy = {worker.connection: worker for worker in workers}
        while busy:
            for connection in multiprocessing.connection.wait(list(busy)):
                worker = busy[connection]
                made = worker.take()
                if waiting:
                    worker.give(waiting.pop())
                else:
                    del busy[connection]
                yield made
    finally:
        for worker in workers:
            worker.connection.close()
        started = [worker.process for worker in workers]
        process.end_processes(started)
        process.children[:] = [child for child in process.children if child not in started]


class _Worker:
    """A worker process, seen from the main process."""

    def __init__(self, job: Job):
        self.connection, theirs = multiprocessing.connection.Pipe()
        paths, descriptor = [*map(str, sys.path)], theirs.fileno()
        start = f"import sys; sys.path[:] = {paths}; from {__name__} import work; work({descriptor})"
        command = [sys.executable, "-c", start]
        with theirs, _without_interrupts():  # closes `theirs` here, so that the pipe ends with the worker
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[descriptor])
        process.children.append(self.process)
        self._shard: Shard | None = None
        self._send(job)

    def give(self, shard: Shard) -> None:
        self._shard = shard
        self._send(shard)

    def _send(self, given: Any) -> None:
        with contextlib.suppress(OSError):  # the worker has ended: `take` reports it
            self.connection.send(given)

    def take(self) -> tuple[Shard, Result]:
        try:
            return self._shard, self.connection.recv()
        except (EOFError, OSError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(process.SECONDS_TO_END)
            status = self.process.returncode
            how = f"was killed by signal {-status}" if status and status < 0 else f"ended with status {status}"
            raise UserError(
                f"worker process {self.process.pid} {how} while it made {self._shard.output}; finished shards are kept,"
                " so run the same command again (if memory was short, with fewer --num_workers or smaller shards)"
            ) from error


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Blocks Ctrl-C in this thread, and permanently in the processes that it starts: the main process ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def work(descriptor: int) -> None:
    """Runs a worker process: receives a job, then shards, and sends their results until the pipe ends."""
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_parent, args=[descriptor], daemon=True).start()
    with contextlib.suppress(EOFError, OSError), multiprocessing.connection.Connection(descriptor) as connection:
        job = connection.recv()
        while True:
            connection.send(attempt(connection.recv(), job))


def _leave(*_) -> None:
    outputs.remove_partial()
    os._exit(128 + signal.SIGTERM)


def _end_with_parent(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, 0)  # waits only for the end of the pipe
    poll.poll()
    # Not _leave() in this thread, because the main thread could begin another partial file. It handles the signal.
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

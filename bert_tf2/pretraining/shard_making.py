"""Makes shards, in processes of this machine with `make`; `dask_run` has another one.

Workers are started with `spawn`, so that they inherit neither memory nor threads; everything that they run is
importable. Each has a pipe of its own. A worker whose main process has ended removes its partial file and ends too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging as python_logging
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
import traceback
import types
from collections.abc import Iterator, Sequence
from typing import Any

from absl import logging

from bert_tf2.data import record_index
from bert_tf2.pretraining import manifest, shards
from bert_tf2.pretraining.example_files import make_files
from bert_tf2.pretraining.shards import Job, Shard
from bert_tf2.support import environment, files, outputs, process
from bert_tf2.support.errors import UserError


@dataclasses.dataclass(frozen=True)
class Result:
    """What a worker answers."""

    counts: dict[str, Any] | None = None  # of the shard, for the manifest; None if it was not made
    error: str = ""  # a line for the user, "" if there is none
    bug: str = ""  # a traceback, "" if there is none
    warnings: tuple[str, ...] = ()  # what was logged


def attempt(shard: Shard, job: Job) -> Result:
    """Writes a shard, or says why it cannot be written."""
    with _collected_log() as messages:
        try:
            result = Result(counts=make_shard(shard, job))
        except UserError as error:
            result = Result(error=shards.placed(str(error), shard.pieces))
        except Exception as error:
            line = environment.explain(error)
            result = Result(error=line) if line else Result(bug="".join(traceback.format_exception(error)))
    return dataclasses.replace(result, warnings=tuple(shards.placed(line, shard.pieces) for line in messages))


@contextlib.contextmanager
def _collected_log() -> Iterator[list[str]]:
    """Collects the warnings of this thread, which may be one of the launcher's; nothing else of it is logged."""
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


def make_shard(shard: Shard, job: Job) -> dict[str, Any]:
    """Writes a shard, as an unsharded run does for its text with its seed; returns its counts for the manifest."""
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
        "sha256": manifest.sha256(shard.output, durable=True),
        "text_sha256": shards.text_sha256(shard.pieces),
        "index": record_index.runs_of(shard.output),
    }


# In processes of this machine


def make(wanted: Sequence[Shard], job: Job) -> Iterator[tuple[Shard, Result]]:
    """Makes shards in worker processes; yields each with its result as soon as it is there, in any order.

    Close this generator if you do not exhaust it: that ends the workers.
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
        process.end_processes([worker.process for worker in workers])


class _Worker:
    """A worker process, seen from the main process."""

    def __init__(self, job: Job):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, job), name="shards", daemon=True)
        with starting_processes():
            self.process.start()
        theirs.close()  # so that the end of the worker is the end of the pipe
        self._shard: Shard | None = None

    def give(self, shard: Shard) -> None:
        self._shard = shard
        with contextlib.suppress(OSError):  # the worker has ended: `take` reports it
            self.connection.send(shard)

    def take(self) -> tuple[Shard, Result]:
        try:
            return self._shard, self.connection.recv()
        except (EOFError, OSError) as error:
            self.process.join(process.SECONDS_TO_END)
            status = self.process.exitcode
            how = f"was killed by signal {-status}" if status and status < 0 else f"ended with status {status}"
            raise UserError(
                f"worker process {self.process.pid} {how} while it made {self._shard.output}; finished shards are kept,"
                " so run the same command again (if memory was short, with fewer --num_workers or smaller shards)"
            ) from error


@contextlib.contextmanager
def starting_processes() -> Iterator[None]:
    """Starts processes that Ctrl-C does not interrupt, and that do not run the caller's program again, as `spawn` does.

    It would fail there without `if __name__ == "__main__":`, or where it is no file.
    """
    program = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    multiprocessing.resource_tracker.ensure_running()  # its first start would allow the signals again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sys.modules["__main__"] = program


def work(connection: multiprocessing.connection.Connection, job: Job) -> None:
    """The whole life of a worker process: receives shards and answers with results until the pipe ends."""
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send(attempt(connection.recv(), job))


def _leave(*_) -> None:
    outputs.remove_partial()
    os._exit(128 + signal.SIGTERM)


def _end_with_parent() -> None:
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    # Not _leave() here: the main thread could begin another partial file after they are removed. It handles the signal.
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

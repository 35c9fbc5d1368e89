"""Makes shards in processes of this machine (`make`), and one by one in a worker of Dask (`make_sent`).

Workers are started with `spawn`, so that they inherit neither memory nor threads; everything that they run is
importable. Each has a pipe of its own. A worker whose main process has ended removes its partial file and ends too.
Dask may repeat the work on a shard, also while another worker still does it: whoever comes last replaces a file by an
equal one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging as python_logging
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
import types
from collections.abc import Iterator, Sequence
from typing import Any

from absl import logging

import bert_tf2
from bert_tf2.data import record_index
from bert_tf2.pretraining import manifest, shards
from bert_tf2.pretraining.example_files import make_files
from bert_tf2.pretraining.options import CreatePretrainingDataOptions
from bert_tf2.pretraining.shards import Job, Shard
from bert_tf2.support import environment, files, outputs, process
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer


@dataclasses.dataclass(frozen=True)
class Result:
    """What a worker answers."""

    counts: dict[str, Any] | None = None  # of the shard, for the manifest; None if it was not made
    error: str = ""  # a line for the user, "" if there is none
    bug: str = ""  # a traceback, "" if there is none
    warnings: tuple[str, ...] = ()  # what was logged


def attempt(shard: Shard, tokenizer: FullTokenizer, options: CreatePretrainingDataOptions) -> Result:
    """Writes a shard, or says why it cannot be written."""
    with _collected_log() as messages:
        try:
            result = Result(counts=make_shard(shard, tokenizer, options))
        except Exception as error:
            result = explain(error)
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


def explain(error: Exception) -> Result:
    if isinstance(error, UserError):
        return Result(error=str(error))
    if line := environment.explain(error):
        return Result(error=line)
    return Result(bug="".join(traceback.format_exception(error)))


def make_shard(shard: Shard, tokenizer: FullTokenizer, options: CreatePretrainingDataOptions) -> dict[str, Any]:
    """Writes a shard, as an unsharded run does for its text with its seed; returns its counts for the manifest."""
    files.make_directory(os.path.dirname(shard.output))
    try:
        corpus, examples = make_files(shard.pieces, [shard.output], tokenizer, options, shard.seed)
    except UserError as error:
        raise UserError(shards.placed(str(error), shard.pieces)) from error
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
    tokenizer = None
    while True:
        try:
            shard = connection.recv()
        except (EOFError, OSError):
            return
        try:
            tokenizer = tokenizer or FullTokenizer(job.options.vocab_file, job.options.do_lower_case, **job.rules)
            result = attempt(shard, tokenizer, job.options)
        except Exception as error:
            result = explain(error)
        try:
            connection.send(result)
        except OSError:
            return


def _leave(*_) -> None:
    outputs.remove_partial()
    os._exit(128 + signal.SIGTERM)


def _end_with_parent() -> None:
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    # Not _leave() here: the main thread could begin another partial file after they are removed. It handles the signal.
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)


# In a worker that the launcher did not start


def load_tokenizer(job: Job) -> FullTokenizer:
    vocab_file = job.options.vocab_file
    if manifest.sha256(vocab_file) != job.vocabulary:
        raise UserError(
            f"{vocab_file}: is another file on {socket.gethostname()} than where the job was started;"
            " name a file that all machines see"
        )
    return FullTokenizer(vocab_file, job.options.do_lower_case, **job.rules)


def make_sent(number: int, version: str, sent: bytes) -> Result:
    """Makes a shard of a pickled job, if this worker has the launcher's version of the package."""
    if version != bert_tf2.__version__:
        return Result(error=f"has bert_tf2 {bert_tf2.__version__}, and the launcher {version}: install the same")
    try:
        job, tokenizer = _receive(sent)
        shard = job.shard(number)
        for source in {piece.source for piece in shard.pieces}:
            if files.size(source.place) != source.size:
                raise UserError(
                    f"{source.place}: has another size on {socket.gethostname()} than where the job was started; name"
                    " files that all machines see, and leave them as they are until the job has ended"
                )
        return attempt(shard, tokenizer, job.options)
    except Exception as error:
        return explain(error)


@functools.lru_cache(maxsize=1)
def _receive(sent: bytes) -> tuple[Job, FullTokenizer]:
    job = pickle.loads(sent)
    return job, load_tokenizer(job)

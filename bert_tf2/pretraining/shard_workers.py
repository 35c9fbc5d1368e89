"""Processes that make shards: what they run, and how the main process gives them work and notices their end.

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
import re
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from absl import logging

from bert_tf2.pretraining import manifest, shards
from bert_tf2.pretraining.example_files import make_files
from bert_tf2.pretraining.options import CreatePretrainingDataOptions
from bert_tf2.pretraining.shards import Shard
from bert_tf2.support import environment, files, outputs, process
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer


@dataclasses.dataclass(frozen=True)
class Setup:
    """What all workers of a run need.

    Attributes:
      options: the options of the run.
      do_lower_case: whether the text is lower-cased.
    """

    options: CreatePretrainingDataOptions
    do_lower_case: bool


@dataclasses.dataclass(frozen=True)
class Result:
    """What a worker answers.

    Attributes:
      counts: of the shard; None if it was not made.
      error: a line for the user, "" if there is none.
      bug: a traceback, "" if there is none.
      warnings: what the worker logged.
    """

    counts: dict[str, Any] | None = None
    error: str = ""
    bug: str = ""
    warnings: tuple[str, ...] = ()


def make(wanted: Sequence[Shard], setup: Setup, num_workers: int) -> Iterator[tuple[Shard, dict[str, Any]]]:
    """Makes shards in worker processes; yields each with its counts as soon as it is finished, in any order.

    Close this generator if you do not exhaust it: that ends the workers.

    Args:
      wanted: the shards.
      setup: see Setup.
      num_workers: at most how many processes work at the same time.

    Raises:
      UserError: a worker cannot make a shard, or was killed.
      RuntimeError: a worker has a bug; the message has its traceback.
    """
    waiting = list(reversed(wanted))
    workers: list[_Worker] = []
    warned: set[str] = set()
    try:
        for _ in range(min(num_workers, len(waiting))):
            workers.append(_Worker(setup))
            workers[-1].give(waiting.pop())
        busy = {worker.connection: worker for worker in workers}
        while busy:
            for connection in multiprocessing.connection.wait(list(busy)):
                worker = busy[connection]
                shard, result = worker.take()
                warn(result.warnings, shard, warned)
                if waiting:
                    worker.give(waiting.pop())
                else:
                    del busy[connection]
                yield shard, result.counts
    finally:
        for worker in workers:
            worker.connection.close()
        process.end_processes([worker.process for worker in workers])


def warn(lines: Sequence[str], shard: Shard, warned: set[str]) -> None:
    """Logs warnings of a shard, except those of other shards that differ only in numbers and in the input's name."""
    for line in lines:
        kind = line.replace(shard.pieces[0].source.name, "") if shard.pieces else line
        kind = re.sub(r"\d+", "", kind)
        if kind not in warned:
            logging.warning("%s (similar warnings about other shards are not shown)", line)
        warned.add(kind)


class _Worker:
    """A worker process, seen from the main process."""

    def __init__(self, setup: Setup):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, setup), name="shards", daemon=True)
        with blocking_interrupts():
            self.process.start()
        theirs.close()  # so that the end of the worker is the end of the pipe
        self._shard: Shard | None = None

    def give(self, shard: Shard) -> None:
        self._shard = shard
        with contextlib.suppress(OSError):  # the worker has ended: `take` reports it
            self.connection.send(shard)

    def take(self) -> tuple[Shard, Result]:
        try:
            result: Result = self.connection.recv()
        except (EOFError, OSError) as error:
            raise UserError(self._epitaph()) from error
        if result.error:
            raise UserError(result.error)
        if result.counts is None:
            raise RuntimeError(f"shard {self._shard.number}:\n{result.bug}")
        return self._shard, result

    def _epitaph(self) -> str:
        self.process.join(process.SECONDS_TO_END)
        status = self.process.exitcode
        how = f"was killed by signal {-status}" if status and status < 0 else f"ended with status {status}"
        return (
            f"worker process {self.process.pid} {how} while it made {self._shard.output}; finished shards are kept, so"
            " run the same command again (if memory was short, with fewer --num_workers or smaller shards)"
        )


@contextlib.contextmanager
def blocking_interrupts() -> Iterator[None]:
    """Starts processes that Ctrl-C in a terminal, which reaches all of them, does not interrupt with a traceback."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    multiprocessing.resource_tracker.ensure_running()  # its first start would allow the signals again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# In the worker


def work(connection: multiprocessing.connection.Connection, setup: Setup) -> None:
    """The whole life of a worker process: receives shards and answers with results until the pipe ends."""
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    messages = _Messages()
    logging.use_absl_handler()
    python_logging.getLogger().handlers = [messages]
    logging.get_absl_logger().handlers = []
    logging.set_verbosity(logging.WARNING)
    tokenizer = None
    while True:
        try:
            shard = connection.recv()
        except (EOFError, OSError):
            return
        try:
            tokenizer = tokenizer or FullTokenizer(setup.options.vocab_file, setup.do_lower_case)
            result = Result(counts=make_shard(shard, tokenizer, setup.options))
        except Exception as error:
            result = explain(error)
        try:
            connection.send(dataclasses.replace(result, warnings=messages.take(shard)))
        except OSError:
            return


def _leave(*_) -> None:
    outputs.remove_partial()
    os._exit(128 + signal.SIGTERM)


def _end_with_parent() -> None:
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    # Not _leave() here: the main thread could begin another partial file after they are removed. It handles the signal.
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)


class _Messages(python_logging.Handler):
    """Collects the log, which the main process writes."""

    def __init__(self):
        super().__init__()
        self._lines: list[str] = []

    def emit(self, record: python_logging.LogRecord) -> None:
        self._lines.append(record.getMessage())

    def take(self, shard: Shard) -> tuple[str, ...]:
        """The messages since the last call."""
        taken, self._lines = named_after_input(self._lines, shard), []
        return taken


def named_after_input(messages: Sequence[str], shard: Shard) -> tuple[str, ...]:
    """Messages with the name of an input instead of the shard's temporary text."""
    text = shards.scratch_beside(_text_of(shard))
    name = shard.pieces[0].source.name if shard.pieces else shard.output
    return tuple(message.replace(text, name) for message in messages)


def explain(error: Exception) -> Result:
    """The answer of a worker that could not make a shard."""
    if isinstance(error, UserError):
        return Result(error=str(error))
    if environment.is_out_of_memory(error):
        return Result(error="out of memory; give fewer --num_workers or smaller shards")
    if line := environment.explain(error):
        return Result(error=line)
    return Result(bug="".join(traceback.format_exception(error)))


def _text_of(shard: Shard) -> str:
    return f"{shard.output}.text"


def make_shard(shard: Shard, tokenizer: FullTokenizer, options: CreatePretrainingDataOptions) -> dict[str, Any]:
    """Writes a shard; returns its counts."""
    text = shards.scratch_beside(_text_of(shard))
    try:
        files.make_directory(os.path.dirname(shard.output))
        shards.write_text(shard.pieces, text)
        try:
            counts = _write_shard(text, shard, tokenizer, options)
        except UserError as error:
            if text not in str(error):
                raise
            shards.find_fault(shard.pieces, options)
            raise UserError(str(error).replace(text, f"the text of {shard.output}")) from error
    finally:
        with contextlib.suppress(OSError):
            os.remove(text)
    return {**counts, "bytes": files.size(shard.output), "sha256": manifest.sha256(shard.output, durable=True)}


def _write_shard(
    text: str, shard: Shard, tokenizer: FullTokenizer, options: CreatePretrainingDataOptions
) -> dict[str, Any]:
    """Does what an unsharded run does for a file and a seed; returns the counts of what it wrote."""
    corpus, examples = make_files([text], [shard.output], tokenizer, options, shard.seed)
    places = options.max_seq_length * len(examples)
    tokens = examples.num_tokens + options.num_delimiters * len(examples)
    return {
        "documents": len(corpus.documents),
        "sentences": len(corpus.bounds) - 1,
        "examples": len(examples),
        "masked_tokens": examples.num_masked,
        "truncated_tokens": examples.truncated,
        "padding": round(1 - tokens / places, 6) if places else 0.0,
    }

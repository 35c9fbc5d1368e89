"""Makes shards in processes of this machine, and notices how they end.

Workers are started with `spawn`, so that they inherit neither memory nor threads; everything that they run is
importable. Each has a pipe of its own. A worker whose main process has ended removes its partial file and ends too.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator, Sequence

from bert_tf2.pretraining import shard_making
from bert_tf2.pretraining.shard_making import Result
from bert_tf2.pretraining.shards import Job, Shard
from bert_tf2.support import outputs, process
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer


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
    """Starts processes that run nothing of the caller's program, and that Ctrl-C in a terminal does not interrupt.

    Ctrl-C reaches all of them, and each would print a traceback. `spawn` runs the file of the program again, which
    fails where that has no `if __name__ == "__main__":`, or is no file.
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
            result = shard_making.attempt(shard, tokenizer, job.options)
        except Exception as error:
            result = shard_making.explain(error)
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

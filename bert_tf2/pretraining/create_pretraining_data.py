"""Implements create_pretraining_data.py: writes one output, or with --num_shards as shards.

A shard has the same bytes as the output of an unsharded run for the shard's text with the shard's seed.

A worker is a new Python process, which inherits neither memory nor threads, and imports only this module: the caller's
program does not run again. Each worker has its own pipe. If the main process has ended, a worker removes its partial
file and ends too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing.connection
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import logging

from bert_tf2.pretraining import example_files, shards
from bert_tf2.pretraining.manifest import NAME, Manifest
from bert_tf2.pretraining.options import CreatePretrainingDataOptions
from bert_tf2.pretraining.shards import Job, Result, Shard
from bert_tf2.support import errors, files, output_lock, outputs, process, progress
from bert_tf2.support.errors import UserError

Maker = Callable[[Sequence[Shard], Job], Iterator[tuple[Shard, Result]]]
"""Makes shards, and yields them in any order; see `make`."""


def run(options: CreatePretrainingDataOptions, maker: Maker | None = None) -> None:
    """Creates TFRecord files from text files: everything that create_pretraining_data.py does.

    A sharded run writes `manifest.json` beside the shards. A run that was stopped continues: finished shards are kept.

    Args:
      options: the settings.
      maker: makes the shards; defaults to worker processes, or the cluster that the options name.
    """
    if options.num_shards is None:
        return example_files.run(options)
    maker = maker or _maker(options)
    inputs, tokenizer = example_files.prepare(options, [options.output_file])
    folder = os.path.dirname(options.output_file)
    files.make_directory(folder)
    with output_lock.locked(folder or ".", "making of shards"):
        outputs.remove_leftovers(folder)
        with shards.opened(inputs, options.output_file) as sources:
            cuts = shards.cut(sources, options.num_shards, options.input_format)
            job = Job(options, tokenizer, sources, cuts)
            manifest = Manifest(job)
            try:
                _make(manifest, job, maker)
            except BaseException:
                manifest.end_early()
                raise
        manifest.save(complete=True)
        manifest.keep_index()
        _remove_partial(options.output_file)
    examples = manifest.total("examples")
    logging.info("Wrote %d examples", examples)
    written = shards.name_of(options.output_file, None, options.num_shards)
    example_files.tell_summary([written, manifest.path], options, examples)


def _remove_partial(output_file: str) -> None:
    """Removes the partial files of workers that were killed, on any machine, after the run is complete."""
    folder, name = os.path.split(output_file.removesuffix(files.GZIP_ENDING))
    for partial in files.list_directory(folder or "."):
        if partial.startswith((f".{name}-", f".{NAME}.")) and errors.final_name(partial) != partial:
            files.remove(os.path.join(folder, partial))


def _maker(options: CreatePretrainingDataOptions) -> Maker:
    if not options.dask_scheduler:
        return make
    try:
        from bert_tf2.pretraining import dask_run
    except ImportError as error:
        raise UserError(f"--dask_scheduler needs the extra `dask` ({error}): pip install '.[dask]'") from error
    return dask_run.make


def _make(manifest: Manifest, job: Job, maker: Maker) -> None:
    """Makes the missing shards. Raises RuntimeError with the traceback of a worker that failed."""
    missing = manifest.missing()
    if kept := len(job) - len(missing):
        logging.info("%d of %d shards are finished and kept", kept, len(job))
    if not missing:
        return
    if job.cuts[-1]:
        _warn_of_few_documents(job)
    warned: set[str] = set()
    made = maker(missing, job)
    with contextlib.closing(made), progress.Progress("Making shards", len(job), "shards", done=kept) as shown:
        for shard, result in made:
            _warn(result.warnings, shard, warned)
            if result.error:
                raise UserError(result.error)
            if result.counts is None:
                raise RuntimeError(f"shard {shard.number}:\n{result.bug}")
            manifest.add(shard, result.counts)
            shown.advance(1, note=f"{manifest.total('examples'):,} examples")


def _warn(lines: Sequence[str], shard: Shard, warned: set[str]) -> None:
    """Logs warnings, unless another shard had a warning that differs only in numbers and in the input's name."""
    for line in lines:
        kind = line.replace(shard.pieces[0].source.name, "") if shard.pieces else line
        kind = re.sub(r"\d+", "", kind)
        if kind not in warned:
            logging.warning("%s (similar warnings about other shards are not shown)", line)
        warned.add(kind)


def _warn_of_few_documents(job: Job) -> None:
    """Warns if a tenth of the shards has too few documents; names a number of shards that is low enough."""
    given, pairs, few = job.options.input_format, job.options.objective == "mlm_nsp", ""
    while len(job):
        found = [shards.count_documents(job.shard(number).pieces, given) for number in range(len(job))]
        empty, single = found.count(0), found.count(1) * pairs
        if 10 * (empty + single) <= len(job):
            break
        one = f' and {single:,} are one document, from which their "random" next sentences are taken too'
        few = few or f"{empty:,} of {len(job):,} shards have no text{one * pairs}"
        half = len(job) // 2
        job = dataclasses.replace(job, cuts=shards.cut(job.sources, half, given) if half else (0,))
    if few:
        advice = f"give --num_shards={len(job)} or fewer" if len(job) else example_files.FEW_DOCUMENTS
        logging.warning("%s; %s", few, advice)


# In processes of this machine


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
            connection.send(shards.attempt(connection.recv(), job))


def _leave(*_) -> None:
    outputs.remove_partial()
    os._exit(128 + signal.SIGTERM)


def _end_with_parent(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, 0)  # waits only for the end of the pipe
    poll.poll()
    # Not _leave() in this thread, because the main thread could begin another partial file. It handles the signal.
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

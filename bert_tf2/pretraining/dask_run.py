"""Makes shards on a Dask cluster: a task per shard, on workers that are ordinary processes of one or many machines.

A task is the number of a shard, and its answer is the shard's counts: no text and no record passes through the
scheduler. Dask gives the shards of a worker that ended to other workers, and shards to workers that join late. Dask may
repeat a shard, also while another worker still makes it: the last worker replaces the file by an equal file.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import functools
import logging as python_logging
import os
import pickle
import socket
import time
from collections.abc import Iterator, Sequence

import distributed
from absl import logging

import bert_tf2
from bert_tf2.pretraining import shards
from bert_tf2.pretraining.shards import Job, Result, Shard
from bert_tf2.support import files, process
from bert_tf2.support.errors import UserError

_AGAIN = "finished shards are kept, so run the same command again"
_SECONDS_TO_ANSWER = 5
_SECONDS_BETWEEN_LOOKS = 0.05


def make(wanted: Sequence[Shard], job: Job) -> Iterator[tuple[Shard, Result]]:
    """Like `shards.make`, on the cluster of the options."""
    with _connect(job.options.dask_scheduler) as client:
        try:
            yield from _submit(client, wanted, job)
        except (OSError, concurrent.futures.CancelledError, asyncio.TimeoutError) as error:  # a call was interrupted
            raise _without_scheduler() from error


def _submit(client: distributed.Client, wanted: Sequence[Shard], job: Job) -> Iterator[tuple[Shard, Result]]:
    # The job is a task and an argument of every task, so a worker gets it once, and it is made again if workers end.
    sent = client.submit(bytes, pickle.dumps(_for_other_folders(job)), pure=False)
    numbers = [shard.number for shard in wanted]
    tasks = client.map(_make_shard, numbers, version=bert_tf2.__version__, sent=sent, pure=False)
    shard_of = dict(zip(tasks, wanted, strict=True))
    waiting = distributed.as_completed(tasks, loop=client.loop)
    while shard_of:
        done = waiting.next_batch(block=False)
        for task in done:
            if task.status in ("lost", "pending"):  # the worker ended before its answer was fetched
                waiting.add(task)
                continue
            yield _take(task, shard_of.pop(task))
            task.release()
        if client.status != "running":
            raise _without_scheduler()
        if not done:
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def _for_other_folders(job: Job) -> Job:
    """The job for workers with another working directory."""

    def absolute(path: str) -> str:
        return path if files.is_remote(path) else os.path.abspath(path)

    sources = tuple(dataclasses.replace(source, place=absolute(source.place)) for source in job.sources)
    options = dataclasses.replace(job.options, output_file=absolute(job.options.output_file))
    return dataclasses.replace(job, options=options, sources=sources)


@contextlib.contextmanager
def _connect(address: str) -> Iterator[distributed.Client]:
    # Hides Dask's log of lost connections, with tracebacks, because an error in one line reports them. Only in scripts,
    # because Dask logs in its own threads, which may also serve other clients of a process.
    for name in [*python_logging.root.manager.loggerDict] if process.is_script else ():
        if name.partition(".")[0] in ("distributed", "tornado", "bokeh"):
            python_logging.getLogger(name).disabled = True
    try:
        client = distributed.Client(address, timeout=_SECONDS_TO_ANSWER, set_as_default=False, name="bert_tf2")
    except (OSError, ValueError) as error:
        raise UserError(
            f"--dask_scheduler={address}: no scheduler answers ({_line(error)}); to start one: dask scheduler"
        ) from error
    with client:
        logging.info("Dask: %s, %d workers; its dashboard: %s", address, len(client.nthreads()), client.dashboard_link)
        if not client.nthreads():
            logging.warning("no worker is connected; to start some: dask worker %s --nworkers=auto", address)
        yield client


def _take(task: distributed.Future, shard: Shard) -> tuple[Shard, Result]:
    """A shard with its result; the reason of a failure names the worker."""
    if task.status == "finished":
        worker, result = task.result()
        error = result.error and f"worker {worker}, {shard.output}: {result.error}"
        return shard, dataclasses.replace(result, error=error)
    if task.status == "cancelled":
        raise _without_scheduler()
    error = task.exception()
    if isinstance(error, distributed.KilledWorker):
        reason = (
            f"{error.allowed_failures + 1} workers ended while they made it, the last at {error.last_worker.address};"
            " their memory may be too small for it, or the system of their machines ended them"
        )
        return shard, Result(error=f"{shard.output}: {reason}; {_AGAIN}")
    return shard, Result(error=f"{shard.output}: the Dask cluster cannot make it: {_line(error)}")


def _without_scheduler() -> UserError:
    return UserError(
        f"the Dask scheduler has ended or cannot be reached; start it and its workers, which end too; {_AGAIN}"
    )


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _make_shard(number: int, *, version: str, sent: bytes) -> tuple[str, Result]:
    """Makes a shard on a worker that has the launcher's version of the package."""
    worker = distributed.get_worker().address
    if version != bert_tf2.__version__:
        problem = f"has bert_tf2 {bert_tf2.__version__}, and the launcher {version}: install the same"
        return worker, Result(error=problem)
    job = _receive(sent)
    shard = job.shard(number)
    for source in {piece.source for piece in shard.pieces}:
        if not files.exists(source.place) or files.size(source.place) != source.size:
            problem = (
                f"{source.place}: is another file on {socket.gethostname()} than where the job was started; name files"
                " that all machines see, and leave them as they are until the job has ended"
            )
            return worker, Result(error=problem)
    return worker, shards.attempt(shard, job)


@functools.lru_cache(maxsize=1)
def _receive(sent: bytes) -> Job:
    return pickle.loads(sent)

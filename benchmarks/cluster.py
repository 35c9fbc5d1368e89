"""What a Dask cluster costs beside the work, measured on this machine, and what follows for large corpora.

    python benchmarks/cluster.py

Makes shards with processes and with Dask on one, two and four workers, then sends shards without work through a real
scheduler. Needs the extra `dask`. Bytes are those of the loopback interface, which carries all that goes through the
scheduler and nothing of the text or the records; so let nothing else use it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import machine
import processes
from absl import logging

from bert_tf2.pretraining import shards
from bert_tf2.pretraining.options import CreatePretrainingDataOptions
from bert_tf2.support import flags
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import DATA, Options, options, setting

_EMPTY = """
from bert_tf2.pretraining import shard_making
from bert_tf2.pretraining.shard_making import Result
counts = dict(documents=99, sentences=999, examples=9999, masked_tokens=99999, truncated_tokens=9999, padding=0.123456,
              bytes=9999999, sha256="0" * 64)
shard_making.make_sent = lambda *_: Result(counts)
"""


@options
class BenchmarkOptions(Options):
    """What a Dask cluster costs beside the work, measured on this machine, and what follows for large corpora."""

    input_file: str = setting("The text of the shards.", machine.CORPUS, group=DATA, reads=True)
    vocab_file: str = setting("The vocabulary.", machine.VOCAB, group=DATA, reads=True)
    num_shards: int = setting("Shards with work.", 48, group=DATA, low=1)
    dupe_factor: int = setting("Passes over the text.", 60, group=DATA, low=1)
    empty_shards: int = setting("Shards without work.", 65536, group=DATA, low=1)


@contextlib.contextmanager
def cluster(workers: int, *more: str) -> Iterator[tuple[str, int]]:
    """The address and the process of a scheduler with workers of one thread."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as started:
        where = pathlib.Path(folder, "scheduler.json")

        def start(program: str, *words: str) -> subprocess.Popen:
            command = [sys.executable, "-m", f"distributed.cli.{program}", "--no-dashboard", *words]
            environment = {**os.environ, "PYTHONPATH": str(processes.ROOT)}
            running = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=folder, env=environment)
            started.callback(running.wait)
            started.callback(running.kill)
            return running

        scheduler = start("dask_scheduler", "--host=127.0.0.1", "--port=0", f"--scheduler-file={where}")
        while not (found := re.search(r'"address": "([^"]*)"', where.read_text() if where.exists() else "")):
            time.sleep(0.1)
        for _ in range(workers):
            start("dask_worker", found[1], "--nthreads=1", "--no-nanny", *more)
        import distributed

        with distributed.Client(found[1], set_as_default=False) as client:
            client.wait_for_workers(workers)
        yield found[1], scheduler.pid


def loopback_bytes() -> int:
    """The bytes that the loopback interface has received."""
    return int(re.search(r"^\s*lo:\s*(\d+)", pathlib.Path("/proc/net/dev").read_text(), re.MULTILINE)[1])


def run_script(options: BenchmarkOptions, folder: str, *more: str) -> float:
    """The seconds of the script."""
    given = {name: getattr(options, name) for name in ("input_file", "vocab_file", "dupe_factor", "num_shards")}
    command = processes.script("create_pretraining_data.py", **given, output_file=f"{folder}/x")
    before = time.monotonic()
    subprocess.run([*command, *more], check=True, stderr=subprocess.DEVNULL)
    return time.monotonic() - before


def with_work(options: BenchmarkOptions) -> None:
    """Prints the times of the script with processes and with Dask."""
    print(f"{'workers':>8}{'processes, s':>14}{'Dask, s':>10}{'more a shard, ms':>18}{'bytes a shard':>15}")
    for workers in (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder, cluster(workers) as (address, _):
            alone = run_script(options, f"{folder}/alone", f"--num_workers={workers}")
            before = loopback_bytes()
            more = ("--runner=DaskRunner", "--", f"--dask_client_address={address}")
            dask = run_script(options, f"{folder}/dask", *more)
            moved = (loopback_bytes() - before) / options.num_shards
        extra = (dask - alone) / options.num_shards * 1000
        print(f"{workers:>8}{alone:>14.2f}{dask:>10.2f}{extra:>18.1f}{moved:>15,.0f}", flush=True)


def without_work(options: BenchmarkOptions) -> None:
    """Prints what shards without work cost, and what follows for 20 GB and 1 TB in shards of 16 MB."""
    from bert_tf2.pretraining import dask_run  # late: it imports Dask

    count, memory = options.empty_shards, machine.peak_memory_gb()
    with tempfile.TemporaryDirectory() as folder:
        preload = pathlib.Path(folder, "empty_shards.py")
        preload.write_text(_EMPTY, encoding="utf-8")
        given = CreatePretrainingDataOptions(
            input_file=options.input_file, vocab_file=options.vocab_file, output_file=f"{folder}/x", num_shards=count,
            runner="DaskRunner",
        )  # fmt: skip
        with shards.opened([options.input_file], given.output_file) as sources:
            cuts = shards.cut(sources, count)
        with cluster(2, "--preload", str(preload)) as (address, scheduler):
            given = dataclasses.replace(given, runner_options=("--dask_client_address=" + address,), do_lower_case=True)
            job = shards.Job(given, sources, cuts)
            wanted = [*map(job.shard, range(count))]
            before, began = loopback_bytes(), time.monotonic()
            made = sum(1 for _ in dask_run.make(wanted, job))
            seconds, moved = time.monotonic() - began, (loopback_bytes() - before) / count
            status = pathlib.Path(f"/proc/{scheduler}/status").read_text()
    assert made == count
    of_scheduler = int(re.search(r"VmHWM:\s*(\d+)", status)[1]) * 1024 / 1e9
    launcher = machine.peak_memory_gb() - memory
    print(
        f"{count:,} shards without work, 2 workers: {seconds:.0f} s, {seconds / count * 1000:.2f} ms a shard;"
        f" {moved:,.0f} bytes a shard; scheduler {of_scheduler:.2f} GB, launcher {launcher:.2f} GB above its start;"
        f" a job of {len(pickle.dumps(job)):,} bytes"
    )
    print(f"{'text':>8}{'shards':>10}{'s of scheduler':>16}{'launcher, GB':>14}{'through it, MB':>16}")
    for text, wanted in (("20 GB", 1250), ("1 TB", 62500)):
        share = wanted / count
        print(f"{text:>8}{wanted:>10,}{seconds * share:>16.1f}{launcher * share:>14.2f}{moved * wanted / 1e6:>16.0f}")


def main(options: BenchmarkOptions) -> None:
    """Prints both tables."""
    if not importlib.util.find_spec("distributed"):
        raise UserError("needs Dask, which is not installed: pip install '.[dask]'")
    logging.set_verbosity(logging.WARNING)
    print(f"machine {machine.describe()}\n")
    with_work(options)
    print()
    without_work(options)


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

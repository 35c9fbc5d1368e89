"""What the tests of create_pretraining_data.py on a cluster share: data, command lines, clusters of processes."""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import sys
import time

from command_lines import ROOT
from pretraining_text import CORPUS, VOCABULARY

FLAGS = ("--num_shards=12", "--dupe_factor=2", "--max_seq_length=24", "--max_predictions_per_seq=4")
SLOW = (FLAGS[0], "--dupe_factor=10", *FLAGS[2:])
"""The same with shards that take some tenths of a second, of the text of `write_data(folder, 900)`."""


def write_data(folder: pathlib.Path, times: int = 6) -> pathlib.Path:
    (folder / "one.txt").write_text(f"{CORPUS}\n" * times)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    return folder


def make_plain(folder: pathlib.Path, flags=FLAGS, times: int = 6) -> pathlib.Path:
    """Data, and what worker processes make of it in `plain`."""
    data = write_data(folder, times)
    done = run(data, *flags, output="plain")
    assert done.returncode == 0, done.stderr
    return data


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def command_line(data, *more, output="out", place=None):
    place = place or data
    named = (("input_file", "one.txt"), ("vocab_file", "vocab.txt"), ("output_file", f"{output}/x"))
    given = [f"--{name}={place}/{file}" for name, file in named]
    return [sys.executable, str(ROOT / "create_pretraining_data.py"), *given, *more]


def run(data, *more, **changes):
    return subprocess.run(command_line(data, *more, **changes), cwd=ROOT, capture_output=True, text=True, timeout=120)


def wait_until(true, what, seconds=60):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.02)


class Cluster:
    """A scheduler of Dask and workers with one thread each, on loopback addresses."""

    def __init__(self, folder: pathlib.Path, stack: contextlib.ExitStack):
        self._folder, self._stack = folder, stack
        self.address = f"tcp://127.0.0.1:{self._start_scheduler()}"
        self.workers: list[subprocess.Popen] = []

    def _start_scheduler(self) -> str:
        where = self._folder / "scheduler.json"
        where.unlink(missing_ok=True)
        self.scheduler = self._start("dask_scheduler", "--host=127.0.0.1", "--port=0", f"--scheduler-file={where}")
        wait_until(lambda: where.exists() and where.read_text().rstrip().endswith("}"), "the scheduler starts")
        return json.loads(where.read_text())["address"].rpartition(":")[2]

    def add(self, *more: str, cwd=None) -> subprocess.Popen:
        """Starts a worker."""
        self.workers.append(self._start("dask_worker", self.address, "--nthreads=1", "--no-nanny", *more, cwd=cwd))
        return self.workers[-1]

    def _start(self, program: str, *more: str, cwd=None) -> subprocess.Popen:
        command = [sys.executable, "-m", f"distributed.cli.{program}", "--no-dashboard", *more]
        log = self._stack.enter_context((self._folder / "cluster.log").open("a"))
        running = subprocess.Popen(command, stdout=log, stderr=log, cwd=cwd or self._folder)
        self._stack.callback(running.wait)
        self._stack.callback(running.kill)
        return running

    def client(self):
        """A connection of the test's own."""
        import distributed

        return distributed.Client(self.address, set_as_default=False)

"""create_pretraining_data.py --dask_scheduler, with a scheduler and workers that are processes."""

from __future__ import annotations

import json
import logging
import pathlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("distributed", reason="needs the extra `dask`")

import distributed
from command_lines import ROOT, environment
from pretraining_text import CORPUS, SETTINGS, VOCABULARY, Here, data_options, wait_until
from refused import refuses

from bert_tf2 import commands
from bert_tf2.pretraining import create_pretraining_data

pytestmark = pytest.mark.extra
HOW = {"num_shards": 12, "dupe_factor": 8}


class Cluster:
    """A scheduler of Dask and workers with one thread each, on loopback addresses."""

    def __init__(self, folder: pathlib.Path):
        folder.mkdir()
        self._folder, self.running = folder, []
        where = folder / "scheduler.json"
        self.scheduler = self._start("dask_scheduler", "--host=127.0.0.1", "--port=0", f"--scheduler-file={where}")
        wait_until(lambda: where.exists() and where.read_text().rstrip().endswith("}"))
        self.address = json.loads(where.read_text())["address"]

    def add(self, count: int = 1, preload: str = "") -> subprocess.Popen:
        """Starts workers, which load a module of this text first; returns the last one."""
        (self._folder / "first.py").write_text(preload)
        more = ["--nthreads=1", "--no-nanny", "--preload", f"{self._folder}/first.py"]
        return [self._start("dask_worker", self.address, *more) for _ in range(count)][-1]

    def _start(self, program: str, *more: str) -> subprocess.Popen:
        command = [sys.executable, "-m", f"distributed.cli.{program}", "--no-dashboard", *more]
        with (self._folder / "cluster.log").open("a") as log:
            self.running.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder))
        return self.running[-1]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Its workers are in another folder than the files."""
    monkeypatch.setenv("PYTHONPATH", environment(ROOT, ROOT / "tests")["PYTHONPATH"])
    made = Cluster(tmp_path / "cluster")
    yield made
    for process in reversed(made.running):
        process.kill()
        process.wait()


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The current folder, with text and its shards in `plain`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text(f"{CORPUS}\n" * 600)
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    create_pretraining_data.run(data_options(tmp_path, "plain/x", **HOW), Here())
    return tmp_path


def make(address: str, **changes) -> None:
    files = {"input_file": "corpus.txt", "vocab_file": "vocab.txt", "output_file": "out/x"}
    commands.call("create_pretraining_data", **files, **SETTINGS, **{**HOW, "dask_scheduler": address, **changes})


def shards(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("x-*")}


def test_the_shards_are_those_of_this_process(data, cluster):
    """The loggers may belong to another client of the process."""
    logger = logging.getLogger("distributed.comm")
    refuses("no scheduler answers", make, "tcp://127.0.0.1:9")
    assert not logger.disabled
    cluster.add(4)
    make(cluster.address)
    assert shards(data / "out") == shards(data / "plain")
    with distributed.Client(cluster.address, set_as_default=False) as client:
        loaded = client.run(lambda: sorted({"tensorflow", "keras", "sklearn", "h5py"} & {*sys.modules}))
        assert loaded and not any(loaded.values())
    missing, kept = (data / "out" / f"x-0000{number}-of-00012" for number in (3, 1))
    missing.unlink()
    before = kept.stat().st_mtime_ns
    make(cluster.address)
    assert missing.exists() and kept.stat().st_mtime_ns == before
    refuses("--dupe_factor=8, not 3", make, cluster.address, dupe_factor=3)


def test_killed_workers_and_a_killed_scheduler_lose_nothing(data, cluster, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        worker = cluster.add(2)
        run = pool.submit(make, cluster.address)
        wait_until(lambda: len(shards(data / "out")) >= 2)
        worker.kill()
        cluster.add()  # joins late
        wait_until(lambda: len(shards(data / "out")) >= 4)
        cluster.scheduler.kill()
        refuses("the Dask scheduler", run.result)
    other = Cluster(tmp_path / "other")
    cluster.running += other.running
    cluster.running.append(other.add())
    make(other.address)
    assert shards(data / "out") == shards(data / "plain")


ENDS = "import os, sys\nsys.addaudithook(lambda event, what: event == 'open' and 'x-0' in str(what) and os._exit(9))"


@pytest.mark.parametrize(
    ("preload", "words"),
    [
        ("from bert_tf2.support import files; files.size = lambda path: 7", "corpus.txt"),
        ("import bert_tf2; bert_tf2.__version__ = '0.0.1'", "bert_tf2 0.0.1"),
        (ENDS, "4 workers"),
    ],
    ids=["another text", "another version", "ended by a shard"],
)
def test_a_worker_that_cannot_is_named(data, cluster, preload, words):
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(make, cluster.address)
        for _ in range(4 if preload == ENDS else 0):
            cluster.add(1, preload).wait(timeout=60)
        worker = cluster.add(1, "" if preload == ENDS else preload)
        refuses(f"{words} tcp://127.0.0.1: out/x-000", run.result, timeout=60)
    worker.kill()
    cluster.add()
    make(cluster.address)
    assert shards(data / "out") == shards(data / "plain")

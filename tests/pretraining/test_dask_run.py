"""create_pretraining_data.py --dask_scheduler, with a scheduler and workers that are processes."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys

import pytest

pytest.importorskip("distributed", reason="needs the extra `dask`")

from cluster_runs import FLAGS, SLOW, Cluster, command_line, contents, make_plain, run, wait_until
from command_lines import ROOT, environment
from refused import message_of

from bert_tf2 import commands

pytestmark = pytest.mark.extra


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", environment(ROOT, ROOT / "tests")["PYTHONPATH"])
    folder = tmp_path / "cluster"
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        yield Cluster(folder, stack)


def at(cluster, flags=FLAGS):
    return (*flags, f"--dask_scheduler={cluster.address}")


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    return make_plain(tmp_path_factory.mktemp("short"))


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    return make_plain(tmp_path_factory.mktemp("long"), SLOW, 900)


@contextlib.contextmanager
def running(data, command, shards, output):
    """A run that has finished some shards."""
    folder = data / output
    launcher = subprocess.Popen(
        command_line(data, *command, output=output), cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wait_until(lambda: len([*folder.glob("x-*")]) >= shards, "shards are made")
        yield launcher
    finally:
        launcher.kill()
        launcher.communicate()


def succeeded(launcher):
    _, log = launcher.communicate(timeout=120)
    assert launcher.returncode == 0 and "Traceback" not in log, log
    return log


def test_the_shards_are_those_of_worker_processes(short, cluster, tmp_path):
    """Of relative names, too, and of workers in other folders."""
    for _ in range(4):
        cluster.add(cwd=tmp_path)
    script = [sys.executable, f"{ROOT}/create_pretraining_data.py", "--input_file=one.txt", "--vocab_file=vocab.txt"]
    command = [*script, "--output_file=four/x", *at(cluster)]
    done = subprocess.run(command, cwd=short, capture_output=True, text=True, timeout=120)
    found, expected = contents(short / "four"), contents(short / "plain")
    assert found.pop("manifest.json") != expected.pop("manifest.json") and found == expected  # the names of the input
    assert done.returncode == 0 and f"Dask: {cluster.address}, " in done.stderr and "dashboard" in done.stderr
    with cluster.client() as client:
        loaded = client.run(lambda: sorted({"tensorflow", "keras", "sklearn", "h5py"} & {*sys.modules}))
        assert len(loaded) == 4 and not any(loaded.values())
    (short / "four" / "x-00003-of-00012").unlink()
    before = (short / "four" / "x-00001-of-00012").stat().st_mtime_ns
    done = subprocess.run(command, cwd=short, capture_output=True, text=True, timeout=120)
    assert "11 of 12 shards" in done.stderr and (short / "four" / "x-00003-of-00012").exists()
    assert (short / "four" / "x-00001-of-00012").stat().st_mtime_ns == before


def test_a_killed_worker_and_one_that_joins_late(long, cluster):
    for _ in range(3):
        cluster.add()
    with running(long, at(cluster, SLOW), 2, "killed") as launcher:
        cluster.workers[0].kill()
        cluster.add()
        succeeded(launcher)
    assert contents(long / "killed") == contents(long / "plain")


def test_a_killed_scheduler_is_one_line_and_loses_nothing(long, cluster, tmp_path):
    for _ in range(2):
        cluster.add()
    with running(long, at(cluster, SLOW), 3, "scheduler") as launcher:
        cluster.scheduler.kill()
        _, log = launcher.communicate(timeout=60)
    assert launcher.returncode == 1 and "Traceback" not in log, log
    assert "the Dask scheduler" in log.splitlines()[-1]
    with contextlib.ExitStack() as stack:
        other = Cluster(tmp_path / "cluster", stack)
        other.add()
        done = run(long, *at(other, SLOW), output="scheduler")
    assert done.returncode == 0 and "are finished and kept" in done.stderr, done.stderr
    assert contents(long / "scheduler") == contents(long / "plain")


# What is wrong with a worker, as a module that it loads first.
OTHER_TEXT = "from bert_tf2.support import files; files.size = lambda path: 7"
OTHER_VERSION = "import bert_tf2; bert_tf2.__version__ = '0.0.1'"


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [(OTHER_TEXT, "one.txt"), (OTHER_VERSION, "bert_tf2 0.0.1")],
    ids=["text", "version"],
)
def test_a_worker_that_cannot_is_named(short, cluster, tmp_path, wrong, problem, request):
    (tmp_path / "wrong.py").write_text(wrong)
    cluster.add("--preload", str(tmp_path / "wrong.py"))
    output = request.node.callspec.id
    done = run(short, *at(cluster), output=output)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert all(word in last for word in (problem, "tcp://127.0.0.1:", f"{short}/{output}/x-000")), last
    cluster.workers[0].kill()
    cluster.add()
    done = run(short, *at(cluster), output=output)
    assert done.returncode == 0 and contents(short / output) == contents(short / "plain"), done.stderr


def test_a_shard_that_ends_every_worker_is_one_line(short, cluster, tmp_path):
    (tmp_path / "ends.py").write_text(
        "import os, sys\nsys.addaudithook(lambda event, args: 'x-0' in str(args) and event == 'open' and os._exit(9))"
    )
    command = command_line(short, *at(cluster), output="ends")
    launcher = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    for _ in range(4):
        cluster.add("--preload", str(tmp_path / "ends.py")).wait(timeout=60)
    _, log = launcher.communicate(timeout=60)
    last = log.splitlines()[-1]
    assert launcher.returncode == 1, log
    assert "4 workers" in last and "tcp://127.0.0.1:" in last and "ends/x-000" in last
    cluster.add()
    done = run(short, *at(cluster), output="ends")
    assert done.returncode == 0 and contents(short / "ends") == contents(short / "plain"), done.stderr


def test_an_address_where_nobody_answers(short, tmp_path):
    """The loggers may belong to another client of the process."""
    logger = logging.getLogger("distributed.comm")
    settings = {"input_file": f"{short}/one.txt", "vocab_file": f"{short}/vocab.txt", "output_file": f"{tmp_path}/x"}
    where = {"num_shards": 2, "dask_scheduler": "tcp://127.0.0.1:9"}
    assert "no scheduler answers" in message_of(commands.call, "create_pretraining_data", **settings, **where)
    assert not logger.disabled

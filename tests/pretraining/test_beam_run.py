"""create_pretraining_data.py --runner: shards through Apache Beam equal those of worker processes."""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time

import pytest
from pretraining_text import CORPUS, VOCABULARY

pytest.importorskip("apache_beam", reason="needs the extra `beam`")

from apache_beam.options.pipeline_options import PipelineOptions
from command_lines import ROOT

from bert_tf2.pretraining import CreatePretrainingDataOptions, beam_run, manifest, shard_results, shard_workers, sharded
from bert_tf2.pretraining import shards as shards_module
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import WrongSetting

THREADS = ("--direct_running_mode=multi_threading", "--direct_num_workers=3")
PROCESSES = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
FLAGS = (
    "--num_shards=5",
    "--dupe_factor=2",
    "--max_seq_length=24",
    "--max_predictions_per_seq=4",
    "--runner=DirectRunner",
)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "one.txt").write_text(f"{CORPUS}\n" * 6)
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    return tmp_path


def options(data, output, **changes):
    settings = {"input_file": f"{data}/one.txt", "num_shards": 5, "dupe_factor": 2, **changes}
    return CreatePretrainingDataOptions(
        output_file=f"{data}/{output}/x", vocab_file=f"{data}/vocab.txt",
        max_seq_length=24, max_predictions_per_seq=4, do_lower_case=True, **settings,
    )  # fmt: skip


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def expected(data):
    """What worker processes write."""
    sharded.run(options(data, "plain", num_workers=1))
    return contents(data / "plain")


@pytest.mark.parametrize(
    "beam_options",
    [
        (),
        ("--direct_runner_bundle_repeat=2",),  # every bundle three times
        THREADS,
        pytest.param(PROCESSES, marks=pytest.mark.slow),
    ],
)
def test_the_shards_are_those_of_worker_processes(data, expected, beam_options):
    sharded.run(options(data, "out", runner="DirectRunner", beam_options=beam_options))
    assert contents(data / "out") == expected  # the manifest too, and no other file


def test_finished_shards_are_kept_and_missing_ones_made(data, expected):
    sharded.run(options(data, "out", runner="DirectRunner"))
    (data / "out" / "x-00001-of-00005").unlink()
    before = (data / "out" / "x-00000-of-00005").stat().st_mtime_ns
    sharded.run(options(data, "out", runner="DirectRunner"))
    assert contents(data / "out") == expected
    assert (data / "out" / "x-00000-of-00005").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="with --dupe_factor=2, not 3"):
        sharded.run(options(data, "out", runner="DirectRunner", dupe_factor=3))


def job_of(data, output):
    given = options(data, output, runner="DirectRunner")
    sources = shards_module.open_sources([given.input_file], given.output_file)
    planned = shards_module.cut(sources, 5, given.output_file, given.random_seed)
    described = manifest.describe(given, True, [given.input_file], 5)
    made = manifest.Manifest(given.output_file, described, planned)
    return planned, shard_results.Job.of(made, shard_workers.Setup(given, True), sources, 5)


def test_results_of_a_job_that_no_launcher_waited_for_are_taken(data, expected, monkeypatch):
    planned, job = job_of(data, "out")
    for shard in planned:
        shard_results.make(job.unpack(job.pack(shard)), shard_results.load_tokenizer(job), job)
    monkeypatch.setattr(beam_run, "make", None)
    sharded.run(options(data, "out", runner="DirectRunner"))
    assert contents(data / "out") == expected


def test_the_counters_are_the_manifests_sums(data, expected):
    planned, job = job_of(data, "out")
    result = beam_run.build(planned, job, PipelineOptions([])).run()
    counted = {m.key.metric.name: m.committed for m in result.metrics().query()["counters"]}
    rows = json.loads(expected["manifest.json"])["shards"]
    names = ("documents", "sentences", "examples", "masked_tokens", "bytes")
    assert {name: counted[name] for name in names} == {name: sum(row[name] for row in rows) for name in names}
    assert counted["shards"] == 5


def test_compressed_text_gives_the_same_shards(data, expected):
    (data / "one.gz").write_bytes(gzip.compress((data / "one.txt").read_bytes()))
    sharded.run(options(data, "out", input_file=f"{data}/one.gz", runner="DirectRunner"))
    found = contents(data / "out")
    assert found.pop("manifest.json") != expected.pop("manifest.json") and found == expected


MODES = pytest.mark.parametrize("beam_options", [(), THREADS, pytest.param(PROCESSES, marks=pytest.mark.slow)])


@MODES
def test_a_line_that_is_not_text_is_one_line(data, expected, beam_options):
    text, before = (data / "one.txt").read_bytes(), (data / "one.txt").stat().st_mtime_ns
    lines = text.split(b"\n")
    lines[30] = b"\xe9" * len(lines[30])
    write_unnoticed(data / "one.txt", b"\n".join(lines), before)
    done = run(data, *FLAGS, "--", *beam_options)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "one.txt, line 31: not UTF-8" in done.stderr.splitlines()[-1]
    left = {*contents(data / "out")}
    assert left - {*expected} == {".manifest.jsonl"} and "manifest.json" in left
    write_unnoticed(data / "one.txt", text, before)
    done = run(data, *FLAGS, "--", *beam_options)
    assert done.returncode == 0 and contents(data / "out") == expected, done.stderr


def write_unnoticed(path, content, modified):
    """So that the same run goes on, although a run refuses text that has changed."""
    path.write_bytes(content)
    os.utime(path, ns=(modified, modified))


@pytest.mark.parametrize("beam_options", [(), THREADS])
@pytest.mark.parametrize("unpublished", [False, True])
def test_a_full_disk_is_one_line(data, expected, monkeypatch, beam_options, unpublished):
    def refuse(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def make_shard(shard, *_):
        with open(shard.output, "wb") as stream:
            stream.write(b"half")
        refuse(shard.output)

    with monkeypatch.context() as changed:
        if unpublished:  # nor can the result be written
            changed.setattr(shard_results, "_publish", lambda source, target: refuse(target))
        else:
            changed.setattr(shard_workers, "make_shard", make_shard)
        with pytest.raises(UserError, match=r"x-0000\d-of-00005: No space left on device|OSError.*No space") as caught:
            sharded.run(options(data, "out", runner="DirectRunner", beam_options=beam_options))
    assert "partial" not in str(caught.value) and "\n" not in str(caught.value)
    left = {*contents(data / "out")}
    if (
        beam_options
    ):  # another thread may tell its failure after the first one has ended the job; the next call removes it
        left = {name for name in left if not name.endswith(".result.json")}
    assert left == {"manifest.json"}
    sharded.run(options(data, "out", runner="DirectRunner", beam_options=beam_options))
    assert contents(data / "out") == expected


def test_an_error_names_the_folder_that_the_user_knows(data, monkeypatch):
    def make_shard(shard, *_):
        raise UserError(f"{os.path.dirname(shard.output)}: the records need 15 MB, but 0 B are free on this disk")

    monkeypatch.setattr(shard_workers, "make_shard", make_shard)
    with pytest.raises(UserError, match=rf"^{data}/out: the records need"):
        sharded.run(options(data, "out", runner="DirectRunner"))


# Kills


@pytest.fixture
def started(data):
    """Starts a run in processes whose shards take some time; ends at its first finished shard."""
    (data / "one.txt").write_text(f"{CORPUS}\n" * 900)
    flags = ("--num_shards=12", "--dupe_factor=8", *FLAGS[2:])
    done = run(data, *flags, output="plain")
    assert done.returncode == 0, done.stderr
    command = [*flags, "--", *PROCESSES]
    running = subprocess.Popen(command_line(data, *command), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not list((data / "out").glob("x-*")) and time.monotonic() < until:
        time.sleep(0.02)
    yield running, command
    running.kill()
    running.wait()


def workers_of(launcher):
    """The processes with a worker's command line."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if "bert_tf2.pretraining.beam_worker" in words and str(launcher) in words:
                found.append(int(path.parent.name))
    return found


def nothing_is_lost(data, command):
    done = run(data, *command)
    assert done.returncode == 0 and "are finished and kept" in done.stderr, done.stderr
    assert contents(data / "out") == contents(data / "plain")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/cmdline"), reason="finds processes in /proc")
def test_a_killed_launcher_leaves_no_worker_and_loses_nothing(data, started):
    running, command = started
    assert len(workers_of(running.pid)) == 2
    running.kill()
    running.wait()
    until = time.monotonic() + 10
    while workers_of(running.pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert not workers_of(running.pid)
    nothing_is_lost(data, command)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/cmdline"), reason="finds processes in /proc")
def test_a_killed_worker_is_one_line_and_loses_nothing(data, started):
    running, command = started
    os.kill(workers_of(running.pid)[0], signal.SIGKILL)
    _, shown = running.communicate(timeout=60)
    assert running.returncode == 1 and "Traceback" not in shown, shown
    assert "the job failed (RuntimeError: Worker subprocess exited" in shown.splitlines()[-1]
    nothing_is_lost(data, command)


def command_line(data, *more, output="out"):
    given = [f"--{name}={data}/{file}" for name, file in
             (("input_file", "one.txt"), ("vocab_file", "vocab.txt"), ("output_file", f"{output}/x"))]  # fmt: skip
    return [sys.executable, str(ROOT / "create_pretraining_data.py"), *given, *more]


def run(data, *more, output="out"):
    command = command_line(data, *more, output=output)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--direct_num_worker=2",), "did you mean --direct_num_workers"),
        (("--runner=FlinkRunner",), "stands before --"),
        (("word",), "unexpected argument 'word'"),
        (("--direct_num_workers=many",), "invalid int value"),
    ],
)
def test_wrong_options_of_beam_are_one_line(words, problem):
    with pytest.raises(WrongSetting, match=problem) as caught:
        beam_run.read_options("DirectRunner", words)
    assert "\n" not in str(caught.value)


def test_wrong_options_of_beam_end_with_the_status_of_a_wrong_flag(data):
    done = run(data, *FLAGS, "--", "--direct_num_worker=2")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr


def test_a_worker_loads_no_tensorflow(data):
    planned, job = job_of(data, "out")
    (data / "job").write_bytes(pickle.dumps((job, job.pack(planned[0]))))
    code = (
        "import pickle, sys; from bert_tf2.pretraining.beam_run import MakeShards\n"
        f"job, packed = pickle.load(open({str(data / 'job')!r}, 'rb')); work = MakeShards(job); work.setup()\n"
        "work.process(packed); print(*{'tensorflow', 'keras', 'sklearn', 'scipy', 'h5py'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == "", done.stderr
    assert (data / "out" / "x-00000-of-00005").exists()

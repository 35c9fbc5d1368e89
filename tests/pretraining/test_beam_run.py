"""create_pretraining_data.py --runner=PortableRunner, with Beam's local job service."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import subprocess
import sys

import pytest

pytest.importorskip("apache_beam", reason="needs the extra `beam`")

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from cluster_runs import FLAGS, contents, make_plain, run, wait_until, write_data
from command_lines import ROOT

from bert_tf2.pretraining import CreatePretrainingDataOptions, beam_run, manifest, shard_making, sharded, shards
from bert_tf2.support.settings import WrongSetting

pytestmark = pytest.mark.extra

LOOPBACK = ("--environment_type=LOOPBACK",)
PROCESSES = (
    "--environment_type=beam:env:harness_subprocess_python:v1",
    f"--environment_config={sys.executable} -m apache_beam.runners.worker.sdk_worker_main",
)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """The flags that name a job service."""
    where = tmp_path_factory.mktemp("service") / "port"
    command = [sys.executable, "-m", "apache_beam.runners.portability.local_job_service_main", f"--port_file={where}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    wait_until(lambda: where.exists() and where.read_text().strip(), "the job service starts")
    yield ("--runner=PortableRunner", "--", f"--job_endpoint=localhost:{where.read_text().strip()}")
    running.kill()
    running.wait()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_plain(tmp_path_factory.mktemp("beam"))


@pytest.mark.parametrize("workers", [LOOPBACK, PROCESSES], ids=["loopback", "processes"])
def test_the_shards_are_those_of_worker_processes(data, service, workers, request):
    output = request.node.callspec.id
    done = run(data, *FLAGS, *service, *workers, output=output)
    assert done.returncode == 0 and contents(data / output) == contents(data / "plain"), done.stderr
    (data / output / "x-00003-of-00012").unlink()
    before = (data / output / "x-00001-of-00012").stat().st_mtime_ns
    done = run(data, *FLAGS, *service, *workers, output=output)
    assert "11 of 12 shards are finished and kept" in done.stderr
    assert contents(data / output) == contents(data / "plain")
    assert (data / output / "x-00001-of-00012").stat().st_mtime_ns == before


def test_a_line_that_is_not_text_is_one_line(service, tmp_path):  # threads of LOOPBACK print tracebacks besides
    data = write_data(tmp_path)
    lines = (data / "one.txt").read_bytes().split(b"\n")
    lines[30] = b"\xe9" * len(lines[30])
    (data / "one.txt").write_bytes(b"\n".join(lines))
    done = run(data, *FLAGS, *service, *PROCESSES)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "one.txt, line 31: not UTF-8" in done.stderr.splitlines()[-1]
    assert not [name for name in contents(data / "out") if "partial" in name]


def test_a_job_that_cannot_start_is_one_line(data, service):
    done = run(data, *FLAGS, *service, "--environment_type=nonsense", output="nothing")
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "--runner=PortableRunner: the job failed (" in done.stderr.splitlines()[-1]


def job_of(data, output):
    given = CreatePretrainingDataOptions(
        input_file=f"{data}/one.txt", vocab_file=f"{data}/vocab.txt", output_file=f"{data}/{output}/x",
        num_shards=12, dupe_factor=2, max_seq_length=24, max_predictions_per_seq=4, runner="PortableRunner",
        do_lower_case=True,
    )  # fmt: skip
    with shards.opened([given.input_file], given.output_file) as sources:
        job = shards.Job(given, sources, shards.cut(sources, 12), manifest.sha256(given.vocab_file))
    planned = [*map(job.shard, range(12))]
    made = manifest.Manifest(given.output_file, manifest.describe(given, [given.input_file], 12), planned)
    return given, planned, dataclasses.replace(job, run=made.run)


def test_results_of_a_job_that_no_launcher_waited_for_are_taken(data, monkeypatch):
    given, planned, job = job_of(data, "left")
    for shard in planned:
        assert shard_making.make(shard, shard_making.load_tokenizer(job), job).counts
    monkeypatch.setattr(beam_run, "make", None)
    sharded.run(given)
    assert contents(data / "left") == contents(data / "plain")


def test_the_counters_are_the_manifests_sums(data):
    _, planned, job = job_of(data, "counted")
    pipeline = beam_run.build(planned, job, PipelineOptions([]))
    pipeline.runner = FnApiRunner()
    result = pipeline.run()
    counted = {m.key.metric.name: m.committed for m in result.metrics().query()["counters"]}
    rows = json.loads((data / "plain" / "manifest.json").read_text())["shards"]
    names = ("documents", "sentences", "examples", "masked_tokens", "bytes")
    assert {name: counted[name] for name in names} == {name: sum(row[name] for row in rows) for name in names}
    assert counted["shards"] == 12


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--num_worker=2",), "has no option --num_worker for DataflowRunner"),
        (("--runner=FlinkRunner",), "stands before --"),
        (("word",), "unexpected argument 'word'"),
        (("--direct_num_workers=many",), "invalid int value"),
    ],
)
def test_wrong_options_of_beam_are_one_line(words, problem):
    with pytest.raises(WrongSetting, match=problem) as caught:
        beam_run.read_options("DataflowRunner", words)
    assert "\n" not in str(caught.value)


def test_wrong_options_of_beam_end_with_the_status_of_a_wrong_flag(data):
    done = run(data, *FLAGS, "--runner=DataflowRunner", "--", "--num_worker=2", output="wrong")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr


def test_a_worker_loads_no_tensorflow(data):
    _, _, job = job_of(data, "light")
    (data / "job").write_bytes(pickle.dumps(job))
    code = (
        "import pickle, sys; from bert_tf2.pretraining.beam_run import MakeShards\n"
        f"work = MakeShards(pickle.load(open({str(data / 'job')!r}, 'rb'))); work.setup()\n"
        "work.process(0); print(*{'tensorflow', 'keras', 'sklearn', 'scipy', 'h5py'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == "", done.stderr
    assert (data / "light" / "x-00000-of-00012").exists()

"""create_pretraining_data.py --runner: shards through Apache Beam equal those of worker processes."""

from __future__ import annotations

import gzip
import json
import pathlib
import pickle
import subprocess
import sys

import pytest
from pretraining_text import CORPUS, VOCABULARY

pytest.importorskip("apache_beam", reason="needs the extra `beam`")

from apache_beam.options.pipeline_options import PipelineOptions
from command_lines import ROOT

from bert_tf2.pretraining import CreatePretrainingDataOptions, beam_run, manifest, shard_results, shard_workers, sharded
from bert_tf2.pretraining import shards as shards_module
from bert_tf2.support.errors import UserError

PROCESSES = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")


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
        ("--direct_running_mode=multi_threading", "--direct_num_workers=3"),
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


@pytest.mark.parametrize("beam_options", [(), pytest.param(PROCESSES, marks=pytest.mark.slow)])
def test_a_line_that_is_not_text_is_one_line(data, beam_options):
    lines = (data / "one.txt").read_bytes().split(b"\n")
    lines[30] = b"caf\xe9"
    (data / "one.txt").write_bytes(b"\n".join(lines))
    done = run(data, "--runner=DirectRunner", "--", *beam_options)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "one.txt, line 31: not UTF-8" in done.stderr.splitlines()[-1]
    assert not [name for name in contents(data / "out") if name.endswith("partial")]


def run(data, *more):
    given = [f"--{name}={data}/{file}" for name, file in
             (("input_file", "one.txt"), ("vocab_file", "vocab.txt"), ("output_file", "out/x"))]  # fmt: skip
    command = [sys.executable, str(ROOT / "create_pretraining_data.py"), *given, "--num_shards=5", *more]
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
    with pytest.raises(UserError, match=problem) as caught:
        beam_run.read_options("DirectRunner", words)
    assert "\n" not in str(caught.value)


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

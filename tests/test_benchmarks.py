"""The programs in benchmarks/: their flags, sums that they compute, and a training step as HLO for other machines."""

from __future__ import annotations

import functools
import importlib
import json
import math
import re
import subprocess
import sys

import pytest
from command_lines import ROOT, environment
from refused import message_of
from small_models import small_config

from bert_tf2 import heads
from bert_tf2.weights import checkpoint

pytestmark = pytest.mark.slow  # nothing here is of the package
BENCHMARKS = ROOT / "benchmarks"
PROGRAMS = sorted(p.stem for p in BENCHMARKS.glob("*.py") if "flags.run(" in p.read_text(encoding="utf-8"))
CONFIG = small_config(vocab_size=100, hidden_size=16, intermediate_size=32, max_position_embeddings=128)


@pytest.fixture(autouse=True)
def as_run_as_a_script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def sizes(tmp_path) -> str:
    (tmp_path / "config.json").write_text(CONFIG.to_json_string())
    return f"--bert_config_file={tmp_path / 'config.json'}"


def run(*command, status: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program of the folder, or `python -c` code."""
    first = [] if command[0] == "-c" else [str(BENCHMARKS / f"{command[0]}.py")]
    words = [sys.executable, *first, *map(str, command[len(first) :])]
    done = subprocess.run(words, env=environment(ROOT, BENCHMARKS, **variables), capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done


def test_the_programs_check_their_flags_without_tensorflow():
    code = (
        "import importlib, sys; from bert_tf2.support.settings import settings_of\n"
        f"for name in {PROGRAMS}: assert settings_of(importlib.import_module(name).BenchmarkOptions), name\n"
        "print('tensorflow' in sys.modules)"
    )
    assert run("-c", code).stdout.strip() == "False" and len(PROGRAMS) > 8
    assert "9x9" in message_of(importlib.import_module("against_peers").BenchmarkOptions, cases="9x9")
    assert len(run("training_flags", "--runs=huge", status=2).stderr.splitlines()) <= 2


@pytest.mark.parametrize("program", ["finetuning", "masked_words", "sentence_vectors"])
def test_results_of_other_settings_are_not_taken(program, tmp_path):
    made = functools.partial(importlib.import_module(program).BenchmarkOptions, data_dir="d", work_dir=str(tmp_path))
    given = importlib.import_module("processes").results_of
    given(made(weights="one"), "seeds").add("start", {"seconds": 1})
    assert given(made(weights="one"), "seeds").known()["start"]["seconds"] == 1
    assert "--weights=one" in message_of(given, made(weights="other"))


def test_what_is_computed_of_results():
    config = small_config(vocab_size=10, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    # One row of 3 tokens: four 4 x 4 products, two 4 x 8, scores and context of 3 x 3; the head; the pooler.
    forward = 3 * 2 * (4 * 16 + 2 * 32) + 2 * 2 * 3 * 3 * 4 + 2 * (2 * (16 + 40)) + 2 * 16
    assert importlib.import_module("steps").step_flops(config, [3], 2) == 3 * forward


def test_a_row_that_fails_is_in_the_table_of_settings_with_its_reason_before_it(monkeypatch, capsys, sizes):
    """The program of a row is stopped, fails as TensorFlow does, or prints a result."""
    settings, processes = map(importlib.import_module, ("xla_settings", "processes"))
    result = {"first_step": 50.0, "examples_per_second_in_loop": 2000.0, "memory_gb": 3.5}
    programs = iter(["import time; time.sleep(60)", "raise SystemExit('no kernel\\n\\t [[{{node while}}]] [Op:steps]')",
                     f"print({json.dumps(result)!r})"])  # fmt: skip
    monkeypatch.setattr(processes, "ours", lambda *words: [sys.executable, "-S", "-c", next(programs)])
    names = [name for name in settings.SETTINGS if name != "as bert_tf2 sets them"][:3]
    settings.main(settings.BenchmarkOptions(settings=",".join(names), limit=3))
    printed = capsys.readouterr().out
    assert f"{names[1]}: no kernel\n" in printed
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines()[-3:]]
    assert [row[:2] for row in rows] == [[names[0], "over 3"], [names[1], "failed"], [names[2], "50.0"]]
    assert rows[2][3:] == ["2000", "3.50"]


def test_the_longest_kernels_of_a_profile(tmp_path):
    """The kernels of two steps, which overlap; another line of the GPU and another plane have the same time."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    for plane_name, line_name in (
        ("/device:GPU:0", "Stream #7(Compute)"),
        ("/device:GPU:0", "XLA Ops"),
        ("/host", "a"),
    ):
        plane = space.planes.add(name=plane_name)
        plane.stat_metadata[1].name, plane.stat_metadata[2].name = "hlo_op", "product.5"
        line = plane.lines.add(name=line_name)
        for number, (name, ms) in enumerate([("loop_fusion_1", 1), ("loop_fusion_2", 2), ("gemm", 7)] * 2):
            plane.event_metadata[number].name = name
            event = line.events.add(metadata_id=number, offset_ps=3 * number * 10**9, duration_ps=ms * 10**9)
            if name == "gemm":
                event.stats.add(metadata_id=1, ref_value=2)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "host.xplane.pb").write_bytes(space.SerializeToString())
    kernels = importlib.import_module("kernels")
    assert [kind[:2] for kind in kernels.kinds(tmp_path)] == [("gemm", 2), ("loop_fusion", 4), (kernels.IDLE, 3)]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in kernels.table(tmp_path, 2).splitlines()[2:]]
    assert rows == [
        ["gemm", "1.0", "7.000", "70.0", "product.5"], ["loop_fusion", "2.0", "3.000", "30.0", ""],
        ["all", "3.0", "10.000", "100.0", ""], [kernels.IDLE, "1.5", "2.000", "20.0", ""],
    ]  # fmt: skip
    with pytest.raises(SystemExit, match="has no profile"):
        kernels.kinds(tmp_path / "run2")


def test_a_report_of_a_gpu_has_all_parts_that_were_asked_for(tmp_path):
    """A program in place of Python answers for the parts: tests pass, a benchmark fails, and nothing else runs."""
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/sh
case "$*" in
  *in_one_kernel*) echo 4 passed ;;
  *keras_hub*) echo "$XLA_FLAGS" unknown >&2; exit 3 ;;
  -\\ *) exec {sys.executable} "$@" ;;
esac
"""
    )
    python.chmod(0o755)
    report, parts = tmp_path / "out" / "report.md", "attention-values 128x128-keras-hub"
    command = ["bash", str(BENCHMARKS / "gpu_all.sh"), "600", str(report)]
    env = environment(ROOT, PYTHON=str(python), PARTS=parts, XLA_FLAGS="--a=b")
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.endswith(report.read_text())
    _, rows, *texts = report.read_text().split("\n\n")
    assert [row.split("|")[1:3] for row in rows.splitlines()[2:4]] == [
        [" attention-values ", " done "], [" 128x128-keras-hub ", " failed, status 3 "]
    ]  # fmt: skip
    assert texts == ["## attention-values", "4 passed", "## 128x128-keras-hub", "--a=b unknown\n"]
    done = subprocess.run([*command[:2], "9", command[3]], env=env, capture_output=True, text=True, check=True)
    assert report.read_text().count("no time left") == 2 and done.stdout.endswith(report.read_text())


def test_steps_of_a_gpu_are_compared_with_the_cpu_and_what_its_replicas_sum(two, sizes):
    """All gradients, and before them the weights of the two losses."""
    all_reduce = importlib.import_module("all_reduce")
    options = all_reduce.BenchmarkOptions(bert_config_file=sizes.partition("=")[2], operations=True)
    trained = checkpoint.trained_variables(heads.PretrainingModel(CONFIG)).values()
    count = sum(variable.shape.num_elements() for variable in trained)
    found = all_reduce.sums_of_a_step(options, "bfloat16")
    assert [(it.shape.num_elements(), it.dtype.size) for it in found] == [(2, 4), (count, 2)]
    _, exact, narrow = run("gpu_check", sizes, "--on=CPU", "--precisions=float32,bfloat16").stdout.splitlines()
    assert "losses differ by 0.0e+00" in exact and "examples/s" in exact and "TFLOP/s" in exact
    assert "losses differ by 0.0e+00" not in narrow
    assert "no GPU" in run("gpu_check", sizes, status=1, CUDA_VISIBLE_DEVICES="-1").stderr.splitlines()[-1]


# benchmarks/hlo_on_gpu.py: JAX runs on this CPU what TensorFlow wrote, and compilers for TPUs and GPUs take it.

COMPILERS = ROOT / ".venv-accelerators" / "bin" / "python"
# Of the answers, and of what a narrower dtype rounds in another order.
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.02, "float16": 5e-3}


@pytest.mark.extra
@pytest.mark.parametrize(("model", "precision"), [*(("pretraining", it) for it in TOLERANCE), ("span", "float32")])
def test_jax_computes_what_tensorflow_does(tmp_path, sizes, model, precision):
    pytest.importorskip("jax", reason="JAX is not installed; make interop installs it")
    folder, step = tmp_path / "hlo", ["--batch_size=4", "--max_seq_length=16"]
    run("hlo_on_gpu", f"--write={folder}", f"--model={model}", f"--precision={precision}", *step, sizes)
    _, printed = run("hlo_on_gpu", f"--run={folder}", "--steps=2").stdout.splitlines()
    found = {name: float(value) for name, value in re.findall(r"(\w+) (\d\.\de[+-]\d+)", printed)}
    assert {"loss", "gradient_norm", "gradients"} <= found.keys(), printed
    assert max(found.values()) < TOLERANCE[precision] and "ms, " in printed and "examples/s" in printed, printed
    mlir = importlib.import_module("jax._src.lib").xla_client._xla.mlir
    # In the form in which a GPU's or TPU's compiler gets a program.
    text = importlib.import_module("hlo_on_gpu").stablehlo(folder / "step.hlo")
    assert mlir.serialize_portable_artifact(text, "1.0.0")


@pytest.mark.extra
@pytest.mark.skipif(not COMPILERS.exists(), reason="no compilers; make .venv-accelerators/installed")
@pytest.mark.parametrize(
    ("target", "flags"), [("TPU v5e", ["--for_tpu"]), ("H100", []), ("H100", ["--attention=fused"])]
)
def test_a_tpus_and_a_gpus_compiler_take_the_step(tmp_path, sizes, target, flags):
    step = ["--batch_size=8", "--max_seq_length=16", "--no_answers", "--precision=bfloat16"]
    run("hlo_on_gpu", f"--write={tmp_path / 'hlo'}", *step, *flags, sizes)
    command = [COMPILERS, BENCHMARKS / "accelerators.py", tmp_path / "hlo", f"--targets={target}", "--devices=4"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    trained = sum(math.prod(each["shape"]) for each in found["parameters"] if each["name"].endswith("/adam_m"))
    assert found["flops"] > 0
    assert found["peak"] >= 3 * 4 * trained, "the weights and both of Adam's averages"
    assert found["sums"] >= 2 * trained, "a gradient for each weight, of all four devices"

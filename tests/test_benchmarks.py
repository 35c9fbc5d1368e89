"""The programs in benchmarks/: what they compute from results, how they continue, and what they leave out."""

from __future__ import annotations

import importlib
import json
import math
import os
import pathlib
import re
import subprocess
import sys

import pytest
from command_lines import ROOT, environment
from refused import message_of
from small_models import tiny_config

from bert_tf2 import heads
from bert_tf2.config import BertConfig
from bert_tf2.weights import checkpoint

pytestmark = pytest.mark.slow  # nothing here is of the package
BENCHMARKS = ROOT / "benchmarks"
FOLDERS = ("benchmarks", "bert_tf2", "docs", "examples", "serving", "tests")
PROGRAMS = sorted(p.stem for p in BENCHMARKS.glob("*.py") if "flags.run(" in p.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def as_run_as_a_script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run(name: str, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *flags]
    return subprocess.run(command, env=environment(**variables), capture_output=True, text=True)


def test_the_programs_check_their_flags_without_tensorflow():
    code = (
        "import importlib, sys; from bert_tf2.support.settings import settings_of\n"
        f"for name in {PROGRAMS}: assert settings_of(importlib.import_module(name).BenchmarkOptions), name\n"
        "print('tensorflow' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment(ROOT, BENCHMARKS), capture_output=True, text=True)
    assert done.stdout.strip() == "False" and len(PROGRAMS) > 8, done.stderr
    for program, wrong in (("against_peers", {"cases": "9x9"}), ("training_flags", {"runs": ""})):
        assert "is none of" in message_of(importlib.import_module(program).BenchmarkOptions, **wrong)
    done = run("training_flags", "--runs=huge")
    assert done.returncode == 2 and len(done.stderr.splitlines()) <= 2 and "is none of" in done.stderr


def test_processes_keep_the_folders_of_python_path(monkeypatch):
    """A machine may find TensorFlow through them alone."""
    given = os.pathsep.join(["/first", "/second"])
    monkeypatch.setenv("PYTHONPATH", given)
    for made in environment(), environment(BENCHMARKS), importlib.import_module("processes").environment():
        assert made["PYTHONPATH"].endswith(os.pathsep + given)
    monkeypatch.delenv("PYTHONPATH")
    assert environment()["PYTHONPATH"] == str(ROOT)
    own = {ROOT / "tests/command_lines.py", BENCHMARKS / "processes.py", pathlib.Path(__file__).resolve()}
    programs = {*ROOT.glob("*.py")}.union(*((ROOT / name).rglob("*.py") for name in FOLDERS)) - own
    assert not [path for path in programs if '"PYTHONPATH":' in path.read_text(encoding="utf-8")]


def test_steps_of_a_gpu_are_compared_with_the_cpu_and_what_its_replicas_sum(two, tmp_path):
    """All gradients and the square of their norm, and before them the weights of the two losses."""
    sizes = str(tmp_path / "config.json")
    pathlib.Path(sizes).write_text(tiny_config(num_hidden_layers=2, max_position_embeddings=128).to_json_string())
    all_reduce = importlib.import_module("all_reduce")
    options = all_reduce.BenchmarkOptions(bert_config_file=sizes, operations=True)
    model = heads.PretrainingModel(BertConfig.from_json_file(sizes))
    count = sum(variable.shape.num_elements() for variable in checkpoint.trained_variables(model).values())
    for dtype, wanted in {"float32": [(2, 4), (count + 1, 4)], "bfloat16": [(2, 4), (1, 4), (count, 2)]}.items():
        found = all_reduce.sums_of_a_step(options, dtype)
        assert [(tensor.shape.num_elements(), tensor.dtype.size) for tensor in found] == wanted
    done = run("gpu_check", f"--bert_config_file={sizes}", "--on=CPU", "--precisions=float32,bfloat16")
    assert done.returncode == 0, done.stderr
    _, exact, narrow = done.stdout.splitlines()
    assert "losses differ by 0.0e+00" in exact and "examples/s" in exact and "TFLOP/s" in exact
    assert "losses differ by 0.0e+00" not in narrow
    done = run("gpu_check", f"--bert_config_file={sizes}", CUDA_VISIBLE_DEVICES="-1")
    assert done.returncode == 1 and "TensorFlow sees no GPU" in done.stderr.splitlines()[-1]


def test_what_is_computed_of_results():
    config = BertConfig(vocab_size=10, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    # One row of 3 tokens: four 4 x 4 products, two 4 x 8, scores and context of 3 x 3; the head; the pooler.
    forward = 3 * 2 * (4 * 16 + 2 * 32) + 2 * 2 * 3 * 3 * 4 + 2 * (2 * (16 + 40)) + 2 * 16
    assert importlib.import_module("steps").step_flops(config, [3], 2) == 3 * forward


# benchmarks/hlo_on_gpu.py: JAX runs on this CPU what TensorFlow wrote, and compilers for TPUs and GPUs take it.

COMPILERS = ROOT / ".venv-accelerators" / "bin" / "python"
SIZES = {"vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 32, "max_position_embeddings": 16, "type_vocab_size": 2}
# Of the answers, and of what a narrower dtype rounds in another order.
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.02, "float16": 5e-3}


def output_of(*flags: str) -> str:
    done = run("hlo_on_gpu", *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout


def written(folder: pathlib.Path, *flags: str) -> pathlib.Path:
    """The folder with the HLO of a training step of a small model."""
    config = folder / "config.json"
    config.write_text(json.dumps(SIZES))
    output_of(f"--write={folder / 'hlo'}", "--max_seq_length=16", f"--bert_config_file={config}", *flags)
    return folder / "hlo"


@pytest.mark.extra
@pytest.mark.parametrize(
    ("model", "precision"), [*(("pretraining", precision) for precision in TOLERANCE), ("span", "float32")]
)
def test_jax_computes_what_tensorflow_does(tmp_path, model, precision):
    pytest.importorskip("jax", reason="JAX is not installed; make interop installs it")
    folder = written(tmp_path, "--batch_size=4", f"--model={model}", f"--precision={precision}")
    _, step = output_of(f"--run={folder}", "--steps=2").splitlines()
    found = {name: float(value) for name, value in re.findall(r"(\w+) (\d\.\de[+-]\d+)", step)}
    assert {"loss", "gradient_norm", "gradients"} <= found.keys() and max(found.values()) < TOLERANCE[precision], step
    assert "ms, " in step and "examples/s" in step
    mlir = importlib.import_module("jax._src.lib").xla_client._xla.mlir
    # In the form in which a GPU's or TPU's compiler gets a program.
    text = importlib.import_module("hlo_on_gpu").stablehlo(folder / "step.hlo")
    assert mlir.serialize_portable_artifact(text, "1.0.0")


@pytest.mark.extra
@pytest.mark.skipif(not COMPILERS.exists(), reason="no compilers; make .venv-accelerators/installed")
@pytest.mark.parametrize(("target", "flags"), [("TPU v5e", ["--for_tpu"]), ("H100", [])])
def test_a_tpus_and_a_gpus_compiler_take_the_step(tmp_path, target, flags):
    folder = written(tmp_path, "--batch_size=8", "--no_answers", "--precision=bfloat16", *flags)
    command = [COMPILERS, BENCHMARKS / "accelerators.py", folder, f"--targets={target}", "--devices=4", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    trained = sum(math.prod(each["shape"]) for each in found["parameters"] if each["name"].endswith("/adam_m"))
    assert found["flops"] > 0
    assert found["peak"] >= 3 * 4 * trained, "the weights and both of Adam's averages"
    assert found["sums"] >= 2 * trained, "a gradient for each weight, of all four devices"

"""benchmarks/hlo_on_gpu.py without a GPU: what TensorFlow wrote, JAX runs on this CPU to the same answers.

And benchmarks/accelerators.py: the compilers for TPUs and GPUs take it.
"""

import importlib
import json
import math
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.extra]
ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "benchmarks" / "hlo_on_gpu.py"
COMPILERS = ROOT / ".venv-accelerators" / "bin" / "python"
SIZES = {"vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 32, "max_position_embeddings": 16, "type_vocab_size": 2}
# Of the answers, and of what a narrower dtype rounds in another order.
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.02, "float16": 5e-3}


def output_of(*arguments: str) -> str:
    done = subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def written(folder: pathlib.Path, *flags: str) -> pathlib.Path:
    """The folder with the HLO of a training step of a small model."""
    config = folder / "config.json"
    config.write_text(json.dumps(SIZES))
    output_of(f"--write={folder / 'hlo'}", "--max_seq_length=16", f"--bert_config_file={config}", *flags)
    return folder / "hlo"


@pytest.mark.parametrize(
    ("model", "precision"), [*(("pretraining", precision) for precision in TOLERANCE), ("span", "float32")]
)
def test_jax_computes_what_tensorflow_does(tmp_path, monkeypatch, model, precision):
    pytest.importorskip("jax", reason="JAX is not installed; make interop installs it")
    folder = written(tmp_path, "--batch_size=4", f"--model={model}", f"--precision={precision}")
    _, step = output_of(f"--run={folder}", "--steps=2").splitlines()
    found = {name: float(value) for name, value in re.findall(r"(\w+) (\d\.\de[+-]\d+)", step)}
    assert {"loss", "gradient_norm", "gradients"} <= found.keys() and max(found.values()) < TOLERANCE[precision], step
    assert "ms, " in step and "examples/s" in step
    monkeypatch.syspath_prepend(PROGRAM.parent)
    mlir = importlib.import_module("jax._src.lib").xla_client._xla.mlir
    # In the form in which a GPU's or TPU's compiler gets a program.
    text = importlib.import_module("hlo_on_gpu").stablehlo(folder / "step.hlo")
    assert mlir.serialize_portable_artifact(text, "1.0.0")


@pytest.mark.skipif(not COMPILERS.exists(), reason="no compilers; make .venv-accelerators/installed")
@pytest.mark.parametrize(("target", "flags"), [("TPU v5e", ["--for_tpu"]), ("H100", [])])
def test_a_tpus_and_a_gpus_compiler_take_the_step(tmp_path, target, flags):
    folder = written(tmp_path, "--batch_size=8", "--no_answers", "--precision=bfloat16", *flags)
    command = [COMPILERS, PROGRAM.with_name("accelerators.py"), folder, f"--targets={target}", "--devices=4", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    trained = sum(math.prod(each["shape"]) for each in found["parameters"] if each["name"].endswith("/adam_m"))
    assert found["flops"] > 0
    assert found["peak"] >= 3 * 4 * trained, "the weights and both of Adam's averages"
    assert found["sums"] >= 2 * trained, "a gradient for each weight, of all four devices"

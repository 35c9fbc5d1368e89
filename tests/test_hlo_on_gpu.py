"""benchmarks/hlo_on_gpu.py without a GPU: what TensorFlow wrote, JAX runs on this CPU to the same answers."""

import importlib
import json
import pathlib
import re
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "benchmarks" / "hlo_on_gpu.py"
SIZES = {"vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 32, "max_position_embeddings": 16, "type_vocab_size": 2}
# Of the answers, and of what a narrower dtype rounds in another order.
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.02, "float16": 5e-3}


def output_of(*arguments: str) -> str:
    done = subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.extra
@pytest.mark.parametrize(
    ("model", "precision"), [*(("pretraining", precision) for precision in TOLERANCE), ("span", "float32")]
)
def test_jax_computes_what_tensorflow_does(tmp_path, monkeypatch, model, precision):
    pytest.importorskip("jax", reason="JAX is not installed; make interop installs it")
    config, folder = tmp_path / "config.json", tmp_path / "hlo"
    config.write_text(json.dumps(SIZES))
    shape = ["--batch_size=4", "--max_seq_length=16", f"--bert_config_file={config}"]
    output_of(f"--write={folder}", f"--model={model}", f"--precision={precision}", *shape)
    _, encoder, step = output_of(f"--run={folder}", "--steps=2").splitlines()
    for line, names in (
        (encoder, {"pooled_output", "sequence_output"}),
        (step, {"loss", "gradient_norm", "gradients"}),
    ):
        found = {name: float(value) for name, value in re.findall(r"(\w+) (\d\.\de[+-]\d+)", line)}
        assert names <= found.keys() and max(found.values()) < TOLERANCE[precision], line
    assert "ms, " in step and "examples/s" in step
    monkeypatch.syspath_prepend(PROGRAM.parent)
    mlir = importlib.import_module("jax._src.lib").xla_client._xla.mlir
    for name in ("encoder", "step"):  # in the form in which a GPU's or TPU's compiler gets a program
        text = importlib.import_module("hlo_on_gpu").stablehlo(folder / f"{name}.hlo")
        assert mlir.serialize_portable_artifact(text, "1.0.0")

"""Runs the training step on a GPU without TensorFlow: as HLO, through JAX.

    python benchmarks/hlo_on_gpu.py --write=FOLDER --precision=bfloat16     with TensorFlow; about a minute
    python benchmarks/hlo_on_gpu.py --run=FOLDER                            with JAX: numpy, jax and this folder

The first command compiles the step with XLA, as `--xla` does, and writes its HLO before the optimization for a device,
with the answers of its CPU. The second command gives the same numbers to the same HLO, compares the answers, and times
the steps; each step gets the weights of the previous step. FOLDER has no weights: both sides draw the weights by name.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import tempfile
import time
import types
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import steps
import workload

MODELS = {"pretraining": "PretrainingModel", "classifier": "ClassifierModel", "span": "SpanModel"}
_SLOTS = ("/adam_m", "/adam_v")
_PROJECTIONS = 4
_WORK = ("model", "batch_size", "max_seq_length", "mean_length", "precision", "for_tpu")


def initial_value(name: str, shape: Sequence[int]) -> np.ndarray:
    """The value of a variable before the first step, float32; depends only on the name and the shape."""
    if name.endswith(_SLOTS):
        return np.zeros(shape, np.float32)
    draw = np.random.default_rng(zlib.crc32(name.encode()))
    values = 0.02 * draw.standard_normal(shape, np.float32)
    return values + 1.0 if name.endswith("gamma") else values


def projected(name: str, value: np.ndarray) -> np.ndarray:
    """Dot products with random vectors, float32 [4]; they differ as much as the whole arrays."""
    draw = np.random.default_rng(zlib.crc32(name.encode()) + 1)
    flat = np.ravel(value)
    return np.array([draw.standard_normal(flat.size, np.float32) @ flat for _ in range(_PROJECTIONS)])


def relative_difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """The norm of the difference, divided by the norm of `wanted` unless that is 0."""
    return float(np.linalg.norm(found - wanted) / (np.linalg.norm(wanted) or 1.0))


# With TensorFlow


def write(flags: argparse.Namespace) -> None:
    """Writes step.hlo, step.npz with its inputs and answers, and work.json."""
    import tensorflow as tf

    from bert_tf2 import heads, placement
    from bert_tf2.config import BertConfig
    from bert_tf2.fast import fused_attention
    from bert_tf2.fast.encoder import Plan, accelerate
    from bert_tf2.training.loop import Trainer
    from bert_tf2.training.options import PRECISIONS, LoopOptions
    from bert_tf2.weights.checkpoint import tf1_variables

    placement.built_for = lambda: "TPU" if flags.for_tpu else "GPU"
    config = workload.load_config(flags.bert_config_file)
    if flags.attention:
        config["attention_probs_dropout_prob"] = 0.0
    sizes = {"num_labels": 2} if flags.model == "classifier" else {}
    make = getattr(heads, MODELS[flags.model])
    model = make(BertConfig.from_dict(config), dtype=PRECISIONS[flags.precision].policy, **sizes)
    accelerate(model, Plan("none", attention=fused_attention.attend if flags.attention == "fused" else None))
    rates = {"learning_rate": 1e-4, "num_train_steps": 1000, "num_warmup_steps": 10}
    how = {"train_batch_size": flags.batch_size, "precision": flags.precision, "pack_rows": bool(flags.mean_length)}
    options = LoopOptions(output_dir="", **how, **rates)
    trainer = Trainer(model, tf.distribute.get_strategy(), options)
    variables = {**tf1_variables(model), **trainer.step.state}
    for name, variable in variables.items():
        if variable.shape.rank:  # scalars belong to the scale of the loss, and keep their values
            variable.assign(initial_value(name, variable.shape))
    step = trainer.step.compiled(jit_compile=True)
    _write(flags, config, step, lambda batch: (batch, tf.constant(1, tf.int64)), variables)


def write_peer(flags: argparse.Namespace, config: dict[str, Any], name: str, function, arguments) -> None:
    """Writes a peer's training step, a tf.function with jit_compile; `arguments` makes its arguments from a batch."""
    named = {**vars(flags), "model": name, "mean_length": 0, "for_tpu": None}
    _write(argparse.Namespace(**named), config, function, arguments)


def _write(
    flags: argparse.Namespace, config: dict[str, Any], function, arguments, own: Mapping[str, Any] | None = None
) -> None:
    """Writes a step with its inputs and, with our `own` variables, its answers.

    work.json describes the parameters after the inputs, and the results.
    """
    import tensorflow as tf

    from bert_tf2.data.batching import packed

    work = {"config": config, **{name: getattr(flags, name) for name in _WORK}}
    batch = {name: tf.constant(values) for name, values in one_batch(work).items()}
    arguments = arguments(packed(batch) if flags.mean_length else batch)
    concrete, module = function.get_concrete_function(*arguments), hlo_of(function, *arguments)
    names = {id(variable.handle): name for name, variable in (own or {}).items()}
    captured = [(names.get(id(value), ""), value) for value in concrete.captured_inputs]
    work["parameters"] = [_parameter(name, _read(value)) for name, value in captured]
    stored = {f"input {number}": np.asarray(value) for number, value in enumerate(tf.nest.flatten(arguments))}
    assigned = {
        entry.parameter_number - len(stored): entry.output_shape_index[0] for entry in module.input_output_alias.entries
    }
    folder = pathlib.Path(flags.write)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "step.hlo").write_bytes(module.SerializeToString())
    if own and not flags.no_answers:
        stored |= {key: value.numpy() for key, value in function(*arguments).items()}
        kept = [captured[number] for number in assigned if captured[number][0].endswith("/adam_m")]
        stored |= {key.replace("/", "|"): projected(key, _read(value)) for key, value in kept}
    np.savez_compressed(folder / "step.npz", **stored)
    work["results"] = sorted(concrete.structured_outputs) if own else []  # tf.nest sorts a dict
    work["assigned"] = sorted(assigned.items())
    (folder / "work.json").write_text(json.dumps(work, indent=1), encoding="utf-8")
    print(f"Wrote {folder}")


def _read(value) -> np.ndarray:
    """The value of a variable by its handle, or of a constant."""
    import tensorflow as tf

    if value.dtype == tf.resource:
        value = tf.raw_ops.ReadVariableOp(resource=value, dtype=value._handle_data.shape_and_type[0].dtype)
    return value.numpy()


def _parameter(name: str, value: np.ndarray) -> dict[str, Any]:
    """The arguments of `_value`, with the value of small arrays, integers and zeros; other values are drawn again."""
    stated = {"name": name, "dtype": value.dtype.name, "shape": value.shape}
    if value.size < 8 or value.dtype.kind in "iu":
        return stated | {"value": value.tolist()}
    return stated if value.any() else stated | {"value": 0}


def hlo_of(function, *arguments):
    """The HLO module of a function, without copies, because JAX uses StableHLO, which has no copies."""
    from tensorflow.compiler.xla.service import hlo_pb2

    hlo = function.experimental_get_compiler_ir(*arguments)(stage="hlo_serialized")
    module = hlo_pb2.HloModuleProto.FromString(hlo)
    module.ClearField("stack_frame_index")  # most of the bytes
    for instruction in (found for computation in module.computations for found in computation.instructions):
        if instruction.opcode == "copy":
            instruction.opcode = "reshape"  # to the same shape
    return module


def one_batch(work: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The batch of both sides: rows of mean_length, 15 % of the words masked; other models have other labels."""
    length = work["max_seq_length"]
    predictions = max(1, round(workload.MASKED_SHARE * length))
    batch = workload.random_batches(work["config"], 1, work["batch_size"], length, predictions, work["mean_length"])[0]
    labels = {"classifier": ["label_ids"], "span": ["start_positions", "end_positions"]}.get(work["model"])
    if not labels:
        return batch
    inputs = {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}
    return inputs | {name: batch["next_sentence_labels"] for name in labels}


# With JAX


def run(flags: argparse.Namespace) -> None:
    """Compiles the step of a folder for JAX's first device, and prints its differences and times."""
    import jax

    jax.config.update("jax_enable_x64", True)  # the number of a step has 64 bits
    work = json.loads((pathlib.Path(flags.run) / "work.json").read_text(encoding="utf-8"))
    device = jax.devices()[0]
    rate = product_rate(work)
    shape = f"{work['model']}, {work['batch_size']} x {work['max_seq_length']}, {work['precision']}"
    print(f"{device.device_kind}, jax {jax.__version__}: {shape}; matrix products at {rate / 1e12:.3g} TFLOP/s")
    print(_run_step(flags, work, device, rate))


def product_rate(work: Mapping[str, Any]) -> float:
    """Operations per second of the product that widens the states in a block; see steps.product_rate."""
    import jax

    rows, config = work["batch_size"] * work["max_seq_length"], work["config"]
    width, inner = config["hidden_size"], config["intermediate_size"]
    dtype = {"float32": np.float32, "float16": np.float16, "bfloat16": jax.numpy.bfloat16}[work["precision"]]
    left, right = jax.numpy.ones([rows, width], dtype), jax.numpy.ones([width, inner], dtype)
    product = jax.jit(lambda a, b: a @ b)
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        results = [product(left, right) for _ in range(20)]
        jax.block_until_ready(results)
        seconds.append((time.perf_counter() - began) / 20)
    return 2.0 * rows * width * inner / min(seconds)


def _value(name: str, dtype: str, shape: Sequence[int], value=None) -> np.ndarray:
    drawn = initial_value(name, shape) if value is None else value
    return np.broadcast_to(np.asarray(drawn, dtype), shape)


class _Step:
    """A step on a device with its variables. Each call consumes the variables: the new variables reuse their memory."""

    def __init__(self, folder: pathlib.Path, work: Mapping[str, Any], device):
        import jax

        self._executable, self._assigned = compiled(folder / "step.hlo", device), work["assigned"]
        with np.load(folder / "step.npz") as file:
            self.wanted = {key.replace("|", "/"): file[key] for key in file.files}
        inputs = [self.wanted.pop(key) for key in [*self.wanted] if key.startswith("input ")]
        self._inputs = [jax.device_put(value, device) for value in inputs]
        self._variables = [jax.device_put(_value(**parameter), device) for parameter in work["parameters"]]

    def __call__(self) -> list:
        done = self._executable.execute_sharded([*self._inputs, *self._variables])
        results = [result for (result,) in done.disassemble_into_single_device_arrays()]
        for number, place in self._assigned:
            self._variables[number] = results[place]
        return results

    def seconds(self, count: int) -> float:
        """The seconds of a call. Results are dropped, so that addresses repeat and CUDA graphs need no updates."""
        began = time.perf_counter()
        for _ in range(count - 1):
            self()
        self()[0].block_until_ready()
        return (time.perf_counter() - began) / count

    def kernel_seconds(self, count: int = 5) -> float:
        """The sum of the seconds of a GPU's kernels (some run in parallel), by JAX's profiler; 0 on other devices."""
        import jax

        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                self.seconds(count)
            (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
            data = jax.profiler.ProfileData.from_file(str(path))
        planes = [plane for plane in data.planes if plane.name.startswith("/device:GPU")]
        streams = [line for plane in planes for line in plane.lines if line.name.startswith("Stream")]
        return sum(event.duration_ns for line in streams for event in line.events) / 1e9 / count


def _differences(work: Mapping[str, Any], results: list, wanted: Mapping[str, np.ndarray]) -> list[str]:
    """The relative differences between the results and the answers of TensorFlow's CPU, as short texts."""
    answers = {key: value for key, value in zip(work["results"], results, strict=False) if key in wanted}
    parts = [f"{key} {relative_difference(np.asarray(value), wanted[key]):.1e}" for key, value in answers.items()]
    slots = {work["parameters"][number]["name"]: place for number, place in work["assigned"]}
    slots = {key: place for key, place in slots.items() if key in wanted and key not in answers}
    if slots:
        found = np.concatenate([projected(key, np.asarray(results[place])) for key, place in slots.items()])
        parts.append(f"gradients {relative_difference(found, np.concatenate([wanted[key] for key in slots])):.1e}")
    return parts


def _run_step(flags: argparse.Namespace, work: Mapping[str, Any], device, rate: float) -> str:
    """Returns a line with the time and the differences."""
    step = _Step(pathlib.Path(flags.run), work, device)
    parts = _differences(work, step(), step.wanted)
    step.seconds(workload.WARM_UP)
    seconds, kernels = step.seconds(flags.steps), step.kernel_seconds()
    config, batch = types.SimpleNamespace(**work["config"]), one_batch(work)
    words = int(batch.get("masked_lm_weights", np.zeros(1)).sum())
    flops = steps.step_flops(config, batch["input_mask"].sum(axis=1), words)
    memory = (device.memory_stats() or {}).get("peak_bytes_in_use")
    return (
        f"{1000 * seconds:.2f} ms, {work['batch_size'] / seconds:.4g} examples/s,"
        f" {flops / seconds / rate:.0%} of the products' rate"
        + (f", {1000 * kernels:.2f} ms of kernels" if kernels else "")
        + (f", peak {memory / 1e9:.2f} GB" if memory else "")
        + (f"; differences: {', '.join(parts)}" if parts else "")
    )


def compiled(path: pathlib.Path, device):
    """An HLO module, compiled for a device. JAX has no public interface for modules that it did not trace."""
    from jax._src.lib import _jax, xla_client

    text = stablehlo(path)
    return device.client.compile_and_load(text, _jax.DeviceList((device,)), xla_client.CompileOptions())


def stablehlo(path: pathlib.Path) -> str:
    """The text of an HLO module as JAX compiles it."""
    from jax._src.lib import xla_client

    return xla_client._xla.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(path.read_bytes()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", metavar="FOLDER", help="write the step and TensorFlow's answers")
    what.add_argument("--run", metavar="FOLDER", help="run the step of a folder on JAX's first device")
    parser.add_argument("--bert_config_file", help="sizes of the model; BERT-Base without it")
    parser.add_argument("--model", choices=MODELS, default="pretraining")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--max_seq_length", type=int, default=128)
    told = "with --write: the mean length of rows, several of which share a row of --max_seq_length; 0: all are full"
    parser.add_argument("--mean_length", type=int, default=0, help=told)
    parser.add_argument("--precision", choices=("float32", "bfloat16", "float16"), default="float32")
    told = "with --write: without dropout in attention, which is plain or one kernel of a GPU (needs --no_answers)"
    parser.add_argument("--attention", choices=("plain", "fused"), help=told)
    parser.add_argument("--for_tpu", action="store_true", help="with --write: the program for a TPU")
    parser.add_argument("--no_answers", action="store_true", help="with --write: faster, without answers to compare")
    parser.add_argument("--steps", type=int, default=20, help="with --run: the number of steps to time")
    flags = parser.parse_args()
    if flags.run and not os.path.isfile(os.path.join(flags.run, "work.json")):
        parser.error(f"--run={flags.run}: has no work.json; write the folder with --write first")
    (write if flags.write else run)(flags)


if __name__ == "__main__":
    main()

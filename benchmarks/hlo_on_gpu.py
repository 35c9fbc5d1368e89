"""The encoder and the training step on a card on which TensorFlow is not installed: as HLO, through JAX.

    python benchmarks/hlo_on_gpu.py --write=FOLDER --precision=bfloat16     where TensorFlow is; about a minute
    python benchmarks/hlo_on_gpu.py --run=FOLDER                            where JAX is: numpy, jax and this folder

The first command compiles both with XLA, as `--xla` does, and writes their HLO before the optimization for a device,
with what they answer on its CPU. The second one gives the same numbers to the same HLO, compares the answers, and times
the steps; each step gets the weights of the one before. FOLDER has no weights: both sides draw them by name.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import time
import types
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import steps
import workload

PROGRAMS = ("encoder", "step")
MODELS = {"pretraining": "PretrainingModel", "classifier": "ClassifierModel", "span": "SpanModel"}
_SLOTS = ("/adam_m", "/adam_v")
_PROJECTIONS = 4
_WORK = ("model", "batch_size", "max_seq_length", "precision")


def initial_value(name: str, shape: Sequence[int]) -> np.ndarray:
    """The value of a variable before the first step, float32: the same wherever it is drawn."""
    if name.endswith(_SLOTS):
        return np.zeros(shape, np.float32)
    draw = np.random.default_rng(zlib.crc32(name.encode()))
    values = 0.02 * draw.standard_normal(shape, np.float32)
    return values + 1.0 if name.endswith("gamma") else values


def projected(name: str, value: np.ndarray) -> np.ndarray:
    """Dot products with random vectors, float32 [4]. Their differences are as large as those of the whole array."""
    draw = np.random.default_rng(zlib.crc32(name.encode()) + 1)
    flat = np.ravel(value)
    return np.array([draw.standard_normal(flat.size, np.float32) @ flat for _ in range(_PROJECTIONS)])


def relative_difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """The norm of the difference as a part of the norm of what is wanted, or itself if that is 0."""
    return float(np.linalg.norm(found - wanted) / (np.linalg.norm(wanted) or 1.0))


# Where TensorFlow is


def write(flags: argparse.Namespace) -> None:
    """Writes NAME.hlo and NAME.npz of both programs, and work.json."""
    import tensorflow as tf

    from bert_tf2 import heads
    from bert_tf2.config import BertConfig
    from bert_tf2.fast.encoder import Plan, accelerate
    from bert_tf2.training.loop import Trainer
    from bert_tf2.training.options import PRECISIONS, TrainOptions
    from bert_tf2.weights.checkpoint import tf1_variables

    os.makedirs(flags.write, exist_ok=True)
    config = workload.load_config(flags.bert_config_file)
    sizes = {"num_labels": 2} if flags.model == "classifier" else {}
    make = getattr(heads, MODELS[flags.model])
    model = make(BertConfig.from_dict(config), dtype=PRECISIONS[flags.precision].policy, **sizes)
    accelerate(model, Plan("none"))
    rates = {"learning_rate": 1e-4, "num_train_steps": 1000, "num_warmup_steps": 10}
    options = TrainOptions(output_dir="", train_batch_size=flags.batch_size, precision=flags.precision, **rates)
    trainer = Trainer(model, tf.distribute.get_strategy(), options)
    variables = {**tf1_variables(model), **trainer.step.state}
    for name, variable in variables.items():
        if variable.shape.rank:  # the others belong to the scale of the loss, and have their values
            variable.assign(initial_value(name, variable.shape))
    work = {"config": config, **{name: getattr(flags, name) for name in _WORK}}
    batch = {name: tf.constant(values) for name, values in one_batch(work).items()}

    def encode(batch):
        output = model.encode(batch)
        return {name: tf.cast(getattr(output, name), tf.float32) for name in ("pooled_output", "sequence_output")}

    inputs = {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}
    encoder = tf.function(encode, jit_compile=True, autograph=False)
    work["programs"] = {
        "encoder": _write_program(flags, "encoder", encoder, (inputs,), variables),
        "step": _write_program(
            flags, "step", trainer.step.compiled(jit_compile=True), (batch, tf.constant(1, tf.int64)), variables
        ),
    }
    (pathlib.Path(flags.write) / "work.json").write_text(json.dumps(work, indent=1), encoding="utf-8")
    print(f"Wrote {flags.write}: {', '.join(sorted(os.listdir(flags.write)))}")


def _write_program(
    flags: argparse.Namespace, name: str, function, arguments: tuple, variables: Mapping[str, Any]
) -> dict[str, Any]:
    """Writes a program with its answers; returns the names of its parameters and results, and the variables' shapes."""
    concrete = function.get_concrete_function(*arguments)
    of_handle = {id(variable.handle): variable_name for variable_name, variable in variables.items()}
    captured = [of_handle[id(handle)] for handle in concrete.captured_inputs]
    scalars = {key: value.numpy() for key in captured if not (value := variables[key]).shape.rank}
    path = pathlib.Path(flags.write) / f"{name}.hlo"
    path.write_bytes(hlo_of(function, *arguments))
    results = sorted(concrete.structured_outputs)  # as tf.nest orders a dict
    # XLA returns what a program assigns, in the order of the parameters; a pooler that nothing reads is not trained.
    still = [
        key
        for key in captured
        if variables[key].shape.rank and not key.endswith(_SLOTS) and f"{key}/adam_m" not in variables
    ]
    assigned = [key for key in captured if key not in still] if name == "step" else []
    if not flags.no_answers:
        answers = {key: value.numpy() for key, value in function(*arguments).items()}
        answers |= {key: projected(key, variables[key].numpy()) for key in assigned if key.endswith("/adam_m")}
        np.savez(path.with_suffix(".npz"), **{key.replace("/", "|"): value for key, value in answers.items()})
    inputs = [*sorted(arguments[0]), *(["step"] if len(arguments) > 1 else [])]
    return {
        "inputs": inputs,
        "variables": {key: [*variables[key].shape] for key in captured},
        "scalars": {key: [value.dtype.name, value.item()] for key, value in scalars.items()},
        "results": results + assigned,
    }


def hlo_of(function, *arguments) -> bytes:
    """The module of a function without copies, which StableHLO, that JAX hands to a GPU or TPU, does not have."""
    from tensorflow.compiler.xla.service import hlo_pb2

    hlo = function.experimental_get_compiler_ir(*arguments)(stage="hlo_serialized")
    module = hlo_pb2.HloModuleProto.FromString(hlo)
    for instruction in (found for computation in module.computations for found in computation.instructions):
        if instruction.opcode == "copy":
            instruction.opcode = "reshape"  # to the shape that it has
    return module.SerializeToString()


def write_peer(flags: argparse.Namespace, config: dict[str, Any], name: str, function, arguments) -> None:
    """For a peer's program: step.hlo and work.json, which are what accelerators.py reads.

    Args:
      function: the training step, a tf.function with jit_compile.
      arguments: makes the step's arguments from a batch.
    """
    folder = pathlib.Path(flags.write)
    folder.mkdir(parents=True, exist_ok=True)
    work = {"config": config, **{key: getattr(flags, key) for key in _WORK if key != "model"}, "model": name}
    (folder / "step.hlo").write_bytes(hlo_of(function, *arguments(one_batch(work))))
    (folder / "work.json").write_text(json.dumps(work), encoding="utf-8")


def one_batch(work: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The batch of both sides: full rows, 15 % of the words masked; for other models, other labels."""
    length = work["max_seq_length"]
    predictions = max(1, round(workload.MASKED_SHARE * length))
    batch = workload.random_batches(work["config"], 1, work["batch_size"], length, predictions)[0]
    labels = {"classifier": ["label_ids"], "span": ["start_positions", "end_positions"]}.get(work["model"])
    if not labels:
        return batch
    inputs = {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}
    return inputs | {name: batch["next_sentence_labels"] for name in labels}


# Where JAX is


def run(flags: argparse.Namespace) -> None:
    """Compiles the programs of a folder for JAX's first device, and prints their differences and times."""
    import jax

    jax.config.update("jax_enable_x64", True)  # the number of a step has 64 bits
    work = json.loads((pathlib.Path(flags.run) / "work.json").read_text(encoding="utf-8"))
    device = jax.devices()[0]
    rate = product_rate(work)
    shape = f"{work['model']}, {work['batch_size']} x {work['max_seq_length']}, {work['precision']}"
    print(f"{device.device_kind}, jax {jax.__version__}: {shape}; matrix products at {rate / 1e12:.3g} TFLOP/s")
    for name in PROGRAMS:
        print(_run_program(flags, work, name, device, rate))


def product_rate(work: Mapping[str, Any]) -> float:
    """Operations per second of the product that widens the states in a block; see steps.product_rate."""
    import jax

    rows, width, inner = work["batch_size"] * work["max_seq_length"], *_widths(work)
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


def _widths(work: Mapping[str, Any]) -> tuple[int, int]:
    return work["config"]["hidden_size"], work["config"]["intermediate_size"]


def _run_program(flags: argparse.Namespace, work: Mapping[str, Any], name: str, device, rate: float) -> str:
    """A line: the largest differences from the answers of TensorFlow's CPU, and the time."""
    import jax

    program = work["programs"][name]
    executable = compiled(pathlib.Path(flags.run) / f"{name}.hlo", device)
    batch = {**one_batch(work), "step": np.int64(1)}
    inputs = [jax.device_put(batch[key], device) for key in program["inputs"]]
    scalars = {key: np.dtype(dtype).type(value) for key, (dtype, value) in program["scalars"].items()}
    shapes = program["variables"].items()
    drawn = (scalars[key] if key in scalars else initial_value(key, shape) for key, shape in shapes)
    variables = [jax.device_put(value, device) for value in drawn]
    assigned = [key for key in program["results"] if key in program["variables"]]
    num_measures = len(program["results"]) - len(assigned)

    def call(variables: list) -> list:
        results = executable.execute_sharded([*inputs, *variables]).disassemble_into_single_device_arrays()
        return [result[0] for result in results]

    def updated(variables: list, results: list) -> list:
        new = dict(zip(assigned, results[num_measures:], strict=True))
        return [new.get(key, value) for key, value in zip(program["variables"], variables, strict=True)]

    results = call(variables)
    answers = dict(zip(program["results"], results, strict=True))
    with np.load(pathlib.Path(flags.run) / f"{name}.npz") as stored:
        wanted = {key.replace("|", "/"): stored[key] for key in stored.files}
    slots = [key for key in wanted if key.endswith("/adam_m")]
    parts = [
        f"{key} {relative_difference(np.asarray(answers[key]), wanted[key]):.1e}" for key in wanted if key not in slots
    ]
    if slots:
        found = np.concatenate([projected(key, np.asarray(answers[key])) for key in slots])
        parts.append(f"gradients {relative_difference(found, np.concatenate([wanted[key] for key in slots])):.1e}")
    # A step has taken its variables: their memory is that of the new ones.
    variables = updated(variables, results)
    for count in (workload.WARM_UP, flags.steps):  # the last round counts
        began = time.perf_counter()
        for _ in range(count):
            results = call(variables)
            variables = updated(variables, results)
        jax.block_until_ready(results)
        seconds = (time.perf_counter() - began) / count
    lengths = [work["max_seq_length"]] * work["batch_size"]
    config = types.SimpleNamespace(**work["config"])
    words = int(batch["masked_lm_weights"].sum()) if "masked_lm_weights" in batch else 0
    flops = steps.step_flops(config, lengths, words if slots else 0)
    flops /= 1 if slots else 3  # an encoder has no gradients
    memory = (device.memory_stats() or {}).get("peak_bytes_in_use")
    return (
        f"{name:8} {1000 * seconds:.2f} ms, {work['batch_size'] / seconds:.4g} examples/s,"
        f" {flops / seconds / rate:.0%} of the products' rate"
        + (f", peak {memory / 1e9:.2f} GB" if memory else "")
        + f"; differences: {', '.join(parts)}"
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
    what.add_argument("--write", metavar="FOLDER", help="write the programs and TensorFlow's answers")
    what.add_argument("--run", metavar="FOLDER", help="run the programs of a folder on JAX's first device")
    parser.add_argument("--bert_config_file", help="sizes of the model; BERT-Base without it")
    parser.add_argument("--model", choices=MODELS, default="pretraining")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--precision", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--no_answers", action="store_true", help="with --write: for a compiler only, in less time")
    parser.add_argument("--steps", type=int, default=20, help="with --run: how many to time")
    flags = parser.parse_args()
    if flags.run and not os.path.isfile(os.path.join(flags.run, "step.npz")):
        parser.error(f"--run={flags.run}: has no step.npz; write the folder with --write first")
    (write if flags.write else run)(flags)


if __name__ == "__main__":
    main()

"""The computations on a GPU against those of the CPU: make test-gpu. Without a GPU, the same tests run on the CPU."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import subprocess
import sys

import export_cases
import numpy as np
import pytest
import tensorflow as tf
import text_operations
from command_lines import ROOT, environment
from pretraining_text import VOCABULARY
from small_models import MAKERS, batch_for, randomize, tiny_config
from small_trainings import ONE, endless, make_trainer, saved
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import kernels as registered
from unmasked_data import LENGTH, PREDICTIONS, make

from bert_tf2 import exporting as exports
from bert_tf2 import placement
from bert_tf2.fast import fused_attention, kernels
from bert_tf2.fast.encoder import Plan
from bert_tf2.layers import MASKED_SCORE
from bert_tf2.support import process
from bert_tf2.training import devices
from bert_tf2.training.options import PRECISIONS, DeviceOptions

pytestmark = pytest.mark.compiled
SLOW_ON_CPU = [pytest.param("CPU", marks=pytest.mark.slow), "GPU"]
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
# The largest difference from float32 on the CPU, relative to the norm of all gradients.
TOLERANCES = {"float32": 1e-4, "tf32": 5e-3, "bfloat16": 0.05, "float16": 0.02}


@pytest.fixture(autouse=True)
def as_before():
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    yield
    tf.config.experimental.enable_tensor_float_32_execution(before)


def need(kind: str) -> None:
    """Skips the test if there is no device of a kind, CPU or GPU."""
    if not tf.config.list_logical_devices(kind):
        pytest.skip("there is no GPU, or it is hidden: make test-gpu, on a machine that has one")


def step(kind: str, precision: str = "float32", compiled: bool = False) -> np.ndarray:
    """The first moments of Adam after a step with dropout, which are a tenth of the gradients; one array."""
    tf.config.experimental.enable_tensor_float_32_execution(precision != "float32")
    with tf.device(f"/{kind}:0"):
        trainer = make_trainer(config=DROPOUT, precision=precision)
        randomize(trainer.model)
        batch = {name: tf.constant(values) for name, values in batch_for("pretraining").items()}
        trainer.step.compiled(jit_compile=compiled)(batch, tf.constant(3, tf.int64))
        slots = trainer.step.state
        return np.concatenate([slots[name].numpy().ravel() for name in sorted(slots) if name.endswith("/adam_m")])


@pytest.fixture(scope="module")
def on_the_cpu() -> np.ndarray:
    return step("CPU")


WAYS = [*((precision, False) for precision in PRECISIONS), ("float32", True)]


@pytest.mark.parametrize("kind", SLOW_ON_CPU)
@pytest.mark.parametrize(("precision", "compiled"), WAYS)
def test_a_step_makes_the_update_of_the_cpu(kind, precision, compiled, request):
    """The dropout too: its random numbers are the same on all devices."""
    need(kind)
    on_the_cpu = request.getfixturevalue("on_the_cpu")  # not before: it takes seconds
    found = step(kind, precision, compiled)
    assert np.linalg.norm(found - on_the_cpu) < TOLERANCES[precision] * np.linalg.norm(on_the_cpu)


@pytest.mark.parametrize("of_mask", ["rows of different lengths", "several examples in a row"])
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_attention_in_one_kernel_has_the_values_and_gradients_of_plain_attention(precision, of_mask):
    """The kernel's own results; tests/fast/test_fused_attention.py has the rest without a GPU."""
    need("GPU")
    random, shape = np.random.default_rng(3), (4, 12, 128, 64)
    *inputs, upstream = (tf.constant(random.normal(size=shape), tf.float32) for _ in range(4))
    is_token = np.arange(128) < np.array([128, 1, 77, 30])[:, np.newaxis]
    example = np.where(is_token, np.arange(128) // 20, -1)
    reads = is_token[:, np.newaxis, np.newaxis]
    if of_mask == "several examples in a row":
        reads = ((example[:, :, np.newaxis] == example[:, np.newaxis]) & is_token[:, np.newaxis])[:, np.newaxis]
    mask = tf.constant(np.where(reads, 0.0, MASKED_SCORE), tf.float32)
    upstream *= reads.any(-1)[..., np.newaxis]  # the values of a query without keys mean nothing

    def both(attend, dtype, query, key, value):
        query, key, value = inputs = [tf.cast(each, dtype) for each in (query * 0.125, key, value)]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            context = attend(query, key, mask, value)
        gradients = tape.gradient(context, inputs, tf.cast(upstream, dtype))
        return [tf.cast(each, tf.float32) for each in (context * tf.cast(upstream != 0, dtype), *gradients)]

    plain = both(lambda *given: kernels.attend(*given, rate=None), tf.float32, *inputs)
    run = functools.partial(kernels.attend, rate=None, fused=fused_attention.attend)
    found = tf.function(functools.partial(both, run, precision), jit_compile=True, autograph=False)(*inputs)
    for ours, wanted in zip(found, plain, strict=True):
        assert np.linalg.norm(ours - wanted) < TOLERANCES[precision] * np.linalg.norm(wanted)


@pytest.mark.parametrize("kind", SLOW_ON_CPU)
def test_a_program_finds_the_best_words_of_a_large_vocabulary(kind):
    """XLA has a kernel of its own for them on GPUs, which the small vocabularies of other tests do not reach."""
    need(kind)
    with tf.device(f"/{kind}:0"):
        scores = tf.constant(np.random.default_rng(1).normal(size=[4, 3, 30522]), tf.float32)
        best, ids = tf.function(lambda x: tf.math.top_k(x, 5), jit_compile=True)(scores)
    np.testing.assert_array_equal(ids, np.argsort(-scores.numpy(), axis=-1)[..., :5])
    np.testing.assert_array_equal(best, np.take_along_axis(scores.numpy(), ids.numpy(), axis=-1))


@pytest.mark.parametrize("kind", SLOW_ON_CPU)
def test_two_replicas_make_the_update_of_one(kind, two, tmp_path):
    """Those of a GPU without NCCL, which refuses two devices that are one."""
    need(kind)
    if kind == "GPU":
        how = {"cross_device_ops": tf.distribute.ReductionToOneDevice()}
        two = tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"], **how)
    found = []
    for strategy in (ONE, two):
        with tf.device(f"/{kind}:0") if strategy is ONE else contextlib.nullcontext():
            folder = tmp_path / str(len(found))
            trainer = make_trainer(folder, "masked_words", strategy=strategy, num_train_steps=1)
            randomize(trainer.model)
            trainer.train(endless(batch_for("masked_words")))
        found.append(saved(folder))
    slots = [name for name in found[0] if name.endswith("/adam_m")]
    assert len(slots) > 20
    for name in slots:
        np.testing.assert_allclose(found[1][name], found[0][name], rtol=1e-4, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("has_texts", [False, True])
@pytest.mark.parametrize("kind", SLOW_ON_CPU)
def test_an_export_answers_ids_and_texts_as_on_the_cpu(kind, has_texts, tmp_path):
    need(kind)
    if has_texts:
        text_operations.need()
    made = export_cases.export(tmp_path, "features", text_signatures=has_texts)
    texts, found = ["the film was good", "ann lives in paris now"], []
    for device in ("CPU", kind):
        with devices.configured(DeviceOptions()), tf.device(f"/{device}:0"):  # without TF32, the default of TensorFlow
            loaded = dataclasses.replace(made)  # which has loaded nothing yet
            ids = loaded.ask("serving_default", **export_cases.rows())["pooled_output"]
            answers = exports.load(made.folder)(texts) if has_texts else ()
            found.append([ids, *(answer["pooled_output"] for answer in answers)])
    for there, on_cpu in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(there, on_cpu, atol=1e-4)


def test_a_divided_gpu_is_no_error(monkeypatch):
    """Its memory cannot grow, and TensorFlow says so by an exception."""

    def refuse(gpu, enable):
        raise ValueError("Cannot set memory growth on device when virtual devices configured")

    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", refuse)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [object()])
    monkeypatch.setattr(process, "is_script", True)
    with devices.configured(DeviceOptions()):
        pass


# The list of kernels in TensorFlow's package for GPUs, which needs no GPU. What has none for what trainings and exports
# compute would be copied to the host and back in every step.

CALLS = {"PartitionedCall", "StatefulPartitionedCall"}  # of functions, whose operations are looked at
# Exports make labels and the texts of errors on the host, and there they count the masks of a row.
ON_THE_HOST = {"StringFormat", "GatherV2 of string", "SegmentSum of int32"}


@functools.cache
def kernels_of(operation: str, device: str) -> list[dict[str, set[int]]]:
    """For each kernel the types that it takes, by attribute. `DEFAULT` ones are for all devices."""
    found = registered.get_registered_kernels_for_op(operation).kernel
    limits = (kernel.constraint for kernel in found if kernel.device_type in (device, "DEFAULT"))
    return [
        {one.name: {*one.allowed_values.list.type} for one in some if one.allowed_values.list.type} for some in limits
    ]


def without_kernel(graph: graph_pb2.GraphDef, device: str = "GPU") -> set[str]:
    """The operations without a kernel in a graph and its functions, with the type of what they compute."""
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    found = set()
    for node in nodes:
        types = {name: {value.type} if value.type else {*value.list.type} for name, value in node.attr.items()}
        takes = (
            all(types[name] <= allowed for name, allowed in kernel.items()) for kernel in kernels_of(node.op, device)
        )
        if node.op not in CALLS and not any(takes):
            of = {*types.get("T", ()), *types.get("Tparams", ())} if node.op != "StringFormat" else ()
            found.add(" of ".join([node.op, *(tf.as_dtype(kind).name for kind in of)]))
    return found


XLA, GROUPS = Plan(), Plan("groups", recompute=True, share_graph=True)


@pytest.mark.parametrize(
    ("kind", "precision", "plan"),
    [
        ("pretraining", "bfloat16", XLA),
        pytest.param("span", "float16", XLA, marks=pytest.mark.slow),
        pytest.param("span", "float16", GROUPS, marks=pytest.mark.slow),
        *(pytest.param(kind, "float32", plan, marks=pytest.mark.slow) for kind in MAKERS for plan in (XLA, GROUPS)),
    ],
)
def test_a_training_step_and_its_parts_for_xla(kind, precision, plan, monkeypatch):
    """A GPU's graphs. The usual package does not list XLA's kernels for TPUs; all but a few are the same."""
    tf.function(lambda: tf.constant(0.0), jit_compile=True)()  # the first compilation registers them
    monkeypatch.setattr(placement, "built_for", lambda: "GPU")
    trainer = make_trainer("", kind, config={"num_hidden_layers": 2, **DROPOUT}, precision=precision, plan=plan)
    given = {name: tf.constant(value) for name, value in batch_for(kind).items()}, tf.constant(3, tf.int64)
    for device, compiled in [("GPU", False), ("XLA_GPU_JIT", True)][: 2 if plan is XLA else 1]:
        step = trainer.step.compiled(jit_compile=compiled).get_concrete_function(*given)
        assert without_kernel(step.graph.as_graph_def(), device) == set()


def test_what_has_no_kernel_is_named():
    text = tf.function(lambda: tf.strings.format("{}", [1])).get_concrete_function()
    assert without_kernel(text.graph.as_graph_def(), "XLA_GPU_JIT") == {"StringFormat"}


@pytest.mark.slow
@pytest.mark.parametrize("task", export_cases.MAKERS)
def test_an_export_of_ids(task, tmp_path):
    signature = export_cases.export(tmp_path, task, text_signatures=False).saved.signatures["serving_default"]
    assert without_kernel(signature.graph.as_graph_def()) <= ON_THE_HOST


# Last, because they take minutes. --deterministic concerns a whole process.
HIDDEN = {"CUDA_VISIBLE_DEVICES": "-1"}
TWICE = """
import pathlib, sys
from pretraining_text import VOCABULARY
from small_models import tiny_config
from unmasked_data import LENGTH, PREDICTIONS, make
from bert_tf2 import commands
from bert_tf2.training.devices import computes_on, create_strategy
folder, rates = pathlib.Path(sys.argv[1]), {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
config = tiny_config(vocab_size=len(VOCABULARY), max_position_embeddings=LENGTH, **rates)
(folder / "config.json").write_text(config.to_json_string())
records = make(folder, "records", dynamic_masking=False)
sizes = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS, "train_batch_size": 4}
how = {**sizes, "learning_rate": 1e-2, "num_train_steps": 4, "num_warmup_steps": 1, "do_train": True}
how |= {"input_file": records, "bert_config_file": f"{folder}/config.json", "deterministic": True}
for number in (1, 2):
    commands.call("run_pretraining", output_dir=f"{folder}/{number}", **how)
print(computes_on(create_strategy()))
"""


def whole_runs(folder, kind: str, *arguments: str) -> dict[str, np.ndarray]:
    """The numbers of whole_runs.py on a device."""
    folder.mkdir()
    env = environment(ROOT, ROOT / "tests", TF_CPP_MIN_LOG_LEVEL="2", **(HIDDEN if kind == "CPU" else {}))
    call = [sys.executable, str(ROOT / "tests" / "whole_runs.py"), str(folder), *arguments]
    done = subprocess.run(call, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == kind
    with np.load(folder / "numbers.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def runs_on_the_cpu(tmp_path_factory) -> dict[str, np.ndarray]:
    return whole_runs(tmp_path_factory.mktemp("runs") / "cpu", "CPU")


@pytest.mark.parametrize("kind", [pytest.param("CPU", marks=[pytest.mark.slow, pytest.mark.soak]), "GPU"])
@pytest.mark.parametrize("arguments", [(), ("xla",)])
def test_the_scripts_and_fit_have_the_numbers_of_the_cpu(kind, arguments, request, tmp_path):
    """The weights and moments of the trainings, evaluations, vectors, scores and probabilities."""
    need(kind)
    wanted = request.getfixturevalue("runs_on_the_cpu")
    assert differing(whole_runs(tmp_path / "runs", kind, *arguments), wanted, 1e-3) == {}


def differing(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], tolerance: float) -> dict[str, float]:
    """The relative differences that are not below the tolerance."""
    assert found.keys() == wanted.keys()
    wrong = {name: np.linalg.norm(found[name] - wanted[name]) / np.linalg.norm(wanted[name]) for name in wanted}
    return {name: by for name, by in wrong.items() if not by < tolerance}


def test_scripts_with_fused_attention_have_the_numbers_of_plain_attention(tmp_path):
    """Trainings, evaluations, predictions, vectors and scores, in bfloat16."""
    need("GPU")
    plain, fused = (whole_runs(tmp_path / attention, "GPU", attention) for attention in ("plain", "fused"))
    assert differing(fused, plain, TOLERANCES["bfloat16"]) == {}


@pytest.mark.parametrize("xla", [False, True])
def test_too_little_memory_is_reported_in_one_line(xla, tmp_path):
    """The states within the feed-forward networks have 2^20 numbers for each token: a terabyte."""
    need("GPU")
    config = tiny_config(vocab_size=len(VOCABULARY), max_position_embeddings=LENGTH, intermediate_size=1 << 20)
    (tmp_path / "config.json").write_text(config.to_json_string())
    sizes = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS, "train_batch_size": 8192}
    files = {
        "input_file": make(tmp_path, "records", dynamic_masking=False),
        "bert_config_file": tmp_path / "config.json",
    }
    given = {**files, **sizes, "output_dir": tmp_path / "out", "num_train_steps": 1, "do_train": True, "xla": xla}
    call = ["run_pretraining.py", *(f"--{name}={value}" for name, value in given.items())]
    env = environment(ROOT, ROOT / "tests")
    done = subprocess.run([sys.executable, *call], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert "out of memory; lower the batch size" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", [pytest.param("CPU", marks=[pytest.mark.slow, pytest.mark.soak]), "GPU"])
def test_deterministic_trainings_write_the_same_bytes(kind, tmp_path):
    need(kind)
    env = environment(ROOT, ROOT / "tests", TF_CPP_MIN_LOG_LEVEL="2", **(HIDDEN if kind == "CPU" else {}))
    call = [sys.executable, "-c", TWICE, str(tmp_path)]
    done = subprocess.run(call, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == kind
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / number).glob("model.ckpt-*")} for number in ("1", "2")
    )
    assert first == second and len(first) >= 4

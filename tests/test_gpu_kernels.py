"""TensorFlow's package for GPUs has a kernel for what trainings and exports compute there; its list needs no GPU.

What has none would be copied to the host and back in every step.
"""

from __future__ import annotations

import functools

import pytest
import tensorflow as tf
from export_cases import MAKERS as TASKS
from export_cases import export
from small_models import MAKERS, batch_for
from small_trainings import make_trainer
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import kernels

from bert_tf2.fast.encoder import Plan

CALLS = {"PartitionedCall", "StatefulPartitionedCall"}  # of functions, whose operations are looked at
# Exports make labels and the texts of errors on the host, and there they count the masks of a row.
ON_THE_HOST = {"StringFormat", "GatherV2 of string", "SegmentSum of int32"}


@functools.cache
def kernels_of(operation: str, device: str) -> list[dict[str, set[int]]]:
    """For each kernel the types that it takes, by attribute. `DEFAULT` ones are for all devices."""
    found = kernels.get_registered_kernels_for_op(operation).kernel
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


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("kind", "precision", "plan"),
    [
        ("pretraining", "bfloat16", XLA),
        pytest.param("span", "float16", XLA, marks=pytest.mark.slow),
        pytest.param("span", "float16", GROUPS, marks=pytest.mark.slow),
        *(pytest.param(kind, "float32", plan, marks=pytest.mark.slow) for kind in MAKERS for plan in (XLA, GROUPS)),
    ],
)
def test_a_training_step_and_its_parts_for_xla(kind, precision, plan):
    """The usual package does not list XLA's kernels for TPUs; all but a few are the same for all devices."""
    tf.function(lambda: tf.constant(0.0), jit_compile=True)()  # the first compilation registers them
    config = {"num_hidden_layers": 2, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    trainer = make_trainer("", kind, config=config, precision=precision, plan=plan)
    batch = {name: tf.constant(value) for name, value in batch_for(kind).items()}
    step = trainer.step.compiled(jit_compile=False).get_concrete_function(batch, tf.constant(3, tf.int64))
    graph = step.graph.as_graph_def()
    devices = ("GPU", "XLA_GPU_JIT") if plan is XLA else ("GPU",)
    assert [without_kernel(graph, device) for device in devices] == [set()] * len(devices)


def test_what_has_no_kernel_is_named():
    text = tf.function(lambda: tf.strings.format("{}", [1])).get_concrete_function()
    assert without_kernel(text.graph.as_graph_def(), "XLA_GPU_JIT") == {"StringFormat"}


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_an_export_of_ids(task, tmp_path):
    signature = export(tmp_path, task, text_signatures=False).saved.signatures["serving_default"]
    assert without_kernel(signature.graph.as_graph_def()) <= ON_THE_HOST

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
PLANS = {"padded": Plan(), "groups": Plan("groups", recompute=True, share_graph=True)}


@functools.cache
def kernels_of(operation: str) -> list[dict[str, set[int]]]:
    """For each kernel the types that it takes, by attribute. `DEFAULT` ones are for all devices."""
    found = kernels.get_registered_kernels_for_op(operation).kernel
    limits = (kernel.constraint for kernel in found if kernel.device_type in ("GPU", "DEFAULT"))
    return [
        {one.name: {*one.allowed_values.list.type} for one in some if one.allowed_values.list.type} for some in limits
    ]


def without_kernel(graph: graph_pb2.GraphDef) -> set[str]:
    """The operations without a kernel in a graph and its functions, with the type of what they compute."""
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    found = set()
    for node in nodes:
        types = {name: {value.type} if value.type else {*value.list.type} for name, value in node.attr.items()}
        takes = (all(types[name] <= allowed for name, allowed in kernel.items()) for kernel in kernels_of(node.op))
        if node.op not in CALLS and not any(takes):
            of = {*types.get("T", ()), *types.get("Tparams", ())} if node.op != "StringFormat" else ()
            found.add(" of ".join([node.op, *(tf.as_dtype(kind).name for kind in of)]))
    return found


CASES = [("span", "float16"), ("pretraining", "bfloat16")]
CASES += [pytest.param(kind, "float32", marks=pytest.mark.slow) for kind in MAKERS]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("kind", "precision"), CASES)
def test_a_training_step(kind, precision, plan):
    config = {"num_hidden_layers": 2, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    trainer = make_trainer("", kind, config=config, precision=precision, plan=PLANS[plan])
    batch = {name: tf.constant(value) for name, value in batch_for(kind).items()}
    step = trainer.step.compiled(jit_compile=False).get_concrete_function(batch, tf.constant(3, tf.int64))
    assert without_kernel(step.graph.as_graph_def()) == set()


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_an_export_of_ids(task, tmp_path):
    signature = export(tmp_path, task, text_signatures=False).saved.signatures["serving_default"]
    assert without_kernel(signature.graph.as_graph_def()) <= ON_THE_HOST

"""The activations of blocks computed again in the backward pass: the same gradients, and computed again indeed."""

import numpy as np
import pytest
import tensorflow as tf
from small_models import MAKERS, batch_for, randomize, small_config
from tensorflow.python.eager import context

from bert_tf2 import checkpoint, recompute
from bert_tf2.training.options import POLICIES
from bert_tf2.training.step import local_gradients, reduce_gradients

DROPOUT = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
ONE = tf.distribute.get_strategy()


def make(kind, precision="float32", strategy=ONE):
    with strategy.scope():
        model = MAKERS[kind](small_config(**DROPOUT), dtype=POLICIES[precision])
    randomize(model)
    return model


def step_of(model, parts=1, jit_compile=False):
    """A graph function batch -> gradients by name."""
    variables = checkpoint.trained_variables(model)

    @tf.function(jit_compile=jit_compile)
    def step(batch):
        _, gradients = local_gradients(model, variables, batch, tf.constant([1, 2]), parts=parts)
        return reduce_gradients(gradients)[0]

    return step


def batch_of(kind):
    return {name: tf.constant(values) for name, values in batch_for(kind).items()}


@pytest.mark.parametrize(
    ("kind", "precision", "parts", "jit_compile"),
    [
        ("pretraining", "float32", 1, False),
        pytest.param("tagging", "bfloat16", 2, False, marks=[pytest.mark.slow, pytest.mark.soak]),
        pytest.param("span", "float32", 1, True, marks=pytest.mark.slow),
    ],
)
def test_the_gradients_are_the_same(kind, precision, parts, jit_compile):
    model, found = make(kind, precision), []
    for model.bert.recompute in (False, True):
        found.append({name: g.numpy() for name, g in step_of(model, parts, jit_compile)(batch_of(kind)).items()})
    kept, again = found
    assert kept.keys() == again.keys()
    for name, gradient in kept.items():
        np.testing.assert_allclose(again[name], gradient, rtol=1e-6, atol=1e-6, err_msg=name)
    assert any("layer_0" in name and np.abs(gradient).max() > 1e-3 for name, gradient in again.items())


@pytest.mark.slow
def test_the_gradients_are_the_same_on_two_replicas(two):
    model, found = make("classifier", strategy=two), []
    for model.bert.recompute in (False, True):
        gradients = two.run(step_of(model), args=(batch_of("classifier"),))
        found.append({name: two.experimental_local_results(g)[1].numpy() for name, g in gradients.items()})
    for name, gradient in found[0].items():
        np.testing.assert_allclose(found[1][name], gradient, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("blocks", "kept"), [(1, [0]), (2, [1]), (4, [0, 3]), (12, [2, 5, 8, 11])])
def test_one_block_in_three_keeps_its_activations(blocks, kept):
    assert [number for number, is_kept in enumerate(recompute.kept(blocks)) if is_kept] == kept


def test_tensorflow_does_not_merge_the_second_computation_with_the_first():
    """Counts what is executed, after the optimizations of the graph. The last block is not computed again."""
    model, counts = make("classifier"), []
    for model.bert.recompute in (False, True):
        context.enable_run_metadata()
        step_of(model)(batch_of("classifier"))
        graphs = context.export_run_metadata().function_graphs
        context.disable_run_metadata()
        nodes = [node.op for found in graphs for node in found.post_optimization_graph.node]
        counts.append(nodes.count("Softmax"))
    assert counts == [2, 3]

"""One function for all blocks, and activations computed again: the same gradients, and indeed so."""

import numpy as np
import pytest
import tensorflow as tf
from executed_graphs import executed
from gradient_steps import batch_of, make, step_of
from small_models import small_config

from bert_tf2 import modeling
from bert_tf2.fast import blocks
from bert_tf2.fast.encoder import FastEncoder, Plan, accelerate

pytestmark = pytest.mark.compiled


def test_blocks_whose_variables_are_not_trained():
    """Their values must be their own too, not those of the block whose graph it is."""
    model = make("classifier", num_hidden_layers=3)
    model.bert.blocks[0].trainable = model.bert.blocks[2].trainable = False
    apart, shared = (
        step_of(accelerate(model, Plan(share_graph=shared)))(batch_of("classifier")) for shared in (False, True)
    )
    assert apart.keys() == shared.keys()
    assert any("layer_1/" in name for name in apart) and not any("layer_2/" in name for name in apart)
    for name, gradient in apart.items():
        np.testing.assert_allclose(shared[name], gradient, rtol=1e-6, atol=1e-6, err_msg=name)


def test_the_graph_has_the_operations_of_one_block():
    model = accelerate(make("classifier", num_hidden_layers=4), Plan(share_graph=True))
    graph = step_of(model).get_concrete_function(batch_of("classifier")).graph.as_graph_def()
    functions = [node.attr["f"].func.name for node in graph.node]
    calls = [name for name in functions if "_block_forward_" in name or "_block_backward_" in name]
    assert len(calls) == 6 and len(set(calls)) == 2
    assert sum(node.op == "Softmax" for node in graph.node) == 1  # of the last block, which computes [CLS] alone


def test_what_the_gradient_needs_only_the_shape_of_is_not_kept():
    """The gradient of a sum asks for the shapes of both summands, if they are not known before."""

    @tf.function(autograph=False)
    def compute(x):
        forward, backward = blocks._forward_and_backward(lambda x: x + tf.tanh(x)[:, :1], [x], 1)
        y, kept = forward([x])
        floats = [tensor for tensor in kept if tensor.dtype == tf.float32]
        assert len(floats) == 1 < len(kept)  # tanh, and shapes; not x
        return y, floats[0], backward(tf.ones_like(y), kept)[0]

    x = np.array([[0.5, -1.0], [2.0, 0.0]], np.float32)
    y, kept, gradient = compute.get_concrete_function(tf.TensorSpec([None, None]))(tf.constant(x))
    tanh = np.tanh(x)
    np.testing.assert_allclose(y, x + tanh[:, :1], rtol=1e-6)
    np.testing.assert_allclose(kept, tanh, rtol=1e-6)
    np.testing.assert_allclose(gradient, 1 + np.array([2.0, 0.0]) * (1 - tanh**2), rtol=1e-4)


def test_answers_do_not_depend_on_a_training_before():
    model = FastEncoder(bert := modeling.BertModel(small_config()), Plan(share_graph=True))
    ids = tf.constant(np.arange(12).reshape(2, 6))
    graph = tf.function(lambda ids: model(ids).pooled_output, autograph=False).get_concrete_function(ids).graph
    softmaxes = [op for op in graph.get_operations() if op.type == "Softmax"]
    assert len(softmaxes) == len(bert.blocks)


@pytest.mark.slow
def test_the_gradients_are_the_same_where_xla_compiles_the_step():
    model, found = make("span"), []
    for again in (False, True):
        step = step_of(accelerate(model, Plan(recompute=again)), jit_compile=True)
        found.append({name: g.numpy() for name, g in step(batch_of("span")).items()})
    for name, gradient in found[0].items():
        np.testing.assert_allclose(found[1][name], gradient, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("count", "kept"), [(1, [0]), (2, [1]), (4, [0, 3]), (12, [2, 5, 8, 11])])
def test_one_block_in_three_keeps_its_activations(count, kept):
    assert [number for number, is_kept in enumerate(blocks.keeps_activations(count)) if is_kept] == kept


def test_tensorflow_does_not_merge_the_second_computation_with_the_first():
    """Counts what is executed, after the optimizations of the graph. The last block is not computed again."""
    model, counts = make("classifier"), []
    for again in (False, True):
        accelerate(model, Plan(recompute=again))
        nodes = executed(lambda: step_of(model)(batch_of("classifier")))
        counts.append([node.op for node in nodes].count("Softmax"))
    assert counts == [2, 3]

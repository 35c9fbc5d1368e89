"""One function for all blocks, and activations computed again: the same gradients, and indeed so."""

import numpy as np
import pytest
import tensorflow as tf
from executed_graphs import executed
from gradient_steps import batch_of, make, step_of
from small_models import LENGTH, small_config

from bert_tf2 import modeling
from bert_tf2.fast import blocks
from bert_tf2.fast.encoder import FastEncoder, Plan, accelerate

pytestmark = pytest.mark.compiled


def assert_equal(found, wanted) -> None:
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-6, atol=1e-6, err_msg=name)


def test_blocks_whose_variables_are_not_trained():
    """Their values must be their own too, not those of the block whose graph it is."""
    model = make("classifier", num_hidden_layers=3)
    model.bert.blocks[0].trainable = model.bert.blocks[2].trainable = False
    apart, shared = (
        step_of(accelerate(model, Plan(share_graph=shared)))(batch_of("classifier"))[1] for shared in (False, True)
    )
    assert any("layer_1/" in name for name in apart) and not any("layer_2/" in name for name in apart)
    assert_equal(shared, apart)


def test_the_graph_has_the_operations_of_one_block():
    model = accelerate(make("classifier", num_hidden_layers=4), Plan(share_graph=True))
    graph = step_of(model).get_concrete_function(batch_of("classifier")).graph.as_graph_def()
    functions = [node.attr["f"].func.name for node in graph.node]
    calls = [name for name in functions if "_block_forward_" in name or "_block_backward_" in name]
    assert len(calls) == 6 and len(set(calls)) == 2
    assert sum(node.op == "Softmax" for node in graph.node) == 1  # of the last block, which computes [CLS] alone


def test_five_bytes_of_each_score_are_kept():
    """The probability, and whether it is dropped, [B, N, F, F]; nothing of which the gradient needs the shape alone."""
    model = accelerate(make("span", "bfloat16"), Plan(share_graph=True))
    graph = step_of(model).get_concrete_function(batch_of("span")).graph
    (kept, _) = (op.outputs for op in graph.get_operations() if "_block_forward_" in str(op.node_def.attr["f"].func))
    scores = [tensor.dtype.name for tensor in kept if tensor.shape.as_list()[2:] == [LENGTH, LENGTH]]
    assert sorted(scores) == ["bool", "float32"]


def test_answers_do_not_depend_on_a_training_before():
    model = FastEncoder(bert := modeling.BertModel(small_config()), Plan(share_graph=True))
    ids = tf.constant(np.arange(12).reshape(2, 6))
    graph = tf.function(lambda ids: model(ids).pooled_output, autograph=False).get_concrete_function(ids).graph
    softmaxes = [op for op in graph.get_operations() if op.type == "Softmax"]
    assert len(softmaxes) == len(bert.blocks)


@pytest.mark.slow
def test_the_gradients_are_the_same_where_xla_compiles_the_step():
    model = make("span")
    wanted, found = (
        step_of(accelerate(model, Plan(recompute=again)), jit_compile=True)(batch_of("span"))[1]
        for again in (False, True)
    )
    assert_equal(found, wanted)


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

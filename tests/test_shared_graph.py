"""One function for all blocks: the same gradients and outputs, and one function indeed."""

import numpy as np
import pytest
import tensorflow as tf
from gradient_steps import batch_of, make, on_second_replica, step_of
from small_models import small_config

from bert_tf2 import modeling, shared_graph
from bert_tf2.training.loop import Trainer
from bert_tf2.training.options import TrainOptions

pytestmark = pytest.mark.compiled
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


def gradients_of(model, kind, **settings):
    return {name: g.numpy() for name, g in step_of(model, **settings)(batch_of(kind)).items()}


@pytest.mark.parametrize(
    ("kind", "precision", "unpad", "again", "parts"),
    [
        ("pretraining", "float32", "none", False, 1),
        ("pretraining", "float32", "groups", True, 1),
        ("classifier", "bfloat16", "packed", False, 1),
        pytest.param("classifier", "bfloat16", "groups", True, 2, marks=pytest.mark.slow),
        pytest.param("tagging", "float32", "packed", False, 2, marks=pytest.mark.slow),
        pytest.param("span", "float32", "none", True, 2, marks=pytest.mark.slow),
    ],
)
def test_the_gradients_are_the_same(kind, precision, unpad, again, parts):
    model, found = make(kind, precision, num_hidden_layers=3), []
    model.bert.unpad, model.bert.recompute = unpad, again
    for model.bert.share_graph in (False, True):
        found.append(gradients_of(model, kind, parts=parts))
    apart, shared = found
    assert apart.keys() == shared.keys()
    tolerance = CLOSE if precision == "float32" else {"rtol": 0.02, "atol": 0.02}
    for name, gradient in apart.items():
        np.testing.assert_allclose(shared[name], gradient, **tolerance, err_msg=name)
    for number in range(3):
        assert any(f"layer_{number}/" in name and np.abs(gradient).max() > 1e-3 for name, gradient in shared.items())


def test_blocks_whose_variables_are_not_trained():
    """Their values must be their own too, not those of the block whose graph it is."""
    model, found = make("classifier", num_hidden_layers=3), []
    model.bert.blocks[0].trainable = model.bert.blocks[2].trainable = False
    for model.bert.share_graph in (False, True):
        found.append(gradients_of(model, "classifier"))
    apart, shared = found
    assert apart.keys() == shared.keys()
    assert any("layer_1/" in name for name in apart) and not any("layer_2/" in name for name in apart)
    for name, gradient in apart.items():
        np.testing.assert_allclose(shared[name], gradient, **CLOSE, err_msg=name)


def test_a_block_of_another_kind_is_computed_as_it_is():
    class Doubled(modeling.TransformerBlock):
        def call(self, states, mask_scores, seeds=None, places=None):
            return 2.0 * super().call(states, mask_scores, seeds=seeds, places=places)

    model, found = make("classifier"), []
    block = Doubled(model.config, name="layer_1")
    block.set_weights(model.bert.blocks[1].get_weights())
    model.bert.blocks[1] = block
    for model.bert.share_graph in (False, True):
        found.append(gradients_of(model, "classifier"))
    for name, gradient in found[0].items():
        np.testing.assert_allclose(found[1][name], gradient, **CLOSE, err_msg=name)


@pytest.mark.slow
def test_two_replicas(two):
    model, found = make("classifier", strategy=two), []
    for model.bert.share_graph in (False, True):
        found.append(on_second_replica(model, two, "classifier"))
    for name, gradient in found[0].items():
        np.testing.assert_allclose(found[1][name], gradient, **CLOSE, err_msg=name)


def test_the_graph_has_the_operations_of_one_block():
    model = make("classifier", num_hidden_layers=4)
    model.bert.share_graph = True
    graph = step_of(model).get_concrete_function(batch_of("classifier")).graph.as_graph_def()
    functions = [node.attr["f"].func.name for node in graph.node]
    calls = [name for name in functions if "_block_forward_" in name or "_block_backward_" in name]
    assert len(calls) == 8 and len(set(calls)) == 2
    assert not any(node.op == "Softmax" for node in graph.node)


def test_what_the_gradient_needs_only_the_shape_of_is_not_kept():
    """The gradient of a sum asks for the shapes of both summands, if they are not known before."""

    @tf.function(autograph=False)
    def compute(x):
        forward, backward = shared_graph._forward_and_backward(lambda x: x + tf.tanh(x)[:, :1], [x], 1)
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
    model = modeling.BertModel(small_config())
    model.share_graph = True
    ids = tf.constant(np.arange(12).reshape(2, 6))
    graph = tf.function(lambda ids: model(ids).pooled_output, autograph=False).get_concrete_function(ids).graph
    softmaxes = [op for op in graph.get_operations() if op.type == "Softmax"]
    assert len(softmaxes) == len(model.blocks)


@pytest.mark.parametrize("xla", [False, True])
def test_a_training_on_a_cpu_shares_the_graph_unless_xla_compiles_it(xla, tmp_path):
    model = make("classifier")
    options = TrainOptions(
        output_dir=str(tmp_path), train_batch_size=4, learning_rate=1e-4, num_train_steps=1, num_warmup_steps=1, xla=xla
    )
    Trainer(model, tf.distribute.get_strategy(), options)
    assert model.bert.share_graph is not xla

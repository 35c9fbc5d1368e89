"""The kernels of a block: the tensors that are computed twice, the layers that are replaced."""

import numpy as np
import pytest
import tensorflow as tf
from executed_graphs import executed

from bert_tf2 import dropout, layers, placement
from bert_tf2.fast import kernels


def attention_and_gradients(query, key, value, upstream):
    mask_scores = tf.constant(np.where(np.arange(10) < 8, 0.0, layers.MASKED_SCORE)[None, None, None], tf.float32)
    with tf.GradientTape() as tape, dropout.dropout_from(dropout.DropoutStreams(tf.constant([3, 4]))):
        tape.watch([query, key, value])
        contexts = kernels.attend(query, key, tf.tile(mask_scores, [2, 1, 1, 1]), value, 0.2)
    return contexts, *tape.gradient(contexts, [query, key, value], upstream)


@pytest.mark.compiled
@pytest.mark.parametrize("shape", [[2, 3, 10, 8], [None] * 4])
def test_tensorflow_does_not_merge_the_weights_of_both_passes(shape):
    """Within one graph, it would compute them once, and keep them: what is executed has both."""
    specs = [tf.TensorSpec(shape, tf.float32)] * 4
    inputs = tf.unstack(tf.constant(np.random.default_rng(7).normal(size=[4, 2, 3, 10, 8]), tf.float32))
    found = []
    nodes = executed(lambda: found.extend(tf.function(attention_and_gradients, specs, autograph=False)(*inputs)))
    if shape[0]:  # XLA compiles them
        assert len([node for node in nodes if "_dropped" in node.attr["f"].func.name]) == 2
    else:
        assert len([node for node in nodes if node.op.startswith("Select")]) == 3  # and one of the upstream gradient
    for one, other in zip(found, attention_and_gradients(*inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.compiled
def test_the_operations_of_a_chain_are_within_a_compiled_function_where_shapes_are_known():
    _, norm = kernels.add_and_norm(layers.Dense(32, 32, 0.02), layers.AddAndNorm(32, rate=0.1, dtype="mixed_bfloat16"))

    def compute(x, branch):
        with dropout.dropout_from(dropout.DropoutStreams(tf.constant([3, 4]))):
            return kernels.biased_gelu(norm(x, branch), tf.ones([32]))

    x, branch = tf.unstack(tf.cast(np.random.default_rng(5).normal(size=[2, 8, 32]), tf.bfloat16))
    specs = (tf.TensorSpec([8, 32], tf.bfloat16), tf.TensorSpec([None, 32], tf.bfloat16))
    whole, plain = (tf.function(compute, [spec, spec], autograph=False) for spec in specs)
    operations = [{op.type for op in f.get_concrete_function().graph.get_operations()} for f in (whole, plain)]
    assert "Tanh" in operations[1] and "Tanh" not in operations[0]
    found, wanted = (tf.cast(f(x, branch), tf.float32) for f in (whole, plain))
    np.testing.assert_allclose(found, wanted, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_gpu_program_of_a_training_step_normalizes_within_the_rounding_of_16_bits(precision, monkeypatch):
    dense, norm = layers.Dense(64, 64, 0.02), layers.AddAndNorm(64, rate=0.1, dtype=f"mixed_{precision}")
    norm.gamma.assign(np.linspace(-1, 2, 64))
    _, call = kernels.add_and_norm(dense, norm)
    draw = np.random.default_rng(5).normal(size=[3, 64, 64, 64])
    x, branch, upstream = (tf.cast(one, precision) for one in (draw[0] + 3, draw[1], draw[2]))  # means are not 0

    @tf.function(autograph=False, jit_compile=True)
    def compute():
        with tf.GradientTape() as tape, dropout.dropout_from(dropout.DropoutStreams(tf.constant([3, 4]))):
            tape.watch([x, branch])
            outputs = call(x, branch)
        of = [x, branch, dense.bias.value, norm.gamma.value, norm.beta.value]
        return outputs, *tape.gradient(outputs, of, upstream)

    wanted = compute()
    monkeypatch.setattr(placement, "built_for", lambda: "GPU")
    compute = tf.function(compute.python_function, autograph=False, jit_compile=True)
    assert any(op.type == "XlaOptimizationBarrier" for op in compute.get_concrete_function().graph.get_operations())
    for one, other in zip(compute(), wanted, strict=True):
        one, other = (tf.cast(x, tf.float32).numpy() for x in (one, other))
        assert np.linalg.norm(one - other) < 0.01 * np.linalg.norm(other)


def test_layers_of_other_kinds_are_not_replaced():
    class Other(layers.AddAndNorm):
        pass

    plain, relu, gelu = (layers.Dense(4, 4, 0.02, activation=name) for name in ("linear", "relu", "gelu"))
    norm, other = layers.AddAndNorm(4), Other(4)
    assert kernels.dense(relu) is relu and kernels.dense(gelu) is not gelu
    assert kernels.add_and_norm(relu, norm) == (relu, norm) and kernels.add_and_norm(plain, other) == (plain, other)
    assert kernels.add_and_norm(plain, norm)[0] == plain.product

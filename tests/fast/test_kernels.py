"""The kernels are the functions of `layers` and `modeling`, with their gradients; and what is kept for these."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from executed_graphs import executed

from bert_tf2 import layers, modeling
from bert_tf2.fast import compiled, kernels, shared_graph

pytestmark = pytest.mark.compiled
SEED = tf.constant([3, 4])
DTYPES = [tf.float32, tf.bfloat16, tf.float16]
RATE = 0.2
SHAPE = [2, 3, 10, 8]  # B, N, F = T, H; F and H differ, so that a sum over the wrong axis would not fit


def inputs(dtype):
    """Scores, of which the last two are those of padding, values, and what comes from above."""
    rng = np.random.default_rng(7)
    scores = rng.normal(size=[2, 3, 10, 10]) + np.where(np.arange(10) < 8, 0.0, layers.MASKED_SCORE)
    value, upstream = (tf.cast(rng.normal(size=SHAPE), dtype) for _ in range(2))
    return tf.constant(scores, tf.float32), value, upstream


def average(scores, value, seed=SEED):
    with layers.dropout_from(layers.DropoutSeeds(seed)):
        return kernels.average_values(scores, value, RATE)


def by_hand(scores, value):
    """In float64, for automatic differentiation."""
    return tf.matmul(tf.nn.softmax(scores) * tf.cast(factor(scores, RATE), tf.float64), value)


def factor(x, rate):
    """What the dropout of `x` multiplies each value by."""
    with layers.dropout_from(layers.DropoutSeeds(SEED)):
        return layers.dropout(tf.ones(tf.shape(x)), rate)


def with_gradients(function, scores, value, upstream):
    with tf.GradientTape() as tape:
        tape.watch([scores, value])
        average = function(scores, value)
    return average, *tape.gradient(average, [scores, value], upstream)


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_it_is_the_average_with_dropout_and_so_is_its_gradient(dtype, in_graph):
    scores, value, upstream = inputs(dtype)
    exact = with_gradients(by_hand, *(tf.cast(x, tf.float64) for x in (scores, value, upstream)))
    compute = functools.partial(with_gradients, average)
    if in_graph:  # of unknown sizes
        specs = [tf.TensorSpec([None] * 4, x.dtype) for x in (scores, value, upstream)]
        compute = tf.function(lambda *tensors: with_gradients(average, *tensors), specs, autograph=False)
    found = compute(scores, value, upstream)
    tolerance = {tf.float32: 2e-6, tf.bfloat16: 0.02, tf.float16: 0.003}[dtype]
    for one, other, kind in zip(found, exact, (dtype, tf.float32, dtype), strict=True):
        assert one.dtype == kind
        np.testing.assert_allclose(tf.cast(one, tf.float64), other, atol=tolerance * np.abs(other).max())


def test_five_bytes_of_each_score_are_kept():
    """Where forward and backward pass are separate functions, as in trainings on CPUs."""
    scores, value, _ = inputs(tf.bfloat16)

    @tf.function(autograph=False)
    def sizes_of_kept(value, scores):
        def function(value, scores, seed):  # the values first: the function takes the result to be of their size
            return average(scores, value, seed)

        tensors = [value, scores, tf.identity(SEED)]
        kept = shared_graph._forward_and_backward(function, tensors, 2)[0](tensors)[1]
        return [tf.constant(f"{x.dtype.name} {x.shape.num_elements()}") for x in kept if x.shape.rank == 4]

    of_scores, of_values = scores.shape.num_elements(), value.shape.num_elements()
    expected = [f"bfloat16 {of_values}"] * 2 + [f"bool {of_scores}", f"float32 {of_scores}"]
    assert sorted(size.numpy().decode() for size in sizes_of_kept(value, scores)) == expected


def test_tensorflow_does_not_merge_the_weights_of_both_passes():
    """Within one graph, it would compute them once, and keep them: what is executed has both."""
    step = tf.function(lambda *tensors: with_gradients(average, *tensors), autograph=False)
    nodes = executed(lambda: step(*inputs(tf.float32)))
    of_masks = [node for node in nodes if node.op == "Cast" and node.attr["SrcT"].type == tf.bool.as_datatype_enum]
    assert len(of_masks) == 2


def norm_by_hand(x, branch, bias, mask, gamma, beta, epsilon):
    """The formulas, for automatic differentiation in float64."""
    wide = x + (branch + bias) * mask
    centered = wide - tf.reduce_mean(wide, -1, keepdims=True)
    variance = tf.reduce_mean(centered**2, -1, keepdims=True)
    return centered / tf.sqrt(variance + epsilon) * gamma + beta


@pytest.mark.parametrize("with_xla", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("rate", [None, 0.3])
@pytest.mark.parametrize("shape", [[6, 16], [2, 3, 16]])
def test_layer_norm_of_a_sum_and_its_gradient(with_xla, rate, shape, monkeypatch):
    rng = np.random.default_rng(4)
    x, branch, upstream = (tf.constant(rng.normal(size=shape), tf.float32) for _ in range(3))
    layer = layers.AddAndNorm(16, 1e-3, rate)
    layer.gamma.assign(rng.normal(1.0, 0.3, 16))
    layer.beta.assign(rng.normal(0.0, 0.3, 16))
    dense = layers.Dense(16, 16, 0.02)
    dense.bias.assign(rng.normal(size=16))
    used = []
    monkeypatch.setattr(compiled, "can_compile", lambda: used.append(1) or with_xla)

    @tf.function
    def found():
        watched = [x, branch, dense.bias.value, layer.gamma.value, layer.beta.value]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            with layers.dropout_from(layers.DropoutSeeds(SEED)):
                _, norm = kernels.add_and_norm(dense, layer)
                y = norm(x, branch)
        return y, tape.gradient(y, watched, upstream)

    y, gradients = found()
    assert used
    mask = factor(x, rate)
    inputs = (x, branch, dense.bias.value, layer.gamma.value, layer.beta.value)
    exact = [tf.cast(value, tf.float64) for value in inputs]
    with tf.GradientTape() as tape:
        tape.watch(exact)
        expected = norm_by_hand(*exact[:3], tf.cast(mask, tf.float64), *exact[3:], 1e-3)
    np.testing.assert_allclose(y, expected, atol=2e-6)
    with layers.dropout_from(layers.DropoutSeeds(SEED)):
        np.testing.assert_allclose(layer(x, branch + dense.bias), expected, atol=2e-6)
    for one, other in zip(gradients, tape.gradient(expected, exact, tf.cast(upstream, tf.float64)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_chains_are_the_same_compiled_and_not(dtype):
    rng = np.random.default_rng(5)
    x, branch, upstream = (tf.cast(rng.normal(size=[8, 32]), dtype) for _ in range(3))
    policy = "float32" if dtype == tf.float32 else f"mixed_{dtype.name}"
    _, norm = kernels.add_and_norm(layers.Dense(32, 32, 0.02), layers.AddAndNorm(32, rate=0.1, dtype=policy))
    bias = tf.constant(rng.normal(size=32), tf.float32)

    def compute(x, branch):
        with tf.GradientTape() as tape:
            tape.watch([x, branch])
            with layers.dropout_from(layers.DropoutSeeds(SEED)):
                y = kernels.biased_gelu(norm(x, branch), bias)
        return y, *tape.gradient(y, [x, branch], upstream)

    fixed, unknown = tf.TensorSpec([8, 32], dtype), tf.TensorSpec([None, 32], dtype)
    whole, plain = (tf.function(compute, input_signature=[spec, spec]) for spec in (fixed, unknown))
    operations = [{op.type for op in f.get_concrete_function().graph.get_operations()} for f in (whole, plain)]
    assert "Tanh" in operations[1] and "Tanh" not in operations[0]  # it is within the compiled function
    for one, other in zip(whole(x, branch), plain(x, branch), strict=True):
        assert one.dtype == dtype
        tolerance = 1e-5 if dtype == tf.float32 else 0.03
        np.testing.assert_allclose(tf.cast(one, tf.float32), tf.cast(other, tf.float32), rtol=tolerance, atol=tolerance)


def test_what_is_replaced_and_what_is_not():
    dense = layers.Dense(4, 4, 0.02, activation="relu")
    assert kernels.dense(dense) is dense and kernels.dense(layers.Dense(4, 4, 0.02, activation="gelu")) is not dense

    class Other(layers.AddAndNorm):
        pass

    assert kernels.add_and_norm(dense, norm := layers.AddAndNorm(4)) == (dense, norm)  # it has an activation
    plain = layers.Dense(4, 4, 0.02)
    assert kernels.add_and_norm(plain, other := Other(4)) == (plain, other)
    assert kernels.add_and_norm(plain, norm)[0] == plain.product
    scores, value, _ = inputs(tf.float32)
    np.testing.assert_array_equal(
        kernels.average_values(scores, value, RATE), modeling.average_values(scores, value, RATE)
    )


def test_gelu_has_the_gradient_of_the_plain_one():
    bias = tf.constant(0.25, tf.float64)[tf.newaxis]
    x, upstream = (tf.constant(v, tf.float64)[:, tf.newaxis] for v in ([-1.5, 0.2, 2.0, 7.0], [2.0, -3.0, 0.5, 1.0]))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, bias])
        ours, plain = kernels.biased_gelu(x, bias), layers.gelu(x + bias)
    np.testing.assert_allclose(ours, plain, rtol=1e-12)
    found, wanted = (tape.gradient(y, [x, bias], output_gradients=upstream) for y in (ours, plain))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)

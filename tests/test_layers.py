"""Dropout, LayerNorm with its gradient, and the products of the output layers, at every precision."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf2 import layers

pytestmark = pytest.mark.compiled
SEED = tf.constant([3, 4])
DTYPES = [tf.float32, tf.bfloat16, tf.float16]


@pytest.mark.parametrize(
    ("dtype", "rate"), [*((dtype, rate) for dtype in DTYPES for rate in (0.1, 0.5)), (tf.float32, 0.003)]
)
def test_dropout_has_the_rate_and_keeps_the_mean(dtype, rate):
    values = np.random.default_rng(1).normal(1.0, 0.2, [1000, 1001])  # an odd number of values
    x = tf.cast(values, dtype)
    dropped = layers.dropout(x, rate, layers.DropoutSeeds(SEED))
    assert dropped.dtype == dtype and dropped.shape == x.shape
    found = tf.cast(dropped, tf.float64).numpy()
    deviation = np.sqrt(rate * (1 - rate) / x.numpy().size)
    assert abs((found == 0).mean() - rate) < 5 * deviation + 1 / 65536
    mean = tf.cast(x, tf.float64).numpy().mean()
    assert abs(found.mean() / mean - 1) < 6 * deviation / (1 - rate) + 1e-4
    kept = found != 0
    np.testing.assert_allclose(found[kept], tf.cast(x, tf.float64).numpy()[kept] / (1 - rate), rtol=5e-3)


def test_every_place_is_dropped_alike_and_the_gradient_has_the_same_mask():
    counts = np.zeros([50, 7])
    for number in range(400):
        x = tf.ones([50, 7])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layers.dropout(x, 0.3, layers.DropoutSeeds(tf.constant([number, 0])))
        np.testing.assert_array_equal(tape.gradient(y, x), y)  # of ones, the scaled mask itself
        counts += y.numpy() == 0
    assert abs(counts / 400 - 0.3).max() < 5 * np.sqrt(0.3 * 0.7 / 400)


def test_dropout_of_other_shapes_inside_a_graph():
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def drop(x):
        return layers.dropout(x, 0.5, layers.DropoutSeeds(SEED))

    for shape in ([], [1], [3, 0], [2, 3, 5]):
        assert drop(tf.ones(shape)).shape == shape


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_class_scores_are_those_of_float32(dtype):
    rng = np.random.default_rng(2)
    states = tf.cast(rng.normal(size=[40, 64]), dtype)
    weights = tf.constant(rng.normal(size=[9, 64]), tf.float32)
    upstream = tf.constant(rng.normal(size=[40, 9]), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch([states, weights])
        logits = layers.class_scores(states, weights)
    of_states, of_weights = tape.gradient(logits, [states, weights], upstream)
    exact = tf.cast(states, tf.float64).numpy()
    np.testing.assert_allclose(logits, exact @ weights.numpy().T, rtol=1e-5, atol=2e-5)
    assert (logits.dtype, of_states.dtype, of_weights.dtype) == (tf.float32, dtype, tf.float32)
    coarse = {"rtol": 1e-5, "atol": 2e-5} if dtype == tf.float32 else {"rtol": 0.02, "atol": 0.1}
    np.testing.assert_allclose(tf.cast(of_states, tf.float32), upstream @ weights, **coarse)
    np.testing.assert_allclose(of_weights, upstream.numpy().T @ exact, **coarse)


def norm_by_hand(x, branch, mask, gamma, beta, epsilon):
    """The formulas, for automatic differentiation in float64."""
    wide = x + branch * mask
    centred = wide - tf.reduce_mean(wide, -1, keepdims=True)
    variance = tf.reduce_mean(centred**2, -1, keepdims=True)
    return centred / tf.sqrt(variance + epsilon) * gamma + beta


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("rate", [None, 0.3])
@pytest.mark.parametrize("shape", [[6, 16], [2, 3, 16]])
def test_layer_norm_of_a_sum_and_its_gradient(compiled, rate, shape, monkeypatch):
    rng = np.random.default_rng(4)
    x, branch, upstream = (tf.constant(rng.normal(size=shape), tf.float32) for _ in range(3))
    layer = layers.LayerNorm(16, 1e-3)
    layer.gamma.assign(rng.normal(1.0, 0.3, 16))
    layer.beta.assign(rng.normal(0.0, 0.3, 16))
    used = []
    monkeypatch.setattr(layers.fusion, "can_compile", lambda: used.append(1) or compiled)

    @tf.function
    def found():
        watched = [x, branch, layer.gamma.value, layer.beta.value]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            y = layer(x, branch, rate=rate, seeds=layers.DropoutSeeds(SEED))
        return y, tape.gradient(y, watched, upstream)

    y, gradients = found()
    assert used
    mask = layers.dropout(tf.ones(shape), rate, layers.DropoutSeeds(SEED))
    exact = [tf.cast(value, tf.float64) for value in (x, branch, layer.gamma.value, layer.beta.value)]
    with tf.GradientTape() as tape:
        tape.watch(exact)
        expected = norm_by_hand(*exact[:2], tf.cast(mask, tf.float64), *exact[2:], 1e-3)
    np.testing.assert_allclose(y, expected, atol=2e-6)
    for one, other in zip(gradients, tape.gradient(expected, exact, tf.cast(upstream, tf.float64)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_chains_are_the_same_compiled_and_not(dtype):
    rng = np.random.default_rng(5)
    x, branch, upstream = (tf.cast(rng.normal(size=[8, 32]), dtype) for _ in range(3))
    layer = layers.LayerNorm(32, dtype="float32" if dtype == tf.float32 else f"mixed_{dtype.name}")

    def compute(x, branch):
        with tf.GradientTape() as tape:
            tape.watch([x, branch])
            y = layers.gelu(layer(x, branch, rate=0.1, seeds=layers.DropoutSeeds(SEED)))
        return y, *tape.gradient(y, [x, branch], upstream)

    fixed, unknown = tf.TensorSpec([8, 32], dtype), tf.TensorSpec([None, 32], dtype)
    compiled, plain = (tf.function(compute, input_signature=[spec, spec]) for spec in (fixed, unknown))
    operations = [{op.type for op in f.get_concrete_function().graph.get_operations()} for f in (compiled, plain)]
    assert "Tanh" in operations[1] and "Tanh" not in operations[0]  # it is within the compiled function
    for one, other in zip(compiled(x, branch), plain(x, branch), strict=True):
        assert one.dtype == dtype
        tolerance = 1e-5 if dtype == tf.float32 else 0.03
        np.testing.assert_allclose(tf.cast(one, tf.float32), tf.cast(other, tf.float32), rtol=tolerance, atol=tolerance)

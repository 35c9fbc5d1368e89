"""The kernels are the functions of `layers` and `modeling`, with their gradients; and what is kept for these."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf
from executed_graphs import executed
from small_models import tiny_config

from bert_tf2 import layers, modeling
from bert_tf2.fast import kernels

SEED = tf.constant([3, 4])
DTYPES = [tf.float32, tf.bfloat16, tf.float16]
QUICK = [(tf.float32, "eager"), (tf.float32, "compiled"), (tf.bfloat16, "unknown sizes")]
RATE = 0.2
SHAPE = [2, 3, 10, 8]  # B, N, F = T, H; F and H differ, so that a sum over the wrong axis would not fit
# The last two positions are padding.
MASK_SCORES = np.where(np.arange(10) < 8, 0.0, layers.MASKED_SCORE).astype(np.float32)[None, None, None]


def inputs(dtype):
    """Queries, keys, values, and what comes from above."""
    rng = np.random.default_rng(7)
    query, *others = (rng.normal(size=SHAPE) for _ in range(4))
    return tuple(tf.cast(x, dtype) for x in (query / math.sqrt(SHAPE[-1]), *others))


def attend(query, key, value, seed=SEED):
    with layers.dropout_from(layers.DropoutSeeds(seed)):
        return kernels.attend(query, key, tf.tile(MASK_SCORES, [2, 1, 1, 1]), value, RATE)


def by_hand(query, key, value):
    """In float64, for automatic differentiation."""
    scores = tf.matmul(query, key, transpose_b=True) + tf.cast(MASK_SCORES, tf.float64)
    return tf.matmul(tf.nn.softmax(scores) * tf.cast(factor(scores, RATE), tf.float64), value)


def factor(x, rate):
    """What the dropout of `x` multiplies each value by."""
    with layers.dropout_from(layers.DropoutSeeds(SEED)):
        return layers.dropout(tf.ones(tf.shape(x)), rate)


def with_gradients(function, *inputs_and_upstream):
    *inputs, upstream = inputs_and_upstream
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        contexts = function(*inputs)
    return contexts, *tape.gradient(contexts, inputs, upstream)


def of_unknown_sizes(function, dtype):
    return tf.function(function, [tf.TensorSpec([None] * 4, dtype)] * 4, autograph=False)


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("dtype", "way"),
    [
        pytest.param(dtype, way, marks=() if (dtype, way) in QUICK else pytest.mark.slow)
        for dtype in DTYPES
        for way in ("eager", "compiled", "unknown sizes")
    ],
)
def test_it_is_attention_with_dropout_and_so_is_its_gradient(dtype, way):
    exact = with_gradients(by_hand, *(tf.cast(x, tf.float64) for x in inputs(dtype)))
    compute = functools.partial(with_gradients, attend)
    if way != "eager":
        compute = tf.function(compute, autograph=False) if way == "compiled" else of_unknown_sizes(compute, dtype)
    tolerance = {tf.float32: 2e-6, tf.bfloat16: 0.02, tf.float16: 0.003}[dtype]
    for one, other in zip(compute(*inputs(dtype)), exact, strict=True):
        assert one.dtype == dtype
        np.testing.assert_allclose(tf.cast(one, tf.float64), other, atol=tolerance * np.abs(other).max())


@pytest.mark.compiled
def test_tensorflow_does_not_merge_the_weights_of_both_passes():
    """Within one graph, it would compute them once, and keep them: what is executed has both."""
    step = functools.partial(with_gradients, attend)
    nodes = executed(lambda: tf.function(step, autograph=False)(*inputs(tf.float32)))
    assert len([node for node in nodes if "_dropped" in node.attr["f"].func.name]) == 2
    nodes = executed(lambda: of_unknown_sizes(step, tf.float32)(*inputs(tf.float32)))
    assert len([node for node in nodes if node.op.startswith("Select")]) == 3  # and one of what comes from above


@pytest.mark.parametrize(
    ("shape", "rate"), [([6, 16], None), pytest.param([2, 3, 16], 0.3, marks=pytest.mark.compiled)]
)
def test_layer_norm_of_a_sum_and_its_gradient(shape, rate):
    """Against the formulas and automatic differentiation in float64."""
    rng = np.random.default_rng(4)
    x, branch, upstream = (tf.constant(rng.normal(size=shape), tf.float32) for _ in range(3))
    layer, dense = layers.AddAndNorm(16, 1e-3, rate), layers.Dense(16, 16, 0.02)
    layer.gamma.assign(rng.normal(1.0, 0.3, 16))
    layer.beta.assign(rng.normal(0.0, 0.3, 16))
    dense.bias.assign(rng.normal(size=16))
    inputs = [x, branch, dense.bias.value, layer.gamma.value, layer.beta.value]

    @tf.function(autograph=False)
    def found():
        with tf.GradientTape() as tape, layers.dropout_from(layers.DropoutSeeds(SEED)):
            tape.watch(inputs)
            y = kernels.add_and_norm(dense, layer)[1](x, branch)
        return y, tape.gradient(y, inputs, upstream)

    y, gradients = found()
    exact = [tf.cast(value, tf.float64) for value in inputs]
    with tf.GradientTape() as tape:
        tape.watch(exact)
        wide = exact[0] + (exact[1] + exact[2]) * tf.cast(factor(x, rate), tf.float64)
        centered = wide - tf.reduce_mean(wide, -1, keepdims=True)
        deviation = tf.sqrt(tf.reduce_mean(centered**2, -1, keepdims=True) + 1e-3)
        expected = centered / deviation * exact[3] + exact[4]
    np.testing.assert_allclose(y, expected, atol=2e-6)
    with layers.dropout_from(layers.DropoutSeeds(SEED)):
        np.testing.assert_allclose(layer(x, branch + dense.bias), expected, atol=2e-6)
    for one, other in zip(gradients, tape.gradient(expected, exact, tf.cast(upstream, tf.float64)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.compiled
@pytest.mark.parametrize(
    "dtype", [tf.bfloat16, *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in (tf.float32, tf.float16))]
)
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
    whole, plain = (tf.function(compute, [spec, spec], autograph=False) for spec in (fixed, unknown))
    operations = [{op.type for op in f.get_concrete_function().graph.get_operations()} for f in (whole, plain)]
    assert "Tanh" in operations[1] and "Tanh" not in operations[0]  # it is within the compiled function
    for one, other in zip(whole(x, branch), plain(x, branch), strict=True):
        assert one.dtype == dtype
        tolerance = 1e-5 if dtype == tf.float32 else 0.03
        np.testing.assert_allclose(tf.cast(one, tf.float32), tf.cast(other, tf.float32), rtol=tolerance, atol=tolerance)


def test_layers_of_other_kinds_are_not_replaced():
    class Other(layers.AddAndNorm):
        pass

    plain, relu, gelu = (layers.Dense(4, 4, 0.02, activation=name) for name in ("linear", "relu", "gelu"))
    norm, other = layers.AddAndNorm(4), Other(4)
    assert kernels.dense(relu) is relu and kernels.dense(gelu) is not gelu
    assert kernels.add_and_norm(relu, norm) == (relu, norm) and kernels.add_and_norm(plain, other) == (plain, other)
    assert kernels.add_and_norm(plain, norm)[0] == plain.product


def test_only_a_tpu_has_three_narrow_products(monkeypatch):
    attention = modeling.SelfAttention(tiny_config(), dtype="mixed_bfloat16")
    states = tf.cast(np.random.default_rng(1).normal(size=[2, 3, attention.config.hidden_size]), tf.bfloat16)
    attention.query_key_value(states)
    (wide,) = kernels.query_key_value(attention, states)
    monkeypatch.setattr(tf.distribute, "TPUStrategy", tf.distribute.OneDeviceStrategy)
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        narrow = kernels.query_key_value(attention, states)
    assert len(narrow) == 3
    np.testing.assert_allclose(tf.cast(wide, tf.float32), tf.cast(tf.concat(narrow, -1), tf.float32), atol=0.02)

"""Dropout, and the products of the output layers, at every precision."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf2 import layers

SEED = tf.constant([3, 4])
DTYPES = [tf.float32, tf.bfloat16, tf.float16]


def drop(x, rate, seed=SEED):
    with layers.dropout_from(layers.DropoutSeeds(seed)):
        return layers.dropout(x, rate)


@pytest.mark.parametrize("seed", [[3, 4], [-5, 3], [2**40 + 17, -(2**35)]])
def test_xla_draws_the_same_numbers_of_every_seed(seed):
    seed = tf.constant(seed, tf.int64)

    def draw(seed):
        inner = layers.fold_in(seed, tf.constant(7))
        return layers.random_bits([1001], inner, tf.uint32, 0), layers.random_bits([1001], inner, tf.uint32, 5)

    (one, other), compiled = (tf.function(draw, jit_compile=jit_compile)(seed) for jit_compile in (False, True))
    np.testing.assert_array_equal([one, other], compiled)
    assert not np.isin(one, other).any()


@pytest.mark.parametrize(
    ("dtype", "rate"), [*((dtype, rate) for dtype in DTYPES for rate in (0.1, 0.5)), (tf.float32, 0.003)]
)
def test_dropout_has_the_rate_and_keeps_the_mean(dtype, rate):
    values = np.random.default_rng(1).normal(1.0, 0.2, [1000, 1001])  # an odd number of values
    x = tf.cast(values, dtype)
    dropped = drop(x, rate)
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
            y = drop(x, 0.3, tf.constant([number, 0]))
        np.testing.assert_array_equal(tape.gradient(y, x), y)  # of ones, the scaled mask itself
        counts += y.numpy() == 0
    assert abs(counts / 400 - 0.3).max() < 5 * np.sqrt(0.3 * 0.7 / 400)


def test_the_two_numbers_of_a_word_are_independent_and_every_shape_has_its_own(monkeypatch):
    kept = drop(tf.ones([2001, 64]), 0.5).numpy() > 0
    assert 0.49 < (kept[:1000] == kept[1001:]).mean() < 0.51
    for shape in ([], [7], [3, 5], [2, 3, 5], [0, 5]):
        assert drop(tf.ones(shape), 0.5).shape == shape
    monkeypatch.setattr(layers, "built_for", lambda: "GPU")
    np.testing.assert_array_equal(drop(tf.ones([2001, 64]), 0.5) > 0, kept)
    unknown = tf.function(lambda x: drop(x, 0.5), input_signature=[tf.TensorSpec([None, 64])])
    np.testing.assert_array_equal(unknown(tf.ones([2001, 64])) > 0, kept)


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

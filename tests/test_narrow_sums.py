"""Gradients that are sums over many tokens, in narrow types, against float64: of 16,384 tokens, within 0.1 %."""

import numpy as np
import pytest
import tensorflow as tf
from small_models import small_config

from bert_tf2 import layers, modeling
from bert_tf2.fast import kernels

TOKENS, WIDTH = 16_384, 8
DTYPES = ["float32", "mixed_bfloat16", "mixed_float16"]


def upstream(dtype):
    """Numbers of one sign, whose sum in a narrow type would stop growing."""
    return tf.cast(np.random.default_rng(1).uniform(0.5, 1.5, [TOKENS, WIDTH]), dtype)


def gradients(function, x, variables, above):
    with tf.GradientTape() as tape:
        y = function(x)
    return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(y, variables, tf.cast(above, y.dtype))]


def check(found, wanted):
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, wanted, rtol=1e-3)


def exact(x):
    return tf.cast(x, tf.float64).numpy()


@pytest.mark.parametrize("policy", DTYPES)
def test_the_bias_of_a_dense_layer(policy):
    layer = layers.Dense(4, WIDTH, 0.02, dtype=policy)
    above = upstream(layer.compute_dtype)
    x = tf.cast(np.random.default_rng(2).normal(size=[TOKENS, 4]), layer.compute_dtype)
    (of_bias,) = gradients(layer, x, [layer.bias.value], above)
    check(of_bias, exact(above).sum(0))
    with tf.GradientTape() as tape:  # and what goes on to the rows is as it was
        tape.watch(x)
        y = layer(x)
    wanted = tf.matmul(above, tf.cast(layer.kernel.value, above.dtype), transpose_b=True)
    np.testing.assert_array_equal(tape.gradient(y, x, above), wanted)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("policy", DTYPES)
def test_gamma_and_beta(policy, fast):
    layer = layers.LayerNorm(WIDTH, dtype=policy)
    x = tf.cast(np.random.default_rng(3).normal(size=[TOKENS, WIDTH]), layer.compute_dtype)
    wide = exact(x)
    normal = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-12)
    above = tf.cast(exact(upstream(layer.compute_dtype)) * np.sign(normal), layer.compute_dtype)
    of_gamma, of_beta = gradients(
        kernels.norm(layer) if fast else layer, x, [layer.gamma.value, layer.beta.value], above
    )
    check(of_gamma, (exact(above) * normal).sum(0))
    np.testing.assert_allclose(of_beta, exact(above).sum(0), atol=1e-3 * np.abs(exact(above)).sum(0).max())


@pytest.mark.parametrize("policy", DTYPES)
def test_the_tables_of_embeddings(policy):
    embeddings = modeling.Embeddings(small_config(hidden_size=WIDTH), dtype=policy)
    ids, positions = tf.ones([TOKENS], tf.int32), tf.fill([TOKENS], 3)
    tables = [embeddings.word_embeddings, embeddings.token_type_embeddings, embeddings.position_embeddings]
    above = upstream(embeddings.compute_dtype)
    found = gradients(
        lambda _: embeddings.add_up(ids, tf.zeros_like(ids), positions), None, [table.value for table in tables], above
    )
    for gradient, row in zip(found, (1, 0, 3), strict=True):
        check(gradient[row], exact(above).sum(0))


@pytest.mark.parametrize("with_xla", [False, True])
@pytest.mark.parametrize("policy", DTYPES)
def test_the_biases_that_are_added_by_the_next_loop(policy, with_xla, monkeypatch):
    """Each gets the sum over the gradients of its rows; see fast.kernels."""
    monkeypatch.setattr("bert_tf2.fast.compiled.can_compile", lambda: with_xla)
    norm = layers.AddAndNorm(WIDTH, dtype=policy)
    add = kernels.add_and_norm(dense := layers.Dense(WIDTH, WIDTH, 0.02, dtype=policy), norm)[1]
    above, bias = upstream(norm.compute_dtype), tf.constant(0.1, shape=[WIDTH])
    x = tf.cast(np.random.default_rng(5).normal(size=[TOKENS, WIDTH]), norm.compute_dtype)

    @tf.function
    def found(x, above):
        ways = (
            (kernels._add_bias, bias),
            (kernels.biased_gelu, bias),
            (lambda x, _: add(tf.ones_like(x), x), dense.bias.value),
        )
        results = []
        for compute, added in ways:
            with tf.GradientTape() as tape:
                tape.watch([x, added])
                y = compute(x, added)
            results.append(tape.gradient(y, [x, added], above))
        return results

    for of_rows, of_bias in found(x, above):
        assert of_bias.dtype == tf.float32
        rows = exact(of_rows)
        np.testing.assert_allclose(of_bias, rows.sum(0), atol=1e-3 * np.abs(rows).sum(0).max())

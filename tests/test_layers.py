"""The building blocks: activations, LayerNorm, dropout, output layers, and gradients that are sums over many tokens."""

from __future__ import annotations

import numpy as np
import pytest
import reference_math
import tensorflow as tf
from small_models import small_config

from bert_tf2 import dropout, layers, modeling, placement
from bert_tf2.config import ACTIVATIONS
from bert_tf2.fast import kernels

SEED = tf.constant([3, 4])


def exact(x) -> np.ndarray:
    return tf.cast(x, tf.float64).numpy()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_numpy(name):
    x = np.linspace(-6, 6, 241)
    activation, wanted = modeling.get_activation(name.upper()), reference_math.ACTIVATIONS[name](x)
    for dtype, near in ((tf.float64, 1e-7 if name == "gelu_erf" else 1e-12), (tf.float32, 1e-6), (tf.bfloat16, 0.02)):
        found = activation(tf.constant(x, dtype))
        assert found.dtype == dtype
        np.testing.assert_allclose(exact(found), wanted, atol=near, rtol=near)
    assert modeling.get_activation(tf.nn.relu) is tf.nn.relu and modeling.get_activation(None) is None
    with pytest.raises(ValueError, match="swish"):
        modeling.get_activation("swish")


def test_layer_norm_has_the_epsilon_of_the_configuration():
    layer = modeling.LayerNorm(2, epsilon=0.75)
    np.testing.assert_allclose(layer(tf.constant([[1.0, 2.0]])), [[-0.5, 0.5]])  # 0.5 / sqrt(0.25 + 0.75)
    model = modeling.BertModel(small_config(layer_norm_eps=0.1))
    norms = [model.embeddings.layer_norm, model.blocks[0].attention_norm, model.blocks[1].output_norm]
    assert [norm.epsilon for norm in norms] == [0.1] * 3


def test_the_reference_s_helpers_for_shapes():
    x = tf.reshape(tf.range(24), [2, 3, 4])
    sizes = tf.function(lambda x: modeling.get_shape_list(x)[0], input_signature=[tf.TensorSpec([None, 3])])
    assert sizes(tf.zeros([5, 3])) == 5
    rows = modeling.reshape_to_matrix(x)
    assert rows.shape == (6, 4) and tf.reduce_all(modeling.reshape_to_matrix(rows) == rows)
    assert tf.reduce_all(modeling.reshape_from_matrix(rows, modeling.get_shape_list(x, [2, 3])) == x)
    assert modeling.reshape_from_matrix(rows[:, :2], [2, 3, 4]).shape == (2, 3, 2)
    modeling.assert_rank(x, 3)
    with pytest.raises(ValueError, match=r"states .*rank 3.* 1 or 2"):
        modeling.get_shape_list(x, [1, 2], name="states")
    with pytest.raises(ValueError, match="rows"):
        modeling.reshape_to_matrix(x[0, 0])


# Dropout


def drop(x, rate, seed=SEED):
    with dropout.dropout_from(dropout.DropoutStreams(seed)):
        return dropout.dropout(x, rate)


def test_xla_draws_the_same_numbers_of_every_seed():
    def draw(seed):
        inner = dropout.fold_in(seed, tf.constant(7))
        return dropout.random_bits([1001], inner, tf.uint32, 0), dropout.random_bits([1001], inner, tf.uint32, 5)

    row = [tf.TensorSpec([2], tf.int64)]
    plain, compiled = (tf.function(draw, row, jit_compile=jit_compile) for jit_compile in (False, True))
    for seed in ([3, 4], [2**40 + 17, -(2**35)]):
        one, other = plain(tf.constant(seed, tf.int64))
        np.testing.assert_array_equal([one, other], compiled(tf.constant(seed, tf.int64)))
        assert not np.isin(one, other).any()


@pytest.mark.parametrize(
    ("dtype", "rate"), [(tf.float32, 0.1), (tf.float32, 0.003), (tf.bfloat16, 0.1), (tf.float16, 0.5)]
)
def test_dropout_has_the_rate_and_keeps_the_mean_and_the_gradient_has_its_mask(dtype, rate):
    x = tf.cast(np.random.default_rng(1).normal(1.0, 0.2, [1000, 1001]), dtype)  # an odd number of values
    with tf.GradientTape() as tape:
        tape.watch(x)
        dropped = drop(x, rate)
    assert dropped.dtype == dtype and dropped.shape == x.shape
    found, given = exact(dropped), exact(x)
    np.testing.assert_array_equal(exact(tape.gradient(dropped, x)) == 0, found == 0)
    deviation = np.sqrt(rate * (1 - rate) / given.size)
    assert abs((found == 0).mean() - rate) < 5 * deviation + 1 / 65536
    assert abs(found.mean() / given.mean() - 1) < 6 * deviation / (1 - rate) + 1e-4
    np.testing.assert_allclose(found[found != 0], given[found != 0] / (1 - rate), rtol=5e-3)
    assert dropout.dropout(x, rate) is x and drop(x, 0.0) is x and drop(x, None) is x


def test_the_numbers_of_a_step_are_independent_and_the_same_for_every_device_and_shape(monkeypatch):
    with dropout.dropout_from(dropout.DropoutStreams(SEED)):
        first, second = (dropout.dropout(tf.ones([1000]), 0.5).numpy() > 0 for _ in range(2))
    assert 0.4 < (first == second).mean() < 0.6
    of_seed = tf.function(lambda number: drop(tf.ones([350]), 0.3, tf.stack([number, 0])), autograph=False)
    of_seeds = [of_seed(number).numpy() == 0 for number in tf.range(400)]
    assert abs(np.mean(of_seeds, 0) - 0.3).max() < 5 * np.sqrt(0.3 * 0.7 / 400)  # every place is dropped alike
    kept = drop(tf.ones([2001, 64]), 0.5).numpy() > 0
    assert 0.49 < (kept[:1000] == kept[1001:]).mean() < 0.51  # the two halves of a random word
    unknown = tf.function(lambda x: drop(x, 0.5), [tf.TensorSpec([None, 64])], autograph=False)
    np.testing.assert_array_equal(unknown(tf.ones([2001, 64])) > 0, kept)
    assert all(drop(tf.ones(shape), 0.5).shape == shape for shape in ([], [3, 5], [0, 5]))
    of_six, of_scores = (drop(tf.ones(shape), 0.5).numpy() > 0 for shape in ([2001, 6], [2, 3, 5, 12]))
    monkeypatch.setattr(placement, "built_for", lambda: "GPU")  # other ways to the same masks
    for call in (drop, tf.function(drop, jit_compile=True, autograph=False)):
        np.testing.assert_array_equal(call(tf.ones([2001, 64]), 0.5) > 0, kept)
        np.testing.assert_array_equal(call(tf.ones([2001, 6]), 0.5) > 0, of_six)
        np.testing.assert_array_equal(call(tf.ones([2, 3, 5, 12]), 0.5) > 0, of_scores)


# Sums over many tokens, within 0.1 % in every dtype

TOKENS, WIDTH = 16_384, 8


def drawn(seed: int, dtype, width: int = WIDTH) -> tf.Tensor:
    return tf.cast(np.random.default_rng(seed).normal(size=[TOKENS, width]), dtype)


def gradients_of(compute, variables, *inputs) -> list[np.ndarray]:
    """First the gradient from above, numbers of one sign: a narrow sum would stop growing; then float32 gradients."""
    with tf.GradientTape() as tape:
        y = compute(*inputs)
    above = tf.cast(np.random.default_rng(1).uniform(0.5, 1.5, [TOKENS, WIDTH]), y.dtype)
    found = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(y, variables, above)]
    assert {gradient.dtype for gradient in found} == {tf.float32}
    return [exact(above), *(gradient.numpy() for gradient in found)]


def check_sum(found, rows: np.ndarray) -> None:
    np.testing.assert_allclose(found, rows.sum(0), rtol=0, atol=1e-3 * np.abs(rows).sum(0).max())


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_gradients_of_values_that_are_added_to_every_token(policy):
    """Of Dense, LayerNorm and its other form in `fast`, and the three tables of the embeddings."""
    dense = layers.Dense(4, WIDTH, 0.02, dtype=policy)
    above, of_bias = gradients_of(dense, [dense.bias.value], drawn(2, dense.compute_dtype, 4))
    check_sum(of_bias, above)

    norm = layers.LayerNorm(WIDTH, dtype=policy)
    x = drawn(3, norm.compute_dtype)
    normal = exact(x) - exact(x).mean(1, keepdims=True)
    normal /= np.sqrt((normal**2).mean(1, keepdims=True) + 1e-12)
    for compute in (norm, kernels.norm(norm)):
        above, of_gamma, of_beta = gradients_of(compute, [norm.gamma.value, norm.beta.value], x)
        check_sum(of_gamma, above * normal)
        check_sum(of_beta, above)

    embeddings = modeling.Embeddings(small_config(hidden_size=WIDTH), dtype=policy)
    ids = tf.ones([TOKENS], tf.int32)
    tables = [embeddings.word_embeddings, embeddings.token_type_embeddings, embeddings.position_embeddings]

    def add_up(ids):
        return embeddings.add_up(ids, 0 * ids, tf.gather(embeddings.position_embeddings.value, 3 * ids))

    above, *found = gradients_of(add_up, [table.value for table in tables], ids)
    for gradient, row in zip(found, (1, 0, 3), strict=True):
        check_sum(gradient[row], above)


@pytest.mark.compiled
@pytest.mark.parametrize("policy", ["mixed_bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def test_gradients_of_biases_that_the_next_loop_adds(policy):
    """Each is the sum over the gradients of its rows; see fast.kernels."""
    norm, dense = layers.AddAndNorm(WIDTH, dtype=policy), layers.Dense(WIDTH, WIDTH, 0.02, dtype=policy)
    add, bias = kernels.add_and_norm(dense, norm)[1], tf.constant(0.1, shape=[WIDTH])
    x = drawn(5, norm.compute_dtype)
    ways = ((kernels.biased_gelu, bias), (lambda x, _: add(tf.ones_like(x), x), dense.bias.value))
    for compute, added in ways:
        with tf.GradientTape() as tape:
            tape.watch([x, added])
            y = compute(x, added)
        of_rows, of_bias = tape.gradient(y, [x, added], drawn(6, y.dtype) ** 2)
        assert of_bias.dtype == tf.float32
        check_sum(of_bias, exact(of_rows))


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16], ids=lambda dtype: dtype.name)
def test_class_scores_are_those_of_float32(dtype):
    rng = np.random.default_rng(2)
    states, weights = tf.cast(rng.normal(size=[40, 64]), dtype), tf.constant(rng.normal(size=[9, 64]), tf.float32)
    above = tf.constant(rng.normal(size=[40, 9]), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch([states, weights])
        logits = layers.class_scores(states, weights)
    of_states, of_weights = tape.gradient(logits, [states, weights], above)
    assert (logits.dtype, of_states.dtype, of_weights.dtype) == (tf.float32, dtype, tf.float32)
    np.testing.assert_allclose(logits, exact(states) @ weights.numpy().T, rtol=1e-5, atol=2e-5)
    coarse = {"rtol": 1e-5, "atol": 2e-5} if dtype == tf.float32 else {"rtol": 0.02, "atol": 0.1}
    np.testing.assert_allclose(exact(of_states), above @ weights, **coarse)
    np.testing.assert_allclose(of_weights, above.numpy().T @ exact(states), **coarse)

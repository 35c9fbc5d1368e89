"""The encoder against the reference's numbers, and against an implementation in numpy."""

import numpy as np
import pytest
import reference_math
import tensorflow as tf
from small_models import GOLDEN, needs_golden, randomize, small_batch, small_config

from bert_tf2 import heads, layers, modeling
from bert_tf2.config import ACTIVATIONS, BertConfig
from bert_tf2.weights import checkpoint

SEED = tf.constant([3, 4])


def small_model(seed=0, dtype="float32", **changes) -> modeling.BertModel:
    model = modeling.BertModel(small_config(**changes), dtype=dtype)
    randomize(model, seed)
    return model


def run(model, batch, **kwargs) -> modeling.BertOutput:
    return model(batch["input_ids"], batch["input_mask"], batch["segment_ids"], **kwargs)


# The reference's numbers.


@pytest.fixture(scope="module")
def golden_model():
    model = modeling.BertModel(BertConfig.from_json_file(str(GOLDEN / "config" / "bert_config.json")))
    checkpoint.initialize(model, str(GOLDEN / "ckpt" / "pretrain" / "model.ckpt"))
    return model


@needs_golden
@pytest.mark.parametrize("case", sorted(path.stem for path in GOLDEN.glob("forward/*.npz")))
def test_encoder_equals_the_reference(golden_model, case):
    golden = np.load(GOLDEN / "forward" / f"{case}.npz")
    mask, types = (golden.get(name) for name in ("input_mask", "token_type_ids"))
    output = golden_model(golden["input_ids"], mask, types)

    # In a row of padding only, the scores are near -10000, where float32 has a resolution of 1e-3.
    mask = np.ones_like(golden["input_ids"]) if mask is None else mask
    allowed = np.where(mask.any(axis=1), 2e-5, 5e-3)
    compared = {
        "embedding_output": output.get_embedding_output(),
        "sequence_output": output.get_sequence_output(),
        "pooled_output": output.get_pooled_output(),
        **{f"encoder_layer_{i}": layer for i, layer in enumerate(output.get_all_encoder_layers())},
    }
    assert set(compared) == {name for name in golden.files if name.endswith("_output") or "_layer_" in name}
    for name, value in compared.items():
        error = np.abs(value.numpy() - golden[name]).reshape(len(allowed), -1).max(axis=1)
        assert (error <= allowed).all(), f"{name}: {error}"


# The same mathematics in numpy.


@pytest.mark.parametrize("hidden_act", ACTIVATIONS)
def test_encoder_equals_numpy(hidden_act):
    model = small_model(hidden_act=hidden_act)
    weights = randomize(model)
    batch = small_batch()
    batch["input_mask"][1, 0] = 0  # a hole, not only padding at the end
    output = run(model, batch)
    embedding_output, layers, pooled = reference_math.encoder(
        weights, model.config, batch["input_ids"], batch["input_mask"], batch["segment_ids"]
    )
    np.testing.assert_allclose(output.embedding_output, embedding_output, atol=1e-5)
    assert len(output.all_encoder_layers) == 2
    for got, wanted in zip(output.all_encoder_layers, layers, strict=True):
        np.testing.assert_allclose(got, wanted, atol=2e-5)
    np.testing.assert_allclose(output.pooled_output, pooled, atol=2e-5)
    assert output.sequence_output is output.all_encoder_layers[-1]


# Activations.


def test_gelu_and_its_gradient():
    gelu = reference_math.ACTIVATIONS["gelu"]
    x = np.linspace(-6, 6, 241)
    point = tf.constant(x, tf.float64)
    with tf.GradientTape() as outer:
        outer.watch(point)
        with tf.GradientTape() as inner:
            inner.watch(point)
            y = modeling.gelu(point)
        slope = inner.gradient(y, point)
    np.testing.assert_allclose(y, gelu(x), atol=1e-12)
    h = 1e-5
    np.testing.assert_allclose(slope, (gelu(x + h) - gelu(x - h)) / (2 * h), atol=1e-9)
    curvature = (gelu(x + 1e-4) - 2 * gelu(x) + gelu(x - 1e-4)) / 1e-8
    np.testing.assert_allclose(outer.gradient(slope, point), curvature, atol=1e-6)


def test_get_activation():
    x = np.linspace(-3, 3, 13).astype(np.float32)
    for name in ACTIVATIONS:
        wanted = reference_math.ACTIVATIONS[name](x)
        np.testing.assert_allclose(modeling.get_activation(name.upper())(x), wanted, atol=1e-6)
    assert modeling.get_activation(tf.nn.relu) is tf.nn.relu and modeling.get_activation(None) is None
    with pytest.raises(ValueError, match="no activation function 'swish'; there are gelu"):
        modeling.get_activation("swish")


def test_initializer_range_of_0_is_zero():
    config = small_config(initializer_range=0)
    for name, variable in checkpoint.tf1_variables(heads.PretrainingModel(config)).items():
        assert np.ptp(variable) == 0 and np.max(variable) == (1 if name.endswith("gamma") else 0), name


# Dropout.


@pytest.mark.parametrize("which", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_the_seed_decides_on_dropout(which):
    model, batch = small_model(**{which: 0.3}), small_batch()
    first = run(model, batch, training=True, dropout_seed=SEED).sequence_output.numpy()
    again = run(model, batch, training=True, dropout_seed=SEED).sequence_output.numpy()
    other = run(model, batch, training=True, dropout_seed=SEED + 1).sequence_output.numpy()
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1
    assert np.abs(first - run(model, batch).sequence_output.numpy()).max() > 0.1


def test_without_a_seed_every_call_drops_other_values():
    model, batch = small_model(hidden_dropout_prob=0.3), small_batch()
    first, second = (run(model, batch, training=True).sequence_output.numpy() for _ in range(2))
    assert np.abs(first - second).max() > 0.1


def test_the_dropouts_of_one_step_are_independent():
    seeds = layers.DropoutSeeds(SEED)
    with modeling.dropout_from(seeds):
        one, two = (modeling.dropout(tf.ones([1000]), 0.5).numpy() > 0 for _ in range(2))
    assert 400 < (one == two).sum() < 600


def test_dropout_does_nothing_without_a_rate():
    x = tf.constant([1.0, 2.0])
    with modeling.dropout_from(layers.DropoutSeeds(SEED)):
        assert modeling.dropout(x, 0.0) is x and modeling.dropout(x, None) is x
    none, still = small_model(hidden_dropout_prob=None, attention_probs_dropout_prob=None), small_model()
    batch = small_batch()
    trained = run(none, batch, training=True, dropout_seed=SEED).sequence_output
    np.testing.assert_array_equal(trained, run(still, batch).sequence_output)


# Fresh weights.


def test_fresh_weights_are_truncated_normal_and_biases_zero():
    model = modeling.BertModel(small_config(vocab_size=2000, hidden_size=32, initializer_range=0.05))
    values = {name: variable.numpy() for name, variable in checkpoint.tf1_variables(model).items()}
    words = values["bert/embeddings/word_embeddings"]
    assert np.abs(words).max() <= 0.1  # two deviations
    # Cut at two deviations, a normal distribution keeps 0.87962566 of its own; TensorFlow 1 does not correct this.
    np.testing.assert_allclose(words.std(), 0.05 * 0.87962566, rtol=0.01)
    for name, value in values.items():
        if name.endswith(("bias", "beta")):
            assert not value.any(), name
        elif name.endswith("gamma"):
            assert (value == 1).all(), name
        else:
            assert 0.02 < value.std() < 0.07, name


def test_positions_may_start_from_the_formula_of_the_paper():
    model = modeling.BertModel(small_config(position_embedding_type="learned_from_sinusoidal"))
    table = model.embeddings.position_embeddings
    places, columns = np.arange(16)[:, None], np.arange(8)
    angles = places / 10000 ** ((columns // 2 * 2) / 8)
    wanted = np.where(columns % 2 == 0, np.sin(angles), np.cos(angles))
    np.testing.assert_allclose(table.numpy(), 0.02 * np.sqrt(2) * wanted, atol=1e-7)
    assert any(variable is table for variable in model.trainable_variables)


# Precision, and Keras.


def test_bfloat16_is_close_and_its_variables_float32():
    wide, narrow = small_model(), small_model(dtype="mixed_bfloat16")
    assert {variable.dtype for variable in checkpoint.tf1_variables(narrow).values()} == {tf.float32}
    batch = small_batch()
    difference = run(narrow, batch).sequence_output
    assert difference.dtype == tf.bfloat16
    gap = np.abs(tf.cast(difference, tf.float32) - run(wide, batch).sequence_output)
    assert 1e-4 < gap.max() < 0.2  # another precision indeed, and not another function


def test_get_shape_list_mixes_known_and_unknown_sizes():
    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def sizes(x):
        first, second = modeling.get_shape_list(x)
        assert isinstance(first, tf.Tensor)
        assert second == 3
        return first

    assert sizes(tf.zeros([5, 3])) == 5


def test_ranks_and_matrices():
    x = tf.reshape(tf.range(24), [2, 3, 4])
    rows = modeling.reshape_to_matrix(x)
    assert rows.shape == (6, 4)
    assert tf.reduce_all(modeling.reshape_from_matrix(rows, modeling.get_shape_list(x, [2, 3])) == x)
    assert modeling.reshape_from_matrix(rows[:, :2], [2, 3, 4]).shape == (2, 3, 2)
    assert tf.reduce_all(modeling.reshape_to_matrix(rows) == rows)
    assert tf.reduce_all(modeling.reshape_from_matrix(rows, [6, 4]) == rows)
    modeling.assert_rank(x, 3)
    with pytest.raises(ValueError, match=r"states has rank 3 \(shape \(2, 3, 4\)\); expected: 1 or 2"):
        modeling.get_shape_list(x, [1, 2], name="states")
    with pytest.raises(ValueError, match="has no rows"):
        modeling.reshape_to_matrix(x[0, 0])


def test_layer_norm_has_the_epsilon_of_the_configuration():
    layer = modeling.LayerNorm(2, epsilon=0.75)
    np.testing.assert_allclose(layer(tf.constant([[1.0, 2.0]])), [[-0.5, 0.5]])  # 0.5 / sqrt(0.25 + 0.75)
    model = modeling.BertModel(small_config(layer_norm_eps=0.1))
    layers = [model.embeddings.layer_norm, model.blocks[0].attention_norm, model.blocks[1].output_norm]
    assert [layer.epsilon for layer in layers] == [0.1] * 3

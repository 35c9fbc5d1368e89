"""The encoder against an implementation in numpy; test_heads compares it with the reference's numbers."""

from __future__ import annotations

import numpy as np
import pytest
import reference_math
import tensorflow as tf
from refused import refuses
from small_models import LENGTH, randomize, small_batch, small_config

from bert_tf2 import heads, modeling, shapes
from bert_tf2.config import ACTIVATIONS
from bert_tf2.weights import checkpoint

SEED = tf.constant([3, 4])
INPUTS = ("input_ids", "input_mask", "segment_ids")


def small_model(dtype="float32", **changes) -> modeling.BertModel:
    model = modeling.BertModel(small_config(**changes), dtype=dtype)
    randomize(model)
    return model


# Reduced precision: the tolerance is a few roundings. Scores are float32 in every dtype.
PRECISIONS = {"float32": 2e-5, "float64": 2e-6, "mixed_bfloat16": 0.2, "mixed_float16": 0.03}


@pytest.mark.parametrize(
    ("hidden_act", "dtype"), [*((name, "float32") for name in ACTIVATIONS), *(("gelu", name) for name in PRECISIONS)]
)
def test_the_encoder_equals_numpy(hidden_act, dtype):
    model, batch = small_model(dtype, hidden_act=hidden_act), small_batch()
    weights = randomize(model)
    batch["input_mask"][1, 0] = 0  # a hole, not only padding at the end
    inputs = [batch[name] for name in INPUTS]
    output = model(*inputs)
    embedded, blocks, pooled = reference_math.encoder(weights, model.config, *inputs)
    assert {variable.dtype for variable in model.trainable_variables} == {dtype if dtype == "float64" else "float32"}
    assert len(output.all_encoder_layers) == 2 and output.sequence_output is output.all_encoder_layers[-1]
    found = (output.embedding_output, *output.all_encoder_layers, output.pooled_output)
    for values, wanted in zip(found, (embedded, *blocks, pooled), strict=True):
        assert values.dtype == dtype.removeprefix("mixed_")
        np.testing.assert_allclose(tf.cast(values, tf.float64), wanted, rtol=0, atol=PRECISIONS[dtype])
    for name in ("segment_ids", "token_type_ids"):  # a dictionary with either name
        named = dict(zip(("input_ids", "input_mask", name), inputs, strict=True))
        np.testing.assert_array_equal(model(named).pooled_output, output.pooled_output)
    if "mixed" in dtype:  # another precision indeed
        assert np.abs(tf.cast(output.sequence_output, tf.float64) - blocks[-1]).max() > 1e-4


@pytest.mark.parametrize("which", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_the_seed_decides_on_dropout(which):
    model, none, batch = small_model(**{which: 0.3}), small_model(**{which: None}), small_batch()

    def states(model=model, **how) -> np.ndarray:
        return model(*(batch[name] for name in INPUTS), **how).sequence_output.numpy()

    first, still = states(training=True, dropout_seed=SEED), states()
    np.testing.assert_array_equal(states(training=True, dropout_seed=SEED), first)
    np.testing.assert_array_equal(states(dropout_seed=SEED), still)
    np.testing.assert_array_equal(states(none, training=True, dropout_seed=SEED), still)
    others = [states(training=True, dropout_seed=SEED + 1), *(states(training=True) for _ in range(2)), still]
    for number, one in enumerate([first, *others]):
        assert all(np.abs(one - other).max() > 0.1 for other in others[number:])


def test_fresh_weights_are_truncated_normal_and_biases_zero():
    model = modeling.BertModel(small_config(vocab_size=2000, hidden_size=32, initializer_range=0.05))
    values = {name: variable.numpy() for name, variable in checkpoint.tf1_variables(model).items()}
    words = values["bert/embeddings/word_embeddings"]
    assert np.abs(words).max() <= 0.1  # two deviations
    # Cut at two deviations, a normal distribution keeps 0.87962566 of its own; TensorFlow 1 does not correct this.
    np.testing.assert_allclose(words.std(), 0.05 * 0.87962566, rtol=0.01)
    for name, value in values.items():
        if name.endswith(("bias", "beta", "gamma")):
            assert (value == name.endswith("gamma")).all(), name
        else:
            assert 0.02 < value.std() < 0.07, name
    for name, value in checkpoint.tf1_variables(heads.PretrainingModel(small_config(initializer_range=0))).items():
        assert np.ptp(value) == 0 and np.max(value) == name.endswith("gamma"), name


def test_positions_may_start_from_the_formula_of_the_paper():
    model = modeling.BertModel(small_config(position_embedding_type="learned_from_sinusoidal"))
    table = model.embeddings.position_embeddings
    places, columns = np.arange(16)[:, None], np.arange(8)
    angles = places / 10000 ** ((columns // 2 * 2) / 8)
    wanted = np.where(columns % 2 == 0, np.sin(angles), np.cos(angles))
    np.testing.assert_allclose(table.numpy(), 0.02 * np.sqrt(2) * wanted, atol=1e-7)
    assert any(variable is table for variable in model.trainable_variables)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("input_mask", np.zeros([4, 1], np.int32), "input_mask: shape [4, 1], wanted [B, F] = [4, 10]"),
        ("dropout_seed", np.zeros(3, np.int32), "dropout_seed: shape [3], wanted [2]"),
        ("input_ids", np.full([4, LENGTH], 23), "input_ids: has 23, wanted numbers from 0 to 22"),
        ("token_type_ids", np.full([4, LENGTH], -1), "token_type_ids: has -1, wanted numbers from 0 to 1"),
        ("input_ids", tf.zeros([4, LENGTH]), "input_ids: float32, wanted whole numbers"),
    ],
)
def test_an_argument_that_does_not_fit(name, value, message):
    arguments = {each: np.zeros([4, LENGTH], np.int32) for each in ("input_ids", "input_mask", "token_type_ids")}
    with pytest.raises(shapes.ShapeError) as caught:
        small_model()(**{**arguments, name: value})
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_the_comparison_of_shapes():
    """A letter has the size of its first occurrence, an unknown size fits, and the message has both shapes."""
    contract = shapes.Contract(D=8)
    contract.check("BFD", states=tf.zeros([4, 10, 8]), other=tf.keras.Input([10, 8]), last=None)
    contract.check("BP", positions=np.zeros([4, 3]))
    for letters, shape, wanted in (
        ("BP", [5, 3], "[B, P] = [4, 3]"),
        ("BXD", [4, 3, 2], "[B, X, D] = [4, X, 8]"),
        ("...D", [4, 6], "[..., D] = [..., 8]"),
        ("XX", [2, 3], "[X, X]"),
    ):
        with pytest.raises(shapes.ShapeError) as caught:
            contract.check(letters, x=tf.zeros(shape))
        assert str(caught.value) == f"x: shape {shape}, wanted {wanted}"
    with pytest.raises(shapes.ShapeError, match=r"labels: shape \[4, 2\], wanted \[B\]"):
        shapes.Contract().check("B", "B1", labels=tf.zeros([4, 2]))


def test_a_graph_of_tensorflow_1_is_refused():
    """Where eager execution is off, as after tf.disable_v2_behavior(), variables have no values."""
    model, ids = small_model(), tf.ones([1, 4], tf.int32)
    with tf.Graph().as_default():
        refuses("tf.disable_v2_behavior() tf.Graph()", modeling.BertModel, small_config())
        refuses("tf.disable_v2_behavior()", model, tf.compat.v1.placeholder(tf.int32, [None, 4]))
    traced = tf.function(lambda batch: model(batch).get_pooled_output())(ids)
    np.testing.assert_allclose(traced, model(ids).get_pooled_output(), rtol=1e-5)

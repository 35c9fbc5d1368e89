"""The way of a state through the masked-LM head, against the model's own logits and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from small_models import VOCAB, randomize, small_config

from bert_tf2 import heads, modeling
from bert_tf2.explorer import masked_words


@pytest.fixture(scope="module")
def model() -> heads.MaskedLMModel:
    made = heads.MaskedLMModel(small_config())
    randomize(made, seed=2)
    return made


@pytest.fixture(scope="module")
def steps(model) -> masked_words.HeadSteps:
    state = np.random.default_rng(3).normal(size=8).astype(np.float32)
    return masked_words.head_steps(model, tf.constant(state))


def test_the_steps_lead_to_the_models_logits(model, steps):
    head, table = model.masked_lm, model.bert.get_embedding_table().numpy()
    dense = steps.state @ head.transform.kernel.numpy() + head.transform.bias.numpy()
    np.testing.assert_allclose(steps.dense, dense, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(steps.transformed, modeling.gelu(steps.dense), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(steps.norm, head.layer_norm(steps.transformed), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(steps.products, table @ steps.norm, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(steps.products + steps.bias, steps.logits, rtol=1e-6)
    logits = head(steps.state[np.newaxis], table)[0]
    np.testing.assert_allclose(steps.logits, logits, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(steps.probabilities, tf.nn.softmax(logits), rtol=1e-5)


def test_the_guesses_of_several_states_are_those_of_each(model, steps):
    states = tf.stack([tf.zeros(8), steps.state])
    nothing, found = masked_words.guesses(model, states, 3)
    words = masked_words.best_words(model, steps, 3)
    assert [token_id for token_id, _ in found] == [word["token_id"] for word in words]
    np.testing.assert_allclose([share for _, share in found], [word["probability"] for word in words], rtol=1e-5)
    assert nothing != found and len(masked_words.guesses(model, states, VOCAB + 5)[0]) == VOCAB


def test_the_best_words(model, steps):
    words = masked_words.best_words(model, steps, 4, also=int(np.argmin(steps.logits)))
    order = np.argsort(-steps.logits)
    assert [word["token_id"] for word in words] == [*order[:4], order[-1]]
    table = model.bert.get_embedding_table().numpy()
    for word in words:
        assert word["logit"] == pytest.approx(word["product"] + word["bias"], rel=1e-5)
        np.testing.assert_array_equal(word["row"], table[word["token_id"]])
        assert word["product"] == pytest.approx(float(word["row"] @ steps.norm), rel=1e-4)
        lengths = np.linalg.norm(word["row"]) * np.linalg.norm(steps.norm)
        assert word["cosine"] == pytest.approx(word["product"] / lengths, rel=1e-4)
    assert len(masked_words.best_words(model, steps, 4, also=words[0]["token_id"])) == 4
    assert len(masked_words.best_words(model, steps, VOCAB)) == VOCAB

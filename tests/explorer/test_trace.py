"""The steps of the explorer are the model's own: put together, they give its output and its words."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from small_models import VOCAB, randomize, small_config

from bert_tf2 import heads, modeling
from bert_tf2.explorer import trace
from bert_tf2.explorer.trace import Sentence

SENTENCE = Sentence(
    tokens=("[CLS]", "a", "b", "[SEP]", "c", "[SEP]", "[PAD]", "[PAD]"),
    input_ids=(1, 9, 10, 2, 11, 2, 0, 0),
    segment_ids=(0, 0, 0, 0, 1, 1, 0, 0),
    input_mask=(1, 1, 1, 1, 1, 1, 0, 0),
)
CLOSE = {"rtol": 1e-5, "atol": 2e-6}


@pytest.fixture(scope="module", params=["gelu", "gelu_erf", "relu"])
def encoder(request) -> modeling.BertModel:
    model = modeling.BertModel(small_config(hidden_act=request.param))
    randomize(model)
    return model


@pytest.fixture(scope="module")
def output(encoder) -> modeling.BertOutput:
    inputs = (SENTENCE.input_ids, SENTENCE.input_mask, SENTENCE.segment_ids)
    return encoder(*(tf.constant([values]) for values in inputs))


@pytest.fixture(scope="module")
def found(encoder) -> trace.Trace:
    return trace.runner(encoder)(SENTENCE)


def test_the_states_are_the_models(found, output):
    expected = [output.embedding_output, *output.all_encoder_layers]
    assert len(found.states) == len(expected) == 3
    for states, theirs in zip(found.states, expected, strict=True):
        np.testing.assert_allclose(states, theirs, **CLOSE)


def test_the_embeddings_add_up(encoder, found, output):
    steps = trace.embedding_steps(encoder, found)
    np.testing.assert_allclose(steps.sum, steps.words + steps.segments + steps.positions, **CLOSE)
    np.testing.assert_allclose(steps.norm, output.embedding_output[0], **CLOSE)
    np.testing.assert_array_equal(steps.words[1], encoder.get_embedding_table()[9])
    np.testing.assert_array_equal(steps.segments[4], encoder.embeddings.token_type_embeddings[1])
    np.testing.assert_array_equal(steps.positions[4], encoder.embeddings.position_embeddings[4])


def heads_of(states: np.ndarray, dense, heads: int) -> np.ndarray:
    """[F, D] -> [N, F, H], in float64."""
    rows = states.astype(np.float64) @ dense.kernel.numpy() + dense.bias.numpy()
    return rows.reshape(len(rows), heads, -1).swapaxes(0, 1)


def normalized(rows: np.ndarray, norm) -> np.ndarray:
    centered = rows - rows.mean(axis=-1, keepdims=True)
    return (
        centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-12) * norm.gamma.numpy() + norm.beta.numpy()
    )


@pytest.mark.parametrize("layer", [0, 1])
def test_every_step_of_a_block(encoder, found, output, layer):
    """Against numpy in float64, each step from the one before it."""
    block = encoder.blocks[layer]
    steps = trace.block_steps(block, found.states[layer], found.mask_scores)
    attention = block.attention
    for name, dense in (("query", attention.query), ("key", attention.key), ("value", attention.value)):
        np.testing.assert_allclose(getattr(steps, name), heads_of(steps.states, dense, 2), **CLOSE)
    scores = steps.query.astype(np.float64) @ steps.key.swapaxes(1, 2) / np.sqrt(steps.query.shape[-1])
    np.testing.assert_allclose(steps.scores, scores, **CLOSE)
    np.testing.assert_allclose(steps.masked_scores[:, :, :6], steps.scores[:, :, :6], **CLOSE)
    assert (steps.masked_scores[:, :, 6:] < -9000).all()
    powers = np.exp(steps.masked_scores.astype(np.float64) - steps.masked_scores.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(steps.probabilities, powers / powers.sum(axis=-1, keepdims=True), **CLOSE)
    np.testing.assert_allclose(steps.context, steps.probabilities @ steps.value, **CLOSE)
    merged = steps.context.swapaxes(0, 1).reshape(len(SENTENCE.tokens), -1)
    np.testing.assert_allclose(steps.attention_output, block.attention_output(merged), **CLOSE)
    np.testing.assert_allclose(steps.attention_sum, steps.states + steps.attention_output, **CLOSE)
    np.testing.assert_allclose(steps.attention_norm, normalized(steps.attention_sum, block.attention_norm), **CLOSE)
    before = steps.attention_norm @ block.intermediate.kernel.numpy() + block.intermediate.bias.numpy()
    np.testing.assert_allclose(steps.intermediate, before, **CLOSE)
    np.testing.assert_allclose(steps.activated, block.intermediate(steps.attention_norm), **CLOSE)
    np.testing.assert_allclose(steps.output, block.output_dense(steps.activated), **CLOSE)
    np.testing.assert_allclose(steps.output_sum, steps.attention_norm + steps.output, **CLOSE)
    np.testing.assert_allclose(steps.output_norm, normalized(steps.output_sum, block.output_norm), **CLOSE)
    np.testing.assert_allclose(steps.output_norm, output.all_encoder_layers[layer][0], **CLOSE)


def test_where_heads_look():
    """Two heads over three tokens and padding: one looks at the token before, one at all alike."""
    sentence = Sentence(("[CLS]", "a", "[SEP]", "[PAD]"), (1, 5, 2, 0), (0,) * 4, (1, 1, 1, 0))
    before = np.array([[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], np.float32)
    alike = np.tile(np.array([1 / 3, 1 / 3, 1 / 3, 0], np.float32), (4, 1))
    first, second = trace.summarize_heads(np.stack([before, alike]), sentence)
    assert first == pytest.approx((1 / 3, 2 / 3, 0, 2 / 3, 0, 1), rel=1e-5)
    assert second == pytest.approx((1 / 3, 2 / 9, 2 / 9, 1 / 3, 1 / 3, 3), rel=1e-5)


def test_a_pair_is_one_array(explorer):
    tokenizer = explorer.bert.tokenizer
    sentence = trace.read("Paris is [MASK].", "It rains", 2, tokenizer, small_config())
    assert sentence.tokens[:6] == ("[CLS]", "paris", "is", "[MASK]", ".", "[SEP]")
    first, count = sentence.tokens.index("[SEP]") + 1, len(sentence.tokens)
    assert sentence.segment_ids == (0,) * first + (1,) * (count - first - 2) + (0, 0)
    assert sentence.input_mask == (1,) * (count - 2) + (0, 0) and sentence.tokens[-2:] == ("[PAD]", "[PAD]")
    assert sentence.input_ids[-2:] == (0, 0) and sentence.input_ids[0] == tokenizer.vocab["[CLS]"]


@pytest.fixture(scope="module")
def model() -> heads.MaskedLMModel:
    made = heads.MaskedLMModel(small_config())
    randomize(made, seed=2)
    return made


@pytest.fixture(scope="module")
def steps(model) -> trace.WordSteps:
    state = np.random.default_rng(3).normal(size=8).astype(np.float32)
    return trace.word_steps(model, tf.constant(state))


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
    nothing, found = trace.guesses(model, states, 3)
    words = trace.best_words(model, steps, 3)
    assert [token_id for token_id, _ in found] == [word["token_id"] for word in words]
    np.testing.assert_allclose([share for _, share in found], [word["probability"] for word in words], rtol=1e-5)
    assert nothing != found and len(trace.guesses(model, states, VOCAB + 5)[0]) == VOCAB


def test_the_best_words(model, steps):
    words = trace.best_words(model, steps, 4, also=int(np.argmin(steps.logits)))
    order = np.argsort(-steps.logits)
    assert [word["token_id"] for word in words] == [*order[:4], order[-1]]
    table = model.bert.get_embedding_table().numpy()
    for word in words:
        assert word["logit"] == pytest.approx(word["product"] + word["bias"], rel=1e-5)
        np.testing.assert_array_equal(word["row"], table[word["token_id"]])
        assert word["product"] == pytest.approx(float(word["row"] @ steps.norm), rel=1e-4)
        lengths = np.linalg.norm(word["row"]) * np.linalg.norm(steps.norm)
        assert word["cosine"] == pytest.approx(word["product"] / lengths, rel=1e-4)
    assert len(trace.best_words(model, steps, 4, also=words[0]["token_id"])) == 4
    assert len(trace.best_words(model, steps, VOCAB)) == VOCAB

"""The steps that the page shows are the model's own: put together, they give its output and its words."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import reference_math
import scipy.spatial
import tensorflow as tf
from small_models import randomize, small_config

from bert_tf2 import heads, modeling
from bert_tf2.explorer import model, sentence, trace
from bert_tf2.explorer.trace import Sentence
from bert_tf2.weights import checkpoint

TOKENS = ("[CLS]", "a", "b", "[SEP]", "c", "[SEP]", "[PAD]", "[PAD]")
SENTENCE = Sentence(TOKENS, (1, 9, 10, 2, 11, 2, 0, 0), (0, 0, 0, 0, 1, 1, 0, 0), (1, 1, 1, 1, 1, 1, 0, 0))
CLOSE = {"rtol": 1e-5, "atol": 2e-6}


def dense(states, layer) -> np.ndarray:
    return states.astype(np.float64) @ layer.kernel.numpy() + layer.bias.numpy()


def normalized(rows: np.ndarray, norm) -> np.ndarray:
    weights = {"x/LayerNorm/gamma": norm.gamma.numpy(), "x/LayerNorm/beta": norm.beta.numpy()}
    return reference_math.layer_norm(rows.astype(np.float64), weights, "x")


def test_every_step_of_the_encoder():
    """Against numpy in float64, each step from the one before it; the last ones are the model's outputs."""
    encoder = modeling.BertModel(small_config())
    randomize(encoder)
    inputs = (SENTENCE.input_ids, SENTENCE.input_mask, SENTENCE.segment_ids)
    output = encoder(*(tf.constant([values]) for values in inputs))
    found = trace.runner(encoder)(SENTENCE)
    for states, theirs in zip(found.states, [output.embedding_output, *output.all_encoder_layers], strict=True):
        np.testing.assert_allclose(states, theirs, **CLOSE)

    steps, tables = trace.embedding_steps(encoder, found), encoder.embeddings
    np.testing.assert_array_equal(steps.words, tf.gather(tables.word_embeddings, SENTENCE.input_ids))
    np.testing.assert_array_equal(steps.segments, tf.gather(tables.token_type_embeddings, SENTENCE.segment_ids))
    np.testing.assert_array_equal(steps.positions, tables.position_embeddings[:8])
    np.testing.assert_allclose(steps.sum, steps.words + steps.segments + steps.positions, **CLOSE)
    np.testing.assert_allclose(steps.norm, output.embedding_output[0], **CLOSE)

    for layer, block in enumerate(encoder.blocks):
        steps, attention = trace.block_steps(block, found.states[layer], found.mask_scores), block.attention
        of_heads = {
            name: dense(steps.states, getattr(attention, name)).reshape(8, 2, 4).swapaxes(0, 1)
            for name in ("query", "key", "value")
        }
        wanted = {
            "states": found.states[layer][0],
            **of_heads,
            "scores": steps.query.astype(np.float64) @ steps.key.swapaxes(1, 2) / np.sqrt(steps.query.shape[-1]),
            "probabilities": reference_math.softmax(steps.masked_scores.astype(np.float64)),
            "context": steps.probabilities @ steps.value,
            "attention_output": dense(steps.context.swapaxes(0, 1).reshape(8, -1), block.attention_output),
            "attention_sum": steps.states + steps.attention_output,
            "attention_norm": normalized(steps.attention_sum, block.attention_norm),
            "intermediate": dense(steps.attention_norm, block.intermediate),
            "activated": reference_math.ACTIVATIONS["gelu"](steps.intermediate),
            "output": dense(steps.activated, block.output_dense),
            "output_sum": steps.attention_norm + steps.output,
            "output_norm": normalized(steps.output_sum, block.output_norm),
        }
        assert {*wanted, "masked_scores"} == {*steps._fields}
        for name, values in wanted.items():
            np.testing.assert_allclose(getattr(steps, name), values, err_msg=name, **CLOSE)
        np.testing.assert_allclose(steps.masked_scores[:, :, :6], steps.scores[:, :, :6], **CLOSE)
        assert (steps.masked_scores[:, :, 6:] < -9000).all()
        np.testing.assert_allclose(steps.output_norm, output.all_encoder_layers[layer][0], **CLOSE)


def test_the_way_of_a_state_to_the_words():
    made = heads.MaskedLMModel(small_config())
    randomize(made, seed=2)
    head, table = made.masked_lm, made.get_output_table()
    states = tf.constant([np.zeros(8), np.random.default_rng(3).normal(size=8)], tf.float32)
    steps = trace.word_steps(made, states[1])
    logits = head(states[1:], table)[0]
    np.testing.assert_allclose(steps.dense, dense(steps.state, head.transform), **CLOSE)
    np.testing.assert_allclose(steps.transformed, reference_math.ACTIVATIONS["gelu"](steps.dense), **CLOSE)
    np.testing.assert_allclose(steps.norm, normalized(steps.transformed, head.layer_norm), **CLOSE)
    np.testing.assert_allclose(steps.products + steps.bias, logits, **CLOSE)
    np.testing.assert_allclose(steps.probabilities, tf.nn.softmax(logits), **CLOSE)
    order = np.argsort(-steps.logits)
    words = trace.best_words(made, steps, 4, also=int(order[-1]))
    assert [word["token_id"] for word in words] == [*order[:4], order[-1]]
    wanted = np.asarray(logits)[[word["token_id"] for word in words]]
    assert [word["logit"] for word in words] == pytest.approx(wanted, rel=1e-5)
    cosines = 1 - scipy.spatial.distance.cdist([word["row"] for word in words], [steps.norm], "cosine")[:, 0]
    assert [word["cosine"] for word in words] == pytest.approx(cosines, rel=1e-4)
    (first, found), shares = trace.guesses(made, states, 3)  # of several states at once
    assert [token_id for token_id, _ in found] == [word["token_id"] for word in words[:3]]
    np.testing.assert_allclose([share for _, share in found], [word["probability"] for word in words[:3]], rtol=1e-5)
    of_first = tf.nn.softmax(made.masked_lm(states[:1], made.get_output_table()))[0, found[0][0]]
    assert shares == pytest.approx([float(of_first), found[0][1]], rel=1e-5) and first[0][1] >= shares[0]


def test_where_heads_look_and_how_two_sentences_differ():
    """Two heads over three tokens and padding: one looks at the token before, one at all alike."""
    short = Sentence(("[CLS]", "a", "[SEP]", "[PAD]"), (1, 5, 2, 0), (0,) * 4, (1, 1, 1, 0))
    before = np.array([[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], np.float32)
    alike = np.tile(np.array([1 / 3, 1 / 3, 1 / 3, 0], np.float32), (4, 1))
    first, second = trace.summarize_heads(np.stack([before, alike]), short)
    assert first == pytest.approx((1 / 3, 2 / 3, 0, 2 / 3, 0, 1), rel=1e-5)
    assert second == pytest.approx((1 / 3, 2 / 9, 2 / 9, 1 / 3, 1 / 3, 3), rel=1e-5)
    assert sentence.align("abbc", "abc") == [(0, 0), (1, 1), (3, 2)] and sentence.align("a", "xy") == []
    states = np.array([[1.0, 0.0], [1.0, 0.0], [2.0, 0.0], [0.0, 0.0]])
    others = np.array([[0.0, 3.0], [-1.0, 0.0], [5.0, 0.0], [1.0, 0.0]])
    np.testing.assert_allclose(sentence.state_distances(states, others), [1, 2, 0, 1])
    ours = np.array([[[1.0, 0.0], [0.5, 0.5]], [[0.25, 0.75], [1.0, 0.0]]])  # [N, M, M]
    theirs = np.array([[[0.0, 1.0], [0.5, 0.5]], [[0.25, 0.75], [1.0, 0.0]]])
    np.testing.assert_allclose(sentence.attention_changes(ours, theirs), [0.5, 0])


def test_the_figures_of_every_variable_and_the_cosines_of_positions(explorer):
    facts, source = explorer.inventory(), checkpoint.open_weights(explorer.bert.path)
    for row in facts["variables"]:
        values = source.get(row["name"])
        assert row["shape"] == [*values.shape] and row["parameters"] == values.size and row["in_file"]
        expected = [np.linalg.norm(values), values.mean(), values.std()]
        assert [row["norm"], row["mean"], row["deviation"]] == pytest.approx(expected, abs=1e-5)
    kernel = next(row for row in facts["variables"] if row["name"] == "bert/encoder/layer_1/output/dense/kernel")
    assert kernel["huggingface"] == "bert.encoder.layer.1.output.dense.weight" and kernel["transposed"]
    assert kernel["model_garden"] == "transformer/layer_1/output/kernel" and kernel["part"] == "block 1"
    parts = ["embeddings", "block 0", "block 1", "pooler", "masked lm", "next sentence"]
    assert [part["name"] for part in facts["parts"]] == parts and (facts["unused"], facts["optimizer"]) == ([], 1)
    assert sum(part["parameters"] for part in facts["parts"]) == facts["parameters"]
    for count, step in ((40, 1), (300, 2)):
        table = np.random.default_rng(0).normal(0.0, 0.5, (count, 24)).astype(np.float32)
        found = model.cosines(table)
        wanted = 1 - scipy.spatial.distance.cdist(table[::step], table[::step], "cosine")
        assert found["shown"] == [*range(0, count, step)]
        values = np.frombuffer(base64.b64decode(found["cosines"]["float32"]), "<f4")
        np.testing.assert_allclose(values, wanted.ravel(), atol=1e-6)

"""The heads and their losses against the reference's numbers and numpy, and the shared embedding table."""

from __future__ import annotations

import re

import numpy as np
import pytest
import reference_math as math
import tensorflow as tf
from small_models import GOLDEN, LABELS, LENGTH, MAKERS, batch_for, needs_golden, randomize, small_config, values_of

from bert_tf2 import heads, losses, shapes
from bert_tf2.config import ACTIVATIONS, BertConfig
from bert_tf2.weights import checkpoint

SEED = tf.constant([3, 4])
KINDS = {
    **MAKERS,
    "weighted": MAKERS["classifier"],
    "regression": lambda config: heads.ClassifierModel(config, LABELS, regression=True),
}


def small_model(kind: str, **changes):
    model = KINDS[kind](small_config(**changes))
    randomize(model)
    return model


def tensors(batch) -> dict[str, tf.Tensor]:
    return {name: tf.constant(values) for name, values in batch.items()}


def loss_values(model, batch) -> dict[str, tf.Tensor]:
    return {term.name: term.mean() for term in model.loss_terms(tensors(batch), dropout_seed=SEED)}


# The reference's numbers


@pytest.fixture(scope="module")
def golden_model():
    model = heads.PretrainingModel(BertConfig.from_json_file(str(GOLDEN / "config" / "bert_config.json")))
    checkpoint.initialize(model, str(GOLDEN / "ckpt" / "pretrain" / "model.ckpt"))
    return model


@needs_golden
@pytest.mark.parametrize("case", sorted(path.stem for path in GOLDEN.glob("forward/*.npz")))
def test_the_encoder_and_the_heads_of_pretraining_equal_the_reference(golden_model, case):
    golden, model = np.load(GOLDEN / "forward" / f"{case}.npz"), golden_model
    ids, mask, types = (golden.get(name) for name in ("input_ids", "input_mask", "token_type_ids"))
    output = model.bert(ids, mask, types)
    found = {
        "embedding_output": output.get_embedding_output(),
        "sequence_output": output.get_sequence_output(),
        "pooled_output": output.get_pooled_output(),
        **{f"encoder_layer_{i}": layer for i, layer in enumerate(output.get_all_encoder_layers())},
    }
    if case != "defaults":
        names, table = ("loss", "example_loss", "log_probs"), model.bert.get_embedding_table()
        words = (golden[f"masked_lm_{name}"] for name in ("positions", "ids", "weights"))
        of_words = heads.get_masked_lm_output(model.masked_lm, output.sequence_output, table, *words)
        labels = golden["next_sentence_labels"]
        of_order = heads.get_next_sentence_output(model.next_sentence, output.pooled_output, labels)
        found |= {f"masked_lm_{name}": value for name, value in zip(names, of_words, strict=True)}
        found |= {f"next_sentence_{name}": value for name, value in zip(names, of_order, strict=True)}
    given = {"input_ids", "input_mask", "token_type_ids", "next_sentence_labels"}
    given |= {f"masked_lm_{name}" for name in ("positions", "ids", "weights")}
    # In a row of padding only, the scores are near -10000, where float32 has a resolution of 1e-3.
    allowed = 2e-5 if mask is None or mask.any(axis=1).all() else 5e-3
    for name in {*golden.files} - given:
        assert found[name].shape == golden[name].shape
        np.testing.assert_allclose(found[name], golden[name], rtol=1e-6, atol=allowed, err_msg=name)


# Each head in numpy


def expected(kind: str, model, batch) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, float]]:
    """The logits as log probabilities or numbers, what `outputs` must return, and the losses."""
    weights = values_of(model)
    inputs = (batch[name] for name in ("input_ids", "input_mask", "segment_ids"))
    _, layers, pooled = math.encoder(weights, model.config, *inputs)
    if kind in ("pretraining", "masked_words"):
        words = math.masked_lm_log_probs(weights, model.config, layers[-1], batch["masked_lm_positions"])
        each, kept = math.picked(words, batch["masked_lm_ids"]), batch["masked_lm_weights"]
        outputs = {"masked_lm_example_loss": each, "masked_lm_predictions": words.argmax(-1)}
        terms = {"masked_lm_loss": (kept * each).sum() / (kept.sum() + 1e-5)}
        if kind == "pretraining":
            order = math.log_softmax(math.output_layer(weights, "cls/seq_relationship/", pooled))
            of_order = math.picked(order, batch["next_sentence_labels"])
            outputs |= {"next_sentence_example_loss": of_order, "next_sentence_predictions": order.argmax(-1)}
            terms["next_sentence_loss"] = of_order.mean()
        return words, outputs, terms
    if kind == "span":  # over all positions, padding too: the reference does not leave it out
        logits = np.moveaxis(math.output_layer(weights, "cls/squad/", layers[-1]), -1, 0)
        both = zip(math.log_softmax(logits), ("start_positions", "end_positions"), strict=True)
        loss = np.mean([math.picked(scores, batch[name]) for scores, name in both])
        return logits, {"start_logits": logits[0], "end_logits": logits[1]}, {"loss": loss}
    scores = math.output_layer(weights, "", layers[-1] if kind == "tagging" else pooled)
    if kind == "regression":
        each = (scores[:, 0] - batch["label_ids"]) ** 2
        return scores, {"probabilities": scores, "example_loss": each}, {"loss": each.mean()}
    log_probs = math.log_softmax(scores)
    each = math.picked(log_probs, np.maximum(batch["label_ids"], 0))
    if kind in ("classifier", "weighted"):
        weights = (
            np.ones(len(each)) if model.class_weights is None else np.take(model.class_weights, batch["label_ids"])
        )
        outputs = {"probabilities": np.exp(log_probs), "example_loss": each}
        return log_probs, outputs, {"loss": np.average(each, weights=weights)}
    each = each[batch["label_ids"] >= 0]
    assert 0 < each.size < batch["label_ids"].size
    return log_probs, {"predictions": log_probs.argmax(-1)}, {"loss": each.sum() / (each.size + 1e-5)}


@pytest.mark.parametrize(
    ("kind", "hidden_act"), [*((k, "gelu") for k in KINDS), *(("pretraining", a) for a in ACTIVATIONS)]
)
def test_a_head_equals_numpy(kind, hidden_act):
    model, batch = small_model(kind, hidden_act=hidden_act), batch_for(kind)
    model.head_dropout = 0.0
    if kind == "weighted":
        model.class_weights = (1.0, 3.0, 0.5)
    if kind == "regression":
        batch["label_ids"] = np.array([0.5, 4.0, -1.0, 2.25], np.float32)
    scores, outputs, terms = expected(kind, model, batch)
    logits = np.asarray(model(batch))
    np.testing.assert_allclose(
        logits if kind in ("span", "regression") else tf.nn.log_softmax(logits), scores, atol=2e-5
    )
    found = model.outputs(tensors(batch))
    assert {*found} == {*outputs}
    for name, wanted in outputs.items():
        np.testing.assert_allclose(found[name], wanted, atol=1e-4, err_msg=name)
    found = {name: float(value) for name, value in loss_values(model, batch).items()}
    assert tuple(found) == model.loss_names and found == pytest.approx(terms, abs=1e-4, rel=1e-6)
    widths = {"regression": 1, **dict.fromkeys(("classifier", "weighted", "tagging"), LABELS), "span": LENGTH}
    assert logits.shape == scores.shape and logits.shape[-1] == widths.get(kind, model.config.vocab_size)
    if kind == "pretraining":  # the reference's function
        words = (batch[f"masked_lm_{name}"] for name in ("positions", "ids", "weights"))
        found = heads.get_masked_lm_output(
            model.masked_lm, model.encode(batch).sequence_output, model.get_output_table(), *words
        )
        wanted = (
            terms["masked_lm_loss"],
            outputs["masked_lm_example_loss"].ravel(),
            scores.reshape(-1, scores.shape[-1]),
        )
        for value, of_numpy in zip(found, wanted, strict=True):
            np.testing.assert_allclose(value, of_numpy, atol=2e-5)


def test_the_denominator_of_masked_lm_is_the_weights_plus_a_little():
    model = small_model("pretraining")
    states, table, ids = tf.zeros([1, 3, 8]), model.get_output_table(), tf.constant([[1, 2, 3]])
    for weights in ([0.5, 0.25, 0.0], [1e-5, 0.0, 0.0], [0.0, 0.0, 0.0]):
        term, each, _ = losses.score_masked_words(model.masked_lm, states, table, ids, [weights])
        wanted = np.dot(each, weights) / (sum(weights) + 1e-5)
        assert float(term.mean()) == pytest.approx(wanted, rel=1e-6)


# Dropout on top of the encoder


@pytest.mark.parametrize("kind", MAKERS)
def test_a_tenth_of_what_the_head_reads_is_dropped_in_training_whatever_the_config_says(kind):
    """Only in fine-tuning tasks; with a unit matrix as the output layer, whose answer is what it reads."""
    labels, batch = small_config().hidden_size, batch_for(kind, 300)
    model = small_model(kind)
    if kind in ("pretraining", "masked_words", "span"):
        first = np.asarray(model(batch, training=True, dropout_seed=SEED))
        return np.testing.assert_array_equal(first, model(batch))
    model = {"classifier": heads.ClassifierModel, "tagging": heads.TaggingModel}[kind](small_config(), labels)
    randomize(model)
    model.output_layer.output_weights.assign(np.eye(labels))
    model.output_layer.output_bias.assign(np.zeros(labels))
    still = model(batch).numpy()
    first, again, other = (model(batch, training=True, dropout_seed=seed).numpy() for seed in (SEED, SEED, SEED + 1))
    np.testing.assert_array_equal(first, again)
    assert 0.1 < ((first == 0) != (other == 0)).mean() < 0.26  # of independent masks 0.18
    assert 0.08 < (first == 0).mean() < 0.12
    np.testing.assert_allclose(first[first != 0], still[first != 0] / 0.9, rtol=1e-4)


@pytest.mark.parametrize("kind", MAKERS)
def test_every_trained_variable_gets_a_gradient_and_no_other(kind):
    """And training drops out within the encoder, by the seed."""
    model, batch = small_model(kind, hidden_dropout_prob=0.3), batch_for(kind)
    variables = checkpoint.tf1_variables(model)

    def loss(seed) -> tf.Tensor:
        return tf.add_n([term.mean() for term in model.loss_terms(tensors(batch), dropout_seed=seed)])

    with tf.GradientTape() as tape:
        first = loss(SEED)
    gradients = dict(zip(variables, tape.gradient(first, list(variables.values())), strict=True))
    with_gradient = {name for name, gradient in gradients.items() if gradient is not None}
    assert with_gradient == set(checkpoint.trained_variables(model))
    model.head_dropout = 0.0
    assert loss(SEED) == loss(SEED) != loss(SEED + 1)


# Features of another shape

NEEDED = {
    "pretraining": ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights", "next_sentence_labels"),
    "masked_words": ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"),
    "classifier": ("label_ids",),
    "span": ("start_positions", "end_positions"),
    "tagging": ("label_ids",),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_features_of_another_shape_or_missing(kind):
    model, batch = small_model(kind), batch_for(kind)
    model.head_dropout = 0.0

    def refusal(changed) -> str:
        with pytest.raises(shapes.ShapeError) as caught:
            model.loss_terms(changed, dropout_seed=SEED)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    for name in ("input_mask", "segment_ids", *NEEDED[kind]):
        letters = {2: r"\[B, F\]", 1: r"\[B\]"}[batch[name].ndim] if "masked_lm" not in name else r"\[B, P\]"
        short = batch[name][:-1]
        assert re.match(rf"{name}: shape \[3.*\], wanted {letters} = \[4", refusal({**batch, name: short}))
        assert refusal({**batch, name: batch[name][..., None, None]}).startswith(f"{name}: shape ")
        if name in NEEDED[kind]:
            rest = {each: value for each, value in batch.items() if each != name}
            assert re.match(rf"{name}: missing, wanted \[B.*input_mask", refusal(rest))
        if kind in ("classifier", "span") and name in NEEDED[kind]:  # labels may be a column
            assert loss_values(model, {**batch, name: batch[name][:, None]}) == loss_values(model, batch)
    model({each: batch[each] for each in ("input_ids", "masked_lm_positions")})  # no more is needed


def test_arguments_of_the_reference_s_functions_of_another_shape():
    model, batch = small_model("pretraining"), batch_for("pretraining")
    output, table = model.encode(batch), model.get_output_table()
    words = [batch[f"masked_lm_{name}"] for name in ("positions", "ids", "weights")]
    states, pooled, labels = output.sequence_output, output.pooled_output, batch["next_sentence_labels"]
    for call, *arguments in (
        (heads.get_masked_lm_output, model.masked_lm, states[0], table, *words),
        (heads.get_masked_lm_output, model.masked_lm, states, table[:-1], *words),
        (heads.get_masked_lm_output, model.masked_lm, states, table, *words[:2], words[2][:, 1:]),
        (heads.get_next_sentence_output, model.next_sentence, pooled[:, 1:], labels),
        (heads.get_next_sentence_output, model.next_sentence, pooled, labels[1:]),
        (heads.gather_indexes, states, words[0][1:]),
        (model.masked_lm, pooled[:, 1:], table),
        (model.masked_lm, pooled, table[:, 1:]),
        (model.next_sentence, pooled[:, 1:]),
    ):
        with pytest.raises(shapes.ShapeError, match=r"shape .*wanted"):
            call(*arguments)

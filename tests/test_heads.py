"""The heads and their losses against the reference's numbers and numpy, and the shared embedding table."""

import numpy as np
import pytest
import reference_math
import tensorflow as tf
from small_models import (
    GOLDEN,
    LABELS,
    LENGTH,
    MAKERS,
    PREDICTIONS,
    VOCAB,
    batch_for,
    needs_golden,
    randomize,
    small_batch,
    small_config,
)

from bert_tf2 import heads, losses
from bert_tf2.config import ACTIVATIONS, BertConfig
from bert_tf2.weights import checkpoint

SEED = tf.constant([3, 4])


def small_model(kind: str, seed: int = 0, dtype: str = "float32", **changes):
    model = MAKERS[kind](small_config(**changes), dtype=dtype)
    randomize(model, seed)
    return model


def numpy_encoder(model, batch):
    weights = {name: variable.numpy() for name, variable in checkpoint.tf1_variables(model).items()}
    _, layers, pooled = reference_math.encoder(
        weights, model.config, batch["input_ids"], batch["input_mask"], batch["segment_ids"]
    )
    return weights, layers[-1], pooled


def tensors(batch) -> dict[str, tf.Tensor]:
    return {name: tf.constant(values) for name, values in batch.items()}


def loss_values(model, batch) -> dict[str, tf.Tensor]:
    return {term.name: term.mean() for term in model.loss_terms(tensors(batch), dropout_seed=SEED)}


def total_loss(model, batch) -> tf.Tensor:
    return tf.add_n(list(loss_values(model, batch).values()))


# The reference's numbers.


@pytest.fixture(scope="module")
def golden_model():
    model = heads.PretrainingModel(BertConfig.from_json_file(str(GOLDEN / "config" / "bert_config.json")))
    checkpoint.initialize(model, str(GOLDEN / "ckpt" / "pretrain" / "model.ckpt"))
    return model


GOLDEN_CASES = sorted(path.stem for path in GOLDEN.glob("forward/*.npz") if path.stem != "defaults")


@needs_golden
@pytest.mark.parametrize("case", GOLDEN_CASES)
def test_pretraining_heads_equal_the_reference(golden_model, case):
    golden = np.load(GOLDEN / "forward" / f"{case}.npz")
    model = golden_model
    output = model.bert(golden["input_ids"], golden["input_mask"], golden["token_type_ids"])
    masked_lm = heads.get_masked_lm_output(
        model.masked_lm,
        output.sequence_output,
        model.bert.get_embedding_table(),
        *(golden[f"masked_lm_{name}"] for name in ("positions", "ids", "weights")),
    )
    next_sentence = heads.get_next_sentence_output(
        model.next_sentence, output.pooled_output, golden["next_sentence_labels"]
    )
    allowed = 5e-3 if not golden["input_mask"].any(axis=1).all() else 2e-5
    compared = 0
    for head, values in (("masked_lm", masked_lm), ("next_sentence", next_sentence)):
        for name, value in zip(("loss", "example_loss", "log_probs"), values, strict=True):
            if (key := f"{head}_{name}") in golden:
                assert value.shape == golden[key].shape
                np.testing.assert_allclose(value, golden[key], rtol=1e-6, atol=allowed, err_msg=key)
                compared += 1
    assert compared == (5 if case == "max_length" else 6)


# Each head in numpy.


@pytest.mark.parametrize("hidden_act", ACTIVATIONS)
def test_masked_lm_equals_numpy(hidden_act):
    model, batch = small_model("pretraining", hidden_act=hidden_act), small_batch()
    weights, sequence, pooled = numpy_encoder(model, batch)
    log_probs = reference_math.masked_lm_log_probs(weights, model.config, sequence, batch["masked_lm_positions"])
    losses = reference_math.picked(log_probs, batch["masked_lm_ids"])
    kept = batch["masked_lm_weights"]
    loss = (kept * losses).sum() / (kept.sum() + 1e-5)

    got_loss, got_losses, got_log_probs = heads.get_masked_lm_output(
        model.masked_lm,
        model.encode(batch).sequence_output,
        model.bert.get_embedding_table(),
        *(tf.constant(batch[f"masked_lm_{name}"]) for name in ("positions", "ids", "weights")),
    )
    np.testing.assert_allclose(got_log_probs, log_probs.reshape(-1, VOCAB), atol=2e-5)
    np.testing.assert_allclose(got_losses, losses.reshape(-1), atol=2e-5)
    np.testing.assert_allclose(got_loss, loss, atol=1e-5)
    logits = model(batch)
    assert logits.shape == (4, PREDICTIONS, VOCAB)
    np.testing.assert_allclose(tf.nn.log_softmax(logits), log_probs, atol=2e-5)

    sentence = reference_math.log_softmax(reference_math.output_layer(weights, "cls/seq_relationship/", pooled))
    sentence_losses = reference_math.picked(sentence, batch["next_sentence_labels"])
    values = {name: float(value) for name, value in loss_values(model, batch).items()}
    assert tuple(values) == model.loss_names == ("masked_lm_loss", "next_sentence_loss")
    assert values == pytest.approx({"masked_lm_loss": loss, "next_sentence_loss": sentence_losses.mean()}, abs=1e-5)

    outputs = model.outputs(tensors(batch))
    np.testing.assert_allclose(outputs["masked_lm_example_loss"], losses, atol=2e-5)
    np.testing.assert_array_equal(outputs["masked_lm_predictions"], log_probs.argmax(-1))
    np.testing.assert_allclose(outputs["next_sentence_example_loss"], sentence_losses, atol=2e-5)
    np.testing.assert_array_equal(outputs["next_sentence_predictions"], sentence.argmax(-1))


def test_masked_words_alone_are_those_of_pretraining():
    both, batch = small_model("pretraining"), small_batch()
    alone = small_model("masked_words")
    values = {name: variable.numpy() for name, variable in checkpoint.tf1_variables(both).items()}
    for name, variable in checkpoint.tf1_variables(alone).items():
        variable.assign(values[name])
    of_both = loss_values(both, batch)
    found = loss_values(alone, batch)
    assert tuple(found) == alone.loss_names == ("masked_lm_loss",)
    np.testing.assert_allclose(found["masked_lm_loss"], of_both["masked_lm_loss"], rtol=1e-6)
    of_both, found = both.outputs(tensors(batch)), alone.outputs(tensors(batch))
    assert {*found} == {"masked_lm_example_loss", "masked_lm_predictions"}
    for name, value in found.items():
        np.testing.assert_allclose(value, of_both[name], rtol=1e-5)


def test_the_denominator_of_masked_lm_is_the_weights_plus_a_little():
    model, weights = small_model("pretraining"), [[0.5, 0.25, 0.0]]
    states, table = tf.zeros([1, 3, model.config.hidden_size]), model.get_output_table()
    term, each, _ = losses.score_masked_words(model.masked_lm, states, table, tf.constant([[1, 2, 3]]), weights)
    each = each.numpy()
    assert float(term.mean()) == pytest.approx((each[0] / 2 + each[1] / 4) / 0.75001, rel=1e-6)


@pytest.mark.parametrize("regression", [False, True])
def test_classifier_equals_numpy(monkeypatch, regression):
    monkeypatch.setattr(heads, "_CLASSIFIER_DROPOUT", 0.0)
    model, batch = heads.ClassifierModel(small_config(), LABELS, regression=regression), small_batch()
    randomize(model)
    weights, _, pooled = numpy_encoder(model, batch)
    answers = reference_math.output_layer(weights, "", pooled)
    if regression:
        batch["label_ids"] = np.array([0.5, 4.0, -1.0, 2.25], np.float32)
        losses = (answers[:, 0] - batch["label_ids"]) ** 2
    else:
        log_probs = reference_math.log_softmax(answers)
        answers, losses = np.exp(log_probs), reference_math.picked(log_probs, batch["label_ids"])
    outputs = model.outputs(tensors(batch))
    np.testing.assert_allclose(outputs["probabilities"], answers, atol=1e-5)
    np.testing.assert_allclose(outputs["example_loss"], losses, atol=1e-4)
    assert float(total_loss(model, batch)) == pytest.approx(losses.mean(), abs=1e-4)


def test_spans_equal_numpy():
    model, batch = small_model("span"), small_batch()
    weights, sequence, _ = numpy_encoder(model, batch)
    logits = reference_math.output_layer(weights, "cls/squad/", sequence)
    outputs = model.outputs(tensors(batch))
    np.testing.assert_allclose(outputs["start_logits"], logits[..., 0], atol=2e-5)
    np.testing.assert_allclose(outputs["end_logits"], logits[..., 1], atol=2e-5)
    # Over all positions, padding too: the reference does not leave it out.
    start = reference_math.picked(reference_math.log_softmax(logits[..., 0]), batch["start_positions"])
    end = reference_math.picked(reference_math.log_softmax(logits[..., 1]), batch["end_positions"])
    assert float(total_loss(model, batch)) == pytest.approx((start.mean() + end.mean()) / 2, abs=1e-5)


def test_tagging_equals_numpy_and_leaves_unlabeled_tokens_out(monkeypatch):
    monkeypatch.setattr(heads, "_CLASSIFIER_DROPOUT", 0.0)
    model, batch = small_model("tagging"), batch_for("tagging")
    weights, sequence, _ = numpy_encoder(model, batch)
    log_probs = reference_math.log_softmax(reference_math.output_layer(weights, "", sequence))
    labeled = batch["label_ids"] >= 0
    losses = reference_math.picked(log_probs, np.maximum(batch["label_ids"], 0))[labeled]
    assert 0 < labeled.sum() < labeled.size
    assert model(batch).shape == (4, LENGTH, LABELS)
    assert float(total_loss(model, batch)) == pytest.approx(losses.sum() / (len(losses) + 1e-5), abs=1e-5)
    np.testing.assert_array_equal(model.outputs(tensors(batch))["predictions"], log_probs.argmax(-1))


# Dropout on top of the encoder.


@pytest.mark.parametrize("kind", ["classifier", "tagging"])
def test_what_the_head_reads_is_dropped_in_training_whatever_the_config_says(kind):
    model, batch = small_model(kind), batch_for(kind)
    still = model(batch)
    first, again = (model(batch, training=True, dropout_seed=SEED) for _ in range(2))
    other = model(batch, training=True, dropout_seed=SEED + 1)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - still).max() > 1e-2
    assert np.abs(first - other).max() > 1e-2


@pytest.mark.parametrize("kind", ["pretraining", "span"])
def test_the_other_heads_drop_nothing_of_their_own(kind):
    model, batch = small_model(kind), batch_for(kind)
    np.testing.assert_array_equal(model(batch, training=True, dropout_seed=SEED), model(batch))


@pytest.mark.parametrize("kind", MAKERS)
def test_every_trained_variable_gets_a_gradient_and_no_other(kind):
    model, batch = small_model(kind), batch_for(kind)
    variables = checkpoint.tf1_variables(model)
    with tf.GradientTape() as tape:
        loss = total_loss(model, batch)
    gradients = dict(zip(variables, tape.gradient(loss, list(variables.values())), strict=True))
    with_gradient = {name for name, gradient in gradients.items() if gradient is not None}
    assert with_gradient == set(checkpoint.trained_variables(model))

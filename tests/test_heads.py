"""The heads and their losses against the reference's numbers and numpy, and the shared embedding table."""

from __future__ import annotations

import numpy as np
import pytest
import reference_math as math
import tensorflow as tf
from refused import refuses
from small_models import GOLDEN, LABELS, LENGTH, MAKERS, batch_for, needs_golden, randomize, small_config, values_of

from bert_tf2 import heads, losses, shapes
from bert_tf2.config import BertConfig
from bert_tf2.weights import checkpoint

SEED = tf.constant([3, 4])
OF_WORDS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
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
        words = (golden[name] for name in OF_WORDS)
        of_words = heads.get_masked_lm_output(model.masked_lm, output.sequence_output, table, *words)
        labels = golden["next_sentence_labels"]
        of_order = heads.get_next_sentence_output(model.next_sentence, output.pooled_output, labels)
        found |= {f"masked_lm_{name}": value for name, value in zip(names, of_words, strict=True)}
        found |= {f"next_sentence_{name}": value for name, value in zip(names, of_order, strict=True)}
    # In a row of padding only, the scores are near -10000, where float32 has a resolution of 1e-3.
    allowed = 2e-5 if mask is None or mask.any(axis=1).all() else 5e-3
    for name in {*golden.files} - {"input_ids", "input_mask", "token_type_ids", "next_sentence_labels", *OF_WORDS}:
        assert found[name].shape == golden[name].shape
        np.testing.assert_allclose(found[name], golden[name], rtol=1e-6, atol=allowed, err_msg=name)


# Each head in numpy


def expected(kind: str, model, batch) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, float]]:
    """The logits as log probabilities or numbers, the result of `outputs`, and the losses."""
    weights, config = values_of(model), model.config
    _, layers, pooled = math.encoder(weights, config, *(batch[f] for f in ("input_ids", "input_mask", "segment_ids")))
    if kind in ("pretraining", "masked_words"):
        words = math.masked_lm_log_probs(weights, config, layers[-1], batch["masked_lm_positions"])
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
    scores, labels = math.output_layer(weights, "", layers[-1] if kind == "tagging" else pooled), batch["label_ids"]
    if kind == "regression":
        each = (scores[:, 0] - labels) ** 2
        return scores, {"probabilities": scores, "example_loss": each}, {"loss": each.mean()}
    log_probs = math.log_softmax(scores)
    each = math.picked(log_probs, np.maximum(labels, 0))
    if kind == "tagging":
        each = each[labels >= 0]
        assert 0 < each.size < labels.size
        return log_probs, {"predictions": log_probs.argmax(-1)}, {"loss": each.sum() / (each.size + 1e-5)}
    loss = np.average(each, weights=np.take(model.class_weights or np.ones(LABELS), labels))
    return log_probs, {"probabilities": np.exp(log_probs), "example_loss": each}, {"loss": loss}


@pytest.mark.parametrize(("kind", "hidden_act"), [*((kind, "gelu") for kind in KINDS), ("pretraining", "relu")])
def test_a_head_equals_numpy(kind, hidden_act):
    model, batch = small_model(kind, hidden_act=hidden_act), batch_for(kind)
    model.head_dropout = 0.0
    if kind == "weighted":
        model.class_weights = (1.0, 3.0, 0.5)
    if kind == "regression":
        batch["label_ids"] = np.array([0.5, 4.0, -1.0, 2.25], np.float32)
    scores, outputs, terms = expected(kind, model, batch)
    logits = np.asarray(model(batch))
    found = logits if kind in ("span", "regression") else tf.nn.log_softmax(logits)
    np.testing.assert_allclose(found, scores, atol=2e-5)
    widths = {"regression": 1, **dict.fromkeys(("classifier", "weighted", "tagging"), LABELS), "span": LENGTH}
    assert logits.shape == scores.shape and logits.shape[-1] == widths.get(kind, model.config.vocab_size)
    found = model.outputs(tensors(batch))
    assert {*found} == {*outputs}
    for name, wanted in outputs.items():
        np.testing.assert_allclose(found[name], wanted, atol=1e-4, err_msg=name)
    found = {name: float(value) for name, value in loss_values(model, batch).items()}
    assert tuple(found) == model.loss_names and found == pytest.approx(terms, abs=1e-4, rel=1e-6)


def test_the_denominator_of_masked_lm_is_the_weights_plus_a_little():
    model = small_model("pretraining")
    states, table, ids = tf.zeros([1, 3, 8]), model.get_output_table(), tf.constant([[1, 2, 3]])
    for weights in ([0.5, 0.25, 0.0], [1e-5, 0.0, 0.0], [0.0, 0.0, 0.0]):
        term, each, _ = losses.score_masked_words(model.masked_lm, states, table, ids, [weights])
        wanted = np.dot(each, weights) / (sum(weights) + 1e-5)
        assert float(term.mean()) == pytest.approx(wanted, rel=1e-6)


# Dropout, gradients


@pytest.mark.parametrize("make", [heads.ClassifierModel, heads.TaggingModel])
def test_a_tenth_of_the_values_that_a_head_reads_is_dropped_in_training_whatever_the_config_says(make):
    """With a unit matrix as the output layer, whose answer is the values that it reads."""
    width, batch = small_config().hidden_size, batch_for("classifier", 300)
    randomize(model := make(small_config(), width))
    model.output_layer.output_weights.assign(np.eye(width))
    model.output_layer.output_bias.assign(np.zeros(width))
    still = model(batch).numpy()
    first, again, other = (model(batch, training=True, dropout_seed=seed).numpy() for seed in (SEED, SEED, SEED + 1))
    np.testing.assert_array_equal(first, again)
    assert 0.1 < ((first == 0) != (other == 0)).mean() < 0.26  # of independent masks 0.18
    assert 0.08 < (first == 0).mean() < 0.12
    np.testing.assert_allclose(first[first != 0], still[first != 0] / 0.9, rtol=1e-4)


@pytest.mark.parametrize("kind", MAKERS)
def test_every_trained_variable_gets_a_gradient_and_no_other(kind):
    """And training drops out within the encoder, by the seed; heads without dropout of their own drop nothing."""
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
    if kind in ("pretraining", "masked_words", "span"):
        plain = small_model(kind)
        trained = np.asarray(plain(batch, training=True, dropout_seed=SEED))
        np.testing.assert_array_equal(trained, plain(batch))


# Features of another shape

NEEDED = {
    "pretraining": (*OF_WORDS, "next_sentence_labels"), "masked_words": OF_WORDS, "classifier": ("label_ids",),
    "span": ("start_positions", "end_positions"), "tagging": ("label_ids",),
}  # fmt: skip


@pytest.mark.parametrize("kind", MAKERS)
def test_features_of_another_shape_or_missing(kind):
    model, batch = small_model(kind), batch_for(kind)
    model.head_dropout = 0.0
    for name in ("input_mask", "segment_ids", *NEEDED[kind]):
        changes = {"shape [3": batch[name][:-1], "shape ": batch[name][..., None, None]}
        for words, value in {**changes, **({"missing": None} if name in NEEDED[kind] else {})}.items():
            changed = {each: v for each, v in {**batch, name: value}.items() if v is not None}
            with pytest.raises(shapes.ShapeError) as caught:
                model.loss_terms(changed, dropout_seed=SEED)
            assert str(caught.value).startswith(f"{name}: {words}") and "\n" not in str(caught.value)
        if name in NEEDED[kind] and kind in ("classifier", "span"):  # labels may be a column
            assert loss_values(model, {**batch, name: batch[name][:, None]}) == loss_values(model, batch)
    model({each: batch[each] for each in ("input_ids", "masked_lm_positions")})  # no more is needed


def test_the_reference_s_functions_take_no_other_shapes_and_no_config():
    model, batch = small_model("pretraining"), batch_for("pretraining")
    output, table = model.encode(batch), model.get_output_table()
    states, pooled, labels = output.sequence_output, output.pooled_output, batch["next_sentence_labels"]
    words = [batch[name] for name in OF_WORDS]
    for call, *arguments in (
        (heads.get_masked_lm_output, model.masked_lm, states, table[:-1], *words),
        (heads.get_masked_lm_output, model.masked_lm, states, table, *words[:2], words[2][:, 1:]),
        (heads.get_next_sentence_output, model.next_sentence, pooled, labels[1:]),
        (heads.gather_indexes, states, words[0][1:]),
    ):
        with pytest.raises(shapes.ShapeError, match=r"shape .*wanted"):
            call(*arguments)
        if call is not heads.gather_indexes:  # the first argument in the reference is a BertConfig
            refuses(f"BertConfig {type(arguments[0]).__name__}", call, model.config, *arguments[1:])

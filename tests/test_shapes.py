"""Arguments of the wrong shape: a one-line error however the model is run, and no additional operations in graphs."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
from small_models import LENGTH, MAKERS, PREDICTIONS, VOCAB, batch_for, small_config

from bert_tf2 import heads, modeling, shapes
from bert_tf2.support.errors import UserError

WIDTH = small_config().hidden_size
B, F, P, D, V = 4, LENGTH, PREDICTIONS, WIDTH, VOCAB


def ints(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


def floats(*shape: int) -> tf.Tensor:
    return tf.zeros(shape)


@pytest.fixture(scope="module")
def models() -> dict[str, heads._Model]:
    return {kind: make(small_config()) for kind, make in MAKERS.items()}


@pytest.fixture(scope="module")
def bert(models) -> modeling.BertModel:
    return models["span"].bert


def refusal(call, *args, **kwargs) -> str:
    with pytest.raises(shapes.ShapeError) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# The comparison


def refused(*wanted: str, contract: shapes.Contract | None = None, **arguments) -> str:
    return refusal((contract or shapes.Contract()).check, *wanted, **arguments)


def test_the_message_names_argument_shape_and_wanted_shape():
    assert refused("BF", input_ids=ints(8, 128), input_mask=ints(8, 64)) == (
        "input_mask: shape [8, 64], wanted [B, F] = [8, 128]"
    )
    assert refused("BF", input_ids=ints(128)) == "input_ids: shape [128], wanted [B, F]"
    assert refused("2", dropout_seed=ints(3)) == "dropout_seed: shape [3], wanted [2]"
    assert refused("B", "B1", labels=ints(4, 2)) == "labels: shape [4, 2], wanted [B]"
    assert refused("...D", contract=shapes.Contract(D=8), x=ints(4, 6)) == (
        "x: shape [4, 6], wanted [..., D] = [..., 8]"
    )


def test_a_letter_has_the_size_of_its_first_occurrence():
    contract = shapes.Contract(D=8)
    contract.check("BFD", states=floats(4, 10, 8))
    contract.check("BP", positions=ints(4, 3))
    assert refused("BP", contract=contract, ids=ints(5, 3)) == "ids: shape [5, 3], wanted [B, P] = [4, 3]"
    assert refused("BP", contract=contract, ids=ints(12)) == "ids: shape [12], wanted [B, P] = [4, 3]"
    assert refused("BXD", contract=contract, other=floats(4, 3, 2)).endswith("[B, X, D] = [4, X, 8]")


def test_what_is_not_known_fits():
    contract = shapes.Contract(D=8)
    contract.check("BFD", states=tf.keras.Input([None, 8]), other=tf.keras.Input([10, 8]), last=None)
    assert refused("BF", contract=contract, ids=ints(3, 9)).endswith("[B, F] = [B, 10]")

    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec([None, 10])])
    def graph(any_rank, rows):
        contract = shapes.Contract(B=4)
        contract.check("BF", any_rank=any_rank, rows=rows)
        return rows

    assert graph(floats(1), floats(3, 10)).shape == (3, 10)


# Every argument of the encoder and of the functions and layers of heads

ENCODER = {"input_ids": ints(B, F), "input_mask": ints(B, F), "token_type_ids": ints(B, F)}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("input_ids", ints(F), "input_ids: shape [10], wanted [B, F]"),
        ("input_ids", ints(B, F, 1), "input_ids: shape [4, 10, 1], wanted [B, F]"),
        ("input_mask", ints(B, 1), "input_mask: shape [4, 1], wanted [B, F] = [4, 10]"),
        ("input_mask", ints(1, F), "input_mask: shape [1, 10], wanted [B, F] = [4, 10]"),
        ("token_type_ids", ints(B, F + 1), "token_type_ids: shape [4, 11], wanted [B, F] = [4, 10]"),
        ("dropout_seed", ints(3), "dropout_seed: shape [3], wanted [2]"),
    ],
)
def test_the_encoder(bert, name, value, message):
    assert refusal(bert, **{**ENCODER, name: value}) == message


MASKED_LM = {
    "input_tensor": floats(B, F, D),
    "output_weights": floats(V, D),
    "positions": ints(B, P),
    "label_ids": ints(B, P),
    "label_weights": floats(B, P),
}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("input_tensor", floats(B, D), "[4, 8], wanted [B, F, D] = [B, F, 8]"),
        ("input_tensor", floats(B, F, D + 1), "[4, 10, 9], wanted [B, F, D] = [B, F, 8]"),
        ("output_weights", floats(D, V), "[8, 23], wanted [V, D] = [23, 8]"),
        ("positions", ints(B * P), "[16], wanted [B, P] = [4, P]"),
        ("positions", ints(B + 1, P), "[5, 4], wanted [B, P] = [4, P]"),
        ("label_ids", ints(B, P + 1), "[4, 5], wanted [B, P] = [4, 4]"),
        ("label_weights", floats(B * P), "[16], wanted [B, P] = [4, 4]"),
    ],
)
def test_get_masked_lm_output(models, name, value, message):
    head = models["pretraining"].masked_lm
    heads.get_masked_lm_output(head, **MASKED_LM)
    found = refusal(heads.get_masked_lm_output, head, **{**MASKED_LM, name: value})
    assert found == f"{name}: shape {message}"


# Every feature of every model

NEEDED = {
    "pretraining": ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights", "next_sentence_labels"),
    "masked_words": ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"),
    "classifier": ("label_ids",),
    "span": ("start_positions", "end_positions"),
    "tagging": ("label_ids",),
}
FEATURES = [(kind, name) for kind, labels in NEEDED.items() for name in ("input_mask", "segment_ids", *labels)]


def loss_of(model, batch) -> None:
    model.loss_terms(batch, dropout_seed=tf.constant([1, 2]))


@pytest.mark.parametrize(("kind", "name"), FEATURES)
def test_a_feature_of_another_shape(models, kind, name):
    batch = batch_for(kind)
    loss_of(models[kind], batch)
    short = {**batch, name: batch[name][:-1]}
    letters = {2: "[B, F]", 1: "[B]"}[batch[name].ndim] if not name.startswith("masked_lm") else "[B, P]"
    assert refusal(loss_of, models[kind], short).startswith(
        f"{name}: shape {[*short[name].shape]}, wanted {letters} = "
    )
    deep = {**batch, name: batch[name][..., None, None]}
    assert refusal(loss_of, models[kind], deep).startswith(f"{name}: shape ")


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, labels in NEEDED.items() for n in ("input_ids", *labels)])
def test_a_feature_that_is_missing(models, kind, name):
    batch = {key: value for key, value in batch_for(kind).items() if key != name}
    assert re.match(
        rf"{name}: missing, wanted \[B.*; the batch has .*input_mask", refusal(loss_of, models[kind], batch)
    )


@pytest.mark.parametrize("kind", MAKERS)
def test_what_a_call_does_not_need_may_be_missing(models, kind):
    batch = batch_for(kind)
    models[kind]({name: batch[name] for name in ("input_ids", "masked_lm_positions")})
    assert refusal(models[kind], tf.constant(batch["input_ids"])).startswith("batch: is a EagerTensor, wanted a dict")


@pytest.mark.parametrize("kind", ["classifier", "span"])
def test_labels_may_be_a_column(models, kind):
    batch = batch_for(kind)
    columns = {name: batch[name][:, None] for name in NEEDED[kind]}
    model = models[kind]
    wanted, found = (model.loss_terms(b, dropout_seed=tf.constant([1, 2])) for b in (batch, {**batch, **columns}))
    np.testing.assert_allclose(found[0].mean(), wanted[0].mean(), rtol=1e-6)


# The message is one line however the model is run


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"jit_compile": True}, {"autograph": False}], ids=str)
def test_the_message_survives_a_graph(models, options):
    batch = {name: tf.constant(value) for name, value in batch_for("classifier").items()}
    graph = tf.function(lambda batch: models["classifier"](batch), **options)
    graph(batch)
    wrong = {**batch, "input_mask": batch["input_mask"][:, :7]}
    assert refusal(graph, wrong) == "input_mask: shape [4, 7], wanted [B, F] = [4, 10]"


def test_user_errors_from_inside_a_layer_stay_one_line(bert):
    message = "a sequence of 17 tokens is longer than the model's max_position_embeddings 16"
    for call in (bert, tf.function(lambda ids: bert(ids).pooled_output)):
        with pytest.raises(UserError) as caught:
            call(tf.zeros([1, 17], tf.int32))
        assert str(caught.value) == message

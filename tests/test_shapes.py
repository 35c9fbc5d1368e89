"""Arguments of the wrong shape: a one-line error however the model is run, and no additional operations in graphs."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
from small_models import LENGTH, MAKERS, PREDICTIONS, VOCAB, batch_for, small_config

from bert_tf2 import heads, modeling, shapes

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


# Every argument of the encoder, and every feature of every model

ENCODER = {"input_ids": ints(B, F), "input_mask": ints(B, F), "token_type_ids": ints(B, F)}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("input_ids", ints(F), "input_ids: shape [10], wanted [B, F]"),
        ("input_mask", ints(B, 1), "input_mask: shape [4, 1], wanted [B, F] = [4, 10]"),
        ("token_type_ids", ints(B, F + 1), "token_type_ids: shape [4, 11], wanted [B, F] = [4, 10]"),
        ("dropout_seed", ints(3), "dropout_seed: shape [3], wanted [2]"),
    ],
)
def test_the_encoder(bert, name, value, message):
    assert refusal(bert, **{**ENCODER, name: value}) == message


NEEDED = {
    "pretraining": ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights", "next_sentence_labels"),
    "masked_words": ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"),
    "classifier": ("label_ids",),
    "span": ("start_positions", "end_positions"),
    "tagging": ("label_ids",),
}
FEATURES = [(kind, name) for kind, labels in NEEDED.items() for name in ("input_mask", "segment_ids", *labels)]


def loss_of(model, batch) -> float:
    return float(model.loss_terms(batch, dropout_seed=tf.constant([1, 2]))[0].mean())


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
    if name in NEEDED[kind]:
        del short[name]
        assert re.match(
            rf"{name}: missing, wanted \[B.*; the batch has .*input_mask", refusal(loss_of, models[kind], short)
        )
    if kind in ("classifier", "span") and name in NEEDED[kind]:  # labels may be a column
        assert loss_of(models[kind], {**batch, name: batch[name][:, None]}) == loss_of(models[kind], batch)
    models[kind]({each: batch[each] for each in ("input_ids", "masked_lm_positions")})  # no more is needed

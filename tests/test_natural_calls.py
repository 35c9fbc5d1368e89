"""The encoder as people call it: dictionaries, lists, odd types, in functional models with layers that read masks."""

from __future__ import annotations

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy_data
from refused import message_of
from small_models import MAKERS, batch_for, randomize, small_batch, small_config, tiny_config

import bert_tf2
from bert_tf2 import heads, modeling
from bert_tf2.fast.encoder import Plan, accelerate

NAMES = ("input_ids", "input_mask", "segment_ids")
IDS = np.array([[1, 2, 3, 4], [5, 6, 0, 0]], np.int32)
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], np.int32)
TYPES = np.array([[0, 0, 1, 1], [0, 0, 0, 0]], np.int32)
NAMED = dict(zip(NAMES, (IDS, MASK, TYPES), strict=True))


@pytest.fixture(scope="module")
def model():
    model = modeling.BertModel(small_config())
    randomize(model)
    return model


@pytest.fixture(scope="module")
def fast():
    return accelerate(MAKERS["classifier"](small_config()), Plan()).encoder


def test_every_way_to_give_the_inputs(model):
    wanted = model(IDS, MASK, TYPES).sequence_output.numpy()
    other = {"input_ids": IDS, "input_mask": MASK, "token_type_ids": TYPES}
    for name, call in {
        "dictionary": lambda: model(NAMED),
        "other names": lambda: model(other),
        "keywords": lambda: model(**NAMED),
        "other keywords": lambda: model(**other),
        "int64": lambda: model(IDS.astype(np.int64), MASK.astype(np.int64), TYPES.astype(np.int64)),
        "uint32": lambda: model(IDS.astype(np.uint32), MASK.astype(bool), TYPES.astype(np.uint8)),
        "a mask of other numbers": lambda: model(IDS, -2 * MASK, TYPES),
        "a mask of floats": lambda: model(IDS, 0.5 * MASK, TYPES),
        "graph": lambda: tf.function(lambda batch: model(batch))(NAMED),
        "predict": lambda: model.predict(NAMED, verbose=0),
    }.items():
        np.testing.assert_allclose(call().sequence_output, wanted, atol=1e-6, err_msg=name)
    classifier = MAKERS["classifier"](small_config())
    np.testing.assert_array_equal(classifier(NAMED), classifier(other))


def test_what_is_no_input(model, fast):
    """test_modeling.py has other shapes and numbers."""
    for inputs, parts in (
        ((tf.constant([["a"]]),), "input_ids string"),
        ((tf.ragged.constant([[1], [2, 3]]),), "input_ids pad"),
        ((tf.sparse.from_dense(IDS),), "input_ids pad"),
        ((np.zeros([1, 0], np.int32),), "input_ids tokens"),
        ((np.zeros([1, 17], np.int32),), "17 16"),
        (({"ids": IDS},), "input_ids missing"),
    ):
        for encoder in (model, fast):
            message = message_of(encoder, *inputs)
            assert all(part in message for part in parts.split())


def test_a_decision_within_a_graph_is_refused(model, fast):
    for encoder in (model, fast):
        call = tf.function(lambda training, encoder=encoder: encoder(IDS, training=training))
        assert "training" in message_of(call, tf.constant(True))
        encoder(IDS, training=tf.constant(False))


def test_configurations(tmp_path, model):
    path = tmp_path / "bert_config.json"
    path.write_text(model.config.to_json_string())
    for config in (model.config.to_dict(), path, str(path)):
        assert modeling.BertModel(config).config == heads.MaskedLMModel(config).config == model.config
    assert "config" in message_of(modeling.BertModel, 3)


@pytest.mark.parametrize(("dtype", "near"), [("mixed_bfloat16", 0.05), ("float64", 1e-5), ("float16", 0.02)])
def test_types_of_the_computation(dtype, near):
    """Of each head, and in training; positions may be int64, in batches of any size."""
    for kind, make in MAKERS.items():
        wide, model = make(small_config()), make(small_config(), dtype=dtype)
        for one, other in zip(wide.variables, model.variables, strict=True):
            other.assign(tf.cast(one.value, other.dtype))
        batch = {name: tf.constant(values) for name, values in batch_for(kind).items()}
        found, wanted = model.bert(batch, training=True).sequence_output, wide.bert(batch).sequence_output
        assert found.dtype == model.compute_dtype
        np.testing.assert_allclose(tf.cast(found, tf.float32), wanted, atol=near)
        accelerate(model, Plan(unpad="groups"))
        assert all(np.isfinite(float(term.total)) for term in model.loss_terms(batch, tf.constant([1, 2])))
        if kind == "masked_words" and dtype == "float64":
            batch["masked_lm_positions"] = tf.cast(batch["masked_lm_positions"], tf.int64)
            specs = {name: tf.TensorSpec([None] * len(values.shape), values.dtype) for name, values in batch.items()}
            found = tf.function(model.outputs, input_signature=[specs])(batch)["masked_lm_predictions"]
            np.testing.assert_array_equal(found, wide.outputs(batch)["masked_lm_predictions"])


@pytest.mark.parametrize("way", ["checkpoint", "weights", "model"])
@pytest.mark.parametrize("kind", MAKERS)
def test_every_variable_is_saved(kind, way, tmp_path):
    make = MAKERS[kind]
    model, copy = make(tiny_config()), make(tiny_config())
    values = randomize(model)
    if way == "checkpoint":
        saved, restored = (tf.train.Checkpoint(model=each) for each in (model, copy))
        restored.restore(saved.save(str(tmp_path / "x"))).assert_consumed()
    elif way == "weights":
        model.save_weights(tmp_path / "x.weights.h5")
        copy.load_weights(tmp_path / "x.weights.h5")
    else:
        model.save(tmp_path / "x.keras")
        copy.set_weights(keras.models.load_model(tmp_path / "x.keras").get_weights())
    assert len(values) == len(model.variables)
    for ours, theirs in zip(model.variables, copy.variables, strict=True):
        np.testing.assert_array_equal(theirs, ours, err_msg=ours.path)


def functional(encoder):
    inputs = {name: keras.Input([4], dtype="int32", name=name) for name in NAMES}
    own = keras.Model(inputs, keras.layers.Dense(2)(encoder(inputs).pooled_output))
    own.compile(bert_tf2.AdamWeightDecay(bert_tf2.WarmupAndDecay(1e-3, 10, 2)), "mse")
    return own


@pytest.mark.slow
def test_a_model_with_ours_inside_in_a_new_process(tmp_path, encoder):
    """And a classifier of texts, which is loaded and answers there."""
    own, y = functional(modeling.BertModel(tiny_config())), np.ones([2, 2])
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), delete_checkpoint=False)
    own.fit(NAMED, y, epochs=2, verbose=0, callbacks=[backup])
    wanted = own.predict(NAMED, verbose=0)
    own.save(tmp_path / "own.keras")
    again = functional(modeling.BertModel(tiny_config()))
    again.fit(NAMED, y, epochs=2, verbose=0, callbacks=[backup])  # restores, and has nothing left to do
    np.testing.assert_allclose(again.predict(NAMED, verbose=0), wanted, atol=1e-6)
    films = bert_tf2.classifier(encoder, labels=["no", "yes"])
    films.save(tmp_path / "films.keras")
    np.savez(tmp_path / "x.npz", **NAMED, wanted=wanted, of_film=films.predict(["a film"], verbose=0))
    for first in ("bert_tf2", "keras"):  # whichever is imported first
        code = f"""
import {first}, bert_tf2, sys
assert {first!r} == "keras" or "tensorflow" not in sys.modules
import keras, numpy as np
own, films = (keras.models.load_model(name + ".keras") for name in ("own", "films"))
x = dict(np.load("x.npz"))
wanted = x.pop("wanted")
np.testing.assert_allclose(films.predict(["a film"], verbose=0), x.pop("of_film"), atol=1e-6)
np.testing.assert_allclose(own.predict(x, verbose=0), wanted, atol=1e-6)
own.fit(x, wanted, verbose=0)
assert type(own.optimizer) is bert_tf2.AdamWeightDecay and int(own.optimizer.iterations) == 3
"""
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


# Layers that read masks

POOLED = {
    "mean": lambda output: keras.layers.GlobalAveragePooling1D()(output.get_sequence_output()),
    "lstm": lambda output: keras.layers.LSTM(4)(output.sequence_output),
    "layers": lambda output: keras.layers.GlobalAveragePooling1D()(
        keras.layers.Average()([output.get_embedding_output(), *output.get_all_encoder_layers()])
    ),
}
CALLS = {
    "dict": lambda bert, given: bert(given),
    "positions": lambda bert, given: bert(*given.values()),
    "names": lambda bert, given: bert(given["input_ids"], input_mask=given["input_mask"]),
}


@pytest.mark.parametrize("call", CALLS)
def test_layers_that_read_masks_ignore_padding(encoder, tmp_path, call):
    """A row beside longer ones has the answer of the row alone, also after save and export."""
    bert = bert_tf2.load(encoder)
    bert.embed("a film")  # has computed with what `accelerate` puts in place of the encoder
    given = {name: keras.Input([None], dtype="int32", name=name) for name in NAMES}
    output = CALLS[call](bert.encoder, given)
    model = keras.Model(given, {name: pooled(output) for name, pooled in POOLED.items()})
    batch = {name: small_batch()[name] for name in NAMES}
    computes = [model]
    if call == "dict":
        model.save(tmp_path / "model.keras")
        model.export(tmp_path / "served", verbose=False)
        computes.append(keras.models.load_model(tmp_path / "model.keras"))
        served = tf.saved_model.load(str(tmp_path / "served"))  # which owns the variables
        computes.append(served.serve)
    alone = [
        model({name: values[row : row + 1, :length] for name, values in batch.items()})
        for row, length in enumerate(batch["input_mask"].sum(1))
    ]
    for compute in computes:
        found = compute({name: tf.constant(values) for name, values in batch.items()})
        for name in POOLED:
            np.testing.assert_allclose(found[name], np.concatenate([row[name] for row in alone]), atol=1e-5)


@pytest.mark.parametrize("plan", [Plan(), Plan(unpad="groups")])
def test_masks_of_an_accelerated_encoder(plan):
    model = heads.TaggingModel(small_config(), 3)
    randomize(model)
    given = [tf.constant(small_batch()[name]) for name in NAMES]
    wanted = POOLED["mean"](model.bert(*given))
    np.testing.assert_allclose(POOLED["mean"](accelerate(model, plan).encoder(*given)), wanted, atol=1e-5)
    assert np.abs(POOLED["mean"](model.bert(given[0], None, given[2])) - wanted).max() > 1e-3


@pytest.mark.parametrize("pair", ["load", "BertModel", "heads"])
def test_two_encoders_in_one_model(tmp_path, pair):
    def make(seed: int):
        if pair == "load":
            toy_data.write_trained(tmp_path / str(seed), heads.PretrainingModel(toy_data.config(num_hidden_layers=1)))
            return bert_tf2.load(tmp_path / str(seed)).encoder
        return modeling.BertModel(small_config()) if pair == "BertModel" else MAKERS["tagging"](small_config()).bert

    encoders = [make(seed) for seed in (1, 2)]
    for seed, encoder in enumerate(encoders):
        randomize(encoder, seed)
    given = {name: keras.Input([None], dtype="int32", name=name) for name in NAMES}
    model = keras.Model(given, keras.layers.Concatenate()([encoder(given).pooled_output for encoder in encoders]))
    model.save(tmp_path / "two.keras")
    again = keras.models.load_model(tmp_path / "two.keras")
    batch = {name: tf.constant(small_batch()[name]) for name in NAMES}
    wanted = np.concatenate([encoder(batch).pooled_output for encoder in encoders], axis=-1)
    np.testing.assert_allclose(again(batch), wanted, atol=1e-6)


def test_parts_of_the_encoder_take_states_with_a_mask_in_silence(recwarn, model):
    """As a reader who follows a sentence through the layers calls them."""
    states = model(np.array([[5, 6, 0]]), np.array([[1, 1, 0]])).embedding_output
    block = model.blocks[0]
    block.attention_norm(states, block.attention.query(states))
    assert not [str(warning.message) for warning in recwarn if "mask" in str(warning.message)]

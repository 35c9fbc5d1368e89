"""The encoder as people call it: dictionaries, lists, odd types, in functional models with layers that read masks."""

from __future__ import annotations

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy_data
from refused import refuses
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


def test_every_way_to_give_the_inputs(model):
    wanted = model(IDS, MASK, TYPES).sequence_output.numpy()
    other = {"input_ids": IDS, "input_mask": MASK, "token_type_ids": TYPES}
    for name, call in {
        "dictionary": lambda: model(NAMED),
        "other names": lambda: model(other),
        "keywords": lambda: model(**other),
        "int64": lambda: model(IDS.astype(np.int64), MASK.astype(np.int64), TYPES.astype(np.int64)),
        "uint32": lambda: model(IDS.astype(np.uint32), MASK.astype(bool), TYPES.astype(np.uint8)),
        "a mask of other numbers": lambda: model(IDS, -2 * MASK, TYPES),
        "a mask of floats": lambda: model(IDS, 0.5 * MASK, TYPES),
        "graph": lambda: tf.function(lambda batch: model(batch))(NAMED),
    }.items():
        np.testing.assert_allclose(call().sequence_output, wanted, atol=1e-6, err_msg=name)
    classifier = MAKERS["classifier"](small_config())
    np.testing.assert_array_equal(classifier(NAMED), classifier(other))


def test_what_is_no_input(model):
    """test_modeling.py has other shapes and numbers."""
    for encoder in (model, accelerate(MAKERS["classifier"](small_config()), Plan()).faster):
        for inputs, words in (
            (tf.constant([["a"]]), "input_ids string"),
            (tf.ragged.constant([[1], [2, 3]]), "input_ids pad"),
            (tf.sparse.from_dense(IDS), "input_ids pad"),
            (np.zeros([1, 0], np.int32), "input_ids tokens"),
            (np.zeros([1, 17], np.int32), "17 16"),
            ({"ids": IDS}, "input_ids missing"),
        ):
            refuses(words, encoder, inputs)
        call = tf.function(lambda training, encoder=encoder: encoder(IDS, training=training))
        refuses("training", call, tf.constant(True))
        encoder(IDS, training=tf.constant(False))


def test_configurations(tmp_path, model):
    (path := tmp_path / "bert_config.json").write_text(model.config.to_json_string())
    for config in (model.config.to_dict(), path, str(path)):
        assert modeling.BertModel(config).config == heads.MaskedLMModel(config).config == model.config
    refuses("config", modeling.BertModel, 3)


def test_float64():
    """Of a head, and in training; positions may be int64."""
    wide, model = (MAKERS["pretraining"](small_config(), dtype=dtype) for dtype in ("float32", "float64"))
    for one, other in zip(wide.variables, model.variables, strict=True):
        other.assign(tf.cast(one.value, other.dtype))
    batch = {name: tf.constant(values) for name, values in batch_for("pretraining").items()}
    batch["masked_lm_positions"] = tf.cast(batch["masked_lm_positions"], tf.int64)
    for name, values in model.outputs(batch).items():
        np.testing.assert_allclose(values, wide.outputs(batch)[name], rtol=1e-4, atol=1e-5, err_msg=name)
    losses = [[float(term.total) for term in each.loss_terms(batch, tf.constant([1, 2]))] for each in (model, wide)]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_every_variable_is_saved(tmp_path):
    """By Keras' weights and TensorFlow's checkpoints; weights/test_keras_files.py has files of models."""
    model, *copies = (MAKERS["pretraining"](tiny_config()) for _ in range(3))
    assert len(randomize(model)) == len(model.variables)
    saved, restored = (tf.train.Checkpoint(model=each) for each in (model, copies[0]))
    restored.restore(saved.save(str(tmp_path / "x"))).assert_consumed()
    model.save_weights(tmp_path / "x.weights.h5")
    copies[1].load_weights(tmp_path / "x.weights.h5")
    for each in copies:
        for ours, theirs in zip(model.variables, each.variables, strict=True):
            np.testing.assert_array_equal(theirs, ours, err_msg=ours.path)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["bert_tf2", "keras"])
def test_a_model_of_texts_in_a_new_process(tmp_path, films, first):
    """Whichever is imported first."""
    films.save(tmp_path / "films.keras")
    np.save(tmp_path / "wanted.npy", films(["a film"]))
    code = f"""
import {first}, bert_tf2, sys
assert {first!r} == "keras" or "tensorflow" not in sys.modules
import keras, numpy as np
np.testing.assert_allclose(keras.models.load_model("films.keras")(["a film"]), np.load("wanted.npy"), atol=1e-6)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_tensors_with_the_operators_of_numpy(tmp_path, encoder):
    """A setting of the whole process, with which "" is compared as an array, and gradients of lookups have no `*`."""
    toy_data.write_tsv_task(tmp_path, examples=16)
    code = f"""
import tensorflow as tf
tf.experimental.numpy.experimental_enable_numpy_behavior()
import bert_tf2, bert_tf2.commands
given = {{"init_checkpoint": {str(encoder)!r}, "data_dir": ".", "output_dir": "out", "task_name": "tsv"}}
bert_tf2.commands.call("run_classifier", **given, **{toy_data.TSV_COLUMNS}, do_train=True, num_train_epochs=2)
bert_tf2.classifier("out", window=8, stride=4).fit(["the film was good " * 4] * 4, ["yes", "no"] * 2)
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
    "names": lambda bert, given: bert(
        given["input_ids"], segment_ids=given["segment_ids"], input_mask=given["input_mask"]
    ),
    "positions": lambda bert, given: bert(*given.values()),
    "dict": lambda bert, given: bert(given),
}


def test_layers_that_read_masks_ignore_padding(encoder, tmp_path):
    """A row beside longer ones has the answer of the row alone, also after save and export."""
    bert = bert_tf2.load(encoder)
    bert.embed("a film")  # has computed with the accelerated encoder
    given = {name: keras.Input([None], dtype="int32", name=name) for name in NAMES}
    batch = {name: tf.constant(values) for name, values in small_batch().items() if name in NAMES}
    lengths = tf.reduce_sum(batch["input_mask"], 1)

    def check(model, *others):
        """`others` compute as the model does."""
        rows = [{name: part[row : row + 1, :size] for name, part in batch.items()} for row, size in enumerate(lengths)]
        alone = [*map(model, rows)]
        for compute in (model, *others):
            for name, values in compute(batch).items():
                np.testing.assert_allclose(values, np.concatenate([row[name] for row in alone]), atol=1e-5)

    for name, call in CALLS.items():
        parts = POOLED if name == "dict" else {"mean": POOLED["mean"]}
        output = call(bert.encoder, given)
        model = keras.Model(given, {part: pooled(output) for part, pooled in parts.items()})
        check(model)
    model.save(tmp_path / "model.keras")
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "served"))  # which owns the variables
    check(model, keras.models.load_model(tmp_path / "model.keras"), served.serve)


def test_two_encoders_in_one_model(tmp_path):
    encoders = []
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        toy_data.write_trained(folder, heads.PretrainingModel(toy_data.config(num_hidden_layers=1)), seed=seed)
        encoders.append(bert_tf2.load(folder).encoder)
    given = {name: keras.Input([None], dtype="int32", name=name) for name in NAMES}
    model = keras.Model(given, keras.layers.Concatenate()([encoder(given).pooled_output for encoder in encoders]))
    model.save(tmp_path / "two.keras")
    wanted = np.concatenate([encoder(NAMED).pooled_output for encoder in encoders], axis=-1)
    again = keras.models.load_model(tmp_path / "two.keras")
    np.testing.assert_allclose(again({name: tf.constant(values) for name, values in NAMED.items()}), wanted, atol=1e-6)

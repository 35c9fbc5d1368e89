"""The models as people call them: dictionaries, lists, odd types, other ways to save."""

import importlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import MAKERS, batch_for, randomize, small_config, tiny_config

import bert_tf2
from bert_tf2 import heads, modeling
from bert_tf2.fast.encoder import Plan, accelerate
from bert_tf2.support.errors import UserError

IDS = np.array([[1, 2, 3, 4], [5, 6, 0, 0]], np.int32)
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], np.int32)
TYPES = np.array([[0, 0, 1, 1], [0, 0, 0, 0]], np.int32)


@pytest.fixture(scope="module")
def model():
    model = modeling.BertModel(small_config())
    randomize(model)
    return model


def test_every_way_to_give_the_inputs(model):
    wanted = model(IDS, MASK, TYPES).sequence_output.numpy()
    named = {"input_ids": IDS, "input_mask": MASK, "segment_ids": TYPES}
    other = {"input_ids": IDS, "input_mask": MASK, "token_type_ids": TYPES}
    ways = {
        "dictionary": lambda: model(named),
        "other names": lambda: model(other),
        "keywords": lambda: model(**named),
        "other keywords": lambda: model(**other),
        "int64": lambda: model(IDS.astype(np.int64), MASK.astype(np.int64), TYPES.astype(np.int64)),
        "uint32": lambda: model(IDS.astype(np.uint32), MASK.astype(bool), TYPES.astype(np.uint8)),
        "a mask of other numbers": lambda: model(IDS, -2 * MASK, TYPES),
        "a mask of floats": lambda: model(IDS, 0.5 * MASK, TYPES),
        "graph": lambda: tf.function(lambda batch: model(batch))(named),
    }
    for name, call in ways.items():
        np.testing.assert_allclose(call().sequence_output, wanted, atol=1e-6, err_msg=name)
    predicted = model.predict(named, verbose=0)
    np.testing.assert_allclose(predicted.sequence_output, wanted, atol=1e-6)
    classifier = MAKERS["classifier"](small_config())
    np.testing.assert_array_equal(classifier(named), classifier(other))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((IDS + 1000,), "input_ids: has 1001, wanted numbers from 0 to 22"),
        ((-IDS,), "input_ids: has -1, wanted numbers from 0"),
        ((IDS, MASK, TYPES + 5), "token_type_ids: has 5, wanted numbers from 0 to 1"),
        ((IDS.astype(np.float32),), "input_ids: float32, wanted whole numbers"),
        ((tf.constant([["a"]]),), "input_ids: string, wanted whole numbers"),
        ((tf.ragged.constant([[1], [2, 3]]),), "input_ids: is a RaggedTensor; pad its rows"),
        ((tf.sparse.from_dense(IDS),), "input_ids: is a SparseTensor; pad its rows"),
        ((np.zeros([1, 0], np.int32),), "input_ids: rows of no tokens"),
        ((np.zeros([1, 17], np.int32),), "a sequence of 17 tokens is longer"),
        (({"ids": IDS},), "input_ids: missing"),
        ((IDS[0],), r"input_ids: shape \[4\], wanted \[B, F\]"),
    ],
)
def test_what_is_no_input(model, inputs, message):
    fast = accelerate(MAKERS["classifier"](small_config()), Plan()).encoder
    for encoder in (model, fast):
        with pytest.raises(UserError, match=message):
            encoder(*inputs)


def test_a_decision_within_a_graph_is_refused(model):
    fast = accelerate(MAKERS["classifier"](small_config()), Plan()).encoder
    for encoder in (model, fast):
        with pytest.raises(UserError, match="training: a tensor of a graph, wanted True or False"):
            tf.function(lambda training, encoder=encoder: encoder(IDS, training=training))(tf.constant(True))
        encoder(IDS, training=tf.constant(False))


@pytest.mark.slow
def test_texts_of_unknown_length_that_are_too_long(model):
    graph = tf.function(model.call, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="max_position_embeddings 16"):
        graph(np.zeros([1, 17], np.int32))
    with pytest.raises(UserError, match="17 tokens is longer"):
        model.predict(np.zeros([1, 17], np.int32), verbose=0)


def test_configurations(tmp_path, model):
    path = tmp_path / "bert_config.json"
    path.write_text(model.config.to_json_string())
    for config in (model.config.to_dict(), path, str(path)):
        assert modeling.BertModel(config).config == heads.MaskedLMModel(config).config == model.config
    with pytest.raises(UserError, match="config: is a int, wanted a BertConfig"):
        modeling.BertModel(3)


@pytest.mark.parametrize("dtype", ["float64", "mixed_bfloat16"])
def test_types_of_the_computation(dtype):
    narrow, wide = modeling.BertModel(small_config(), dtype=dtype), modeling.BertModel(small_config())
    wide.set_weights([values.astype("float32") for values in narrow.get_weights()])
    found, wanted = (np.array(tf.cast(each(IDS).pooled_output, tf.float32)) for each in (narrow, wide))
    np.testing.assert_allclose(found, wanted, atol=1e-6 if dtype == "float64" else 0.02)


def test_an_accelerated_model_takes_int64_positions_in_batches_of_any_size():
    model = accelerate(MAKERS["masked_words"](small_config()), Plan("groups"))
    batch = {name: np.asarray(values) for name, values in batch_for("masked_words").items() if np.ndim(values) == 2}
    batch["masked_lm_positions"] = batch["masked_lm_positions"].astype(np.int64)
    specs = {name: tf.TensorSpec([None, None], values.dtype) for name, values in batch.items()}
    assert tf.function(model.outputs, input_signature=[specs])(batch)["masked_lm_predictions"].shape.rank == 2


@pytest.mark.parametrize("way", ["checkpoint", "manager", "weights", "model"])
@pytest.mark.parametrize("kind", ["encoder", *sorted(MAKERS)])
def test_every_variable_is_saved(kind, way, tmp_path):
    make = MAKERS.get(kind, modeling.BertModel)
    model, copy = make(tiny_config()), make(tiny_config())
    values = randomize(model)
    saved, restored = (tf.train.Checkpoint(model=each) for each in (model, copy))
    if way == "checkpoint":
        restored.restore(saved.save(str(tmp_path / "x"))).assert_consumed()
    elif way == "manager":
        tf.train.CheckpointManager(saved, str(tmp_path), 1).save()
        tf.train.CheckpointManager(restored, str(tmp_path), 1).restore_or_initialize()
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
    inputs = {name: keras.Input([4], dtype="int32", name=name) for name in ("input_ids", "input_mask", "segment_ids")}
    own = keras.Model(inputs, keras.layers.Dense(2)(encoder(inputs).pooled_output))
    own.compile(bert_tf2.AdamWeightDecay(bert_tf2.WarmupAndDecay(1e-3, 10, 2)), "mse")
    return own


@pytest.mark.slow
def test_a_model_with_ours_inside_in_a_new_process(tmp_path):
    own = functional(modeling.BertModel(tiny_config()))
    x, y = {"input_ids": IDS, "input_mask": MASK, "segment_ids": TYPES}, np.ones([2, 2])
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), delete_checkpoint=False)
    own.fit(x, y, epochs=2, verbose=0, callbacks=[backup])
    wanted = own.predict(x, verbose=0)
    own.save(tmp_path / "own.keras")
    tf.saved_model.save(own, str(tmp_path / "saved"))
    again = functional(modeling.BertModel(tiny_config()))
    again.fit(x, y, epochs=2, verbose=0, callbacks=[backup])  # restores, and has nothing left to do
    np.testing.assert_allclose(again.predict(x, verbose=0), wanted, atol=1e-6)
    served = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]
    names = sorted(served.structured_input_signature[1])  # Keras calls them inputs, inputs_1, ...
    served = served(**{name: tf.constant(x[own_name]) for name, own_name in zip(names, sorted(x), strict=True)})
    np.testing.assert_allclose(next(iter(served.values())), wanted, atol=1e-6)
    np.savez(tmp_path / "x.npz", **x, wanted=wanted)
    for first in ("bert_tf2", "keras"):  # whichever is imported first
        code = f"""
import {first}, bert_tf2, sys
assert {first!r} == "keras" or "tensorflow" not in sys.modules
import keras, numpy as np
own = keras.models.load_model({str(tmp_path / "own.keras")!r})
x = dict(np.load({str(tmp_path / "x.npz")!r}))
wanted = x.pop("wanted")
np.testing.assert_allclose(own.predict(x, verbose=0), wanted, atol=1e-6)
own.fit(x, wanted, verbose=0)
assert type(own.optimizer) is bert_tf2.AdamWeightDecay and int(own.optimizer.iterations) == 3
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_all_registered_classes_are_offered_to_keras():
    for module in bert_tf2._IN_KERAS.values():
        importlib.import_module(module)
    names = {name for name in keras.saving.get_custom_objects() if name.startswith("bert_tf2>")}
    assert names == {f"bert_tf2>{name}" for name in bert_tf2._IN_KERAS}

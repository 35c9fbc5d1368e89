"""`bert_tf2.export`: a Keras model with a head and inputs of its own, from texts."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import text_operations
import toy_data
from export_cases import CLOSE, CONFIG, model_inputs
from refused import message_of

import bert_tf2
from bert_tf2 import heads, modeling, tokenization
from bert_tf2.exporting import load

text_operations.need()

PAIRS = [("a lovely film", "Bob [SEP]"), ("Bob is in Oslo now and " * 9, "")]
TEXTS, SECONDS = map(list, zip(*PAIRS, strict=True))


@pytest.mark.parametrize(
    ("width", "names"), [(None, ("input_ids", "input_mask", "segment_ids")), (24, ("input_mask", "input_ids"))]
)
def test_a_functional_model_answers_texts(tmp_path, width, names):
    tokenizer = tokenization.FullTokenizer(toy_data.write_model(tmp_path)["vocab_file"])
    inputs = {name: keras.Input([width], dtype="int32", name=name) for name in names}
    age = keras.Input([2], name="age")
    encoded = modeling.BertModel(CONFIG)(inputs).pooled_output
    joined = keras.layers.Concatenate()([keras.layers.Dropout(0.5)(encoded), age])
    outputs = {"score": keras.layers.Dense(3, name="score")(joined), "age": keras.layers.Dense(1)(age)}
    given = {**inputs, "age": age} if len(names) == 3 else [age, *inputs.values()]
    model = keras.Model(given, outputs if len(names) == 3 else outputs["score"])
    folder = bert_tf2.export(model, tokenizer, tmp_path / "export", max_seq_length=40 if width else 24)
    numbers = np.array([[1.0, 2.0], [0.5, -1.0]], np.float32)
    arrays = {**model_inputs(tokenizer, PAIRS, 24), "age": numbers}
    fed = {name: arrays[name] for name in [*names, "age"]}
    wanted = model(fed if len(names) == 3 else [fed["age"], *(fed[name] for name in names)])
    wanted = wanted["score"] if len(names) == 3 else wanted
    saved = tf.saved_model.load(folder)
    texts = {"text_a": tf.constant(TEXTS), "text_b": tf.constant(SECONDS), "age": tf.constant(numbers)}
    for found in (
        saved.signatures["serving_text_pair"](**texts),
        saved.signatures["serving_default"](**{name: tf.constant(value) for name, value in arrays.items()}),
        keras.layers.TFSMLayer(folder, "serving_text_pair")(texts),
    ):
        (score,) = (value for value in found.values() if value.shape[-1] == 3)
        np.testing.assert_allclose(score, wanted, **CLOSE)
    with pytest.raises(tf.errors.InvalidArgumentError, match="1 rows of age for 2 texts"):
        saved.signatures["serving_text_pair"](**{**texts, "age": tf.constant(numbers[:1])})
    ids = {"input_ids": tf.ones([2, 65], tf.int32), "age": texts["age"]}
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"hold 65 tokens; the model reads {width or 64} at most"):
        saved.serving_ids(ids)
    with pytest.raises(tf.errors.InvalidArgumentError, match="row 1 of text_a is empty"):
        saved.serving_text({"text_a": tf.constant(["a", " "]), "age": texts["age"]})
    assert "takes age beside texts" in message_of(load, folder)


def test_a_model_of_ours_is_loaded_like_every_export(tmp_path):
    tokenizer = tokenization.FullTokenizer(toy_data.write_model(tmp_path)["vocab_file"])
    model = heads.ClassifierModel(CONFIG, 3)
    answer = load(bert_tf2.export(model, tokenizer, str(tmp_path / "export"), max_seq_length=24))
    (found,) = answer(PAIRS[:1])[0].values()
    np.testing.assert_allclose(found, model(model_inputs(tokenizer, PAIRS, 24))[0], **CLOSE)


def test_what_cannot_be_exported(tmp_path):
    tokenizer = tokenization.FullTokenizer(toy_data.write_model(tmp_path)["vocab_file"])
    ids = keras.Input([None], dtype="int32", name="ids")
    for model, message in (
        (keras.Sequential([keras.layers.Dense(1)]), "has no encoder of bert_tf2"),
        (keras.Model(ids, modeling.BertModel(CONFIG)(ids).pooled_output), "no input is called input_ids, but ids"),
    ):
        assert message in message_of(bert_tf2.export, model, tokenizer, str(tmp_path / "export"))

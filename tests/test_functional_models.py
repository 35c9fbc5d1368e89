"""The encoder in models of Keras' functional API: masks, several encoders, dtypes."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import text_operations
import toy_data
from small_models import MAKERS, batch_for, randomize, small_batch, small_config

import bert_tf2
from bert_tf2 import heads, modeling
from bert_tf2.fast.encoder import Plan, accelerate
from bert_tf2.weights import checkpoint

NAMES = ("input_ids", "input_mask", "segment_ids")
POOLED = {
    "mean": lambda output: keras.layers.GlobalAveragePooling1D()(output.get_sequence_output()),
    "lstm": lambda output: keras.layers.LSTM(4)(output.sequence_output),
    "layers": lambda output: keras.layers.GlobalAveragePooling1D()(
        keras.layers.Average()([output.get_embedding_output(), *output.get_all_encoder_layers()])
    ),
}


def make_folder(folder, seed: int = 0):
    folder.mkdir(exist_ok=True)
    toy_data.write_model(folder, num_hidden_layers=1)
    model = heads.PretrainingModel(toy_data.config(num_hidden_layers=1))
    randomize(model, seed)
    checkpoint.save(str(folder / "bert_model.ckpt"), checkpoint.tf1_variables(model))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("weights"))


def inputs() -> dict[str, keras.KerasTensor]:
    return {name: keras.Input([None], dtype="int32", name=name) for name in NAMES}


CALLS = {
    "dict": lambda bert, given: bert(given),
    "positions": lambda bert, given: bert(*given.values()),
    "names": lambda bert, given: bert(given["input_ids"], input_mask=given["input_mask"]),
}


@pytest.mark.parametrize("call", CALLS)
def test_layers_that_read_masks_ignore_padding(folder, tmp_path, call):
    """A row beside longer ones has the answer of the row alone, also after save and export."""
    bert = bert_tf2.load(folder)
    bert.embed("a film")  # has computed with what `accelerate` puts in place of the encoder
    output = CALLS[call](bert.encoder, given := inputs())
    model = keras.Model(given, {name: pooled(output) for name, pooled in POOLED.items()})
    batch = {name: small_batch()[name] for name in NAMES}
    model.save(tmp_path / "model.keras")
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "served"))
    for compute in (model, keras.models.load_model(tmp_path / "model.keras"), served.serve):
        found = compute({name: tf.constant(values) for name, values in batch.items()})
        for row, length in enumerate(batch["input_mask"].sum(1)):
            alone = model({name: values[row : row + 1, :length] for name, values in batch.items()})
            for name in POOLED:
                np.testing.assert_allclose(found[name][row], alone[name][0], atol=1e-5)


@pytest.mark.parametrize("plan", [Plan(), Plan(unpad="groups")])
def test_masks_of_an_accelerated_encoder(plan):
    model = heads.TaggingModel(small_config(), 3)
    randomize(model)
    batch = small_batch()
    given = [tf.constant(batch[name]) for name in NAMES]
    wanted = POOLED["mean"](model.bert(*given))
    np.testing.assert_allclose(POOLED["mean"](accelerate(model, plan).encoder(*given)), wanted, atol=1e-5)
    assert np.abs(POOLED["mean"](model.bert(given[0], None, given[2])) - wanted).max() > 1e-3


def test_a_pooled_head_is_exported_with_texts(folder, tmp_path):
    text_operations.need()
    bert = bert_tf2.load(folder)
    model = keras.Model(given := inputs(), keras.layers.Dense(2)(POOLED["mean"](bert.encoder(given))))
    texts = ["a film", "the film was good and bad"]
    served = tf.saved_model.load(bert_tf2.export(model, bert.tokenizer, tmp_path / "export", max_seq_length=24))
    (found,) = served.signatures["serving_text"](text_a=tf.constant(texts)).values()
    np.testing.assert_allclose(found, np.concatenate([model(bert.tokenize([text])) for text in texts]), atol=1e-5)


def loaded(tmp_path):
    return [bert_tf2.load(make_folder(tmp_path / str(seed), seed)).encoder for seed in (1, 2)]


PAIRS = {
    "load": loaded,
    "BertModel": lambda _: [modeling.BertModel(small_config()) for _ in range(2)],
    "heads": lambda _: [heads.TaggingModel(small_config(), 2).bert for _ in range(2)],
}


@pytest.mark.parametrize("pair", PAIRS)
def test_two_encoders_in_one_model(tmp_path, pair):
    for seed, encoder in enumerate(encoders := PAIRS[pair](tmp_path)):
        randomize(encoder, seed)
    given = inputs()
    vectors = [encoder(given).pooled_output for encoder in encoders]
    model = keras.Model(given, keras.layers.Concatenate()(vectors))
    model.save(tmp_path / "two.keras")
    again = keras.models.load_model(tmp_path / "two.keras")
    batch = {name: tf.constant(small_batch()[name]) for name in NAMES}
    wanted = np.concatenate([encoder(batch).pooled_output for encoder in encoders], axis=-1)
    np.testing.assert_allclose(again(batch), wanted, atol=1e-6)


@pytest.mark.parametrize(("dtype", "near"), [("bfloat16", 0.1), ("float16", 0.02), ("float64", 1e-4)])
def test_variables_of_other_dtypes(dtype, near):
    for kind, make in MAKERS.items():
        wide, model = make(small_config()), make(small_config(), dtype=dtype)
        for one, other in zip(wide.variables, model.variables, strict=True):
            other.assign(tf.cast(one.value, other.dtype))
        batch = {name: tf.constant(values) for name, values in batch_for(kind).items()}
        found, wanted = model.bert(batch, training=True).sequence_output, wide.bert(batch).sequence_output
        assert found.dtype == dtype
        np.testing.assert_allclose(tf.cast(found, tf.float32), wanted, atol=near)
        for term in accelerate(model, Plan(unpad="groups")).loss_terms(batch, tf.constant([1, 2])):
            assert np.isfinite(float(term.total))


def test_parts_of_the_encoder_take_states_with_a_mask_in_silence(recwarn):
    """As a reader who follows a sentence through the layers calls them."""
    bert = bert_tf2.BertModel(small_config())
    states = bert(np.array([[5, 6, 0]]), np.array([[1, 1, 0]])).embedding_output
    block = bert.blocks[0]
    block.attention_norm(states, block.attention.query(states))
    assert not [str(warning.message) for warning in recwarn if "mask" in str(warning.message)]

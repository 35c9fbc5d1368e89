"""SavedModels of Model Garden's encoders, as TF-Hub has them, are read."""

import json
import os

import pytest
import tensorflow as tf
from garden_models import (
    ENCODER,
    as_reference,
    assert_holds,
    encoder,
    random_arrays,
    v1_path,
)
from refused import message_of

from bert_tf2.weights import bundle, model_garden
from bert_tf2.weights.model_garden import ObjectCheckpoint


def saved_model(folder, arrays, activation=None, assets=("vocab.txt",), **attributes):
    """As export_tfhub writes it."""
    model = encoder(arrays, v1_path)
    for name, value in attributes.items():
        setattr(model, name, value)
    for number, name in enumerate(assets):
        path = folder.parent / name
        path.write_text(f"[PAD]\n{name}\n")
        setattr(model, f"asset_{number}", tf.saved_model.Asset(str(path)))
    if activation:
        model.call = tf.function(activation, input_signature=[tf.TensorSpec([None])])
    tf.saved_model.save(model, str(folder))
    return str(folder)


def test_saved_model(tmp_path):
    arrays = random_arrays(ENCODER)
    path = saved_model(tmp_path / "hub", arrays, do_lower_case=tf.Variable(True, trainable=False))
    for given in (path, os.path.join(path, "saved_model.pb")):
        assert model_garden.recognizes(given)
        source = ObjectCheckpoint(given)
        assert_holds(source, as_reference(arrays))
        assert source.path == source.folder == path and "SavedModel" in source.kind
        assert source.tokenizer_settings() == {"do_lower_case": True}
        assert source.vocabulary() == ["[PAD]", "vocab.txt"]


def test_cased_saved_model_whose_vocabulary_has_another_name(tmp_path):
    attributes = {"do_lower_case": tf.Variable(False, trainable=False)}
    path = saved_model(tmp_path / "hub", random_arrays(ENCODER), assets=("vocab_cased.txt", "x.txt"), **attributes)
    source = ObjectCheckpoint(path)
    assert source.tokenizer_settings() == {"do_lower_case": False}
    assert source.vocabulary() == ["[PAD]", "vocab_cased.txt"]


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (lambda x: tf.nn.gelu(x, approximate=True), "gelu"),
        (lambda x: tf.nn.gelu(x, approximate=False), "gelu_erf"),
        (lambda x: x * tf.math.erf(x), "gelu_erf"),
        (tf.nn.relu, "relu"),
        (None, "gelu"),
    ],
)
def test_activation_of_a_saved_model(tmp_path, activation, expected):
    source = ObjectCheckpoint(saved_model(tmp_path / "hub", random_arrays(ENCODER), activation))
    assert source.config.hidden_act == expected
    assert any("activation" in remark for remark in source.remarks) == (activation is None)


def test_what_keras_noted_of_a_saved_model(tmp_path):
    path = saved_model(tmp_path / "hub", random_arrays(ENCODER))
    noted = {"name": "x", "output_dropout": 0.25, "attention_dropout": 0.0, "norm_first": False}
    notes = tmp_path / "hub" / "keras_metadata.pb"
    notes.write_bytes(b"\n\x80\x01" + json.dumps(noted).encode() + b"\x12")
    config = ObjectCheckpoint(path).config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.25, 0.0)
    notes.write_bytes(json.dumps({**noted, "norm_first": True}).encode())
    assert "norm_first" in message_of(ObjectCheckpoint, path)


def test_saved_model_of_something_else(tmp_path):
    module = tf.Module()
    module.kernel = tf.Variable([1.0], name="dense/kernel")
    tf.saved_model.save(module, str(tmp_path))
    message = message_of(ObjectCheckpoint, str(tmp_path))
    assert "is not Model Garden's BERT encoder" in message and "dense/kernel" in message


def test_saved_model_of_tensorflow_1(tmp_path):
    """TF-Hub's modules of 2019 hold a checkpoint with the reference's names."""
    (tmp_path / "saved_model.pb").touch()
    bundle.save(str(tmp_path / "variables" / "variables"), {"module/bert/pooler/dense/bias": tf.Variable([1.0])})
    message = message_of(ObjectCheckpoint, str(tmp_path))
    assert "has no graph of objects" in message and str(tmp_path / "variables" / "variables") in message

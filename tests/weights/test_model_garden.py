"""Checkpoints of Model Garden's encoders are read: variables, heads, configuration; what is no BERT is refused."""

import os

import numpy as np
import pytest
import tensorflow as tf
from garden_models import (
    ENCODER,
    LAYOUTS,
    MASKED_LM,
    POOLER,
    D,
    N,
    V,
    as_reference,
    assert_holds,
    encoder,
    random_arrays,
    save,
    save_with,
    v1_path,
)
from refused import message_of
from small_models import small_config

from bert_tf2 import heads
from bert_tf2.weights import bundle, checkpoint, model_garden
from bert_tf2.weights.sources import open_weights

# Encoders.


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays(tmp_path, layout):
    arrays = random_arrays(ENCODER)
    prefix = save(tmp_path, arrays, layout)
    source = open_weights(prefix)
    assert_holds(source, as_reference(arrays))
    assert {*source.dtypes.values()} == {"float32"}
    assert source.global_step == 0 and source.text is None and source.vocabulary() is None


def loaded(model, source):
    for name, variable in checkpoint.tf1_variables(model).items():
        variable.assign(source.get(name))
    return model


# Heads, and what is beside the weights.


def test_pretrainer(tmp_path):
    """The head of masked words is read; of that of next sentences the pooler, which is the one that was trained."""
    arrays, head = random_arrays(ENCODER), random_arrays(MASKED_LM, 1)
    more = random_arrays({"pooler_dense/kernel": [D, D], "pooler_dense/bias": [D], "logits/kernel": [D, 2]}, 2)
    others = {f"masked_lm/{number}": (f"bert/{name}", value) for number, (name, value) in enumerate(head.items())}
    others |= {f"next/{name}": (f"bert/next_sentence/{name}", value) for name, value in more.items()}
    source = open_weights(save_with(tmp_path, arrays, **others))
    found = {name: source.get(name) for name in source.shapes if name.startswith(("bert/", "cls/"))}
    expected = as_reference({**arrays, **head}) | {
        f"bert/pooler/dense/{name}": more[f"pooler_dense/{name}"] for name in ("kernel", "bias")
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
    assert sorted(map(tuple, (source.shapes[name] for name in source.shapes if name not in found))) == [
        (D,),
        (D, 2),
        (D, D),
    ]
    loaded(heads.MaskedLMModel(source.config), source)


def test_step_and_counters(tmp_path):
    arrays = random_arrays(ENCODER)
    root = tf.train.Checkpoint(model=encoder(arrays), global_step=tf.Variable(70, dtype=tf.int64))
    source = open_weights(root.save(str(tmp_path / "ckpt")))
    assert source.global_step == 70
    assert source.shapes.keys() == {*as_reference(arrays), "global_step"}


def test_slots_of_an_optimizer(tmp_path):
    """Older optimizers hang their variables on those that they belong to."""
    arrays = random_arrays(ENCODER)
    model = encoder(arrays, v1_path)
    optimizer = tf.compat.v1.train.AdamOptimizer(0.0)
    optimizer.apply_gradients([(tf.ones_like(variable), variable) for variable in model.trainable_variables])
    prefix = tf.train.Checkpoint(model=model, optimizer=optimizer).save(str(tmp_path / "ckpt"))
    assert sum("OPTIMIZER_SLOT" in name for name, _ in tf.train.list_variables(prefix)) == 2 * len(arrays)
    source = open_weights(prefix)
    assert {name for name in source.shapes if name.startswith(("bert/", "cls/"))} == as_reference(arrays).keys()
    assert not any("OPTIMIZER_SLOT" in name for name in source.shapes)


# Where it lies.


def test_prefix_file_and_folder(tmp_path):
    arrays = random_arrays(ENCODER)
    prefix = save(tmp_path, arrays)
    (tmp_path / "vocab.txt").write_text("[PAD]\nthe\n")
    for path in (prefix, f"{prefix}.index", f"{prefix}.data-00000-of-00001", str(tmp_path)):
        source = open_weights(path)
        assert source.path == prefix and source.folder == str(tmp_path)
        assert source.vocabulary() == ["[PAD]", "the"]
        assert "Model Garden" in source.kind and "checkpoint" in source.kind


def test_what_is_not_recognized(tmp_path):
    bundle.save(str(tmp_path / "bert_model.ckpt"), {"bert/embeddings/word_embeddings": tf.Variable([[1.0]])})
    opened = bundle.Checkpoint(str(tmp_path / "bert_model.ckpt"))
    assert type(open_weights(opened.path)) is bundle.Checkpoint
    assert "has no graph of objects" in message_of(model_garden.ObjectCheckpoint, opened, str(tmp_path))


# The configuration.


def test_sizes(tmp_path):
    source = open_weights(save(tmp_path, random_arrays(ENCODER)))
    assert source.config == small_config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    assert any("tanh approximation" in remark for remark in source.remarks)


def test_bert_config_beside_it(tmp_path):
    prefix = save(tmp_path, random_arrays(ENCODER))
    config = small_config(hidden_act="relu", hidden_dropout_prob=0.3)
    (tmp_path / "bert_config.json").write_text(config.to_json_string())
    source = open_weights(prefix)
    assert source.config == config and source.remarks == []
    other = small_config(num_attention_heads=4)
    (tmp_path / "bert_config.json").write_text(other.to_json_string())
    message = message_of(open_weights, prefix)
    assert "bert_config.json: says num_attention_heads 4" in message and "have 2" in message


# What is no BERT, or damaged.


def without(arrays, *names):
    return {name: value for name, value in arrays.items() if name not in names}


def test_a_whole_encoder_is_needed(tmp_path):
    arrays = without(random_arrays(ENCODER), "transformer/layer_1/output/kernel", "embeddings/layer_norm/beta")
    message = message_of(open_weights, save(tmp_path, arrays))
    assert "it lacks embeddings/layer_norm/beta, transformer/layer_1/output/kernel, and holds " in message


def test_the_pooler_may_be_missing(tmp_path):
    arrays = without(random_arrays(ENCODER), *POOLER)
    assert_holds(open_weights(save(tmp_path, arrays)), as_reference(arrays))


def test_two_encoders(tmp_path):
    root = tf.train.Checkpoint(teacher=encoder(random_arrays(ENCODER)), student=encoder(random_arrays(ENCODER, 1)))
    message = message_of(open_weights, root.save(str(tmp_path / "ckpt")))
    assert "holds more than one BERT" in message and "teacher" in message and "student" in message


@pytest.mark.parametrize(
    ("name", "shape", "part"),
    [
        ("transformer/layer_0/self_attention/query/kernel", [D, D], "has an axis for the attention heads"),
        ("transformer/layer_0/self_attention/query/bias", [N, 3], "has the wrong shape [6] for a BERT"),
        ("word_embeddings/embeddings", [V], "wrong shape [23]"),
    ],
)
def test_wrong_shapes(tmp_path, name, shape, part):
    arrays = {**random_arrays(ENCODER), name: np.zeros(shape, np.float32)}
    assert part in message_of(open_weights, save(tmp_path, arrays))


# SavedModels.


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
        source = open_weights(given)
        assert_holds(source, as_reference(arrays))
        assert source.path == source.folder == path and "SavedModel" in source.kind
        assert source.text.do_lower_case is True
        assert source.vocabulary() == ["[PAD]", "vocab.txt"]


def test_cased_saved_model_whose_vocabulary_has_another_name(tmp_path):
    attributes = {"do_lower_case": tf.Variable(False, trainable=False)}
    path = saved_model(tmp_path / "hub", random_arrays(ENCODER), assets=("vocab_cased.txt", "x.txt"), **attributes)
    source = open_weights(path)
    assert source.text.do_lower_case is False
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
    source = open_weights(saved_model(tmp_path / "hub", random_arrays(ENCODER), activation))
    assert source.config.hidden_act == expected
    assert any("activation" in remark for remark in source.remarks) == (activation is None)


def test_saved_model_that_normalizes_first(tmp_path):
    path = saved_model(tmp_path / "hub", random_arrays(ENCODER))
    (tmp_path / "hub" / "keras_metadata.pb").write_bytes(b'\n\x80\x01{"name": "x", "norm_first": true}\x12')
    assert "norm_first" in message_of(open_weights, path)

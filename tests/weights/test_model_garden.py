"""Checkpoints of Model Garden's encoders are read: variables, heads, configuration; what is no BERT is refused."""

import os

import numpy as np
import pytest
import tensorflow as tf
from garden_models import (
    ENCODER,
    LAYOUTS,
    MASKED_LM,
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
from refused import refuses
from small_models import small_config

from bert_tf2.weights.sources import open_weights


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_arrays_of_each_layout(tmp_path, layout):
    arrays = random_arrays(ENCODER)
    prefix = save(tmp_path, arrays, layout)
    (tmp_path / "vocab.txt").write_text("[PAD]\nthe\n")
    for path in (prefix, f"{prefix}.index", f"{prefix}.data-00000-of-00001", str(tmp_path)):
        source = open_weights(path)
        assert_holds(source, as_reference(arrays))
        assert source.path == prefix and source.folder == str(tmp_path) and "Model Garden" in source.kind
        assert {*source.dtypes.values()} == {"float32"} and source.global_step == 0
        assert source.text is None and source.vocabulary() == ["[PAD]", "the"]


def test_the_head_of_masked_words(tmp_path):
    """It is read; of that of next sentences the pooler, which is the one that was trained."""
    arrays, head = random_arrays(ENCODER), random_arrays(MASKED_LM, 1)
    more = random_arrays({"pooler_dense/kernel": [D, D], "pooler_dense/bias": [D], "logits/kernel": [D, 2]}, 2)
    others = {f"masked_lm/{number}": (f"bert/{name}", value) for number, (name, value) in enumerate(head.items())}
    others |= {f"next/{name}": (f"bert/next_sentence/{name}", value) for name, value in more.items()}
    source = open_weights(save_with(tmp_path, arrays, **others))
    expected = as_reference({**arrays, **head})
    expected |= {f"bert/pooler/dense/{name}": more[f"pooler_dense/{name}"] for name in ("kernel", "bias")}
    found = {name: source.get(name) for name in source.shapes if name.startswith(("bert/", "cls/"))}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
    rest = sorted(tuple(shape) for name, shape in source.shapes.items() if name not in found)
    assert rest == [(D,), (D, 2), (D, D)]


def test_the_step_and_the_optimizer(tmp_path):
    """Older optimizers hang their variables on those that they belong to."""
    arrays = random_arrays(ENCODER)
    model, optimizer = encoder(arrays, v1_path), tf.compat.v1.train.AdamOptimizer(0.0)
    optimizer.apply_gradients([(tf.ones_like(variable), variable) for variable in model.trainable_variables])
    step = tf.Variable(70, dtype=tf.int64)
    prefix = tf.train.Checkpoint(model=model, optimizer=optimizer, global_step=step).save(str(tmp_path / "ckpt"))
    assert sum("OPTIMIZER_SLOT" in name for name, _ in tf.train.list_variables(prefix)) == 2 * len(arrays)
    source = open_weights(prefix)
    assert {name for name in source.shapes if name.startswith(("bert/", "cls/"))} == as_reference(arrays).keys()
    assert source.global_step == 70 and not any("OPTIMIZER_SLOT" in name for name in source.shapes)


def test_the_configuration(tmp_path):
    """The sizes of the arrays, or bert_config.json beside them."""
    prefix = save(tmp_path, random_arrays(ENCODER))
    source = open_weights(prefix)
    assert source.config == small_config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    assert any("tanh approximation" in remark for remark in source.remarks)
    config = small_config(hidden_act="relu", hidden_dropout_prob=0.3)
    (tmp_path / "bert_config.json").write_text(config.to_json_string())
    source = open_weights(prefix)
    assert source.config == config and source.remarks == []
    (tmp_path / "bert_config.json").write_text(small_config(num_attention_heads=4).to_json_string())
    refuses("bert_config.json num_attention_heads 4 2", open_weights, prefix)


def test_the_pooler_may_be_missing_and_nothing_else(tmp_path):
    arrays = random_arrays(ENCODER)
    encoder_only = {name: value for name, value in arrays.items() if not name.startswith("pooler_transform/")}
    assert_holds(open_weights(save(tmp_path / "encoder", encoder_only)), as_reference(encoder_only))
    gone = ("embeddings/layer_norm/beta", "transformer/layer_1/output/kernel")
    rest = {name: value for name, value in arrays.items() if name not in gone}
    refuses(f"lacks {gone[0]}, {gone[1]}", open_weights, save(tmp_path / "less", rest))
    root = tf.train.Checkpoint(teacher=encoder(arrays), student=encoder(random_arrays(ENCODER, 1)))
    refuses("more than one teacher student", open_weights, root.save(str(tmp_path / "two" / "ckpt")))


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("transformer/layer_0/self_attention/query/kernel", [D, D], "attention heads"),
        ("transformer/layer_0/self_attention/query/bias", [N, 3], "[6]"),
        ("word_embeddings/embeddings", [V], "[23]"),
    ],
)
def test_wrong_shapes(tmp_path, name, shape, words):
    arrays = {**random_arrays(ENCODER), name: np.zeros(shape, np.float32)}
    refuses(words, open_weights, save(tmp_path, arrays))


# SavedModels


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


@pytest.mark.parametrize("assets", [("vocab.txt",), ("vocab_cased.txt", "x.txt")])
def test_saved_model(tmp_path, assets):
    """Its vocabulary may have another name."""
    arrays, lower = random_arrays(ENCODER), len(assets) == 1
    path = saved_model(tmp_path / "hub", arrays, assets=assets, do_lower_case=tf.Variable(lower, trainable=False))
    for given in (path, os.path.join(path, "saved_model.pb")):
        source = open_weights(given)
        assert_holds(source, as_reference(arrays))
        assert source.path == source.folder == path and "SavedModel" in source.kind
        assert source.text.do_lower_case is lower and source.vocabulary() == ["[PAD]", assets[0]]
    (tmp_path / "hub" / "keras_metadata.pb").write_bytes(b'\n\x80\x01{"name": "x", "norm_first": true}\x12')
    refuses("norm_first", open_weights, path)


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

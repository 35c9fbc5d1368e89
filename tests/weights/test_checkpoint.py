"""TensorFlow 1 checkpoints: names, files, and errors for damaged checkpoints and those of other models."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf
from huggingface_folders import CLASSES, ENCODER, POOLER
from refused import message_of
from small_checkpoints import DATA, save_model, small_model, state_of
from small_models import GOLDEN, MAKERS, SHARED, needs_golden, small_config, values_of

from bert_tf2 import heads
from bert_tf2.config import BertConfig
from bert_tf2.weights import checkpoint, names

# Names, shapes and types.

HEADS = {
    kind: {name for _, _, name in CLASSES[architecture]} - {name for _, _, name in POOLER}
    for kind, architecture in {
        "pretraining": "BertForPreTraining",
        "masked_words": "BertForMaskedLM",
        "span": "BertForQuestionAnswering",
        "classifier": "BertForSequenceClassification",
        "tagging": "BertForTokenClassification",
    }.items()
}


@pytest.mark.parametrize("kind", MAKERS)
def test_names_of_a_model_with_one_layer(kind):
    variables = checkpoint.tf1_variables(small_model(kind, num_hidden_layers=1))
    assert set(variables) == {name for _, _, name in [*ENCODER, *POOLER]} | HEADS[kind]
    shapes = {name: variable.shape.as_list() for name, variable in variables.items()}
    assert shapes["bert/embeddings/position_embeddings"] == [16, 8]
    assert shapes["bert/encoder/layer_0/intermediate/dense/kernel"] == [8, 12]  # [inputs, outputs]
    assert shapes["bert/encoder/layer_0/output/dense/kernel"] == [12, 8]


@pytest.mark.parametrize("kind", MAKERS)
def test_the_table_of_names_knows_every_shape(kind):
    model = small_model(kind)
    shapes = names.shapes_of(names.known(2), model.config, num_labels=3)
    for name, variable in checkpoint.tf1_variables(model).items():
        assert shapes[name] == variable.shape.as_list(), name


def test_names_that_are_an_optimizer_s():
    kernel = "bert/encoder/layer_0/output/dense/kernel"
    slots = ["adam_m", "adam_v", "Adam", "Adam_1", "AdamWeightDecayOptimizer", "AdamWeightDecayOptimizer_1"]
    state = [f"{kernel}/{slot}" for slot in slots] + ["beta1_power", "beta2_power"]
    assert all(map(names.is_optimizer_state, state))
    assert names.without_optimizer([kernel, *state, "global_step", "output_weights"]) == [kernel, "output_weights"]


@needs_golden
@pytest.mark.parametrize("kind", ["pretraining", "squad", "classifier"])
def test_layout_equals_the_reference(tmp_path, kind):
    layout = json.loads((GOLDEN / "layout" / f"run_{kind}.json").read_text())
    layout = {row["name"]: (row["shape"], row["dtype"]) for row in layout}
    config = BertConfig.from_json_file(str(GOLDEN / "config" / "bert_config.json"))
    if kind == "classifier":
        model = heads.ClassifierModel(config, layout["output_weights"][0][0])
    else:
        model = {"pretraining": heads.PretrainingModel, "squad": heads.SpanModel}[kind](config)
    prefix = save_model(tmp_path, model)
    reader = tf.train.load_checkpoint(prefix)
    types = reader.get_variable_to_dtype_map()
    ours = {name: (shape, types[name].name) for name, shape in reader.get_variable_to_shape_map().items()}
    assert ours == layout
    assert reader.get_tensor("global_step") == 7


# Round trips.


@pytest.mark.parametrize("kind", MAKERS)
def test_save_and_restore(tmp_path, kind):
    model, again = small_model(kind, seed=1), small_model(kind, seed=2)
    prefix = save_model(tmp_path, model, step=12)
    assert sorted(os.listdir(tmp_path)) == [f"model.ckpt-12{DATA}", "model.ckpt-12.index"]
    assert checkpoint.restore(prefix, state_of(again)) == 12
    wanted = values_of(model)
    for name, value in values_of(again).items():
        np.testing.assert_array_equal(value, wanted[name])


def test_we_read_what_tensorflow_1_writes(tmp_path):
    wanted = values_of(small_model("span", seed=3))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, value in wanted.items():
            tf.compat.v1.get_variable(name, initializer=value)
        session.run(tf.compat.v1.global_variables_initializer())
        prefix = tf.compat.v1.train.Saver().save(session, str(tmp_path / "model.ckpt"), global_step=5)
    model = small_model("span")
    line = checkpoint.initialize(model, checkpoint.latest_checkpoint(str(tmp_path)))
    assert line == (
        f"Initialized from {prefix}: {len(wanted)} of {len(wanted)} variables loaded;"
        " starting fresh: none; not used: none"
    )
    for name, value in values_of(model).items():
        np.testing.assert_array_equal(value, wanted[name])


def test_a_real_tensorflow_1_checkpoint():
    folder = SHARED / "data" / "tf1_checkpoint"
    if not folder.is_dir():
        pytest.skip("the real data is not beside this checkout")
    model = heads.PretrainingModel(BertConfig.from_json_file(str(folder / "bert_config.json")))
    line = checkpoint.initialize(model, str(folder / "bert_model.ckpt"))
    assert "starting fresh: none; not used: none" in line
    assert checkpoint.Checkpoint(str(folder / "bert_model.ckpt")).global_step == 20
    reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
    for name, value in values_of(model).items():
        np.testing.assert_array_equal(value, reader.get_tensor(name))


# Starting from another model's weights.


def test_what_fits_is_loaded_and_one_line_says_the_rest(tmp_path):
    source, target = small_model("pretraining", seed=1), small_model("classifier", seed=2)
    before = values_of(target)
    prefix = save_model(tmp_path, source)
    line = checkpoint.initialize(target, prefix)
    assert line == (
        f"Initialized from {prefix}: 39 of 41 variables loaded; starting fresh: output_bias, output_weights; not used: "
        + ", ".join(sorted(HEADS["pretraining"]))
    )
    wanted, after = values_of(source), values_of(target)
    for name in after:
        np.testing.assert_array_equal(after[name], wanted[name] if name.startswith("bert/") else before[name])


def without(model, *names):
    return {name: variable for name, variable in checkpoint.tf1_variables(model).items() if name not in names}


def test_missing_encoder_variables_are_an_error_that_lists_them(tmp_path):
    gone = ["bert/embeddings/word_embeddings", "bert/encoder/layer_1/output/dense/bias"]
    prefix = str(tmp_path / "model.ckpt")
    checkpoint.save(prefix, without(small_model(), *gone))
    model = small_model(seed=5)
    before = values_of(model)
    message = message_of(checkpoint.initialize, model, prefix)
    assert message.startswith(f"{prefix}: does not fit the model: ")
    assert all(f"{name} is missing" in message for name in gone)
    for name, value in values_of(model).items():
        np.testing.assert_array_equal(value, before[name])  # not half loaded


@pytest.mark.parametrize(
    ("kind", "other", "parts"),
    [
        (
            "pretraining",
            lambda: small_model(vocab_size=24),
            [
                "bert/embeddings/word_embeddings is [24, 8] in the checkpoint and [23, 8] in the model",
                "cls/predictions/output_bias is [24] in the checkpoint and [23] in the model",
            ],
        ),
        (
            "classifier",
            lambda: heads.ClassifierModel(small_config(), 2),
            ["output_weights is [2, 8] in the checkpoint and [3, 8] in the model"],
        ),
        ("pretraining", lambda: small_model(num_hidden_layers=1), ["; and 13 more."]),  # 16 of the second layer
    ],
)
def test_other_shapes_are_an_error_with_both_shapes(tmp_path, kind, other, parts):
    message = message_of(checkpoint.initialize, small_model(kind), save_model(tmp_path, other()))
    assert all(part in message for part in parts) and len(message) < 1000


# Damage.


def test_a_prefix_that_does_not_exist(tmp_path):
    prefix = save_model(tmp_path, small_model())
    message = message_of(checkpoint.Checkpoint, str(tmp_path / "model.ckpt-8"))
    assert message == (
        f"{tmp_path}/model.ckpt-8: no such checkpoint (model.ckpt-8.index does not exist; there is {prefix})"
    )
    save_model(tmp_path, small_model(), 9)
    assert message_of(checkpoint.Checkpoint, str(tmp_path)).endswith(
        f"name one of them: {prefix}, {tmp_path}/model.ckpt-9"
    )
    (tmp_path / "empty").mkdir()
    assert "holds no checkpoint" in message_of(checkpoint.Checkpoint, str(tmp_path / "empty"))
    assert "no such checkpoint" in message_of(checkpoint.Checkpoint, str(tmp_path / "gone" / "model.ckpt"))

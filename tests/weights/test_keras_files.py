"""Keras' own files: what Keras writes is read here, what is written here Keras loads; damaged and foreign ones."""

import inspect
import json
import os
import zipfile

import keras
import numpy as np
import pytest
from refused import message_of
from small_models import MAKERS, randomize, small_config, values_of

from bert_tf2 import heads, modeling
from bert_tf2.weights import checkpoint, keras_files
from bert_tf2.weights.keras_files import KerasFile
from bert_tf2.weights.sources import open_weights

ALL = {**MAKERS, "encoder": modeling.BertModel}


def make(kind="classifier", **changes):
    model = ALL[kind](small_config(**changes))
    randomize(model)
    return model


def assert_equal(source: KerasFile, model) -> None:
    expected = values_of(model)
    assert source.shapes == {name: list(value.shape) for name, value in expected.items()}
    for name, value in expected.items():
        np.testing.assert_array_equal(source.get(name), value, err_msg=name)


def rewrite(path, **members):
    """Packs a .keras file again with other members, "_" for "." in their names; None drops one."""
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    held.update({name.replace("_", "."): value for name, value in members.items()})
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in held.items():
            if value is not None:
                archive.writestr(name, value)


def config_of(path) -> dict:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("config.json"))


# There and back.


@pytest.mark.parametrize("kind", ALL)
def test_what_keras_wrote_is_read_and_the_other_way_round(tmp_path, kind):
    model = make(kind, hidden_act="relu", layer_norm_eps=1e-6)
    model.compile(optimizer="adam")
    model.optimizer.build(model.trainable_variables)  # its state is left aside
    model.save(tmp_path / "theirs.keras")
    keras_files.write(str(tmp_path / "ours.keras"), model)
    assert sorted(os.listdir(tmp_path)) == ["ours.keras", "theirs.keras"]
    for name in ("theirs.keras", "ours.keras"):
        source = open_weights(str(tmp_path / name))
        assert type(source) is KerasFile
        assert_equal(source, model)
        assert (source.config, source.remarks) == (model.config, [])
    loaded = keras.models.load_model(tmp_path / "ours.keras")
    assert type(loaded) is type(model) and loaded.config == model.config
    assert_equal(source, loaded)


def variants(head) -> list[dict]:
    """The arguments of a head: its own number of labels, and each switch in turn the other way."""
    parameters = inspect.signature(head).parameters.values()
    labels = {"num_labels": 3} if head.labeled else {}
    switches = [{one.name: not one.default} for one in parameters if isinstance(one.default, bool)]
    return [labels | switch for switch in ({}, *switches)]


@pytest.mark.parametrize("head", heads.MODELS)
def test_a_file_gives_back_the_model_with_all_its_arguments(tmp_path, head):
    path = str(tmp_path / "model.keras")
    for arguments in variants(head):
        model = head(small_config(), **arguments, name="mine")
        keras_files.write(path, model)
        source = KerasFile(path)
        loaded = checkpoint.make_model(source, source.config, source.labels(), name="mine")
        assert type(loaded) is head
        one_score = {"num_labels": 1} if arguments.get("regression") else {}  # whatever number was asked for
        assert loaded.get_config() == model.get_config() | one_score


def test_bfloat16_is_read_as_float32(tmp_path):
    model, path = MAKERS["span"](small_config(), dtype="bfloat16"), str(tmp_path / "model.keras")
    keras_files.write(path, model)
    source = KerasFile(path)
    name = "bert/encoder/layer_1/output/dense/kernel"
    assert source.dtypes[name] == "bfloat16" and source.get(name).dtype == np.float32
    np.testing.assert_array_equal(source.get(name), values_of(model)[name].astype(np.float32))
    assert len(source.remarks) == 1 and "bfloat16" in source.remarks[0]


# What is not there, damaged, or something else.


def damaged_number(data: bytes) -> bytes:
    return data[:-5000] + bytes([data[-5000] ^ 1]) + data[-4999:]


@pytest.mark.parametrize("damage", [lambda data: b"no such thing", damaged_number])
def test_a_damaged_file(tmp_path, damage):
    path = tmp_path / "model.keras"
    keras_files.write(str(path), make())
    path.write_bytes(damage(path.read_bytes()))
    message = message_of(KerasFile, str(path))
    assert str(path) in message and ("is damaged" in message or "is text, not one of Keras' files" in message)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"module": "os", "class_name": "system"}, "os.system, which is not a model of this project"),
        ({"module": "keras", "class_name": "Sequential"}, "keras.Sequential, which is not a model of this project"),
        ({"class_name": "OutputLayer", "registered_name": "bert_tf2>OutputLayer"}, "OutputLayer"),
        ({"config": {"config": {"vocab_size": 23}, "num_labels": 3}}, "missing hidden_size"),
    ],
)
def test_another_model(tmp_path, change, part):
    path = str(tmp_path / "model.keras")
    keras_files.write(path, make())
    rewrite(path, config_json=json.dumps({**config_of(path), **change}))
    message = message_of(KerasFile, path)
    assert part in message and path in message


@pytest.mark.parametrize("place", ["name", "dtype", "num_labels"])
def test_nothing_that_a_configuration_names_is_called(tmp_path, place):
    path = str(tmp_path / "model.keras")
    keras_files.write(path, make())
    called = {"module": "os", "class_name": "function", "config": "abort", "registered_name": "abort"}
    said = {**config_of(path), "compile_config": {"optimizer": called}}
    said["config"][place] = called
    rewrite(path, config_json=json.dumps(said))
    assert path in message_of(KerasFile, path)

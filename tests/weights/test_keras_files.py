"""Keras' own files: files of Keras are read here, files that are written here Keras loads; damaged and foreign ones."""

import inspect
import json
import os
import shutil
import zipfile

import keras
import numpy as np
import pytest
from refused import refuses
from small_models import MAKERS, randomize, small_config, values_of

from bert_tf2 import heads, modeling
from bert_tf2.weights import checkpoint, keras_files
from bert_tf2.weights.keras_files import KerasFile
from bert_tf2.weights.sources import open_weights

ALL = {**MAKERS, "encoder": modeling.BertModel}


@pytest.mark.parametrize("kind", ALL)
def test_keras_and_this_project_read_each_others_files(tmp_path, kind):
    model = ALL[kind](small_config(hidden_act="relu", layer_norm_eps=1e-6))
    expected = randomize(model)
    model.compile(optimizer="adam")
    model.optimizer.build(model.trainable_variables)  # its state is left aside
    model.save(tmp_path / "theirs.keras")
    keras_files.write(str(tmp_path / "ours.keras"), model)
    assert sorted(os.listdir(tmp_path)) == ["ours.keras", "theirs.keras"]
    loaded = keras.models.load_model(tmp_path / "ours.keras")
    assert type(loaded) is type(model) and loaded.config == model.config
    found = [values_of(loaded)]
    for name in ("theirs.keras", "ours.keras"):
        source = open_weights(str(tmp_path / name))
        assert type(source) is KerasFile and (source.config, source.remarks) == (model.config, [])
        found.append({name: source.get(name) for name in source.shapes})
        assert source.shapes == {name: list(value.shape) for name, value in expected.items()}
    for values in found:
        assert values.keys() == expected.keys()
        assert all((values[name] == value).all() for name, value in expected.items())


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
        one_score = {"num_labels": 1} if arguments.get("regression") else {}  # whatever number was asked for
        assert type(loaded) is head and loaded.get_config() == model.get_config() | one_score


def test_bfloat16_is_read_as_float32(tmp_path):
    model, path = MAKERS["span"](small_config(), dtype="bfloat16"), str(tmp_path / "model.keras")
    keras_files.write(path, model)
    source, name = KerasFile(path), "bert/encoder/layer_1/output/dense/kernel"
    assert source.dtypes[name] == "bfloat16" and source.get(name).dtype == np.float32
    np.testing.assert_array_equal(source.get(name), values_of(model)[name].astype(np.float32))
    assert "bfloat16" in source.remarks[0]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("keras") / "model.keras")
    keras_files.write(path, MAKERS["classifier"](small_config()))
    return path


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"no such thing", "text"),
        (lambda data: data[:-5000] + bytes([data[-5000] ^ 1]) + data[-4999:], "damaged"),
    ],
)
def test_a_damaged_file(written, tmp_path, damage, words):
    path = shutil.copy(written, tmp_path / "model.keras")
    path.write_bytes(damage(path.read_bytes()))
    refuses(f"{path} {words}", KerasFile, str(path))


CALLED = {"module": "os", "class_name": "function", "config": "abort", "registered_name": "abort"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"module": "os", "class_name": "system"}, "os.system"),
        ({"module": "keras", "class_name": "Sequential"}, "keras.Sequential"),
        ({"class_name": "OutputLayer", "registered_name": "bert_tf2>OutputLayer"}, "OutputLayer"),
        ({"config": {"config": {"vocab_size": 23}, "num_labels": 3}}, "hidden_size"),
        # Nothing that a configuration names is called.
        *(({"config": {place: CALLED}, "compile_config": {"optimizer": CALLED}}, "") for place in ("name", "dtype")),
        ({"config": {"num_labels": CALLED}}, ""),
    ],
)
def test_the_configuration_of_another_model(written, tmp_path, change, words):
    path = str(tmp_path / "model.keras")
    with zipfile.ZipFile(written) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    said = json.loads(held["config.json"])
    config = {**said["config"], **change["config"]} if not words else change.get("config", said["config"])
    held["config.json"] = json.dumps({**said, **change, "config": config})
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in held.items():
            archive.writestr(name, value)
    refuses(f"{path} {words}", KerasFile, path)

"""Keras' own files: files of Keras are read here, files that are written here Keras loads; damaged and foreign ones.

`test_convert.py` writes and reads one of every head, `test_odd_files.py` damages one.
"""

import inspect
import json
import zipfile

import keras
import numpy as np
import pytest
from google_folders import assert_holds
from refused import refuses
from small_models import MAKERS, randomize, tiny_config, values_of

from bert_tf2 import heads
from bert_tf2.weights import checkpoint, keras_files
from bert_tf2.weights.keras_files import KerasFile


def test_keras_and_this_project_read_each_others_files(tmp_path):
    model = MAKERS["span"](tiny_config(hidden_act="relu", layer_norm_eps=1e-6))
    expected = randomize(model)
    model.compile(optimizer="adam")
    model.optimizer.build(model.trainable_variables)  # its state is left aside
    model.save(tmp_path / "theirs.keras")
    keras_files.write(str(tmp_path / "ours.keras"), model)
    loaded = keras.models.load_model(tmp_path / "ours.keras")
    source = checkpoint.open_weights(str(tmp_path / "theirs.keras"))
    assert type(loaded) is type(model) and loaded.config == model.config
    assert type(source) is KerasFile and (source.config, source.remarks) == (model.config, [])
    assert_holds(source, expected)
    assert all((value == expected[name]).all() for name, value in values_of(loaded).items())


@pytest.mark.parametrize("head", heads.MODELS)
def test_a_file_gives_back_the_model_with_all_its_arguments(tmp_path, head):
    """Its own number of labels, and each switch in turn the other way."""
    path, labels = str(tmp_path / "model.keras"), {"num_labels": 3} if head.labeled else {}
    parameters = inspect.signature(head).parameters.values()
    for switch in ({}, *({one.name: not one.default} for one in parameters if isinstance(one.default, bool))):
        model = head(tiny_config(), **labels, **switch, name="mine")
        keras_files.write(path, model)
        source = KerasFile(path)
        loaded = checkpoint.make_model(source, source.config, source.labels(), name="mine")
        one_score = {"num_labels": 1} if switch.get("regression") else {}  # whatever number was asked for
        assert type(loaded) is head and loaded.get_config() == model.get_config() | one_score


def test_bfloat16_is_read_as_float32(tmp_path):
    model, path = MAKERS["span"](tiny_config(), dtype="bfloat16"), str(tmp_path / "model.keras")
    keras_files.write(path, model)
    source, name = KerasFile(path), "bert/encoder/layer_0/output/dense/kernel"
    assert source.dtypes[name] == "bfloat16" and source.get(name).dtype == np.float32
    np.testing.assert_array_equal(source.get(name), values_of(model)[name].astype(np.float32))
    assert "bfloat16" in source.remarks[0]


CALLED = {"module": "os", "class_name": "function", "config": "abort", "registered_name": "abort"}


def test_a_damaged_file_and_the_configuration_of_another_model(tmp_path):
    """Nothing that a configuration names is called."""
    path = tmp_path / "model.keras"
    keras_files.write(str(path), MAKERS["classifier"](tiny_config()))
    whole = path.read_bytes()
    for data, words in (
        (b"no such thing", "text"),
        (whole[:-5000] + bytes([whole[-5000] ^ 1]) + whole[-4999:], "damaged"),
    ):
        path.write_bytes(data)
        refuses(f"{path} {words}", KerasFile, str(path))
    path.write_bytes(whole)
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    said = json.loads(held["config.json"])
    for change, words in (
        ({"module": "os", "class_name": "system"}, "os.system"),
        ({"module": "keras", "class_name": "Sequential"}, "keras.Sequential"),
        ({"class_name": "OutputLayer", "registered_name": "bert_tf2>OutputLayer"}, "OutputLayer"),
        ({"config": {"config": {"vocab_size": 23}, "num_labels": 3}}, "hidden_size"),
        *(
            ({"config": {**said["config"], place: CALLED}, "compile_config": {"optimizer": CALLED}}, "")
            for place in ("name", "dtype", "num_labels")
        ),
    ):
        held["config.json"] = json.dumps({**said, **change})
        with zipfile.ZipFile(path, "w") as archive:
            for name, value in held.items():
                archive.writestr(name, value)
        refuses(f"{path} {words}", KerasFile, str(path))

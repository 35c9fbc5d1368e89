"""Keras' own files: what Keras writes is read here, what is written here Keras loads; damaged and foreign ones."""

import inspect
import json
import os
import zipfile

import h5py
import keras
import numpy as np
import pytest
from refused import message_of
from small_models import MAKERS, randomize, small_batch, small_config, values_of

from bert_tf2 import heads, modeling
from bert_tf2.weights import checkpoint, keras_files
from bert_tf2.weights.keras_files import KerasFile

ALL = {**MAKERS, "encoder": modeling.BertModel}
CLASSES = {
    "pretraining": "PretrainingModel",
    "masked_words": "MaskedLMModel",
    "classifier": "ClassifierModel",
    "span": "SpanModel",
    "tagging": "TaggingModel",
    "encoder": "BertModel",
}


def make(kind="classifier", seed=0, **changes):
    model = ALL[kind](small_config(**changes))
    randomize(model, seed)
    return model


def arrays(source: KerasFile) -> dict[str, np.ndarray]:
    return {name: source.get(name) for name in source.shapes}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def rewrite(path, **members):
    """Replaces members of a .keras file; None drops one."""
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
@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
def test_what_keras_wrote_is_read(tmp_path, kind, ending):
    model = make(kind)
    path = str(tmp_path / f"model{ending}")
    model.save(path) if ending == ".keras" else model.save_weights(path)
    assert keras_files.recognizes(path)
    source = KerasFile(path)
    assert_equal(arrays(source), values_of(model))
    assert source.shapes == {name: list(value.shape) for name, value in values_of(model).items()}
    assert {*source.dtypes.values()} == {"float32"}
    assert source.class_name == CLASSES[kind]
    assert source.config == (model.config if ending == ".keras" else None)
    assert source.remarks == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL)
def test_keras_loads_what_was_written(tmp_path, kind):
    model = make(kind, hidden_act="relu", layer_norm_eps=1e-6)
    whole, weights = str(tmp_path / "out" / "model.keras"), str(tmp_path / "out" / "model.weights.h5")
    keras_files.write(whole, model)
    keras_files.write(weights, model)
    assert sorted(os.listdir(tmp_path / "out")) == ["model.keras", "model.weights.h5", "model.weights.h5.sha256"]
    loaded = keras.models.load_model(whole)  # nobody tells it of classes
    assert type(loaded) is type(model) and loaded.config == model.config
    assert_equal(values_of(loaded), values_of(model))
    other = make(kind, seed=1, hidden_act="relu", layer_norm_eps=1e-6)
    other.load_weights(weights)
    assert_equal(values_of(other), values_of(model))
    assert_equal(arrays(KerasFile(whole)), values_of(model))
    assert_equal(arrays(KerasFile(weights)), values_of(model))


def test_a_loaded_model_answers_as_the_one_that_was_written(tmp_path):
    model = make("classifier")
    keras_files.write(str(tmp_path / "model.keras"), model)
    batch = small_batch()
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(batch), model(batch))


def variants(head) -> list[dict]:
    """The arguments of a head: its own number of labels, and each switch in turn the other way."""
    parameters = inspect.signature(head).parameters.values()
    labels = {"num_labels": 3} if head.labels_of else {}
    switches = [{one.name: not one.default} for one in parameters if isinstance(one.default, bool)]
    return [labels | switch for switch in ({}, *switches)]


@pytest.mark.parametrize("head", heads.MODELS)
def test_a_file_gives_back_the_model_with_all_its_arguments(tmp_path, head):
    path = str(tmp_path / "model.keras")
    for arguments in variants(head):
        model = head(small_config(), **arguments, name="mine")
        keras_files.write(path, model)
        source = KerasFile(path)
        expected = model.get_config()
        config = source.config.to_dict()
        assert {**source.class_config, "config": config} == json.loads(json.dumps(expected))
        loaded = checkpoint.make_model(source, source.config, source.labels(), name="mine")
        assert type(loaded) is head
        one_score = {"num_labels": 1} if arguments.get("regression") else {}  # whatever number was asked for
        assert loaded.get_config() == expected | one_score


def test_optimizer_state_is_left_aside(tmp_path):
    model = make("classifier")
    model.compile(optimizer="adam")
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive, archive.open("model.weights.h5") as store:
        assert "optimizer" in h5py.File(store)
    assert_equal(arrays(KerasFile(str(tmp_path / "model.keras"))), values_of(model))


def test_bfloat16_is_read_as_float32(tmp_path):
    model = MAKERS["span"](small_config(), dtype="bfloat16")
    path = str(tmp_path / "model.keras")
    keras_files.write(path, model)
    source = KerasFile(path)
    name = "bert/encoder/layer_1/output/dense/kernel"
    assert source.dtypes[name] == "bfloat16" and source.get(name).dtype == np.float32
    np.testing.assert_array_equal(source.get(name), values_of(model)[name].astype(np.float32))
    assert len(source.remarks) == 1 and "bfloat16" in source.remarks[0]


def test_a_packed_zip_is_read(tmp_path):
    model = make("span")
    path = str(tmp_path / "model.keras")
    keras_files.write(path, model)
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in held.items():
            archive.writestr(name, value)
    assert_equal(arrays(KerasFile(path)), values_of(model))


def test_the_heads_are_those_of_the_models():
    assert {made.__name__: made.heads for made in (modeling.BertModel, *heads.MODELS)} == keras_files._HEADS


def test_weights_of_a_model_with_a_name_of_its_own(tmp_path):
    model = MAKERS["classifier"](small_config(), name="mine")
    path = str(tmp_path / "model.weights.h5")
    model.save_weights(path)
    source = KerasFile(path)
    assert source.class_name is None and source.shapes["output_weights"] == [3, 8]
    assert "taken for one of labels" in source.remarks[0]


def test_only_these_names_are_recognized(tmp_path):
    for name in ("model.keras", "model.weights.h5"):
        (tmp_path / name).touch()
        assert keras_files.recognizes(str(tmp_path / name))
    (tmp_path / "folder.keras").mkdir()
    assert not keras_files.recognizes(str(tmp_path / "folder.keras"))
    assert not keras_files.recognizes(str(tmp_path / "model.h5"))


# What is not there, damaged, or something else.


@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
@pytest.mark.parametrize("content", [b"", b"no such thing", None])
def test_a_file_that_is_cut_off_or_no_such_file(tmp_path, ending, content):
    path = tmp_path / f"model{ending}"
    keras_files.write(str(path), make())
    path.write_bytes(path.read_bytes()[:-3000] if content is None else content)
    message = message_of(KerasFile, str(path))
    assert str(path) in message and ("damaged" in message or "is text, not one of Keras' files" in message)


def test_parts_that_are_missing(tmp_path):
    path = str(tmp_path / "model.keras")
    keras_files.write(path, make())
    rewrite(path, config_json=None)
    assert "lacks config.json" in message_of(KerasFile, path)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"module": "os", "class_name": "system"}, "os.system"),
        ({"module": "keras", "class_name": "Sequential"}, "keras.Sequential"),
        ({"class_name": "OutputLayer"}, "OutputLayer"),
        ({"config": None}, "not a model of this project"),
        ({"config": {"config": {"vocab_size": 23}}}, "missing hidden_size"),
    ],
)
def test_another_model(tmp_path, change, part):
    path = str(tmp_path / "model.keras")
    keras_files.write(path, make())
    rewrite(path, config_json=json.dumps({**config_of(path), **change}))
    message = message_of(KerasFile, path)
    assert part in message and path in message


def test_nothing_else_of_a_configuration_is_used(tmp_path):
    """Keras would make objects of all of it."""
    path, model = str(tmp_path / "model.keras"), make()
    keras_files.write(path, model)
    called = {"module": "os", "class_name": "function", "config": "abort", "registered_name": "abort"}
    code = {"class_name": "__lambda__", "config": {"value": "not even code"}}
    said = {**config_of(path), "compile_config": {"optimizer": called, "loss": code}, "build_config": code}
    said["registered_name"] = "bert_tf2>SpanModel"
    said["config"] |= {"name": called, "dtype": code, "trainable": called}
    rewrite(path, config_json=json.dumps(said))
    assert_equal(arrays(KerasFile(path)), values_of(model))


def test_configuration_that_is_no_object(tmp_path):
    path = str(tmp_path / "model.keras")
    keras_files.write(path, make())
    for text in ("[]", "{", b"\xff", "[" * 100_000):
        rewrite(path, config_json=text)
        assert "damaged" in message_of(KerasFile, path)


def test_weights_of_another_model(tmp_path):
    path = str(tmp_path / "model.weights.h5")
    model = keras.Sequential([keras.layers.Dense(3)])
    model.build([None, 4])
    model.save_weights(path)
    assert "holds no model of this project" in message_of(KerasFile, path)


QUERY = "bert/blocks/transformer_block_1/attention/query/vars/0"


def another(value):
    """Puts another value or a link in the place of a kernel."""

    def change(store):
        del store[QUERY]
        store[QUERY] = value

    return change


def never_written(**settings):
    """Puts an array without numbers in the place of a kernel, for which HDF5 answers with zeros."""

    def change(store):
        del store[QUERY]
        store.create_dataset(QUERY, shape=(8, 8), dtype="f4", **settings)

    return change


CHANGES = {
    "a tensor is missing": (
        lambda store: store.pop(QUERY),
        "lacks bert/encoder/layer_1/attention/self/query/kernel",
    ),
    "the output layer is missing": (lambda store: store.pop("layers"), "lacks output_weights, output_bias"),
    "a link": (another(h5py.SoftLink("/bert/embeddings/vars/0")), "lacks bert/encoder/layer_1"),
    "a link to another file": (another(h5py.ExternalLink("secret.h5", "/x")), "lacks bert/encoder/layer_1"),
    "other numbers": (another(np.zeros([8, 8], np.int64)), "is of the type int64"),
    "numbers in another file": (never_written(external=[("secret", 0, 256)]), "should have 256 bytes and has 0"),
    "numbers that were never written": (never_written(), "should have 256 bytes and has 0"),
    "a part that was never written": (
        lambda store: (
            never_written(chunks=(4, 4))(store),
            store[QUERY].write_direct((np.ones([8, 8], np.float32)), np.s_[:4, :4], np.s_[:4, :4]),
        ),
        "should have 256 bytes and has 64",
    ),
    "parts that were never written": (never_written(chunks=(4, 4)), "should have 256 bytes and has 0"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_wrong_with_the_arrays(tmp_path, what):
    change, part = CHANGES[what]
    path = tmp_path / "model.weights.h5"
    make().save_weights(path)
    with h5py.File(tmp_path / "secret.h5", "w") as store:
        store["x"] = np.ones([8, 8], np.float32)
    with h5py.File(path, "r+") as store:
        change(store)
    assert part in message_of(KerasFile, str(path))


def test_zeros_that_are_compressed_to_nothing_are_read(tmp_path):
    path = tmp_path / "model.weights.h5"
    make().save_weights(path)
    with h5py.File(path, "r+") as store:
        del store[QUERY]
        store.create_dataset(QUERY, data=np.zeros([800, 800], np.float32), compression="gzip")
        assert store[QUERY].id.get_storage_size() * 100 < store[QUERY].nbytes
    zeros = [array for array in arrays(KerasFile(str(path))).values() if array.shape == (800, 800)]
    assert len(zeros) == 1 and not zeros[0].any()


def test_a_tensor_of_another_shape(tmp_path):
    """It is refused where the configuration is known: when a model is loaded or converted."""
    path, model = str(tmp_path / "model.weights.h5"), make()
    model.save_weights(path)
    with h5py.File(path, "r+") as store:
        another(np.zeros([8, 7], np.float32))(store)
    message = message_of(checkpoint.initialize, model, path)
    assert "layer_1/attention/self/query/kernel is [8, 7] in the checkpoint and [8, 8] in the model" in message


# Writing.


def test_another_ending(tmp_path):
    assert "ends in .keras or .weights.h5" in message_of(keras_files.write, str(tmp_path / "model.h5"), make())
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
def test_complete_or_not_at_all(tmp_path, monkeypatch, ending):
    def full(*_arguments, **_keywords):
        raise OSError(28, "No space left on device")

    path, model = tmp_path / f"model{ending}", make()
    keras_files.write(str(path), model)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setattr(model, "save", full)
    monkeypatch.setattr(model, "save_weights", full)
    assert "No space left" in message_of(keras_files.write, str(path), model)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before

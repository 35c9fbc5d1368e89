"""Who writes a model into a folder refuses one that holds something else, and leaves all of it as it is."""

import json
import os
import pathlib

import pytest
import toy_data
from folder_content import content
from google_folders import google_folder, with_slots, write_vocab
from refused import message_of, refuses
from small_models import randomize, values_of

import bert_tf2
from bert_tf2 import heads
from bert_tf2.commands import call
from bert_tf2.support import output_lock
from bert_tf2.weights import bundle


@pytest.fixture(scope="module")
def writers(encoder, films, names):
    """By name: a function that writes a model into a folder."""
    found = {"load": bert_tf2.load(encoder), "classifier": films, "tagger": names}
    return {
        **{name: model.save_folder for name, model in found.items()},
        "convert": lambda folder: call("convert_checkpoint", input=str(encoder), output=str(folder), to="tf1"),
    }


SMALLER = toy_data.config(num_hidden_layers=1, hidden_size=8)


def training(folder: pathlib.Path) -> None:
    """The same sizes and vocabulary, with the state of the optimizer."""
    toy_data.write_model(folder, num_hidden_layers=1)
    model = heads.PretrainingModel(toy_data.config(num_hidden_layers=1))
    bundle.CheckpointFolder(str(folder)).save(with_slots(model), 7)


def holding(name: str, stated) -> object:
    return lambda folder: (folder / name).write_text(json.dumps(stated))


THERE = {
    "a training": training,
    "another size": lambda folder: toy_data.write_trained(folder, heads.PretrainingModel(SMALLER)),
    "another number of heads": lambda folder: toy_data.write_model(folder, num_hidden_layers=1, num_attention_heads=4),
    "a released model": google_folder,
    **{name: holding(name, "") for name in ("model.safetensors", "films.keras", "saved_model.pb", "measure.json")},
    "task.json of another": holding("task.json", {"task": "xnli", "settings": {}, "made_with": {}}),
    "label_map.json": holding("label_map.json", {"task": "tsv", "labels": ["yes", "no"], "regression": False}),
    "vocab.txt of another": lambda folder: write_vocab(folder / "vocab.txt", toy_data.VOCAB[::-1]),
    "tokenization.json of another": holding("tokenization.json", {"do_lower_case": False}),
}


@pytest.mark.parametrize("there", THERE)
def test_a_folder_that_holds_something_else_is_refused_and_stays(writers, tmp_path, there):
    for name, write in writers.items():
        (folder := tmp_path / name).mkdir()
        THERE[there](folder)
        before = content(folder)
        if name != "convert" or there != "measure.json":  # the checkpoint beside this file is refused
            refuses(f"{folder} another", write, folder)
            assert content(folder) == before, name


def test_one_writer_at_a_time(writers, tmp_path):
    """Nothing is left locked, and nothing but the model's files is left."""
    with output_lock.locked(str(tmp_path)):
        for write in writers.values():
            refuses("running in this folder", write, tmp_path)
        assert os.listdir(tmp_path) == [".training.lock"]
    writers["load"](tmp_path / "out")
    assert ".training.lock" not in os.listdir(tmp_path / "out")


@pytest.mark.parametrize("name", ["load", "classifier", "tagger"])
def test_the_same_model_may_be_saved_again_and_no_other(writers, tmp_path, name):
    """Also where the first time was killed before the file `checkpoint`, and where a folder holds other files."""
    (tmp_path / "notes.txt").write_text("mine")
    writers[name](tmp_path)
    once = content(tmp_path)
    for killed in (False, True):
        if killed:
            (tmp_path / "checkpoint").unlink()
        writers[name](tmp_path)
        assert content(tmp_path) == once
    for other in writers.keys() - {name}:
        message_of(writers[other], tmp_path)
        assert content(tmp_path) == once, other


def test_further_training_may_be_saved_into_the_same_folder(tmp_path):
    films = bert_tf2.classifier(google_folder(tmp_path / "bert"), labels=["no", "yes"])
    for step in (1, 2):
        expected = randomize(films.model, seed=step)
        films.optimizer.iterations.assign(step)
        films.save_folder(tmp_path / "out")
    found = bert_tf2.load(tmp_path / "out")
    assert found.path.endswith("model.ckpt-2")
    assert all((values_of(found.model)[name] == value).all() for name, value in expected.items())

"""Who writes a model into a folder refuses one that holds something else, and leaves all of it as it is."""

import json
import os
import pathlib

import pytest
import toy_data
from bad_calls import save
from folder_content import content
from google_folders import google_folder
from refused import message_of

import bert_tf2
from bert_tf2 import heads, optimization
from bert_tf2.commands import call
from bert_tf2.support import output_lock
from bert_tf2.weights import checkpoint

TEXTS, ANSWERS = ["a good film", "a bad film"], ["yes", "no"]
# By name: what writes a folder, given the folder of a pretrained model.
MODELS = {
    "load": bert_tf2.load,
    "classifier": lambda path: bert_tf2.classifier(path, labels=["no", "yes"]),
    "tagger": lambda path: bert_tf2.tagger(path, labels=["O", "B-PER"]),
    "answerer": lambda path: bert_tf2.answerer(path),
}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> str:
    return google_folder(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="module")
def writers(pretrained):
    models = {name: make(pretrained) for name, make in MODELS.items()}
    found = {name: model.save_folder for name, model in models.items()}
    found["convert"] = lambda folder: call("convert_checkpoint", input=pretrained, output=str(folder), to="tf1")
    return found


def training(folder: pathlib.Path) -> None:
    """The same sizes and vocabulary, with the state of the optimizer."""
    toy_data.write_model(folder, num_hidden_layers=1)
    model = heads.PretrainingModel(toy_data.config(num_hidden_layers=1))
    slots = optimization.AdamWeightDecayOptimizer(checkpoint.trained_variables(model)).slots
    checkpoint.CheckpointFolder(str(folder)).save({**checkpoint.tf1_variables(model), **slots}, 7)


def another_size(folder: pathlib.Path) -> None:
    toy_data.write_model(folder, num_hidden_layers=1, hidden_size=8)
    save(heads.PretrainingModel(toy_data.config(num_hidden_layers=1, hidden_size=8)), folder)


def another_number_of_heads(folder: pathlib.Path) -> None:
    """No shape of a variable shows the number of heads."""
    toy_data.write_model(folder, num_hidden_layers=1, num_attention_heads=4)


def task_of_another(folder: pathlib.Path) -> None:
    (folder / "task.json").write_text(json.dumps({"task": "xnli", "settings": {}, "made_with": {}}))


def labels_of_another(folder: pathlib.Path) -> None:
    found = {"task": "tsv", "labels": ["yes", "no"], "regression": False}
    (folder / "label_map.json").write_text(json.dumps(found))


def vocabulary_of_another(folder: pathlib.Path) -> None:
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in reversed(toy_data.VOCAB)))


def case_of_another(folder: pathlib.Path) -> None:
    (folder / "tokenization.json").write_text('{"do_lower_case": false}')


THERE = {
    "a training": training,
    "another size": another_size,
    "another number of heads": another_number_of_heads,
    "a released model": lambda folder: google_folder(folder),
    "a Hugging Face folder": lambda folder: (folder / "model.safetensors").write_bytes(b"weights"),
    "a file of Keras": lambda folder: (folder / "films.keras").write_bytes(b"weights"),
    "a SavedModel": lambda folder: (folder / "saved_model.pb").write_bytes(b"weights"),
    "best weights": lambda folder: (folder / "measure.json").write_text("{}"),
    "task.json of another": task_of_another,
    "label_map.json of another": labels_of_another,
    "vocab.txt of another": vocabulary_of_another,
    "tokenization.json of another": case_of_another,
}


@pytest.mark.parametrize("there", THERE)
def test_what_holds_something_else_is_refused_and_stays(writers, tmp_path, there):
    for name, write in writers.items():
        folder = tmp_path / name
        folder.mkdir()
        THERE[there](folder)
        before = content(folder)
        if name == "convert" and there == "best weights":
            continue  # the checkpoint of the best weights is refused, and lies beside this file
        told = message_of(write, folder)
        assert str(folder) in told and "another" in told, (name, told)
        assert content(folder) == before, name


def test_a_folder_in_which_a_training_runs_is_refused(writers, tmp_path):
    with output_lock.locked(str(tmp_path)):
        for name, write in writers.items():
            assert "is running in this folder" in message_of(write, tmp_path), name
        assert os.listdir(tmp_path) == [".training.lock"]


def test_a_training_runs_while_a_model_is_written_elsewhere(writers, tmp_path):
    """Nothing is left locked, and nothing but the model's files is left."""
    writers["load"](tmp_path / "out")
    assert ".training.lock" not in os.listdir(tmp_path / "out")
    with output_lock.locked(str(tmp_path / "out")):
        pass


@pytest.mark.parametrize("name", MODELS)
def test_the_same_model_may_be_saved_again(writers, tmp_path, name):
    """Also where the first time was killed before the file `checkpoint`, and where a folder holds other files."""
    (tmp_path / "notes.txt").write_text("mine")
    writers[name](tmp_path)
    once = content(tmp_path)
    writers[name](tmp_path)
    assert content(tmp_path) == once
    (tmp_path / "checkpoint").unlink()
    writers[name](tmp_path)
    assert content(tmp_path) == once
    assert bert_tf2.load(tmp_path).config == toy_data.config(num_hidden_layers=1)


def test_further_training_may_be_saved_into_the_same_folder(pretrained, tmp_path):
    films = bert_tf2.classifier(pretrained, labels=["no", "yes"])
    for _ in range(2):
        films.fit(TEXTS, ANSWERS, batch_size=1, verbose=0)
        films.save_folder(tmp_path)
    expected = films.predict(TEXTS)
    assert abs(bert_tf2.classifier(tmp_path).predict(TEXTS) - expected).max() < 1e-6


def test_models_of_different_tasks_do_not_share_a_folder(writers, tmp_path):
    writers["classifier"](tmp_path)
    before = content(tmp_path)
    for name in writers.keys() - {"classifier"}:
        message_of(writers[name], tmp_path)
        assert content(tmp_path) == before, name

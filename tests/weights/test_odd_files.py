"""Files of a model that are links to nothing, pipes, or another kind of file: one sentence, at every door.

And errors of the package itself, which are no fault of a file, so that their traceback stays.
"""

import json
import os
import pathlib
import shutil
import signal

import pytest
import toy_data
from google_folders import google_folder
from huggingface_folders import make_folder, tensors_of, write_json
from refused import message_of
from small_models import MAKERS, randomize

import bert_tf2
from bert_tf2 import heads
from bert_tf2.commands import call
from bert_tf2.exporting import saved_model_files
from bert_tf2.support.errors import UserError
from bert_tf2.weights import keras_files, names

OF_TF1 = (
    *("bert_config.json", "vocab.txt", "tokenization.json", "task.json", "label_map.json", "checkpoint"),
    *("model.ckpt-0.index", "model.ckpt-0.data-00000-of-00001"),
)
OF_HUGGINGFACE = ("config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json", "added_tokens.json")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, pathlib.Path]:
    """A classifier as a folder of TensorFlow, and of Hugging Face; and its file of Keras."""
    path = tmp_path_factory.mktemp("models")
    pretrained = google_folder(path / "bert")
    films = bert_tf2.classifier(pretrained, labels=["no", "yes"])
    films.save_folder(path / "tf1")
    films.save(path / "films.keras")
    call("convert_checkpoint", input=str(path / "tf1"), output=str(path / "hf"), to="hf")
    write_json(path / "hf" / "added_tokens.json", {})
    return {"tf1": path / "tf1", "hf": path / "hf", "keras": path / "films.keras", "bert": pathlib.Path(pretrained)}


@pytest.fixture
def soon():
    """Ends a test that waits for a pipe."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("waits without end"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def lead_nowhere(path: pathlib.Path) -> None:
    path.symlink_to("../../blobs/1234")


@pytest.mark.parametrize("replace", [lead_nowhere, os.mkfifo])
@pytest.mark.parametrize(
    ("kind", "name"), [*(("tf1", name) for name in OF_TF1), *(("hf", name) for name in OF_HUGGINGFACE)]
)
def test_links_to_nothing_and_pipes_are_named(folders, tmp_path, kind, name, replace, soon):
    """As in a copy of Hugging Face's cache without its folder of blobs."""
    folder = shutil.copytree(folders[kind], tmp_path / "copy")
    assert bert_tf2.load(folder).labels.labels == ("no", "yes")
    (folder / name).unlink()
    replace(folder / name)
    paths = [folder] if name.endswith(".json") or name == "vocab.txt" else [folder, folder / name]
    for path in paths if kind == "hf" or name != "checkpoint" else [folder]:
        for door in (bert_tf2.load, bert_tf2.classifier):
            told = message_of(door, path)
            assert name in told, told
            assert replace is os.mkfifo or "../../blobs/1234" in told, told


def test_a_dangling_file_that_a_flag_names(folders, tmp_path):
    lead_nowhere(tmp_path / "vocab.txt")
    told = message_of(bert_tf2.load, folders["bert"], vocab_file=tmp_path / "vocab.txt")
    assert told.startswith(f"{tmp_path}/vocab.txt: is a link to ../../blobs/1234")


# A Keras file of a model that takes texts.


def test_the_file_of_a_model_of_texts(folders, tmp_path):
    path = str(folders["keras"])
    shutil.copy(path, tmp_path / "only.keras")
    for door in (
        bert_tf2.load,
        bert_tf2.classifier,
        lambda path: call("convert_checkpoint", input=path, output=str(tmp_path / "out"), to="hf"),
        lambda path: [*call("convert_checkpoint", list=path)],
    ):
        for given in (path, str(tmp_path)):
            told = message_of(door, given)
            assert "films.keras" in told or "only.keras" in told
            assert "keras.models.load_model" in told and "save_folder" in told and "damaged" not in told
    assert sorted(os.listdir(tmp_path)) == ["only.keras"]


# Labels.


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_names_of_labels_as_a_list(folders, tmp_path, kind):
    labels = ["bad", "good", "odd"]
    named = labels if kind == "list" else {str(index): label for index, label in enumerate(labels)}
    config = toy_data.config(num_hidden_layers=1)
    model = heads.ClassifierModel(config, 3)
    randomize(model)
    keras_files.write(str(tmp_path / "model.keras"), model)
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in toy_data.VOCAB))
    call("convert_checkpoint", input=str(tmp_path / "model.keras"), output=str(tmp_path / "hf"), to="hf")
    content = (tmp_path / "hf/config.json").read_text()
    write_json(tmp_path / "hf/config.json", {**json.loads(content), "id2label": named})
    bert = bert_tf2.load(tmp_path / "hf")
    assert bert.labels.labels == tuple(labels)
    answer = bert.classify("a good film")
    assert [*answer] == labels and abs(sum(answer.values()) - 1) < 1e-5
    assert bert_tf2.classifier(tmp_path / "hf").labels == labels
    call("convert_checkpoint", input=str(tmp_path / "hf"), output=str(tmp_path / "tf1"), to="tf1")
    assert bert_tf2.load(tmp_path / "tf1").labels.labels == tuple(labels)
    for wrong in (labels[:2], [*labels, "more"], ["bad", "", "odd"], "bad", 3):
        write_json(tmp_path / "hf/config.json", {**json.loads(content), "id2label": wrong})
        for door in (bert_tf2.load, bert_tf2.classifier):
            assert "id2label" in message_of(door, tmp_path / "hf")


# A vocabulary.


def lines(*entries: str) -> str:
    return "".join(f"{entry}\n" for entry in entries)


VOCABULARIES = {
    "empty": "",
    "all in one line": " ".join(toy_data.VOCAB),
    "lower-case special tokens": lines(*(entry.lower() for entry in toy_data.VOCAB)),
    "half": lines(*toy_data.VOCAB[: len(toy_data.VOCAB) // 2]),
    "one too many": lines(*toy_data.VOCAB, "more"),
    "without [MASK]": lines(*(entry for entry in toy_data.VOCAB if entry != "[MASK]")),
    "twice": lines(*toy_data.VOCAB[:-1], toy_data.VOCAB[7]),
    "scores of SentencePiece": lines(*(f"{entry}\t-1.5" for entry in toy_data.VOCAB)),
    "right": lines(*toy_data.VOCAB),
}


@pytest.mark.parametrize("given", ["beside", "flag"])
@pytest.mark.parametrize("what", VOCABULARIES)
def test_a_vocabulary_gets_one_verdict_by_every_door(folders, tmp_path, what, given, log_lines):
    """That of `load`, with its warnings."""
    folder = shutil.copytree(folders["bert"], tmp_path / "bert")
    path = (folder if given == "beside" else tmp_path) / "vocab.txt"
    (folder / "vocab.txt").unlink()
    path.write_text(VOCABULARIES[what])
    found = {}
    for name, door in {
        "load": lambda **files: bert_tf2.load(folder, **files),
        "convert": lambda **files: call(
            "convert_checkpoint", input=str(folder), output=str(tmp_path / "out"), to="hf", **files
        ),
    }.items():
        del log_lines[:]
        try:
            door(**({} if given == "beside" else {"vocab_file": str(path)}))
            verdict = "taken"
        except UserError as error:
            verdict = str(error)
        found[name] = verdict, [line for line in log_lines if line.startswith(f"{path}: ")]
    assert found["load"] == found["convert"]
    assert (what in ("right", "twice", "half")) == (found["load"][0] == "taken")


# Bugs of the package.


@pytest.fixture
def bug(monkeypatch):
    """Replaces a function of the package by one that has a bug."""

    def put(where, name: str, error: type[Exception]):
        def fail(*_, **__):
            raise error("a bug")

        monkeypatch.setattr(where, name, fail)

    return put


@pytest.mark.parametrize("error", [AttributeError, KeyError, TypeError, ValueError, RuntimeError])
def test_a_bug_keeps_its_traceback(folders, tmp_path, bug, error):
    randomize(model := MAKERS["classifier"](toy_data.config(num_hidden_layers=1)))
    keras_files.write(str(tmp_path / "model.keras"), model)
    make_folder(tmp_path / "hf", tensors_of("BertForPreTraining"))
    bug(names, "tf1_variables", error)
    bug(names, "common_prefix", error)
    for path in (tmp_path / "model.keras", tmp_path / "hf"):
        with pytest.raises(error, match="a bug"):
            bert_tf2.load(path)


def test_a_bug_in_an_export_keeps_its_traceback(folders, tmp_path, bug):
    pytest.importorskip("tensorflow_text")
    weights = str(folders["tf1"])
    path = call("export_saved_model", task="classifier", init_checkpoint=weights, export_dir=str(tmp_path))
    for error in (AttributeError, KeyError, TypeError, ValueError):
        bug(saved_model_files.ExportedModel, "__init__", error)
        with pytest.raises(error, match="a bug"):
            saved_model_files.load(path)

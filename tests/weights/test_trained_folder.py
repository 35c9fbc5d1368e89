"""The folder of a training: it is a model, its files decide the answers at every door, and other files are refused."""

from __future__ import annotations

import json
import pathlib
import random
import shutil

import numpy as np
import pytest
import toy_data
from folder_content import content
from google_folders import write_vocab
from huggingface_folders import write_json
from refused import refuses

import bert_tf2
from bert_tf2 import heads
from bert_tf2.commands import call
from bert_tf2.weights.task_file import LabelMap

TEXTS = ["the film was good .", "playing " * 40, "the FILM was good", "ann lives in paris", "中文 good", "\u200b good"]
PAIRS = [*zip(TEXTS, ["", *TEXTS[1:]], strict=True)]
COLUMNS = {"text_a_column": "one", "text_b_column": "two", "label_column": "label"}
BESIDE = dict.fromkeys(("bert_config_file", "vocab_file", "do_lower_case"))  # what a call may leave out


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict:
    """The settings of a cased classifier of pairs that was trained with 13 tokens; its best weights are kept."""
    path = tmp_path_factory.mktemp("trained")
    for part in ("train", "dev"):
        toy_data.write_table(path / f"{part}.tsv", "one\ttwo\tlabel", [(*p, str(i % 2)) for i, p in enumerate(PAIRS)])
    toy_data.write_table(path / "test.tsv", "one\ttwo", PAIRS)
    settings = {
        **toy_data.write_model(path, num_hidden_layers=1),
        **{"output_dir": str(path / "out"), "data_dir": str(path), "task_name": "tsv", **COLUMNS},
        **{"do_lower_case": False, "train_batch_size": np.int64(6)},
    }
    call("run_classifier", do_train=True, eval_steps=4, max_seq_length=13, num_train_epochs=np.float32(4),
         learning_rate=1e-2, **settings)  # fmt: skip
    return settings


def rows(answers) -> np.ndarray:
    return np.array([[*answer.values()] for answer in answers])


def predicted(settings, **changes) -> np.ndarray:
    """The answers of the script."""
    call("run_classifier", **{**settings, "do_predict": True, **changes})
    return np.loadtxt(pathlib.Path({**settings, **changes}["output_dir"]) / "test_results.tsv")


@pytest.mark.parametrize("folder", ["out", "out/best"])
def test_a_training_leaves_a_model(trained, folder):
    folder = pathlib.Path(trained["output_dir"]).parent / folder
    assert (folder / "bert_config.json").read_text() == toy_data.config(num_hidden_layers=1).to_json_string()
    assert (folder / "vocab.txt").read_bytes() == pathlib.Path(trained["vocab_file"]).read_bytes()
    assert json.loads((folder / "tokenization.json").read_text()) == {"do_lower_case": False}
    content = json.loads((folder / "task.json").read_text())
    assert content["made_with"].pop("labels") == ["0", "1"] and "num_attention_heads" in content.pop("made_with")
    kept = {"max_seq_length": 13, "doc_stride": 0, "pooling": "mean"}
    assert content == {"task": "tsv", "pairs": True, "settings": kept}
    bert = bert_tf2.load(folder)
    assert bert.tokenizer.tokenize("good Film") == ["good", "[UNK]"] and bert.labels.labels == ("0", "1")


def test_script_load_keras_and_conversions_answer_alike(trained, tmp_path, log_lines):
    script = predicted(trained, **BESIDE)
    assert "max_seq_length=13: as in the training, from task.json beside the weights" in log_lines
    bert, films = bert_tf2.load(trained["output_dir"]), bert_tf2.classifier(trained["output_dir"])
    np.testing.assert_allclose(rows(bert.classify(PAIRS)), script, atol=1e-6)
    np.testing.assert_allclose(films.predict(PAIRS, verbose=0), script, atol=1e-6)
    assert np.abs(rows(bert.classify(PAIRS, max_seq_length=16)) - script).max() > 1e-4  # so the length matters
    source = trained["output_dir"]
    for kind in ("keras", "hf", "tf1"):  # the last of transformers' folder, whose task has no name: the labels decide
        call("convert_checkpoint", input=str(source), to=kind, output=str(tmp_path / kind))
        source = tmp_path / kind if kind == "hf" else source
        if kind != "tf1":
            np.testing.assert_allclose(rows(bert_tf2.load(tmp_path / kind).classify(PAIRS)), script, atol=1e-6)
    # A task.json without checkpoints beside it says nothing of the weights in use.
    (tmp_path / "new").mkdir()
    write_json(tmp_path / "new" / "task.json", {"settings": {"max_seq_length": 5}})
    new = {"init_checkpoint": str(tmp_path / "tf1"), "output_dir": str(tmp_path / "new")}
    np.testing.assert_allclose(predicted(trained, **new), script, atol=1e-6)
    exact = {"to": "tf1", "output": str(tmp_path / "exact"), "hidden_act": "gelu_erf"}
    call("convert_checkpoint", input=trained["output_dir"], **exact)
    assert bert_tf2.load(tmp_path / "exact").config.hidden_act == "gelu_erf"


# Files and settings that contradict the training


def other_config(path: pathlib.Path, **changes) -> str:
    path.write_text(toy_data.config(num_hidden_layers=1, **changes).to_json_string())
    return str(path)


def test_another_configuration_vocabulary_or_case_is_refused(trained, tmp_path):
    heads = {"bert_config_file": other_config(tmp_path / "heads.json", num_attention_heads=4)}
    activation = {"bert_config_file": other_config(tmp_path / "activation.json", hidden_act="gelu_erf")}
    reordered = write_vocab(tmp_path / "other.txt", [*toy_data.VOCAB[:5], *reversed(toy_data.VOCAB[5:])])
    unused = write_vocab(tmp_path / "unused.txt", [*toy_data.VOCAB[:-1], "[unused1]"])
    write_vocab(tmp_path / "words" / "vocab.txt", toy_data.VOCAB[::-1])
    (tmp_path / "heads").mkdir()
    shutil.copy(heads["bert_config_file"], tmp_path / "heads" / "bert_config.json")
    there = content(tmp_path)
    before = {path.name for path in pathlib.Path(trained["output_dir"]).iterdir()}
    for switch, changes, words in (
        ("do_train", heads, "bert_config.json num_attention_heads --bert_config_file"),
        ("do_predict", activation, "bert_config.json hidden_act --bert_config_file"),
        ("do_export", heads, "bert_config.json num_attention_heads --bert_config_file"),
        ("do_train", {"vocab_file": reordered}, f"{reordered} another vocabulary"),
        ("do_predict", {"vocab_file": reordered}, f"{reordered}: 32 entries"),
        ("do_train", {"vocab_file": unused}, "out/vocab.txt --vocab_file"),
        ("do_predict", {"do_lower_case": None}, "out/tokenization.json --do_lower_case=False"),
        # Files in a folder without a checkpoint, which are not replaced
        ("do_train", {"output_dir": str(tmp_path / "words")}, "words/vocab.txt --vocab_file= --output_dir"),
        ("do_train", {"output_dir": str(tmp_path / "heads")}, "bert_config.json num_attention_heads 4 --output_dir"),
    ):
        settings = {**trained, "num_train_epochs": 30.0, "max_seq_length": 13, **changes, switch: True}
        refuses(words, call, "run_classifier", **settings)
    assert {path.name for path in pathlib.Path(trained["output_dir"]).iterdir()} == before
    assert content(tmp_path) == there


def test_fewer_layers_are_no_way_to_go_on(trained, tmp_path):
    """The next checkpoint would lack the others."""
    labels = LabelMap("tsv", ("0", "1"), regression=False)
    toy_data.write_trained(tmp_path, heads.ClassifierModel(toy_data.config(), num_labels=2), labels)
    settings = {**trained, "output_dir": str(tmp_path), "do_predict": True, "max_seq_length": 13}
    refuses(
        f"{tmp_path}/bert_config.json num_hidden_layers 2 1 or another output_dir", call, "run_classifier", **settings
    )


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("bert_config.json", {"num_attention_heads": 4}, "out/bert_config.json num_attention_heads 4 2 task.json"),
        ("label_map.json", {"labels": ["1", "0"]}, 'out/label_map.json ["1", "0"] ["0", "1"] task.json'),
        ("task.json", {"settings": [1]}, "out/task.json remove"),
        ("task.json", {"settings": {"max_seq_length": 13.5}}, "out/task.json max_seq_length=13.5 whole"),
    ],
)
def test_a_file_that_changed_since_the_training_is_refused(trained, name, change, words, tmp_path):
    folder = shutil.copytree(trained["output_dir"], tmp_path / "out", ignore=shutil.ignore_patterns("best"))
    write_json(folder / name, json.loads((folder / name).read_text()) | change)
    settings = {**trained, "output_dir": str(folder), "bert_config_file": str(folder / "bert_config.json")}
    export = {"task": "classifier", "init_checkpoint": str(folder), "export_dir": str(tmp_path / "export")}
    refuses(words, call, "run_classifier", **settings, do_predict=True)
    refuses(words, call, "export_saved_model", **export)
    refuses(words, lambda: bert_tf2.load(folder).classify("a film"))


def test_another_length_and_a_guessed_case_are_logged(trained, tmp_path, log_lines):
    folder = shutil.copytree(trained["output_dir"], tmp_path / "out", ignore=shutil.ignore_patterns("best"))
    (folder / "tokenization.json").unlink()
    predicted({**trained, **BESIDE}, output_dir=str(folder), max_seq_length=16)
    assert any("max_seq_length=16: the model was trained with 13" in line for line in log_lines)
    assert any("do_lower_case=True: guessed from the vocabulary" in line for line in log_lines)


# Questions and tags


@pytest.mark.slow
def test_the_settings_of_questions(tmp_path):
    files = toy_data.write_model(tmp_path, num_hidden_layers=1)
    train_file = toy_data.write_squad(tmp_path / "train.json", 4, 1, impossible=True)
    kept = {"max_seq_length": 16, "doc_stride": 4, "max_query_length": 6, "max_answer_length": 2, "n_best_size": 12,
            "null_score_diff_threshold": -100.0}  # fmt: skip
    training = {"do_train": True, "num_train_epochs": 1.0, "train_batch_size": 4, "train_file": train_file}
    call("run_squad", version_2_with_negative=True, output_dir=str(tmp_path / "out"), **files, **training, **kept)
    assert json.loads((tmp_path / "out" / "task.json").read_text())["settings"] == kept
    bert = bert_tf2.load(tmp_path / "out")
    asked = ("where does ann live ?", "ann lives in paris .")
    assert bert.answer(*asked).text == ""  # the threshold, and that there may be no answer
    assert 0 < len(bert.answer(*asked, may_be_missing=False).text.split()) <= 2
    squad = {"task": "squad", "init_checkpoint": str(tmp_path / "out"), "export_dir": str(tmp_path / "served")}
    call("export_saved_model", **squad, text_signatures=False)
    assert kept.items() <= json.loads((tmp_path / "served/1/model_info.json").read_text()).items()


def test_the_settings_of_tags(tmp_path, log_lines):
    """Long sentences in windows, with the sentences around them."""
    draw, path = random.Random(0), tmp_path / "words.txt"
    given = [draw.choices(toy_data.OTHERS[:11], k=length) for length in (3, 20, 2, 17, 5, 8)]
    tagged = ("".join(f"{word} {draw.choice(['O', 'B-X', 'B-Y'])}\n" for word in words) for words in given)
    path.write_text("\n".join(tagged))
    files = {
        **toy_data.write_model(tmp_path, num_hidden_layers=1, initializer_range=1.0),
        "output_dir": str(tmp_path / "out"),
    }
    files |= {"train_file": str(path), "predict_file": str(path)}
    kept = {"max_seq_length": 13, "doc_stride": 3, "document_context": True}
    training = {"do_train": True, "num_train_epochs": 1.0, "train_batch_size": 16, "learning_rate": 1e-3}
    call("run_ner", do_predict=True, **files, **kept, **training)
    assert json.loads((tmp_path / "out" / "task.json").read_text())["settings"] == kept

    def predicted() -> list[list[str]]:
        tables = (tmp_path / "out/predictions.txt").read_text().strip().split("\n\n")
        return [[line.split()[-1] for line in part.splitlines()] for part in tables]

    bert, script = bert_tf2.load(tmp_path / "out"), predicted()
    assert bert.tag(given) == bert.tag(given, max_seq_length=13) == script
    assert bert_tf2.tagger(tmp_path / "out", max_seq_length=13).predict(given) == script
    call("run_ner", do_predict=True, max_seq_length=10, **files)  # the training's doc_stride counts for every length
    assert bert.tag(given, max_seq_length=10) == predicted() != bert.tag(given, max_seq_length=10, stride=4)
    assert bert_tf2.tagger(tmp_path / "out", max_seq_length=10).predict(given) == predicted()
    assert bert.tag(given[1]) != script[1]  # so the sentences around count
    ner = {"task": "ner", "init_checkpoint": str(tmp_path / "out"), "export_dir": str(tmp_path / "served")}
    call("export_saved_model", **ner, text_signatures=False)
    assert any("document_context" in line and "export" in line for line in log_lines)

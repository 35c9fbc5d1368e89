"""Data of one's own: tables with scores, tables with several labels for a text, and processors of forks."""

from __future__ import annotations

import json
import pathlib
import re
import runpy
import sys

import numpy as np
import pytest
import toy_data
from command_lines import ROOT
from refused import refuses

import bert_tf2
from bert_tf2 import exporting, heads, modeling
from bert_tf2.commands import call
from bert_tf2.finetuning import classification
from bert_tf2.finetuning.classification import InputExample, get_processor
from bert_tf2.weights import checkpoint
from bert_tf2.weights.task_file import LabelMap

COLUMNS = {"task_name": "tsv", "text_a_column": "text", "label_column": "label", "id_column": "name"}
SMALL = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 4}


def write(folder: pathlib.Path, labels, texts=None) -> dict:
    """Tables in a folder whose texts have these labels; returns settings of run_classifier.py."""
    texts = texts or [text for text, _ in toy_data.sentences(len(labels), 1)]
    for part in ("train", "dev"):
        rows = [(f"{part}{number}", *row) for number, row in enumerate(zip(texts, labels, strict=True))]
        toy_data.write_table(folder / f"{part}.tsv", "name\ttext\tlabel", rows)
    toy_data.write_table(folder / "test.tsv", "name\ttext", [(f"t{n}", text) for n, text in enumerate(texts)])
    settings = {**COLUMNS, **toy_data.write_model(folder, **SMALL), "data_dir": str(folder), "max_seq_length": 16}
    return {**settings, "output_dir": str(folder / "out"), "train_batch_size": 16}


@pytest.mark.slow
def test_a_regression(tmp_path):
    scores = [-1.25 + number % 2 * 2.5 for number in range(64)]  # "yes" and "no" of toy_data in turn
    settings = {**write(tmp_path, scores), "regression": True}
    to_do = {"do_train": True, "do_eval": True, "do_predict": True}
    found = call("run_classifier", learning_rate=3e-3, num_train_epochs=10.0, **to_do, **settings)
    assert found["spearman"] > 0.7 and found["pearson"] > 0.7 and "accuracy" not in found
    content = json.loads((tmp_path / "out" / "label_map.json").read_text())
    assert content == {"task": "tsv", "labels": [], "regression": True}
    assert np.loadtxt(tmp_path / "out" / "test_results.tsv").shape == (64,)
    assert [*bert_tf2.load(tmp_path / "out").classify("a good film")] == ["score"]
    again = call("run_classifier", do_eval=True, **settings)
    assert again["spearman"] == pytest.approx(found["spearman"])
    refuses("give --regression", call, "run_classifier", do_eval=True, **{**settings, "regression": False})
    (tmp_path / "out" / "label_map.json").write_text('{"task": "tsv", "labels": ["a", "b"], "regression": false}')
    (tmp_path / "out" / "task.json").unlink()
    refuses("leave out --regression", call, "run_classifier", do_eval=True, **settings)


@pytest.mark.parametrize("score", ["good", "3,75", "", "nan", "1e40"])
def test_a_cell_without_a_number_is_named(tmp_path, score):
    settings = {**write(tmp_path, ["1.5", "2", score, "3"]), "regression": True}
    refuses(f"{tmp_path}/train.tsv, row 4: {score!r}", call, "run_classifier", do_train=True, **settings)


@pytest.mark.parametrize(
    ("scores", "warns"),
    [
        ([1.5, 2.25, 3.75] * 5, True),
        ([*range(100, 116)], True),
        ([*range(100, 109), *[7] * 6], True),
        ([1, 2, 3, 4, 5] * 4, False),
        (["0", "1"] * 8, False),
        (["1.0", "2.0"] * 8, False),
        (["a", *map(str, range(15))], False),
        (["good", "bad"] * 8, False),
    ],
    ids=str,
)
def test_classes_that_look_like_amounts_get_a_warning(tmp_path, log_lines, scores, warns):
    write(tmp_path, scores)
    layout = classification.TsvLayout("text", label="label")
    get_processor("tsv", tsv=layout).get_train_examples(str(tmp_path))
    found = [line for line in log_lines if "--regression" in line]
    assert len(found) == warns and all("train.tsv" in line for line in found)


def test_labels_of_the_python_classifier_that_look_like_amounts(tmp_path, log_lines):
    toy_data.write_model(tmp_path, **SMALL)
    model = heads.PretrainingModel(toy_data.config(**SMALL))
    checkpoint.save(str(tmp_path / "bert_model.ckpt"), checkpoint.tf1_variables(model))
    for labels, warns in ((["0", "1"], False), (["1.5", "2.25", "3.75"], True)):
        bert_tf2.classifier(tmp_path, labels=labels)
        assert any("regression=True" in line for line in log_lines) == warns


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"do_train": True, "regression": True, "task_name": "MRPC"}, "--regression needs --task_name=tsv"),
        ({"do_train": True, "regression": True, "multi_label": True}, "--multi_label --regression"),
        ({"do_train": True, "regression": True, "class_weights": "balanced"}, "--class_weights"),
        ({"do_eval": True, "multi_label": True, "task_name": "cola"}, "--multi_label needs --task_name=tsv"),
        ({"do_eval": True, "multi_label": True, "label_separator": ""}, "--label_separator"),
        ({"do_eval": True, "class_weights": "balanced"}, "--class_weights needs --do_train"),
        ({"do_train": True, "task_name": "sts-b", "class_weights": "balanced"}, "--class_weights sts-b"),
    ],
)
def test_flags_that_do_not_go_together(tmp_path, settings, words):
    refuses(words, call, "run_classifier", **{**write(tmp_path, ["1", "2"]), **settings})


# Several labels

MAP = LabelMap("tsv", ("fun", "long", "sad"), regression=False, multi_label=True)
SEVERAL = classification.TsvLayout("text", label="label", id="name", separator=",")


def test_labels_are_separated_and_collected(tmp_path):
    write(tmp_path, ["sad,fun", "", " long , fun", "fun,"])
    processor = get_processor("tsv", tsv=SEVERAL)
    examples = processor.get_train_examples(str(tmp_path))
    assert [example.label for example in examples] == [("sad", "fun"), (), ("long", "fun"), ("fun",)]
    assert processor.get_labels() == ["fun", "long", "sad"] and processor.label_map() == MAP
    write(tmp_path, ["sad", "sad,funny"])
    known = get_processor("tsv", tsv=SEVERAL, label_map=MAP)
    refuses("dev.tsv, row 3: 'funny'", known.get_dev_examples, str(tmp_path))
    one = LabelMap("tsv", MAP.labels, regression=False)
    refuses("fun, long, sad leave out --multi_label", get_processor, "tsv", tsv=SEVERAL, label_map=one)


@pytest.mark.slow
def test_training_prediction_conversion_and_export_of_several_labels(tmp_path):
    """Two words are labels of their own; a tiny model learns them."""
    texts = ["film a", "good a", "in a", "good in"]
    labels = ["", "fun", "sad", "fun,sad"]
    settings = {**write(tmp_path, labels * 16, texts * 16), "multi_label": True, "train_batch_size": 8}
    toy_data.write_table(tmp_path / "test.tsv", "name\ttext", [(f"t{n}", text) for n, text in enumerate(texts)])
    to_do = dict.fromkeys(("do_train", "do_eval", "do_predict", "do_export"), True)
    how = {"learning_rate": 5e-3, "num_train_epochs": 30.0, "class_weights": "balanced"}
    results = call("run_classifier", **settings, **to_do, **how)
    assert results["micro_f1"] == results["macro_f1"] == results["exact_match"] == 1.0
    text = (tmp_path / "out" / "eval_results.txt").read_text()
    assert "micro_f1 = 1.0" in text and "eval_accuracy" not in text
    assert (tmp_path / "out" / "predictions.tsv").read_text() == "id\tlabels\nt0\t\nt1\tfun\nt2\tsad\nt3\tfun,sad\n"
    answer = exporting.load(str(tmp_path / "out" / "export"))
    assert [found["labels"] for found in answer(texts)] == [[], ["fun"], ["sad"], ["fun", "sad"]]
    call("convert_checkpoint", input=str(tmp_path / "out"), output=str(tmp_path / "hf"), to="hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["problem_type"] == "multi_label_classification"
    start = {"init_checkpoint": str(tmp_path / "hf"), "output_dir": str(tmp_path / "new")}
    assert call("run_classifier", do_eval=True, **{**settings, **start})["micro_f1"] == 1.0


# Forks of the reference


def test_the_fork_of_the_guide(tmp_path, monkeypatch):
    """Trained and asked with the flags of run_classifier.py; its folder is that of any classifier."""
    diff = re.search(r"```diff\n(.*?)```", (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    script = tmp_path / "run_reviews.py"
    script.write_text("".join(f"{line[1:]}\n" for line in diff.splitlines() if not line.startswith("-")))
    toy_data.write_tsv_task(tmp_path / "data")
    settings = {**toy_data.write_model(tmp_path, num_hidden_layers=1), "task_name": "Reviews"}
    settings |= {"data_dir": str(tmp_path / "data"), "output_dir": str(tmp_path / "out"), "class_weights": "balanced"}
    settings |= {"max_seq_length": 32, "learning_rate": 3e-3, "num_train_epochs": 5.0, "train_batch_size": 16}
    settings |= {"do_train": True, "do_eval": True, "do_predict": True}
    monkeypatch.setattr(bert_tf2.commands, "run", lambda name: call(name, **settings))  # without a command line
    monkeypatch.setattr(sys, "argv", [str(script)])
    runpy.run_path(str(script), run_name="__main__")
    answers = bert_tf2.load(tmp_path / "out").classify([text for text, _ in toy_data.sentences(21, 2)])
    written = np.loadtxt(tmp_path / "out" / "test_results.tsv")
    np.testing.assert_allclose([[answer["no"], answer["yes"]] for answer in answers], written, atol=1e-5)
    assert "eval_accuracy = " in (tmp_path / "out" / "eval_results.txt").read_text()
    assert (tmp_path / "out" / "predictions.tsv").read_text().splitlines()[1].startswith("test-t0\t")


class Bytes(classification.DataProcessor):
    """As a fork for Python 2 has it: texts in bytes, labels that are numbers; no test set."""

    labels = (0, 1)

    def get_labels(self):
        return self.labels

    def get_train_examples(self, data_dir):
        return [InputExample("a", "caf\u00e9".encode(), b"b", 1)]

    def get_dev_examples(self, data_dir):
        return [InputExample("a", "b", None, 2)]


def test_a_processor_of_ones_own():
    classification.register("Of-Bytes", Bytes)
    processor = get_processor("OF-BYTES")
    assert processor.get_train_examples("") == [InputExample("a", "café", "b", "1")]
    assert processor.get_labels() == ["0", "1"]
    refuses("get_dev_examples of-bytes, example 1: '2' 0, 1", processor.get_dev_examples, "")
    refuses("no get_test_examples of-bytes", processor.get_test_examples, "")
    refuses("taken", classification.register, "MRPC", Bytes)
    for labels in (("a",), ("a", "a")):
        refuses("two or more", classification.register, "of-bytes", type("Few", (Bytes,), {"labels": labels}))
    config = toy_data.config()  # and a model as forks make it
    refuses("BertModel(config)", modeling.BertModel, config=config, is_training=False, input_ids=[[1]], input_mask=None)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("run_classifier", "MrpcProcessor"),
        ("run_squad", "read_squad_examples"),
        ("run_pretraining", "get_masked_lm_output"),
        ("create_pretraining_data", "create_training_instances"),
        ("extract_features", "convert_examples_to_features"),
    ],
)
def test_names_of_the_scripts(script, name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    module = __import__(script)
    assert callable(getattr(module, name))
    with pytest.raises(AttributeError, match=f"{script}.py has no 'FLAGS': docs/migrating.md"):
        _ = module.FLAGS

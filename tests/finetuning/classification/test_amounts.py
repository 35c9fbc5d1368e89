"""Tables of one's own whose labels are numbers: a regression with --regression, and a warning without."""

from __future__ import annotations

import json

import numpy as np
import pytest
import toy_data
from refused import message_of

import bert_tf2
from bert_tf2 import commands, heads
from bert_tf2.weights import checkpoint

COLUMNS = {"task_name": "tsv", "text_a_column": "text", "label_column": "score", "max_seq_length": 16}


def write(folder, scores) -> dict[str, str]:
    """Tables in a folder whose texts have these scores; returns settings of run_classifier.py."""
    texts = [text for text, _ in toy_data.sentences(len(scores), 1)]
    for part in ("train", "dev"):
        toy_data.write_table(folder / f"{part}.tsv", "text\tscore", [*zip(texts, scores, strict=True)])
    toy_data.write_table(folder / "test.tsv", "text", [(text,) for text in texts])
    files = toy_data.write_model(folder, num_hidden_layers=1, hidden_size=32, num_attention_heads=4)
    return {**COLUMNS, **files, "data_dir": str(folder), "output_dir": str(folder / "out"), "train_batch_size": 16}


def test_a_regression_on_own_tables(tmp_path):
    scores = [-1.25 + number % 2 * 2.5 for number in range(64)]  # "yes" and "no" of toy_data in turn
    settings = {**write(tmp_path, scores), "regression": True}
    to_do = {"do_train": True, "do_eval": True, "do_predict": True}
    found = commands.call("run_classifier", learning_rate=3e-3, num_train_epochs=10.0, **to_do, **settings)
    assert found["spearman"] > 0.7 and found["pearson"] > 0.7 and "accuracy" not in found
    content = json.loads((tmp_path / "out" / "label_map.json").read_text())
    assert content == {"task": "tsv", "labels": [], "regression": True}
    predicted = np.loadtxt(tmp_path / "out" / "test_results.tsv")
    assert predicted.shape == (64,)
    assert [*bert_tf2.load(str(tmp_path / "out")).classify("a good film")] == ["score"]
    again = commands.call("run_classifier", do_eval=True, **settings)
    assert again["spearman"] == pytest.approx(found["spearman"])
    without = message_of(commands.call, "run_classifier", do_eval=True, **{**settings, "regression": False})
    assert "give --regression" in without


def test_a_classifier_is_not_continued_as_a_regression(tmp_path):
    settings = write(tmp_path, ["1", "2"] * 8)
    commands.call("run_classifier", do_train=True, num_train_epochs=1.0, **settings)
    assert "leave out --regression" in message_of(
        commands.call, "run_classifier", do_eval=True, regression=True, **settings
    )


@pytest.mark.parametrize("score", ["good", "3,75", "", "nan", "1e40"])
def test_what_is_no_number_is_named(tmp_path, score):
    settings = write(tmp_path, ["1.5", "2", score, "3"])
    found = message_of(commands.call, "run_classifier", do_train=True, regression=True, **settings)
    assert f"{tmp_path}/train.tsv, row 4: " in found and repr(score) in found


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
    settings = write(tmp_path, scores)
    message_of(commands.call, "run_classifier", do_train=True, num_train_epochs=0.0, **settings)  # after the tables
    told = [line for line in log_lines if "--regression" in line]
    assert len(told) == warns
    assert not told or "train.tsv" in told[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task_name": "MRPC"}, "--regression needs --task_name=tsv"),
        ({"multi_label": True}, "--multi_label and --regression exclude each other"),
        ({"class_weights": "balanced"}, "--class_weights"),
    ],
    ids=str,
)
def test_flags_that_do_not_go_together(tmp_path, changes, words):
    settings = {**write(tmp_path, ["1", "2"]), **changes}
    assert words in message_of(commands.call, "run_classifier", do_train=True, regression=True, **settings)


def test_labels_of_the_python_classifier_that_look_like_amounts(tmp_path, log_lines):
    toy_data.write_model(tmp_path)
    model = heads.PretrainingModel(toy_data.config())
    checkpoint.save(str(tmp_path / "bert_model.ckpt"), checkpoint.tf1_variables(model))
    bert_tf2.classifier(tmp_path, labels=["0", "1"])
    assert not [line for line in log_lines if "regression" in line]
    bert_tf2.classifier(tmp_path, labels=["1.5", "2.25", "3.75"])
    assert [line for line in log_lines if "regression=True" in line]

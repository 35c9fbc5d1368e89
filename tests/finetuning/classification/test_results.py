"""Files, measures and losses of a classifier against sums by hand; and trainings with amounts and several labels."""

from __future__ import annotations

import json
import math
import pathlib

import numpy as np
import pytest
import toy_data
from refused import refuses
from scipy import stats
from sklearn.metrics import f1_score
from small_models import LABELS, randomize, small_batch, small_config

import bert_tf2
from bert_tf2 import heads
from bert_tf2.commands import call
from bert_tf2.finetuning import classification
from bert_tf2.finetuning.classification import TASKS, InputExample, results
from bert_tf2.finetuning.classification.examples import balanced_weights
from bert_tf2.finetuning.tables import score_table
from bert_tf2.weights.task_file import LabelMap

SEVERAL = LabelMap("tsv", ("fun", "long", "sad"), regression=False, multi_label=True)


def test_files(tmp_path):
    path = tmp_path / "results.tsv"
    classification.write_test_results(str(path), np.array([[0.74407125, 0.25592873], [1e-5, 1.0]], np.float32))
    assert path.read_text() == "0.74407125\t0.25592873\n1e-05\t1.0\n"  # as the reference writes them
    classification.write_predictions(str(path), ["k1", "k\t2\n"], ["no", "yes"], [[0.25, 0.75], [0.5, 0.5]])
    assert path.read_text() == "id\tlabel\tprobability\nk1\tyes\t0.75\nk 2 \tno\t0.5\n"
    classification.write_predictions(str(path), ["k1"], [], np.array([[3.8]], np.float32))
    assert path.read_text() == "id\tlabel\nk1\t3.8\n"
    classification.write_predictions(str(path), ["k1", "k2"], ["a", "b"], [[0.1, 0.4], [0.5, 0.9]], separator=",")
    assert path.read_text() == "id\tlabels\nk1\t\nk2\ta,b\n"


# Ten pairs: 4 found of 5 with label 1 (one missed), 2 of 5 with label 0 taken for 1.
RIGHT = [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
OUTPUTS = np.eye(2)[[1, 1, 1, 1, 0, 1, 1, 0, 0, 0]] * 0.5 + 0.25


def test_measures_of_classes():
    scores = results.compute_metrics(TASKS["mrpc"], RIGHT, OUTPUTS)
    f1 = pytest.approx(2 * 4 / (5 + 6))
    assert (scores["accuracy"], scores["f1"], scores["examples"]) == (pytest.approx(0.7), f1, 10)
    assert scores["per_class"]["1"] == {"precision": 4 / 6, "recall": 4 / 5, "f1": f1, "support": 5}
    found = results.compute_metrics(TASKS["cola"], RIGHT, OUTPUTS)["matthews_correlation"]
    assert found == pytest.approx((4 * 3 - 2 * 1) / math.sqrt((4 + 2) * (4 + 1) * (3 + 2) * (3 + 1)))
    scores = results.compute_metrics(TASKS["mnli"], [0, 1, 2, 2, 0], np.eye(3)[[0, 1, 1, 2, 0]])
    labels = ["contradiction", "entailment", "neutral"]
    assert scores["confusion_matrix"] == {"labels": labels, "rows": [[2, 0, 0], [0, 1, 0], [0, 1, 1]]}
    assert score_table("Scores by label:", scores["per_class"]).splitlines()[1:3] == [
        "                 precision  recall      f1  support",
        "  contradiction     1.0000  1.0000  1.0000        2",
    ]


def test_measures_of_scores():
    # Ranks of the predictions: 2 1 3 4, so Spearman is 1 - 6 * 2 / (4 * 15).
    labels, outputs = [1.0, 2.0, 3.0, 4.0], np.array([0.2, 0.1, 0.3, 0.8], np.float32)
    wanted = {"examples": 4, "spearman": 0.8, "pearson": np.corrcoef(labels, outputs)[0, 1]}
    assert results.compute_metrics(TASKS["sts-b"], labels, outputs[:, np.newaxis]) == pytest.approx(wanted)


def test_measures_of_several_labels():
    right = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0]])
    outputs = np.array([[0.9, 0.1, 0.2], [0.5, 0.4, 0.1], [0.1, 0.1, 0.1], [0.7, 0.8, 0.49]])
    task = classification.find_task("tsv", tsv=classification.TsvLayout("text", separator=","))
    scores = results.compute_metrics(task, right, outputs, SEVERAL.labels)
    # fun: 2 of 3 given ones are right, none is missed; long: 1 of 2 found; sad: never there and never given.
    assert scores["per_class"]["fun"] == {"precision": 2 / 3, "recall": 1.0, "f1": 0.8, "support": 2}
    assert scores["micro_f1"] == pytest.approx(2 * 3 / (4 + 4))  # 3 right ones of 4 given ones and of 4 that there are
    assert scores["macro_f1"] == pytest.approx((0.8 + 2 / 3 + 0.0) / 3)
    assert scores["exact_match"] == 0.5 and "confusion_matrix" not in scores


@pytest.mark.parametrize("name", TASKS)
def test_answers_that_never_vary_give_numbers_and_no_nan(name):
    task = TASKS[name]
    outputs = np.ones([3, 1 if task.regression else len(task.labels)])
    scores = results.compute_metrics(task, [0, 0, 1], outputs)
    assert "NaN" not in json.dumps(scores) and {*task.measures} <= {*scores}
    assert scores[task.main_measure] == pytest.approx({"accuracy": 2 / 3}.get(task.main_measure, 0.0))
    refuses("diverged", results.compute_metrics, task, [0, 0, 1], outputs * math.nan)


def test_the_loss_of_several_labels_with_and_without_weights():
    """A weight counts for the examples that have the label. test_heads.py has the other losses."""
    model = heads.ClassifierModel(small_config(), LABELS, multi_label=True)
    randomize(model)
    model.head_dropout = 0.0
    batch, weights = small_batch(), np.arange(1.0, LABELS + 1)
    batch["label_ids"] = y = (np.arange(4 * LABELS).reshape(4, LABELS) % 3 == 0).astype(np.int32)
    logits = np.asarray(model(batch), np.float64)
    each = np.log1p(np.exp(-np.where(y == 1, logits, -logits)))
    for given, factors in ((None, 1.0), (tuple(weights), np.where(y == 1, weights, 1.0))):
        model.class_weights = given
        (term,) = model.loss_terms(batch, dropout_seed=None)
        np.testing.assert_allclose(term.mean(), (each * factors).mean(), rtol=1e-5)
        outputs = model.outputs(batch)
        np.testing.assert_allclose(outputs["example_loss"], each.mean(axis=1), rtol=1e-5)  # without weights
        np.testing.assert_allclose(outputs["probabilities"], 1 / (1 + np.exp(-logits)), rtol=1e-5)


def test_balanced_weights():
    one = [InputExample("", "", None, label) for label in ("a", "a", "a", "b")]
    assert balanced_weights(one, LabelMap("tsv", ("a", "b"), regression=False)) == pytest.approx((4 / 6, 4 / 2))
    several = [InputExample("", "", None, labels) for labels in (("fun",), ("fun", "sad"), (), ("fun",))]
    assert balanced_weights(several, SEVERAL) == pytest.approx((1 / 3, 4.0, 3.0))


# The script


def write(folder: pathlib.Path, texts, labels) -> dict:
    """Tables in a folder whose texts have these labels; returns settings of run_classifier.py."""
    for part in ("train", "dev", "test"):
        toy_data.write_table(folder / f"{part}.tsv", "text\tlabel", [*zip(texts, labels, strict=True)])
    files = {"data_dir": str(folder), "output_dir": str(folder / "out"), **toy_data.write_model(folder)}
    columns = {"task_name": "tsv", "text_a_column": "text", "label_column": "label"}
    return {**files, **columns, "max_seq_length": 16, "train_batch_size": 16}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["regression", "multi_label"])
def test_amounts_and_several_labels(kind, tmp_path):
    """The scores are those of SciPy and scikit-learn, from the outputs that the script writes of the same texts."""
    texts, is_regression = [text for text, _ in toy_data.sentences(32, 1)], kind == "regression"
    labels = [number % 7 - 2.5 for number in range(32)] if is_regression else ["", "fun", "sad", "fun,sad"] * 8
    settings, to_do = write(tmp_path, texts, labels), dict.fromkeys(("do_train", "do_eval", "do_predict"), True)
    how = {kind: True} if is_regression else {kind: True, "class_weights": "balanced"}
    found, out = call("run_classifier", **settings, **to_do, **how), tmp_path / "out"
    outputs = np.loadtxt(out / "test_results.tsv")
    if is_regression:
        wanted = {name: getattr(stats, f"{name}r")(labels, outputs).statistic for name in ("pearson", "spearman")}
        predictions = [*map(str, outputs.astype(np.float32))]
    else:
        right = np.array([["fun" in label, "sad" in label] for label in labels])
        wanted = {f"{name}_f1": f1_score(right, outputs >= 0.5, average=name) for name in ("micro", "macro")}
        predictions = [",".join(np.array(["fun", "sad"])[row >= 0.5]) for row in outputs]
        call("convert_checkpoint", input=str(out), output=str(tmp_path / "hf"), to="hf")
        assert "multi_label_classification" in (tmp_path / "hf" / "config.json").read_text()
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-4) and "eval_accuracy" not in found
    assert [line.split("\t")[1] for line in (out / "predictions.tsv").read_text().splitlines()[1:]] == predictions
    assert [*bert_tf2.load(out).classify("a good film")] == (["score"] if is_regression else ["fun", "sad"])
    refuses(f"give --{kind}", call, "run_classifier", do_eval=True, **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"do_train": True, "regression": True, "task_name": "MRPC"}, "--regression needs --task_name=tsv"),
        ({"do_train": True, "regression": True, "multi_label": True}, "--multi_label --regression"),
        ({"do_train": True, "regression": True, "class_weights": "balanced"}, "--class_weights"),
        ({"do_eval": True, "multi_label": True, "task_name": "cola"}, "--multi_label needs --task_name=tsv"),
        ({"do_eval": True, "multi_label": True, "label_separator": ""}, "--label_separator"),
        ({"do_eval": True, "class_weights": "balanced"}, "--class_weights needs --do_train"),
    ],
)
def test_flags_that_do_not_go_together(tmp_path, settings, words):
    refuses(words, call, "run_classifier", **{**write(tmp_path, ["a", "b"], ["1", "2"]), **settings})

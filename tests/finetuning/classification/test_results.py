"""Files, measures and losses of a classifier, against sums by hand; also of several labels and weighted classes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from refused import refuses
from small_models import LABELS, randomize, small_batch, small_config

from bert_tf2 import heads
from bert_tf2.finetuning import classification
from bert_tf2.finetuning.classification import TASKS, InputExample, results
from bert_tf2.finetuning.classification.examples import balanced_weights
from bert_tf2.finetuning.tables import score_table
from bert_tf2.weights.task_file import LabelMap

SEVERAL = LabelMap("tsv", ("fun", "long", "sad"), regression=False, multi_label=True)
LAYOUT = classification.TsvLayout("text", label="tags", id="name", separator=",")


def test_files(tmp_path):
    path = tmp_path / "results.tsv"
    classification.write_test_results(str(path), np.array([[0.74407125, 0.25592873], [1e-5, 1.0]], np.float32))
    assert path.read_text() == "0.74407125\t0.25592873\n1e-05\t1.0\n"  # as the reference writes them
    classification.write_predictions(str(path), ["k1", "k2"], ["no", "yes"], [[0.25, 0.75], [0.5, 0.5]])
    assert path.read_text() == "id\tlabel\tprobability\nk1\tyes\t0.75\nk2\tno\t0.5\n"
    classification.write_predictions(str(path), ["k1"], [], np.array([[3.8]], np.float32))
    assert path.read_text() == "id\tlabel\nk1\t3.8\n"


# Ten pairs: 4 found of 5 with label 1 (one missed), 2 of 5 with label 0 taken for 1.
RIGHT = [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
OUTPUTS = np.eye(2)[[1, 1, 1, 1, 0, 1, 1, 0, 0, 0]] * 0.5 + 0.25


def test_measures_of_classes():
    scores = results.compute_metrics(TASKS["mrpc"], RIGHT, OUTPUTS)
    precision, recall = 4 / 6, 4 / 5
    f1 = pytest.approx(2 * precision * recall / (precision + recall))
    assert (scores["accuracy"], scores["f1"], scores["examples"]) == (pytest.approx(0.7), f1, 10)
    assert scores["per_class"]["1"] == {"precision": precision, "recall": recall, "f1": f1, "support": 5}
    assert scores["per_class"]["0"]["precision"] == 3 / 4 and scores["per_class"]["0"]["recall"] == 3 / 5
    found = results.compute_metrics(TASKS["cola"], RIGHT, OUTPUTS)["matthews_correlation"]
    assert found == pytest.approx((4 * 3 - 2 * 1) / math.sqrt((4 + 2) * (4 + 1) * (3 + 2) * (3 + 1)))
    scores = results.compute_metrics(TASKS["mnli"], [0, 1, 2, 2, 0], np.eye(3)[[0, 1, 1, 2, 0]])
    labels = ["contradiction", "entailment", "neutral"]
    assert scores["confusion_matrix"] == {"labels": labels, "rows": [[2, 0, 0], [0, 1, 0], [0, 1, 1]]}
    assert score_table("Scores by label:", scores["per_class"]).splitlines() == [
        "Scores by label:",
        "                 precision  recall      f1  support",
        "  contradiction     1.0000  1.0000  1.0000        2",
        "  entailment        0.5000  1.0000  0.6667        1",
        "  neutral           1.0000  0.5000  0.6667        2",
    ]


def test_measures_of_scores():
    # Ranks of the predictions: 2 1 3 4, so Spearman is 1 - 6 * 2 / (4 * 15).
    labels, predictions = [1.0, 2.0, 3.0, 4.0], np.array([[0.2], [0.1], [0.3], [0.8]], np.float32)
    scores = results.compute_metrics(TASKS["sts-b"], labels, predictions)
    x, y = np.array([-1.5, -0.5, 0.5, 1.5]), np.array([-0.15, -0.25, -0.05, 0.45])
    pearson = (x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum())
    assert scores == {"examples": 4, "spearman": pytest.approx(0.8), "pearson": pytest.approx(pearson)}


def test_measures_of_several_labels():
    right = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0]])
    outputs = np.array([[0.9, 0.1, 0.2], [0.5, 0.4, 0.1], [0.1, 0.1, 0.1], [0.7, 0.8, 0.49]])
    scores = results.compute_metrics(classification.find_task("tsv", tsv=LAYOUT), right, outputs, SEVERAL.labels)
    # fun: 2 of 3 given ones are right, none is missed; long: 1 of 2 found; sad: never there and never given.
    assert scores["per_class"]["fun"] == {"precision": 2 / 3, "recall": 1.0, "f1": 0.8, "support": 2}
    assert scores["per_class"]["long"] == {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "support": 2}
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


# The loss


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("multi_label", [False, True])
def test_losses_by_hand(multi_label, weighted):
    model = heads.ClassifierModel(small_config(), LABELS, multi_label=multi_label)
    randomize(model)
    model.head_dropout = 0.0
    batch, weights = small_batch(), np.arange(1.0, LABELS + 1)
    if multi_label:
        batch["label_ids"] = (np.arange(4 * LABELS).reshape(4, LABELS) % 3 == 0).astype(np.int32)
    logits, y = np.asarray(model(batch), np.float64), batch["label_ids"]
    if multi_label:
        each = np.log1p(np.exp(-np.where(y == 1, logits, -logits)))
        losses, mean = each.mean(axis=1), (each * np.where((y == 1) & weighted, weights, 1.0)).mean()
        probabilities = 1 / (1 + np.exp(-logits))
    else:
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        losses = -np.log(probabilities[np.arange(len(y)), y])
        mean = np.average(losses, weights=weights[y] if weighted else None)
    model.class_weights = tuple(weights) if weighted else None
    (term,) = model.loss_terms(batch, dropout_seed=None)
    np.testing.assert_allclose(term.mean(), mean, rtol=1e-5)
    outputs = model.outputs(batch)
    np.testing.assert_allclose(outputs["example_loss"], losses, rtol=1e-5)  # without weights, as the reference's
    np.testing.assert_allclose(outputs["probabilities"], probabilities, rtol=1e-5)


def test_balanced_weights():
    one = [InputExample("", "", None, label) for label in ("a", "a", "a", "b")]
    assert balanced_weights(one, LabelMap("tsv", ("a", "b"), regression=False)) == pytest.approx((4 / 6, 4 / 2))
    several = [InputExample("", "", None, labels) for labels in (("fun",), ("fun", "sad"), (), ("fun",))]
    assert balanced_weights(several, SEVERAL) == pytest.approx((1 / 3, 4.0, 3.0))

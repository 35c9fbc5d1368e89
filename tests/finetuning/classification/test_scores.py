"""The measures, against sums done by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from bert_tf2.finetuning.classification import scores as metrics
from bert_tf2.finetuning.classification.tasks import TASKS, TsvLayout, find_task
from bert_tf2.support.errors import UserError

# Ten pairs: 4 found of 5 with label 1 (one missed), 2 of 5 with label 0 taken for 1.
LABELS = [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
PREDICTIONS = [1, 1, 1, 1, 0, 1, 1, 0, 0, 0]


def _probabilities(predictions, classes=2):
    return np.eye(classes)[predictions] * 0.5 + 0.5 / classes


def test_f1_and_accuracy_of_mrpc():
    scores = metrics.compute_metrics(TASKS["mrpc"], LABELS, _probabilities(PREDICTIONS))
    precision, recall = 4 / 6, 4 / 5
    assert scores["accuracy"] == pytest.approx(0.7)
    assert scores["f1"] == pytest.approx(2 * precision * recall / (precision + recall))
    assert scores["examples"] == 10
    assert scores["per_class"]["1"] == pytest.approx(
        {"precision": precision, "recall": recall, "f1": scores["f1"], "support": 5}
    )
    assert scores["per_class"]["0"]["precision"] == pytest.approx(3 / 4)
    assert scores["per_class"]["0"]["recall"] == pytest.approx(3 / 5)


def test_matthews_of_cola():
    scores = metrics.compute_metrics(TASKS["cola"], LABELS, PREDICTIONS)
    true_1, true_0, false_1, false_0 = 4, 3, 2, 1
    root = math.sqrt((true_1 + false_1) * (true_1 + false_0) * (true_0 + false_1) * (true_0 + false_0))
    assert scores["matthews_correlation"] == pytest.approx((true_1 * true_0 - false_1 * false_0) / root)


def test_correlations_of_sts_b():
    # Ranks of the predictions: 2 1 3 4, so Spearman is 1 - 6 * 2 / (4 * 15).
    labels, predictions = [1.0, 2.0, 3.0, 4.0], np.array([[0.2], [0.1], [0.3], [0.8]], np.float32)
    scores = metrics.compute_metrics(TASKS["sts-b"], labels, predictions)
    x, y = np.array([-1.5, -0.5, 0.5, 1.5]), np.array([-0.15, -0.25, -0.05, 0.45])
    assert scores["spearman"] == pytest.approx(0.8)
    assert scores["pearson"] == pytest.approx((x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum()))
    assert sorted(scores) == ["examples", "pearson", "spearman"]


def test_three_classes_by_name():
    scores = metrics.compute_metrics(TASKS["mnli"], [0, 1, 2, 2], _probabilities([0, 2, 2, 1], 3))
    assert scores["accuracy"] == 0.5
    assert list(scores["per_class"]) == ["contradiction", "entailment", "neutral"]
    assert scores["per_class"]["neutral"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2}


def test_labels_of_ones_own_file():
    task = find_task("tsv", tsv=TsvLayout(text_a="text", label="label"))
    scores = metrics.compute_metrics(task, [0, 1], [0, 1], label_list=["bad", "good"])
    assert scores["per_class"]["good"]["support"] == 1
    assert scores["accuracy"] == 1.0


@pytest.mark.parametrize("name", TASKS)
def test_answers_that_never_vary_give_numbers_and_no_nan(name):
    task = TASKS[name]
    width = 1 if task.regression else len(task.labels)
    scores = metrics.compute_metrics(task, [0, 0, 1], np.ones([3, width]))
    assert "NaN" not in json.dumps(scores)
    assert set(task.measures) <= set(scores)
    always_the_first = {"accuracy": 2 / 3}
    assert scores[task.main_measure] == pytest.approx(always_the_first.get(task.main_measure, 0.0))


def test_one_example_alone_has_no_correlation():
    assert metrics.compute_metrics(TASKS["sts-b"], [2.5], [2.0])["pearson"] == 0.0


def test_main_measures():
    chosen = {name: task.main_measure for name, task in TASKS.items() if task.main_measure != "accuracy"}
    assert chosen == {"cola": "matthews_correlation", "mrpc": "f1", "qqp": "f1", "sts-b": "spearman"}


def test_outputs_that_are_not_numbers():
    with pytest.raises(UserError, match="diverged"):
        metrics.compute_metrics(TASKS["rte"], [0, 1], [[0.5, 0.5], [math.nan, math.nan]])


@pytest.mark.parametrize(("labels", "outputs"), [([], []), ([1], [1, 0])])
def test_as_many_labels_as_outputs(labels, outputs):
    with pytest.raises(ValueError, match="as many"):
        metrics.compute_metrics(TASKS["rte"], labels, outputs)

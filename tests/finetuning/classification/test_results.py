"""What becomes of a classifier's outputs: files, measures against sums by hand, the confusion matrix as a picture."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import toy_data

from bert_tf2.finetuning.classification import results
from bert_tf2.finetuning.classification.run import ClassifierTask
from bert_tf2.finetuning.classification.tasks import TASKS
from bert_tf2.finetuning.options import ClassifierOptions
from bert_tf2.finetuning.tables import score_table
from bert_tf2.support.errors import UserError


def test_test_results_in_the_format_of_the_reference(tmp_path):
    path = tmp_path / "test_results.tsv"
    results.write_test_results(str(path), np.array([[0.74407125, 0.25592873], [1e-5, 1.0]], np.float32))
    assert path.read_text() == "0.74407125\t0.25592873\n1e-05\t1.0\n"


def test_predictions(tmp_path):
    path = tmp_path / "predictions.tsv"
    results.write_predictions(str(path), ["k1", "k2"], ["no", "yes"], [[0.25, 0.75], [0.5, 0.5]])
    assert path.read_text() == "id\tlabel\tprobability\nk1\tyes\t0.75\nk2\tno\t0.5\n"


def test_predicted_scores(tmp_path):
    path = tmp_path / "predictions.tsv"
    results.write_predictions(str(path), ["k1"], [], np.array([[3.8]], np.float32))
    assert path.read_text() == "id\tlabel\nk1\t3.8\n"


# Ten pairs: 4 found of 5 with label 1 (one missed), 2 of 5 with label 0 taken for 1.
LABELS = [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
PREDICTIONS = [1, 1, 1, 1, 0, 1, 1, 0, 0, 0]


def _probabilities(predictions, classes=2):
    return np.eye(classes)[predictions] * 0.5 + 0.5 / classes


def test_f1_and_accuracy_of_mrpc():
    scores = results.compute_metrics(TASKS["mrpc"], LABELS, _probabilities(PREDICTIONS))
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
    scores = results.compute_metrics(TASKS["cola"], LABELS, _probabilities(PREDICTIONS))
    true_1, true_0, false_1, false_0 = 4, 3, 2, 1
    root = math.sqrt((true_1 + false_1) * (true_1 + false_0) * (true_0 + false_1) * (true_0 + false_0))
    assert scores["matthews_correlation"] == pytest.approx((true_1 * true_0 - false_1 * false_0) / root)


def test_correlations_of_sts_b():
    # Ranks of the predictions: 2 1 3 4, so Spearman is 1 - 6 * 2 / (4 * 15).
    labels, predictions = [1.0, 2.0, 3.0, 4.0], np.array([[0.2], [0.1], [0.3], [0.8]], np.float32)
    scores = results.compute_metrics(TASKS["sts-b"], labels, predictions)
    x, y = np.array([-1.5, -0.5, 0.5, 1.5]), np.array([-0.15, -0.25, -0.05, 0.45])
    assert scores["spearman"] == pytest.approx(0.8)
    assert scores["pearson"] == pytest.approx((x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum()))
    assert sorted(scores) == ["examples", "pearson", "spearman"]


@pytest.mark.parametrize("name", TASKS)
def test_answers_that_never_vary_give_numbers_and_no_nan(name):
    task = TASKS[name]
    width = 1 if task.regression else len(task.labels)
    scores = results.compute_metrics(task, [0, 0, 1], np.ones([3, width]))
    assert "NaN" not in json.dumps(scores)
    assert set(task.measures) <= set(scores)
    always_the_first = {"accuracy": 2 / 3}
    assert scores[task.main_measure] == pytest.approx(always_the_first.get(task.main_measure, 0.0))


def test_outputs_that_are_not_numbers():
    with pytest.raises(UserError, match="diverged"):
        results.compute_metrics(TASKS["rte"], [0, 1], [[0.5, 0.5], [math.nan, math.nan]])


def test_the_confusion_matrix_and_the_table():
    task = TASKS["mnli"]
    scores = results.compute_metrics(task, [0, 1, 2, 2, 0], np.eye(3)[[0, 1, 1, 2, 0]])
    assert scores["confusion_matrix"] == {"labels": [*task.labels], "rows": [[2, 0, 0], [0, 1, 0], [0, 1, 1]]}
    assert score_table("Scores by label:", scores["per_class"]).splitlines() == [
        "Scores by label:",
        "                 precision  recall      f1  support",
        "  contradiction     1.0000  1.0000  1.0000        2",
        "  entailment        0.5000  1.0000  0.6667        1",
        "  neutral           1.0000  0.5000  0.6667        2",
    ]


def task(tmp_path) -> ClassifierTask:
    toy_data.write_tsv_task(tmp_path / "data")
    return ClassifierTask(ClassifierOptions(
        task_name="tsv", data_dir=str(tmp_path / "data"), output_dir=str(tmp_path), do_eval=True,
        **toy_data.TSV_COLUMNS, **toy_data.write_model(tmp_path),
    ))  # fmt: skip


METRICS = {"accuracy": 0.5, "confusion_matrix": {"labels": ["a", "b"], "rows": [[1, 0], [1, 0]]}}


def test_the_picture_is_beside_the_scores(tmp_path):
    pytest.importorskip("matplotlib")
    assert task(tmp_path).draw(METRICS) == ("confusion_matrix.png",)
    assert (tmp_path / "confusion_matrix.png").stat().st_size > 1000
    assert task(tmp_path).draw({"pearson": 0.5}) == ()

"""Answers of a classifier: the files of the reference, the predictions, and the files for GLUE."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import GOLDEN

from bert_tf2.finetuning.classification import answers
from bert_tf2.finetuning.classification.tasks import TASKS


def test_test_results_in_the_format_of_the_reference(tmp_path):
    path = tmp_path / "test_results.tsv"
    answers.write_test_results(str(path), np.array([[0.74407125, 0.25592873], [1e-5, 1.0]], np.float32))
    assert path.read_text() == "0.74407125\t0.25592873\n1e-05\t1.0\n"


def test_test_results_of_the_reference_come_back_to_the_letter(tmp_path):
    expected = GOLDEN / "expected" / "classifier_mrpc" / "test_results.tsv"
    if not expected.exists():
        pytest.skip(f"no golden data in {expected.parent}")
    path = tmp_path / "test_results.tsv"
    answers.write_test_results(str(path), np.loadtxt(expected, np.float32))
    assert path.read_bytes() == expected.read_bytes()


def test_predictions(tmp_path):
    path = tmp_path / "predictions.tsv"
    answers.write_predictions(str(path), ["k1", "k2"], ["no", "yes"], [[0.25, 0.75], [0.5, 0.5]])
    assert path.read_text() == "id\tlabel\tprobability\nk1\tyes\t0.75\nk2\tno\t0.5\n"


def test_predicted_scores(tmp_path):
    path = tmp_path / "predictions.tsv"
    answers.write_predictions(str(path), ["k1"], [], np.array([[3.8]], np.float32))
    assert path.read_text() == "id\tlabel\nk1\t3.8\n"


def test_predictions_are_complete_or_absent(tmp_path):
    path = tmp_path / "predictions.tsv"
    with pytest.raises(ValueError, match="shorter"):
        answers.write_predictions(str(path), ["k1", "k2"], ["no", "yes"], [[0.25, 0.75]])
    assert list(tmp_path.iterdir()) == []


def test_names_of_the_files_for_glue():
    tests = [table for task in TASKS.values() for part, table in task.tables.items() if part.startswith("predict")]
    assert sorted(table.submission for table in tests if table.submission) == [
        *("CoLA.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "MRPC.tsv", "QNLI.tsv", "QQP.tsv"),
        *("RTE.tsv", "SST-2.tsv", "STS-B.tsv", "WNLI.tsv"),
    ]
    assert [name for name, task in TASKS.items() if not task.tables["predict"].submission] == ["xnli"]


@pytest.mark.parametrize(
    ("task", "outputs", "predictions"),
    [
        ("mnli", [[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], ["entailment", "contradiction", "neutral"]),
        ("qnli", [[0.9, 0.1], [0.2, 0.8]], ["entailment", "not_entailment"]),
        ("sst-2", [[0.9, 0.1], [0.2, 0.8]], ["0", "1"]),
        ("sts-b", [[3.14159], [-0.2], [5.3], [2]], ["3.142", "0.000", "5.000", "2.000"]),
    ],
)
def test_submission_to_glue(task, outputs, predictions, tmp_path):
    path = tmp_path / "out" / "x.tsv"
    answers.write_glue_submission(str(path), TASKS[task].labels, np.array(outputs, np.float32))
    lines = [f"{index}\t{prediction}" for index, prediction in enumerate(predictions)]
    assert path.read_text().splitlines() == ["index\tprediction", *lines]

"""The confusion matrix as a picture: colors by row, counts, and the labels with the most errors if there are many."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import toy_data

from bert_tf2.finetuning.classification import plots
from bert_tf2.finetuning.classification.options import ClassifierOptions
from bert_tf2.finetuning.classification.run import ClassifierTask


@pytest.fixture
def figures(monkeypatch) -> list:
    """The figures that are written."""
    figure = pytest.importorskip("matplotlib.figure").Figure
    written, savefig = [], figure.savefig
    monkeypatch.setattr(
        figure, "savefig", lambda self, *args, **named: (written.append(self), savefig(self, *args, **named))
    )
    return written


def test_colors_are_shares_of_the_row_and_texts_are_counts(figures, tmp_path):
    plots.draw_confusion_matrix(str(tmp_path / "x.png"), ["no", "yes", "never"], [[1200, 300, 0], [1, 3, 0], [0, 0, 0]])
    axis = figures[0].axes[0]
    np.testing.assert_allclose(axis.images[0].get_array(), [[0.8, 0.2, 0], [0.25, 0.75, 0], [0, 0, 0]])
    assert [text.get_text() for text in axis.texts] == ["1,200", "300", "1", "3"]
    assert [text.get_position() for text in axis.texts] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["no  (1,500)", "yes  (4)", "never  (0)"]
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_of_many_labels_those_with_errors_are_drawn(figures, tmp_path):
    rows = np.diag(np.full(100, 5))
    rows[90, 3] = 2
    labels = [f"{number}" + "x" * 40 * (number == 90) for number in range(100)]
    plots.draw_confusion_matrix(str(tmp_path / "x.png"), labels, rows.tolist())
    axis = figures[0].axes[0]
    names = [tick.get_text() for tick in axis.get_xticklabels()]
    assert len(names) == plots.MOST_LABELS and "3" in names and f"90{'x' * 25}..." in names
    assert axis.get_title("left") == "the 60 of 100 labels with the most errors"
    assert "2" in [text.get_text() for text in axis.texts]


def task(tmp_path) -> ClassifierTask:
    toy_data.write_tsv_task(tmp_path / "data")
    return ClassifierTask(ClassifierOptions(
        task_name="tsv", data_dir=str(tmp_path / "data"), output_dir=str(tmp_path), do_eval=True,
        **toy_data.TSV_COLUMNS, **toy_data.write_model(tmp_path),
    ))  # fmt: skip


METRICS = {"accuracy": 0.5, "confusion_matrix": {"labels": ["a", "b"], "rows": [[1, 0], [1, 0]]}}


def test_the_picture_is_beside_the_scores(tmp_path):
    pytest.importorskip("matplotlib")
    assert task(tmp_path).draw("eval", METRICS) == ("confusion_matrix.png",)
    assert task(tmp_path).draw("eval_mismatched", METRICS) == ("confusion_matrix_mismatched.png",)
    assert (tmp_path / "confusion_matrix.png").stat().st_size > 1000
    assert (tmp_path / "confusion_matrix_mismatched.png").exists()
    assert task(tmp_path).draw("eval", {"pearson": 0.5}) == ()


def test_without_matplotlib_one_line_says_so(tmp_path, monkeypatch, log_lines):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert task(tmp_path).draw("eval", METRICS) == ()
    assert log_lines == [
        "confusion_matrix.png is not drawn, because matplotlib is not installed: pip install matplotlib"
    ]

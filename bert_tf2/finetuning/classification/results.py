"""Results from a classifier's outputs: files of predictions, scores, and a picture of the confusion matrix.

The scores are the GLUE scores (Wang et al., 2018) and scores per class. scikit-learn and scipy compute them and are
imported only when needed. A measure that is undefined for the data (a class that never occurs, constant predictions) is
0.0, so that checkpoints can always be compared.

An empty list of labels means regression: the single output is a score.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf2.finetuning.classification.tasks import Task
from bert_tf2.finetuning.tables import shortened
from bert_tf2.support import files, plots
from bert_tf2.support.errors import UserError
from bert_tf2.weights.task_file import THRESHOLD


def write_test_results(path: str, probabilities: Iterable[Sequence[float]]) -> None:
    """Writes test_results.tsv as the reference does: no header, one line per example, one column per class.

    `probabilities`: [n, classes], in the order of the examples; [n, 1] scores of a regression.
    """
    _write_table(path, ([np.float32(value) for value in row] for row in probabilities))


def write_predictions(
    path: str,
    ids: Iterable[str],
    label_list: Sequence[str],
    probabilities: Iterable[Sequence[float]],
    separator: str | None = None,
) -> None:
    """Writes predictions.tsv: a header, and the columns `id`, `label` (the most probable label) and `probability`.

    `probabilities`: [n, classes]. A regression has no label_list and [n, 1] scores, which become the column `label`.
    With a `separator`, texts may have several labels: the columns are `id` and `labels`, which lists each label whose
    probability is THRESHOLD or more.
    """
    header = ("id", "labels") if separator else ("id", "label", "probability") if label_list else ("id", "label")
    rows = []
    for name, row in zip(ids, probabilities, strict=True):
        if separator:
            given = (label for label, value in zip(label_list, row, strict=True) if value >= THRESHOLD)
            rows.append((name, separator.join(given)))
        elif label_list:
            best = int(np.argmax(row))
            rows.append((name, label_list[best], np.float32(row[best])))
        else:
            rows.append((name, np.float32(row[0])))
    _write_table(path, [header, *rows])


def _write_table(path: str, rows: Iterable[Sequence[object]]) -> None:
    # A processor of a user's own may give names that would break the table.
    lines = ("\t".join(re.sub(r"[\t\r\n]", " ", str(cell)) for cell in row) for row in rows)
    files.write_text(path, "".join(f"{line}\n" for line in lines))


def compute_metrics(
    task: Task, labels: Sequence[float], outputs: np.ndarray, label_list: Sequence[str] | None = None
) -> dict[str, Any]:
    """Scores the answers for one data set.

    Args:
      task: defines the measures.
      labels: [n]; the index of the right class in `label_list`, or the right score of a regression. If a text may have
        several labels, [n, labels]: 1 for each label of the text, 0 for the others.
      outputs: [n, classes] probabilities; of a regression [n] or [n, 1] scores.
      label_list: the names of the classes; not needed if the task lists them.

    Returns:
      `examples` (their number), one entry for each of `task.measures`, and for a classification `per_class`: label ->
      `precision`, `recall`, `f1`, `support`. If each text has one label, also `confusion_matrix`: `labels` and `rows`,
      one row per true label with the counts of the predicted labels.
    """
    outputs = np.asarray(outputs)
    if not np.isfinite(outputs).all():
        raise UserError("the model's outputs are not finite numbers: its training diverged, try a lower learning rate")
    if task.regression:
        scores = correlations(np.asarray(labels, np.float64), outputs.reshape(-1).astype(np.float64))
    else:
        scores = _class_scores(task, np.asarray(labels, np.int64), outputs, label_list or task.labels)
    wanted = (*task.measures, "per_class", "confusion_matrix")
    return {"examples": len(labels), **{name: scores[name] for name in wanted if name in scores}}


def _class_scores(task: Task, labels: np.ndarray, outputs: np.ndarray, names: Sequence[str]) -> Mapping[str, Any]:
    """See `compute_metrics`. `f1` is the F1 of the second class, "1", as in GLUE."""
    from sklearn import metrics

    predictions = outputs >= THRESHOLD if task.multi_label else outputs.argmax(axis=-1)
    indexes = range(len(names))
    columns = metrics.precision_recall_fscore_support(labels, predictions, labels=indexes, zero_division=0.0)
    per_class = {
        name: {"precision": float(p), "recall": float(r), "f1": float(f), "support": int(count)}
        for name, p, r, f, count in zip(names, *columns, strict=True)
    }
    right = float(metrics.accuracy_score(labels, predictions))  # with several labels, counts texts without any error
    found = {"per_class": per_class, "accuracy": right, "exact_match": right, "f1": per_class[names[1]]["f1"]}
    if task.multi_label:
        of = {"y_true": labels, "y_pred": predictions, "zero_division": 0.0}
        return found | {f"{kind}_f1": float(metrics.f1_score(**of, average=kind)) for kind in ("micro", "macro")}
    matrix = metrics.confusion_matrix(labels, predictions, labels=indexes)
    # With a single class the coefficient is 0; scikit-learn would warn.
    seen = np.union1d(labels, predictions)
    found["matthews_correlation"] = float(metrics.matthews_corrcoef(labels, predictions)) if len(seen) > 1 else 0.0
    return {**found, "confusion_matrix": {"labels": [*names], "rows": matrix.tolist()}}


def correlations(labels: np.ndarray, predictions: np.ndarray) -> Mapping[str, float]:
    """Both arrays: [n] scores."""
    from scipy import stats

    if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return {"pearson": 0.0, "spearman": 0.0}  # undefined: one side is constant, as with a single example
    return {
        "pearson": float(stats.pearsonr(labels, predictions).statistic),
        "spearman": float(stats.spearmanr(labels, predictions).statistic),
    }


def draw_confusion_matrix(path: str, labels: Sequence[str], rows: Sequence[Sequence[int]]) -> None:
    """Draws `confusion_matrix` of compute_metrics into a file."""
    from sklearn.metrics import ConfusionMatrixDisplay

    side = min(3 + 0.4 * len(labels), 40)  # inches
    with plots.drawing(path, side, side) as figure:
        shown = ConfusionMatrixDisplay(np.array(rows), display_labels=[shortened(label, 30) for label in labels])
        with_values, axes = len(labels) <= 60, figure.subplots()
        shown.plot(include_values=with_values, cmap="Blues", values_format=",", xticks_rotation="vertical", ax=axes)

"""What becomes of a classifier's outputs: files of predictions, scores, and a picture of the confusion matrix.

The scores are those of GLUE (Wang et al., 2018), and scores per class. scikit-learn and scipy compute them and are
imported only when needed. A measure that is undefined for the data (a class that never occurs, constant predictions) is
0.0, so that checkpoints can always be compared.

An empty list of labels means regression: the one output is a score.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf2.finetuning.classification.tasks import Task
from bert_tf2.finetuning.tables import aligned, shortened
from bert_tf2.support import files, plots
from bert_tf2.support.errors import UserError
from bert_tf2.weights.task_file import THRESHOLD


def write_test_results(path: str, probabilities: Iterable[Sequence[float]]) -> None:
    """Writes test_results.tsv as the reference does: no header, one line per example, one column per class.

    `probabilities`: [n, classes], in the order of the examples; for a regression [n, 1] scores.
    """
    _write_table(path, ([np.float32(value) for value in row] for row in probabilities))


def write_predictions(
    path: str,
    ids: Iterable[str],
    label_list: Sequence[str],
    probabilities: Iterable[Sequence[float]],
    separator: str | None = None,
) -> None:
    """Writes predictions.tsv, with the columns `id`, `label` (the most probable one) and `probability`, and a header.

    Args:
      ids: the names of the examples (`InputExample.guid`).
      label_list: as for the features; if empty, `label` is the predicted score and there is no probability.
      probabilities: [n, classes]; for a regression [n, 1] scores.
      separator: between the labels of a text that may have several: the columns are then `id` and `labels`, all those
        with at least `labels.THRESHOLD`.
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
    files.write_text(path, "".join("\t".join(map(str, row)) + "\n" for row in rows))


def compute_metrics(
    task: Task, labels: Sequence[float], outputs: np.ndarray, label_list: Sequence[str] | None = None
) -> dict[str, Any]:
    """Scores the answers for one data set.

    Args:
      task: defines the measures.
      labels: [n]; the index of the right class in `label_list`, or the right score of a regression. If a text may have
        several labels, [n, labels]: 1 for each label of the text, 0 for the others.
      outputs: [n, classes] probabilities or logits, or [n] indexes of classes; regression: [n] or [n, 1] scores.
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
        scores = _correlations(np.asarray(labels, np.float64), outputs.reshape(-1).astype(np.float64))
    elif task.multi_label:
        scores = _several_labels(np.asarray(labels, np.int64), outputs >= THRESHOLD, label_list)
    else:
        predictions = outputs.argmax(axis=-1) if outputs.ndim == 2 else outputs.astype(np.int64)
        scores = _class_scores(np.asarray(labels, np.int64), predictions, label_list or task.labels)
    wanted = (*task.measures, "per_class", "confusion_matrix")
    return {"examples": len(labels), **{name: scores[name] for name in wanted if name in scores}}


def _class_scores(labels: np.ndarray, predictions: np.ndarray, names: Sequence[str]) -> Mapping[str, Any]:
    """Both arrays: [n] indexes into `names`. `f1` is that of the second class, "1", as in GLUE."""
    from sklearn import metrics

    per_class = _per_class(labels, predictions, names)
    matrix = metrics.confusion_matrix(labels, predictions, labels=range(len(names)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns about data with a single class
        matthews_correlation = float(metrics.matthews_corrcoef(labels, predictions))
    return {
        "accuracy": float(metrics.accuracy_score(labels, predictions)),
        "matthews_correlation": matthews_correlation,
        "f1": per_class[names[1]]["f1"],
        "per_class": per_class,
        "confusion_matrix": {"labels": [*names], "rows": matrix.tolist()},
    }


def _several_labels(labels: np.ndarray, predictions: np.ndarray, names: Sequence[str]) -> Mapping[str, Any]:
    """Both arrays: [n, labels], whether the text has the label. `exact_match`: the share of texts without error."""
    from sklearn import metrics

    micro, macro = (metrics.f1_score(labels, predictions, average=a, zero_division=0.0) for a in ("micro", "macro"))
    return {
        "micro_f1": float(micro),
        "macro_f1": float(macro),
        "exact_match": float(metrics.accuracy_score(labels, predictions)),
        "per_class": _per_class(labels, predictions, names),
    }


def _per_class(labels: np.ndarray, predictions: np.ndarray, names: Sequence[str]) -> dict[str, dict[str, float]]:
    from sklearn import metrics

    indexes = range(len(names))
    columns = metrics.precision_recall_fscore_support(labels, predictions, labels=indexes, zero_division=0.0)
    return {
        name: {"precision": float(p), "recall": float(r), "f1": float(f), "support": int(count)}
        for name, p, r, f, count in zip(names, *columns, strict=True)
    }


def _correlations(labels: np.ndarray, predictions: np.ndarray) -> Mapping[str, float]:
    """Both arrays: [n] scores."""
    from scipy import stats

    if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return {"pearson": 0.0, "spearman": 0.0}  # undefined: one side is constant, as with a single example
    return {
        "pearson": float(stats.pearsonr(labels, predictions).statistic),
        "spearman": float(stats.spearmanr(labels, predictions).statistic),
    }


_MOST_COLUMNS = 12  # of a confusion matrix on a terminal


def screen(scores: Mapping[str, Any]) -> str:
    """The scores of a classification as text: per class, then the confusion matrix of few; "" for a regression."""
    if "per_class" not in scores:
        return ""
    measures = ("precision", "recall", "f1")
    rows = [
        (name, *(f"{row[measure]:.4f}" for measure in measures), str(row["support"]))
        for name, row in scores["per_class"].items()
    ]
    parts = ["Scores by label:", aligned([("label", *measures, "support"), *rows])]
    matrix = scores.get("confusion_matrix")
    if matrix and len(matrix["labels"]) <= _MOST_COLUMNS:
        rows = [(label, *map(str, row)) for label, row in zip(matrix["labels"], matrix["rows"], strict=True)]
        parts += ["Confusion matrix:", aligned([("right \\ predicted", *matrix["labels"]), *rows])]
    return "\n".join(parts)


def draw_confusion_matrix(path: str, labels: Sequence[str], rows: Sequence[Sequence[int]]) -> None:
    """Draws `confusion_matrix` of compute_metrics into a file."""
    from sklearn.metrics import ConfusionMatrixDisplay

    side = min(3 + 0.4 * len(labels), 40)  # inches
    with plots.drawing(path, side, side) as figure:
        shown = ConfusionMatrixDisplay(np.array(rows), display_labels=[shortened(label, 30) for label in labels])
        with_values, axes = len(labels) <= 60, figure.subplots()
        shown.plot(include_values=with_values, cmap="Blues", values_format=",", xticks_rotation="vertical", ax=axes)

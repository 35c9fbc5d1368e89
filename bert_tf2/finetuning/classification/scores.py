"""Metrics of classification and regression: those of GLUE (Wang et al., 2018), and metrics per class.

scikit-learn and scipy compute them and are imported only when needed. All results are plain numbers that JSON can
represent. A metric that is undefined for the data (a class that never occurs, constant predictions) is 0.0, so that
checkpoints can always be compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf2.finetuning.classification.tasks import Task
from bert_tf2.finetuning.log_text import aligned
from bert_tf2.support.errors import UserError
from bert_tf2.weights.labels import THRESHOLD


def compute_metrics(
    task: Task, labels: Sequence[float], outputs: np.ndarray, label_list: Sequence[str] | None = None
) -> dict[str, Any]:
    """Scores the answers for one data set.

    Args:
      task: defines the measures.
      labels: [n]; the index of the right class in `label_list`, or the right score of a regression. If a text may have
        several labels, [n, labels]: 1 for each label of the text, 0 for the others.
      outputs: [n, classes] probabilities or logits, or [n] indexes of classes; regression: [n] or [n, 1] scores. If a
        text may have several labels, [n, labels] probabilities.
      label_list: the names of the classes; not needed if the task lists them.

    Returns:
      `examples` (their number), one entry for each of `task.measures`, and for a classification `per_class`: label ->
      `precision`, `recall`, `f1`, `support`. If each text has one label, also `confusion_matrix`: `labels` and `rows`,
      one row per true label with the counts of the predicted labels.

    Raises:
      UserError: an output is not a finite number.
      ValueError: there are no examples, or the numbers of labels and outputs differ.
    """
    outputs = np.asarray(outputs)
    if len(labels) == 0 or len(labels) != len(outputs):
        raise ValueError(f"{len(labels)} labels and {len(outputs)} outputs: as many are needed, and at least one")
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


def _class_scores(labels: np.ndarray, predictions: np.ndarray, label_list: Sequence[str]) -> Mapping[str, Any]:
    """Both arrays: [n] indexes into `label_list`. `f1` is that of the second class, "1", as in GLUE."""
    from sklearn import metrics

    per_class = _per_class(labels, predictions, range(len(label_list)), label_list)
    matrix = metrics.confusion_matrix(labels, predictions, labels=range(len(label_list)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns about data with a single class
        matthews_correlation = float(metrics.matthews_corrcoef(labels, predictions))
    return {
        "accuracy": float(metrics.accuracy_score(labels, predictions)),
        "matthews_correlation": matthews_correlation,
        "f1": per_class[label_list[1]]["f1"],
        "per_class": per_class,
        "confusion_matrix": {"labels": [*label_list], "rows": matrix.tolist()},
    }


def _several_labels(labels: np.ndarray, predictions: np.ndarray, label_list: Sequence[str]) -> Mapping[str, Any]:
    """Both arrays: [n, labels], whether the text has the label. `exact_match`: the share of texts without error."""
    from sklearn import metrics

    f1 = {
        f"{kind}_f1": float(metrics.f1_score(labels, predictions, average=kind, zero_division=0.0))
        for kind in ("micro", "macro")
    }
    exact_match = float(metrics.accuracy_score(labels, predictions))
    return {**f1, "exact_match": exact_match, "per_class": _per_class(labels, predictions, None, label_list)}


def _per_class(labels: np.ndarray, predictions: np.ndarray, indexes: Sequence[int] | None, names: Sequence[str]):
    from sklearn import metrics

    columns = metrics.precision_recall_fscore_support(labels, predictions, labels=indexes, zero_division=0.0)
    kinds = {"precision": float, "recall": float, "f1": float, "support": int}
    return {
        name: {measure: kind(value) for (measure, kind), value in zip(kinds.items(), row, strict=True)}
        for name, row in zip(names, zip(*columns, strict=True), strict=True)
    }


_MOST_COLUMNS = 12  # of a confusion matrix on a terminal


def screen(scores: Mapping[str, Any]) -> str:
    """The scores of a classification as text: per class, then the confusion matrix; "" for a regression.

    With more than 12 classes, the most frequent errors replace the matrix.
    """
    if "per_class" not in scores:
        return ""
    measures = ("precision", "recall", "f1")
    rows = [
        (name, *(f"{row[measure]:.4f}" for measure in measures), str(row["support"]))
        for name, row in scores["per_class"].items()
    ]
    parts = ["Scores by label:", aligned([("label", *measures, "support"), *rows])]
    if matrix := scores.get("confusion_matrix"):
        labels, counts = matrix["labels"], matrix["rows"]
        lines = [(right, *map(str, row)) for right, row in zip(labels, counts, strict=True)]
        if len(labels) <= _MOST_COLUMNS:
            parts += ["Confusion matrix:", aligned([("right \\ predicted", *labels), *lines])]
        else:
            errors = [
                (right, predicted, count)
                for right, row in zip(labels, counts, strict=True)
                for predicted, count in zip(labels, row, strict=True)
                if right != predicted and count
            ]
            worst = sorted(errors, key=lambda error: -error[2])[:_MOST_COLUMNS]
            lines = [(right, predicted, str(count)) for right, predicted, count in worst]
            parts += ["The most frequent errors:", aligned([("right", "predicted", "count"), *lines])]
    return "\n".join(parts)


def _correlations(labels: np.ndarray, predictions: np.ndarray) -> Mapping[str, float]:
    """Both arrays: [n] scores."""
    from scipy import stats

    if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return {"pearson": 0.0, "spearman": 0.0}  # undefined: one side is constant, as with a single example
    return {
        "pearson": float(stats.pearsonr(labels, predictions).statistic),
        "spearman": float(stats.spearmanr(labels, predictions).statistic),
    }

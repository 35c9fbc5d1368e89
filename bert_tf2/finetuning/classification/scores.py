"""How good the answers of a classifier or a regression are: the measures of GLUE (Wang et al., 2018) and per class.

The figures come from scikit-learn and scipy, imported only when something is measured. All results are plain numbers
that JSON can hold. A measure that the data leave undefined (a class that never occurs, a prediction that never varies)
is 0.0: whoever chooses between checkpoints must be able to compare, and such a model has shown nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf2.finetuning.classification.tasks import Task
from bert_tf2.support.errors import UserError


def compute_metrics(
    task: Task, labels: Sequence[float], outputs: np.ndarray, label_list: Sequence[str] | None = None
) -> dict[str, Any]:
    """Scores the answers for one data set.

    Args:
      task: says which measures there are.
      labels: [n]; the index of the right class in `label_list`, or the right score of a regression.
      outputs: [n, classes] probabilities or logits, or [n] indexes of classes; regression: [n] or [n, 1] scores.
      label_list: the names of the classes; not needed where the task itself lists them.

    Returns:
      `examples` (how many), one entry for each of `task.measures`, and for a classification `per_class`: label ->
      `precision`, `recall`, `f1`, `support`.

    Raises:
      UserError: an output is not a finite number.
      ValueError: no examples, or not as many labels as outputs.
    """
    outputs = np.asarray(outputs)
    if len(labels) == 0 or len(labels) != len(outputs):
        raise ValueError(f"{len(labels)} labels and {len(outputs)} outputs: as many are needed, and at least one")
    if not np.isfinite(outputs).all():
        raise UserError("the model's outputs are not finite numbers: its training diverged, try a lower learning rate")
    if task.regression:
        scores = _correlations(np.asarray(labels, np.float64), outputs.reshape(-1).astype(np.float64))
    else:
        predictions = outputs.argmax(axis=-1) if outputs.ndim == 2 else outputs.astype(np.int64)
        scores = _class_scores(np.asarray(labels, np.int64), predictions, label_list or task.labels)
    wanted = [*task.measures] if task.regression else [*task.measures, "per_class"]
    return {"examples": len(labels), **{name: scores[name] for name in wanted}}


def _class_scores(labels: np.ndarray, predictions: np.ndarray, label_list: Sequence[str]) -> Mapping[str, Any]:
    """Both arrays: [n] indexes into `label_list`. `f1` is that of the second class, "1", as GLUE has it."""
    from sklearn import metrics

    columns = metrics.precision_recall_fscore_support(
        labels, predictions, labels=range(len(label_list)), zero_division=0.0
    )
    names = ("precision", "recall", "f1", "support")
    kinds = (float, float, float, int)
    per_class = {
        label: {name: kind(value) for name, kind, value in zip(names, kinds, row, strict=True)}
        for label, row in zip(label_list, zip(*columns, strict=True), strict=True)
    }
    return {
        "accuracy": float(metrics.accuracy_score(labels, predictions)),
        "matthews_correlation": float(metrics.matthews_corrcoef(labels, predictions)),
        "f1": per_class[label_list[1]]["f1"],
        "per_class": per_class,
    }


def _correlations(labels: np.ndarray, predictions: np.ndarray) -> Mapping[str, float]:
    """Both arrays: [n] scores."""
    from scipy import stats

    return {
        "pearson": _correlation(stats.pearsonr, labels, predictions),
        "spearman": _correlation(stats.spearmanr, labels, predictions),
    }


def _correlation(measure: Callable, labels: np.ndarray, predictions: np.ndarray) -> float:
    if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return 0.0  # undefined: one side never varies, a single example included
    return float(measure(labels, predictions).statistic)

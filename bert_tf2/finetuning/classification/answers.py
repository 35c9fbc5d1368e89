"""Answers of a classifier: test_results.tsv, predictions.tsv, and the files that the GLUE benchmark accepts.

An empty list of labels means regression: the one output is a score.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from bert_tf2.support import files
from bert_tf2.weights.labels import THRESHOLD


def write_test_results(path: str, probabilities: Iterable[Sequence[float]]) -> None:
    """Writes test_results.tsv as the reference does: no header, one line per example, one column per class.

    Args:
      probabilities: [n, classes], in the order of the examples; for a regression [n, 1] scores.
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
      separator: if a text may have several labels, what separates them; the columns are then `id` and `labels`: all
        labels with at least `labels.THRESHOLD`.

    Raises:
      ValueError: the number of ids is not the number of probabilities.
    """
    header = ("id", "labels") if separator else ("id", "label", "probability") if label_list else ("id", "label")
    rows = []
    for name, row in zip(ids, probabilities, strict=True):
        best = int(np.argmax(row))
        if separator:
            given = (label for label, value in zip(label_list, row, strict=True) if value >= THRESHOLD)
            rows.append((name, separator.join(given)))
        else:
            rows.append((name, *([label_list[best]] if label_list else []), np.float32(row[best])))
    _write_table(path, [header, *rows])


def write_glue_submission(path: str, label_list: Sequence[str], probabilities: Iterable[Sequence[float]]) -> None:
    """Writes the predictions of a test set in the format of gluebenchmark.com, under the header `index`, `prediction`.

    The index is the position in the test set, from 0. The prediction is the name of the most probable label, as the
    task spells it (`entailment`, or `1`). A score, of STS-B, is limited to the range 0 to 5 and has 3 decimals.

    Args:
      path: the file; `Table.submission` is the name that the benchmark expects.
      label_list: as for the features; empty for a regression.
      probabilities: [n, classes], in the order of the test set; for a regression [n, 1] scores.
    """
    predictions = (
        label_list[int(np.argmax(row))] if label_list else f"{min(max(float(row[0]), 0.0), 5.0):.3f}"
        for row in probabilities
    )
    _write_table(path, [("index", "prediction"), *enumerate(predictions)])


def _write_table(path: str, rows: Iterable[Sequence[object]]) -> None:
    files.write_text(path, "".join("\t".join(map(str, row)) + "\n" for row in rows))

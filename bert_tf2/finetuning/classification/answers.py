"""Answers of a classifier: test_results.tsv, predictions.tsv, and the files that the GLUE benchmark accepts.

An empty list of labels means regression: the one output is a score.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bert_tf2.support import files
from bert_tf2.weights.labels import THRESHOLD


def write_test_results(path: str, probabilities: Iterable[Sequence[float]]) -> None:
    """Writes test_results.tsv as the reference does: no header, one line per example, one column per class.

    Args:
      probabilities: [n, classes], in the order of the examples; for a regression [n, 1] scores.
    """
    rows = ("\t".join(str(np.float32(value)) for value in row) for row in probabilities)
    _write_lines(path, rows)


def write_predictions(
    path: str, ids: Iterable[str], label_list: Sequence[str], probabilities: Iterable[Sequence[float]]
) -> None:
    """Writes predictions.tsv, with the columns `id`, `label` (the most probable one) and `probability`, and a header.

    Args:
      ids: the names of the examples (`InputExample.guid`).
      label_list: as for the features; if empty, `label` is the predicted score and there is no probability.
      probabilities: [n, classes]; for a regression [n, 1] scores.

    Raises:
      ValueError: the number of ids is not the number of probabilities.
    """

    def rows() -> Iterator[str]:
        yield "id\tlabel\tprobability" if label_list else "id\tlabel"
        for name, row in zip(ids, probabilities, strict=True):
            best = int(np.argmax(row))
            value = str(np.float32(row[best]))
            yield f"{name}\t{label_list[best]}\t{value}" if label_list else f"{name}\t{value}"

    _write_lines(path, rows())


def write_multi_label_predictions(
    path: str, ids: Iterable[str], label_list: Sequence[str], probabilities: Iterable[Sequence[float]], separator: str
) -> None:
    """Writes predictions.tsv with the columns `id` and `labels`: all labels with at least `labels.THRESHOLD`.

    Args:
      ids: the names of the examples.
      label_list: the labels in the order of the outputs.
      probabilities: [n, labels].
      separator: what separates the labels in a cell.
    """

    def rows() -> Iterator[str]:
        yield "id\tlabels"
        for name, row in zip(ids, probabilities, strict=True):
            given = (label for label, value in zip(label_list, row, strict=True) if value >= THRESHOLD)
            yield f"{name}\t{separator.join(given)}"

    _write_lines(path, rows())


def write_glue_submission(path: str, label_list: Sequence[str], probabilities: Iterable[Sequence[float]]) -> None:
    """Writes the predictions of a test set in the format of gluebenchmark.com, under the header `index`, `prediction`.

    The index is the position in the test set, from 0. The prediction is the name of the most probable label, as the
    task spells it (`entailment`, or `1`). A score, of STS-B, is limited to the range 0 to 5 and has 3 decimals.

    Args:
      path: the file; `Table.submission` is the name that the benchmark expects.
      label_list: as for the features; empty for a regression.
      probabilities: [n, classes], in the order of the test set; for a regression [n, 1] scores.
    """

    def rows() -> Iterator[str]:
        yield "index\tprediction"
        for index, row in enumerate(probabilities):
            prediction = label_list[int(np.argmax(row))] if label_list else f"{min(max(float(row[0]), 0.0), 5.0):.3f}"
            yield f"{index}\t{prediction}"

    _write_lines(path, rows())


def _write_lines(path: str, lines: Iterable[str]) -> None:
    with files.complete_or_absent(path) as (beside,), files.open_binary(beside, "wb") as stream:
        for line in lines:
            stream.write(f"{line}\n".encode())

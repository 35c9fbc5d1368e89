"""The confusion matrix of an evaluation as a picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bert_tf2.finetuning.log_text import shortened
from bert_tf2.support import plots

MOST_LABELS = 60
"""Of a matrix with more, only these are drawn: those that take part in the most errors."""

_LONGEST = 30  # characters of a label
_ROOM = 2.6  # inches for the names of the labels and the scale


def draw_confusion_matrix(path: str, labels: Sequence[str], rows: Sequence[Sequence[int]]) -> None:
    """Writes a picture: a row for each right label, with the counts of the predicted ones.

    The color is the share of the row, so that rare labels can be read as well as frequent ones; a row is followed by
    the number of its examples.

    Args:
      path: the file, .png, .svg or .pdf.
      labels, rows: `confusion_matrix` of scores.compute_metrics.

    Raises:
      UserError: the file cannot be written.
    """
    counts = np.asarray(rows, np.int64)  # [right, predicted]
    totals = counts.sum(axis=1)
    wrong = counts - np.diag(np.diag(counts))
    errors = wrong.sum(axis=0) + wrong.sum(axis=1)
    shown = sorted(np.argsort(-errors, kind="stable")[:MOST_LABELS].tolist())
    shares = (counts / np.maximum(totals, 1)[:, np.newaxis])[np.ix_(shown, shown)]
    cell, font = next((cell, font) for most, cell, font in _SIZES if len(shown) <= most)
    side = max(cell * len(shown), 1.2)
    with plots.drawing(path, side + _ROOM, side + _ROOM - 0.8) as figure:
        axis = figure.subplots()
        image = axis.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
        names = [shortened(labels[place], _LONGEST) for place in shown]
        places = range(len(shown))
        axis.set_xticks(places, names, rotation=90 if len(shown) > 3 else 0, fontsize=font)
        right = [f"{name}  ({totals[place]:,})" for name, place in zip(names, shown, strict=True)]
        axis.set_yticks(places, right, fontsize=font)
        axis.set_xlabel("predicted label")
        axis.set_ylabel("right label (examples)")
        axis.spines[:].set_visible(False)
        if len(shown) < len(labels):
            axis.set_title(f"the {len(shown)} of {len(labels)} labels with the most errors", fontsize=9, loc="left")
        for row, column in zip(*np.nonzero(counts[np.ix_(shown, shown)]), strict=True):  # zeros stay white
            count, color = counts[shown[row], shown[column]], "white" if shares[row, column] > 0.6 else "black"
            axis.text(column, row, f"{count:,}", ha="center", va="center", fontsize=font, color=color)
        scale = {"shrink": 0.8, "aspect": 30, "fraction": 0.05, "pad": 0.02, "label": "share of the row"}
        figure.colorbar(image, ax=axis, format=lambda share, _: f"{share:.0%}", **scale)


# (up to so many labels, inches of a cell, points of the letters)
_SIZES = ((6, 0.7, 10), (20, 0.42, 8), (MOST_LABELS, 0.26, 6))

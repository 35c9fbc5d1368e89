"""The vectors of texts as points in a plane: along the two directions in which they differ most."""

from __future__ import annotations

import collections
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bert_tf2.support import plots
from bert_tf2.support.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 20_000
"""Of more vectors, a random sample of this size is drawn; the same one in each call."""
MOST_LABELS = 24
"""Of more labels, the most frequent ones have a colour and a marker."""

_MARKERS = "os^D"  # with each of plots.COLORS but the last, which is grey
_COLORS, _GREY = plots.COLORS[:-1], plots.COLORS[-1]
_MOST_TEXTS = 30  # points that are labelled with the beginning of their texts
_TEXT = 24  # characters
_MOST_NAMES = 10  # of numbers; more of them are a scale of colours


class Sample:
    """Keeps MOST_POINTS vectors of a stream, each with the same probability: Algorithm R (Vitter, 1985)."""

    def __init__(self):
        self.vectors: list[np.ndarray] = []
        self.places: list[int] = []
        self.seen = 0
        self._draw = random.Random(1)

    def through(self, vectors: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Yields all vectors, [D] each, and keeps some; `places` has their numbers from 0."""
        for vector in vectors:
            if self.seen < MOST_POINTS:
                self.vectors.append(vector)
                self.places.append(self.seen)
            elif (place := self._draw.randrange(self.seen + 1)) < MOST_POINTS:
                self.vectors[place], self.places[place] = vector, self.seen
            self.seen += 1
            yield vector


def principal_components(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The vectors along the two directions of the largest variance.

    Args:
      vectors: float [N, D], two or more.

    Returns:
      The points, [N, 2], and the share of each direction in the variance of the vectors, [2]. All are 0 if the vectors
      are equal.

    Raises:
      UserError: there are fewer than two vectors, or one is not finite.
    """
    if len(vectors) < 2:
        raise UserError("--plot needs two lines of text or more: one point has no directions")
    if not np.isfinite(vectors).all():
        raise UserError("--plot: a vector is not finite, so that nothing can be drawn; look at the weights")
    from sklearn.decomposition import PCA

    vectors = np.asarray(vectors, np.float64)
    if not np.ptp(vectors, axis=0).any():
        return np.zeros((len(vectors), 2)), np.zeros(2)
    found = PCA(min(2, vectors.shape[1]), svd_solver="auto", random_state=0)
    points = np.zeros((len(vectors), 2))
    points[:, : found.n_components] = found.fit_transform(vectors)
    return points, np.pad(found.explained_variance_ratio_, (0, 2 - found.n_components))


def draw_vectors(path: str, sample: Sample, labels: Sequence[str] | None, texts: Sequence[str], title: str) -> None:
    """Draws the vectors of a sample, with a colour for each label, or a scale of colours for numbers.

    Args:
      path: the file, .png, .svg or .pdf.
      labels, texts: of all lines, also those that are not in the sample.
      title: what the vectors are.

    Raises:
      UserError: see principal_components; or the file cannot be written.
    """
    points, shares = principal_components(np.stack(sample.vectors) if sample.vectors else np.zeros((0, 2)))
    count = len(points)
    lines = f"{count:,} of {sample.seen:,} lines" if count < sample.seen else f"{count:,} lines"
    with plots.drawing(path, 9.0 if labels else 7.0, 6.0) as figure:
        axis = figure.subplots()
        if labels:
            _draw_labelled(axis, points, [labels[place] for place in sample.places])
        else:
            axis.scatter(*points.T, color=_COLORS[0], **_style(count))
        if count <= _MOST_TEXTS:
            for point, place in zip(points, sample.places, strict=True):
                text = texts[place] if len(texts[place]) <= _TEXT else f"{texts[place][: _TEXT - 3]}..."
                axis.annotate(text, point, xytext=(4, 3), textcoords="offset points", fontsize=7, color="0.3")
        for name, number, share in (("first", 0, shares[0]), ("second", 1, shares[1])):
            (axis.set_ylabel if number else axis.set_xlabel)(
                f"{name} principal component ({share:.1%} of the variance)"
            )
        axis.set_title(f"{lines}: {title}", loc="left", fontsize=10)
        axis.set_aspect("equal", adjustable="datalim")
        axis.grid(alpha=0.25)


def _style(count: int) -> dict:
    """Smaller and more transparent points where there are many; as pixels also in SVG and PDF, if very many."""
    size = float(np.clip(20_000 / count, 3, 36))
    return {"s": size, "alpha": 0.85 if count < 500 else 0.5, "linewidths": 0, "rasterized": count > 2_000}


def _draw_labelled(axis: Axes, points: np.ndarray, labels: Sequence[str]) -> None:
    frequent = [label for label, _ in collections.Counter(labels).most_common()]
    if len(frequent) > _MOST_NAMES and (numbers := _numbers(labels)) is not None:
        shown = axis.scatter(*points.T, c=numbers, cmap="viridis", **_style(len(points)))
        axis.figure.colorbar(shown, ax=axis, label="label", shrink=0.8, aspect=30)
        return
    rank = {label: number for number, label in enumerate(frequent)}
    ranks = np.array([rank[label] for label in labels])
    order = np.random.default_rng(1).permutation(len(points))  # otherwise the last label would cover the others
    of_rank = [_COLORS[number % len(_COLORS)] for number in range(MOST_LABELS)]
    groups = range(0, min(len(frequent), MOST_LABELS), len(_COLORS))
    rest = order[ranks[order] >= MOST_LABELS]
    axis.scatter(*points[rest].T, color=_GREY, zorder=1, **_style(len(points)))
    for first in groups:
        last = min(first + len(_COLORS), MOST_LABELS)
        chosen = order[(first <= ranks[order]) & (ranks[order] < last)]
        marker = _MARKERS[first // len(_COLORS)]
        colors = [of_rank[number] for number in ranks[chosen]]
        axis.scatter(*points[chosen].T, c=colors, marker=marker, **_style(len(points)))
    for number, label in enumerate(frequent[:MOST_LABELS]):
        name = f"{_short(label)} ({np.count_nonzero(ranks == number):,})"
        marker = _MARKERS[number // len(_COLORS)]
        axis.plot([], [], marker, color=of_rank[number], markersize=6, label=name)
    if len(rest):
        axis.plot([], [], "o", color=_GREY, label=f"{len(frequent) - MOST_LABELS} other labels ({len(rest):,})")
    axis.figure.legend(loc="outside right upper", frameon=False, fontsize=9)


def _short(label: str) -> str:
    label = label or "(empty)"
    return label if len(label) <= _TEXT else f"{label[: _TEXT - 3]}..."


def _numbers(labels: Sequence[str]) -> np.ndarray | None:
    """The labels as numbers; None if one is none."""
    try:
        numbers = np.array([float(label) for label in labels])
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() else None

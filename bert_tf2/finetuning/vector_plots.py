"""The vectors of texts as points in a plane: along the two directions in which they differ most."""

from __future__ import annotations

import collections
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bert_tf2.finetuning.tables import as_number, shortened
from bert_tf2.support import plots
from bert_tf2.support.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 20_000
"""Of more vectors, a random sample of this size is drawn; the same one in each call."""
MOST_LABELS = 24
"""Of more labels, the most frequent ones have a color and a marker."""

_MARKERS = "os^D"  # with each of plots.COLORS but the last, which is gray
_COLORS, _GRAY = plots.COLORS[:-1], plots.COLORS[-1]
_MOST_TEXTS = 30  # points that are labeled with the beginning of their texts
_TEXT = 24  # characters
_MOST_NAMES = 10  # of numbers; more of them are a scale of colors


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
    """Draws the vectors of a sample, with a color for each label, or a scale of colors for numbers.

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
            _draw_labeled(axis, points, [labels[place] for place in sample.places])
        else:
            axis.scatter(*points.T, color=_COLORS[0], **_style(count))
        if count <= _MOST_TEXTS:
            for point, place in zip(points, sample.places, strict=True):
                label = shortened(texts[place], _TEXT)
                axis.annotate(label, point, xytext=(4, 3), textcoords="offset points", fontsize=7, color="0.3")
        axis.set_xlabel(f"first principal component ({shares[0]:.1%} of the variance)")
        axis.set_ylabel(f"second principal component ({shares[1]:.1%} of the variance)")
        axis.set_title(f"{lines}: {title}", loc="left", fontsize=10)
        axis.set_aspect("equal", adjustable="datalim")
        axis.grid(alpha=0.25)


def _style(count: int) -> dict:
    """Smaller and more transparent points where there are many; as pixels also in SVG and PDF, if very many."""
    size = float(np.clip(20_000 / count, 3, 36))
    return {"s": size, "alpha": 0.85 if count < 500 else 0.5, "linewidths": 0, "rasterized": count > 2_000}


def _draw_labeled(axis: Axes, points: np.ndarray, labels: Sequence[str]) -> None:
    """A color and a marker for each of the most frequent labels, or a scale of colors for many numbers."""
    counts = collections.Counter(labels).most_common()
    style = _style(len(points))
    if len(counts) > _MOST_NAMES and (numbers := _numbers(labels)) is not None:
        shown = axis.scatter(*points.T, c=numbers, cmap="viridis", **style)
        axis.figure.colorbar(shown, ax=axis, label="label", shrink=0.8, aspect=30)
        return
    rank = {label: number for number, (label, _) in enumerate(counts)}
    order = np.random.default_rng(1).permutation(len(points))  # otherwise the last label would cover the others
    points, ranks = points[order], np.array([rank[label] for label in labels])[order]
    rest = ranks >= MOST_LABELS
    axis.scatter(*points[rest].T, color=_GRAY, zorder=1, **style)
    for first, marker in zip(range(0, MOST_LABELS, len(_COLORS)), _MARKERS, strict=True):
        last = min(first + len(_COLORS), MOST_LABELS)
        chosen = (first <= ranks) & (ranks < last)
        if chosen.any():
            axis.scatter(*points[chosen].T, c=[_COLORS[n - first] for n in ranks[chosen]], marker=marker, **style)
        for color, (label, count) in zip(_COLORS, counts[first:last], strict=False):
            name = f"{shortened(label or '(empty)', _TEXT)} ({count:,})"
            axis.plot([], [], marker, color=color, markersize=6, label=name)
    if rest.any():
        axis.plot([], [], "o", color=_GRAY, label=f"{len(counts) - MOST_LABELS} other labels ({rest.sum():,})")
    axis.figure.legend(loc="outside right upper", frameon=False, fontsize=9)


def _numbers(labels: Sequence[str]) -> np.ndarray | None:
    """The labels as numbers; None if one is none."""
    numbers = [*map(as_number, labels)]
    return None if None in numbers or not np.isfinite(numbers).all() else np.array(numbers)

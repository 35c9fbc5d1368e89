"""Vectors as points: the principal components by hand, and who gets which color."""

from __future__ import annotations

import numpy as np
import pytest

from bert_tf2.finetuning import vector_plots
from bert_tf2.support.errors import UserError


def test_principal_components_by_hand():
    vectors = np.random.default_rng(1).normal(size=[40, 6]) * [5, 1, 3, 1, 1, 1]
    points, shares = vector_plots.principal_components(vectors)
    centered = vectors - vectors.mean(axis=0)
    values, directions = np.linalg.eigh(centered.T @ centered)
    wanted = centered @ directions[:, [-1, -2]]
    np.testing.assert_allclose(np.abs(points), np.abs(wanted), atol=1e-8)  # the sign of a direction is free
    np.testing.assert_allclose(shares, values[[-1, -2]] / values.sum())


def test_few_and_equal_vectors():
    points, shares = vector_plots.principal_components(np.array([[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]]))
    assert np.abs(points[:, 0]) == pytest.approx([1.5, 1.5]) and shares == pytest.approx([1, 0])
    points, shares = vector_plots.principal_components(np.ones([3, 4]))
    assert not points.any() and not shares.any()
    with pytest.raises(UserError, match="--plot needs two lines of text or more"):
        vector_plots.principal_components(np.ones([1, 4]))
    with pytest.raises(UserError, match="a vector is not finite"):
        vector_plots.principal_components(np.array([[np.nan, 1.0], [1.0, 1.0]]))


def test_a_sample_is_of_the_whole_stream(monkeypatch):
    monkeypatch.setattr(vector_plots, "MOST_POINTS", 50)
    sample = vector_plots.Sample()
    assert [*sample.through(range(2000))] == [*range(2000)]
    assert sample.vectors == sample.places and sample.seen == 2000 and len({*sample.places}) == 50
    assert 700 < np.mean(sample.places) < 1300  # 1000 with a deviation of 82


def drawn(labels) -> tuple:
    """The axes of a figure with a point for each label."""
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axis = figure.subplots()
    vector_plots._draw_labeled(axis, np.zeros([len(labels), 2]), labels)
    return figure, axis


def test_labels_are_told_apart_the_frequent_ones_first():
    labels = [f"label {number}" for number in range(30) for _ in range(number + 1)]
    figure, axis = drawn(labels)
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.texts]
    assert names[:2] == ["label 29 (30)", "label 28 (29)"]
    assert names[-1] == "6 other labels (21)" and len(names) == vector_plots.MOST_LABELS + 1
    looks = {(line.get_color(), line.get_marker()) for line in axis.lines}
    assert len(looks) == len(names)
    assert sum(len(points.get_offsets()) for points in axis.collections) == len(labels)


def test_many_numbers_are_a_scale_of_colors():
    figure, _ = drawn([str(number / 4) for number in range(20)])
    assert not figure.legends and figure.axes[-1].get_ylabel() == "label"
    figure, _ = drawn([str(number % 3) for number in range(20)])
    assert len(figure.legends) == 1

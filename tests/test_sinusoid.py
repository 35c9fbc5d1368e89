"""The sinusoid of "Attention Is All You Need", number by number and by its properties."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bert_tf2.sinusoid import sinusoidal_positions


@pytest.mark.parametrize(("count", "width"), [(1, 2), (7, 6), (40, 5)])
def test_each_number_is_that_of_the_formula(count, width):
    table = sinusoidal_positions(count, width)
    assert table.shape == (count, width) and table.dtype == np.float32
    for position in range(count):
        for column in range(width):
            angle = position / 10000 ** (2 * (column // 2) / width)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert table[position, column] == pytest.approx(expected, abs=1e-6)


def test_similarity_depends_only_on_the_distance():
    table = sinusoidal_positions(30, 64).astype(np.float64)
    products = table @ table.T
    for distance in range(30):
        assert np.ptp(np.diagonal(products, distance)) < 1e-4

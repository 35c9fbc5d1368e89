"""How alike the positions are, and which rows were never trained, on tables made for it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.spatial

from bert_tf2.explorer import positions
from bert_tf2.explorer.opened import unpack
from bert_tf2.layers import sinusoidal_positions


def table_of(count=40, width=24) -> np.ndarray:
    return np.random.default_rng(0).normal(0.0, 0.5, (count, width)).astype(np.float32)


@pytest.mark.parametrize(("count", "step"), [(40, 1), (300, 2)])
def test_cosines_are_scipy_s(count, step):
    table = table_of(count)
    facts = positions.describe(table)
    assert facts["shown"] == [*range(0, count, step)]
    rows = table[::step]
    distances = scipy.spatial.distance.cdist(rows, rows, "cosine")
    np.testing.assert_allclose(unpack(facts["cosines"]), 1 - distances, atol=1e-6)


@pytest.mark.parametrize("trained", [0, 20, 40])
def test_rows_that_were_never_trained_are_found(trained):
    table = table_of(40, 96)
    table[:trained] = 1.5 * sinusoidal_positions(trained, 96)
    facts = positions.describe(table)
    assert (facts["trained"], facts["positions"]) == (trained, 40)


def test_a_zero_table_is_no_error():
    assert not unpack(positions.describe(np.zeros((6, 4), np.float32))["cosines"]).any()

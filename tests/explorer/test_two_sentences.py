"""Two sentences side by side: the places that are compared, and the distances."""

from __future__ import annotations

import numpy as np
import pytest

from bert_tf2.explorer import sentence


@pytest.mark.parametrize(
    ("first", "other", "expected"),
    [
        ("a b c", "a x c", [(0, 0), (1, 1), (2, 2)]),
        ("a b c", "a x y c", [(0, 0), (2, 3)]),
        ("a b b c", "a b c", [(0, 0), (1, 1), (3, 2)]),  # the second "b" was added
        ("a", "x y", []),
        ("a a", "a a a", [(0, 0), (1, 1)]),
    ],
)
def test_places_that_are_compared(first, other, expected):
    first, other = first.split(), other.split()
    assert sentence.align(first, other) == expected
    assert sentence.align(other, first) == [(b, a) for a, b in expected]


def test_distances_of_states():
    states = np.array([[1.0, 0.0], [1.0, 0.0], [2.0, 0.0], [0.0, 0.0]])
    others = np.array([[0.0, 3.0], [-1.0, 0.0], [5.0, 0.0], [1.0, 0.0]])
    np.testing.assert_allclose(sentence.state_distances(states, others), [1, 2, 0, 1])


def test_attention_that_moved():
    ours = np.array([[[1.0, 0.0], [0.5, 0.5]], [[0.25, 0.75], [1.0, 0.0]]])  # [N, M, M]
    theirs = np.array([[[0.0, 1.0], [0.5, 0.5]], [[0.25, 0.75], [1.0, 0.0]]])
    np.testing.assert_allclose(sentence.attention_changes(ours, theirs), [0.5, 0])

"""Two sentences side by side: which tokens both have, how far the states are apart, which heads look elsewhere.

With one word changed, this shows where in the model the change arrives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def align(tokens: Sequence[str], others: Sequence[str]) -> list[tuple[int, int]]:
    """The places of tokens that are compared, as pairs (place in the first, place in the other), in order.

    Sentences of the same length are compared token by token. Of others, the tokens before and after the part that
    differs are.

    align(["a", "b", "c"], ["a", "x", "y", "c"]) is [(0, 0), (2, 3)]
    """
    if len(tokens) == len(others):
        return [(place, place) for place in range(len(tokens))]
    shorter = min(len(tokens), len(others))
    first = _equal_at_start(tokens, others)
    last = min(_equal_at_start(tokens[::-1], others[::-1]), shorter - first)
    ends = [(len(tokens) - back, len(others) - back) for back in range(last, 0, -1)]
    return [*((place, place) for place in range(first)), *ends]


def _equal_at_start(tokens: Sequence[str], others: Sequence[str]) -> int:
    for count, (token, other) in enumerate(zip(tokens, others, strict=False)):
        if token != other:
            return count
    return min(len(tokens), len(others))


def state_distances(states: np.ndarray, others: np.ndarray) -> np.ndarray:
    """1 - cosine of each row of [M, D] with the same row of the other: 0 for the same direction, at most 2; [M]."""
    states, others = states.astype(np.float64), others.astype(np.float64)
    products = np.sum(states * others, axis=-1)
    lengths = np.linalg.norm(states, axis=-1) * np.linalg.norm(others, axis=-1)
    return np.maximum(0.0, np.round(1.0 - products / np.maximum(lengths, 1e-30), 9))


def attention_changes(probabilities: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The share of its attention that each head moved to other tokens, the mean over the rows; [N, M, M] -> [N].

    Half the sum of the absolute differences of a row (the total variation distance): 0 if it looks at the same
    tokens, 1 if at none of the same.
    """
    return np.abs(probabilities - others).sum(axis=-1).mean(axis=-1) / 2

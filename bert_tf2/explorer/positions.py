"""The table of positions: how many of its rows were trained, and how alike they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from bert_tf2.explorer.opened import pack

MOST_ROWS = 256
"""The most rows and columns of a matrix that is sent; of more positions, every second, third, ... is."""
_LEAST = 4  # rows that are taken for untrained
_FAR = 5.0  # standard deviations that no random row is away


def describe(table: np.ndarray) -> dict[str, Any]:
    """How alike each position is to each: their cosine, which is the same if the whole table is turned.

    `table`: float32 [X, D].

    Returns `cosines` of the positions `shown`; `trained`, see `trained_rows`, of `positions`.
    """
    shown = np.arange(0, len(table), -(-len(table) // MOST_ROWS))
    rows = table[shown] / np.maximum(np.linalg.norm(table[shown], axis=1, keepdims=True), 1e-12)
    return {
        "positions": len(table),
        "trained": trained_rows(table),
        "shown": shown.tolist(),
        "cosines": pack(rows @ rows.T),
    }


def trained_rows(table: np.ndarray) -> int:
    """How many rows, from the first, look trained; 0 if none does.

    A model that only saw short sequences keeps its initial random numbers in the rows of later positions. Such rows
    have directions that are independent of each other, and nearly equal norms. So the rows at the end are counted whose
    cosine with the row before is that of random vectors (mean 0, standard deviation 1 / sqrt(D)), and whose norm is the
    others' (standard deviation: 1 / sqrt(2 D) of it). Fewer than four of them are no evidence. If the rows before them
    are no more alike on average either, none is trained.

    `table`: [X, D].
    """
    count, width = table.shape
    if count < _LEAST:
        return count
    norms = np.linalg.norm(table, axis=1)
    directions = table / np.maximum(norms, 1e-12)[:, None]
    alike = np.sum(directions[:-1] * directions[1:], axis=1) * np.sqrt(width)  # [i]: rows i and i + 1, in deviations
    first = count
    while first > 0:
        typical = np.median(norms[min(first, count - _LEAST) :])
        same_norm = abs(norms[first - 1] - typical) <= _FAR * typical / np.sqrt(2 * width)
        if not same_norm or (first < count and alike[first - 1] > _FAR):
            break
        first -= 1
    if count - first < _LEAST:
        return count
    before = alike[: max(first - 1, 0)]
    return first if before.sum() > _FAR * np.sqrt(len(before)) else 0

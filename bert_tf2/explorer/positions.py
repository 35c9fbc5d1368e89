"""The learned positions beside the sinusoid's: where they are alike, although no column of numbers is.

Which direction of the table means what is up to the matrices that read it, and these are learned together with it. So
numbers that a rotation of the table changes say little. What a rotation leaves as it is can be compared: the
similarities between positions, and how well the best rotation maps one table to the other.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import threadpoolctl

from bert_tf2.explorer.opened import Explorer, Handler, pack, read_number
from bert_tf2.layers import sinusoidal_positions
from bert_tf2.support.errors import UserError
from bert_tf2.weights import names

TABLE = "bert/embeddings/position_embeddings"
MOST_ROWS = 256
"""The most rows and columns of a matrix that is sent; of more positions, every second, third, ... is."""
MEASURES = ("cosine", "dot")
_COMPONENTS = 4  # whose values are drawn
_SHARES = 32  # components whose shares of the variance are drawn
_FEWEST = 3  # rows of which anything can be said
_DRAWS = 5  # of random rows, whose figures differ by some hundredths
_LEAST = 4  # rows that are taken for untrained
_FAR = 5.0  # standard deviations that no random row is away


def routes(explorer: Explorer) -> dict[str, Handler]:
    @functools.cache
    def table() -> np.ndarray:
        variables = names.tf1_variables(explorer.bert.model)
        if TABLE not in variables:
            raise UserError("this model has no table of positions: they are computed, and nothing of them is learned")
        return variables[TABLE].numpy()

    @functools.lru_cache(maxsize=8)
    def described(rows: int | None) -> dict[str, Any]:
        return describe(table(), rows)

    def handle(arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments.get("rows") in (None, ""):
            return described(None)
        return described(read_number(arguments, "rows", min(_FEWEST, len(table())), len(table())))

    return {"/api/positions": handle}


# With several threads, these small decompositions take up to twenty times as long on a machine that is busy.
@threadpoolctl.threadpool_limits.wrap(limits=1)
def describe(table: np.ndarray, rows: int | None = None) -> dict[str, Any]:
    """Everything that the view shows.

    Args:
      table: float32 [X, D], the learned positions.
      rows: how many of them, from the first; by default those that look trained, see `trained_rows`.

    Returns:
      For /api/positions. `similarity`: for each measure, those of the positions `shown`, the mean at each distance, and
      the correlation of the learned ones with the others. `aligned`: what the best rotation explains. Both figures are
      there for the sinusoid, and for two tables that cannot be alike: "shuffled", its rows in a random order, and
      "random" numbers. `smooth`: the figures of `smooth_rows` and the sinusoid, the means of several.
    """
    trained = trained_rows(table)
    rows = rows or (trained if trained >= _FEWEST else len(table))
    learned = table[:rows].astype(np.float64)
    sinusoid = sinusoidal_positions(rows, table.shape[1]).astype(np.float64)
    random = np.random.default_rng(0)
    shuffled, noise = sinusoid[random.permutation(rows)], random.normal(size=learned.shape)
    # The norms of the others are made equal, so that their dot products have one scale.
    size = np.linalg.norm(learned)
    others = {
        name: each * size / np.linalg.norm(each)
        for name, each in {"sinusoid": sinusoid, "shuffled": shuffled, "random": noise}.items()
    }
    tables = {"learned": learned, **others}
    shown = np.arange(0, rows, -(-rows // MOST_ROWS))
    return {
        "positions": len(table),
        "width": table.shape[1],
        "rows": rows,
        "trained": trained,
        "shown": shown.tolist(),
        "norms": pack(np.linalg.norm(table, axis=1)),
        "similarity": {measure: _similarity(tables, measure, shown) for measure in MEASURES},
        "aligned": {name: share_after_rotation(learned, each) for name, each in others.items()},
        "smooth": _figures_of_smooth_rows(learned, sinusoid),
        "variance": {name: _variance(tables[name]) for name in ("learned", "sinusoid", "random")},
        "components": {name: pack(components(tables[name])) for name in ("learned", "sinusoid")},
    }


def _similarity(tables: dict[str, np.ndarray], measure: str, shown: np.ndarray) -> dict[str, Any]:
    matrices = {name: similarities(each, measure) for name, each in tables.items()}
    return {
        **{name: pack(matrices[name][np.ix_(shown, shown)]) for name in ("learned", "sinusoid")},
        "by_distance": {name: pack(by_distance(matrices[name])) for name in ("learned", "sinusoid", "random")},
        "correlation": {
            name: correlation(matrices["learned"], matrix) for name, matrix in matrices.items() if name != "learned"
        },
    }


def trained_rows(table: np.ndarray) -> int:
    """How many rows, from the first, look trained; 0 if none does.

    A model that only saw short sequences keeps its initial random numbers in the rows of later positions. Such rows
    have directions that are independent of each other, and nearly equal norms. So the rows at the end are counted whose
    cosine with the row before is that of random vectors (mean 0, standard deviation 1 / sqrt(D)), and whose norm is the
    others' (standard deviation: 1 / sqrt(2 D) of it). Fewer than four of them are no evidence. If the rows before them
    are no more alike on average either, none is trained.

    Args:
      table: [X, D].
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


def _figures_of_smooth_rows(learned: np.ndarray, sinusoid: np.ndarray) -> dict[str, Any]:
    random = np.random.default_rng(0)
    draws = [smooth_rows(learned, random) for _ in range(_DRAWS)]
    alike = {measure: similarities(sinusoid, measure) for measure in MEASURES}
    return {
        "correlation": {
            measure: float(np.mean([correlation(similarities(rows, measure), alike[measure]) for rows in draws]))
            for measure in MEASURES
        },
        "aligned": float(np.mean([share_after_rotation(rows, sinusoid) for rows in draws])),
    }


def smooth_rows(table: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Random rows whose neighbors are as alike as a table's, and that know nothing else of it.

    An autoregressive series: row i is c times row i - 1, and new random numbers; c is the mean cosine of the table's
    neighbors. What such rows have in common with the sinusoid, any table has whose neighbors are similar.

    Args:
      table: [X, D].

    Returns:
      [X, D].
    """
    cosine = float(np.clip(np.diagonal(similarities(table), 1).mean(), 0.0, 0.999))
    rows = random.normal(size=table.shape)
    for row in range(1, len(rows)):
        rows[row] = cosine * rows[row - 1] + np.sqrt(1.0 - cosine**2) * rows[row]
    return rows


def similarities(table: np.ndarray, measure: str = "cosine") -> np.ndarray:
    """[X, D] -> [X, X], the cosine or the dot product of each row with each."""
    if measure == "cosine":
        table = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    return table @ table.T


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Pearson's correlation of two symmetric matrices [X, X], over pairs of different rows; 0 for a constant one."""
    pairs = np.triu_indices(len(one), 1)
    values = [matrix[pairs] - matrix[pairs].mean() for matrix in (one, other)]
    norms = np.linalg.norm(values[0]) * np.linalg.norm(values[1])
    return float(values[0] @ values[1] / norms) if norms else 0.0


def by_distance(matrix: np.ndarray) -> np.ndarray:
    """[X, X] -> [X], the mean similarity of two positions at each distance, from 0 on."""
    return np.array([np.diagonal(matrix, distance).mean() for distance in range(len(matrix))])


def share_after_rotation(table: np.ndarray, other: np.ndarray) -> float:
    """The share of a table's variance that the other one explains after the best shift, rotation and scale.

    That is 1 minus the disparity of the orthogonal Procrustes problem (Schonemann, 1966): with both tables centered and
    of norm 1, the square of the sum of the singular values of table.T @ other. With few rows and many columns, any
    table can be rotated to any other, so the figure means something only beside that of a shuffled one.

    Args:
      table, other: [X, D].

    Returns:
      From 0 to 1; 1 if they are the same but for shift, rotation and scale.
    """
    values, vectors = np.linalg.eigh(_products(table))
    root = vectors * np.sqrt(np.maximum(values, 0.0))  # root @ root.T are the products
    squares = np.linalg.eigvalsh(root.T @ _products(other) @ root)
    return float(min(1.0, np.sqrt(np.maximum(squares, 0.0)).sum() ** 2))


def _products(table: np.ndarray) -> np.ndarray:
    """[X, D] -> [X, X], the dot products of the rows of the centered table, whose norm is made 1.

    All that a rotation leaves as it is can be computed from these, and they are fewer than the numbers of the table.
    """
    centered = table - table.mean(axis=0)
    centered = centered / max(float(np.linalg.norm(centered)), 1e-12)
    return centered @ centered.T


def components(table: np.ndarray) -> np.ndarray:
    """[X, D] -> [4, X], the rows along their first principal components; the largest of all these values is 1."""
    values, vectors = np.linalg.eigh(_products(table))
    count = min(_COMPONENTS, len(values))
    along = (vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0.0)))[:, :count].T
    signs = np.sign(along[np.arange(count), np.abs(along).argmax(axis=1)])  # their signs are arbitrary
    return along * signs[:, None] / max(float(np.abs(along).max()), 1e-12)


def _variance(table: np.ndarray) -> dict[str, Any]:
    shares = variance_shares(table)
    return {"shares": pack(np.cumsum(shares)[:_SHARES]), "effective_rank": effective_rank(shares)}


def variance_shares(table: np.ndarray) -> np.ndarray:
    """[X, D] -> the share of the variance along each principal component, the largest first."""
    return np.maximum(np.linalg.eigvalsh(_products(table))[::-1], 0.0)


def effective_rank(shares: np.ndarray) -> float:
    """How many directions are in use: the exponential of the entropy of their shares (Roy and Vetterli, 2007)."""
    used = shares[shares > 1e-12]
    return float(np.exp(-np.sum(used * np.log(used))))

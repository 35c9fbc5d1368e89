"""What the study asks of the states and tables of a trained model; numpy alone.

A probe is a linear classifier of frozen states. It has no random start and no steps: the linear discriminant, whose
weights follow from the means of the classes and the common covariance. What it cannot tell may still be in the states,
but in no linear form.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Added to the covariance's diagonal, relative to its mean, so that it can be inverted.
_RIDGE = 1e-3


class Discriminant:
    """Classes of states by a linear discriminant."""

    def __init__(self, states: np.ndarray, labels: np.ndarray):
        """Learns from states [M, D] and their classes, int [M]."""
        self._classes, index = np.unique(labels, return_inverse=True)
        counts = np.bincount(index)
        means = np.zeros([len(self._classes), states.shape[1]])
        np.add.at(means, index, states)
        means /= counts[:, np.newaxis]
        around = states - means[index]
        covariance = around.T @ around / len(states)
        covariance += _RIDGE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        self._weights = np.linalg.solve(covariance, means.T)  # [D, classes]
        self._constant = np.log(counts / counts.sum()) - 0.5 * (means.T * self._weights).sum(axis=0)

    def _scores(self, states: np.ndarray) -> np.ndarray:
        return states @ self._weights + self._constant

    def classify(self, states: np.ndarray) -> np.ndarray:
        """[K, D] -> int [K]."""
        return self._classes[np.argmax(self._scores(states), axis=1)]

    def expect(self, states: np.ndarray) -> np.ndarray:
        """The mean of the classes, which are numbers, by their probabilities: [K, D] -> [K]."""
        scores = self._scores(states)
        probabilities = np.exp(scores - scores.max(axis=1, keepdims=True))
        return probabilities @ self._classes / probabilities.sum(axis=1)


def probe_accuracy(states: np.ndarray, labels: np.ndarray, asked_states: np.ndarray, asked_labels: np.ndarray) -> float:
    """The share of right answers of the discriminant of some states for others.

    Args:
      states, asked_states: [rows, F, D], to learn from and to be asked.
      labels, asked_labels: int [rows, F]; where they are negative nothing is asked.
    """
    known, asked = labels >= 0, asked_labels >= 0
    answers = Discriminant(states[known], labels[known]).classify(asked_states[asked])
    return float(np.mean(answers == asked_labels[asked]))


class Swapped(NamedTuple):
    """Texts in which some neighbors have changed places.

    Attributes:
      input_ids: int [B, F].
      labels: int [B, F]; at the place of each word that is asked about 1 if it has changed places with its neighbor
        and 0 if not, at other places -1.
      pairs: int [M, 4], for each chosen pair its row, the place where the word that was first stands now, the place of
        the other one, and 1 if they have changed places.
    """

    input_ids: np.ndarray
    labels: np.ndarray
    pairs: np.ndarray


def swap_neighbors(input_ids: np.ndarray, lengths: np.ndarray, seed: int) -> Swapped:
    """Swaps half of the chosen pairs of neighbors, at random.

    Pairs begin at the places 1, 3, 5, ... of a text or at 2, 4, 6, ...; one in four is chosen, unless its two words are
    equal. The question is asked for one word of a pair, the one that was first, wherever it stands now. So whether it
    was moved depends neither on which word it is nor on its place: at the first and the last place, where only one of
    the two answers is possible, nothing is asked. The chance is one half, also for a state that knows both but not the
    order of the others.

    Args:
      input_ids: int [B, F], rows of [CLS] words [SEP] padding.
      lengths: int [B], without padding.
      seed: of the choice.
    """
    random = np.random.default_rng(seed)
    ids, labels = input_ids.copy(), np.full(input_ids.shape, -1)
    first = np.arange(1, input_ids.shape[1] - 1)
    last = lengths[:, np.newaxis] - 2  # the last word
    chosen = first % 2 == random.integers(0, 2, [len(ids), 1])
    chosen &= random.random(chosen.shape) < 0.25
    chosen &= (first < last) & (input_ids[:, first] != input_ids[:, first + 1])
    rows, pairs = np.nonzero(chosen)
    places, moved = first[pairs], random.integers(0, 2, len(rows))
    ids[rows, places + moved] = input_ids[rows, places]
    ids[rows, places + 1 - moved] = input_ids[rows, places + 1]
    labels[rows, places + moved] = moved
    labels[:, 1] = -1
    labels[np.arange(len(ids)), last[:, 0]] = -1
    return Swapped(ids, labels, np.stack([rows, places + moved, places + 1 - moved, moved], axis=1))


def order_accuracy(states: np.ndarray, positions: np.ndarray, asked_states: np.ndarray, pairs: np.ndarray) -> float:
    """How often the states of two neighbors tell which of them comes first in the text.

    The discriminant of positions says where each of the two stands, and these answers are compared; equal ones are half
    right. Whether the text has the two as they were or the other way round was drawn at random, so the words alone tell
    nothing, and the chance is one half.

    Args:
      states, positions: [rows, F, D] and position_labels, to learn from.
      asked_states: [rows, F, D], of the texts of swap_neighbors.
      pairs: of swap_neighbors.
    """
    known = positions >= 0
    where = Discriminant(states[known], positions[known])
    row, first, second, _ = pairs.T
    further = where.expect(asked_states[row, second]) - where.expect(asked_states[row, first])
    return float(np.mean((1 + np.sign(further) * np.sign(second - first)) / 2))


def position_labels(lengths: np.ndarray, width: int) -> np.ndarray:
    """The position of each word of the rows that fill the width, int [B, width]; -1 for [CLS], [SEP], other rows."""
    places = np.tile(np.arange(width), [len(lengths), 1])
    places[:, [0, width - 1]] = -1
    places[lengths < width] = -1
    return places


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[M, D], [K, D] -> [M, K]."""
    return _unit(a) @ _unit(b).T


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def compare_tables(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """How alike two tables are, row by row, and in what is near to what; both are centered first.

    Args:
      a, b: [M, D], rows of the same words.

    Returns:
      cosine: the mean over the rows of the cosine of a row of `a` and that of `b`.
      cosine_of_others: the same for different words.
      same_neighbors: the correlation between the cosines within `a` and those within `b`, over all pairs of words. It
        does not change if a table is rotated.
    """
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    across, pairs = cosines(a, b), np.triu_indices(len(a), 1)
    same = np.corrcoef(cosines(a, a)[pairs], cosines(b, b)[pairs])[0, 1]
    others = (across.sum() - np.trace(across)) / (across.size - len(a))
    return {
        "cosine": float(np.mean(np.diag(across))),
        "cosine_of_others": float(others),
        "same_neighbors": float(same),
    }


def similarity_by_distance(table: np.ndarray) -> list[float]:
    """The mean cosine of two rows of a centered table of positions, by their distance from 0 to half of the table."""
    centered = table - table.mean(axis=0)
    found = cosines(centered, centered)
    return [float(np.diagonal(found, distance).mean()) for distance in range(len(table) // 2 + 1)]

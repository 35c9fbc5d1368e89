"""Two checkpoints side by side, for example before and after fine-tuning: which variables moved, and how far."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from bert_tf2.config import BertConfig, config_value, decisive_differences
from bert_tf2.explorer.inventory import WORDS, kind_of, part_of
from bert_tf2.explorer.opened import Explorer
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.weights import metadata, names
from bert_tf2.weights.base import Weights, as_float32

_MOST_WORDS = 30


def routes(explorer: Explorer) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
    @functools.cache
    def described() -> dict[str, Any]:
        return describe(explorer, explorer.other) if explorer.other else {"other": None}

    return {"/api/comparison": lambda arguments: described()}


class Moved:
    """The sums behind the distance of one variable, or of several together.

    Attributes:
      square: of the norm of the first.
      change: the square of the norm of the difference.
    """

    def __init__(self) -> None:
        self.square = 0.0
        self.change = 0.0

    def add(self, other: Moved) -> None:
        self.square += other.square
        self.change += other.change

    @property
    def relative(self) -> float | None:
        """|a - b| / |a|; None if it is not a number, or |a| is 0 and |b| is not."""
        if not self.change and math.isfinite(self.square):
            return 0.0
        share = math.sqrt(self.change / self.square) if self.square else math.inf
        return share if math.isfinite(share) else None


def describe(explorer: Explorer, other: Weights) -> dict[str, Any]:
    """Everything that the view shows.

    Returns:
      For /api/comparison. `variables`: for each that both have in the same shape, the distance relative to the norm in
      the model, the cosine, and the largest change of a number. `parts` and `kinds`: the distances of several
      variables together. `words`: the rows of the word table that moved farthest. `sentences`: what else differs.

    Raises:
      UserError: the other weights have nothing in common with the model, or are damaged.
    """
    mine = {name: variable.numpy() for name, variable in names.tf1_variables(explorer.bert.model).items()}
    theirs = names.without_optimizer(other.shapes)
    both = [name for name in mine if name in other.shapes and other.shapes[name] == [*mine[name].shape]]
    if not both:
        raise UserError(f"{other.path}: has no variable of the model's names and shapes, so nothing can be compared")
    rows, parts, kinds = [], {}, {}
    for name in both:
        row, moved = compare(mine[name], as_float32(other.get(name)))
        row.update(name=name, part=part_of(name), kind=_kind(name))
        rows.append(row)
        parts.setdefault(row["part"], Moved()).add(moved)
        kinds.setdefault(row["kind"], Moved()).add(moved)
    return {
        "other": other.path,
        "same": all(row["relative"] == 0 for row in rows),
        "variables": rows,
        "parts": _groups(parts),
        "kinds": _groups(kinds),
        "words": words(explorer, mine, other),
        "sentences": [*_differences(explorer, mine, theirs, other)],
    }


def _kind(name: str) -> str:
    kind, _ = kind_of(name)
    return f"{kind}: {name.rpartition('/')[2]}" if kind == "LayerNorm" else kind


def _groups(groups: dict[str, Moved]) -> list[dict[str, Any]]:
    return [{"name": name, "relative": moved.relative} for name, moved in groups.items()]


def compare(one: np.ndarray, other: np.ndarray) -> tuple[dict[str, Any], Moved]:
    """How far one array is from another of the same shape."""
    a, b = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    moved = Moved()
    moved.square, moved.change = float(a @ a), float((a - b) @ (a - b))
    norms = math.sqrt(moved.square * float(b @ b))
    largest = float(np.max(np.abs(a - b), initial=0.0))
    return {
        "shape": [*one.shape],
        "relative": moved.relative,
        "cosine": float(a @ b) / norms if norms and math.isfinite(norms) else None,
        "largest": largest if math.isfinite(largest) else None,
    }, moved


def words(explorer: Explorer, mine: dict[str, np.ndarray], other: Weights) -> dict[str, Any] | None:
    """The rows of the word table that moved farthest, of the words that both vocabularies have.

    Returns:
      None if the tables cannot be compared; otherwise `moved`: [word, relative distance, cosine], the farthest first,
      the number `compared`, and `equal`, those that did not move.
    """
    if other.shapes.get(WORDS, [0, 0])[1:] != [*mine[WORDS].shape[1:]]:
        return None
    ids = explorer.bert.tokenizer.vocab
    entries = other.vocabulary()
    if entries is None and other.shapes[WORDS][0] != len(mine[WORDS]):
        return None
    there = ids if entries is None else {entry.strip(): index for index, entry in enumerate(entries)}
    common = [word for word in ids if there.get(word, math.inf) < other.shapes[WORDS][0]]
    before = mine[WORDS][[ids[word] for word in common]].astype(np.float64)
    after = as_float32(other.get(WORDS))[[there[word] for word in common]].astype(np.float64)
    norms = np.linalg.norm(before, axis=1)
    distances = np.linalg.norm(before - after, axis=1)
    relative = distances / np.maximum(norms, 1e-12)
    cosines = np.sum(before * after, axis=1) / np.maximum(norms * np.linalg.norm(after, axis=1), 1e-12)
    order = np.argsort(-relative, kind="stable")[:_MOST_WORDS]
    return {
        "moved": [[common[i], float(relative[i]), float(cosines[i])] for i in order if distances[i] > 0],
        "compared": len(common),
        "equal": int(np.sum(distances == 0)),
        "median": float(np.median(relative)) if len(common) else 0.0,
    }


def _differences(
    explorer: Explorer, mine: dict[str, np.ndarray], theirs: Sequence[str], other: Weights
) -> Iterable[str]:
    """Sentences about configurations, vocabularies, variables of only one side, and shapes."""
    stated = metadata.stated_config(other)
    if stated is None:
        yield "The other weights have no configuration beside them."
    elif different := decisive_differences(explorer.bert.config, stated[0]):
        yield f"The configurations differ: {_listed(explorer.bert.config, stated[0], different)}."
    entries = other.vocabulary()
    ids = explorer.bert.tokenizer.vocab
    if entries is None:
        yield "The other weights have no vocabulary beside them; their rows are taken for the same words."
    elif [entry.strip() for entry in entries] != [*ids]:
        common = len({entry.strip() for entry in entries} & {*ids})
        yield (
            f"The vocabularies differ: {len(ids)} entries and {len(entries)}, {common} of them in both; words are"
            " compared with the same words."
        )
    if missing := [name for name in mine if name not in other.shapes]:
        yield f"Only the model has {and_more(missing, 6)}."
    if added := [name for name in theirs if name not in mine]:
        yield f"Only the other weights have {and_more(added, 6)}."
    shapes = [
        f"{name} is {[*values.shape]} in the model and {other.shapes[name]} in the other weights"
        for name, values in mine.items()
        if name in other.shapes and other.shapes[name] != [*values.shape]
    ]
    if shapes:
        yield f"Not compared, because their shapes differ: {and_more(shapes, 4, '; ')}."


def _listed(one: BertConfig, other: BertConfig, different: Sequence[str]) -> str:
    return ", ".join(f"{name} {config_value(one, name)} and {config_value(other, name)}" for name in different)

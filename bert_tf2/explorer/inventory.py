"""Every variable of the model: its names, size and values, and where the code uses it; and how far each moved.

With --compare_with two checkpoints are side by side, for example before and after fine-tuning.
"""

from __future__ import annotations

import collections
import functools
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from bert_tf2.explorer.opened import Explorer, Handler, pack
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.weights import checkpoint, names
from bert_tf2.weights.base import Weights, as_float32
from bert_tf2.weights.huggingface import TIED

WORDS = "bert/embeddings/word_embeddings"
POSITIONS = "bert/embeddings/position_embeddings"
_MOST_WORDS = 30
_BLOCK = re.compile(r"bert/encoder/layer_(\d+)/")

# What the name of a variable contains, the first that fits, and the key of code_lines.PLACES where it is used.
_CODES = {
    "embeddings/word_embeddings": "embeddings.words",
    "embeddings/token_type_embeddings": "embeddings.segments",
    "embeddings/position_embeddings": "embeddings.positions",
    "embeddings/LayerNorm": "embeddings.norm",
    "attention/self/": "attention.query",
    "attention/output/dense": "attention.output",
    "attention/output/LayerNorm": "attention.norm",
    "intermediate/dense": "intermediate",
    "/output/": "output",
    "pooler/dense": "pooler",
    "predictions/transform/": "head.transform",
    "predictions/output_bias": "head.bias",
    "predictions/": "head.logits",
    "": "head.labels",
}


def routes(explorer: Explorer) -> dict[str, Handler]:
    described = functools.cache(lambda: describe(explorer))
    compared = functools.cache(lambda: compare_with(explorer, explorer.other) if explorer.other else {"other": None})
    return {"/api/inventory": lambda arguments: described(), "/api/comparison": lambda arguments: compared()}


def part_of(name: str) -> str:
    """The part of the model to which a variable belongs, by its reference name: "block 3" counts from 0."""
    if block := _BLOCK.match(name):
        return f"block {block[1]}"
    if name.startswith("bert/"):
        return name.split("/")[1]  # embeddings, pooler
    heads = names.HEADS.items()
    return next((head.replace("_", " ") for head, rows in heads if name in [row.reference for row in rows]), "head")


def code_of(name: str) -> str:
    """The key of the code that uses a variable."""
    return next(code for within, code in _CODES.items() if within in name)


def describe(explorer: Explorer) -> dict[str, Any]:
    """What /api/inventory answers.

    `variables`: a row for each, in the order in which they are saved; not `in_file` are those that the weights lack.
    `parts`: their totals. `unused`: what the weights hold besides. `copies`: the names of `transformers` that are one
    array. `positions`: how alike they are.
    """
    bert = explorer.bert
    source = checkpoint.open_weights(bert.path)
    variables = names.tf1_variables(bert.model)
    table = {row.reference: row for row in names.of_model(bert.model, bert.config)}
    rows = []
    parts: dict[str, dict[str, Any]] = {}
    for name, variable in variables.items():
        row = {
            "name": name,
            "letters": table[name].shape,
            "huggingface": table[name].huggingface,
            "transposed": names.is_transposed(name),
            "model_garden": table[name].model_garden,
            "attribute": table[name].attribute,
            "in_file": name in source.shapes,
            **statistics(variable.numpy()),
            "part": part_of(name),
            "code": code_of(name),
        }
        rows.append(row)
        part = parts.setdefault(row["part"], {"name": row["part"], "variables": 0, "parameters": 0})
        part["variables"] += 1
        part["parameters"] += row["parameters"]
    saved = names.without_optimizer(source.shapes)
    by_name = {row.huggingface: row.reference for row in table.values()}
    return {
        "kind": source.kind,
        "variables": rows,
        "parts": [*parts.values()],
        "parameters": sum(row["parameters"] for row in rows),
        "unused": [name for name in saved if name not in variables],
        "optimizer": len(source.shapes) - len(saved),
        "copies": [{"copy": copy, "of": of, "name": by_name[of]} for copy, of in TIED.items() if of in by_name],
        "positions": cosines(variables[POSITIONS].numpy()) if POSITIONS in variables else None,
    }


def cosines(table: np.ndarray) -> dict[str, Any]:
    """The cosine of each position of a table [X, D] with each; of more than 256, every second, third, ... is shown."""
    shown = np.arange(0, len(table), -(-len(table) // 256))
    rows = table[shown] / np.maximum(np.linalg.norm(table[shown], axis=1, keepdims=True), 1e-12)
    return {"shown": shown.tolist(), "cosines": pack(rows @ rows.T)}


def statistics(values: np.ndarray) -> dict[str, Any]:
    wide = values.astype(np.float64)
    return {
        "shape": [*values.shape],
        "parameters": values.size,
        "norm": finite(np.linalg.norm(wide)),
        "mean": finite(wide.mean()),
        "deviation": finite(wide.std()),
    }


def finite(value: Any) -> float | None:
    """A number for JSON, which has no NaN."""
    number = float(value)
    return number if math.isfinite(number) else None


def compare_with(explorer: Explorer, other: Weights) -> dict[str, Any]:
    """What /api/comparison answers: how far the model is from other weights.

    `variables`: for each that both have in the same shape, the distance relative to the norm in the model, the cosine,
    and the largest change of a number. `parts`: the distances of several variables together. `words`: the rows of the
    word table that moved farthest. `sentences`: what only one of them has.
    """
    mine = {name: variable.numpy() for name, variable in names.tf1_variables(explorer.bert.model).items()}
    both = [name for name in mine if other.shapes.get(name) == [*mine[name].shape]]
    if not both:
        raise UserError(f"{other.path}: has no variable of the model's names and shapes, so nothing can be compared")
    rows = []
    parts: dict[str, np.ndarray] = collections.defaultdict(lambda: np.zeros(2))
    for name in both:
        row, squares = compare(mine[name], as_float32(other.get(name)))
        rows.append({"name": name, **row})
        parts[part_of(name)] += squares
    return {
        "other": other.path,
        "same": all(row["relative"] == 0 for row in rows),
        "variables": rows,
        "parts": [{"name": name, "relative": _relative(*squares)} for name, squares in parts.items()],
        "words": words(explorer, mine[WORDS], other) if WORDS in both else None,
        "sentences": [*_differences(mine, other)],
    }


def _relative(square: float, change: float) -> float | None:
    """|a - b| / |a| from |a|^2 and |a - b|^2; None if that is no number."""
    if not change and math.isfinite(square):
        return 0.0
    return finite(math.sqrt(change / square)) if square else None


def compare(one: np.ndarray, other: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    """How far one array is from another of the same shape; and |one|^2 and |one - other|^2, float64 [2]."""
    a, b = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    square, change = float(a @ a), float((a - b) @ (a - b))
    norms = math.sqrt(square * float(b @ b))
    return {
        "relative": _relative(square, change),
        "cosine": float(a @ b) / norms if norms and math.isfinite(norms) else None,
        "largest": finite(np.max(np.abs(a - b), initial=0.0)),
    }, np.array([square, change])


def words(explorer: Explorer, table: np.ndarray, other: Weights) -> dict[str, Any] | None:
    """The rows of the word table that moved farthest, [word, relative distance, cosine]; None for other entries."""
    entries, tokenizer = other.vocabulary(), explorer.bert.tokenizer
    if entries is not None and {entry.strip(): index for index, entry in enumerate(entries)} != tokenizer.vocab:
        return None
    ours = tokenizer.inv_vocab
    before, after = table.astype(np.float64), as_float32(other.get(WORDS)).astype(np.float64)
    norms = np.linalg.norm(before, axis=1)
    distances = np.linalg.norm(before - after, axis=1)
    relative = distances / np.maximum(norms, 1e-12)
    cosines = np.sum(before * after, axis=1) / np.maximum(norms * np.linalg.norm(after, axis=1), 1e-12)
    farthest = [i for i in np.argsort(-relative, kind="stable").tolist() if i in ours and distances[i] > 0]
    return {
        "moved": [[ours[i], float(relative[i]), float(cosines[i])] for i in farthest[:_MOST_WORDS]],
        "compared": len(table),
        "equal": int(np.sum(distances == 0)),
        "median": float(np.median(relative)),
    }


def _differences(mine: dict[str, np.ndarray], other: Weights) -> Iterator[str]:
    if missing := [name for name in mine if name not in other.shapes]:
        yield f"Only the model has {and_more(missing, 6)}."
    if added := [name for name in names.without_optimizer(other.shapes) if name not in mine]:
        yield f"Only the other weights have {and_more(added, 6)}."
    shapes = {name: [*values.shape] for name, values in mine.items()}
    if unlike := [name for name, shape in shapes.items() if other.shapes.get(name, shape) != shape]:
        yield f"Not compared, because their shapes differ: {and_more(unlike, 4)}."

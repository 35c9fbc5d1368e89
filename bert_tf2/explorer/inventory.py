"""Every variable of the model: its names here and elsewhere, its size, its values, and where the code uses it."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from bert_tf2.explorer import arguments as read
from bert_tf2.explorer.arrays import pack
from bert_tf2.explorer.opened import Explorer
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checkpoint, names
from bert_tf2.weights.huggingface import TIED

WORDS = "bert/embeddings/word_embeddings"
_BINS = 48
_BLOCK = re.compile(r"bert/encoder/layer_(\d+)/")

# What the name of a variable contains, its kind, and the key of code_lines.PLACES where the code uses it. The first row
# that fits counts.
_KINDS = (
    ("embeddings/word_embeddings", "word embeddings", "embeddings.words"),
    ("embeddings/token_type_embeddings", "segment embeddings", "embeddings.segments"),
    ("embeddings/position_embeddings", "position embeddings", "embeddings.positions"),
    ("embeddings/LayerNorm", "LayerNorm", "embeddings.norm"),
    ("attention/self/query", "query", "attention.query"),
    ("attention/self/key", "key", "attention.query"),
    ("attention/self/value", "value", "attention.query"),
    ("attention/output/dense", "attention output", "attention.output"),
    ("attention/output/LayerNorm", "LayerNorm", "attention.norm"),
    ("intermediate/dense", "intermediate", "intermediate"),
    ("output/LayerNorm", "LayerNorm", "output"),
    ("output/dense", "output", "output"),
    ("pooler/dense", "pooler", "pooler"),
    ("transform/LayerNorm", "LayerNorm", "head.transform"),
    ("transform/dense", "head", "head.transform"),
    ("predictions/output_bias", "head", "head.bias"),
    ("predictions/", "head", "head.logits"),
    ("", "head", "head.labels"),
)


def routes(explorer: Explorer) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
    @functools.cache
    def described() -> dict[str, Any]:
        return describe(explorer)

    def values(arguments: dict[str, Any]) -> dict[str, Any]:
        variables = names.tf1_variables(explorer.bert.model)
        name = read.text(arguments, "name")
        if name not in variables:
            raise UserError(f"the model has no variable {name!r:.80}")
        return histogram(variables[name].numpy())

    return {"/api/inventory": lambda arguments: described(), "/api/variable": values}


def part_of(name: str) -> str:
    """The part of the model to which a variable belongs, by its reference name: "block 3" counts from 0."""
    if block := _BLOCK.match(name):
        return f"block {block[1]}"
    if name.startswith("bert/"):
        return name.split("/")[1]  # embeddings, pooler
    return next((head.replace("_", " ") for head in names.HEADS if _is_of(name, head)), "head")


def _is_of(name: str, head: str) -> bool:
    return any(row.reference == name for row in names.of_heads([head], tied=False))


def kind_of(name: str) -> tuple[str, str]:
    """The kind of a variable, the same in every block, and the key of the code that uses it."""
    return next((kind, code) for within, kind, code in _KINDS if within in name)


def describe(explorer: Explorer) -> dict[str, Any]:
    """Everything that the view shows at first.

    Returns:
      For /api/inventory. `variables`: a row for each, in the order in which they are saved; `in_file` is whether it is
      from the weights or was made at random because they lack it. `parts`: their totals. `unused`: what the weights
      hold besides. `sharing`: the tables that are one array under several names, and what that saves.
    """
    bert = explorer.bert
    source = checkpoint.open_weights(bert.path)
    variables = names.tf1_variables(bert.model)
    table = {row.reference: row for row in names.of_model(bert.model, bert.config)}
    rows = [
        {"name": name, **_elsewhere(table[name]), "in_file": name in source.shapes, **statistics(variable.numpy())}
        for name, variable in variables.items()
    ]
    parts: dict[str, dict[str, Any]] = {}
    for row in rows:
        row["part"], (row["kind"], row["code"]) = part_of(row["name"]), kind_of(row["name"])
        part = parts.setdefault(row["part"], {"name": row["part"], "variables": 0, "parameters": 0})
        part["variables"] += 1
        part["parameters"] += row["parameters"]
    unused = [name for name in names.without_optimizer(source.shapes) if name not in variables]
    return {
        "path": source.path,
        "kind": source.kind,
        "variables": rows,
        "parts": [*parts.values()],
        "parameters": sum(row["parameters"] for row in rows),
        "unused": unused,
        "optimizer": len(source.shapes) - len(names.without_optimizer(source.shapes)),
        "sharing": _sharing(explorer, table),
    }


def _elsewhere(row: names.Variable) -> dict[str, Any]:
    return {
        "letters": row.shape,
        "huggingface": row.huggingface,
        "transposed": names.is_transposed(row.reference),
        "model_garden": row.model_garden,
        "attribute": row.attribute,
    }


def statistics(values: np.ndarray) -> dict[str, Any]:
    """The shape, the number of parameters, the Euclidean norm, the mean and the standard deviation of an array."""
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


def _sharing(explorer: Explorer, table: dict[str, names.Variable]) -> dict[str, Any]:
    """The word table at both ends of the model, and the names of `transformers` that are copies of one array."""
    config = explorer.bert.config
    shared = "masked_lm" in explorer.bert.model.heads and config.tie_word_embeddings
    by_name = {row.huggingface: row.reference for row in table.values()}
    return {
        "shared": shared,
        "has_head": "masked_lm" in explorer.bert.model.heads,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "saved": config.vocab_size * config.hidden_size,
        "copies": [
            {"copy": copy, "of": of, "name": by_name[of]} for copy, of in TIED.items() if shared and of in by_name
        ],
    }


def histogram(values: np.ndarray) -> dict[str, Any]:
    """How the values of a variable are distributed.

    Returns:
      `counts` [48] of the values between consecutive `edges` [49], `below` and `above` of those beyond, which are the
      farthest from the middle, at most one in a thousand at each end; `smallest`, `largest`, and `zeros`.
    """
    flat = values.astype(np.float64).ravel()
    flat = flat[np.isfinite(flat)]
    if not flat.size:
        raise UserError("none of its values is a number")
    low, high = np.quantile(flat, [0.001, 0.999])
    if low == high:
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(flat, _BINS, (low, high))
    return {
        "counts": counts.tolist(),
        "edges": pack(edges),
        "below": int(np.sum(flat < low)),
        "above": int(np.sum(flat > high)),
        "smallest": float(flat.min()),
        "largest": float(flat.max()),
        "zeros": int(np.sum(flat == 0)),
        "not_finite": values.size - flat.size,
    }

"""The model that the page shows, loaded once, and each of its variables: names, size, values, and the code of its use.

Also has the helpers for all tabs: the arguments of requests, and arrays in JSON.
"""

from __future__ import annotations

import base64
import json
import math
import re
import reprlib
from collections.abc import Callable
from typing import Any

import numpy as np

import bert_tf2
from bert_tf2.explorer.options import ExplorerOptions
from bert_tf2.support.containers import is_utf8
from bert_tf2.support.errors import UserError
from bert_tf2.weights import names, sources
from bert_tf2.weights.huggingface import TIED

Handler = Callable[[dict[str, Any]], Any]
"""Takes the arguments of a request; returns a value that JSON can represent."""

_BLOCK = re.compile(r"bert/encoder/layer_(\d+)/")

# A part of a variable's name (the first part that fits) -> the key in code_lines.PLACES of the code that uses it.
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


class Explorer:
    """The model and the texts that the page shows.

    Attributes:
      bert: the model with its tokenizer and configuration.
      texts: the initial `text`, `text_b` and `other_text` of the page, "" if not given.
    """

    def __init__(self, options: ExplorerOptions):
        self.bert = bert_tf2.load(
            options.model,
            bert_config_file=options.bert_config_file,
            vocab_file=options.vocab_file,
            do_lower_case=options.do_lower_case,
        )
        self.texts = {name: getattr(options, name) or "" for name in ("text", "text_b", "other_text")}
        for name, text in self.texts.items():
            _check_characters(text, f"--{name}")

    def describe(self) -> dict[str, Any]:
        """The answer of /api/model: the facts that every tab shows."""
        bert = self.bert
        variables = names.tf1_variables(bert.model)
        return {
            "path": bert.path,
            "heads": [*bert.model.heads],
            "config": {name: x for name, x in bert.config.to_dict().items() if isinstance(x, (int, float, str))},
            "parameters": sum(int(variable.shape.num_elements()) for variable in variables.values()),
            "texts": self.texts,
        }

    def inventory(self) -> dict[str, Any]:
        """The answer of /api/inventory.

        `variables`: a row for each variable, in the order in which they are saved; `in_file` is false if the weights
        lack the variable. `parts`: the totals by part. `unused`: further variables of the weights. `copies`: the names
        in `transformers` that share an array. `positions`: the cosines of the positions.
        """
        bert = self.bert
        source = sources.open_weights(bert.path)
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
            "positions": cosines(variables[names.POSITIONS.reference].numpy()),
        }


def part_of(name: str) -> str:
    """The part of the model to which a variable belongs, by its reference name: "block 3" counts from 0."""
    if block := _BLOCK.match(name):
        return f"block {block[1]}"
    if name.startswith("bert/"):
        return name.split("/")[1]  # embeddings, pooler
    rows = names.HEADS.items()
    return next(head.replace("_", " ") for head, of_head in rows if name in [row.reference for row in of_head])


def code_of(name: str) -> str:
    """The key of the code that uses a variable."""
    return next(code for within, code in _CODES.items() if within in name)


def cosines(table: np.ndarray) -> dict[str, Any]:
    """The cosines of all pairs of positions of a table [X, D]; shows every second, third, ... of more than 256."""
    shown = np.arange(0, len(table), -(-len(table) // 256))
    rows = table[shown] / np.maximum(np.linalg.norm(table[shown], axis=1, keepdims=True), 1e-12)
    return {"shown": shown.tolist(), "cosines": encode(rows @ rows.T)}


def statistics(values: np.ndarray) -> dict[str, Any]:
    """The size of a variable and figures of its values; a figure is None if it is not finite, because of JSON."""
    wide = values.astype(np.float64)
    figures = {"norm": np.linalg.norm(wide), "mean": wide.mean(), "deviation": wide.std()}
    finite = {name: float(figure) if math.isfinite(figure) else None for name, figure in figures.items()}
    return {"shape": [*values.shape], "parameters": values.size, **finite}


def read_text(arguments: dict[str, Any], name: str) -> str:
    """An argument that is a string, "" by default. Raises UserError for anything else."""
    value = arguments.get(name, "")
    if not isinstance(value, str):
        raise UserError(f"{name} must be a text, not {_shown(value)}")
    _check_characters(value, name)
    return value


def _check_characters(text: str, name: str) -> None:
    """Raises UserError for a text that is not valid Unicode, which no answer could repeat."""
    if not is_utf8(text):
        raise UserError(f"{name} has half a character, {ascii(text)[:60]}: one of a pair of surrogates; write it again")


def _shown(value: Any) -> str:
    """A value as text for a message; inner lists of a deeply nested value are left out."""
    return reprlib.repr(value)[:60]


def read_number(arguments: dict[str, Any], name: str, high: int, default: int | None = None) -> int:
    """An argument that is a whole number from 0 to high. Raises UserError for anything else."""
    value = arguments.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= high:
        raise UserError(f"{name} must be a whole number from 0 to {high}, not {_shown(value)}")
    return value


def encode(values: Any) -> dict[str, Any]:
    """An array of any shape as a JSON object: exact, and in a third of the space of decimals; see page/app.js."""
    array = np.asarray(values)
    return {"shape": [*array.shape], "float32": base64.b64encode(array.astype("<f4").tobytes()).decode()}


def to_json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

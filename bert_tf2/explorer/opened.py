"""What every view needs: the model, loaded once; the arguments of requests; and arrays in JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from bert_tf2.commands import loading
from bert_tf2.explorer.options import ExplorerOptions
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checkpoint, names

Handler = Callable[[dict[str, Any]], Any]
"""Answers the arguments of a request with what JSON can hold."""


class Explorer:
    """What every view needs.

    Attributes:
      options: the settings.
      bert: the model with its tokenizer and configuration.
      other: the weights of --compare_with, or None.
      max_seq_length: the most tokens of a sentence.
    """

    def __init__(self, options: ExplorerOptions):
        self.options = options
        self.other = checkpoint.open_weights(options.compare_with) if options.compare_with else None
        self.bert = loading.load(
            options.model,
            bert_config_file=options.bert_config_file,
            vocab_file=options.vocab_file,
            do_lower_case=options.do_lower_case,
        )
        if options.max_seq_length is not None:
            self.bert.config.check_sequence_length(options.max_seq_length)
        self.max_seq_length = options.max_seq_length or self.bert.config.max_position_embeddings

    def describe(self) -> dict[str, Any]:
        """The facts about the model that every view shows, for /api/model."""
        bert = self.bert
        config = bert.config.to_dict()
        variables = names.tf1_variables(bert.model)
        return {
            "path": bert.path,
            "heads": [*bert.model.heads],
            "config": {name: value for name, value in config.items() if isinstance(value, (int, float, str))},
            "parameters": sum(int(variable.shape.num_elements()) for variable in variables.values()),
            "compare_with": self.options.compare_with,
            "texts": {name: getattr(self.options, name) or "" for name in ("text", "text_b", "other_text")},
        }


def read_text(arguments: dict[str, Any], name: str) -> str:
    """An argument that is a string, "" by default. Raises UserError for anything else."""
    value = arguments.get(name, "")
    if not isinstance(value, str):
        raise UserError(f"{name} must be a text, not {value!r:.60}")
    return value


def read_number(arguments: dict[str, Any], name: str, low: int, high: int, default: int | None = None) -> int:
    """A whole number from low to high, else raises UserError."""
    value = arguments.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise UserError(f"{name} must be a whole number from {low} to {high}, not {value!r:.60}")
    return value


def pack(values: Any) -> dict[str, Any]:
    """An array of any shape as a JSON object: exact, and in a third of the space of decimals; see page/app.js."""
    array = np.asarray(values)
    return {"shape": [*array.shape], "float32": base64.b64encode(array.astype("<f4").tobytes()).decode()}


def to_json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

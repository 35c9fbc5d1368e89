"""Finds the code that computes a picture: the file, the line, and the lines of the function around it.

The place is found by searching the source of a function for an expression, so it moves with the code. An expression
that is missing from the source is an error; `tests/explorer/test_server.py` checks every key.
"""

from __future__ import annotations

import inspect
import pathlib
import pkgutil
import textwrap
from typing import Any, NamedTuple

from bert_tf2.support.errors import UserError

_ROOT = pathlib.Path(__file__).resolve().parents[2]


class Place(NamedTuple):
    """A place where something is computed."""

    of: str  # the function, as "module:name" within the package
    expression: str  # a part of the line in the source of the function
    shapes: str = ""  # the shapes of the inputs and the outputs, in the letters of modeling.py


PLACES = {
    "tokens.words": Place("tokenization:BasicTokenizer.tokenize", "split", "text -> words"),
    "tokens.pieces": Place("tokenization:WordpieceTokenizer._longest_piece", "for", "word -> the longest entry"),
    "tokens.ids": Place("tokenization:FullTokenizer.convert_tokens_to_ids", "return", "tokens -> ids [F]"),
    "tokens.packed": Place("data.rows:pack", "segment_ids +=", "texts -> one array of F tokens"),
    "embeddings.words": Place("modeling:Embeddings.add_up", "words = tf.gather", "[B, F] -> [B, F, D]"),
    "embeddings.segments": Place("modeling:Embeddings.add_up", "segments = tf.matmul", "[B, F] -> [B, F, D]"),
    "embeddings.positions": Place("modeling:Embeddings.add_up", "position_embeddings.value[:", "[F, D]"),
    "embeddings.sum": Place("modeling:Embeddings.add_up", "words + segments + positions", "[B, F, D]"),
    "embeddings.norm": Place("modeling:Embeddings.call", "self.layer_norm(summed)", "[B, F, D] -> [B, F, D]"),
    "attention.query": Place("modeling:SelfAttention.call", "query, key, value =", "[B, F, D] -> 3 x [B, F, D]"),
    "attention.scale": Place("modeling:SelfAttention.query_key_value", "query =", "[B, F, D]"),
    "attention.heads": Place("modeling:split_heads", "tf.reshape", "[B, F, D] -> [B, N, F, H]"),
    "attention.scores": Place("modeling:attention_scores", "products =", "-> [B, N, F, T]"),
    "attention.mask": Place("modeling:mask_scores", "1.0 -", "[B, T] -> [B, 1, 1, T]"),
    "attention.softmax": Place("modeling:average_values", "tf.nn.softmax", "[B, N, F, T] -> [B, N, F, T]"),
    "attention.context": Place(
        "modeling:average_values", "value.dtype), value)", "[B, N, F, T] x [B, N, T, H] -> [B, N, F, H]"
    ),
    "attention.output": Place("modeling:after_attention", "block.attention_output(", "[B, F, D] -> [B, F, D]"),
    "attention.norm": Place("modeling:after_attention", "block.attention_norm(", "[B, F, D] -> [B, F, D]"),
    "layer_norm": Place("layers:normalize", "centered * tf", "[..., D] -> [..., D]"),
    "intermediate": Place("modeling:after_attention", "expanded =", "[B, F, D] -> [B, F, I]"),
    "gelu": Place("layers:gelu", "probability =", "any shape"),
    "output": Place("modeling:after_attention", "block.output_dense(expanded)", "[B, F, I] -> [B, F, D]"),
    "pooler": Place("modeling:BertModel.call", "pooled_output = self.pooler", "[B, D] -> [B, D]"),
    "head.gather": Place("losses:gather_indexes", "tf.gather(", "[B, F, D] -> [B * P, D]"),
    "head.transform": Place("heads:MaskedLMHead.call", "self.transform(states)", "[M, D] -> [M, D]"),
    "head.logits": Place("heads:MaskedLMHead.call", "class_scores(", "[M, D] x [D, V] -> [M, V]"),
    "head.bias": Place("heads:MaskedLMHead.call", "+ tf.cast(self.output_bias", "[V]"),
    "head.softmax": Place("losses:get_masked_lm_output", "tf.nn.log_softmax", "[M, V] -> [M, V]"),
    "head.table": Place("heads:MaskedLMModel.get_output_table", "return", "[V, D]"),
    "head.labels": Place("layers:OutputLayer.call", "class_scores(", "[..., D] -> [..., L]"),
}


def source(key: str) -> dict[str, Any]:
    """The place of a key, for the page. Raises LookupError if the expression is missing from the code.

    Returns:
      `key`, `file` (relative to the checkout), `line` (from 1), `name` (of the function), `shapes`; `lines`, the source
      of the whole function, and `first`, the number of its first line.
    """
    if key not in PLACES:
        raise UserError(f"there is no code for {key!r:.60}")
    of, expression, shapes = PLACES[key]
    found = inspect.unwrap(pkgutil.resolve_name(f"bert_tf2.{of}"))
    lines, first = inspect.getsourcelines(found)
    quotes = [index for index, line in enumerate(lines) for _ in range(line.count('"""'))]
    start = quotes[1] + 1 if len(quotes) > 1 else 1  # after the docstring
    at = next((index for index in range(start, len(lines)) if expression in lines[index]), None)
    if at is None:
        raise LookupError(f"{key}: {expression!r} is not in {of}")
    return {
        "key": key,
        "file": pathlib.Path(inspect.getsourcefile(found)).resolve().relative_to(_ROOT).as_posix(),
        "line": first + at,
        "name": of.partition(":")[2],
        "shapes": shapes,
        "first": first,
        "lines": textwrap.dedent("".join(lines)).splitlines(),
    }

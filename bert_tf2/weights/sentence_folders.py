"""How a folder of sentence-transformers makes one vector of a text: modules.json, 1_Pooling and settings say it."""

from __future__ import annotations

import os
from typing import NamedTuple

from bert_tf2.support import files
from bert_tf2.support.errors import UserError

_MODULES, _SETTINGS = "modules.json", "sentence_bert_config.json"
# The names of poolings there, old and new -> those of Bert.embed.
_POOLINGS = {"cls_token": "cls", "cls": "cls", "mean_tokens": "mean", "mean": "mean", "max_tokens": "max", "max": "max"}


class SentenceVectors(NamedTuple):
    """What a folder says."""

    pooling: str = "mean"  # of Bert.embed
    normalize: bool = False  # whether vectors get length 1
    max_seq_length: int | None = None  # tokens of a text; None if that of the model


def read(folder: str) -> SentenceVectors | None:
    """Returns how the folder of weights makes vectors, or None if sentence-transformers did not write it."""
    for root, inner in ((folder, ""), os.path.split(folder.rstrip("/"))):  # weights lie in the root or in 0_BERT
        path = files.companion(root, _MODULES)
        if path is None:
            continue
        steps = [step for step in files.read_json(path, list) if isinstance(step, dict)]
        kinds = [str(step.get("type")).rpartition(".")[2] for step in steps]
        if steps and steps[0].get("path", "") == inner and kinds[0] == "Transformer":
            return _vectors(path, kinds[1:], [os.path.join(root, str(step.get("path"))) for step in steps[1:]], folder)
    return None


def _vectors(path: str, kinds: list[str], places: list[str], folder: str) -> SentenceVectors:
    chosen, settings = [], {}
    if kinds in (["Pooling"], ["Pooling", "Normalize"]):
        pooling = files.read_json(os.path.join(places[0], "config.json"))
        chosen = [name.removeprefix("pooling_mode_") for name, value in pooling.items() if value is True]
        chosen = [name for name in [*chosen, pooling.get("pooling_mode")] if name not in ("include_prompt", None)]
        settings = files.read_json(beside) if (beside := files.companion(folder, _SETTINGS)) else {}
        problem = f"has the pooling {' and '.join(map(str, chosen)) or 'none'}"
    else:
        problem = f"has the steps {', '.join(kinds) or 'none'} behind the encoder"
    if settings.get("do_lower_case"):
        problem = "lower-cases text before the tokenizer does"
    elif len(chosen) == 1 and chosen[0] in _POOLINGS:
        longest = settings.get("max_seq_length")
        return SentenceVectors(_POOLINGS[chosen[0]], len(kinds) == 2, longest if type(longest) is int else None)
    raise UserError(
        f"{path}: {problem}, which is not known here, so vectors would be others than those of sentence-transformers;"
        " give pooling, normalize and max_seq_length to get them all the same"
    )

"""How a folder of sentence-transformers makes one vector of a text: modules.json, 1_Pooling and settings say it."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from bert_tf2.support import files
from bert_tf2.support.errors import UserError

_MODULES, _SETTINGS = "modules.json", "sentence_bert_config.json"
_OLD_POOLINGS = ("cls_token", "mean_tokens", "max_tokens")
# The names of poolings there, old and new -> those of Bert.embed.
_POOLINGS = {"cls_token": "cls", "cls": "cls", "mean_tokens": "mean", "mean": "mean", "max_tokens": "max", "max": "max"}


class SentenceVectors(NamedTuple):
    """What a folder says."""

    pooling: str = "mean"  # of Bert.embed
    normalize: bool = False  # whether vectors get length 1
    max_seq_length: int | None = None  # tokens of a text; None if that of the model


def write(folder: str, vectors: SentenceVectors, hidden_size: int) -> None:
    """Makes a folder of Hugging Face, which convert_checkpoint.py has written, one of sentence-transformers."""
    kinds = ["Transformer", "Pooling", *["Normalize"] * vectors.normalize]
    places = ["", "1_Pooling", "2_Normalize"][: len(kinds)]
    steps = [
        {"idx": number, "name": str(number), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for number, (place, kind) in enumerate(zip(places, kinds, strict=True))
    ]
    for place in places[1:]:
        files.make_directory(os.path.join(folder, place))
    modes = {f"pooling_mode_{name}": vectors.pooling == name.partition("_")[0] for name in _OLD_POOLINGS}
    files.write_json(os.path.join(folder, _MODULES), steps)
    files.write_json(os.path.join(folder, places[1], "config.json"), {"word_embedding_dimension": hidden_size, **modes})
    longest = {} if vectors.max_seq_length is None else {"max_seq_length": vectors.max_seq_length}
    files.write_json(os.path.join(folder, _SETTINGS), {**longest, "do_lower_case": False})


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
    if kinds not in (["Pooling"], ["Pooling", "Normalize"]):
        raise _foreign(path, f"has the steps {', '.join(kinds) or 'none'} behind the encoder")
    pooling = files.read_json(os.path.join(places[0], "config.json"))
    chosen = [name.removeprefix("pooling_mode_") for name, value in pooling.items() if value is True]
    chosen = [name for name in [*chosen, pooling.get("pooling_mode")] if name not in ("include_prompt", None)]
    if len(chosen) != 1 or chosen[0] not in _POOLINGS:
        raise _foreign(path, f"has the pooling {' and '.join(map(str, chosen)) or 'none'}")
    settings: dict[str, Any] = files.read_json(beside) if (beside := files.companion(folder, _SETTINGS)) else {}
    longest = settings.get("max_seq_length")
    if settings.get("do_lower_case"):
        raise _foreign(path, "lower-cases text before the tokenizer does")
    return SentenceVectors(_POOLINGS[chosen[0]], len(kinds) == 2, longest if type(longest) is int else None)


def _foreign(path: str, what: str) -> UserError:
    return UserError(
        f"{path}: {what}, which is not known here, so vectors would be others than those of sentence-transformers;"
        " give pooling, normalize and max_seq_length to get them all the same"
    )

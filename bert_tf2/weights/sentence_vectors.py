"""The files by which sentence-transformers makes a vector of a text, read and written: modules.json and others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.support.settings import check_type

# The names of poolings in sentence-transformers, old and new -> the names in Bert.embed.
_POOLINGS = {"cls_token": "cls", "cls": "cls", "mean_tokens": "mean", "mean": "mean", "max_tokens": "max", "max": "max"}


class SentenceVectors(NamedTuple):
    """The settings by which a folder of sentence-transformers makes a vector of a text."""

    pooling: str = "mean"  # of Bert.embed
    normalize: bool = False  # whether vectors get length 1
    max_seq_length: int | None = None  # tokens of a text; None for the model's largest number


class _Step(NamedTuple):
    """A step behind the encoder in modules.json."""

    kind: str
    folder: str


def _steps(folder: str) -> tuple[str, list[_Step]] | None:
    """The path of modules.json and its steps behind the encoder with weights in `folder`; None if there is no file."""
    for root, inner in ((folder, ""), os.path.split(folder.rstrip("/"))):  # weights are in the root or in 0_BERT
        path = files.companion(root, "modules.json")
        if path is None:
            continue
        rows = [row for row in files.read_json(path, list) if isinstance(row, dict)]
        steps = [
            _Step(str(row.get("type")).rpartition(".")[2], os.path.join(root, str(row.get("path")))) for row in rows
        ]
        if rows and rows[0].get("path", "") == inner and steps[0].kind == "Transformer":
            return path, steps[1:]
    return None


class Prompts(NamedTuple):
    """The texts that sentence-transformers puts before a text."""

    path: str = ""  # of the file that states the prompts
    named: Mapping[str, str] = {}
    default: str | None = None  # the name of the prompt for calls that name no prompt
    are_pooled: bool = True  # whether the tokens of a prompt count in "mean" and "max"

    def choose(self, prompt: str | None, prompt_name: str | None) -> str:
        """The prompt of a call, "" without any. Raises UserError for an unknown name, or both a prompt and a name."""
        check_type("prompt", prompt, str, optional=True)
        check_type("prompt_name", prompt_name, str, optional=True)
        if prompt is not None and prompt_name is not None:
            raise UserError(f"prompt={prompt!r:.60}, prompt_name={prompt_name!r:.60}: give one of the two")
        if prompt is not None:
            return prompt
        name = self.default if prompt_name is None else prompt_name
        if name is not None and name not in self.named:
            there = f"{self.path} defines {and_more([*self.named])}" if self.named else "the folder has no prompts"
            raise UserError(f"prompt_name={name!r:.60}: {there}; give prompt=... for a text of your own")
        return "" if name is None else self.named[name]


def read_prompts(folder: str) -> Prompts:
    """The prompts that a folder of weights states; empty if sentence-transformers did not write the folder."""
    found = _steps(folder)
    path = files.companion(os.path.dirname(found[0]), "config_sentence_transformers.json") if found else None
    if path is None:
        return Prompts()
    stated = files.read_json(path)
    named, default = stated.get("prompts") or {}, stated.get("default_prompt_name")
    is_right = isinstance(named, dict) and all(isinstance(text, str | None) for text in named.values())
    if not is_right or not isinstance(default, str | None):
        raise UserError(f"{path}: prompts must be names with texts, default_prompt_name one of the names; correct it")
    pooling = [files.companion(step.folder, "config.json") for step in found[1] if step.kind == "Pooling"]
    are_pooled = all(files.read_json(beside).get("include_prompt") is not False for beside in filter(None, pooling))
    return Prompts(path, {name: text or "" for name, text in named.items()}, default, are_pooled)


def contents(vectors: SentenceVectors, width: int, prompts: Prompts) -> dict[str, Any]:
    """The files by which sentence-transformers makes vectors of `width` numbers: path beside the weights -> content."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", **({"2_Normalize": "Normalize"} if vectors.normalize else {})}
    steps = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    modes = {f"pooling_mode_{name}": _POOLINGS[name] == vectors.pooling for name in _POOLINGS if "_" in name}
    found = {
        "modules.json": [{"idx": index, "name": str(index), **step} for index, step in enumerate(steps)],
        "sentence_bert_config.json": {"max_seq_length": vectors.max_seq_length, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": dict(prompts.named),
            "default_prompt_name": prompts.default,
            "similarity_fn_name": "cosine",
        },
        "1_Pooling/config.json": {"word_embedding_dimension": width, **modes, "include_prompt": prompts.are_pooled},
    }
    return {**found, **({"2_Normalize/config.json": {}} if vectors.normalize else {})}


def read(folder: str) -> SentenceVectors | None:
    """Returns the settings for vectors of a folder of weights, None if sentence-transformers did not write the folder.

    Raises UserError if the folder makes vectors in a way that is not known here.
    """
    found = _steps(folder)
    if found is None:
        return None
    path, steps = found
    kinds = [step.kind for step in steps]
    chosen, settings = [], {}
    if kinds in (["Pooling"], ["Pooling", "Normalize"]):
        pooling = files.read_json(os.path.join(steps[0].folder, "config.json"))
        chosen = [name.removeprefix("pooling_mode_") for name, value in pooling.items() if value is True]
        chosen = [name for name in [*chosen, pooling.get("pooling_mode")] if name not in ("include_prompt", None)]
        settings = files.read_json(beside) if (beside := files.companion(folder, "sentence_bert_config.json")) else {}
        problem = f"has the pooling {' and '.join(map(str, chosen)) or 'none'}"
    else:
        problem = f"has the steps {', '.join(kinds) or 'none'} behind the encoder"
    if settings.get("do_lower_case"):
        problem = "lower-cases text before the tokenizer does"
    elif len(chosen) == 1 and chosen[0] in _POOLINGS:
        longest = settings.get("max_seq_length")
        return SentenceVectors(_POOLINGS[chosen[0]], len(kinds) == 2, longest if type(longest) is int else None)
    raise UserError(
        f"{path}: {problem}, which is not known here, so vectors would differ from sentence-transformers' vectors;"
        " give pooling, normalize and max_seq_length to get vectors all the same"
    )

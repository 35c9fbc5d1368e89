"""Every name that a user of the reference may import exists here with the same arguments, or is in the guide.

A name exists here if the module that replaces the reference's has it and accepts the reference's arguments, with the
same names and in the same order; further arguments have defaults. Otherwise the table of its module in
docs/migrating.md, under "Your own code", must have it in its first column.
"""

import importlib
import inspect
import json
import pathlib
import re

import pytest
from small_models import REFERENCE

ROOT = pathlib.Path(__file__).resolve().parents[1]
NAMES = REFERENCE / "names.json"

# The reference's module -> the one that has its names.
MODULES = {
    **{name: name for name in ("tokenization", "modeling", "optimization")},
    "run_classifier": "finetuning.classification",
    "run_squad": "finetuning.squad",
    "run_pretraining": "heads",
    "create_pretraining_data": "pretraining",
    "extract_features": "finetuning.extract_features",
}

# The constructors of the reference's classes, which its table of names does not contain; the guide covers the others.
CONSTRUCTORS = {
    "tokenization.FullTokenizer": "vocab_file do_lower_case",
    "tokenization.BasicTokenizer": "do_lower_case",
    "tokenization.WordpieceTokenizer": "vocab unk_token max_input_chars_per_word",
    "modeling.BertConfig": "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act"
    " hidden_dropout_prob attention_probs_dropout_prob max_position_embeddings type_vocab_size initializer_range",
    "run_classifier.InputExample": "guid text_a text_b label",
    "run_classifier.PaddingInputExample": "",
    **{f"run_classifier.{name}Processor": "" for name in ("Data", "Xnli", "Mnli", "Mrpc", "Cola")},
    "run_squad.SquadExample": "qas_id question_text doc_tokens orig_answer_text start_position end_position"
    " is_impossible",
    "create_pretraining_data.TrainingInstance": "tokens segment_ids masked_lm_positions masked_lm_labels"
    " is_random_next",
    "extract_features.InputExample": "unique_id text_a text_b",
    "extract_features.InputFeatures": "unique_id tokens input_ids input_mask input_type_ids",
}


def guide() -> dict[str, str]:
    """The section of the guide for each of the reference's modules, with what holds for all, by the module's name."""
    text = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    text = text[text.index("\n## Your own code") :]
    common, *parts = re.split(r"^### `(\w+)`.*\n", text, flags=re.MULTILINE)
    return {module: common + section for module, section in zip(parts[::2], parts[1::2], strict=True)}


def told(section: str) -> set[str]:
    """The names in code style in the first cells of a section's table, methods as Class.method."""
    first_cells = re.findall(r"^\| (.*?) \|", section, flags=re.MULTILINE)
    return {
        name for cell in first_cells for code in re.findall(r"`([^`]+)`", cell) for name in re.findall(r"[\w.]+", code)
    }


def missing(module: str, entry: dict) -> list[str]:
    """The parts of a function or class of the reference that do not exist here under its name."""
    ours = getattr(importlib.import_module(f"bert_tf2.{MODULES[module]}"), entry["name"], None)
    if ours is None:
        return [entry["name"]]
    if entry["kind"] == "class":
        wanted = CONSTRUCTORS.get(f"{module}.{entry['name']}")
        if wanted is None:
            return [entry["name"]]
        assert accepts(ours, wanted.split()), entry["name"]
        return [f"{entry['name']}.{method}" for method in entry["methods"] if not hasattr(ours, method)]
    return [] if accepts(ours, entry["arguments"]) else [entry["name"]]


def accepts(function, arguments: list[str]) -> bool:
    """Whether a function (or a class) accepts these arguments and requires no others."""
    parameters = [*inspect.signature(function).parameters.values()]
    first, others = parameters[: len(arguments)], parameters[len(arguments) :]
    may_be_left_out = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [parameter.name for parameter in first] == arguments and all(
        parameter.default is not parameter.empty or parameter.kind in may_be_left_out for parameter in others
    )


@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_the_reference_is_here_or_in_the_guide(module):
    """And every module of the reference has one here, with a section in the guide."""
    entries = json.loads(NAMES.read_text())
    assert {*entries} == set(MODULES) == set(guide())
    package, _, name = f"bert_tf2.{MODULES[module]}".rpartition(".")
    alias = "" if name == module else f" as {module}"
    assert f"`from {package} import {name}{alias}`" in guide()[module]
    names = told(guide()[module])
    lacking = [(entry["name"], name) for entry in entries[module] for name in missing(module, entry)]
    assert [name for entry, name in lacking if not {name, entry} & names] == []

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
import sys

import pytest
from small_models import REFERENCE

import bert_tf2

ROOT = pathlib.Path(__file__).resolve().parents[1]

SCRIPTS = ["run_classifier", "run_squad", "run_pretraining", "create_pretraining_data", "extract_features"]
MODULES = ["tokenization", "modeling", "optimization", *SCRIPTS]

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
    "run_squad.FeatureWriter": "filename is_training",
    "create_pretraining_data.TrainingInstance": "tokens segment_ids masked_lm_positions masked_lm_labels"
    " is_random_next",
    "extract_features.InputExample": "unique_id text_a text_b",
    "extract_features.InputFeatures": "unique_id tokens input_ids input_mask input_type_ids",
}


def guide() -> dict[str, str]:
    """The section of the guide for each of the reference's modules, with the part for all, by the module's name."""
    text = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    common, *parts = re.split(r"^### `(\w+)`.*\n", text[text.index("\n## Your own code") :], flags=re.MULTILINE)
    return {module: common + section for module, section in zip(parts[::2], parts[1::2], strict=True)}


def accepts(function, arguments: list[str]) -> bool:
    """Whether a function (or a class) accepts these arguments and requires no others."""
    parameters = [*inspect.signature(function).parameters.values()]
    others = (each for each in parameters[len(arguments) :] if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD))
    names = [parameter.name for parameter in parameters[: len(arguments)]]
    return names == arguments and all(each.default is not each.empty for each in others)


def missing(module: str, entry: dict) -> list[str]:
    """The parts of a function or class of the reference that do not exist here under its name."""
    ours = getattr(importlib.import_module(f"bert_tf2.{module}"), entry["name"], None)
    if ours is not None and entry["kind"] == "class":
        wanted = CONSTRUCTORS.get(f"{module}.{entry['name']}")
        if wanted is not None:
            assert accepts(ours, wanted.split()), entry["name"]
            return [f"{entry['name']}.{method}" for method in entry["methods"] if not hasattr(ours, method)]
    elif ours is not None and accepts(ours, entry["arguments"]):
        return []
    return [entry["name"]]


@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_the_reference_is_here_or_in_the_guide(module):
    """And every module of the reference has one here, with a section in the guide."""
    entries = json.loads((REFERENCE / "names.json").read_text())
    assert {*entries} == set(MODULES) == set(guide())
    section = guide()[module]
    first_cells = " ".join(re.findall(r"^\| (.*?) \|", section, flags=re.MULTILINE))
    named = {name for code in re.findall(r"`([^`]+)`", first_cells) for name in re.findall(r"[\w.]+", code)}
    lacking = [(entry["name"], name) for entry in entries[module] for name in missing(module, entry)]
    assert [name for entry, name in lacking if not {name, entry} & named] == []


@pytest.mark.parametrize("module", SCRIPTS)
def test_a_script_has_the_modules_that_it_imports(module, monkeypatch):
    """Programs have `run_classifier.modeling.BertConfig` and `from run_squad import tokenization`."""
    monkeypatch.syspath_prepend(ROOT)
    imported = {"create_pretraining_data": ["tokenization"], "run_pretraining": ["modeling", "optimization"]}
    for name in imported.get(module, ["modeling", "tokenization"]):
        for place in (f"bert_tf2.{module}", module):
            exec(f"from {place} import {name}", content := {})
            assert content[name] is getattr(bert_tf2, name) is getattr(importlib.import_module(place), name)


@pytest.mark.parametrize("module", MODULES)
def test_a_checkout_may_be_the_folder_bert_of_a_project(module, monkeypatch, tmp_path):
    """As the reference's, which has an __init__.py: `from bert import modeling` beside its folder."""
    (tmp_path / "bert").symlink_to(ROOT)
    monkeypatch.syspath_prepend(tmp_path)
    exec(f"from bert import {module} as found", content := {})
    ours = getattr(bert_tf2, module)
    entries = json.loads((REFERENCE / "names.json").read_text())[module]
    assert all(
        getattr(content["found"], it["name"]) is getattr(ours, it["name"])
        for it in entries
        if hasattr(ours, it["name"])
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "bert"]:
        del sys.modules[name]


@pytest.mark.parametrize("module", MODULES)
def test_the_references_modules_are_imported_by_their_names(module, monkeypatch):
    """`from bert_tf2 import modeling` for `from bert import modeling`; beside the scripts `import modeling`."""
    ours = getattr(bert_tf2, module)
    assert ours is importlib.import_module(f"bert_tf2.{module}")
    monkeypatch.syspath_prepend(ROOT)
    beside = importlib.import_module(module)
    entries = json.loads((REFERENCE / "names.json").read_text())[module]
    names = {entry["name"] for entry in entries if hasattr(ours, entry["name"])}
    assert names and all(getattr(beside, name) is getattr(ours, name) for name in names)
    for place in (f"bert_tf2.{module}", module):
        exec(f"from {place} import *", all_names := {})
        assert {name for name in names if name[0] != "_"} <= all_names.keys()
    for place in (ours, beside) if module != "tokenization" else ():  # which has all names
        assert not hasattr(place, "input_fn_builder")
        with pytest.raises(AttributeError, match=rf"input_fn_builder.*migrating.*section {module}"):
            _ = place.input_fn_builder
        for name in (f"bert_tf2.{module}", module):
            with pytest.raises(ImportError, match=rf"input_fn_builder.*migrating.*section {module}"):
                exec(f"from {name} import input_fn_builder", {})

"""The properties of weights that their values do not show, and checks of the arguments against them.

The number of attention heads, the activation function, the word of each id, and whether text was lower-cased do not
affect any shape. With a wrong value the weights silently compute something else. Files beside the weights state them:

    bert_config.json, config.json                       the configuration
    vocab.txt                                           the vocabulary
    tokenizer_config.json, tokenizer.json               do_lower_case and more, for Hugging Face models
    tokenization.json                                   the same and the vocabulary's hash, for this project's
    task.json                                           what a model was fine-tuned for

Training writes them beside its checkpoints (`write`), scripts that get no other files take these (`model_files`), and
all code that loads weights compares with them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf2 import tokenization
from bert_tf2.config import DECISIVE, BertConfig, check_vocab_size, config_value, decisive_differences
from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.weights import bundle, huggingface, task_file
from bert_tf2.weights.base import CONFIG_FILE, VOCABULARY_FILE, Weights
from bert_tf2.weights.labels import LABEL_MAP_FILE, LabelMap, read_label_map
from bert_tf2.weights.text_rules import TOKENIZATION_FILE, Stated, stated_in
from bert_tf2.weights.vocabulary import check_case_of_vocabulary, check_never_split, check_special_tokens, is_cased

# The shapes of the weights show these; loading compares them. Positions that are no table can be of any number.
_SHOWN_BY_SHAPES = ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings", "type_vocab_size")
_MOST_ROUNDED_UP = 128  # by how much vocab_size is commonly rounded up, for the efficiency of a device


def model_files(path: str) -> dict[str, str]:
    """Returns the configuration and the vocabulary in a folder, or beside weights, by the names of their flags."""
    folder = path if files.is_directory(path) else os.path.dirname(path)
    configs = ("config.json", CONFIG_FILE) if huggingface.recognizes(path) else (CONFIG_FILE, "config.json")
    found = {
        "bert_config_file": next(filter(None, (files.companion(folder, name) for name in configs)), None),
        "vocab_file": files.companion(folder, VOCABULARY_FILE),
    }
    return {flag: path for flag, path in found.items() if path}


def files_in_use(output_dir: str | None, init_checkpoint: str | None) -> dict[str, str]:
    """Returns model_files of checkpoint.weights_in_use; what output_dir lacks is taken from init_checkpoint."""
    found = model_files(init_checkpoint) if init_checkpoint else {}
    return {**found, **(model_files(output_dir) if output_dir and bundle.latest_checkpoint(output_dir) else {})}


# The configuration


def stated_config(source: Weights) -> tuple[BertConfig, str] | None:
    """Returns the configuration in or beside the weights, and the file that contains it."""
    if source.config is not None:
        return source.config, source.config_file or source.path
    path = files.companion(source.folder, CONFIG_FILE)
    if path is None:
        return None
    config = BertConfig.from_json_file(path)
    task_file.check(path, decisive(config))
    return config, path


def decisive(config: BertConfig) -> dict[str, Any]:
    """The fields that decide what weights compute, and that no shape shows."""
    return {name: config_value(config, name) for name in DECISIVE if name not in _SHOWN_BY_SHAPES}


def check_config(source: Weights, config: BertConfig) -> list[str]:
    """Compares a configuration with that of the weights, in the fields that no shape shows.

    Returns messages about differences that may be intentional: fewer layers, or one of Weights.other_activations.
    """
    found = stated_config(source)
    if found is None:
        return []
    stated, path = found
    allowed = {}
    if config.hidden_act.lower() in source.other_activations:
        allowed["hidden_act"] = "the outputs differ, and which is right is not certain"
    if config.num_hidden_layers < stated.num_hidden_layers:  # with more layers, weights would be missing
        allowed["num_hidden_layers"] = "only the first layers are used"
    different = [name for name in decisive_differences(stated, config) if name not in _SHOWN_BY_SHAPES]
    if refused := [name for name in different if name not in allowed]:
        remedy = f"give --bert_config_file={path}" if path.endswith(".json") else "correct --bert_config_file"
        raise UserError(
            f"{path}: states {_listed(stated, refused)} for the weights {source.path}, but the configuration in use"
            f" says {_listed(config, refused)}, with which they compute something else; {remedy}"
        )
    return [
        f"{path}: states {_listed(stated, [name])} for the weights {source.path}, the configuration in use says"
        f" {_listed(config, [name])}: {allowed[name]}."
        for name in different
    ]


def _listed(config: BertConfig, fields: Sequence[str]) -> str:
    return " and ".join(f"{name} {config_value(config, name)}" for name in fields)


# The vocabulary, and the case of the text


def stated_text(source: Weights | None, vocab_file: str | None = None) -> Stated:
    """What files beside the weights and the vocabulary say about text: the case is the weights', the rules are its."""
    theirs = source.text if source else None
    is_beside = vocab_file is None or (source and os.path.dirname(vocab_file) == source.folder)
    ours = theirs if is_beside else stated_in(os.path.dirname(vocab_file))
    cases = [(found.do_lower_case, found.path) for found in (theirs, ours) if found]
    if source:
        cases.insert(theirs is not None, (source.do_lower_case, source.path))
    lower, path = next(((lower, path) for lower, path in cases if lower is not None), (None, ""))
    first, last = ours or theirs, theirs or ours
    if first is None:
        return Stated(path, lower, {}, "")
    differ = f"{first.path}: says how text is split, and {last.path} differs; the first counts."
    return Stated(path, lower, dict(first.rules), first.remark if first.rules == last.rules else differ)


def find_case(vocab_file: str, source: Weights | None = None) -> tuple[bool, bool]:
    """Whether to lower-case text if nobody said, and whether files state it; else it is what the entries look like."""
    lower = stated_text(source, vocab_file).do_lower_case
    return (not is_cased(_entries(vocab_file)), False) if lower is None else (lower, True)


def load_tokenizer(
    vocab_file: str,
    do_lower_case: bool | None,
    vocab_size: int | None = None,
    source: Weights | None = None,
    init_checkpoint: str | None = None,
) -> tokenization.FullTokenizer:
    """Creates the tokenizer after checking that its ids are those that the model was trained with.

    `do_lower_case`: None, if it was not given, means True. `vocab_size`: the model's, if there is one.
    `init_checkpoint`: the flag's value, for the reference's check of its release names.
    """
    lower = do_lower_case is not False
    for path in {init_checkpoint, source.path if source else None}:
        tokenization.validate_case_matches_checkpoint(lower, path)
    stated = stated_text(source, vocab_file)
    if stated.do_lower_case not in (None, lower):
        if do_lower_case is None:
            raise UserError(
                f"{stated.path}: says do_lower_case false, but text is lower-cased by default; give"
                " --do_lower_case=False (or --do_lower_case=True, to lower-case it all the same)"
            )
        said = str(stated.do_lower_case).lower()
        logging.warning("%s: says do_lower_case %s; --do_lower_case=%s counts", stated.path, said, lower)
    if stated.remark:
        logging.warning("%s", stated.remark)
    check_never_split(stated.rules.get("never_split", ()), vocab_file)
    tokenizer = tokenization.FullTokenizer(vocab_file, lower, **stated.rules)
    check_special_tokens(tokenizer.vocab, vocab_file)
    _check_rows(tokenizer, vocab_file, vocab_size)
    if stated.do_lower_case is None:
        check_case_of_vocabulary(tokenizer.vocab, vocab_file, do_lower_case)
    if source:
        check_vocabulary(source, vocab_file, tokenizer.entries)
    return tokenizer


def _check_rows(tokenizer: tokenization.FullTokenizer, vocab_file: str, vocab_size: int | None) -> None:
    if tokenizer.vocab["[PAD]"] != 0:
        logging.warning(
            "%s: [PAD] is on line %d, but padding has the id 0, as in the reference: that of %r here. It is masked",
            vocab_file, tokenizer.vocab["[PAD]"] + 1, tokenizer.inv_vocab.get(0),
        )  # fmt: skip
    if vocab_size is None:
        return
    entries = max(tokenizer.vocab.values()) + 1
    check_vocab_size(vocab_file, entries, vocab_size)
    if vocab_size - entries >= _MOST_ROUNDED_UP + entries // 100:
        logging.warning(
            "%s: only %d entries, but the model has vocab_size %d; make sure that the file is complete and the model's"
            " own, since words that are not in it become [UNK]",
            vocab_file, entries, vocab_size,
        )  # fmt: skip


def check_vocabulary(source: Weights, vocab_file: str, ours: Sequence[str] | None = None) -> None:
    """Compares a vocabulary, whose entries are `ours`, with the one that the weights were trained with, if it is known.

    If it is beside the weights, entries may be appended, be missing at the end, or replace [unused] ones, as happens
    when words are added. If only its hash is known, all entries must be equal.
    """
    ours = _entries(vocab_file) if ours is None else ours
    path, digest = source.text.record if source.text else ("", "")
    if digest == _hash(ours):
        return
    try:
        is_theirs = source.vocabulary_file() == vocab_file
        theirs = ours if is_theirs else [entry.strip() for entry in source.vocabulary() or ()]
    except UserError as error:  # the user gave another file, which cannot be compared
        logging.warning("%s", error)
        theirs = []
    if digest and digest != _hash(theirs):
        raise UserError(
            f"{vocab_file}: is not the vocabulary that the weights {source.path} were trained with, whose hash is"
            f" in {path}: ids would stand for other words; give the same --vocab_file as then"
        )
    different = [
        (number, there, here)
        for number, (there, here) in enumerate(zip(theirs, ours, strict=False), 1)
        if there != here and not there.startswith("[unused") and not here.startswith("[unused")
    ]
    if different:
        number, there, here = different[0]
        raise UserError(
            f"{vocab_file}: is not the vocabulary that lies with the weights {source.path}: {len(different)} entries"
            f" differ, the first on line {number}, {here!r} here and {there!r} there; give that vocabulary as"
            " --vocab_file, or remove it from there if it does not belong to them"
        )


def _entries(vocab_file: str) -> list[str]:
    """Reads the entries like tokenization.load_vocab, including repeated ones."""
    return [entry.strip() for entry in tokenization.read_entries(vocab_file)]


def _hash(entries: Sequence[str]) -> str:
    """Hashes the entries, so that line endings do not matter."""
    return hashlib.sha256("".join(f"{entry}\n" for entry in entries).encode()).hexdigest()


# What a model was fine-tuned for


def check_task(source: Weights, task: Mapping[str, str | bool], flag: str, other_task: bool = False) -> None:
    """Compares what weights were fine-tuned for, as task.json states it, with what they are used for.

    `task`: "task", its name, and facts about its data. `flag` names the weights. A meant difference is a warning.
    """
    stated = task_file.read(source.folder)
    if not (different := [name for name in task if stated.get(name, task[name]) != task[name]]):
        return
    then, now = (", ".join(f"{name} {json.dumps(facts[name])}" for name in different) for facts in (stated, task))
    path = os.path.join(source.folder, task_file.NAME)
    problem = f"{path}: the weights {source.path} were fine-tuned for {then}, and this call is for {now}"
    if not other_task:
        raise UserError(f"{problem}; give another {flag}, or --other_task if that is meant")
    logging.warning("%s", problem)


def load_label_map(folder: str) -> LabelMap | None:
    """Reads label_map.json, and compares it with task.json; None if it does not exist, as the reference wrote none."""
    path = files.companion(folder, LABEL_MAP_FILE)
    found = read_label_map(path) if path else None
    if found:
        task_file.check(path, {"labels": list(found.labels)})
    return found


def check_output_dir(output_dir: str, config: BertConfig, vocab_file: str | None) -> None:
    """Checks, before a training run, that `write` would not replace another model's configuration or vocabulary."""
    problem = "and would take its place there; give another --output_dir, or move the file away"
    path = os.path.join(output_dir, VOCABULARY_FILE)
    if vocab_file and files.exists(path) and _entries(path) != _entries(vocab_file):
        raise UserError(f"{path}: is another vocabulary than --vocab_file={vocab_file}, {problem}")
    path = os.path.join(output_dir, CONFIG_FILE)
    if not files.exists(path) or bundle.latest_checkpoint(output_dir):  # check_config compares that of a training run
        return
    stated = BertConfig.from_json_file(path)
    if different := decisive_differences(stated, config):
        ours = _listed(config, different)
        raise UserError(f"{path}: states {_listed(stated, different)}, but --bert_config_file says {ours}, {problem}")


def write(
    folder: str,
    config: BertConfig,
    tokenizer: tokenization.FullTokenizer | None = None,
    vocab_file: str | None = None,
    task: Mapping[str, Any] | None = None,
) -> None:
    """Writes bert_config.json, vocab.txt, tokenization.json and task.json beside the checkpoints of a training run.

    Files that say the same are kept. `tokenizer`, `vocab_file`: both or none. `task`: see task_file.content.
    """
    path = os.path.join(folder, CONFIG_FILE)
    if not files.exists(path) or decisive_differences(BertConfig.from_json_file(path), config):
        files.write_text(path, config.to_json_string())
    if tokenizer is not None:
        lower, entries = tokenizer.basic_tokenizer.do_lower_case, tokenizer.entries
        beside = os.path.join(folder, VOCABULARY_FILE)
        if not files.exists(beside) or _entries(beside) != entries:
            files.copy(vocab_file, beside)
        files.write_text(os.path.join(folder, TOKENIZATION_FILE), record_of(lower, entries, tokenizer.rules))
    if task is not None:
        files.write_json(os.path.join(folder, task_file.NAME), task)


def record_of(
    do_lower_case: bool | None, vocabulary: Sequence[str] | None, rules: Mapping[str, Any] | None = None
) -> str:
    """Returns the text of a tokenization.json; `rules` are FullTokenizer's, and None is a case that nobody stated."""
    content = {**({} if do_lower_case is None else {"do_lower_case": do_lower_case}), **(rules or {})}
    if vocabulary is not None:
        entries = [entry.strip() for entry in vocabulary]
        content |= {"vocab_entries": len(entries), "vocab_sha256": _hash(entries)}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

"""The files beside the weights of a model, and the checks before files are written into a folder.

A training run writes bert_config.json, vocab.txt, tokenization.json and task.json beside its checkpoints
(`write_companions`); a model in Python writes a checkpoint with the same files (`save`). Both refuse a folder that
holds anything else, and only one process writes into a folder at a time (`output_lock`).
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bert_tf2 import tokenization
from bert_tf2.config import DECISIVE, BertConfig, config_value, decisive_differences
from bert_tf2.support import files, output_lock
from bert_tf2.support.errors import UserError
from bert_tf2.weights import bundle, names, task_file
from bert_tf2.weights.base import CONFIG_FILE, VOCABULARY_FILE
from bert_tf2.weights.sources import WEIGHTS
from bert_tf2.weights.task_file import LABEL_MAP_FILE, LabelMap, save_label_map
from bert_tf2.weights.text_rules import TOKENIZATION_FILE, entries_of, record_of

if TYPE_CHECKING:
    import tensorflow as tf

_OF_TRAINING = re.compile(r"model\.ckpt-\d+\.training\.json|measure\.json")  # see training.saver


def check_output_dir(output_dir: str, config: BertConfig, vocab_file: str | None) -> None:
    """Raises UserError, before a training run, if `write_companions` would replace files of another model."""
    problem = "and would take its place there; give another --output_dir, or move the file away"
    path = os.path.join(output_dir, VOCABULARY_FILE)
    if vocab_file and files.exists(path) and entries_of(path) != entries_of(vocab_file):
        raise UserError(f"{path}: is another vocabulary than --vocab_file={vocab_file}, {problem}")
    path = os.path.join(output_dir, CONFIG_FILE)
    if not files.exists(path) or bundle.latest_checkpoint(output_dir):  # beside a checkpoint, check_config compares it
        return
    stated = BertConfig.from_json_file(path)
    for name in decisive_differences(stated, config):
        said = f"states {name} {config_value(stated, name)}, and --bert_config_file {config_value(config, name)}"
        raise UserError(f"{path}: {said}, {problem}")


def write_companions(
    folder: str,
    config: BertConfig,
    tokenizer: tokenization.FullTokenizer | None = None,
    vocab_file: str | None = None,
    task: Mapping[str, Any] | None = None,
) -> None:
    """Writes bert_config.json, vocab.txt, tokenization.json and task.json beside the checkpoints of a training run.

    Files with the same meaning are kept. Give both `tokenizer` and `vocab_file`, or neither. `task`: see
    task_file.content.
    """
    path = os.path.join(folder, CONFIG_FILE)
    if not files.exists(path) or decisive_differences(BertConfig.from_json_file(path), config):
        files.write_text(path, config.to_json_string())
    if tokenizer is not None:
        beside = os.path.join(folder, VOCABULARY_FILE)
        if not files.exists(beside) or entries_of(beside) != tokenizer.entries:
            files.write_text(beside, files.read_text(vocab_file))
        record = record_of(tokenizer.basic_tokenizer.do_lower_case, tokenizer.rules)
        files.write_text(os.path.join(folder, TOKENIZATION_FILE), record)
    if task is not None:
        files.write_json(os.path.join(folder, task_file.NAME), task)


def save(
    folder: str,
    variables: Mapping[str, tf.Variable],
    step: int,
    config: BertConfig,
    tokenizer: tokenization.FullTokenizer,
    label_map: LabelMap | None = None,
    task: Mapping[str, Any] | None = None,
) -> None:
    """Writes a checkpoint of a model, with the files that scripts and `load` need; `task`: see task_file.content.

    The folder may hold an earlier checkpoint of the same model with the same task and labels. Raises UserError if it
    holds other weights or a training run's checkpoints, or if another process writes there.
    """
    files.make_directory(folder)
    bundle.recover(folder)  # an earlier process may have been killed before it wrote the file that names its checkpoint
    with output_lock.locked(folder):
        for problem in _of_another_model(folder, variables, config, tokenizer, label_map, task):
            raise UserError(f"{folder}: {problem}; give the name of another folder")
        with tempfile.TemporaryDirectory() as beside:
            vocab_file = os.path.join(beside, VOCABULARY_FILE)
            files.write_text(vocab_file, "".join(f"{entry}\n" for entry in tokenizer.entries))
            write_companions(folder, config, tokenizer, vocab_file, task)
        if label_map:
            save_label_map(folder, label_map)
        bundle.CheckpointFolder(folder).save(variables, step)


def _of_another_model(
    folder: str,
    variables: Mapping[str, tf.Variable],
    config: BertConfig,
    tokenizer: tokenization.FullTokenizer,
    label_map: LabelMap | None,
    task: Mapping[str, Any] | None,
) -> Iterator[str]:
    """Yields a phrase for each file of a folder which shows that the folder is not an earlier copy of the model."""
    present = files.list_directory(folder)
    newest = bundle.latest_checkpoint(folder)
    for name in present:
        if _OF_TRAINING.fullmatch(name):
            yield f"holds a training ({name}), whose checkpoints and files must not change"
        elif WEIGHTS.fullmatch(name) and not (newest and bundle.is_of_training(name)):
            yield f"holds other weights ({name})"
    if newest:
        there = bundle.Checkpoint(newest).shapes
        if any(map(names.is_optimizer_state, there.keys() - {names.GLOBAL_STEP})):
            yield f"holds a training ({os.path.basename(newest)} has the optimizer's state), which must not change"
        shapes = {name: [*variable.shape] for name, variable in variables.items()}
        if {name: shape for name, shape in there.items() if name != names.GLOBAL_STEP} != shapes:
            yield f"holds another model ({os.path.basename(newest)} has other variables)"
    rules = record_of(tokenizer.basic_tokenizer.do_lower_case, tokenizer.rules)
    compared: dict[str, tuple[Any, Callable[[str], Any]]] = {  # file -> the content for this model, and the reader
        CONFIG_FILE: (_decisive(config), lambda path: _decisive(BertConfig.from_json_file(path))),
        VOCABULARY_FILE: (tokenizer.entries, entries_of),
        TOKENIZATION_FILE: (json.loads(rules), files.read_json),
        LABEL_MAP_FILE: (label_map, task_file.read_label_map),
        task_file.NAME: (_purpose(task or {}), lambda path: _purpose(files.read_json(path))),
    }
    for name, (ours, read) in compared.items():
        if (path := files.companion(folder, name)) and read(path) != ours:
            yield f"holds another model, or a model for another task ({name} differs)"


def _decisive(config: BertConfig) -> dict[str, Any]:
    return {name: config_value(config, name) for name in DECISIVE}


def _purpose(task: Mapping[str, Any]) -> dict[str, Any]:
    """The purpose of a model in a task.json: its content without the settings, which another `fit` may change."""
    return {name: value for name, value in task.items() if name not in (task_file.SETTINGS, task_file.MADE_WITH)}

"""The files beside the weights of a model: found, compared with the arguments of a call, and written.

The number of attention heads and the activation function do not affect any shape. With a wrong value the weights
silently compute something else. Files beside the weights state these settings, and how text was split in training:

    bert_config.json, config.json                       the configuration
    vocab.txt, tokenization.json, tokenizer*.json       see `text_rules`
    label_map.json, task.json                           see `task_file`

Scripts use these files unless other files are given, and all code that loads weights compares its arguments with them.
All code that saves a model writes them (`ModelFiles`), and refuses a folder that holds anything else. Only one process
writes into a folder at a time (`output_lock`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import logging

from bert_tf2.config import SHOWN_BY_SHAPES, BertConfig, config_value, decisive_differences, not_in_shapes
from bert_tf2.support import files, output_lock
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.weights import bundle, huggingface, names, sentence_vectors, task_file
from bert_tf2.weights.base import CONFIG_FILE, VOCABULARY_FILE, Weights
from bert_tf2.weights.sentence_vectors import Prompts, SentenceVectors
from bert_tf2.weights.sources import WEIGHTS
from bert_tf2.weights.task_file import LABEL_MAP_FILE, LabelMap
from bert_tf2.weights.text_rules import TOKENIZATION_FILE, entries_of, is_cased, record_of

if TYPE_CHECKING:
    import keras

_OF_TRAINING = re.compile(r"model\.ckpt-\d+\.training\.json|measure\.json")  # see training.saver


# Finding


def model_files(path: str) -> dict[str, str]:
    """Returns the configuration and the vocabulary in a folder, or beside weights, by the names of their flags."""
    folder = files.folder_of(path)
    configs = huggingface.CONFIGS if huggingface.recognizes(path) else reversed(huggingface.CONFIGS)
    found = {
        "bert_config_file": next(filter(None, (files.companion(folder, name) for name in configs)), None),
        "vocab_file": files.companion(folder, VOCABULARY_FILE),
    }
    return {flag: path for flag, path in found.items() if path}


def files_in_use(output_dir: str | None, init_checkpoint: str | None) -> dict[str, str]:
    """Returns model_files of checkpoint.weights_in_use; files that output_dir lacks are taken from init_checkpoint.

    The weights in output_dir need not be readable, because settings are resolved before a run repairs its folder.
    """
    found = model_files(init_checkpoint) if init_checkpoint else {}
    return {**found, **(model_files(output_dir) if output_dir and bundle.has_checkpoints(output_dir) else {})}


def stated_config(source: Weights) -> tuple[BertConfig, str] | None:
    """Returns the configuration in or beside the weights, and the file that contains it; None if it is missing."""
    if source.config is not None:
        return source.config, source.config_file or source.path
    path = model_files(source.path).get("bert_config_file")
    if path is None:
        return None
    config = BertConfig.from_json_file(path)
    task_file.check(path, not_in_shapes(config))
    return config, path


def find_config(source: Weights, bert_config_file: str | os.PathLike[str] | None) -> BertConfig:
    """Returns the configuration in a given file, or in or beside the weights. Raises UserError if it is missing."""
    if bert_config_file is not None:
        return BertConfig.from_json_file(os.fspath(bert_config_file))
    if found := stated_config(source):
        return found[0]
    raise UserError(
        f"{source.path}: no configuration is found beside the weights ({CONFIG_FILE} or config.json); copy it there,"
        " or give its path as --bert_config_file"
    )


# Comparing


def with_blocks(source: Weights, blocks: Sequence[int], name: str) -> Weights:
    """The weights of a model that has these blocks of `source`, in this order, and all of its other variables.

    Raises UserError, which begins with the name of the setting, for a block that `source` lacks.
    """
    count = names.num_layers(source.shapes)
    if wrong := [block for block in blocks if not 0 <= block < count]:
        raise UserError(f"{name}: {source.path} has no block {wrong[0]}; its blocks are 0-{count - 1}")
    found = source.under(names.of_blocks(source.shapes, blocks))
    if stated := stated_config(source):
        found.config, found.config_file = dataclasses.replace(stated[0], num_hidden_layers=len(blocks)), stated[1]
    return found


def check_config(source: Weights, config: BertConfig, continues: bool = False) -> list[str]:
    """Compares a configuration with the weights' configuration.

    Returns messages about differences that may be intentional: fewer layers, or one of Weights.other_activations.
    Raises UserError for other differences that no shape shows. If the weights do not fit, this function raises
    UserError for the sizes, too: a size is understood sooner than the shapes of variables.

    `continues`: whether the weights are of a run in --output_dir that continues, and that needs all layers.
    """
    stated, path = stated_config(source) or (config, "")
    different = decisive_differences(stated, config)
    then, now = ({name: config_value(each, name) for name in different} for each in (stated, config))
    rows = names.encoder(config.num_hidden_layers, pooler=False)
    misfits = any(names.misfits(names.shapes_of(rows, config), source.shapes, names.is_encoder))
    # The message about the shapes has the remedy for tables that are too short.
    if {*different} <= {"vocab_size", "max_position_embeddings"} and all(now[name] > then[name] for name in different):
        misfits = continues
    remedy = f"give --bert_config_file={path}" if path.endswith(".json") else "correct --bert_config_file"
    remedy += ", or another --output_dir" if continues else ""
    remarks = []
    for name in different:
        difference = f"{path}: states {name} {then[name]} for the weights {source.path}"
        difference += f", the configuration in use says {now[name]}"
        if name == "num_hidden_layers" and now[name] < then[name] and not continues:
            remarks.append(f"{difference}: only the first layers are used.")
        elif name == "hidden_act" and now[name] in source.other_activations:
            remarks.append(f"{difference}: the outputs differ, and it is not certain which activation is right.")
        elif name not in SHOWN_BY_SHAPES and name != "num_hidden_layers":
            raise UserError(f"{difference}, so the outputs would be wrong; {remedy}")
        elif misfits or name == "num_hidden_layers":
            raise UserError(f"{difference}; {remedy}")
    return remarks


def check_task(source: Weights, task: Mapping[str, str | bool], flag: str, other_task: bool = False) -> None:
    """Compares the task of fine-tuned weights, which task.json states, with the task for which they are used.

    `task`: the key "task" with its name, and facts about its data. `flag`: the flag that names the weights. Raises
    UserError if they differ; with `other_task`, logs a warning instead.
    """
    stated = task_file.read(source.folder)
    if not (different := [name for name in task if stated.get(name, task[name]) != task[name]]):
        return
    then, now = (", ".join(f"{name} {json.dumps(facts[name])}" for name in different) for facts in (stated, task))
    path = os.path.join(source.folder, task_file.NAME)
    problem = f"{path}: the weights {source.path} were fine-tuned for {then}, and this call is for {now}"
    if not other_task:
        version = "version_2_with_negative"  # the only fact that is a flag
        remedy = f"--{version}={json.dumps(stated[version])}, or " if version in different else ""
        raise UserError(f"{problem}; give {remedy}another {flag}, or --other_task if this is intended")
    logging.warning("%s", problem)


def check_output_dir(output_dir: str, config: BertConfig, vocab_file: str | None) -> None:
    """Raises UserError, before a training run, if `ModelFiles.write` would replace files of another model."""
    problem = "and would take its place there; give another --output_dir, or move the file away"
    path = os.path.join(output_dir, VOCABULARY_FILE)
    if vocab_file and files.exists(path) and entries_of(path) != entries_of(vocab_file):
        raise UserError(f"{path}: is another vocabulary than --vocab_file={vocab_file}, {problem}")
    path = os.path.join(output_dir, CONFIG_FILE)
    if not files.exists(path) or bundle.latest_checkpoint(output_dir):  # beside a checkpoint, check_config compares it
        return
    stated = BertConfig.from_json_file(path)
    for name in decisive_differences(stated, config):
        difference = f"states {name} {config_value(stated, name)}, and --bert_config_file {config_value(config, name)}"
        raise UserError(f"{path}: {difference}, {problem}")


# Writing


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """The content of the files beside the weights of a model."""

    config: BertConfig
    vocabulary: Sequence[str] | None = None  # the entries; None if they are unknown
    do_lower_case: bool | None = None  # None if neither a user nor a file states the case
    rules: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # see FullTokenizer
    labels: LabelMap | None = None
    task: Mapping[str, Any] | None = None  # see task_file.content

    @classmethod
    def of(
        cls,
        config: BertConfig,
        tokenizer: FullTokenizer | None,
        labels: LabelMap | None,
        task: Mapping[str, Any] | None,
    ) -> ModelFiles:
        text = (tokenizer.entries, tokenizer.basic_tokenizer.do_lower_case, tokenizer.rules) if tokenizer else ()
        return cls(config, *text, labels=labels, task=task)

    @property
    def lowers_case(self) -> bool:
        """Whether text is lower-cased: as stated, or else as the vocabulary suggests."""
        if self.do_lower_case is not None or self.vocabulary is None:
            return self.do_lower_case is not False
        return not is_cased([entry.strip() for entry in self.vocabulary])

    def texts(self) -> dict[str, str]:
        """Returns the text of each file, by its name."""
        texts = {CONFIG_FILE: self.config.to_json_string()}
        if self.vocabulary is not None:
            texts[VOCABULARY_FILE] = "".join(f"{entry}\n" for entry in self.vocabulary)
        if self.do_lower_case is not None or self.rules:  # a recorded guess would later look like a fact
            texts[TOKENIZATION_FILE] = record_of(self.do_lower_case, self.rules)
        if self.labels:
            texts[LABEL_MAP_FILE] = self.labels.to_json_string()
        if self.task:
            texts[task_file.NAME] = files.json_text(self.task)
        return texts

    def fits(self, path: str) -> bool:
        """Whether an existing file, which has the name of a file beside weights, belongs to this model, too."""
        name = os.path.basename(path)
        if name == CONFIG_FILE:
            return not decisive_differences(BertConfig.from_json_file(path), self.config)
        if name == VOCABULARY_FILE:
            return entries_of(path) == [entry.strip() for entry in self.vocabulary or ()]
        if name == TOKENIZATION_FILE:
            return files.read_json(path) == json.loads(record_of(self.do_lower_case, self.rules))
        if name == LABEL_MAP_FILE:
            return task_file.read_label_map(path) == self.labels
        return _purpose(files.read_json(path)) == _purpose(self.task or {})

    def write(self, folder: str) -> None:
        """Writes the files. A configuration and a vocabulary that fit may be a user's own, and are kept."""
        for name, text in self.texts().items():
            path = os.path.join(folder, name)
            if name not in (CONFIG_FILE, VOCABULARY_FILE) or not files.exists(path) or not self.fits(path):
                files.write_text(path, text)


def _purpose(task: Mapping[str, Any]) -> dict[str, Any]:
    """The purpose of a model in a task.json: its content without the settings, which another `fit` may change."""
    return {name: value for name, value in task.items() if name not in (task_file.SETTINGS, task_file.MADE_WITH)}


def save(
    folder: str,
    model: keras.Model,
    step: int,
    tokenizer: FullTokenizer,
    labels: LabelMap | None,
    task: Mapping[str, Any] | None,
) -> None:
    """Writes a checkpoint of a model, with the files that scripts and `load` need; `task`: see task_file.content.

    The folder may hold an earlier checkpoint of the same model with the same task and labels. Raises UserError if it
    holds other weights or a training run's checkpoints, or if another process writes there.
    """
    variables, beside = names.tf1_variables(model), ModelFiles.of(model.config, tokenizer, labels, task)
    shapes = {name: [*variable.shape] for name, variable in variables.items()}
    bundle.recover(folder)  # an earlier process may have been killed before it wrote the file that names its checkpoint
    with output_lock.locked(folder):
        for problem in _of_another_model(folder, shapes, beside):
            raise UserError(f"{folder}: {problem}; give the name of another folder")
        beside.write(folder)
        bundle.CheckpointFolder(folder).save(variables, step)


def save_vectors(
    folder: str, model: keras.Model, tokenizer: FullTokenizer, vectors: SentenceVectors, prompts: Prompts
) -> None:
    """Writes a folder of sentence-transformers, whose weights are in Hugging Face's layout.

    The folder may hold an earlier copy of the same model. Raises UserError if it holds other weights, or is not local.
    """
    if files.is_remote(folder):
        raise UserError(f"{folder}: this layout is written to local folders only; write it there and copy it")
    variables, beside = names.tf1_variables(model), ModelFiles.of(model.config, tokenizer, None, None)
    shapes = {name: [*variable.shape] for name, variable in variables.items()}
    with output_lock.locked(folder):
        if not _is_copy(folder, shapes, beside, vectors):
            raise UserError(f"{folder}: holds another model; give the name of another folder")
        for name, content in sentence_vectors.contents(vectors, model.config.hidden_size, prompts).items():
            files.write_json(os.path.join(folder, name), content)
        arrays = ((name, variable.numpy()) for name, variable in variables.items())
        huggingface.write_folder(folder, shapes, arrays, beside)


def _is_copy(folder: str, shapes: Mapping[str, list[int]], beside: ModelFiles, vectors: SentenceVectors) -> bool:
    """Whether a folder holds no model, or an earlier copy of the model that `save_vectors` is to write."""
    present, weights = files.list_directory(folder), huggingface.WEIGHTS[0]
    others = (CONFIG_FILE, LABEL_MAP_FILE, task_file.NAME, "checkpoint")
    if any((WEIGHTS.fullmatch(name) and name != weights) or name in others for name in present):
        return False
    if weights not in present:
        return "config.json" not in present
    there = huggingface.HuggingFaceFolder(folder)
    same = there.shapes == shapes and not decisive_differences(there.config, beside.config)
    same = same and there.vocabulary() == [*beside.vocabulary]
    return same and sentence_vectors.read(folder) == vectors


def _of_another_model(folder: str, shapes: Mapping[str, list[int]], beside: ModelFiles) -> Iterator[str]:
    """Yields a phrase for each file of a folder which shows that the folder is not an earlier copy of the model."""
    newest = bundle.latest_checkpoint(folder)
    for name in files.list_directory(folder):
        if _OF_TRAINING.fullmatch(name):
            yield f"holds a training ({name}), whose checkpoints and files must not change"
        elif WEIGHTS.fullmatch(name) and not (newest and bundle.is_of_training(name)):
            yield f"holds other weights ({name})"
    if newest:
        there = bundle.Checkpoint(newest).shapes
        if any(map(names.is_optimizer_state, there.keys() - {names.GLOBAL_STEP})):
            yield f"holds a training ({os.path.basename(newest)} has the optimizer's state), which must not change"
        if {name: shape for name, shape in there.items() if name != names.GLOBAL_STEP} != shapes:
            yield f"holds another model ({os.path.basename(newest)} has other variables)"
    for name in (CONFIG_FILE, VOCABULARY_FILE, TOKENIZATION_FILE, LABEL_MAP_FILE, task_file.NAME):
        if (path := files.companion(folder, name)) and not beside.fits(path):
            yield f"holds another model, or a model for another task ({name} differs)"

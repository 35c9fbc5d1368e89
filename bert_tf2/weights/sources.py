"""Opens weights of any kind, and compares the files beside the weights with the arguments of a call.

The number of attention heads and the activation function do not affect any shape. With a wrong value the weights
silently compute something else. Files beside the weights state these settings, and how text was split in training:

    bert_config.json, config.json                       the configuration
    vocab.txt, tokenization.json, tokenizer*.json       see `text_rules`
    label_map.json, task.json                           see `task_file`

Code that saves a model writes these files beside its weights (`model_folder`), scripts use them unless other files are
given (`model_files`), and all code that loads weights compares its arguments with them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from absl import logging

from bert_tf2.config import DECISIVE, BertConfig, config_value, decisive_differences
from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.weights import bundle, huggingface, keras_files, model_garden, names, task_file
from bert_tf2.weights.base import CONFIG_FILE, VOCABULARY_FILE, Weights

Model = TypeVar("Model")

# The shapes of the weights show these sizes, and loading compares shapes.
_SHOWN_BY_SHAPES = ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings", "type_vocab_size")
WEIGHTS = re.compile(r".*\.(index|keras|h5|safetensors|bin)|saved_model\.pb|model\.onnx")
"""The names of files that hold weights, or lead to them."""
EXPORT_INFO_FILE = "model_info.json"
"""The description of an exported model, in the folder of its version."""

_KINDS = (
    "a TensorFlow checkpoint (its prefix, its folder or one of its files), a Hugging Face folder (config.json with"
    " model.safetensors or pytorch_model.bin), a SavedModel of a BERT encoder, a .keras file"
)


# Files of other kinds of weights: patterns of names in a folder -> description, with the remedy.
_OTHERS = {
    r"adapter_(config\.json|model\.\w+)": "an adapter (LoRA), which changes other weights; merge them with peft"
    " (merge_and_unload) and save the result (save_pretrained)",
    r"(pytorch_model\.bin|model\.safetensors)\.index\.json": "the index of weights in several files; let transformers"
    " save them in one: BertModel.from_pretrained(FOLDER).save_pretrained(OTHER)",
    r"(pytorch_)?model\.\w+\.(safetensors|bin)": "a variant of the weights; give the name of that file",
    r"\d_(BERT|Transformer)": "the parts of a sentence-transformers model; give the name of that folder",
    r"tf_model\.h5": "weights of transformers for Keras 2; let transformers 4 save them again (from_tf=True)",
    r"flax_model\.msgpack": "weights of transformers for Flax; let transformers 4 save them again (from_flax=True)",
    r"\d+": "an exported model; give the checkpoint from which it was made, or use it with bert_tf2.exporting.load",
    r"snapshots|models--.+": "the cache of Hugging Face's hub; give the name of a folder in its snapshots",
}


def _of_another_kind(folder: str) -> str:
    """Returns a phrase about a folder's weights that cannot be read, with the remedy; "" if it has no known kind."""
    present = [name.strip("/") for name in files.list_directory(folder)]
    found = (f"holds {name}, {what}" for kind, what in _OTHERS.items() for name in present if re.fullmatch(kind, name))
    return next(found, "")


def _check_links(path: str) -> None:
    """Raises UserError if a file of local weights is a pipe, or a link to a missing file."""
    if not files.is_remote(path):
        inside = [name for name in files.list_directory(path) if WEIGHTS.fullmatch(name) or name == "checkpoint"]
        for name in inside or [""]:
            files.companion(*(os.path.split(path) if not name else (path, name)))


def open_weights(path: str) -> Weights:
    """Opens weights of any kind for reading.

    `path`: the prefix, folder or a file of a TensorFlow 1 checkpoint; a folder in Hugging Face's layout, or its weights
    file; a TensorFlow 2 checkpoint or SavedModel of Model Garden's encoder; a Keras file of this project's models, or a
    folder with one such file. Raises UserError for anything else, and for damaged files.
    """
    _check_links(path)
    if path.endswith(keras_files.ENDING) and not files.is_directory(path):
        return keras_files.KerasFile(path)
    if from_huggingface := huggingface.recognizes(path):
        if files.is_directory(path) and (prefixes := bundle.prefixes_in(path)):
            raise UserError(
                f"{path}: holds both a TensorFlow checkpoint and a Hugging Face model; name one file, {prefixes[0]}"
                f" say, or {from_huggingface}"
            )
        return huggingface.HuggingFaceFolder(path)
    if any(files.exists(os.path.join(folder, EXPORT_INFO_FILE)) for folder in (path, os.path.dirname(path))):
        raise UserError(
            f"{path}: is an exported model, which is not read as weights; give the checkpoint from which it was made,"
            " or use it with bert_tf2.exporting.load or a server"
        )
    if folder := model_garden.saved_model_folder(path):
        return model_garden.ObjectCheckpoint(bundle.Checkpoint(os.path.join(folder, "variables", "variables")), folder)
    in_keras = [os.path.join(path, name) for name in files.list_directory(path) if name.endswith(keras_files.ENDING)]
    if len(in_keras) == 1 and not bundle.prefixes_in(path):
        return keras_files.KerasFile(in_keras[0])
    try:
        prefix = bundle.find_prefix(path)
    except UserError as error:
        if in_keras:
            raise UserError(f"{path}: holds several files of Keras, name one of them: {', '.join(in_keras)}") from error
        if other := _of_another_kind(path):
            raise UserError(f"{path}: {other}") from error
        if not files.exists(path):
            raise UserError(
                f"{error}; a model at Hugging Face's hub has a name like google-bert/bert-base-uncased"
            ) from error
        if not files.is_directory(path):
            files.expect_kind(path, f"weights; these can be read: {_KINDS}")
        raise UserError(f"{error}; these can be read: {_KINDS}") from error
    opened = bundle.Checkpoint(prefix)
    return model_garden.ObjectCheckpoint(opened) if opened.is_object_based else opened


def despite_saving(path: str, read: Callable[[], Model]) -> Model:
    """Calls `read` and retries if a running training has replaced the checkpoint in the folder meanwhile."""
    while True:
        before = bundle.read_state(path)
        try:
            return read()
        except UserError:
            if bundle.read_state(path) in ("", before):
                raise


def check_fit(source: Weights, wanted: Mapping[str, Sequence[int]]) -> None:
    """Raises UserError if weights lack a wanted variable of the encoder, or have a wanted variable in another shape."""
    names.check_encoder(source.path, source.shapes)
    problems = [*names.misfits(wanted, source.shapes, names.is_encoder)]
    refuse(source, problems, "Is it a checkpoint of this configuration, and of this task?")


def refuse(source: Weights, problems: Sequence[str], advice: str) -> None:
    if problems:
        raise UserError(f"{source.path}: does not fit the model: {and_more(problems, 3, '; ')}. {advice}")


# The files beside weights


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
    task_file.check(path, decisive(config))
    return config, path


def find_config(source: Weights, bert_config_file: str | os.PathLike[str] | None) -> BertConfig:
    """Returns the configuration in a given file, or in or beside the weights. Raises UserError if it is missing."""
    if bert_config_file is not None:
        return BertConfig.from_json_file(os.fspath(bert_config_file))
    if found := stated_config(source):
        return found[0]
    raise UserError(
        f"{source.path}: no configuration is found beside the weights ({CONFIG_FILE} or config.json); give its path as"
        " bert_config_file"
    )


def decisive(config: BertConfig) -> dict[str, Any]:
    """The fields on which the outputs of weights depend and that no shape shows."""
    return {name: config_value(config, name) for name in DECISIVE if name not in _SHOWN_BY_SHAPES}


def check_config(source: Weights, config: BertConfig) -> list[str]:
    """Compares a configuration with the weights' configuration, in the fields that no shape shows.

    Returns messages about differences that may be intentional: fewer layers, or one of Weights.other_activations.
    Raises UserError for other differences.
    """
    stated, path = stated_config(source) or (config, "")
    remarks = []
    for name in decisive_differences(stated, config):
        then, now = config_value(stated, name), config_value(config, name)
        said = f"{path}: states {name} {then} for the weights {source.path}, the configuration in use says {now}"
        if name == "num_hidden_layers" and now < then:  # with more layers, weights would be missing
            remarks.append(f"{said}: only the first layers are used.")
        elif name == "hidden_act" and now in source.other_activations:
            remarks.append(f"{said}: the outputs differ, and it is not certain which activation is right.")
        elif name not in _SHOWN_BY_SHAPES:
            remedy = f"give --bert_config_file={path}" if path.endswith(".json") else "correct --bert_config_file"
            raise UserError(f"{said}, so the outputs would be wrong; {remedy}")
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
        raise UserError(f"{problem}; give another {flag}, or --other_task if this is intended")
    logging.warning("%s", problem)

"""The weights of a model: reads any kind of checkpoint, and writes checkpoints with the reference's variable names.

`names` defines the names, `bundle` handles TensorFlow's files, and `sources` selects the readers of other files.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from bert_tf2 import heads, modeling
from bert_tf2.config import BertConfig
from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.weights import model_folder, names, sources
from bert_tf2.weights.base import Weights
from bert_tf2.weights.bundle import Checkpoint, latest_checkpoint
from bert_tf2.weights.bundle import save as save  # the documents name `checkpoint.save`
from bert_tf2.weights.names import tf1_variables
from bert_tf2.weights.sources import open_weights
from bert_tf2.weights.task_file import LabelMap


def used_variables(model: keras.Model) -> dict[str, tf.Variable]:
    """Returns the tf1_variables on which the model's loss and outputs depend."""
    unused = () if model.uses_pooler else {row.reference for row in names.POOLER}
    return {name: variable for name, variable in tf1_variables(model).items() if name not in unused}


def trained_variables(model: keras.Model) -> dict[str, tf.Variable]:
    """Returns the used_variables that are not frozen. They have gradients and slots.

    `layer.trainable = False` freezes a layer, `variable.trainable = False` a variable, as everywhere in Keras. Freeze
    variables before a Trainer is created.
    """
    trainable = {id(variable.value) for variable in model.trainable_variables}
    return {name: variable for name, variable in used_variables(model).items() if id(variable) in trainable}


def _shapes(variables: Mapping[str, tf.Variable]) -> dict[str, list[int]]:
    return {name: variable.shape.as_list() for name, variable in variables.items()}


def initialize(model: keras.Model, init_checkpoint: str | Weights) -> str:
    """Loads initial weights into a model, from opened weights, or from any path that sources.open_weights accepts.

    Returns one line with the number of loaded variables, the names of fresh variables, and the parts that are not used.
    """
    source = open_weights(init_checkpoint) if isinstance(init_checkpoint, str) else init_checkpoint
    variables = tf1_variables(model)
    fresh = [name for name in variables if name not in source.shapes]
    for sentence in model_folder.check_config(source, model.config):
        logging.warning("%s", sentence)
    sources.check_fit(source, _shapes(variables))
    for remark in source.remarks:
        logging.info("%s: %s", source.path, remark)
    for name, value in source.arrays(name for name in variables if name in source.shapes):
        variables[name].assign(value)
    unused = [name for name in names.without_optimizer(source.shapes) if name not in variables]
    parts = collections.Counter("/".join(name.split("/")[:2]) for name in unused)
    unused_parts = [part if part in unused else f"{part}/* ({count})" for part, count in sorted(parts.items())]
    return (
        f"Initialized from {source.path}: {len(variables) - len(fresh)} of {len(variables)} variables loaded;"
        f" starting fresh: {', '.join(sorted(fresh)) or 'none'}; not used: {', '.join(unused_parts) or 'none'}"
    )


def restore(
    path: str | Weights,
    variables: Mapping[str, tf.Variable],
    config: BertConfig | None = None,
    allow_missing: Collection[str] = (),
) -> int:
    """Loads all `variables` from a checkpoint, a path or opened weights, and returns its global step.

    `config` is compared with the bert_config.json beside the checkpoint. If the checkpoint lacks a variable in
    `allow_missing`, the variable keeps its value.
    """
    source = Checkpoint(path) if isinstance(path, str) else path
    if config is not None:
        model_folder.check_config(source, config, continues=True)
    variables = {name: variables[name] for name in variables if name not in allow_missing or name in source.shapes}
    problems = [*names.misfits(_shapes(variables), source.shapes, lambda name: True)]
    if any(map(names.is_encoder, variables)):  # otherwise the next checkpoint of the run would lack the other variables
        others = [name for name in source.shapes if names.is_encoder(name) and name not in variables]
        problems += [f"{name} is not in the model" for name in names.without_optimizer(others)]
    advice = "It belongs to another model or task: use another output_dir, or the configuration it was made with"
    sources.refuse(source, problems, advice)
    for name, variable in variables.items():
        variable.assign(source.get(name))
    return source.global_step


def weights_in_use(output_dir: str, init_checkpoint: str | None, will_train: bool = False) -> Weights | None:
    """Opens the newest checkpoint in output_dir, or else init_checkpoint.

    Without either, returns None if a training run will start from random weights, and otherwise raises UserError.
    """
    path = latest_checkpoint(output_dir) or init_checkpoint
    if path:
        return open_weights(path)
    if will_train:
        return None
    try:
        released = open_weights(output_dir).path
    except UserError as error:
        what = "holds no checkpoint" if files.is_directory(output_dir) else "there is no such folder"
        raise UserError(
            f"{output_dir}: {what}, and no --init_checkpoint is given, so the weights would be random; check"
            " --output_dir, train first (--do_train), or give --init_checkpoint"
        ) from error
    raise UserError(
        f"{output_dir}: holds weights, and no checkpoint of a training; give --init_checkpoint={released}, and another"
        " --output_dir for the new files"
    )


def check_trained(model: keras.Model, source: Weights) -> None:
    """Raises UserError if the weights lack a variable on which the model's outputs depend."""
    missing = [name for name in used_variables(model) if name not in source.shapes]
    if missing:
        raise UserError(
            f"{source.path}: has no {and_more(missing, 3)}, so the answers would come from random weights;"
            " train first (--do_train), or give the checkpoint of a model that was trained for this task"
        )


def make_model(source: Weights, config: BertConfig, labels: LabelMap | None = None, **kwargs: Any) -> keras.Model:
    """Creates the model with the heads that the weights contain, or a BertModel; its variables are not loaded.

    `labels`: from task_file.label_map_of. They distinguish a classifier from a tagger, whose weights have the same
    names; without labels, a classifier is made. `**kwargs` are for the model's constructor.
    """
    present = {head for head, rows in names.HEADS.items() if rows[0].reference in source.shapes}
    labeled = labels.labeled if labels else "texts"
    for model in heads.MODELS:
        if present & {*model.heads} and model.labeled in (None, labeled):
            break
    else:
        return modeling.BertModel(config, **kwargs)
    # A head that the weights lack would be random, and would look trained in exports of the model.
    if model is heads.PretrainingModel and "next_sentence" not in present:
        pooler = not names.missing(names.POOLER, source.shapes)
        return heads.MaskedLMModel(config, has_pooler=pooler, **kwargs)
    if model.labeled:
        kwargs["num_labels"] = source.num_labels
        kwargs |= {kind: True for kind in ("regression", "multi_label") if labels and getattr(labels, kind)}
    return model(config, **kwargs)

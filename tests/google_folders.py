"""Checkpoints in the layout of Google's releases, with a cased or uncased toy vocabulary; the arrays in weights."""

from __future__ import annotations

import pathlib

import numpy as np
import tensorflow as tf
import toy_data

from bert_tf2 import heads, optimization
from bert_tf2.weights import checkpoint
from bert_tf2.weights.base import Weights

CASED = [word.title() if word.isalpha() else word for word in toy_data.VOCAB]


def write_vocab(path: pathlib.Path, entries: list[str]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")
    return str(path)


def google_folder(folder: pathlib.Path, model=None, vocabulary=None, **changes) -> str:
    """Writes a checkpoint, bert_config.json and vocab.txt."""
    config = toy_data.config(**{"num_hidden_layers": 1, **changes})
    variables = checkpoint.tf1_variables(model or heads.PretrainingModel(config))
    checkpoint.save(str(folder / "bert_model.ckpt"), variables)
    (folder / "bert_config.json").write_text(config.to_json_string())
    write_vocab(folder / "vocab.txt", vocabulary or toy_data.VOCAB)
    return str(folder)


def with_slots(model) -> dict[str, tf.Variable]:
    """The variables of a model in training."""
    slots = optimization.AdamWeightDecayOptimizer(checkpoint.trained_variables(model)).slots
    return {**checkpoint.tf1_variables(model), **slots}


def assert_holds(weights: Weights | str | pathlib.Path, wanted: dict[str, np.ndarray]) -> None:
    """Checks that weights, or those at a path, are these arrays."""
    source = weights if isinstance(weights, Weights) else checkpoint.open_weights(str(weights))
    assert source.shapes == {name: [*np.shape(value)] for name, value in wanted.items()}
    for name, value in wanted.items():
        np.testing.assert_array_equal(source.get(name), value, err_msg=name)

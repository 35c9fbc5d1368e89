"""Checkpoints of small models, and damage to their files."""

from __future__ import annotations

import tensorflow as tf
from small_models import MAKERS, randomize, small_config

from bert_tf2 import optimization
from bert_tf2.weights import checkpoint

DATA = ".data-00000-of-00001"


def small_model(kind="pretraining", seed=0, **changes):
    model = MAKERS[kind](small_config(**changes))
    randomize(model, seed)
    return model


def state_of(model) -> dict[str, tf.Variable]:
    slots = optimization.AdamWeightDecayOptimizer(checkpoint.trained_variables(model)).slots
    return {**checkpoint.tf1_variables(model), **slots}


def save_model(folder, model, step=7) -> str:
    prefix = str(folder / f"model.ckpt-{step}")
    checkpoint.save(prefix, state_of(model), step)
    return prefix


def cut(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def flip(path, share):
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 0xFF
    path.write_bytes(bytes(data))

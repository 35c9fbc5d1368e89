"""Trainings of tiny models, and the variables in their checkpoints."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from small_models import MAKERS, tiny_config

from bert_tf2.fast.encoder import Plan, accelerate
from bert_tf2.training.devices import build_model
from bert_tf2.training.loop import Trainer
from bert_tf2.training.options import PRECISIONS, LoopOptions
from bert_tf2.weights import checkpoint

ONE = tf.distribute.get_strategy()


def make_trainer(folder="", kind="pretraining", *, strategy=ONE, config=None, plan: Plan | None = None, **settings):
    """A trainer of ten steps with batches of 4, unless `settings` of LoopOptions say otherwise.

    Args:
      config: what differs from tiny_config.
      plan: how the model is accelerated; not at all without it.
    """
    schedule = {"learning_rate": 1e-3, "num_train_steps": 10, "num_warmup_steps": 0, "train_batch_size": 4}
    options = LoopOptions(output_dir=str(folder), **{**schedule, **settings})
    policy = PRECISIONS[options.precision].policy
    model = build_model(strategy, lambda: MAKERS[kind](tiny_config(**(config or {})), dtype=policy), 1)
    if plan is not None:
        accelerate(model, plan)
    return Trainer(model, strategy, options)


def endless(batch) -> tf.data.Dataset:
    """The same batch again and again."""
    return tf.data.Dataset.from_tensors(batch).repeat()


def saved(folder) -> dict[str, np.ndarray]:
    """Every variable and slot of the newest checkpoint."""
    source = checkpoint.Checkpoint(str(folder))
    return {name: source.get(name) for name in source.shapes}

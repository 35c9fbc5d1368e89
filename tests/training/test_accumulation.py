"""--gradient_accumulation_steps: the update of a batch that is computed in parts is that of the whole batch."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from small_models import MAKERS, batch_for, tiny_config

from bert_tf2 import heads
from bert_tf2.support.errors import UserError
from bert_tf2.training.devices import build_model
from bert_tf2.training.loop import Trainer
from bert_tf2.training.options import TrainOptions
from bert_tf2.training.precision import PRECISIONS
from bert_tf2.weights import checkpoint

ONE = tf.distribute.get_strategy()
SETTINGS = {"learning_rate": 1e-3, "num_train_steps": 3, "num_warmup_steps": 0}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """kind -> what the batch as a whole gives; without the classifier's dropout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "_CLASSIFIER_DROPOUT", 0.0)
        yield functools.cache(lambda kind: train(tmp_path_factory.mktemp(kind), kind))


def train(folder, kind, strategy=ONE, precision="float32", **options):
    """Two steps; returns the contents of the checkpoint."""
    model = build_model(strategy, lambda: MAKERS[kind](tiny_config(), dtype=PRECISIONS[precision].policy), 1)
    settings = {**SETTINGS, "num_train_steps": 2, "train_batch_size": 8, "precision": precision, **options}
    trainer = Trainer(model, strategy, TrainOptions(output_dir=str(folder), **settings))
    trainer.start()
    trainer.train(tf.data.Dataset.from_tensors(batch_for(kind, 8)).repeat())
    source = checkpoint.Checkpoint(str(folder))
    return {name: source.get(name) for name in source.shapes}


def assert_equal(whole, in_parts):
    """The sums of the gradients. (Adam enlarges the rounding of a gradient that is 0, as that of SQuAD's bias is.)"""
    assert whole.keys() == in_parts.keys()
    for name, value in whole.items():
        if name.endswith(("/adam_m", "/adam_v")):
            np.testing.assert_allclose(in_parts[name], value, rtol=1e-4, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("parts", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_parts_update_as_the_whole_batch(tmp_path, whole, kind, parts):
    assert_equal(whole(kind), train(tmp_path, kind, gradient_accumulation_steps=parts))


@pytest.mark.slow
def test_parts_on_two_replicas(tmp_path, whole, two):
    assert_equal(whole("pretraining"), train(tmp_path, "pretraining", two, gradient_accumulation_steps=2))


def test_parts_with_a_loss_scale(tmp_path):
    whole = train(tmp_path / "whole", "pretraining", precision="float16")
    in_parts = train(tmp_path / "parts", "pretraining", precision="float16", gradient_accumulation_steps=4)
    assert whole["loss_scale"] == in_parts["loss_scale"]
    for name, value in whole.items():
        np.testing.assert_allclose(in_parts[name], value, atol=3e-3, err_msg=name)


def test_parts_drop_other_values_each(tmp_path):
    """The same row eight times: without other dropout for each part, all parts would have the same loss."""
    config = tiny_config(hidden_dropout_prob=0.5)
    model = build_model(ONE, lambda: MAKERS["pretraining"](config), 1)
    losses = []
    for parts in (1, 2):
        options = TrainOptions(output_dir="", train_batch_size=2, gradient_accumulation_steps=parts, **SETTINGS)
        batch = {name: np.repeat(values[:1], 2, axis=0) for name, values in batch_for("pretraining", 8).items()}
        batch["masked_lm_weights"] = np.ones_like(batch["masked_lm_weights"])
        measured = Trainer(model, ONE, options).step.compiled()(batch, tf.constant(0, tf.int64))
        losses.append(float(measured["masked_lm_loss"]))
    assert losses[0] != losses[1]


def test_a_batch_that_cannot_be_divided(two):
    options = TrainOptions(output_dir="", train_batch_size=6, gradient_accumulation_steps=4, **SETTINGS)
    model = build_model(ONE, lambda: MAKERS["pretraining"](tiny_config()), 1)
    with pytest.raises(UserError, match=r"--train_batch_size=6 is not divisible by 4, .* times 1 devices"):
        Trainer(model, ONE, options)

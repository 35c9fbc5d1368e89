"""--gradient_accumulation_steps: the update of a batch that is computed in parts is that of the whole batch."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from small_models import MAKERS, batch_for, without_head_dropout
from small_trainings import ONE, endless, make_trainer, saved

from bert_tf2.support.errors import UserError


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """kind -> what the batch as a whole gives; without the classifier's dropout."""
    with pytest.MonkeyPatch.context() as patch:
        without_head_dropout(patch)
        yield functools.cache(lambda kind: train(tmp_path_factory.mktemp(kind), kind))


def train(folder, kind, strategy=ONE, **options):
    """Two steps; returns the contents of the checkpoint."""
    trainer = make_trainer(folder, kind, strategy=strategy, num_train_steps=2, train_batch_size=8, **options)
    trainer.start()
    trainer.train(endless(batch_for(kind, 8)))
    return saved(folder)


def assert_equal(whole, in_parts):
    """The sums of the gradients. (Adam enlarges the rounding of a gradient that is 0, as that of SQuAD's bias is.)"""
    assert whole.keys() == in_parts.keys()
    for name, value in whole.items():
        if name.endswith(("/adam_m", "/adam_v")):
            np.testing.assert_allclose(in_parts[name], value, rtol=1e-4, atol=1e-8, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "parts"), [("pretraining", 2), *(pytest.param(kind, 8, marks=pytest.mark.slow) for kind in MAKERS)]
)
def test_parts_update_as_the_whole_batch(tmp_path, whole, kind, parts):
    assert_equal(whole(kind), train(tmp_path, kind, gradient_accumulation_steps=parts))


def test_parts_drop_other_values_each(tmp_path):
    """The same row eight times: without other dropout for each part, all parts would have the same loss."""
    batch = {name: np.repeat(values[:1], 2, axis=0) for name, values in batch_for("pretraining", 8).items()}
    batch["masked_lm_weights"] = np.ones_like(batch["masked_lm_weights"])
    losses = []
    for parts in (1, 2):
        dropout, settings = {"hidden_dropout_prob": 0.5}, {"gradient_accumulation_steps": parts, "train_batch_size": 2}
        measured = make_trainer(config=dropout, **settings).step.compiled()(batch, tf.constant(0, tf.int64))
        losses.append(float(measured["masked_lm_loss"]))
    assert losses[0] != losses[1]


def test_a_batch_that_cannot_be_divided():
    with pytest.raises(UserError, match=r"--train_batch_size=6 is not divisible by 4, .* times 1 devices"):
        make_trainer(train_batch_size=6, gradient_accumulation_steps=4)

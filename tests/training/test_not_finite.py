"""Losses and gradients that are no finite numbers: the step is named, and a few such updates can be left out."""

import numpy as np
import pytest
import tensorflow as tf
from small_models import batch_for
from small_trainings import ONE, make_trainer, saved

from bert_tf2.support.errors import UserError


def train(folder, steps, bad, init_checkpoint=None, **how):
    """Trains on the same batch again and again, in the steps `bad` (counted from 0) with an infinite weight."""
    batch = batch_for("pretraining")

    def at(step):
        is_bad = tf.reduce_any(step == tf.constant([*bad], tf.int64))
        return {**batch, "masked_lm_weights": tf.where(is_bad, np.inf, batch["masked_lm_weights"])}

    trainer = make_trainer(folder, num_train_steps=steps, **how)
    trainer.start(init_checkpoint)
    trainer.train(tf.data.Dataset.range(steps).map(at), where=lambda first, count: f"{first} to {first + count - 1}")


@pytest.mark.parametrize(
    ("replicas", "precision"), [(1, "float32"), pytest.param(2, "float16", marks=pytest.mark.slow)]
)
def test_updates_are_left_out_if_that_is_tolerated(tmp_path, log_lines, two, precision, replicas):
    how = {"strategy": two if replicas == 2 else ONE, "precision": precision}
    train(tmp_path / "two", 6, {2, 3}, **how, skip_nonfinite_updates=2)
    assert all(np.isfinite(value).all() for value in saved(tmp_path / "two").values())
    found = "\n".join(log_lines)
    assert "step 3: the loss or its gradient is not a finite number. Its update was left out" in found
    assert "Its examples: 8 to 11." in found and "So far, 2 of 2 that are tolerated." in found
    message = r"step 3: the loss or its gradient is not a finite number\. Its examples: 8 to 11\. The last good"
    with pytest.raises(UserError, match=message):
        train(tmp_path / "one", 6, {2, 3}, **how, skip_nonfinite_updates=1)


def test_an_update_that_is_left_out_changes_nothing(tmp_path):
    train(tmp_path, 3, {2}, skip_nonfinite_updates=1, save_checkpoints_steps=2)
    before, after = saved(tmp_path, 2), saved(tmp_path, 3)
    for name in before.keys() - {"global_step"}:
        np.testing.assert_array_equal(before[name], after[name])


def test_whether_updates_may_be_left_out_changes_no_good_step(tmp_path):
    for name, tolerated in (("without", 0), ("with", 5)):
        train(tmp_path / name, 4, set(), skip_nonfinite_updates=tolerated)
    with_it, without = saved(tmp_path / "with"), saved(tmp_path / "without")
    for name in without:
        np.testing.assert_allclose(with_it[name], without[name], rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_updates_are_counted_over_all_calls_and_unused_weights_are_told(tmp_path, log_lines):
    how = {"skip_nonfinite_updates": 2, "save_checkpoints_steps": 1}
    train(tmp_path / "out", 2, {1}, **how)
    train(tmp_path / "out", 3, {0}, init_checkpoint=str(tmp_path / "other"), **how)  # the data begin at step 3
    assert "So far, 2 of 2 that are tolerated." in "\n".join(log_lines)
    unused = f"--init_checkpoint={tmp_path}/other is not used, because there is {tmp_path}/out/model.ckpt-2"
    assert log_lines.count(unused) == 1
    with pytest.raises(
        UserError, match=r"step 4: .* with --skip_nonfinite_updates \(this is number 3 of the training\)"
    ):
        train(tmp_path / "out", 4, {0}, **how)

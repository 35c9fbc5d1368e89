"""float16 training: the dynamic loss scale, the steps it leaves out, and what a checkpoint keeps of it."""

import pytest
import tensorflow as tf
from small_models import batch_for
from small_trainings import ONE, endless, make_trainer, saved

from bert_tf2.training import step as training_step


def train(folder, steps, precision="float16", strategy=ONE, last=20):
    """Trains a tiny model to step `steps` of `last`; returns the trainer."""
    settings = {"num_train_steps": last, "save_checkpoints_steps": steps, "precision": precision}
    trainer = make_trainer(folder, strategy=strategy, **settings)
    trainer.start()
    trainer.train(endless(batch_for("pretraining")), evaluate=lambda step: step >= steps, eval_steps=4)
    return trainer


def measures(steps, precision="float16"):
    """The measures of the steps, one by one."""
    step = make_trainer(num_train_steps=100, precision=precision).step.compiled()
    batch = batch_for("pretraining")
    return [{k: float(v) for k, v in step(batch, tf.constant(n, tf.int64)).items()} for n in range(steps)]


def test_float16_follows_float32():
    wide, half = (measures(12, precision) for precision in ("float32", "float16"))
    assert [row["left_out"] for row in half] == [0.0] * 12
    assert half[-1]["loss"] < half[0]["loss"] - 0.1  # it learns
    for one, other in zip(wide, half, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=0.01)
        assert other["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=0.05)


def test_the_scale_grows_after_many_good_steps(monkeypatch):
    monkeypatch.setattr(training_step, "_STEPS_BEFORE_GROWTH", 3)
    scale, applied = training_step.LossScale(), tf.Variable(0)
    seen = []
    for norm in (1.0, 1.0, 1.0, 1.0, float("inf"), 1.0, float("nan"), 1.0, 1.0, 1.0):
        left_out = scale.apply(tf.constant(norm), lambda: applied.assign_add(1))
        seen.append((float(left_out), float(scale.scale) / 2**15))
    expected = [(0, 1), (0, 1), (0, 2), (0, 2), (1, 1), (0, 1), (1, 0.5), (0, 0.5), (0, 0.5), (0, 1)]
    assert seen == expected and int(applied) == 8


@pytest.mark.slow
def test_a_checkpoint_keeps_the_scale_and_one_of_float32_has_none(tmp_path, monkeypatch):
    train(tmp_path / "half", 4)
    found = saved(tmp_path / "half")
    assert found["loss_scale"] == 2.0**15 and found["loss_scale_good_steps"] == 4.0
    monkeypatch.setattr(training_step, "_FIRST_SCALE", 8.0)
    trainer = train(tmp_path / "half", 8)
    assert float(trainer.step._loss_scale.scale) == 2.0**15 and float(trainer.step._loss_scale._good_steps) == 8.0
    train(tmp_path / "wide", 4, "float32")
    trainer = train(tmp_path / "wide", 8)  # continues in another precision
    assert trainer.global_step == 8 and float(trainer.step._loss_scale.scale) == 8.0
    train(tmp_path / "half", 12, "float32")  # and back

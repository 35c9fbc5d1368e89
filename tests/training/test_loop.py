"""The loop: the same updates on one replica and on two, resuming, stopping, checkpoints, what TensorBoard gets."""

import itertools
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest
import tensorflow as tf
from small_models import (
    GOLDEN,
    MAKERS,
    batch_for,
    needs_golden,
    randomize,
    small_batch,
    tiny_config,
    values_of,
    without_head_dropout,
)
from small_trainings import ONE, endless, make_trainer, saved

from bert_tf2 import heads, optimization
from bert_tf2.config import BertConfig
from bert_tf2.fast.encoder import Plan
from bert_tf2.support import environment
from bert_tf2.support.errors import UserError
from bert_tf2.training import plots
from bert_tf2.training.loop import StopRequest
from bert_tf2.training.step import local_gradients, reduce_gradients
from bert_tf2.weights import checkpoint

ROOT = pathlib.Path(__file__).resolve().parents[2]


def saved_model(folder, kind="pretraining", seed=0) -> str:
    """A checkpoint without slots of a random model."""
    model = MAKERS[kind](tiny_config())
    randomize(model, seed)
    checkpoint.save(str(folder / "start"), checkpoint.tf1_variables(model))
    return str(folder / "start")


def train(folder, steps, kind="pretraining", init=None, batch=None, how=None, **options):
    """Trains to step `steps` in `folder` and returns the model; `how`: arguments of Trainer.train."""
    trainer = make_trainer(folder, kind, plan=Plan(share_graph=True), num_train_steps=steps, **options)
    trainer.start(init)
    trainer.train(endless(batch_for(kind) if batch is None else batch), **(how or {}))
    return trainer._model


def largest_difference(one, two) -> float:
    assert one.keys() == two.keys()
    return max(np.abs(one[name] - two[name]).max() for name in one)


# The reference's numbers.


class WithoutDropout:
    """A classifier as the golden steps trained it: not even the dropout on the pooled output."""

    def __init__(self, model: heads.ClassifierModel):
        self._model = model

    def loss_terms(self, batch, dropout_seed):
        losses = self._model.outputs(batch)["example_loss"]
        return [heads.LossTerm("loss", tf.reduce_sum(losses), tf.cast(tf.size(losses), tf.float32))]


@needs_golden
def test_classifier_steps_equal_the_reference():
    golden = np.load(GOLDEN / "unit" / "classifier_steps.npz")
    model = heads.ClassifierModel(BertConfig.from_json_file(str(GOLDEN / "config" / "bert_config_nodropout.json")), 2)
    checkpoint.initialize(model, str(GOLDEN / "ckpt" / "tasks" / "model.ckpt"))
    variables = checkpoint.trained_variables(model)
    initial = values_of(model)
    optimizer = optimization.AdamWeightDecayOptimizer(variables)
    batch = {name: tf.constant(golden[name]) for name in ("input_ids", "input_mask", "segment_ids", "label_ids")}
    schedule = [golden["init_lr"].item(), golden["num_train_steps"].item(), golden["num_warmup_steps"].item()]

    @tf.function
    def step_of(step):
        logits = model(batch)
        losses, gradients = local_gradients(WithoutDropout(model), variables, batch, tf.constant([0, 0]))
        lookups = [name for name, gradient in gradients.items() if isinstance(gradient, tf.IndexedSlices)]
        assert lookups == [str(name) for name in golden["indexed_slices"]]
        gradients, norm = reduce_gradients(gradients)
        summed = tf.linalg.global_norm(list(gradients.values()))
        rate = optimization.learning_rate_at(step, *schedule)
        optimizer.apply_gradients(gradients, rate, step, optimization.clip_scale(norm))
        return {
            "loss": losses["loss"],
            "logits": logits,
            "norm_of_slices_not_summed": norm,
            "norm_of_summed_gradient": summed,
        }

    for step in range(20):
        for name, value in step_of(tf.constant(step, tf.int64)).items():
            np.testing.assert_allclose(value, golden[name][step], rtol=1e-4, atol=2e-5, err_msg=f"{name} {step}")
    for name, value in values_of(model).items():
        wanted = golden[f"final|{name}"]
        error = np.abs(value - wanted).max()
        assert error <= 1e-4 * np.abs(wanted).max(), name
        if not name.endswith("key/bias"):  # its true gradient is zero
            assert error <= 1e-3 * np.abs(wanted - initial[name]).max(), name


# The number of replicas.


# Gradients that are exactly 0 but for rounding, since softmax does not see what they move; Adam makes it look large.
ROUNDING_ONLY = "key/bias"


@pytest.mark.parametrize(
    "kind", [*(pytest.param(k, marks=pytest.mark.slow) for k in ("pretraining", "tagging")), "classifier"]
)
def test_two_replicas_update_as_one(tmp_path, two, kind, monkeypatch):
    without_head_dropout(monkeypatch)
    init = saved_model(tmp_path, kind)
    before = saved(tmp_path)
    for name, strategy in (("one", ONE), ("two", two)):
        train(tmp_path / name, 10, kind, init, strategy=strategy, learning_rate=5e-4)
    one, both = (
        {key: value for key, value in saved(tmp_path / name).items() if ROUNDING_ONLY not in key}
        for name in ("one", "two")
    )
    assert largest_difference(one, both) < 1e-6
    assert max(np.abs(one[name] - before[name]).max() for name in one.keys() & before.keys()) > 1e-3
    words = one["bert/embeddings/word_embeddings/adam_m"]
    assert np.abs(words[np.unique(batch_for(kind)["input_ids"])]).min(axis=1).max() > 0  # lookups had their gradient


@pytest.mark.slow
def test_replicas_drop_different_values(tmp_path, two):
    """Both halves of the batch are the same: two replicas that dropped the same values would act as one on a half."""
    init = saved_model(tmp_path)
    half = {name: values[2:] for name, values in small_batch().items()}
    batch = {name: np.concatenate([values, values]) for name, values in half.items()}
    config = {"hidden_dropout_prob": 0.3}
    train(tmp_path / "two", 1, init=init, batch=batch, strategy=two, config=config, learning_rate=0.0)
    train(tmp_path / "half", 1, init=init, batch=half, strategy=ONE, config=config, learning_rate=0.0)
    name = "cls/seq_relationship/output_weights/adam_m"
    assert np.abs(saved(tmp_path / "two")[name] - saved(tmp_path / "half")[name]).max() > 1e-4


# Going on.


def test_resuming_gives_what_one_run_gives(tmp_path, log_lines):
    """Dropout and all: the seeds follow from the step."""
    dropout = {"config": {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}}
    init = saved_model(tmp_path)
    schedule = {"num_warmup_steps": 3}
    whole = train(tmp_path / "whole", 9, init=init, **dropout, **schedule)
    stop_at_4 = {"evaluate": lambda step: step == 4, "eval_steps": 2}
    train(tmp_path / "parts", 9, init=init, how=stop_at_4, **dropout, **schedule)
    assert saved(tmp_path / "parts")["global_step"] == 4
    del log_lines[:]
    parts = train(tmp_path / "parts", 9, init="not looked at", **dropout, **schedule)
    assert f"Continuing from {tmp_path}/parts/model.ckpt-4 at step 4" in log_lines
    assert largest_difference(saved(tmp_path / "whole"), saved(tmp_path / "parts")) < 1e-7
    assert largest_difference(values_of(whole), values_of(parts)) < 1e-7


@pytest.mark.slow
def test_every_step_drops_other_values_and_the_seed_decides(tmp_path):
    init = saved_model(tmp_path)
    bias = "cls/predictions/output_bias/adam_m"
    slots = {}
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        settings = {"random_seed": seed, "learning_rate": 0.0, "save_checkpoints_steps": 1}
        train(folder, 3, init=init, config={"hidden_dropout_prob": 0.2}, **settings)
        slots[seed] = [checkpoint.Checkpoint(f"{folder}/model.ckpt-{step}").get(bias) for step in (1, 3)]
    assert np.abs(slots[1][0] - slots[2][0]).max() > 1e-4
    # The weights stand still, so were every step to drop the same, m would be the first gradient times 1 - 0.9^3.
    assert np.abs(slots[1][0] / 0.1 - slots[1][1] / (1 - 0.9**3)).max() > 1e-4


# Checkpoints and evaluation on the way.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("last", "settings", "steps", "evaluated"),
    [
        (7, {"save_checkpoints_steps": 3, "iterations_per_loop": 2}, {0, 3, 6, 7}, []),
        (7, {"save_checkpoints_steps": 3}, {0, 3, 6, 7}, []),
        (7, {"save_checkpoints_steps": 0}, {7}, []),
        (5, {"save_checkpoints_steps": 1, "keep_checkpoint_max": 2}, {4, 5}, []),
        (7, {"save_checkpoints_steps": 4}, {0, 3, 4, 6, 7}, [3, 6, 7]),
    ],
)
def test_checkpoints_at_the_start_every_few_steps_and_at_the_end(tmp_path, last, settings, steps, evaluated):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    seen = []
    train(tmp_path, last, how={"evaluate": seen.append, "eval_steps": 3} if evaluated else None, **settings)
    assert {path.stem for path in tmp_path.glob("*.index")} == {f"model.ckpt-{step}" for step in steps}
    assert saved(tmp_path)["global_step"] == last and seen == evaluated
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


# What the user sees.


def events(folder) -> list[tuple[int, str, float]]:
    curves = plots.read_scalars(str(folder))
    return [(step, tag, value) for tag, points in curves.items() for step, value in points.items()]


@pytest.mark.slow
def test_tensorboard_gets_its_points(tmp_path):
    init = saved_model(tmp_path)
    train(tmp_path / "run", 7, init=init, num_warmup_steps=2, log_steps=3)
    points = events(tmp_path / "run")
    tags = {"loss", "masked_lm_loss", "next_sentence_loss", "learning_rate", "gradient_norm", "examples/sec"}
    assert {(step, tag) for step, tag, _ in points} == {*itertools.product([1, 3, 6, 7], tags)}
    at = {(step, tag): value for step, tag, value in points}
    for step in (1, 3, 6, 7):
        parts = at[step, "masked_lm_loss"] + at[step, "next_sentence_loss"]
        assert at[step, "loss"] == pytest.approx(parts, rel=1e-5)
        assert at[step, "gradient_norm"] > 0
        assert at[step, "examples/sec"] > 0
    rates = optimization.learning_rate_at(tf.range(7), 1e-3, 7, 2).numpy()
    assert at[1, "learning_rate"] == 0.0
    assert at[3, "learning_rate"] == pytest.approx(rates[2], rel=1e-5)  # of the step, not of its interval
    assert at[7, "learning_rate"] == pytest.approx(rates[6], rel=1e-5)
    model = MAKERS["pretraining"](tiny_config())
    checkpoint.initialize(model, init)
    batch = {name: tf.constant(values) for name, values in small_batch().items()}
    for term in model.loss_terms(batch, dropout_seed=tf.constant([0, 0])):  # the first point is before the first step
        assert at[1, term.name] == pytest.approx(float(term.mean()), rel=1e-5)


def test_progress_has_step_speed_and_time_left(tmp_path, log_lines):
    train(tmp_path, 3)
    first, last = (line for line in log_lines if line.startswith("Training: "))
    assert re.fullmatch(r"Training: 1 of 3 steps, loss \d\.\d{4}", first)  # nothing is known of the speed yet
    assert re.fullmatch(r"Training: 3 steps, loss .*, took .*", last)


# What can go wrong.


def test_a_loss_that_is_no_number(tmp_path):
    """In step 3 of 6, counted from 1, which one graph call may run with others."""
    batch = batch_for("pretraining")

    def at(step):
        return {**batch, "masked_lm_weights": tf.where(step == 2, np.inf, batch["masked_lm_weights"])}

    trainer = make_trainer(tmp_path, num_train_steps=6)
    message = (
        r"step 3: the loss or its gradient is not a finite number\. Its examples: 8 to 11\. The last good checkpoint is"
        r" .*/model\.ckpt-0\. Lower --learning_rate"
    )
    with pytest.raises(UserError, match=message):
        trainer.train(tf.data.Dataset.range(6).map(at), where=lambda first, count: f"{first} to {first + count - 1}")
    assert [path.name for path in tmp_path.glob("*.index")] == ["model.ckpt-0.index"]


def test_a_failure_of_the_model_is_not_blamed_on_the_data(tmp_path):
    batch = batch_for("pretraining")
    batch["input_ids"] = batch["input_ids"] + 10_000  # no row of the table
    with pytest.raises(tf.errors.InvalidArgumentError):
        train(tmp_path, 1, batch=batch, how={"explain": lambda: pytest.fail("searched the records")})


# Signals and disks.


def test_a_second_signal_stops_at_once_and_signals_that_come_together_are_one(monkeypatch):
    """Ctrl-C in a shell, and `timeout`, send the same signal to a process twice."""
    clock = [100.0]
    monkeypatch.setattr("bert_tf2.training.loop.time.monotonic", lambda: clock[0])
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == 15
        clock[0] += 2
        with pytest.raises(KeyboardInterrupt, match="stopped at once"):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_second_signal_ends_a_script_whose_graph_does_not_return():
    program = """
import tensorflow as tf
from bert_tf2.support import process
from bert_tf2.training import loop
process.begin()
loop._SECONDS_OF_ONE_REQUEST = loop._SECONDS_TO_RETURN = 0.2
endless = tf.function(lambda: tf.while_loop(lambda step: True, lambda step: step + 1, [0]))
with loop.StopRequest():
    print("running", flush=True)
    endless()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout.readline() == "running\n"
        for _ in range(2):
            time.sleep(1)
            running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 143
        assert running.stderr.read().endswith("error: stopped by SIGTERM\n")


@pytest.mark.slow
def test_room_for_the_checkpoints_is_looked_for_first(tmp_path, monkeypatch, log_lines):
    def train_with(name: str, free: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(environment.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=free))
            train(tmp_path / name, 2)

    train_with("much", 10**9)
    assert not any("will need" in line for line in log_lines)
    size = (tmp_path / "much" / "model.ckpt-2.data-00000-of-00001").stat().st_size
    train_with("tight", size)
    assert any("tight: the checkpoints will need" in line for line in log_lines)
    with pytest.raises(UserError, match=r"none: the checkpoints need .*but 10 B are free"):
        train_with("none", 10)
    assert not list((tmp_path / "none").glob("model.ckpt-*"))

"""The loop: continuing, stopping, checkpoints and evaluations on the way, the points for TensorBoard, mistakes."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from command_lines import environment
from small_models import MAKERS, batch_for, randomize, tiny_config
from small_trainings import endless, make_trainer, saved

from bert_tf2 import optimization
from bert_tf2.support.errors import UserError
from bert_tf2.training import plots
from bert_tf2.training.loop import StopRequest
from bert_tf2.weights import checkpoint


def train(folder, steps, init=None, how=None, **options):
    """Trains to step `steps` in `folder`; `how`: arguments of Trainer.train."""
    trainer = make_trainer(folder, num_train_steps=steps, **options)
    trainer.start(init)
    trainer.train(endless(batch_for("pretraining")), **(how or {}))


def steps_in(folder) -> set[int]:
    return {int(path.stem.removeprefix("model.ckpt-")) for path in folder.glob("*.index")}


def test_resuming_gives_the_weights_of_one_run(tmp_path, log_lines):
    """With dropout, whose seeds follow from the step; the points of TensorBoard, the log, an evaluation that stops."""
    randomize(model := MAKERS["pretraining"](tiny_config()))
    checkpoint.save(init := str(tmp_path / "start"), checkpoint.tf1_variables(model))
    how = {"num_warmup_steps": 2, "log_steps": 3, "save_checkpoints_steps": 5}
    how["config"] = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    train(tmp_path / "whole", 7, init, **how)
    assert steps_in(tmp_path / "whole") == {0, 5, 7}
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers

    curves = plots.read_scalars(str(tmp_path / "whole"))
    at = {(step, tag): value for tag, points in curves.items() for step, value in points.items()}
    tags = {"loss", "masked_lm_loss", "next_sentence_loss", "learning_rate", "gradient_norm", "examples/sec"}
    assert {*at} == {*itertools.product([1, 3, 6, 7], tags)}
    rates = optimization.learning_rate_at(tf.range(7), 1e-3, 7, 2).numpy()
    for step in (1, 3, 6, 7):
        parts = at[step, "masked_lm_loss"] + at[step, "next_sentence_loss"]
        assert at[step, "loss"] == pytest.approx(parts, rel=1e-5)
        assert at[step, "gradient_norm"] > 0 and at[step, "examples/sec"] > 0
        assert at[step, "learning_rate"] == pytest.approx(rates[step - 1], rel=1e-5)  # of the step, not its interval
    first, *_, last = (line for line in log_lines if line.startswith("Training: "))
    assert re.fullmatch(r"Training: 1 of 7 steps, loss \d\.\d{4}", first)  # nothing is known of the speed yet
    assert re.fullmatch(r"Training: 7 steps, loss .*, took .*", last)

    seen = []
    stops = {"evaluate": lambda step: seen.append(step) or step == 4, "eval_steps": 2}
    train(tmp_path / "parts", 7, init, how=stops, **how)
    assert seen == [2, 4] and steps_in(tmp_path / "parts") == {0, 2, 4}
    train(tmp_path / "parts", 7, "not looked at", how={"evaluate": seen.append, "eval_steps": 3, "evaluated": 4}, **how)
    assert seen == [2, 4, 6, 7] and steps_in(tmp_path / "parts") == {2, 4, 5, 6, 7}
    assert f"Continuing from {tmp_path}/parts/model.ckpt-4 at step 4" in log_lines
    whole, parts = saved(tmp_path / "whole"), saved(tmp_path / "parts")
    assert whole.keys() == parts.keys() and all((value == parts[name]).all() for name, value in whole.items())
    train(tmp_path / "parts", 7, **how)  # and again
    assert any("nothing left to train" in line for line in log_lines)


# Mistakes


def test_a_loss_that_is_no_number(tmp_path):
    """In step 3 of 6, counted from 1, which one graph call may run with others."""
    batch = batch_for("pretraining")

    def at(step):
        return {**batch, "masked_lm_weights": tf.where(step == 2, np.inf, batch["masked_lm_weights"])}

    trainer = make_trainer(tmp_path, "masked_words", num_train_steps=6)
    with pytest.raises(UserError, match=r"step 3: .* 8 to 11\..*/model\.ckpt-0\. .*--learning_rate"):
        trainer.train(tf.data.Dataset.range(6).map(at), where=lambda first, count: f"{first} to {first + count - 1}")
    assert steps_in(tmp_path) == {0}


@pytest.mark.slow
def test_records_that_cannot_be_read_are_explained_and_a_failure_of_the_model_is_not(tmp_path):
    batch = batch_for("pretraining")
    shape = batch["input_mask"].shape
    texts = tf.data.Dataset.from_tensors("x").map(lambda text: tf.strings.to_number(tf.fill(shape, text), tf.int32))
    torn = texts.map(lambda mask: {**batch, "input_mask": mask})
    with pytest.raises(UserError, match="record 1 is wrong"):
        make_trainer(tmp_path).train(torn, explain=lambda: UserError("record 1 is wrong"))
    batch["input_ids"] = batch["input_ids"] + 10_000  # no row of the table
    with pytest.raises(tf.errors.InvalidArgumentError):
        make_trainer(tmp_path).train(endless(batch), explain=lambda: pytest.fail("searched the records"))


# Signals


def test_a_second_signal_stops_at_once_and_signals_that_come_together_are_one():
    """Ctrl-C in a shell, and `timeout`, send the same signal to a process twice."""
    with StopRequest(seconds_of_one=0.3) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == 15
        time.sleep(0.4)
        with pytest.raises(KeyboardInterrupt, match="at once"):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
def test_a_second_signal_ends_a_script_whose_graph_does_not_return():
    program = """
import tensorflow as tf
from bert_tf2.support import process
from bert_tf2.training import loop
process.begin()
endless = tf.function(lambda: tf.while_loop(lambda step: True, lambda step: step + 1, [0]))
with loop.StopRequest(0.2, 0.2):
    print("running", flush=True)
    endless()
"""
    how = {"env": environment(), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **how) as running:
        assert running.stdout.readline() == "running\n"
        for _ in range(2):
            time.sleep(1)
            running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 143
        assert running.stderr.read().endswith("error: stopped by SIGTERM\n")

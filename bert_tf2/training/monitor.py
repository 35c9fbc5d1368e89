"""Reports of training and evaluation: progress in the log, points and profiles for TensorBoard, eval_results.txt."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping

import tensorflow as tf
from absl import logging
from tensorflow.core.util import event_pb2

from bert_tf2 import optimization
from bert_tf2.config import BertConfig
from bert_tf2.support import console, files, progress
from bert_tf2.training.options import TrainOptions


def _tell_start(writer: tf.summary.SummaryWriter, step: int) -> None:
    """Tells TensorBoard to forget the points behind `step`, which a killed run may have left; as TensorFlow 1."""
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    event = event_pb2.Event(wall_time=time.time(), step=step + 1, session_log=start)
    tf.raw_ops.ImportEvent(writer=writer._resource, event=event.SerializeToString())


class TrainingMonitor:
    """Decides after how many steps to report, and writes the reports to the log and to TensorBoard."""

    _SECONDS_BETWEEN_REPORTS = 5.0

    def __init__(self, options: TrainOptions, step: int, config: BertConfig, writes: bool = True):
        """`writes` is False for a process that leaves TensorBoard's points to another one."""
        self._options = options
        self._first = step
        self._writer = tf.summary.create_file_writer(options.output_dir) if writes else tf.summary.create_noop_writer()
        if writes:
            _tell_start(self._writer, step)
        self._reported_at = time.monotonic()
        self._seconds_per_step: float | None = None
        self._sums: dict[str, float] = {}
        self._summed = 0
        self._point_at, self._point_step = self._reported_at, step
        self._progress = progress.Progress(
            "Training", options.num_train_steps, "steps", done=step,
            note="the first step takes the longest", tell_ends=True,
        )  # fmt: skip
        self._write_texts(config)

    def __enter__(self) -> TrainingMonitor:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        self._progress.close(complete=kind is None)
        self._writer.close()

    def _write_texts(self, config: BertConfig) -> None:
        texts = {**self._options.texts, "bert_config": f"```\n{config.to_json_string()}```"}
        with self._writer.as_default(step=self._first):
            for name, text in texts.items():
                tf.summary.text(name, text)

    def steps_to_run(self, step: int, next_stop: float) -> int:
        """The number of steps to run now: up to the next stop, point or end, and for at most a few seconds."""
        options = self._options
        next_point = step + 1 if step == self._first else (step // options.log_steps + 1) * options.log_steps
        count = int(min(options.num_train_steps, next_stop, next_point)) - step
        if self._seconds_per_step is None:  # the speed is not known yet: one step at a time
            return 1
        seconds = 0.5 if progress.on_terminal() else self._SECONDS_BETWEEN_REPORTS
        count = min(count, max(1, int(seconds / self._seconds_per_step)))
        return min(count, options.iterations_per_loop)

    def time_limit(self, count: int) -> float | None:
        """The seconds after which steps are certain not to end any more; None while their speed is not known."""
        return None if self._seconds_per_step is None else 600.0 + 20.0 * count * self._seconds_per_step

    def report(self, step: int, count: int, sums: Mapping[str, float], left_out: int = 0) -> None:
        """Adds the sums over the `count` steps that end at `step`, of which some are not in the sums."""
        now = time.monotonic()
        if step - count > self._first:  # the first step includes tracing the graph
            self._seconds_per_step = (now - self._reported_at) / count
        self._reported_at = now
        self._summed += count - left_out
        self._sums = {name: self._sums.get(name, 0.0) + value for name, value in sums.items()}
        is_point = step % self._options.log_steps == 0 or step - count == self._first
        if is_point or step == self._options.num_train_steps:
            self._point(step, now)
        self._progress.advance(count, f"loss {sums['loss'] / max(count - left_out, 1):.4f}")

    def resume(self) -> None:
        """Excludes the time since the last report (saving and evaluating) from the rates."""
        away = time.monotonic() - self._reported_at
        self._reported_at += away
        self._point_at += away
        self._progress.leave_out(away)

    def _point(self, step: int, now: float) -> None:
        """Writes the means over the steps since the last point to TensorBoard, and the learning rate of the last."""
        options = self._options
        schedule = (options.learning_rate, options.num_train_steps, options.num_warmup_steps)
        speed = (step - self._point_step) * options.train_batch_size / max(now - self._point_at, 1e-9)
        with self._writer.as_default(step=step):
            for name, value in self._sums.items():
                tf.summary.scalar(name, value / max(self._summed, 1))
            tf.summary.scalar("learning_rate", optimization.learning_rate_at(step - 1, *schedule))
            tf.summary.scalar("examples/sec", speed)
        self._writer.flush()
        self._sums, self._summed = {}, 0
        self._point_at, self._point_step = now, step


class StepProfile:
    """Writes a TensorBoard profile of the steps A to B of --profile_steps. A context, which closes the profile.

    A profile that cannot be written is a warning: the training is worth more.
    """

    def __init__(self, options: TrainOptions, done: int, writes: bool = True):
        """`done` is the number of steps that are done already; `writes` is False for one of several workers."""
        self._folder = options.output_dir
        self._steps = range(0)  # counted from 1
        self._running = False
        if options.steps_to_profile is None or not writes:
            return
        first, last = options.steps_to_profile
        flag, total = f"--profile_steps={options.profile_steps}", options.num_train_steps
        if last > total:
            logging.warning("%s: the training ends with step %d", flag, total)
        if done >= first:
            rest = "there is no profile" if done >= last else f"the profile begins with step {done + 1}"
            logging.warning("%s: %d steps are done already; %s", flag, done, rest)
        self._steps = range(max(first, done + 1), min(last, total) + 1)

    def next_stop(self, done: int) -> float:
        """The number of steps after which `step` and `after` must be called; during the profile after every step."""
        if done + 1 in self._steps:
            return done + 1
        return self._steps.start - 1 if self._steps and done < self._steps.start else math.inf

    def step(self, done: int) -> contextlib.AbstractContextManager:
        """The context in which to run the steps after the first `done`; starts the profile before step A."""
        if self._steps and done + 1 == self._steps.start:
            try:
                tf.profiler.experimental.start(self._folder)
                self._running = True
            except tf.errors.OpError as error:
                self._steps = range(0)
                logging.warning("--profile_steps: there is no profile: %s", error.message)
        # _r marks a step of the profile's overview, as in TensorFlow's guide to the profiler.
        return (
            tf.profiler.experimental.Trace("train", step_num=done + 1, _r=1)
            if self._running
            else contextlib.nullcontext()
        )

    def after(self, done: int) -> None:
        """Ends the profile after step B."""
        if self._running and done >= self._steps[-1]:
            self._stop(f"{self._steps.start} to {done}")

    def __enter__(self) -> StepProfile:
        return self

    def __exit__(self, *exception) -> None:
        if self._running:
            self._stop(f"from {self._steps.start} until the end")

    def _stop(self, steps: str) -> None:
        self._running = False
        try:
            tf.profiler.experimental.stop()
        except tf.errors.OpError as error:
            logging.warning("--profile_steps: the profile could not be written: %s", error.message)
            return
        how = f"tensorboard --logdir={self._folder} (pip install tensorboard-plugin-profile)"
        logging.info("Profile of the steps %s: %s", steps, how)


def write_eval_results(output_dir: str, results: Mapping[str, float]) -> None:
    """Writes `eval_results.txt` as the reference does: a line `key = value` for each key, sorted; and logs it."""
    lines = [f"{key} = {results[key]!s}" for key in sorted(results)]
    logging.info("%s", console.table("Evaluated:", {key: results[key] for key in sorted(results)}))
    files.write_text(os.path.join(output_dir, "eval_results.txt"), "".join(line + "\n" for line in lines))
    measured = {key: value for key, value in results.items() if key != "global_step"}
    write_scalars(os.path.join(output_dir, "eval"), int(results.get("global_step", 0)), measured)


def write_scalars(folder: str, step: int, values: Mapping[str, float]) -> None:
    """Writes the values of one step to the TensorBoard events in a folder."""
    writer = tf.summary.create_file_writer(folder)
    with writer.as_default(step=step):
        for name, value in values.items():
            tf.summary.scalar(name, value)
    writer.close()

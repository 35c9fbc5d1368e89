"""Reports of training and evaluation: progress in the log, points for TensorBoard, eval_results.txt."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import tensorflow as tf
from absl import logging
from tensorflow.core.util import event_pb2

from bert_tf2 import optimization
from bert_tf2.support import files, progress
from bert_tf2.training.options import LoopOptions


class TrainingMonitor:
    """Decides after how many steps to report, and writes the reports to the log and to TensorBoard."""

    _SECONDS_BETWEEN_REPORTS = 5.0

    def __init__(self, options: LoopOptions, step: int, writes: bool = True):
        """`writes` is False for a process that leaves TensorBoard's points to another process."""
        self._options = options
        self._first = step
        self._writer = _open(options.output_dir) if writes else tf.summary.create_noop_writer()
        if writes:  # TensorBoard drops points behind `step`, which a killed run may have left, as with TensorFlow 1
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            event = event_pb2.Event(wall_time=time.time(), step=step + 1, session_log=start)
            tf.raw_ops.ImportEvent(writer=self._writer._resource, event=event.SerializeToString())
        self._reported_at = time.monotonic()
        self._seconds_per_step: float | None = None
        self._sums: dict[str, float] = {}
        self._summed = 0
        self._point_at, self._point_step = self._reported_at, step
        self._progress = progress.Progress(
            "Training", options.last_step, "steps", done=step, contents=(options.train_batch_size, "examples"),
            note="the first step takes the longest", logs_ends=True,
        )  # fmt: skip

    def __enter__(self) -> TrainingMonitor:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        self._progress.close(complete=kind is None)
        self._writer.close()

    def steps_to_run(self, step: int, *intervals: int) -> int:
        """The number of steps to run now: a few seconds long, and at most to an interval's end, a point or the end."""
        options = self._options
        if self._seconds_per_step is None:  # the speed is not known yet: one step at a time
            return 1
        stops = ((step // every + 1) * every for every in (*intervals, options.log_steps) if every)
        count = min(options.last_step, *stops) - step
        seconds = 0.5 if progress.on_terminal() else self._SECONDS_BETWEEN_REPORTS
        count = min(count, max(1, int(seconds / self._seconds_per_step)))
        return min(count, options.iterations_per_loop)

    def report(self, step: int, count: int, sums: Mapping[str, float]) -> None:
        """Adds the sums over the `count` steps that end at `step`."""
        now = time.monotonic()
        if step - count > self._first:  # the first step includes tracing the graph
            self._seconds_per_step = (now - self._reported_at) / count
        self._reported_at = now
        self._summed += count
        self._sums = {name: self._sums.get(name, 0.0) + value for name, value in sums.items()}
        is_point = step % self._options.log_steps == 0 or step - count == self._first
        if is_point or step == self._options.last_step:
            self._point(step, now)
        rows = f", {sums['rows'] / count:.1f} rows" if "rows" in sums else ""
        self._progress.advance(count, f"loss {sums['loss'] / count:.4f}{rows}")

    def resume(self) -> None:
        """Excludes the time since the last report (saving and evaluating) from the rates."""
        away = time.monotonic() - self._reported_at
        self._reported_at += away
        self._point_at += away
        self._progress.leave_out(away)

    def _point(self, step: int, now: float) -> None:
        """Writes to TensorBoard the means over the steps since the last point, and the last step's learning rate."""
        options = self._options
        schedule = (options.learning_rate, options.num_train_steps, options.num_warmup_steps)
        speed = (step - self._point_step) * options.train_batch_size / max(now - self._point_at, 1e-9)
        with self._writer.as_default(step=step):
            for name, value in self._sums.items():
                tf.summary.scalar(name, value / self._summed)
            tf.summary.scalar("learning_rate", optimization.learning_rate_at(step - 1, *schedule))
            tf.summary.scalar("examples/sec", speed)
        self._writer.flush()
        self._sums, self._summed = {}, 0
        self._point_at, self._point_step = now, step


def write_eval_results(output_dir: str, results: Mapping[str, float]) -> None:
    """Writes and logs `eval_results.txt` as the reference does: a line `key = value` for each key, sorted."""
    lines = [f"{key} = {results[key]!s}" for key in sorted(results)]
    logging.info("***** Eval results *****\n%s", "\n".join(f"  {line}" for line in lines))
    files.write_text(os.path.join(output_dir, "eval_results.txt"), "".join(line + "\n" for line in lines))
    measured = {key: value for key, value in results.items() if key != "global_step"}
    write_scalars(os.path.join(output_dir, "eval"), int(results.get("global_step", 0)), measured)


def write_scalars(folder: str, step: int, values: Mapping[str, float]) -> None:
    """Writes the values of one step to the TensorBoard events in a folder."""
    writer = _open(folder)
    with writer.as_default(step=step):
        for name, value in values.items():
            tf.summary.scalar(name, value)
    writer.close()


def _open(folder: str):
    return tf.summary.create_file_writer(os.fsencode(folder))  # its name may have bytes that are not UTF-8

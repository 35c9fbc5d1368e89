"""--profile_steps: a TensorBoard profile of a few steps of a training."""

from __future__ import annotations

import contextlib
import math

import tensorflow as tf
from absl import logging

from bert_tf2.training.options import TrainOptions


class StepProfile:
    """Writes a profile of the steps A to B, both included and counted from 1. A context, which closes the profile.

    A profile that cannot be written is a warning: the training is worth more.
    """

    def __init__(self, options: TrainOptions, done: int, writes: bool = True):
        """`done` is the number of steps that are done already; `writes` is False for one of several workers."""
        self._folder = options.output_dir
        self._waiting = self._running = False
        if options.steps_to_profile is None or not writes:
            return
        first, last = options.steps_to_profile
        flag, total = f"--profile_steps={options.profile_steps}", options.num_train_steps
        if last > total:
            logging.warning("%s: the training ends with step %d", flag, total)
        if done >= first:
            rest = "there is no profile" if done >= last else f"the profile begins with step {done + 1}"
            logging.warning("%s: %d steps are done already; %s", flag, done, rest)
        self._first, self._last = max(first, done + 1), min(last, total)
        self._waiting = self._first <= self._last

    def next_stop(self, done: int) -> float:
        """The number of steps after which `step` and `after` must be called; during the profile after every step."""
        if self._waiting and done < self._first - 1:
            return self._first - 1
        return done + 1 if self._waiting or self._running else math.inf

    def step(self, done: int) -> contextlib.AbstractContextManager:
        """The context in which to run the steps after the first `done`; starts the profile before step A."""
        if self._waiting and done == self._first - 1:
            self._start()
        # _r marks a step of the profile's overview, as in TensorFlow's guide to the profiler.
        return tf.profiler.experimental.Trace("train", step_num=done + 1, _r=1) if self._running else _NOTHING

    def after(self, done: int) -> None:
        """Ends the profile after step B."""
        if self._running and done >= self._last:
            self._stop(done)

    def __enter__(self) -> StepProfile:
        return self

    def __exit__(self, *exception) -> None:
        if self._running:
            self._stop(None)

    def _start(self) -> None:
        self._waiting = False
        try:
            tf.profiler.experimental.start(self._folder)
            self._running = True
        except tf.errors.OpError as error:
            logging.warning("--profile_steps: there is no profile: %s", error.message)

    def _stop(self, last: int | None) -> None:
        """`last` is the last step of a complete profile, else None."""
        self._running = False
        try:
            tf.profiler.experimental.stop()
        except tf.errors.OpError as error:
            logging.warning("--profile_steps: the profile could not be written: %s", error.message)
            return
        steps = f"the steps {self._first} to {last}" if last else f"the steps from {self._first} until the end"
        logging.info(
            "Profile of %s: tensorboard --logdir=%s (pip install tensorboard-plugin-profile)", steps, self._folder
        )


_NOTHING = contextlib.nullcontext()

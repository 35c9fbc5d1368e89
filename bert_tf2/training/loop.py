"""The training loop.

    read_records -> batch --.
                            v
       each replica: loss_terms -> local gradients
                            v
       all replicas: one sum of gradients -> global norm -> clip once -> AdamWeightDecayOptimizer
                            v
       at intervals: progress line, TensorBoard, checkpoint

An update does not depend on the number of replicas: every loss is divided by the weights of the *global* batch, and
clipping uses the norm of the summed gradients. (The reference clips on each TPU core before it sums.)
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf2.data.record_order import Share
from bert_tf2.support import outputs, process
from bert_tf2.support.errors import UserError
from bert_tf2.training import layerwise
from bert_tf2.training.devices import check_batch
from bert_tf2.training.forward import explained
from bert_tf2.training.monitor import TrainingMonitor
from bert_tf2.training.options import LoopOptions
from bert_tf2.training.saver import Saver, TrainingState, deciding
from bert_tf2.training.step import LOSS_SCALE_NAMES, TrainingStep
from bert_tf2.training.workers import ALONE, Team
from bert_tf2.weights import bundle, checkpoint, names
from bert_tf2.weights.base import Weights


def start_from(model, output_dir: str, init_checkpoint: str | None, opened: Weights | None = None) -> int:
    """Loads trained weights, the newest in output_dir or else init_checkpoint.

    Returns the global step of the weights in output_dir, 0 for init_checkpoint. `opened`: weights that are open
    already; they are used if they are the right weights.
    """
    latest = bundle.latest_checkpoint(output_dir)
    if latest:
        source = opened if opened is not None and opened.path == latest else latest
        step = checkpoint.restore(source, names.tf1_variables(model), model.config)
        logging.info("Using %s", latest)
        return step
    source = opened or checkpoint.weights_in_use(output_dir, init_checkpoint)
    checkpoint.check_trained(model, source)
    logging.info(checkpoint.initialize(model, source))
    return 0


class Trainer:
    """Trains a model: `Trainer(...)`, then `start()`, then `train(dataset)`."""

    def __init__(self, model, strategy: tf.distribute.Strategy, options: LoopOptions, team: Team = ALONE):
        self.model = model
        self._strategy = strategy
        self._options = options
        self._team = team
        check_batch(options, strategy.num_replicas_in_sync, team.size)
        self.step = TrainingStep(model, strategy, options)
        self._saver = Saver(options.output_dir, options.keep_checkpoint_max)
        self.global_step = 0  # the number of steps so far
        self.examples = 0  # the number of examples that these steps read; `train`'s dataset must begin behind them
        self._before: TrainingState | None = None

    @property
    def share(self) -> Share | None:
        """The rows of each batch that `train` reads, in parts for its devices; None if it divides whole batches."""
        replicas = self._strategy.num_replicas_in_sync
        # If examples share rows, each device has rows of its own, perhaps fewer or more than the other devices.
        return self._team.share or (Share(0, replicas, replicas) if self.step.program.packs and replicas > 1 else None)

    @property
    def _state(self) -> dict[str, tf.Variable]:
        return {**names.tf1_variables(self.model), **self.step.state}

    def start(self, init_checkpoint: str | None = None, opened: Weights | None = None) -> int:
        """Continues from output_dir's newest checkpoint, or else loads init_checkpoint; `opened`: see `start_from`."""
        latest = bundle.latest_checkpoint(self._options.output_dir)
        if latest:
            source = opened if opened is not None and opened.path == latest else latest
            self._before = TrainingState.read(latest)
            frozen = layerwise.layers_in(self._before.settings.get("freeze") if self._before else None)
            # A layer that is trained from here on has no moving averages yet.
            missing = [name for name in self.step.state if layerwise.layer_of(name) in frozen]
            self.global_step = checkpoint.restore(source, self._state, self.model.config, [*missing, *LOSS_SCALE_NAMES])
            self.examples = self._before.examples if self._before else self.global_step * self._options.train_batch_size
            if init_checkpoint:
                logging.info("--init_checkpoint=%s is not used, because there is %s", init_checkpoint, latest)
            step, last = self.global_step, self._options.last_step
            if step < last:
                logging.info("Continuing from %s at step %d", latest, step)
            else:
                logging.info("%s is already at step %d of %d: nothing left to train", latest, step, last)
        elif init_checkpoint:
            logging.info(checkpoint.initialize(self.model, opened or init_checkpoint))
        else:
            logging.info("Starting from random weights: there is no checkpoint, and no --init_checkpoint")
        return self.global_step

    def warn_of_changes(self) -> None:
        """Warns of settings that changed after a training that has ended, because no step is trained with them."""
        changes = [change for change, _ in self._before.changes(self._deciding(None))] if self._before else []
        if changes:
            what = "No step is trained with these settings; give another --output_dir for a new training. %s"
            logging.warning(what, ". ".join(changes))

    def is_done(self, eval_steps: int = 0, evaluated: int = 0) -> bool:
        """Whether neither a step nor an evaluation is left; the arguments are the same as of `train`.

        Raises UserError if the workers have different checkpoints, because some of them would wait for the others.
        """
        self._team.check_same(
            [self.global_step, self.examples, evaluated],
            "do not continue from the same checkpoint; --output_dir must be a folder that all workers see",
        )
        return self.global_step >= self._options.last_step and (not eval_steps or evaluated >= self.global_step)

    def train(
        self,
        dataset: tf.data.Dataset,
        *,
        records: str | None = None,
        explain: Callable[[], UserError | None] = lambda: None,
        evaluate: Callable[[int], bool] | None = None,
        eval_steps: int = 0,
        evaluated: int = 0,
        where: Callable[[int, int], str] | None = None,
    ) -> int:
        """Runs the remaining steps and returns the final global step; Ctrl-C saves, then raises KeyboardInterrupt.

        Args:
          dataset: endless batches, from example number `examples` on, or their parts, see `share`.
          records: a description of the records, which a continuation compares.
          explain: returns the error in the records if reading fails.
          evaluate: called with the step every `eval_steps` steps and at the end, by the chief; True ends the training.
          evaluated: the last step that an earlier run evaluated.
          where: a function of the number of the first example and the number of examples, which names their records.
        """
        options, team = self._options, self._team
        self._team.check_same(records, "read other records; all workers need the same files")
        save_steps, eval_steps = options.save_checkpoints_steps, eval_steps if evaluate else 0
        over = self.global_step >= options.last_step
        was_due = eval_steps and self.global_step and (over or self.global_step % eval_steps == 0)
        if (was_due and evaluated < self.global_step and self._ends(evaluate)) or over:
            return self.global_step
        self._prepare(records)
        iterator, steps = self._iterator(dataset), self.step.several()
        monitor = TrainingMonitor(options, self.global_step, writes=team.is_chief)
        with StopRequest() as stop, monitor, self._saver:
            if save_steps and not self.global_step:
                self._save(records)
            while self.global_step < options.last_step:
                count = team.broadcast_from_chief(monitor.steps_to_run(self.global_step, save_steps, eval_steps))
                with team.watched(), explained(explain):
                    sums, bad = steps(iterator, tf.constant(self.global_step, tf.int64), tf.constant(count))
                self._check_finite(int(bad), where)
                self.global_step += count
                self.examples += count * options.train_batch_size
                monitor.report(self.global_step, count, {name: float(value) for name, value in sums.items()})
                last = self.global_step >= options.last_step
                signals = team.gather(stop.signal)
                stopping = any(signals)  # all workers stop after the same step
                evaluating = eval_steps and (last or self.global_step % eval_steps == 0)
                saving = save_steps and self.global_step % save_steps == 0
                if saving or last or stopping or evaluating:  # an evaluated step survives a kill
                    self._save(records)
                self._saver.check()
                if evaluating or stopping:
                    self._saver.wait()
                enough = evaluating and self._ends(evaluate)
                if stopping and not last:
                    raise self._stopped(signals)
                if enough:
                    break
                monitor.resume()
        return self.global_step

    def _iterator(self, dataset: tf.data.Dataset):
        batches = self._team.distribute(self._strategy, dataset, in_parts=self.share is not None)
        return iter(self.step.batches_on_device(batches))

    def _ends(self, evaluate: Callable[[int], bool]) -> bool:
        """Evaluates on the chief; returns on every worker whether the training ends."""
        return bool(self._team.broadcast_from_chief(int(bool(self._team.is_chief and evaluate(self.global_step)))))

    def _stopped(self, signals: Sequence[int]) -> process.Stopped:
        index, number = next((index, number) for index, number in enumerate(signals) if number)
        by = f" by a signal to {self._team.name(index)}" if self._team.size > 1 else ""
        return process.Stopped(
            number, f"stopped{by} after step {self.global_step}, which is saved; the same command continues there"
        )

    def _check_space(self) -> None:
        """Raises UserError if the disk has no space for a checkpoint; warns if it has no space for all checkpoints."""
        options = self._options
        size = sum(4 * math.prod(variable.shape) for variable in self._state.values())
        interval = options.save_checkpoints_steps or options.last_step
        to_come = 1 + math.ceil((options.last_step - self.global_step) / interval)
        missing = options.keep_checkpoint_max + 1 - self._saver.count  # one more while a checkpoint is written
        outputs.check_space(options.output_dir, size, "the checkpoints", max(1, min(to_come, missing)) * size)

    def _check_finite(self, bad: int, where: Callable[[int, int], str] | None) -> None:
        """Raises UserError for a step `bad`, counted from 0, whose loss or gradient is not finite; not for -1."""
        if bad < 0:
            return
        size = self._options.train_batch_size
        records = f" Its examples: {where(self.examples + (bad - self.global_step) * size, size)}." if where else ""
        self._saver.wait()
        latest = bundle.latest_checkpoint(self._options.output_dir)
        way_back = f" The last good checkpoint is {latest}." if latest else ""
        raise UserError(
            f"step {bad + 1}: the loss or its gradient is not a finite number.{records}{way_back} Lower --learning_rate"
        )

    def _prepare(self, records: str | None) -> None:
        """Warns of settings that make the continuation inexact, and checks the space on the disk."""
        if self._before:
            if changes := [": ".join(change) for change in self._before.changes(self._deciding(records))]:
                logging.warning("Not an exact continuation. %s", ". ".join(changes))
        elif self.global_step:
            what = "The checkpoint has no number of examples read; continuing behind %d, %d for each step"
            logging.info(what, self.examples, self._options.train_batch_size)
        if self.step.program.is_compiled:
            logging.info(
                "Compiling the training step with XLA; for a GPU, that takes about a minute, unless an earlier run has"
                " kept the program"
            )
        if self._team.is_chief:
            self._check_space()

    def _save(self, records: str | None) -> None:
        if self._team.is_chief:
            settings = {name: value for name, (value, _) in self._deciding(records).items()}
            self._saver.save(self._state, self.global_step, TrainingState(self.examples, settings))

    def _deciding(self, records: str | None) -> dict[str, tuple[Any, str]]:
        return deciding(self._options, self.model, records, self._strategy.num_replicas_in_sync)


class StopRequest:
    """Turns signals that stop a process into a request, the number `signal`; a later signal stops the process.

    Python handles a signal when the running graph returns, which happens every few seconds. If the graph does not
    return for `seconds_to_return` after the later signal, because it waits for a disk or another machine, a script ends
    all the same. Signals within `seconds_of_one` count as one request, because Ctrl-C in a shell and `timeout` send the
    same signal twice within milliseconds.
    """

    def __init__(self, seconds_of_one: float = 1.0, seconds_to_return: float = 10.0):
        self._seconds_of_one = seconds_of_one
        self._seconds_to_return = seconds_to_return

    def __enter__(self) -> StopRequest:
        self.signal, self._at = 0, 0.0
        self._first, self._over = math.inf, threading.Event()  # of the thread that gets signals at once
        self._watching = contextlib.ExitStack()
        self._before = process.handle_signals(self._on_signal)
        if process.is_script and threading.current_thread() is threading.main_thread():
            self._watching.enter_context(process.signals_at_once(self._end_a_graph))
        return self

    def _on_signal(self, number: int, frame) -> None:
        if not self.signal:
            self.signal, self._at = number, time.monotonic()
            logging.info("Stopping; once more stops without saving")
        elif time.monotonic() - self._at >= self._seconds_of_one:
            raise process.Stopped(number, "stopped at once; only the last checkpoint remains")

    def _end_a_graph(self, number: int) -> None:
        if number not in self._before:
            return
        self._first = min(self._first, time.monotonic())
        later = time.monotonic() - self._first >= self._seconds_of_one
        if later and not self._over.wait(self._seconds_to_return):
            self._before[number](number, None)

    def __exit__(self, *exception) -> None:
        self._over.set()
        self._watching.close()
        process.restore_signals(self._before)

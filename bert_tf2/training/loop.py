"""The training loop.

    read_records -> batch --.
                            v
       each replica: loss_terms -> local gradients
                            v
       all replicas: one sum of gradients -> global norm -> clip once -> AdamWeightDecayOptimizer
                            v
       at intervals: progress line, TensorBoard, checkpoint

An update does not depend on the number of replicas: every loss is divided by the weights of the *global* batch, and
clipping uses the norm of the summed gradients. (The reference clips on each TPU core before it sums. On one device the
two are the same.) Keras' `fit` clips before it sums and divides by each replica's own weights, hence this loop.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import tensorflow as tf
from absl import logging

from bert_tf2 import optimization
from bert_tf2.fast import compiled
from bert_tf2.heads import Batch
from bert_tf2.layers import fold_in
from bert_tf2.support import environment, process
from bert_tf2.support.errors import UserError
from bert_tf2.training import loss_scale, memory, state
from bert_tf2.training.devices import can_compile, check_batch, compiles_whole_step
from bert_tf2.training.loss_scale import LossScale, update_if_finite
from bert_tf2.training.monitor import Watch
from bert_tf2.training.options import TrainOptions
from bert_tf2.training.precision import PRECISIONS
from bert_tf2.training.profile import StepProfile
from bert_tf2.training.runner import explained
from bert_tf2.training.saver import Saver
from bert_tf2.training.step import local_gradients, reduce_gradients
from bert_tf2.training.stops import Every, StopRequest
from bert_tf2.training.workers import ALONE, Team
from bert_tf2.weights import checkpoint

# What a step returns in addition to the losses of the model.
_MEASURES = ("loss", "gradient_norm", "learning_rate")
# From here on, loops that are faster save more time than it takes to compile them for several sizes.
_STEPS_WORTH_COMPILING = 100
_OF_LOSS_SCALE = ("left_out", "loss_scale")  # for float16: the share of the steps that were left out


def start_from(
    model,
    output_dir: str,
    init_checkpoint: str | None,
    *,
    will_train: bool = False,
    allow_missing: tuple[str, ...] = (),
) -> int:
    """Loads the weights of a model and returns their global step.

    The newest checkpoint in output_dir takes precedence over init_checkpoint, as in the reference. The global step of
    init_checkpoint counts as 0.

    Args:
      will_train: whether the model is trained before it is used; its weights may then be random.
      allow_missing: see checkpoint.check_trained.

    Raises:
      UserError: the weights do not match the model; or, without will_train, there are no weights, or the outputs would
        depend on random ones.
    """
    latest = checkpoint.latest_checkpoint(output_dir)
    if latest:
        step = checkpoint.restore(latest, checkpoint.tf1_variables(model), model.config)
        logging.info("Using %s", latest)
        _tell_unused(latest, init_checkpoint)
        return step
    source = checkpoint.weights_in_use(output_dir, init_checkpoint, will_train)
    if source is None:
        logging.info("No checkpoint in %s and no --init_checkpoint: the weights are random", output_dir)
        return 0
    if not will_train:
        checkpoint.check_trained(model, source, allow_missing)
    logging.info(checkpoint.initialize(model, init_checkpoint))
    return 0


def _tell_unused(latest: str, init_checkpoint: str | None) -> None:
    if init_checkpoint:
        logging.info("--init_checkpoint=%s is not used, because there is %s", init_checkpoint, latest)


class Trainer:
    """Trains a model: `Trainer(...)`, then `start()`, then `train(dataset)`.

    Attributes:
      global_step: the number of steps so far.
      examples: the number of examples that these steps read, which is where `train`'s dataset must begin.
    """

    def __init__(self, model, strategy: tf.distribute.Strategy, options: TrainOptions, team: Team = ALONE):
        self._model = model
        self._strategy = strategy
        self._options = options
        self._team = team
        self._variables = checkpoint.trained_variables(model)
        # Without padding, the number of tokens is rounded to few values.
        self._has_few_sizes = not model.encoder.computes_padding and options.num_train_steps >= _STEPS_WORTH_COMPILING
        check_batch(options, strategy.num_replicas_in_sync, team.size)
        with strategy.scope():
            self._optimizer = optimization.AdamWeightDecayOptimizer(
                self._variables, bias_correction=options.adam_bias_correction, fused=can_compile(strategy)
            )
            self._loss_scale = LossScale() if PRECISIONS[options.precision].scales_loss else None
        self._saver = Saver(options.output_dir, options.keep_checkpoint_max, options.keep_checkpoint_every_n_hours)
        self.global_step = 0
        self.examples = 0
        self._before: state.TrainingState | None = None
        self._skipped = 0

    @property
    def _state(self) -> dict[str, tf.Variable]:
        """The contents of a checkpoint, by name."""
        scale = self._loss_scale.state if self._loss_scale else {}
        return {**checkpoint.tf1_variables(self._model), **self._optimizer.slots, **scale}

    def start(self, init_checkpoint: str | None = None) -> int:
        """Continues from the newest checkpoint in output_dir, or else loads init_checkpoint; returns the global step.

        Raises:
          UserError: the checkpoint does not match this model.
        """
        latest = checkpoint.latest_checkpoint(self._options.output_dir)
        if latest:
            self.global_step = checkpoint.restore(
                latest, self._state, self._model.config, allow_missing=loss_scale.NAMES
            )
            self._before = state.read(latest)
            self.examples = self._before.examples if self._before else self.global_step * self._options.train_batch_size
            self._skipped = self._before.skipped if self._before else 0
            _tell_unused(latest, init_checkpoint)
            if self.global_step >= self._options.num_train_steps:
                logging.info(
                    "%s is already at step %d of %d: nothing left to train",
                    latest, self.global_step, self._options.num_train_steps,
                )  # fmt: skip
            else:
                logging.info("Continuing from %s at step %d", latest, self.global_step)
        elif init_checkpoint:
            logging.info(checkpoint.initialize(self._model, init_checkpoint))
        else:
            logging.info("Starting from random weights")
        return self.global_step

    def is_done(self, eval_steps: int = 0, evaluated: int = 0) -> bool:
        """Whether neither a step nor an evaluation is left; the arguments are those of `train`."""
        return self.global_step >= self._options.num_train_steps and (not eval_steps or evaluated >= self.global_step)

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
        """Runs the remaining steps and returns the final global step.

        Args:
          dataset: an infinite dataset of batches, from example number `examples` on; with several workers, of the
            share `Team.share` of each batch.
          records: a description of the data, which is compared with that of the training that continues.
          explain: called when reading the data fails; returns the error to raise.
          evaluate: called with the step every `eval_steps` steps and at the end, each time after a checkpoint has been
            written; returning True ends the training. Of several workers, only the chief calls it.
          eval_steps: the interval of `evaluate`; 0 disables it.
          evaluated: the last step that an earlier call evaluated. If a kill came between a checkpoint and its
            evaluation, that is made up for first.
          where: called with the number of an example, counted from 0, and the number of examples behind it; names their
            files and records for a message.

        Raises:
          UserError: the data cannot be read; the loss or the gradient is not finite in more than
            options.skip_nonfinite_updates steps; or another worker has ended, or was started with other settings.
          KeyboardInterrupt: stopped by Ctrl-C or SIGTERM; a checkpoint of the last complete step has been written.
        """
        options, team = self._options, self._team
        self._check_team(records, evaluated)
        look = Every(eval_steps if evaluate else 0, self.global_step)
        over = self.global_step >= options.num_train_steps
        missed = look.was_due(self.global_step, over) and evaluated < self.global_step
        if (missed and self._ends(evaluate)) or over:
            return self.global_step
        self._tell_changes(records)
        profile = StepProfile(options, self.global_step, writes=team.is_chief)
        memory.check(self._model, self._strategy, options, dataset.element_spec)
        iterator = iter(team.distribute(self._strategy, dataset))
        steps = self._compile()
        watch = Watch(options, self.global_step, self._model.config, writes=team.is_chief)
        save = Every(options.save_checkpoints_steps or options.num_train_steps, self.global_step)
        if team.is_chief:
            self._check_space()
        with StopRequest() as stop, watch, profile, self._saver:
            if options.save_checkpoints_steps and not self.global_step:
                self._save(records)
            while self.global_step < options.num_train_steps:
                next_stop = min(save.next, look.next, profile.next_stop(self.global_step))
                count = team.chiefs(watch.steps_until_next_look(self.global_step, next_stop))
                with team.watched(watch.longest(count)), explained(explain), profile.step(self.global_step):
                    sums, *bad = steps(iterator, tf.constant(self.global_step, tf.int64), tf.constant(count))
                bad = self._check_finite(*map(int, bad), where)
                self.global_step += count
                self.examples += count * options.train_batch_size
                profile.after(self.global_step)
                watch.report(self.global_step, count, {name: float(value) for name, value in sums.items()}, bad)
                last = self.global_step >= options.num_train_steps
                signals = team.gather(stop.signal)  # all stop after the same step
                stopping = any(signals)
                looking = look.due(self.global_step, last)
                if save.due(self.global_step, last or stopping or looking):  # an evaluated step survives a kill
                    self._save(records)
                self._saver.check()
                if looking or stopping:
                    self._saver.wait()
                enough = looking and self._ends(evaluate)
                if stopping and not last:
                    raise self._stopped(signals)
                if enough:
                    break
                watch.resume()
        return self.global_step

    def _check_team(self, records: str | None, evaluated: int) -> None:
        """Raises UserError if the workers would not train the same, though their flags are."""
        self._team.check_same(
            [self.global_step, self.examples, evaluated],
            "do not continue from the same checkpoint; --output_dir must be a folder that all workers see",
        )
        self._team.check_same(records, "read other records; all workers need the same files")

    def _ends(self, evaluate: Callable[[int], bool]) -> bool:
        """Evaluates, and tells all workers whether the training ends with that."""
        return bool(self._team.chiefs(int(bool(self._team.is_chief and evaluate(self.global_step)))))

    def _stopped(self, signals: Sequence[int]) -> process.Stopped:
        """The exception that ends the script with the exit status of the first signal of a worker."""
        index, number = next((index, number) for index, number in enumerate(signals) if number)
        by = f" by a signal to {self._team.name(index)}" if self._team.several else ""
        return process.Stopped(
            number, f"stopped{by} after step {self.global_step}, which is saved; the same command continues there"
        )

    def _check_space(self) -> None:
        """Checks that the disk has space for a checkpoint, and warns if it does not have space for all of them.

        While a checkpoint is written, there is one more than keep_checkpoint_max.
        """
        options = self._options
        size = sum(4 * math.prod(variable.shape) for variable in self._state.values())
        interval = options.save_checkpoints_steps or options.num_train_steps
        to_come = 1 + math.ceil((options.num_train_steps - self.global_step) / interval)
        missing = options.keep_checkpoint_max + 1 - self._saver.count
        environment.check_space(options.output_dir, size, "the checkpoints", max(1, min(to_come, missing)) * size)

    def _check_finite(self, count: int, first: int, where: Callable[[int, int], str] | None) -> int:
        """Returns the number of steps whose loss or gradient was not finite, if they are tolerated.

        Args:
          count: their number.
          first: the first of them, counted from 0.
          where: see `train`.
        """
        if not count:
            return 0
        self._skipped += count
        options = self._options
        example = self.examples + (first - self.global_step) * options.train_batch_size
        records = f" Its examples: {where(example, options.train_batch_size)}." if where else ""
        problem = f"step {first + 1}: the loss or its gradient is not a finite number."
        if self._skipped <= options.skip_nonfinite_updates:
            logging.warning(
                "%s Its update was left out.%s So far, %d of %d that are tolerated.",
                problem, records, self._skipped, options.skip_nonfinite_updates,
            )  # fmt: skip
            return count
        self._saver.wait()
        latest = checkpoint.latest_checkpoint(options.output_dir)
        way_back = f" The last good checkpoint is {latest}." if latest else ""
        raise UserError(
            f"{problem}{records}{way_back} Lower --learning_rate, or leave out a few such updates with"
            " --skip_nonfinite_updates"
            + (f" (this is number {self._skipped} of the training)" if self._skipped > 1 else "")
        )

    def _tell_changes(self, records: str | None) -> None:
        if self.global_step and self._before is None:
            logging.info(
                "The checkpoint does not tell how many examples were read; continuing behind %d, %d for each step",
                self.examples, self._options.train_batch_size,
            )  # fmt: skip
        elif self._before:
            for change in self._before.changes(self._now(records)):
                logging.warning("Not an exact continuation. %s", change)

    def _save(self, records: str | None) -> None:
        if not self._team.is_chief:
            return
        self._saver.save(self._state, self.global_step, self._now(records))

    def _now(self, records: str | None) -> state.TrainingState:
        return state.current(self._options, self.examples, records, self._model.config, self._skipped)

    def compiled_step(self, *, jit_compile: bool = False):
        """One training step as a graph, on the default strategy: (batch, step) -> measures. For benchmarks and tests.

        With `jit_compile`, XLA compiles all of it, which needs fixed shapes.
        """
        return tf.function(self._replica_step, jit_compile=jit_compile, autograph=False)

    def _compile(self):
        """Returns a graph function that runs several steps.

        It returns the sums of their measures, without the steps in which one is not finite; how many those are; and the
        first of them.
        """
        strategy = self._strategy
        compiles = self._options.xla and compiles_whole_step(strategy)
        replica_step = self.compiled_step(jit_compile=True) if compiles else self._replica_step

        # Without AutoGraph, which would take a second to convert a loop.
        @tf.function(reduce_retracing=True, autograph=False)
        def steps(iterator, first: tf.Tensor, count: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
            def one(offset, sums, num_bad, first_bad):
                step = first + tf.cast(offset, tf.int64)
                measured = strategy.run(replica_step, args=(next(iterator), step))
                values = {name: strategy.reduce("SUM", measured[name], axis=None) for name in sums}
                good = tf.math.is_finite(values["loss"]) & tf.math.is_finite(values["gradient_norm"])
                sums = {name: value + tf.where(good, values[name], 0.0) for name, value in sums.items()}
                first_bad = tf.where(good | (num_bad > 0), first_bad, step)
                return offset + 1, sums, num_bad + tf.cast(~good, tf.int32), first_bad

            names = (*_MEASURES, *(_OF_LOSS_SCALE if self._loss_scale else ()), *self._model.loss_names)
            none = (tf.constant(0), dict.fromkeys(names, tf.constant(0.0)), tf.constant(0), tf.constant(-1, tf.int64))
            _, *found = tf.while_loop(lambda offset, *_: offset < count, one, none)
            return tuple(found)

        return steps

    @tf.autograph.experimental.do_not_convert  # it has no loops over tensors, and the conversion takes seconds
    def _replica_step(self, batch: Batch, step: tf.Tensor) -> dict[str, tf.Tensor]:
        """Runs one step on a replica's share of the batch; the returned measures are summed over the replicas."""
        context = tf.distribute.get_replica_context()
        replica = context.replica_id_in_sync_group
        seed = fold_in([self._options.random_seed, 0], step)
        seed = fold_in(seed, replica)
        scale = self._loss_scale.value() if self._loss_scale else None
        with compiled.few_sizes(self._has_few_sizes):
            values, gradients = local_gradients(
                self._model, self._variables, batch, seed, scale, self._options.gradient_accumulation_steps
            )
        gradients, norm = reduce_gradients(gradients)
        if self._options.skip_nonfinite_updates:
            norm += 0.0 * context.all_reduce("SUM", values["loss"])  # not finite either, if the loss is not
        learning_rate = optimization.learning_rate_at(
            step, self._options.learning_rate, self._options.num_train_steps, self._options.num_warmup_steps
        )
        once = tf.cast(tf.equal(replica, 0), tf.float32)  # what follows is the same on every replica
        measures = {**values, "learning_rate": once * learning_rate}
        if self._loss_scale is None:
            update = functools.partial(
                self._optimizer.apply_gradients, gradients, learning_rate, step, optimization.clip_scale(norm)
            )
            update_if_finite(norm, update) if self._options.skip_nonfinite_updates else update()
            return {**measures, "gradient_norm": once * norm}
        norm /= scale
        update = functools.partial(
            self._optimizer.apply_gradients, gradients, learning_rate, step, optimization.clip_scale(norm) / scale
        )
        left_out = self._loss_scale.apply(norm, update)
        norm = tf.where(left_out > 0, 0.0, norm)
        return {**measures, "gradient_norm": once * norm, "left_out": once * left_out, "loss_scale": once * scale}

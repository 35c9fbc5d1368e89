"""One training step: the losses, their gradients, the sum of the gradients over all replicas, and the update."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from bert_tf2 import optimization
from bert_tf2.data.records import PACKED
from bert_tf2.dropout import fold_in
from bert_tf2.fast import compiled
from bert_tf2.fast.encoder import plan_of
from bert_tf2.heads import Batch
from bert_tf2.placement import computes_on
from bert_tf2.training import layerwise
from bert_tf2.training.gradients import Gradients, LocalGradients, global_norm, reduce_gradients, weights_of
from bert_tf2.training.options import PRECISIONS, LoopOptions
from bert_tf2.training.programs import can_compile, program_for
from bert_tf2.weights import checkpoint

# The measures that a step returns in addition to the losses of the model.
_MEASURES = ("loss", "gradient_norm")
_OF_LOSS_SCALE = ("left_out", "loss_scale")  # for float16: the share of the steps that were left out, and the scale
_OF_PACKED_ROWS = ("rows",)  # the number of rows that all replicas computed
# From this number of steps on, faster loops save more time than their compilation for several sizes takes.
_STEPS_WORTH_SIZES = 100
_ONE_GPU = "/GPU:0"
_BATCHES_AHEAD = 2  # on the GPU, beside the batch of the step


class OfStep(NamedTuple):
    """The numbers that the options and the number of a step determine.

    They are computed outside the programs of XLA, which are thus the same for every learning rate, number of steps and
    seed, and which a search for the best of these finds in the cache.
    """

    step: tf.Tensor  # int64 []: the number of steps before
    dropout_seed: tf.Tensor  # int32 [2]
    learning_rate: tf.Tensor  # float32 []


class SoFar(NamedTuple):
    """The result of the steps that one call has run so far."""

    step: tf.Tensor  # int64 []: the number of the next step
    sums: tf.Tensor  # float32 [measures]: the sums of the steps' measures
    bad: tf.Tensor  # int64 []: the first step with a loss or gradient that is not finite, or -1


class TrainingStep:
    """The steps of a training run: a batch of all replicas -> an update of the model's variables.

    The constructor freezes the layers of the options, and logs the shares of the learning rate if they are not all 1.
    """

    def __init__(self, model, strategy: tf.distribute.Strategy, options: LoopOptions):
        self._model = model
        self._strategy = strategy
        self._options = options
        layerwise.freeze(model, layerwise.layers_in(options.freeze))
        variables = checkpoint.trained_variables(model)
        self._local_gradients = LocalGradients(model, variables, options.gradient_accumulation_steps)
        self._all_reduce_dtype = tf.as_dtype(options.all_reduce_dtype)
        # Without padding, the number of tokens is rounded to few values; the number of packed rows is, too.
        steps, is_fixed = options.num_train_steps, plan_of(model).computes_padding
        self._has_few_sizes = (options.pack_rows or not is_fixed) and steps >= _STEPS_WORTH_SIZES
        self.program = options.program or program_for(options, strategy, steps, is_fixed=is_fixed, trains=True)
        # A GPU would launch a program for each variable; and all updates in one program take few seconds to compile.
        able = can_compile(strategy)
        compiles_update = able and computes_on(strategy) == "GPU"
        trained = [*variables]
        shares = layerwise.shares_of(trained, options.layer_decay)
        if options.layer_decay != 1.0 or options.freeze:
            layerwise.log_shares(trained, shares, frozen=checkpoint.used_variables(model))
        with strategy.scope():
            self._optimizer = optimization.AdamWeightDecayOptimizer(
                variables,
                bias_correction=options.adam_bias_correction,
                fused=able,
                shares=dict(zip(trained, shares, strict=True)),
            )
            self._loss_scale = LossScale() if PRECISIONS[options.precision].scales_loss else None
        # name -> variable of the optimizer's state, for checkpoints
        self.state = {**self._optimizer.slots, **(self._loss_scale.state if self._loss_scale else {})}
        of_scale = _OF_LOSS_SCALE if self._loss_scale else ()
        of_rows = _OF_PACKED_ROWS if self.program.packs else ()
        self._measures = (*_MEASURES, *of_scale, *of_rows, *model.loss_names)
        # XLA compiles the whole step of a single device, and otherwise its two parts.
        if self.program.is_compiled and strategy.num_replicas_in_sync == 1:
            self._run_replica = compiled.as_program(self._replica_step)
        else:
            in_programs = self.program.is_compiled or compiles_update
            self._run_replica = functools.partial(self._replica_step, in_programs=in_programs)

    def _of_step(self, step: tf.Tensor) -> OfStep:
        options = self._options
        seed = fold_in([options.random_seed, 0], step)
        schedule = options.learning_rate, options.num_train_steps, options.num_warmup_steps
        return OfStep(step, seed, optimization.learning_rate_at(step, *schedule))

    @tf.autograph.experimental.do_not_convert  # it has no loops over tensors, and the conversion takes seconds
    def _replica_step(self, batch: Batch, of_step: OfStep, in_programs: bool = False) -> dict[str, tf.Tensor]:
        """Runs a step on a replica's share of the batch; the caller sums the returned measures over the replicas.

        `in_programs`: whether the update, and in a compiled step the gradients, are programs of XLA. Between the two,
        TensorFlow sums over the replicas, which a program of XLA cannot. Each replica makes programs of its own,
        because they refer to the replica's variables.
        """
        # int64, because TensorFlow keeps constants of int32 on the host
        replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)
        compute, update, weights = self._gradients, self._update, None
        if in_programs:
            update = compiled.as_program(update)
        if in_programs and self.program.is_compiled:
            compute = compiled.as_program(compute)
            weights = weights_of(self._model.loss_terms(batch, dropout_seed=tf.constant([0, 0])))
        measured, gradients = compute(batch, of_step, replica, weights)
        if self.program.packs:
            measured["rows"] = tf.cast(tf.shape(batch[PACKED[0]])[0], tf.float32)
        return measured | update(reduce_gradients(gradients, self._all_reduce_dtype), of_step, replica)

    def _gradients(
        self, batch: Batch, of_step: OfStep, replica: tf.Tensor, weights: list[tf.Tensor] | None = None
    ) -> tuple[dict[str, tf.Tensor], Gradients]:
        """See LocalGradients; `weights`: of the whole batch, see weights_of."""
        seed = fold_in(of_step.dropout_seed, tf.cast(replica, tf.int32))
        scale = tf.convert_to_tensor(self._loss_scale.scale) if self._loss_scale else None
        with compiled.few_sizes(self._has_few_sizes):
            return self._local_gradients(batch, seed, scale, weights)

    def _update(self, gradients: Gradients, of_step: OfStep, replica: tf.Tensor) -> dict[str, tf.Tensor]:
        """Updates the replica's variables by the sum of all gradients, which is the same on each replica."""
        norm = global_norm(gradients)
        once = tf.cast(tf.equal(replica, 0), tf.float32)  # the measures are summed over the replicas
        scale = tf.convert_to_tensor(self._loss_scale.scale) if self._loss_scale else None
        if scale is None:
            factor = optimization.clip_scale(norm)
            self._optimizer.apply_gradients(gradients.dense, of_step.learning_rate, of_step.step, factor)
            return {"gradient_norm": once * norm}
        norm /= scale
        factor = optimization.clip_scale(norm) / scale
        given = gradients.dense, of_step.learning_rate, of_step.step, factor
        update = functools.partial(self._optimizer.apply_gradients, *given)
        left_out = self._loss_scale.apply(norm, update)
        # With the smallest scale, no later step would be better, and the loop ends the training.
        norm = tf.where((left_out > 0) & (scale > _SMALLEST_SCALE), 0.0, norm)
        return {"left_out": once * left_out, "loss_scale": once * scale, "gradient_norm": once * norm}

    def compiled(self, *, jit_compile: bool = False):
        """Returns a step as a graph, on one device: (batch, step) -> measures; `jit_compile` needs fixed shapes."""

        def whole_step(batch: Batch, step: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._replica_step(batch, self._of_step(step))

        return tf.function(whole_step, jit_compile=jit_compile, autograph=False)

    def several(self):
        """Returns a function that runs several steps: (iterator, the first step, the number of steps).

        The function returns the sums of the steps' measures, and the first step with a measure that is not finite, -1
        if all are finite.
        """

        # Without AutoGraph, which would take a second to convert a loop.
        @tf.function(reduce_retracing=True, autograph=False)
        def steps(iterator, first: tf.Tensor, count: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
            # A GPU adds to its own number of the step. The loop counts by itself, because the host needs this number:
            # a copy in either direction would wait until the GPU has computed the step before.
            def body(done, so_far):
                return done + 1, self._add_step(next(iterator), so_far)

            _, so_far = tf.while_loop(lambda done, _: done < count, body, (tf.constant(0), self._no_steps(first)))
            return self._named(so_far)

        add_step = tf.function(self._add_step, autograph=False)

        def steps_of_fixed_shapes(iterator, first: tf.Tensor, count: tf.Tensor):
            """The same with a graph for each number of rows; in a loop of a graph, the number would be unknown."""
            so_far = self._no_steps(first)
            for _ in range(int(count)):
                so_far = add_step(next(iterator), so_far)
            return self._named(so_far)

        return steps_of_fixed_shapes if self._needs_fixed_shapes else steps

    def _no_steps(self, first: tf.Tensor) -> SoFar:
        return SoFar(first, tf.zeros([len(self._measures)]), tf.constant(-1, tf.int64))

    def _add_step(self, batch: Batch, so_far: SoFar) -> SoFar:
        """Runs a step of all replicas."""
        step, sums, bad = so_far
        measured = self._strategy.run(self._replica_measures, args=(batch, step))
        # One sum for all measures, because each sum between workers waits for the network.
        measured = self._strategy.reduce("SUM", measured, axis=None)
        good = tf.reduce_all(tf.math.is_finite(measured[: len(_MEASURES)]))
        return SoFar(step + 1, sums + measured, tf.where(good | (bad >= 0), bad, step))

    def _replica_measures(self, batch: Batch, step: tf.Tensor) -> tf.Tensor:
        measured = self._run_replica(batch, self._of_step(step))
        return tf.stack([measured[name] for name in self._measures])

    def _named(self, so_far: SoFar) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        return dict(zip(self._measures, tf.unstack(so_far.sums), strict=True)), so_far.bad

    @property
    def _needs_fixed_shapes(self) -> bool:
        return self.program.is_compiled and self.program.packs and plan_of(self._model).attention is not None

    def batches_on_device(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Copies batches to a GPU before the compiled steps of `several` need them; elsewhere, returns the data set.

        TensorFlow's copies to a GPU wait until the GPU has computed everything that was launched before. If a step
        copied its own batch, the launch of its kernels would begin only after the end of the step before, and the GPU
        would wait for the host in each step.
        """
        one_gpu = computes_on(self._strategy) == "GPU" and self._strategy.num_replicas_in_sync == 1
        if not (one_gpu and self.program.is_compiled) or self._needs_fixed_shapes:
            return dataset  # operations that are not compiled compute whole numbers, as positions, on the host
        return dataset.apply(tf.data.experimental.prefetch_to_device(_ONE_GPU, _BATCHES_AHEAD))


_SMALLEST_SCALE, _LARGEST_SCALE = 1.0, 2.0**30  # of the loss of float16

LOSS_SCALE_NAMES = ("loss_scale", "loss_scale_good_steps")
"""The names of the state in checkpoints; weights.names counts them as optimizer state."""


class LossScale:
    """The dynamic loss scale of float16, whose smallest number is 6e-8: smaller gradients would become 0.

    A scale that is too large makes a gradient infinite; this step is left out, and the scale is halved. After many good
    steps, the scale is doubled. After Micikevicius et al., "Mixed Precision Training" (2018), section 3.2.
    """

    def __init__(self, first_scale: float = 2.0**15, steps_before_growth: int = 2000):
        """`steps_before_growth`: the number of good steps after which the scale is doubled."""
        self._steps_before_growth = steps_before_growth
        self.scale = tf.Variable(first_scale, trainable=False, name="loss_scale")
        self._good_steps = tf.Variable(0.0, trainable=False, name="good_steps")
        # name -> variable; the contents of a checkpoint
        self.state = dict(zip(LOSS_SCALE_NAMES, (self.scale, self._good_steps), strict=True))

    def apply(self, norm: tf.Tensor, update: Callable[[], None]) -> tf.Tensor:
        """Calls `update` if the norm of all gradients is finite, and adapts the scale.

        Returns float32 1 if the step was left out, 0 otherwise.
        """

        def do() -> tf.Tensor:
            update()
            return tf.constant(0)

        good = tf.math.is_finite(norm)
        tf.cond(good, do, lambda: tf.constant(0))
        scale, steps = tf.convert_to_tensor(self.scale), tf.convert_to_tensor(self._good_steps) + 1.0
        grows = steps >= self._steps_before_growth
        larger = tf.where(grows, tf.minimum(scale * 2.0, _LARGEST_SCALE), scale)
        smaller = tf.maximum(scale * 0.5, _SMALLEST_SCALE)
        # Every replica changes its own copy by the same rule; `assign` would require a rule to merge them.
        for variable, value in (
            (self.scale, tf.where(good, larger, smaller)),
            (self._good_steps, tf.where(good & ~grows, steps, 0.0)),
        ):
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
        return 1.0 - tf.cast(good, tf.float32)

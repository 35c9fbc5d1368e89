"""One training step: the losses, their gradients, the sum of the gradients over all replicas, and the update."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf2 import optimization
from bert_tf2.data.records import PACKED
from bert_tf2.dropout import fold_in
from bert_tf2.fast import compiled
from bert_tf2.fast.encoder import plan_of
from bert_tf2.heads import Batch, LossTerm
from bert_tf2.placement import computes_on
from bert_tf2.shapes import get_shape_list
from bert_tf2.training import layerwise
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
# Between workers, a pack is sent while the next pack is copied: 1.8 times as fast as a single pack of all gradients.
_IN_PACKS = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=16_000_000)


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
        self._variables = checkpoint.trained_variables(model)
        self._all_reduce_dtype = tf.as_dtype(options.all_reduce_dtype)
        # Without padding, the number of tokens is rounded to few values; the number of packed rows is, too.
        steps, is_fixed = options.num_train_steps, plan_of(model).computes_padding
        self._has_few_sizes = (options.pack_rows or not is_fixed) and steps >= _STEPS_WORTH_SIZES
        self.program = options.program or program_for(options, strategy, steps, is_fixed=is_fixed, trains=True)
        # A GPU would launch a program for each variable; and all updates in one program take few seconds to compile.
        able = can_compile(strategy)
        self._compiles_update = able and computes_on(strategy) == "GPU"
        trained = [*self._variables]
        shares = layerwise.shares_of(trained, options.layer_decay)
        if options.layer_decay != 1.0 or options.freeze:
            layerwise.log_shares(trained, shares, frozen=checkpoint.used_variables(model))
        with strategy.scope():
            self._optimizer = optimization.AdamWeightDecayOptimizer(
                self._variables,
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
        # XLA compiles the whole step of a single device, and otherwise its two parts; see _step_of_programs.
        self._run_replica = self._replica_step
        if self.program.is_compiled and strategy.num_replicas_in_sync == 1:
            self._run_replica = compiled.program(self._replica_step)
        elif self.program.is_compiled or self._compiles_update:
            self._run_replica = self._step_of_programs

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
        return self.program.is_compiled and self.program.packs and plan_of(self._model).needs_fixed_shapes

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

    def _of_step(self, step: tf.Tensor) -> OfStep:
        options = self._options
        seed = fold_in([options.random_seed, 0], step)
        schedule = options.learning_rate, options.num_train_steps, options.num_warmup_steps
        return OfStep(step, seed, optimization.learning_rate_at(step, *schedule))

    @tf.autograph.experimental.do_not_convert  # it has no loops over tensors, and the conversion takes seconds
    def _replica_step(self, batch: Batch, of_step: OfStep) -> dict[str, tf.Tensor]:
        """Runs a step on a replica's share of the batch; the caller sums the returned measures over the replicas."""
        values, gradients = self._gradients(batch, of_step, _replica())
        reduced = reduce_gradients(gradients, self._all_reduce_dtype)
        return values | self._rows(batch) | self._update(reduced, of_step, _replica())

    @tf.autograph.experimental.do_not_convert
    def _step_of_programs(self, batch: Batch, of_step: OfStep) -> dict[str, tf.Tensor]:
        """The same in two programs that XLA compiles, the gradients and the update, with the replicas' sum in between.

        XLA's programs cannot sum over the replicas. Each replica makes programs of its own, because they refer to the
        replica's variables. If the step is not compiled, only the update is a program.
        """
        compute, weights = self._gradients, None
        if self.program.is_compiled:
            compute = compiled.program(compute)
            weights = weights_of(self._model.loss_terms(batch, dropout_seed=tf.constant([0, 0])))
        values, gradients = compute(batch, of_step, _replica(), weights)
        reduced = reduce_gradients(gradients, self._all_reduce_dtype)
        return values | self._rows(batch) | compiled.program(self._update)(reduced, of_step, _replica())

    def _rows(self, batch: Batch) -> dict[str, tf.Tensor]:
        if not self.program.packs:
            return {}
        return dict.fromkeys(_OF_PACKED_ROWS, tf.cast(tf.shape(batch[PACKED[0]])[0], tf.float32))

    def _gradients(
        self, batch: Batch, of_step: OfStep, replica: tf.Tensor, weights: list[tf.Tensor] | None = None
    ) -> tuple[dict[str, tf.Tensor], Gradients]:
        """See local_gradients."""
        seed = fold_in(of_step.dropout_seed, tf.cast(replica, tf.int32))
        scale = tf.convert_to_tensor(self._loss_scale.scale) if self._loss_scale else None
        parts = self._options.gradient_accumulation_steps
        with compiled.few_sizes(self._has_few_sizes):
            return local_gradients(self._model, self._variables, batch, seed, scale, parts, weights)

    def _update(self, gradients: Gradients, of_step: OfStep, replica: tf.Tensor) -> dict[str, tf.Tensor]:
        """Updates the replica's variables by the sum of all gradients, which is the same on each replica."""
        norm = global_norm(gradients)
        gradients = {name: g.dense if isinstance(g, Accumulated) else g for name, g in gradients.items()}
        once = tf.cast(tf.equal(replica, 0), tf.float32)  # the measures are summed over the replicas
        scale = tf.convert_to_tensor(self._loss_scale.scale) if self._loss_scale else None
        if scale is None:
            factor = optimization.clip_scale(norm)
            self._optimizer.apply_gradients(gradients, of_step.learning_rate, of_step.step, factor)
            return {"gradient_norm": once * norm}
        norm /= scale
        factor = optimization.clip_scale(norm) / scale
        given = gradients, of_step.learning_rate, of_step.step, factor
        update = functools.partial(self._optimizer.apply_gradients, *given)
        left_out = self._loss_scale.apply(norm, update)
        # With the smallest scale, no later step would be better, and the loop ends the training.
        norm = tf.where((left_out > 0) & (scale > _SMALLEST_SCALE), 0.0, norm)
        return {"left_out": once * left_out, "loss_scale": once * scale, "gradient_norm": once * norm}


def _replica() -> tf.Tensor:
    """The number of this replica, int64 [], because TensorFlow keeps constants of int32 on the host."""
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)


class Accumulated(NamedTuple):
    """The sum of the gradients of one or several lookups, and the sum of their `optimization.square_norm`s."""

    dense: tf.Tensor
    square: tf.Tensor


Gradients = dict[str, tf.Tensor | Accumulated]


def weights_of(terms: Sequence[LossTerm]) -> list[tf.Tensor]:
    """The weights of loss terms over the whole batch of all replicas, by which their sums are divided."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce("SUM", [tf.stop_gradient(term.weight) for term in terms])


def local_gradients(
    model,
    variables: Mapping[str, tf.Variable],
    batch: Batch,
    dropout_seed: tf.Tensor,
    loss_scale: tf.Tensor | None = None,
    parts: int = 1,
    weights: Sequence[tf.Tensor] | None = None,
) -> tuple[dict[str, tf.Tensor], Gradients]:
    """Computes this replica's part of the losses and their gradients; the sum over all replicas is the whole.

    The batch is computed in `parts`, one after the other, to save memory. `dropout_seed`: int32 [2]. `weights`:
    weights_of the batch; None to compute them.

    Returns losses by name (`loss` is the sum of the others) and gradients by the name of the variable.
    """

    def compute(rows, seed, weights):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(list(variables.values()))
            terms = model.loss_terms(rows, dropout_seed=seed)
            of_batch = weights_of(terms) if weights is None else weights
            values = {term.name: term._replace(weight=by).mean() for term, by in zip(terms, of_batch, strict=True)}
            loss = tf.add_n(list(values.values()))
            scaled = loss if loss_scale is None else loss * loss_scale
        gradients = tape.gradient(scaled, list(variables.values()))
        return {**values, "loss": loss}, dense_lookups(dict(zip(variables, gradients, strict=True)))

    if parts == 1:
        return compute(batch, dropout_seed, weights)
    # These terms are used only for the weights of the whole batch, so the graph computes nothing else of the terms.
    terms = model.loss_terms(batch, dropout_seed=dropout_seed)
    names = [*(term.name for term in terms), "loss"]
    of_part = functools.partial(compute, weights=weights_of(terms) if weights is None else weights)
    return _sum_over_parts(of_part, names, variables, batch, dropout_seed, parts)


def _sum_over_parts(
    compute: Callable,
    names: list[str],
    variables: Mapping[str, tf.Variable],
    batch: Batch,
    dropout_seed: tf.Tensor,
    parts: int,
) -> tuple[dict[str, tf.Tensor], Gradients]:
    """See `local_gradients`; a loop, so that only one part's activations are in memory."""
    shapes = {name: get_shape_list(values) for name, values in batch.items()}
    split = {
        name: tf.reshape(values, [parts, shapes[name][0] // parts, *shapes[name][1:]]) for name, values in batch.items()
    }
    lookups: set[str] = set()

    def add(part, values, sums, squares):
        rows = {name: tf.gather(features, part) for name, features in split.items()}
        found, gradients = compute(rows, fold_in(dropout_seed, part))
        # Only lookups have squares. A gradient that is not used for a square, too, is added in place.
        more = {name: g.square for name, g in gradients.items() if isinstance(g, Accumulated)}
        lookups.update(more)
        return (
            part + 1,
            {name: values[name] + found[name] for name in values},
            {name: sums[name] + (gradients[name].dense if name in more else gradients[name]) for name in sums},
            {name: squares[name] + more.get(name, 0.0) for name in squares},
        )

    zero = tf.constant(0.0)
    sums = {name: tf.zeros(variable.shape) for name, variable in variables.items()}
    start = (tf.constant(0), dict.fromkeys(names, zero), sums, dict.fromkeys(variables, zero))
    _, values, sums, squares = tf.while_loop(lambda part, *_: part < parts, add, start, parallel_iterations=1)
    return values, {name: Accumulated(g, squares[name]) if name in lookups else g for name, g in sums.items()}


def dense_lookups(gradients: Mapping[str, optimization.Gradient]) -> Gradients:
    """Makes the gradients of lookups dense, with their square norms, which count each row by itself."""
    return {
        name: Accumulated(tf.convert_to_tensor(gradient), optimization.square_norm(gradient))
        if isinstance(gradient, tf.IndexedSlices)
        else gradient
        for name, gradient in gradients.items()
    }


def reduce_gradients(gradients: Gradients, dtype: tf.DType = tf.float32) -> Gradients:
    """Sums the gradients, and the square norms of lookups, over the replicas.

    `dtype`: of the numbers that replicas send; bfloat16 halves the bytes.
    """
    context = tf.distribute.get_replica_context()
    lookups = [name for name, gradient in gradients.items() if isinstance(gradient, Accumulated)]
    square = [gradients[name].square for name in lookups]
    dense = [g.dense if isinstance(g, Accumulated) else g for g in gradients.values()]
    if dtype == tf.float32 or context.num_replicas_in_sync == 1:
        found = context.all_reduce("SUM", [*dense, *square], _IN_PACKS)
        dense, square = found[: len(dense)], found[len(dense) :]
    else:
        square = context.all_reduce("SUM", square) if square else square
        narrow = context.all_reduce("SUM", [tf.cast(g, dtype) for g in dense], _IN_PACKS)
        dense = [tf.cast(g, tf.float32) for g in narrow]
    summed = dict(zip(gradients, dense, strict=True))
    return summed | {name: Accumulated(summed[name], by) for name, by in zip(lookups, square, strict=True)}


def global_norm(gradients: Gradients) -> tf.Tensor:
    """Returns the norm of all gradients as one vector; optimization.square_norm explains it."""
    squares = [gradient.square for gradient in gradients.values() if isinstance(gradient, Accumulated)]
    others = [gradient for gradient in gradients.values() if not isinstance(gradient, Accumulated)]
    return tf.sqrt(tf.add_n([*squares, optimization.square_norm(*others)]))


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

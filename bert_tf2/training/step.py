"""One training step: the losses, their gradients, the sum of the gradients over all replicas, and the update."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf2 import optimization
from bert_tf2.fast import compiled
from bert_tf2.heads import Batch, LossTerm
from bert_tf2.layers import fold_in
from bert_tf2.shapes import get_shape_list
from bert_tf2.training.devices import can_compile, compiles_whole_step
from bert_tf2.training.loss_scale import LossScale, update_if_finite
from bert_tf2.training.options import TrainOptions
from bert_tf2.training.precision import PRECISIONS
from bert_tf2.weights import checkpoint

# What a step returns in addition to the losses of the model.
_MEASURES = ("loss", "gradient_norm", "learning_rate")
_OF_LOSS_SCALE = ("left_out", "loss_scale")  # for float16: the share of the steps that were left out
# From here on, loops that are faster save more time than it takes to compile them for several sizes.
_STEPS_WORTH_COMPILING = 100
# Between workers, one pack is sent while the next one is copied: 1.8 times as fast as one pack of all gradients.
_IN_PACKS = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=16_000_000)


class TrainingStep:
    """The steps of a training: a batch of all replicas -> an update of the model's variables.

    Attributes:
      state: the optimizer's state by name, which belongs into a checkpoint.
    """

    def __init__(self, model, strategy: tf.distribute.Strategy, options: TrainOptions):
        self._model = model
        self._strategy = strategy
        self._options = options
        self._variables = checkpoint.trained_variables(model)
        # Without padding, the number of tokens is rounded to few values.
        self._has_few_sizes = not model.encoder.computes_padding and options.num_train_steps >= _STEPS_WORTH_COMPILING
        with strategy.scope():
            self._optimizer = optimization.AdamWeightDecayOptimizer(
                self._variables, bias_correction=options.adam_bias_correction, fused=can_compile(strategy)
            )
            self._loss_scale = LossScale() if PRECISIONS[options.precision].scales_loss else None
        self.state = {**self._optimizer.slots, **(self._loss_scale.state if self._loss_scale else {})}

    @property
    def bytes_to_sum(self) -> int:
        """The bytes of the gradients that the replicas sum in each step."""
        numbers = sum(math.prod(variable.shape) for variable in self._variables.values())
        return numbers * tf.as_dtype(self._options.all_reduce_dtype).size

    def compiled(self, *, jit_compile: bool = False):
        """One step as a graph, on the default strategy: (batch, step) -> measures.

        With `jit_compile`, XLA compiles all of it, which needs fixed shapes.
        """
        return tf.function(self._replica_step, jit_compile=jit_compile, autograph=False)

    def several(self):
        """Returns a graph function that runs several steps: (iterator, the first step, their number).

        It returns the sums of their measures, without the steps in which one is not finite; how many those are; and the
        first of them.
        """
        strategy = self._strategy
        compiles = self._options.xla and compiles_whole_step(strategy)
        replica_step = self.compiled(jit_compile=True) if compiles else self._replica_step

        # Without AutoGraph, which would take a second to convert a loop.
        @tf.function(reduce_retracing=True, autograph=False)
        def steps(iterator, first: tf.Tensor, count: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
            def measure(batch, step):
                measured = replica_step(batch, step)
                return tf.stack([measured[name] for name in names])

            def one(offset, sums, num_bad, first_bad):
                step = first + tf.cast(offset, tf.int64)
                measured = strategy.run(measure, args=(next(iterator), step))
                # One sum of all of them: between workers, each sum waits for the network.
                measured = strategy.reduce("SUM", measured, axis=None)
                values = dict(zip(names, tf.unstack(measured), strict=True))
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
        gradients, norm = reduce_gradients(gradients, tf.as_dtype(self._options.all_reduce_dtype))
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


class Accumulated(NamedTuple):
    """The sum of the gradients of several lookups, and the sum of their `optimization.square_norm`s."""

    dense: tf.Tensor
    square: tf.Tensor


Gradients = dict[str, tf.Tensor | tf.IndexedSlices | Accumulated]


def local_gradients(
    model,
    variables: Mapping[str, tf.Variable],
    batch: Batch,
    dropout_seed: tf.Tensor,
    loss_scale: tf.Tensor | None = None,
    parts: int = 1,
) -> tuple[dict[str, tf.Tensor], Gradients]:
    """Computes this replica's part of the losses and their gradients; the sum over all replicas is the whole.

    Args:
      model: the model.
      variables: by name.
      batch: this replica's features.
      dropout_seed: int32 [2].
      loss_scale: a factor for the gradients.
      parts: the number of parts in which the batch is computed, one after the other, to save memory. The sum is that of
        the whole batch, except for other dropout.

    Returns:
      Losses by name (`loss` is their sum) and gradients by variable name.
    """
    if parts > 1:
        return _in_parts(model, variables, batch, dropout_seed, loss_scale, parts)
    return _gradients(model, variables, batch, dropout_seed, loss_scale, _weights)


def _weights(terms: Sequence[LossTerm]) -> list[tf.Tensor]:
    """The weights of terms over the whole batch of all replicas."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce("SUM", [tf.stop_gradient(term.weight) for term in terms])


def _gradients(
    model,
    variables: Mapping[str, tf.Variable],
    batch: Batch,
    dropout_seed: tf.Tensor,
    loss_scale: tf.Tensor | None,
    weights_of: Callable[[Sequence[LossTerm]], Sequence[tf.Tensor]],
) -> tuple[dict[str, tf.Tensor], Gradients]:
    """See `local_gradients`; `weights_of` is `_weights`, or knows its result already."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(list(variables.values()))
        terms = model.loss_terms(batch, dropout_seed=dropout_seed)
        weights = weights_of(terms)
        values = {term.name: term._replace(weight=weight).mean() for term, weight in zip(terms, weights, strict=True)}
        loss = tf.add_n(list(values.values()))
        scaled = loss if loss_scale is None else loss * loss_scale
    gradients = tape.gradient(scaled, list(variables.values()))
    return {**values, "loss": loss}, dict(zip(variables, gradients, strict=True))


def _in_parts(
    model,
    variables: Mapping[str, tf.Variable],
    batch: Batch,
    dropout_seed: tf.Tensor,
    loss_scale: tf.Tensor | None,
    parts: int,
) -> tuple[dict[str, tf.Tensor], Gradients]:
    """See `local_gradients`. A loop, so that only one part's activations are in memory."""
    # Only the weights of the whole batch are used of this, and the graph computes nothing else of it.
    terms = model.loss_terms(batch, dropout_seed=dropout_seed)
    weights = _weights(terms)
    split = {name: _split(values, parts) for name, values in batch.items()}
    lookups: set[str] = set()

    def add(part, values, sums, squares):
        rows = {name: tf.gather(features, part) for name, features in split.items()}
        seed = fold_in(dropout_seed, part)
        found, gradients = _gradients(model, variables, rows, seed, loss_scale, lambda _: weights)
        lookups.update(name for name, g in gradients.items() if isinstance(g, tf.IndexedSlices))
        # The other squares are not needed, and a gradient that is used once is added in place.
        more = {name: optimization.square_norm(gradients[name]) for name in lookups}
        return (
            part + 1,
            {name: values[name] + found[name] for name in values},
            {name: sums[name] + gradients[name] for name in sums},
            {name: squares[name] + more.get(name, 0.0) for name in squares},
        )

    _, values, sums, squares = tf.while_loop(
        lambda part, *_: part < parts,
        add,
        (
            tf.constant(0),
            dict.fromkeys([*(term.name for term in terms), "loss"], tf.constant(0.0)),
            {name: tf.zeros(variable.shape) for name, variable in variables.items()},
            dict.fromkeys(variables, tf.constant(0.0)),
        ),
        parallel_iterations=1,
    )
    return values, {name: Accumulated(g, squares[name]) if name in lookups else g for name, g in sums.items()}


def _split(values: tf.Tensor, parts: int) -> tf.Tensor:
    """[B, ...] -> [parts, B / parts, ...]. B must be divisible."""
    rows, *rest = get_shape_list(values)
    return tf.reshape(values, [parts, rows // parts, *rest])


def reduce_gradients(gradients: Gradients, dtype: tf.DType = tf.float32) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Sums the gradients over the replicas.

    Args:
      gradients: those of this replica, by name.
      dtype: of what travels between the replicas; with bfloat16, half as many bytes. One replica sends nothing.

    Returns:
      Dense float32 gradients by name, and their global norm as computed by optimization.square_norm.
    """
    context = tf.distribute.get_replica_context()
    names = list(gradients)
    squares = [_square_of_lookup(g) for g in gradients.values() if isinstance(g, tf.IndexedSlices | Accumulated)]
    square_of_lookups = tf.add_n(squares) if squares else tf.constant(0.0)
    dense = [g.dense if isinstance(g, Accumulated) else tf.convert_to_tensor(g) for g in gradients.values()]
    if dtype == tf.float32 or context.num_replicas_in_sync == 1:
        *dense, square = context.all_reduce("SUM", [*dense, square_of_lookups], _IN_PACKS)
    else:
        square = context.all_reduce("SUM", square_of_lookups)
        narrow = context.all_reduce("SUM", [tf.cast(g, dtype) for g in dense], _IN_PACKS)
        dense = [tf.cast(g, tf.float32) for g in narrow]
    squares = [
        optimization.square_norm(g)
        for name, g in zip(names, dense, strict=True)
        if not isinstance(gradients[name], tf.IndexedSlices | Accumulated)
    ]
    return dict(zip(names, dense, strict=True)), tf.sqrt(tf.add_n([square, *squares]))


def _square_of_lookup(gradient: tf.IndexedSlices | Accumulated) -> tf.Tensor:
    return gradient.square if isinstance(gradient, Accumulated) else optimization.square_norm(gradient)

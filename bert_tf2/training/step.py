"""One training step: the losses, their gradients, and the sum of the gradients over all replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import tensorflow as tf

from bert_tf2 import optimization
from bert_tf2.heads import Batch, LossTerm
from bert_tf2.layers import fold_in
from bert_tf2.shapes import get_shape_list


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
    context = tf.distribute.get_replica_context()

    def weight_of(term: LossTerm) -> tf.Tensor:
        return context.all_reduce("SUM", tf.stop_gradient(term.weight))

    return _gradients(model, variables, batch, dropout_seed, loss_scale, weight_of)


def _gradients(
    model,
    variables: Mapping[str, tf.Variable],
    batch: Batch,
    dropout_seed: tf.Tensor,
    loss_scale: tf.Tensor | None,
    weight_of: Callable[[LossTerm], tf.Tensor],
) -> tuple[dict[str, tf.Tensor], Gradients]:
    """See `local_gradients`; `weight_of` returns the weight of a term over the whole batch of all replicas."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(list(variables.values()))
        values = {}
        for term in model.loss_terms(batch, dropout_seed=dropout_seed):
            values[term.name] = term._replace(weight=weight_of(term)).mean()
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
    context = tf.distribute.get_replica_context()
    # Only the weights of the whole batch are used of this, and the graph computes nothing else of it.
    terms = model.loss_terms(batch, dropout_seed=dropout_seed)
    weights = {term.name: context.all_reduce("SUM", tf.stop_gradient(term.weight)) for term in terms}
    split = {name: _split(values, parts) for name, values in batch.items()}
    lookups: set[str] = set()

    def add(part, values, sums, squares):
        rows = {name: tf.gather(features, part) for name, features in split.items()}
        seed = fold_in(dropout_seed, part)
        found, gradients = _gradients(model, variables, rows, seed, loss_scale, lambda term: weights[term.name])
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
            dict.fromkeys([*weights, "loss"], tf.constant(0.0)),
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


def reduce_gradients(gradients: Gradients) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Sums the gradients over the replicas.

    Returns:
      Dense gradients by name, and their global norm as computed by optimization.square_norm.
    """
    context = tf.distribute.get_replica_context()
    names = list(gradients)
    squares = [_square_of_lookup(g) for g in gradients.values() if isinstance(g, tf.IndexedSlices | Accumulated)]
    square_of_lookups = tf.add_n(squares) if squares else tf.constant(0.0)
    dense = [g.dense if isinstance(g, Accumulated) else tf.convert_to_tensor(g) for g in gradients.values()]
    *dense, square = context.all_reduce("SUM", [*dense, square_of_lookups])
    squares = [
        optimization.square_norm(g)
        for name, g in zip(names, dense, strict=True)
        if not isinstance(gradients[name], tf.IndexedSlices | Accumulated)
    ]
    return dict(zip(names, dense, strict=True)), tf.sqrt(tf.add_n([square, *squares]))


def _square_of_lookup(gradient: tf.IndexedSlices | Accumulated) -> tf.Tensor:
    return gradient.square if isinstance(gradient, Accumulated) else optimization.square_norm(gradient)

"""The gradients of a training step: of a replica's rows, then their sum over all replicas, and its norm.

    batch -> LocalGradients -> Gradients -> reduce_gradients -> Gradients -> global_norm

Losses are divided by the weights of the whole batch, so the gradients of its parts and of its replicas add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf2 import optimization
from bert_tf2.dropout import fold_in
from bert_tf2.heads import Batch, LossTerm
from bert_tf2.shapes import get_shape_list

# Between workers, a pack is sent while the next pack is copied: 1.8 times as fast as a single pack of all gradients.
_IN_PACKS = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=16_000_000)


class Gradients(NamedTuple):
    """Gradients by the names of their variables."""

    dense: dict[str, tf.Tensor]
    # for the variables in which rows are looked up, the `optimization.square_norm`, which the dense gradient has lost
    squares: dict[str, tf.Tensor]


def dense_gradients(gradients: Mapping[str, optimization.Gradient]) -> Gradients:
    """Makes the gradients of lookups dense, and keeps their square norms, which count each row by itself."""
    squares = {name: optimization.square_norm(g) for name, g in gradients.items() if isinstance(g, tf.IndexedSlices)}
    return Gradients({name: tf.convert_to_tensor(gradient) for name, gradient in gradients.items()}, squares)


class LocalGradients:
    """Computes a replica's part of the losses and of their gradients; the sum over all replicas is the whole."""

    def __init__(self, model, variables: Mapping[str, tf.Variable], parts: int = 1):
        """`variables`: by name; `parts`: into how many parts, one after the other, a batch is cut to save memory."""
        self._model, self._variables, self._parts = model, variables, parts

    def __call__(
        self,
        batch: Batch,
        dropout_seed: tf.Tensor,
        loss_scale: tf.Tensor | None = None,
        weights: Sequence[tf.Tensor] | None = None,
    ) -> tuple[dict[str, tf.Tensor], Gradients]:
        """Returns the losses by name, `loss` for their sum, and the gradients.

        `dropout_seed`: int32 [2]; `weights`: weights_of the terms of the batch, None to compute them.
        """
        if self._parts == 1:
            return self._of_rows(batch, dropout_seed, loss_scale, weights)
        # These terms are used only for the weights of the whole batch, so the graph computes nothing else of the terms.
        terms = self._model.loss_terms(batch, dropout_seed=dropout_seed)
        weights = weights_of(terms) if weights is None else weights
        parts, split = self._parts, {}
        for name, features in batch.items():
            rows, *others = get_shape_list(features)
            split[name] = tf.reshape(features, [parts, rows // parts, *others])
        lookups: set[str] = set()

        def add(part, values, sums, squares):
            rows = {name: tf.gather(features, part) for name, features in split.items()}
            found, gradients = self._of_rows(rows, fold_in(dropout_seed, part), loss_scale, weights)
            lookups.update(gradients.squares)  # which variables have squares is not known before
            return (
                part + 1,
                {name: values[name] + found[name] for name in values},
                {name: sums[name] + gradients.dense[name] for name in sums},
                {name: squares[name] + gradients.squares.get(name, 0.0) for name in squares},
            )

        zero = tf.constant(0.0)
        values = dict.fromkeys([*(term.name for term in terms), "loss"], zero)
        sums = {name: tf.zeros(variable.shape) for name, variable in self._variables.items()}
        start = (tf.constant(0), values, sums, dict.fromkeys(self._variables, zero))
        # A loop, so that only one part's activations are in memory.
        _, values, sums, squares = tf.while_loop(lambda part, *_: part < parts, add, start, parallel_iterations=1)
        return values, Gradients(sums, {name: square for name, square in squares.items() if name in lookups})

    def _of_rows(
        self, rows: Batch, seed: tf.Tensor, loss_scale: tf.Tensor | None, weights: Sequence[tf.Tensor] | None
    ) -> tuple[dict[str, tf.Tensor], Gradients]:
        names, variables = [*self._variables], [*self._variables.values()]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            terms = self._model.loss_terms(rows, dropout_seed=seed)
            of_batch = weights_of(terms) if weights is None else weights
            values = {term.name: term._replace(weight=by).mean() for term, by in zip(terms, of_batch, strict=True)}
            loss = tf.add_n(list(values.values()))
            scaled = loss if loss_scale is None else loss * loss_scale
        gradients = dict(zip(names, tape.gradient(scaled, variables), strict=True))
        return {**values, "loss": loss}, dense_gradients(gradients)


def weights_of(terms: Sequence[LossTerm]) -> list[tf.Tensor]:
    """The weights of loss terms over the whole batch of all replicas, by which their sums are divided."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce("SUM", [tf.stop_gradient(term.weight) for term in terms])


def reduce_gradients(gradients: Gradients, dtype: tf.DType = tf.float32) -> Gradients:
    """Sums the gradients, and the square norms of lookups, over the replicas.

    `dtype`: of the numbers that replicas send; bfloat16 halves the bytes.
    """
    context = tf.distribute.get_replica_context()
    dense, squares = [*gradients.dense.values()], [*gradients.squares.values()]
    if dtype == tf.float32 or context.num_replicas_in_sync == 1:
        found = context.all_reduce("SUM", [*dense, *squares], _IN_PACKS)
        dense, squares = found[: len(dense)], found[len(dense) :]
    else:
        squares = context.all_reduce("SUM", squares) if squares else squares
        narrow = context.all_reduce("SUM", [tf.cast(g, dtype) for g in dense], _IN_PACKS)
        dense = [tf.cast(g, tf.float32) for g in narrow]
    summed = (dict(zip(names, values, strict=True)) for names, values in zip(gradients, (dense, squares), strict=True))
    return Gradients(*summed)


def global_norm(gradients: Gradients) -> tf.Tensor:
    """Returns the norm of all gradients as one vector; optimization.square_norm explains it."""
    others = [gradient for name, gradient in gradients.dense.items() if name not in gradients.squares]
    return tf.sqrt(tf.add_n([*gradients.squares.values(), optimization.square_norm(*others)]))

"""One training step: the losses, their gradients, and the sum of the gradients over all replicas."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import tensorflow as tf

from bert_tf2 import optimization
from bert_tf2.heads import Batch, LossTerm
from bert_tf2.layers import fold_in


def split_by_length(batch: Batch, groups: int, per_token: Collection[str]) -> list[Batch]:
    """Splits the rows of a batch into groups of similar length, each only as wide as its longest row.

    A batch is as wide as its longest row, and most rows are much shorter. Groups contain little padding, and the sum
    over the groups equals the sum over the batch, so the update is the same.

    Args:
      batch: features by name.
      groups: the number of groups, which have the same number of rows up to rounding.
      per_token: the features with one column per token.
    """
    mask = batch["input_mask"]  # [B, F]
    columns = tf.range(1, tf.shape(mask)[1] + 1)
    lengths = tf.reduce_max(tf.cast(mask > 0, tf.int32) * columns, axis=1)  # [B]: the last column with a token
    order = tf.argsort(lengths, stable=True)
    rows = tf.shape(order)[0]
    parts = []
    for group in range(groups):
        chosen = order[rows * group // groups : rows * (group + 1) // groups]
        width = tf.maximum(tf.reduce_max(tf.gather(lengths, chosen)), 1)
        picked = {name: tf.gather(values, chosen) for name, values in batch.items()}
        parts.append({name: v[:, :width] if name in per_token else v for name, v in picked.items()})
    return parts


def _loss_terms(model, batch: Batch, dropout_seed: tf.Tensor, length_groups: int) -> list[LossTerm]:
    """The model's loss terms for a batch, computed group by group if there are several."""
    if length_groups == 1:
        return model.loss_terms(batch, dropout_seed=dropout_seed)
    features = model.record_kind.features
    per_token = {name for name, feature in features.items() if feature.length == "max_seq_length"}
    of_groups = [
        model.loss_terms(part, dropout_seed=fold_in(dropout_seed, group))
        for group, part in enumerate(split_by_length(batch, length_groups, per_token))
    ]
    return [
        terms[0]._replace(total=tf.add_n([t.total for t in terms]), weight=tf.add_n([t.weight for t in terms]))
        for terms in zip(*of_groups, strict=True)
    ]


def local_gradients(
    model,
    variables: Mapping[str, tf.Variable],
    batch: Batch,
    dropout_seed: tf.Tensor,
    length_groups: int = 1,
    loss_scale: tf.Tensor | None = None,
):
    """Computes this replica's part of the losses and their gradients; the sum over all replicas is the whole.

    Returns:
      Losses by name (`loss` is their sum) and gradients by variable name, tf.Tensor or tf.IndexedSlices; the gradients
      are multiplied by `loss_scale`.
    """
    context = tf.distribute.get_replica_context()
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(list(variables.values()))
        values = {}
        for term in _loss_terms(model, batch, dropout_seed, length_groups):
            weight = context.all_reduce("SUM", tf.stop_gradient(term.weight))
            values[term.name] = term._replace(weight=weight).mean()
        loss = tf.add_n(list(values.values()))
        scaled = loss if loss_scale is None else loss * loss_scale
    gradients = tape.gradient(scaled, list(variables.values()))
    return {**values, "loss": loss}, dict(zip(variables, gradients, strict=True))


def reduce_gradients(gradients: Mapping[str, optimization.Gradient]) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Sums the gradients over the replicas.

    Returns:
      Dense gradients by name, and their global norm as computed by optimization.square_norm.
    """
    context = tf.distribute.get_replica_context()
    names = list(gradients)
    lookups = [g for g in gradients.values() if isinstance(g, tf.IndexedSlices)]
    square_of_lookups = tf.add_n([optimization.square_norm(g) for g in lookups]) if lookups else tf.constant(0.0)
    dense = [tf.convert_to_tensor(gradients[name]) for name in names]
    *dense, square = context.all_reduce("SUM", [*dense, square_of_lookups])
    squares = [
        optimization.square_norm(g)
        for name, g in zip(names, dense, strict=True)
        if not isinstance(gradients[name], tf.IndexedSlices)
    ]
    return dict(zip(names, dense, strict=True)), tf.sqrt(tf.add_n([square, *squares]))

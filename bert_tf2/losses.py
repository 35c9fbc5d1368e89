"""The losses of the models in `heads`, and the reference's functions for those of pretraining.

The letters in the shape comments are those of heads.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf

from bert_tf2 import shapes
from bert_tf2.layers import OutputLayer

if TYPE_CHECKING:
    from bert_tf2.masked_lm import MaskedLMHead

# The loss of a batch without predictions is 0 instead of 0 / 0 (reference: get_masked_lm_output).
NO_PREDICTIONS = 1e-5

# The number of real predictions is rounded up to a multiple of this; see fast.unpadding.TOKENS_STEP.
_PREDICTIONS_STEP = 32


class LossTerm(NamedTuple):
    """A weighted mean before the division: its value is `total / (weight + epsilon)`.

    With several replicas, the weights are summed over all of them before the division. If each replica divided by its
    own weight, an example on a replica with few predictions would count more than the same example elsewhere.
    """

    name: str
    total: tf.Tensor
    weight: tf.Tensor
    epsilon: float = 0.0

    def mean(self) -> tf.Tensor:
        return self.total / (self.weight + self.epsilon)


def gather_indexes(sequence_tensor: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Picks the states at the given positions of each example.

    Args:
      sequence_tensor: [B, F, D].
      positions: int [B, P], each below F.

    Returns:
      [B * P, D], example after example. Reference: the function of the same name.

    Raises:
      shapes.ShapeError: an argument has another shape.
    """
    contract = shapes.Contract()
    contract.check("BFD", sequence_tensor=sequence_tensor)
    contract.check("BP", positions=positions)
    width = shapes.get_shape_list(sequence_tensor)[2]
    return tf.reshape(tf.gather(sequence_tensor, positions, batch_dims=1), [-1, width])


def get_masked_lm_output(
    head: MaskedLMHead,
    input_tensor: tf.Tensor,
    output_weights: tf.Tensor,
    positions: tf.Tensor,
    label_ids: tf.Tensor,
    label_weights: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Predicts the masked words and scores the predictions.

    The P masked positions are gathered first, since the product with the whole vocabulary is expensive. This is the
    reference's function of the same name, except that `head` has the variables that the reference creates.

    Args:
      head: the transform and the output bias.
      input_tensor: sequence_output, [B, F, D].
      output_weights: the word embedding table [V, D], the variable itself; or the head's own.
      positions: int [B, P], masked_lm_positions.
      label_ids: int [B, P], the original words.
      label_weights: float [B, P], 1 for a prediction and 0 for padding.

    Returns:
      loss: scalar, mean over the predictions by weight.
      per_example_loss: [B * P], unweighted.
      log_probs: [B * P, V].

    Raises:
      shapes.ShapeError: an argument has another shape.
    """
    contract = head.contract()
    contract.check("BFD", input_tensor=input_tensor)
    contract.check("VD", output_weights=output_weights)
    contract.check("BP", positions=positions, label_ids=label_ids, label_weights=label_weights)
    logits = head(gather_indexes(input_tensor, positions), output_weights)  # [B * P, V]
    label_ids = tf.reshape(label_ids, [-1])
    label_weights = tf.reshape(tf.cast(label_weights, tf.float32), [-1])
    per_example_loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label_ids, logits=logits)
    loss = masked_lm_loss_term(per_example_loss, label_weights).mean()
    return loss, per_example_loss, tf.nn.log_softmax(logits)


def masked_lm_loss_term(per_example_loss: tf.Tensor, label_weights: tf.Tensor) -> LossTerm:
    """Losses [B * P] and their weights (any shape of that size) -> the term that training minimizes."""
    weights = tf.reshape(tf.cast(label_weights, tf.float32), [-1])
    total = tf.reduce_sum(weights * per_example_loss)
    return LossTerm("masked_lm_loss", total, tf.reduce_sum(weights), NO_PREDICTIONS)


def masked_lm_term(
    head: MaskedLMHead,
    input_tensor: tf.Tensor,
    output_weights: tf.Tensor,
    positions: tf.Tensor,
    label_ids: tf.Tensor,
    label_weights: tf.Tensor,
    only_real: bool = False,
) -> LossTerm:
    """The term of get_masked_lm_output, which has the same arguments.

    With `only_real`, predictions of weight 0, which are padding, are not computed. The term is the same.
    """
    if only_real:
        # The number of predictions differs between examples, so the batch becomes one example with all of them.
        batch, length, width = shapes.get_shape_list(input_tensor)
        positions += tf.range(batch, dtype=positions.dtype)[:, tf.newaxis] * length
        real = tf.where(label_weights > 0)  # [M, 2]
        filling = -tf.shape(real)[0] % _PREDICTIONS_STEP
        positions, label_ids, label_weights = (
            tf.pad(tf.gather_nd(values, real), [[0, filling]])[tf.newaxis]
            for values in (positions, label_ids, label_weights)
        )  # [1, M]
        input_tensor = tf.reshape(input_tensor, [1, batch * length, width])
    _, per_example_loss, _ = get_masked_lm_output(
        head, input_tensor, output_weights, positions, label_ids, label_weights
    )
    return masked_lm_loss_term(per_example_loss, label_weights)


def get_next_sentence_output(
    head: OutputLayer, input_tensor: tf.Tensor, labels: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Decides whether segment B followed segment A in the text (paper, section 3.1, task 2).

    Args:
      head: two classes, 0 "is next" and 1 "is random".
      input_tensor: pooled_output, [B, D].
      labels: int [B] or [B, 1].

    Returns:
      loss (scalar), per_example_loss [B], log_probs [B, 2]. Reference: the function of the same name.

    Raises:
      shapes.ShapeError: an argument has another shape.
    """
    contract = shapes.Contract(D=head.output_weights.shape[1])
    contract.check("BD", input_tensor=input_tensor)
    contract.check("B", "B1", labels=labels)
    logits = head(input_tensor)
    per_example_loss = classification_loss(logits, labels)
    return tf.reduce_mean(per_example_loss), per_example_loss, tf.nn.log_softmax(logits)


def classification_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """[B, L] and int [B] or [B, 1] -> [B]."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(labels, [-1]), logits=logits)


def mean_term(name: str, values: tf.Tensor) -> LossTerm:
    return LossTerm(name, tf.reduce_sum(values), tf.cast(tf.size(values), tf.float32))


def multi_label_loss(logits: tf.Tensor, labels: tf.Tensor, positive_weights: tf.Tensor | float = 1.0) -> tf.Tensor:
    """[B, L] and int [B, L], 1 for each label of the text -> [B], the mean over the labels.

    Args:
      logits: [B, L].
      labels: [B, L].
      positive_weights: [L], the weights of labels that are 1, relative to those that are 0.
    """
    targets = tf.cast(labels, logits.dtype)
    return tf.reduce_mean(tf.nn.weighted_cross_entropy_with_logits(targets, logits, positive_weights), axis=-1)

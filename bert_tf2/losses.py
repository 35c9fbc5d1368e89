"""The losses of the models in `heads`, the head of masked words, and the reference's functions for pretraining.

heads.py explains the letters in the shape comments.
"""

from __future__ import annotations

from typing import NamedTuple

import keras
import tensorflow as tf

from bert_tf2 import shapes
from bert_tf2.config import BertConfig
from bert_tf2.layers import Dense, LayerNorm, OutputLayer, class_scores
from bert_tf2.support.errors import UserError

# Added to the sum of the weights, so that the loss of a batch without predictions is 0 instead of 0 / 0 (reference:
# get_masked_lm_output).
NO_PREDICTIONS = 1e-5


class LossTerm(NamedTuple):
    """A weighted mean before the division: its value is `total / (weight + epsilon)`.

    With several replicas, the weights are summed over all replicas before the division. If each replica divided by its
    own weight, an example on a replica with few predictions would count more than the same example elsewhere.
    """

    name: str
    total: tf.Tensor
    weight: tf.Tensor
    epsilon: float = 0.0

    def mean(self) -> tf.Tensor:
        return self.total / (self.weight + self.epsilon)


class MaskedLMHead(keras.layers.Layer):
    """Predicts words from hidden states (paper, section 3.1, task 1).

    A small network, `transform`, maps the state to the space of the word embeddings, so that the encoder's last layer
    need not specialize in words. The score of a word is the dot product with its embedding: the output layer is the
    transposed embedding table, so training on a word as an output updates the same numbers that represent it as an
    input. Only the bias, one number per word that learns its frequency, belongs to the output alone.
    """

    def __init__(self, config: BertConfig, **kwargs):
        super().__init__(**kwargs)
        width = config.hidden_size
        self.transform = Dense(
            width, width, config.initializer_range, config.hidden_act, name="transform", dtype=self.dtype_policy
        )
        self.layer_norm = LayerNorm(width, config.layer_norm_eps, name="LayerNorm", dtype=self.dtype_policy)
        self.output_bias = self.add_weight(
            shape=[config.vocab_size], initializer="zeros", autocast=False, name="output_bias"
        )
        self.built = True

    def contract(self) -> shapes.Contract:
        return shapes.Contract(D=self.transform.kernel.shape[0], V=self.output_bias.shape[0])

    def call(self, states: tf.Tensor, output_weights: tf.Tensor) -> tf.Tensor:
        """Scores every word: [M, D] and the table of word embeddings, float32 [V, D] -> float32 logits [M, V].

        Raises shapes.ShapeError if an argument has another shape.
        """
        contract = self.contract()
        contract.check("MD", states=states)
        contract.check("VD", output_weights=output_weights)
        states = self.layer_norm(self.transform(states))
        return class_scores(states, output_weights) + tf.cast(self.output_bias, tf.float32)  # [M, D] x [D, V]


def gather_indexes(sequence_tensor: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Picks the states at the given positions of each example: [B, F, D], int [B, P] -> [B * P, D].

    Reference: the function of the same name. Raises shapes.ShapeError if an argument has another shape.
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

    The P masked positions are gathered first, because the product with the whole vocabulary is the most expensive of
    the model, and the other positions have no prediction. This is the reference's function of the same name, except
    that `head` has the variables that the reference creates.

    Args:
      head: the transform and the output bias.
      input_tensor: sequence_output, [B, F, D].
      output_weights: the word embedding table [V, D], the variable itself; or a table of the head's own.
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
    _check_head(head, "MaskedLMHead")
    contract = head.contract()
    contract.check("BFD", input_tensor=input_tensor)
    contract.check("VD", output_weights=output_weights)
    contract.check("BP", positions=positions, label_ids=label_ids, label_weights=label_weights)
    states = gather_indexes(input_tensor, positions)  # [B * P, D]
    term, per_example_loss, logits = score_masked_words(head, states, output_weights, label_ids, label_weights)
    return term.mean(), per_example_loss, tf.nn.log_softmax(logits)


def score_masked_words(
    head: MaskedLMHead, states: tf.Tensor, output_weights: tf.Tensor, label_ids: tf.Tensor, label_weights: tf.Tensor
) -> tuple[LossTerm, tf.Tensor, tf.Tensor]:
    """The second half of get_masked_lm_output, for states [..., D] of M masked positions that are gathered already.

    Returns the term that training minimizes, per_example_loss [M], logits [M, V].
    """
    label_ids, weights = (tf.reshape(values, [-1]) for values in (label_ids, tf.cast(label_weights, tf.float32)))
    logits = head(tf.reshape(states, [-1, states.shape[-1]]), output_weights)
    per_example_loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label_ids, logits=logits)
    total = tf.reduce_sum(weights * per_example_loss)
    term = LossTerm("masked_lm_loss", total, tf.reduce_sum(weights), NO_PREDICTIONS)
    return term, per_example_loss, logits


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
    _check_head(head, "OutputLayer")
    contract = shapes.Contract(D=head.output_weights.shape[1])
    contract.check("BD", input_tensor=input_tensor)
    contract.check("B", "B1", labels=labels)
    logits = head(input_tensor)
    per_example_loss = classification_loss(logits, labels)
    return tf.reduce_mean(per_example_loss), per_example_loss, tf.nn.log_softmax(logits)


def _check_head(head: keras.layers.Layer, kind: str) -> None:
    if isinstance(head, BertConfig):  # the first argument of the reference's functions, which create variables
        raise UserError(f"the first argument is a BertConfig; give a {kind}, which has the variables")


def classification_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """[B, L] and int [B] or [B, 1] -> [B]."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(labels, [-1]), logits=logits)


def mean_term(name: str, values: tf.Tensor) -> LossTerm:
    return LossTerm(name, tf.reduce_sum(values), tf.cast(tf.size(values), tf.float32))


def multi_label_loss(logits: tf.Tensor, labels: tf.Tensor, positive_weights: tf.Tensor | float = 1.0) -> tf.Tensor:
    """[B, L] and int [B, L], 1 for each label of the text -> [B], the mean over the labels.

    `positive_weights`: [L], the weights of labels that are 1, relative to labels that are 0.
    """
    targets = tf.cast(labels, logits.dtype)
    return tf.reduce_mean(tf.nn.weighted_cross_entropy_with_logits(targets, logits, positive_weights), axis=-1)


def in_batch_negatives(vectors: tf.Tensor, texts: tf.Tensor, temperature: float) -> tf.Tensor:
    """The cross-entropy of finding each row's positive among all positives and negatives of the batch.

    The softmax is over cosines / temperature (Henderson et al., 2017, section 4.4; InfoNCE). In a replica, the batch is
    the rows of all replicas, and a row counts so much that the mean over replicas of their means is the batch's mean.
    A row leaves out the other candidates that are no wrong match of its anchor: those with the anchor's own text, or
    the text of a positive of this anchor.

    Args:
      vectors: float32 [B, C, D]: of each row's anchor, its positive, and its C - 2 negatives.
      texts: [B, C]: a number for each text, the same for equal texts.
      temperature: above 0; a smaller number makes near negatives count more.

    Returns:
      The loss of each row, float32 [B].
    """
    vectors = tf.math.l2_normalize(vectors, axis=-1)
    count = tf.shape(vectors)[0]  # B
    candidates, all_texts, first_row, weight = _of_all_replicas(vectors[:, 1:], texts)
    # The positives of all rows, then their first negatives, and so on: [(C - 1) * rows, D]
    candidates = tf.reshape(tf.transpose(candidates, [1, 0, 2]), [-1, vectors.shape[-1]])
    candidate_texts = tf.reshape(tf.transpose(all_texts[:, 1:]), [1, -1])  # [1, candidates]
    logits = tf.matmul(vectors[:, 0], candidates, transpose_b=True) / temperature  # [B, candidates]
    own_positive = first_row + tf.range(count)  # [B], the numbers of candidates
    has_anchor = tf.cast(texts[:, :1] == all_texts[:, 0], tf.float32)  # [B, rows]
    is_positive = tf.cast(all_texts[:, 1:2] == candidate_texts, tf.float32)  # [rows, candidates]
    is_match = (tf.matmul(has_anchor, is_positive) > 0) | (candidate_texts == texts[:, :1])  # [B, candidates]
    is_match &= tf.range(tf.size(candidate_texts)) != own_positive[:, tf.newaxis]
    return classification_loss(tf.where(is_match, -1e9, logits), own_positive) * weight


def _of_all_replicas(
    vectors: tf.Tensor, texts: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | int, tf.Tensor | float]:
    """The rows of all replicas, [rows, ...]; the number of this replica's first row; and the weight of its rows.

    Outside of replicas, the rows are given back, with 0 and 1.
    """
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return vectors, texts, 0, 1.0
    count = tf.shape(vectors)[0]
    counts = replica.all_gather(count[tf.newaxis], axis=0)  # [replicas]
    first_row = tf.reduce_sum(counts[: replica.replica_id_in_sync_group])
    weight = tf.cast(count * replica.num_replicas_in_sync, tf.float32) / tf.cast(tf.reduce_sum(counts), tf.float32)
    return replica.all_gather(vectors, axis=0), replica.all_gather(texts, axis=0), first_row, weight


def distance_to_teacher(
    logits: tf.Tensor, wanted: tf.Tensor, temperature: float, regression: bool = False, multi_label: bool = False
) -> tf.Tensor:
    """The loss of a student's logits beside its teacher's, float32 [..., L] each -> [...].

    The cross-entropy of both softmaxes at the same temperature, as in Hinton et al. (2015); their gradients shrink with
    its square, which is multiplied again. With `multi_label` the mean over the labels' binary cross-entropies, in a
    `regression` the squared error.
    """
    if regression:
        return tf.reduce_mean(tf.square(logits - wanted), axis=-1)
    logits, wanted = logits / temperature, wanted / temperature
    if multi_label:
        losses = tf.nn.sigmoid_cross_entropy_with_logits(tf.sigmoid(wanted), logits)
        return temperature**2 * tf.reduce_mean(losses, axis=-1)
    return temperature**2 * tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(wanted), logits)

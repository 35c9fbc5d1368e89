"""What stands on top of the encoder: one model per task, with its logits and its loss.

    PretrainingModel   masked words from sequence_output, next sentence from pooled_output
    ClassifierModel    one label (or number) per example from pooled_output
    SpanModel          where an answer starts and ends, from sequence_output
    TaggingModel       one label per token from sequence_output

Each model has the same three methods, and the training loop knows nothing else of it:
    call          features -> logits
    loss_terms    features and labels -> what training minimises
    outputs       features (and labels) -> what evaluation and prediction look at, one row per example

The letters in the shape comments are those of modeling.py; P is max_predictions_per_seq, L the number of labels, M any
number of states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import keras
import tensorflow as tf

from bert_tf2 import modeling, records, shapes
from bert_tf2.config import BertConfig

Batch = Mapping[str, tf.Tensor]

# Keeps a batch without a single prediction at loss 0 instead of 0 / 0 (reference: get_masked_lm_output).
_NO_PREDICTIONS = 1e-5


class LossTerm(NamedTuple):
    """A weighted mean that is still in two parts: its value is `total / (weight + epsilon)`.

    On several replicas the weights are summed over all of them before the division. Were each replica to divide by its
    own weight, an example on a replica with few predictions would count for more than the same example elsewhere.
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
    width = modeling.get_shape_list(sequence_tensor)[2]
    return tf.reshape(tf.gather(sequence_tensor, positions, batch_dims=1), [-1, width])


class OutputLayer(keras.layers.Layer):
    """Scores L classes: x @ output_weights^T + output_bias, in float32.

    The variables have the reference's shapes, [L, D] and [L].
    """

    def __init__(self, num_labels: int, width: int, initializer_range: float, **kwargs):
        super().__init__(**kwargs)
        initializer = modeling.create_initializer(initializer_range)
        self.output_weights = self.add_weight(shape=[num_labels, width], initializer=initializer, name="output_weights")
        self.output_bias = self.add_weight(shape=[num_labels], initializer="zeros", autocast=False, name="output_bias")
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """[..., D] -> float32 [..., L]. Raises shapes.ShapeError for another width."""
        shapes.Contract(D=self.output_weights.shape[1]).check("...D", x=x)
        rows = tf.reshape(x, [-1, self.output_weights.shape[1]])
        logits = tf.cast(tf.matmul(rows, self.output_weights, transpose_b=True), tf.float32) + self.output_bias
        return tf.reshape(logits, [*modeling.get_shape_list(x)[:-1], self.output_weights.shape[0]])


class MaskedLMHead(keras.layers.Layer):
    """Turns a hidden state back into a word (paper, section 3.1, task 1).

    The state first passes a small network of its own, `transform`: the encoder's last layer can then be good for
    other uses too. What comes out lives in the same space as the word embeddings, so the score of a word is the dot
    product of the state with that word's embedding: the embedding table, transposed, IS the output layer. A word is
    probable where the state points the way its embedding points, and what training learns of a word as an answer
    moves the same numbers that stand for it as an input. Only the bias, one number a word that learns how frequent it
    is, belongs to the output alone.
    """

    def __init__(self, config: BertConfig, **kwargs):
        super().__init__(**kwargs)
        width = config.hidden_size
        self.transform = modeling.Dense(
            width, width, config.initializer_range, config.hidden_act, name="transform", dtype=self.dtype_policy
        )
        self.layer_norm = modeling.LayerNorm(width, config.layer_norm_eps, name="LayerNorm", dtype=self.dtype_policy)
        self.output_bias = self.add_weight(
            shape=[config.vocab_size], initializer="zeros", autocast=False, name="output_bias"
        )
        self.built = True

    def contract(self) -> shapes.Contract:
        """D and V as this head has them."""
        return shapes.Contract(D=self.transform.kernel.shape[0], V=self.output_bias.shape[0])

    def call(self, states: tf.Tensor, output_weights: tf.Tensor) -> tf.Tensor:
        """[M, D] and the embedding table [V, D] -> float32 logits [M, V]. Raises shapes.ShapeError for other shapes."""
        contract = self.contract()
        contract.check("MD", states=states)
        contract.check("VD", output_weights=output_weights)
        states = self.layer_norm(self.transform(states))
        logits = tf.matmul(states, tf.cast(output_weights, states.dtype), transpose_b=True)  # [M, D] x [D, V]
        return tf.cast(logits, tf.float32) + self.output_bias


def get_masked_lm_output(
    head: MaskedLMHead,
    input_tensor: tf.Tensor,
    output_weights: tf.Tensor,
    positions: tf.Tensor,
    label_ids: tf.Tensor,
    label_weights: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Predicts the masked words and scores the predictions.

    Only the P masked positions are looked at, not all F: they are gathered first, since the product with the whole
    vocabulary is what costs. The reference's function of the same name, except that the variables come with `head`
    where that function makes them from a bert_config.

    Args:
      head: the transform and the output bias.
      input_tensor: sequence_output, [B, F, D].
      output_weights: the word embedding table [V, D], the variable itself.
      positions: int [B, P], masked_lm_positions.
      label_ids: int [B, P], the words that stood there.
      label_weights: float [B, P], 1 for a prediction and 0 for the filling of the table.

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
    """Losses [B * P] and their weights (any shape of that size) -> the term that training minimises."""
    weights = tf.reshape(tf.cast(label_weights, tf.float32), [-1])
    total = tf.reduce_sum(weights * per_example_loss)
    return LossTerm("masked_lm_loss", total, tf.reduce_sum(weights), _NO_PREDICTIONS)


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
    per_example_loss = _classification_loss(logits, labels)
    return tf.reduce_mean(per_example_loss), per_example_loss, tf.nn.log_softmax(logits)


def _classification_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """[B, L] and int [B] or [B, 1] -> [B]."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(labels, [-1]), logits=logits)


def _mean_term(name: str, values: tf.Tensor) -> LossTerm:
    return LossTerm(name, tf.reduce_sum(values), tf.cast(tf.size(values), tf.float32))


# The shapes of a feature by its length in the table of records; where that is 1, models take a column too.
_FEATURE_SHAPES = {"max_seq_length": ("BF",), "max_predictions_per_seq": ("BP",), 1: ("B", "B1")}


class _Model(keras.Model):
    """An encoder with something on top; what the models below share.

    Attributes:
      loss_names: the names of what loss_terms returns, in that order.
      record_kind: the table of its features; here for their shapes.
    """

    loss_names: tuple[str, ...] = ("loss",)
    record_kind: records.RecordKind

    def __init__(self, config: BertConfig, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.bert = modeling.BertModel(config, dtype=self.dtype_policy)

    def get_config(self) -> dict:
        return {**super().get_config(), "config": self.config.to_dict()}

    @classmethod
    def from_config(cls, config: dict, custom_objects=None):
        return cls(**{**config, "config": BertConfig.from_dict(config["config"])})

    def check(self, batch: Batch, *features: str) -> None:
        """Compares the inputs of a batch and some more of its features with their shapes in `record_kind`.

        Raises:
          shapes.ShapeError: `input_ids` or one of `features` is missing, or one that is there has another shape.
        """
        inputs = ("input_ids", "input_mask", "segment_ids")
        table = self.record_kind.features
        wanted = {name: _FEATURE_SHAPES[table[name].length] for name in (*inputs, *features)}
        shapes.Contract().check_batch(batch, wanted, optional=inputs[1:])

    def encode(
        self, batch: Batch, training: bool = False, dropout_seed: tf.Tensor | None = None
    ) -> modeling.BertOutput:
        """Runs the encoder on `input_ids`, `input_mask` and `segment_ids`, each int [B, F]; the last two are optional.

        Raises:
          shapes.ShapeError: see `check`.
        """
        self.check(batch)
        return self.bert(
            batch["input_ids"],
            batch.get("input_mask"),
            batch.get("segment_ids"),
            training=training,
            dropout_seed=dropout_seed,
        )


@keras.saving.register_keras_serializable(package="bert_tf2")
class PretrainingModel(_Model):
    """Masked words and next sentences, from records.PRETRAINING."""

    loss_names = ("masked_lm_loss", "next_sentence_loss")
    record_kind = records.PRETRAINING

    def __init__(self, config: BertConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.masked_lm = MaskedLMHead(config, name="masked_lm", dtype=self.dtype_policy)
        self.next_sentence = OutputLayer(
            2, config.hidden_size, config.initializer_range, name="next_sentence", dtype=self.dtype_policy
        )
        self.built = True

    def call(self, batch: Batch, training: bool = False, dropout_seed: tf.Tensor | None = None) -> tf.Tensor:
        """Scores every word at `masked_lm_positions`, int [B, P] -> float32 logits [B, P, V]."""
        self.check(batch, "masked_lm_positions")
        output = self.encode(batch, training, dropout_seed)
        states = gather_indexes(output.sequence_output, batch["masked_lm_positions"])  # [B * P, D]
        logits = self.masked_lm(states, self.bert.get_embedding_table())
        return tf.reshape(logits, [*modeling.get_shape_list(batch["masked_lm_positions"]), self.config.vocab_size])

    def _predictions(self, batch: Batch, training: bool, dropout_seed: tf.Tensor | None):
        self.check(batch, "masked_lm_positions", "masked_lm_ids", "masked_lm_weights", "next_sentence_labels")
        output = self.encode(batch, training, dropout_seed)
        masked_lm = get_masked_lm_output(
            self.masked_lm,
            output.sequence_output,
            self.bert.get_embedding_table(),
            batch["masked_lm_positions"],
            batch["masked_lm_ids"],
            batch["masked_lm_weights"],
        )
        next_sentence = get_next_sentence_output(
            self.next_sentence, output.pooled_output, batch["next_sentence_labels"]
        )
        return masked_lm, next_sentence

    def loss_terms(self, batch: Batch, dropout_seed: tf.Tensor) -> list[LossTerm]:
        """The two losses, added up with equal weight as in the paper."""
        (_, word_loss, _), (_, sentence_loss, _) = self._predictions(batch, True, dropout_seed)
        return [
            masked_lm_loss_term(word_loss, batch["masked_lm_weights"]),
            _mean_term("next_sentence_loss", sentence_loss),
        ]

    def outputs(self, batch: Batch) -> dict[str, tf.Tensor]:
        """What metrics need: per prediction [B, P] `masked_lm_*`, per example [B] `next_sentence_*`."""
        (_, word_loss, word_log_probs), (_, sentence_loss, sentence_log_probs) = self._predictions(batch, False, None)
        shape = modeling.get_shape_list(batch["masked_lm_ids"])
        guesses = tf.argmax(word_log_probs, axis=-1, output_type=tf.int32)
        return {
            "masked_lm_example_loss": tf.reshape(word_loss, shape),
            "masked_lm_predictions": tf.reshape(guesses, shape),
            "next_sentence_example_loss": sentence_loss,
            "next_sentence_predictions": tf.argmax(sentence_log_probs, axis=-1, output_type=tf.int32),
        }


# The dropout on what the classifier reads is 10 % whatever the config says (reference: create_model of run_classifier).
_CLASSIFIER_DROPOUT = 0.1
# So is the deviation of the fresh output weights in the fine-tuning tasks.
_OUTPUT_INITIALIZER_RANGE = 0.02


@keras.saving.register_keras_serializable(package="bert_tf2")
class ClassifierModel(_Model):
    """One label per example; with `regression` one number, trained on squared error."""

    record_kind = records.CLASSIFICATION

    def __init__(self, config: BertConfig, num_labels: int, regression: bool = False, **kwargs):
        super().__init__(config, **kwargs)
        self.num_labels = num_labels
        self.regression = regression
        self.output_layer = OutputLayer(
            1 if regression else num_labels,
            config.hidden_size,
            _OUTPUT_INITIALIZER_RANGE,
            name="output",
            dtype=self.dtype_policy,
        )
        self.built = True

    def get_config(self) -> dict:
        return {**super().get_config(), "num_labels": self.num_labels, "regression": self.regression}

    def call(self, batch: Batch, training: bool = False, dropout_seed: tf.Tensor | None = None) -> tf.Tensor:
        """-> float32 logits [B, L]."""
        pooled = self.encode(batch, training, dropout_seed).pooled_output
        if training:
            # A stream of its own: the encoder's dropouts count theirs from the step's seed itself.
            own = None if dropout_seed is None else tf.random.experimental.stateless_fold_in(dropout_seed, -1)
            pooled = modeling.dropout(pooled, _CLASSIFIER_DROPOUT, modeling.DropoutSeeds(own))
        return self.output_layer(pooled)

    def _example_loss(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if self.regression:
            return tf.square(logits[:, 0] - tf.reshape(tf.cast(labels, tf.float32), [-1]))
        return _classification_loss(logits, labels)

    def loss_terms(self, batch: Batch, dropout_seed: tf.Tensor) -> list[LossTerm]:
        self.check(batch, "label_ids")
        logits = self(batch, training=True, dropout_seed=dropout_seed)
        return [_mean_term("loss", self._example_loss(logits, batch["label_ids"]))]

    def outputs(self, batch: Batch) -> dict[str, tf.Tensor]:
        """`probabilities` [B, L] (for a regression the number itself, [B, 1]) and `example_loss` [B]."""
        self.check(batch, "label_ids")
        logits = self(batch)
        probabilities = logits if self.regression else tf.nn.softmax(logits)
        return {"probabilities": probabilities, "example_loss": self._example_loss(logits, batch["label_ids"])}


@keras.saving.register_keras_serializable(package="bert_tf2")
class SpanModel(_Model):
    """Where the answer starts and where it ends (paper, section 4.2)."""

    record_kind = records.SQUAD_TRAIN

    def __init__(self, config: BertConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.output_layer = OutputLayer(
            2, config.hidden_size, _OUTPUT_INITIALIZER_RANGE, name="output", dtype=self.dtype_policy
        )
        self.built = True

    def call(self, batch: Batch, training: bool = False, dropout_seed: tf.Tensor | None = None):
        """-> float32 (start_logits, end_logits), each [B, F]."""
        logits = self.output_layer(self.encode(batch, training, dropout_seed).sequence_output)  # [B, F, 2]
        return logits[..., 0], logits[..., 1]

    def loss_terms(self, batch: Batch, dropout_seed: tf.Tensor) -> list[LossTerm]:
        """The mean of two classifications, each among all F positions. Position 0, [CLS], means: no answer."""
        self.check(batch, "start_positions", "end_positions")
        start_logits, end_logits = self(batch, training=True, dropout_seed=dropout_seed)
        start_loss = _classification_loss(start_logits, batch["start_positions"])
        end_loss = _classification_loss(end_logits, batch["end_positions"])
        return [_mean_term("loss", (start_loss + end_loss) / 2.0)]

    def outputs(self, batch: Batch) -> dict[str, tf.Tensor]:
        start_logits, end_logits = self(batch)
        return {"start_logits": start_logits, "end_logits": end_logits}


@keras.saving.register_keras_serializable(package="bert_tf2")
class TaggingModel(_Model):
    """One label per token (paper, section 5.3). Positions whose label id is negative do not count."""

    record_kind = records.TOKEN_TAGGING

    def __init__(self, config: BertConfig, num_labels: int, **kwargs):
        super().__init__(config, **kwargs)
        self.num_labels = num_labels
        self.output_layer = OutputLayer(
            num_labels, config.hidden_size, _OUTPUT_INITIALIZER_RANGE, name="output", dtype=self.dtype_policy
        )
        self.built = True

    def get_config(self) -> dict:
        return {**super().get_config(), "num_labels": self.num_labels}

    def call(self, batch: Batch, training: bool = False, dropout_seed: tf.Tensor | None = None) -> tf.Tensor:
        """-> float32 logits [B, F, L]."""
        states = self.encode(batch, training, dropout_seed).sequence_output
        if training:
            own = None if dropout_seed is None else tf.random.experimental.stateless_fold_in(dropout_seed, -1)
            states = modeling.dropout(states, _CLASSIFIER_DROPOUT, modeling.DropoutSeeds(own))
        return self.output_layer(states)

    def loss_terms(self, batch: Batch, dropout_seed: tf.Tensor) -> list[LossTerm]:
        self.check(batch, "label_ids")
        logits = self(batch, training=True, dropout_seed=dropout_seed)
        labels = tf.cast(batch["label_ids"], tf.int32)
        counts = tf.cast(labels >= 0, tf.float32)  # [B, F]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.maximum(labels, 0), logits=logits)
        return [LossTerm("loss", tf.reduce_sum(counts * losses), tf.reduce_sum(counts), _NO_PREDICTIONS)]

    def outputs(self, batch: Batch) -> dict[str, tf.Tensor]:
        """`predictions`, int [B, F]: the label ids with the highest scores."""
        return {"predictions": tf.argmax(self(batch), axis=-1, output_type=tf.int32)}

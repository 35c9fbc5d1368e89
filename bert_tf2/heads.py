"""The encoder with heads on top: a model for each task, with its logits and its loss.

    PretrainingModel   masked words from sequence_output, next sentence from pooled_output
    MaskedLMModel      masked words alone
    ClassifierModel    one label (or number) per example from pooled_output
    SpanModel          the start and the end of an answer, from sequence_output
    TaggingModel       one label per token from sequence_output
    VectorModel        a vector per text from sequence_output, for `bert_tf2.embedder`

Each model has `call`; all but VectorModel, which learns by a loss of Keras, have the two methods of the scripts:
    call          features -> logits
    loss_terms    features and labels -> the terms that training minimizes, whose names are `loss_names`
    outputs       features (and labels) -> results for evaluation and prediction, one row per example

modeling.py explains the letters in the shape comments; P is max_predictions_per_seq, L the number of labels, M any
number of states.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_tf2 import modeling, shapes
from bert_tf2.config import BertConfig
from bert_tf2.data import records
from bert_tf2.data.rows import INPUTS
from bert_tf2.dropout import DropoutStreams, dropout, dropout_from, fold_in
from bert_tf2.layers import OutputLayer
from bert_tf2.long_texts import Batch, Windows, few_at_a_time
from bert_tf2.losses import (
    NO_PREDICTIONS,
    LossTerm,
    MaskedLMHead,
    classification_loss,
    get_next_sentence_output,
    mean_term,
    multi_label_loss,
    score_masked_words,
)

# Names that are not used below complete the reference's interface.
from bert_tf2.losses import gather_indexes as gather_indexes
from bert_tf2.losses import get_masked_lm_output as get_masked_lm_output
from bert_tf2.shapes import get_shape_list
from bert_tf2.support import lazy

__getattr__ = lazy.unknown(__name__)

# The length of a feature in the table of records -> its shapes. Models accept features of length 1 as a column, too.
_FEATURE_SHAPES = {"max_seq_length": ("BF",), "max_predictions_per_seq": ("BP",), "num_labels": ("BL",), 1: ("B", "B1")}

_WORDS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")

# The deviation of new output weights in the fine-tuning tasks. As in the reference, it does not depend on the config.
_OUTPUT_INITIALIZER_RANGE = 0.02


class _Model(keras.Model):
    """The base class of the models below: an encoder with a head."""

    heads: tuple[str, ...]  # keys of `weights.names.HEADS`, which names the heads' variables
    labeled: str | None = None  # the labeled objects, "texts" or "tokens", if the constructor takes num_labels
    uses_pooler: bool  # whether the model's loss depends on pooled_output. If not, the pooler gets no gradient
    has_pooler = True  # whether the pooler is one of the model's variables in checkpoints
    loss_names: tuple[str, ...] = ("loss",)  # of the terms of loss_terms, in order
    record_kind: records.RecordKind  # the table of the model's features, used for their shapes
    windows: Windows | None = None  # how texts of more than max_position_embeddings tokens are divided, if at all
    head_dropout = 0.0  # the share of an output layer's input that is dropped in training
    # a finetuning.distillation.Teacher, for the training of a classifier or a tagger; set before it, not saved
    teacher = None
    faster = None  # fast.encoder.accelerate sets a FastEncoder, which computes the same with the same variables

    def __init__(self, config: BertConfig, **kwargs):
        super().__init__(**kwargs)
        self.config = config = BertConfig.of(config)
        self.bert = modeling.BertModel(config, dtype=self.dtype_policy)

    def _make_output_layer(self, num_labels: int) -> OutputLayer:
        width, deviation = self.config.hidden_size, _OUTPUT_INITIALIZER_RANGE
        return OutputLayer(num_labels, width, deviation, name="output", dtype=self.dtype_policy)

    def get_config(self) -> dict:
        return {**super().get_config(), "config": self.config.to_dict()}

    def check(self, batch: Batch, *features: str) -> None:
        """Raises ShapeError if `input_ids` or one of `features` is missing, or lacks the shape in `record_kind`."""
        table = self.record_kind.features
        wanted = {name: _FEATURE_SHAPES[table[name].length] for name in (*INPUTS, *features)}
        shapes.Contract().check_batch(batch, wanted, optional=INPUTS[1:])

    def encode(
        self,
        batch: Batch,
        training: bool = False,
        dropout_seed: tf.Tensor | None = None,
        reads: tf.Tensor | Sequence[int] | None = None,
    ) -> modeling.BertOutput:
        """Runs the encoder on `input_ids`, `input_mask` and `segment_ids`, each int [B, F]; the last two are optional.

        Args:
          batch: the features.
          training, dropout_seed: see BertModel.call.
          reads: the positions at which a head reads `sequence_output`, which is then [B, P, D]: int [B, P], or P
            numbers for all examples. `fast` computes the last block only there and at [CLS]. None for all positions.
        """
        self.check(batch)
        segments = batch.get("segment_ids", batch.get("token_type_ids"))
        inputs = (batch["input_ids"], batch.get("input_mask"), segments)
        how = {"training": training, "dropout_seed": dropout_seed}
        if isinstance(reads, Sequence):
            rows = get_shape_list(tf.convert_to_tensor(batch["input_ids"]))[0]
            reads = tf.broadcast_to(tf.constant(reads, tf.int32), [rows, len(reads)])
        if self.faster:
            return self.faster(*inputs, **how, reads=reads, features=batch)
        output = self.bert(*inputs, **how)
        if reads is None:
            return output
        return output._replace(sequence_output=tf.gather(output.sequence_output, reads, batch_dims=1))

    def _drop(self, states: tf.Tensor, training: bool, dropout_seed: tf.Tensor | None) -> tf.Tensor:
        """Applies the dropout before an output layer, `head_dropout`."""
        if not training:
            return states
        # A seed of its own, because the encoder's dropouts use the step's seed itself.
        own = None if dropout_seed is None else fold_in(dropout_seed, -1)
        with dropout_from(DropoutStreams(own)):
            return dropout(states, self.head_dropout)


@keras.saving.register_keras_serializable(package="bert_tf2")
class MaskedLMModel(_Model):
    """Predicts masked words alone, from records.MASKED_WORDS."""

    heads = ("masked_lm",)
    uses_pooler = False
    loss_names = ("masked_lm_loss",)
    record_kind = records.MASKED_WORDS

    def __init__(self, config: BertConfig, has_pooler: bool = True, **kwargs):
        """`has_pooler`: see _Model; no loss trains the pooler of this model."""
        super().__init__(config, **kwargs)
        self.has_pooler = has_pooler
        self.masked_lm = MaskedLMHead(self.config, name="masked_lm", dtype=self.dtype_policy)
        self.built = True

    def get_config(self) -> dict:
        return {**super().get_config(), **({} if self.has_pooler else {"has_pooler": False})}

    def get_output_table(self) -> tf.Variable:
        """The table with which words are scored, float32 [V, D]: the table of embeddings itself."""
        return self.bert.get_embedding_table()

    def call(self, batch: Batch, training: bool = False, dropout_seed: tf.Tensor | None = None) -> tf.Tensor:
        """Scores every word at `masked_lm_positions`, int [B, P] -> float32 logits [B, P, V]."""
        self.check(batch, "masked_lm_positions")
        output = self._encode_masked(batch, training, dropout_seed)
        states = tf.reshape(output.sequence_output, [-1, self.config.hidden_size])  # [B * P, D]
        logits = self.masked_lm(states, self.get_output_table())
        return tf.reshape(logits, [*get_shape_list(batch["masked_lm_positions"]), self.config.vocab_size])

    def _encode_masked(self, batch: Batch, training: bool = False, dropout_seed: tf.Tensor | None = None):
        """`encode`, with sequence_output [B, P, D] at the masked words."""
        reads = shapes.whole_numbers("masked_lm_positions", batch["masked_lm_positions"])
        return self.encode(batch, training, dropout_seed, reads)

    def _word_term(self, batch: Batch, output: modeling.BertOutput) -> LossTerm:
        words = (output.sequence_output, batch["masked_lm_ids"], batch["masked_lm_weights"])
        states, ids, weights = self.faster.real_predictions(*words) if self.faster else words
        return score_masked_words(self.masked_lm, states, self.get_output_table(), ids, weights)[0]

    def loss_terms(self, batch: Batch, dropout_seed: tf.Tensor) -> list[LossTerm]:
        self.check(batch, *_WORDS)
        return [self._word_term(batch, self._encode_masked(batch, True, dropout_seed))]

    def outputs(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns `masked_lm_example_loss` and `masked_lm_predictions` for the metrics, per prediction [B, P]."""
        self.check(batch, *_WORDS)
        return self._word_outputs(batch, self._encode_masked(batch))

    def _word_outputs(self, batch: Batch, output: modeling.BertOutput) -> dict[str, tf.Tensor]:
        labels = (batch["masked_lm_ids"], batch["masked_lm_weights"])
        _, losses, logits = score_masked_words(self.masked_lm, output.sequence_output, self.get_output_table(), *labels)
        shape = get_shape_list(batch["masked_lm_ids"])
        guesses = tf.argmax(logits, axis=-1, output_type=tf.int32)
        return {
            "masked_lm_example_loss": tf.reshape(losses, shape),
            "masked_lm_predictions": tf.reshape(guesses, shape),
        }


@keras.saving.register_keras_serializable(package="bert_tf2")
class PretrainingModel(MaskedLMModel):
    """Predicts masked words and next sentences, from records.PRETRAINING."""

    heads = ("masked_lm", "next_sentence")
    uses_pooler = True
    loss_names = ("masked_lm_loss", "next_sentence_loss")
    record_kind = records.PRETRAINING

    def __init__(self, config: BertConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.next_sentence = OutputLayer(
            2, self.config.hidden_size, self.config.initializer_range, name="next_sentence", dtype=self.dtype_policy
        )

    def _sentences(self, batch: Batch, output: modeling.BertOutput):
        """See losses.get_next_sentence_output."""
        return get_next_sentence_output(self.next_sentence, output.pooled_output, batch["next_sentence_labels"])

    def loss_terms(self, batch: Batch, dropout_seed: tf.Tensor) -> list[LossTerm]:
        """The two losses, which are added with equal weight as in the paper."""
        self.check(batch, *_WORDS, "next_sentence_labels")
        output = self._encode_masked(batch, True, dropout_seed)
        _, sentence_loss, _ = self._sentences(batch, output)
        return [self._word_term(batch, output), mean_term("next_sentence_loss", sentence_loss)]

    def outputs(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns for the metrics `masked_lm_*` per prediction [B, P], and `next_sentence_*` per example [B]."""
        self.check(batch, *_WORDS, "next_sentence_labels")
        output = self._encode_masked(batch)
        _, sentence_loss, sentence_log_probs = self._sentences(batch, output)
        return {
            **self._word_outputs(batch, output),
            "next_sentence_example_loss": sentence_loss,
            "next_sentence_predictions": tf.argmax(sentence_log_probs, axis=-1, output_type=tf.int32),
        }


@keras.saving.register_keras_serializable(package="bert_tf2")
class ClassifierModel(_Model):
    """Predicts one label per example; with `regression` one number, trained with squared error.

    With `multi_label`, an example has any number of labels: each output is the logit of an independent binary decision,
    trained with binary cross-entropy.

    `windows`: how long texts are divided; None for texts of at most max_position_embeddings tokens. With `windows`, the
    features may have any number of tokens, and the logits of a text are pooled over its windows; see Windows.pool.

    `class_weights`: L weights in the training loss for the examples of each class (with `multi_label`, for each label
    of an example); None for equal weights. Set it before the training. It is not saved.

    `head_dropout`: the share of pooled_output that is dropped in training. Set it before the training. It is not saved.
    """

    heads = ("labels",)
    labeled = "texts"
    head_dropout = 0.1  # for every config (reference: create_model of run_classifier)
    uses_pooler = True
    record_kind = records.CLASSIFICATION

    def __init__(
        self,
        config: BertConfig,
        num_labels: int,
        regression: bool = False,
        multi_label: bool = False,
        windows: Windows | Mapping[str, Any] | None = None,
        **kwargs,
    ):
        super().__init__(config, **kwargs)
        self.num_labels = num_labels
        self.regression = regression
        self.multi_label = multi_label
        self.windows = Windows(**windows) if isinstance(windows, Mapping) else windows
        if multi_label:
            self.record_kind = records.MULTI_LABEL
        self.class_weights: tuple[float, ...] | None = None
        self.num_outputs = 1 if regression else num_labels
        self.kind = "number" if regression else "labels" if multi_label else "label"  # see Windows.pool
        self.output_layer = self._make_output_layer(self.num_outputs)
        self.built = True

    def get_config(self) -> dict:
        own = {"num_labels": self.num_labels, "regression": self.regression}
        own |= {"multi_label": True} if self.multi_label else {}
        own |= {"windows": dataclasses.asdict(self.windows)} if self.windows else {}
        return {**super().get_config(), **own}

    def call(self, batch: Batch, training: bool = False, dropout_seed: tf.Tensor | None = None) -> tf.Tensor:
        """-> float32 logits [B, L]."""
        return self.of_texts(batch, self.windows, training, dropout_seed)

    def of_texts(
        self, batch: Batch, windows: Windows | None, training: bool = False, dropout_seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """The logits of `call`, with the given windows in place of the model's `windows`."""
        self.check(batch)
        if windows is None:
            return self._of_rows(batch, training, dropout_seed)
        divided, counts = windows.divide(batch)
        if training:  # the gradients need the states of all windows at once
            logits = self._of_rows(divided, training, dropout_seed)
        else:
            logits = few_at_a_time(lambda part: self._of_rows(part, False, None), divided, [self.num_outputs])
        return windows.pool(logits, counts, self.kind)

    def probabilities(self, logits: tf.Tensor, windows: Windows | None) -> tf.Tensor:
        """The probabilities of the labels, of logits [..., L] of texts in `windows`; in a regression the numbers."""
        if self.regression:
            return logits
        if self.multi_label:
            return tf.sigmoid(logits)
        return tf.exp(logits) if windows else tf.nn.softmax(logits)

    def _of_rows(self, batch: Batch, training: bool, dropout_seed: tf.Tensor | None) -> tf.Tensor:
        pooled = self.encode(batch, training, dropout_seed, reads=()).pooled_output
        return self.output_layer(self._drop(pooled, training, dropout_seed))

    def _example_loss(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if self.regression:
            return tf.square(logits[:, 0] - tf.reshape(tf.cast(labels, tf.float32), [-1]))
        return multi_label_loss(logits, labels) if self.multi_label else classification_loss(logits, labels)

    def loss_terms(self, batch: Batch, dropout_seed: tf.Tensor) -> list[LossTerm]:
        """The mean over the examples, weighted by `class_weights` if they are set."""
        self.check(batch, "label_ids")
        logits, labels = self(batch, training=True, dropout_seed=dropout_seed), batch["label_ids"]
        class_weights = None if self.class_weights is None else tf.constant(self.class_weights, tf.float32)  # [L]
        if self.multi_label and class_weights is not None:
            losses = multi_label_loss(logits, labels, class_weights)
        else:
            losses = self._example_loss(logits, labels)
        losses = self.teacher.mixed(losses, logits, batch) if self.teacher else losses
        if self.multi_label or class_weights is None:
            return [mean_term("loss", losses)]
        weights = tf.gather(class_weights, tf.reshape(labels, [-1]))  # [B]
        return [LossTerm("loss", tf.reduce_sum(weights * losses), tf.reduce_sum(weights))]

    def outputs(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns `probabilities` [B, L] (in a regression the number, [B, 1]) and `example_loss` [B], unweighted."""
        self.check(batch, "label_ids")
        logits = self(batch)
        losses = self._example_loss(logits, batch["label_ids"])
        return {"probabilities": self.probabilities(logits, self.windows), "example_loss": losses}


@keras.saving.register_keras_serializable(package="bert_tf2")
class SpanModel(_Model):
    """Predicts the start and the end of an answer (paper, section 4.2)."""

    heads = ("span",)
    uses_pooler = False
    record_kind = records.SQUAD_TRAIN

    def __init__(self, config: BertConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.output_layer = self._make_output_layer(2)
        self.built = True

    def call(self, batch: Batch, training: bool = False, dropout_seed: tf.Tensor | None = None):
        """-> float32 (start_logits, end_logits), each [B, F]."""
        logits = self.output_layer(self.encode(batch, training, dropout_seed).sequence_output)  # [B, F, 2]
        if self.faster:
            logits = self.faster.without_padding(logits, batch)
        return logits[..., 0], logits[..., 1]

    def loss_terms(self, batch: Batch, dropout_seed: tf.Tensor) -> list[LossTerm]:
        """The mean of two classification losses, each over all F positions. Position 0, [CLS], means: no answer."""
        self.check(batch, "start_positions", "end_positions")
        start_logits, end_logits = self(batch, training=True, dropout_seed=dropout_seed)
        start_loss = classification_loss(start_logits, batch["start_positions"])
        end_loss = classification_loss(end_logits, batch["end_positions"])
        return [mean_term("loss", (start_loss + end_loss) / 2.0)]

    def outputs(self, batch: Batch) -> dict[str, tf.Tensor]:
        start_logits, end_logits = self(batch)
        return {"start_logits": start_logits, "end_logits": end_logits}


@keras.saving.register_keras_serializable(package="bert_tf2")
class TaggingModel(_Model):
    """Predicts one label per token (paper, section 5.3). Positions with a negative label id are ignored.

    `head_dropout`: the share of sequence_output that is dropped in training. Set it before the training. It is not
    saved.
    """

    heads = ("labels",)
    labeled = "tokens"
    head_dropout = 0.1  # as in ClassifierModel
    uses_pooler = False
    record_kind = records.TOKEN_TAGGING

    def __init__(self, config: BertConfig, num_labels: int, **kwargs):
        super().__init__(config, **kwargs)
        self.num_labels = num_labels
        self.output_layer = self._make_output_layer(num_labels)
        self.built = True

    def get_config(self) -> dict:
        return {**super().get_config(), "num_labels": self.num_labels}

    def call(self, batch: Batch, training: bool = False, dropout_seed: tf.Tensor | None = None) -> tf.Tensor:
        """-> float32 logits [B, F, L]."""
        states = self.encode(batch, training, dropout_seed).sequence_output
        return self.output_layer(self._drop(states, training, dropout_seed))

    def probabilities(self, logits: tf.Tensor, windows: None = None) -> tf.Tensor:
        return tf.nn.softmax(logits)

    def loss_terms(self, batch: Batch, dropout_seed: tf.Tensor) -> list[LossTerm]:
        self.check(batch, "label_ids")
        logits = self(batch, training=True, dropout_seed=dropout_seed)
        labels = tf.cast(batch["label_ids"], tf.int32)
        counts = tf.cast(labels >= 0, tf.float32)  # [B, F]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.maximum(labels, 0), logits=logits)
        losses = self.teacher.mixed(losses, logits, batch) if self.teacher else losses
        return [LossTerm("loss", tf.reduce_sum(counts * losses), tf.reduce_sum(counts), NO_PREDICTIONS)]

    def outputs(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns `predictions`, int [B, F]: the label ids with the highest scores."""
        return {"predictions": tf.argmax(self(batch), axis=-1, output_type=tf.int32)}


@keras.saving.register_keras_serializable(package="bert_tf2")
class VectorModel(_Model):
    """A vector for each text, pooled from the states of its tokens. Its loss compares texts: `losses`."""

    heads = ()
    uses_pooler = False
    record_kind = records.CLASSIFICATION

    def __init__(self, config: BertConfig, pooling: str, normalize: bool, has_pooler: bool = True, **kwargs):
        """`pooling`: "mean", "max" or "cls"; `normalize`: whether vectors get length 1; `has_pooler`: see _Model."""
        super().__init__(config, **kwargs)
        self.pooling, self.normalize, self.has_pooler = pooling, normalize, has_pooler
        self.built = True

    def get_config(self) -> dict:
        own = {"pooling": self.pooling, "normalize": self.normalize, "has_pooler": self.has_pooler}
        return {**super().get_config(), **own}

    def call(self, batch: Batch, training: bool = False, dropout_seed: tf.Tensor | None = None) -> tf.Tensor:
        """-> float32 [B, D]."""
        ids, mask = batch["input_ids"], batch.get("input_mask")
        reads = (0,) if self.pooling == "cls" else None
        states = self.encode(batch, training, dropout_seed, reads).sequence_output
        return pooled_states(states, tf.ones_like(ids) if mask is None else mask, self.pooling, self.normalize)


def pooled_states(states: tf.Tensor, mask: tf.Tensor, pooling: str, normalize: bool) -> tf.Tensor:
    """States of tokens [B, F, D] and their mask [B, F] -> float32 [B, D]; "cls" reads the first state alone."""
    states, is_token = tf.cast(states, tf.float32), tf.cast(mask, tf.bool)[..., tf.newaxis]
    if pooling == "cls":
        vectors = states[:, 0]
    elif pooling == "max":
        vectors = tf.reduce_max(tf.where(is_token, states, states.dtype.min), axis=1)
    else:
        counts = tf.reduce_sum(tf.cast(is_token, tf.float32), axis=1)
        vectors = tf.reduce_sum(tf.where(is_token, states, 0.0), axis=1) / counts
    return tf.math.l2_normalize(vectors, axis=-1, epsilon=1e-24) if normalize else vectors


MODELS = (PretrainingModel, SpanModel, ClassifierModel, TaggingModel, MaskedLMModel)
"""The models with heads of their own; weights.checkpoint.make_model uses the first that fits."""

"""`bert_tf2.masked_lm`: a Keras model whose `fit` continues the pretraining of masked words on any texts.

    words = bert_tf2.masked_lm("uncased_L-12_H-768_A-12")
    words.fit(texts, epochs=3, validation_split=0.1)
    words.fill_mask("Paris is the [MASK] of France.").filled
    words.save_folder("adapted")        # for load, classifier and the scripts

A text is divided into rows of max_seq_length tokens. Masks follow the rule of `pretraining.examples`.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from bert_tf2 import heads, shapes
from bert_tf2.api import text_rows
from bert_tf2.api.long_runs import widened
from bert_tf2.api.text_models import TextModel
from bert_tf2.api.text_parts import RANDOM_SEED, CutTexts, Parts
from bert_tf2.exporting.tokenize_layer import Tokenize, columns
from bert_tf2.inference import predict_masked
from bert_tf2.losses import NO_PREDICTIONS
from bert_tf2.pretraining.dynamic_masking import EVALUATION, TRAINING, Masker
from bert_tf2.pretraining.options import PretrainingDataOptions
from bert_tf2.support import rows
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.support.settings import check_type
from bert_tf2.weights import names

_TEXTS_AT_ONCE = 256  # are tokenized together before the training


@keras.saving.register_keras_serializable(package="bert_tf2")
class MaskedWordsLoss(keras.losses.Loss):
    """The loss that run_pretraining.py minimizes: the mean over the masked words of a batch, on all replicas together.

    `y_true`: ids int [B, P]; `y_pred`: logits [B, P, V]; `sample_weight`: [B, P], 1 for a masked word, 0 for padding.
    """

    def __call__(self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: tf.Tensor) -> tf.Tensor:
        weights = tf.cast(sample_weight, tf.float32)
        ids = shapes.whole_numbers("y", y_true)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(ids, tf.cast(y_pred, tf.float32))
        count = tf.reduce_sum(weights)
        if context := tf.distribute.get_replica_context():  # the sum of the replicas' parts is the mean
            count = context.all_reduce(tf.distribute.ReduceOp.SUM, count)
        return tf.reduce_sum(weights * losses) / (count + NO_PREDICTIONS)


@keras.saving.register_keras_serializable(package="bert_tf2")
class MaskedTextModel(TextModel):
    """A model of masked words, made by `bert_tf2.masked_lm`.

    `x` of `fit` and `evaluate` has texts in a list, an array, a column or table of pandas, polars or pyarrow; or
    batches in a `tf.data.Dataset`, a `keras.utils.PyDataset` or a generator, whose labels are not read. There is no
    `y`. All texts are read before the first step, and divided into rows of max_seq_length tokens, [CLS] and [SEP]
    included: a row has tokens of one text, and the last row of a text is shorter. A text without tokens gives no row.
    `batch_size` is a number of rows.

    In `fit`, each epoch draws new masks. `evaluate` and `validation_data` have the same masks in each epoch and call.
    The History has the mean `loss` of the batches, and the measures of run_pretraining.py: `masked_lm_loss`, the mean
    over all masked words, and `masked_lm_accuracy`, the share of masked words that the model predicts.
    """

    export_as = "masked_lm"

    def __init__(self, model: heads.MaskedLMModel, tokenize: Tokenize, settings: Mapping[str, Any], **kwargs):
        """`settings`: `masked_lm_prob`, `max_predictions_per_seq` and `random_seed`."""
        super().__init__(model, tokenize, None, **kwargs)
        self.settings = dict(settings)
        self._epoch = 0  # of the masks outside of `fit`

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "settings": dict(self.settings)}

    def compile(self, optimizer: Any = None, loss: Any = None, metrics: Any = None, **kwargs) -> None:
        """See TextModel.compile; the loss is the loss of run_pretraining.py, computed from logits [B, P, V]."""
        loss_of_words = keras.metrics.SparseCategoricalCrossentropy("masked_lm_loss", from_logits=True)
        right_words = keras.metrics.SparseCategoricalAccuracy("masked_lm_accuracy")
        kwargs = {"weighted_metrics": [loss_of_words, right_words], **kwargs}
        super().compile(optimizer, loss or MaskedWordsLoss(), metrics or [], **kwargs)

    def call(self, inputs: Mapping[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        """The features of `dataset` -> logits of the words at `masked_lm_positions`, float32 [B, P, V]."""
        return self.model(inputs, training=training)

    @staticmethod
    def _inputs(x: Any) -> Any:
        if not text_rows.has_ids(x):
            raise UserError("this model can only be called with the rows of `dataset`; use `fill_mask` for texts")
        return x

    @staticmethod
    def _needed(y: Any) -> Any:
        return y

    def _arrays(self, x: Any, y: Any = None, sample_weight: Any = None, most: int | None = None) -> tuple:
        """The numbers of the rows, int64 [R], and their ids with [CLS] and [SEP], int32 [R, None]."""
        texts = _texts(x, most)
        for name, given in (("y", y), ("sample_weight", sample_weight)):
            if given is not None:
                raise UserError(f"{name}: is not read here, because the words to predict are drawn; leave it out")
        data = tf.data.Dataset.from_tensor_slices(columns(texts)[0]).batch(_TEXTS_AT_ONCE)
        found = [*data.map(self.tokenize.in_rows, tf.data.AUTOTUNE)]
        ids = tf.concat(found, axis=0) if found else tf.RaggedTensor.from_row_lengths(tf.zeros([0], tf.int32), [])
        return tf.range(ids.nrows(tf.int64)), ids

    def _batches(
        self, x: Any, y: Any, sample_weight: Any, batch_size: int, shuffle: bool, most: int | None = None
    ) -> text_rows.Batches:
        check_type("batch_size", batch_size, int, low=1)
        numbers, ids = self._arrays(x, y, sample_weight, most)
        data = tf.data.Dataset.from_tensor_slices(numbers)
        data = data.shuffle(len(numbers)) if shuffle and len(numbers) else data
        data = data.batch(batch_size).map(lambda chosen: (chosen, tf.gather(ids, chosen)))
        return text_rows.Batches(data, data.take(1))

    @tf.autograph.experimental.do_not_convert
    def _tokenized(
        self, data: tf.data.Dataset, cut: CutTexts | None = None, may_be_blank: bool = False
    ) -> tf.data.Dataset:
        """Draws the masks: with `cut`, of the training, new masks in each pass over the data."""
        if cut:
            cut.none_are_cut = True  # all rows are read
            epochs = tf.data.Dataset.random(self.settings["random_seed"], rerandomize_each_iteration=True)
        else:
            epochs = tf.data.Dataset.from_tensors(tf.constant(self._epoch, tf.int64)).repeat()
        seeds = (self.settings["random_seed"], TRAINING if cut or self._epoch else EVALUATION)
        options = {name: self.settings[name] for name in ("masked_lm_prob", "max_predictions_per_seq")}
        options = PretrainingDataOptions(max_seq_length=self.tokenize.max_seq_length, **options)
        masked = functools.partial(self._masked, Masker(self.tokenize.tokenizer.vocab, options, seeds))
        return tf.data.Dataset.zip(epochs, data).map(masked, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    def _masked(self, masker: Masker, epoch: tf.Tensor, batch: tuple[tf.Tensor, tf.RaggedTensor]) -> tuple:
        """A batch with masks: the input of the model, the ids of the masked words, and their weights."""
        numbers, ids = batch
        lengths = ids.row_lengths()
        origin = {"epoch": tf.zeros_like(numbers) + epoch, "file": tf.zeros_like(numbers), "record": numbers}
        segments = tf.RaggedTensor.from_tensor(tf.cast(lengths[:, None], tf.int32))
        found = masker({"input_ids": ids, "segment_lengths": segments}, origin)
        if not self.tokenize.pad_to_max_length:
            most = tf.reduce_max(tf.reduce_sum(tf.cast(found["masked_lm_weights"], tf.int32), 1))
            ends = {name: most if name.startswith("masked") else tf.reduce_max(lengths) for name in found}
            found = {name: values[:, : ends[name]] for name, values in found.items()}
        return found, found.pop("masked_lm_ids"), found.pop("masked_lm_weights")

    @tf.autograph.experimental.do_not_convert
    def with_few_widths(self, x: dict[str, tf.Tensor], *others: tf.Tensor) -> tuple[Any, ...]:
        """See LongRuns; each row gets max_predictions_per_seq places for masked words."""
        tokens, positions = dict(x), "masked_lm_positions"
        others = [tokens.pop(positions), *others]
        more = self.settings["max_predictions_per_seq"] - tf.shape(others[0])[1]
        found, *others = *super().with_few_widths(tokens), *(widened(values, more) for values in others)
        return found | {positions: others[0]}, *others[1:]

    def _divided(self, share: float, x: Any, y: Any, sample_weight: Any) -> tuple[list, list]:
        (training,), (validation,) = text_rows.divide(share, _texts(x))
        return [training, y, sample_weight], validation

    @text_rows.of_argument("validation_data")
    def _validation(self, given: Any, batch_size: int, steps: int | None, cut: CutTexts) -> tf.data.Dataset:
        """The batches of `validation_data`, which has texts like `x`."""
        cut.none_are_cut = True
        text_rows.check_end(given, steps, "validation_steps")
        batches = self._batches(given, None, None, batch_size, False, steps)
        text_rows.check_given(batches, needs_y=True)
        return self._tokenized(batches.data)

    def train_on_batch(self, *args, **kwargs) -> Any:
        """As in Keras, with texts. Each step draws new masks, and the learning rate is constant."""
        self._epoch = int(self.optimizer.iterations) + 1
        try:
            return super().train_on_batch(*args, **kwargs)
        finally:
            self._epoch = 0

    def predict_on_batch(self, x: Any) -> list[predict_masked.Answer]:
        """The same as `predict`."""
        return self.predict(x)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> list[predict_masked.Answer]:
        """The answers of `fill_mask` to texts with `[MASK]`."""
        text_rows.check_end(x, steps, "steps")
        return self.fill_mask(_texts(x, steps), batch_size=8 if batch_size is None else batch_size)

    def fill_mask(
        self, texts: Any, top_k: int = 5, *, batch_size: int = 8, max_seq_length: int | None = None
    ) -> predict_masked.Answer | list[predict_masked.Answer]:
        """The most probable words for every `[MASK]`; see Bert.fill_mask for arguments, result and errors."""
        return predict_masked.fill_mask(
            self.model, self.tokenize.tokenizer, texts, top_k, max_seq_length=max_seq_length, batch_size=batch_size
        )

    def _kept(self) -> None:
        """Writes no task.json, because the weights are for every task."""


def _texts(x: Any, most: int | None = None) -> list[str]:
    """The texts of any container; `most` batches of a generator or a dataset, None for all."""
    if isinstance(x, tf.data.Dataset) and most is not None:
        x = x.take(most)
    if isinstance(x, keras.utils.PyDataset) and x.num_batches is None and most is not None:
        x = (x[number] for number in range(most))
    if not hasattr(x, "__next__"):
        return rows.texts(x, "x", pairs=False)[0]
    batches = (rows.parts_of(batch)[0] for batch in itertools.islice(x, most))
    return [text for batch in batches for text in rows.texts(batch, "x", pairs=False)[0]]


def masked_lm(
    weights: str | os.PathLike[str],
    *,
    masked_lm_prob: float = PretrainingDataOptions.masked_lm_prob,
    max_predictions_per_seq: int | None = None,
    max_seq_length: int | None = None,
    bert_config_file: str | os.PathLike[str] | None = None,
    vocab_file: str | os.PathLike[str] | None = None,
    do_lower_case: bool | None = None,
    random_seed: int = RANDOM_SEED,
) -> MaskedTextModel:
    """A model of masked words as a Keras model, compiled with the reference's recipe; continues a pretraining.

    Args:
      weights, bert_config_file, vocab_file, do_lower_case: see `load`.
      masked_lm_prob: the share of the tokens to predict: 80 % of them become [MASK], 10 % another entry of the
        vocabulary, and 10 % stay.
      max_predictions_per_seq: the most masked words of a row; defaults to masked_lm_prob * max_seq_length, rounded up.
      max_seq_length: the most tokens of a row; defaults to the weights' training, else to 128.
      random_seed: determines the masks, and the weights of a head that `weights` lacks.

    Raises:
      UserError: as `load`; or an argument is wrong.
    """
    check_type("masked_lm_prob", masked_lm_prob, float, low=0)
    check_type("max_predictions_per_seq", max_predictions_per_seq, int, low=1, optional=True)
    if masked_lm_prob > 1:
        raise UserError(f"masked_lm_prob={masked_lm_prob}: is a share of the tokens, so it must be 1 or less")
    found = Parts(weights, bert_config_file, vocab_file, do_lower_case, max_seq_length)
    usual = max(1, math.ceil(masked_lm_prob * found.tokenize.max_seq_length))
    most = usual if max_predictions_per_seq is None else int(max_predictions_per_seq)
    settings = {"masked_lm_prob": float(masked_lm_prob), "max_predictions_per_seq": most, "random_seed": random_seed}
    there = found.source.shapes
    if missing := [row.reference for row in names.MASKED_LM if row.reference not in there]:
        logging.warning("%s: has no masked-LM head; it begins with random %s", found.source.path, and_more(missing, 3))
    has_pooler = all(row.reference in there for row in names.POOLER)
    model = found.model(heads.MaskedLMModel, has_pooler, seed=random_seed)
    return MaskedTextModel(model, found.tokenize, settings)

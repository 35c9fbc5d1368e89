"""`bert_tf2.masked_lm`: a Keras model whose `fit` continues the pretraining of masked words on any texts.

    words = bert_tf2.masked_lm("uncased_L-12_H-768_A-12")
    words.fit(texts, epochs=3, validation_split=0.1)
    words.fill_mask("Paris is the [MASK] of France.").filled
    words.save_folder("adapted")        # for load, classifier and the scripts

A text is divided into rows of max_seq_length tokens. Masks follow the rule of `pretraining.examples`.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from bert_tf2 import heads, shapes
from bert_tf2.api import data_warnings, text_rows
from bert_tf2.api.cut_texts import CutTexts
from bert_tf2.api.readers import Reader, mapped
from bert_tf2.api.text_models import TextModel
from bert_tf2.api.text_parts import RANDOM_SEED, Parts
from bert_tf2.api.text_rows import Batches, Rows
from bert_tf2.api.text_steps import Answers, widened
from bert_tf2.exporting.tokenize_layer import Tokenize, columns_of
from bert_tf2.inference import predict_masked
from bert_tf2.losses import NO_PREDICTIONS
from bert_tf2.pretraining.dynamic_masking import EVALUATION, TRAINING, Masker
from bert_tf2.pretraining.options import PretrainingDataOptions
from bert_tf2.support import containers
from bert_tf2.support.errors import UserError, and_more, naming_arguments
from bert_tf2.weights import names

_TEXTS_AT_ONCE = 256  # are tokenized together before the training


@keras.saving.register_keras_serializable(package="bert_tf2")
class MaskedWordsLoss(keras.losses.Loss):
    """The loss that run_pretraining.py minimizes: the mean over the masked words of a batch, on all replicas together.

    Each replica gets the loss of the whole batch, which Keras shows, and the gradient of its own part of the sum.
    `y_true`: ids int [B, P]; `y_pred`: logits [B, P, V]; `sample_weight`: [B, P], 1 for a masked word, 0 for padding.
    """

    def __call__(self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: tf.Tensor) -> tf.Tensor:
        weights = tf.cast(sample_weight, tf.float32)
        ids = shapes.whole_numbers("y", y_true)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(ids, tf.cast(y_pred, tf.float32))
        total, count = tf.reduce_sum(weights * losses), tf.reduce_sum(weights)
        replicas = tf.distribute.get_replica_context()
        if replicas is None or replicas.num_replicas_in_sync == 1:
            return total / (count + NO_PREDICTIONS)
        whole, count = replicas.all_reduce(tf.distribute.ReduceOp.SUM, [tf.stop_gradient(total), count])
        # Keras multiplies a loss by the number of replicas before it shows their mean.
        shown = whole / replicas.num_replicas_in_sync
        return (total + tf.stop_gradient(shown - total)) / (count + NO_PREDICTIONS)


class _MaskedReader(Reader):
    """Reads texts as rows of max_seq_length tokens, and draws the words to predict."""

    needs_y = False

    def __init__(self, tokenize: Tokenize, settings: Mapping[str, Any], step: Callable[[], int]):
        """`settings`: the arguments of `masked_lm` that determine the masks. `step`: the steps of the trainings."""
        super().__init__(tokenize)
        self._settings, self._step = settings, step

    def read(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        for name, part in (("y", y), ("sample_weight", sample_weight)):
            if part is not None:
                raise UserError(f"{name}: is not read here, because the words to predict are drawn; leave it out")
        return super().read(x)

    def rows(self, x: Any, y: Any = None, sample_weight: Any = None) -> Rows:
        """The texts of x, or of all batches of x."""
        return Rows(text_rows.every_row(x, _texts))

    def arrays(self, rows: Rows) -> tuple:
        """The numbers of the rows, int64 [R], and their ids with [CLS] and [SEP], int32 [R, None]."""
        data = tf.data.Dataset.from_tensor_slices(columns_of(rows.x)[0]).batch(_TEXTS_AT_ONCE)
        found = [*data.map(self.tokenize.in_rows, tf.data.AUTOTUNE)]
        ids = tf.concat(found, axis=0) if found else tf.RaggedTensor.from_row_lengths(tf.zeros([0], tf.int32), [])
        return tf.range(ids.nrows(tf.int64)), ids

    def of_rows(self, rows: Rows, batch_size: int, shuffle: bool) -> Batches:
        numbers, ids = self.arrays(rows)
        if not len(numbers):
            return Batches(tf.data.Dataset.range(0), None)
        data = tf.data.Dataset.from_tensor_slices(numbers)
        data = data.shuffle(len(numbers)) if shuffle else data
        data = data.batch(batch_size).map(lambda chosen: (chosen, tf.gather(ids, chosen)))
        return Batches(data, (numbers[:batch_size], ids[:batch_size]))

    def of_batches(self, x: Any, batch_size: int, shuffle: bool, most: int | None) -> Batches:
        """`most` counts batches of rows, which are not known before the texts are divided, so it limits no texts."""
        is_dataset = isinstance(x, tf.data.Dataset)
        data_warnings.of_unread(x.element_spec if is_dataset else None)
        batches = int(x.cardinality()) if is_dataset else getattr(x, "num_batches", None)
        if batches not in (None, tf.data.INFINITE_CARDINALITY):
            return self.of_rows(self.rows(x), batch_size, shuffle)
        texts, first = text_rows.read_batches(x, lambda batch: columns_of(_texts(self.parts(batch)[0])), shuffle, None)
        # The first texts may have fewer rows than a batch. A generator cannot be read twice, so they are repeated.
        first = tf.data.Dataset.from_tensors(first).repeat(batch_size)
        return Batches(self._in_rows(texts, batch_size), next(iter(self._in_rows(first, batch_size)), None))

    def _in_rows(self, texts: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
        """Batches of strings [B] -> batches of the numbers of rows and of their ids, as `arrays` has them."""
        return texts.map(self.tokenize.in_rows, tf.data.AUTOTUNE).unbatch().enumerate().ragged_batch(batch_size)

    def pipeline(self, data: tf.data.Dataset, cut: CutTexts | None = None, trains: bool = False) -> tf.data.Dataset:
        """Draws the masks, for a training new masks in each pass over the data."""
        steps = tf.data.Dataset.from_tensors(tf.constant(0, tf.int64)).repeat()
        if trains:
            # Not tf.data's random numbers, which differ between one device and several.
            step = tf.data.Dataset.from_generator(lambda: [self._step()], output_signature=tf.TensorSpec([], tf.int64))
            steps = step.flat_map(lambda step: tf.data.Dataset.from_tensors(step).repeat())
            steps = steps.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        seeds = (self._settings["random_seed"], TRAINING if trains else EVALUATION)
        options = {name: value for name, value in self._settings.items() if name != "random_seed"}
        options = PretrainingDataOptions(max_seq_length=self.tokenize.max_seq_length, **options)
        masked = functools.partial(self._masked, Masker(self.tokenize.tokenizer.vocab, options, seeds))
        return mapped(tf.data.Dataset.zip(steps, data), masked, cut)

    def at_once(self, arrays: tuple, trains: bool = False) -> tuple:
        return next(iter(self.pipeline(tf.data.Dataset.from_tensors(arrays), trains=trains)))

    def answered(self, given: Any, batches: Batches) -> tf.data.Dataset:
        return self.pipeline(batches.data)

    def _masked(self, masker: Masker, step: tf.Tensor, batch: tuple[tf.Tensor, tf.RaggedTensor]) -> tuple:
        """A batch with masks: the input of the model, the ids of the masked words, and their weights. No row is cut."""
        numbers, ids = batch
        lengths = ids.row_lengths()
        origin = {"epoch": tf.zeros_like(numbers) + step, "file": tf.zeros_like(numbers), "record": numbers}
        segments = tf.RaggedTensor.from_tensor(tf.cast(lengths[:, None], tf.int32))
        found = masker({"input_ids": ids, "segment_lengths": segments}, origin)
        if not self.tokenize.pad_to_max_length:
            most = tf.reduce_max(tf.reduce_sum(tf.cast(found["masked_lm_weights"], tf.int32), 1))
            ends = {name: most if name.startswith("masked") else tf.reduce_max(lengths) for name in found}
            found = {name: values[:, : ends[name]] for name, values in found.items()}
        return (found, found.pop("masked_lm_ids"), found.pop("masked_lm_weights")), tf.zeros_like(lengths, tf.bool)

    def of_validation(self, given: Any) -> tuple[Any, Any, Any]:
        """`validation_data` has texts like `x`."""
        return given, None, None


@keras.saving.register_keras_serializable(package="bert_tf2")
class MaskedTextModel(Answers, TextModel):
    """A model of masked words, made by `bert_tf2.masked_lm`.

    `x` of `fit` and `evaluate` has texts in a list, an array, a column or table of pandas, polars or pyarrow; or
    batches in a `tf.data.Dataset`, a `keras.utils.PyDataset` or a generator, whose labels are not read. There is no
    `y`. Texts are divided into rows of max_seq_length tokens, [CLS] and [SEP] included: a row has tokens of one text,
    and the last row of a text is shorter. A text without tokens gives no row. `batch_size` is a number of rows, and a
    step reads a batch of rows. All texts are read before the first step; generators, and datasets without an end, are
    read on the way.

    In `fit`, each epoch draws new masks, a function of random_seed, the step before the epoch, and the row. `evaluate`
    and `validation_data` have the same masks in each epoch and call. The History has the mean `loss` of the batches,
    and the measures of run_pretraining.py: `masked_lm_loss`, the mean over all masked words, and `masked_lm_accuracy`,
    the share of masked words that the model predicts. `predict` is `fill_mask`.
    """

    export_as = "masked_lm"
    reads_no_texts = "rows of `dataset`; use `fill_mask`"
    answered_at_once = 8

    def _make_reader(self, loss: Any) -> Reader:
        return _MaskedReader(self.tokenize, self.settings, lambda: int(self.optimizer.iterations.numpy()))

    def compile(self, optimizer: Any = None, loss: Any = None, metrics: Any = None, **kwargs) -> None:
        """See TextModel.compile; the loss is the loss of run_pretraining.py, computed from logits [B, P, V]."""
        loss_of_words = keras.metrics.SparseCategoricalCrossentropy("masked_lm_loss", from_logits=True)
        right_words = keras.metrics.SparseCategoricalAccuracy("masked_lm_accuracy")
        kwargs = {"weighted_metrics": [loss_of_words, right_words], **kwargs}
        super().compile(optimizer, loss or MaskedWordsLoss(), metrics or [], **kwargs)

    def call(self, inputs: Mapping[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        """The features of `dataset` -> logits of the words at `masked_lm_positions`, float32 [B, P, V]."""
        return self.model(inputs, training=training)

    @tf.autograph.experimental.do_not_convert
    def with_few_widths(self, x: dict[str, tf.Tensor], *others: tf.Tensor) -> tuple[Any, ...]:
        """See TextSteps; each row gets max_predictions_per_seq places for masked words."""
        tokens, positions = dict(x), "masked_lm_positions"
        others = [tokens.pop(positions), *others]
        more = self.settings["max_predictions_per_seq"] - tf.shape(others[0])[1]
        found, *others = *super().with_few_widths(tokens), *(widened(values, more) for values in others)
        return found | {positions: others[0]}, *others[1:]

    def _rows(self, x: Any) -> list[str]:
        return _texts(x)

    def _answers(self, x: Any, batch_size: int) -> list[predict_masked.Answer]:
        return self.fill_mask(_texts(x), batch_size=batch_size)

    def fill_mask(
        self, texts: Any, top_k: int = 5, *, batch_size: int = 8, max_seq_length: int | None = None
    ) -> predict_masked.Answer | list[predict_masked.Answer]:
        """The most probable words for every `[MASK]`; see Bert.fill_mask for arguments, result and errors."""
        return predict_masked.fill_mask(
            self.model, self.tokenize.tokenizer, texts, top_k, max_seq_length=max_seq_length, batch_size=batch_size
        )

    def _kept(self) -> None:
        """Writes no task.json, because the weights are for every task."""


def _texts(x: Any) -> list[str]:
    return containers.texts(x, "x", pairs=False)[0]


def masked_lm(
    weights: str | os.PathLike[str],
    *,
    masked_lm_prob: float = PretrainingDataOptions.masked_lm_prob,
    max_predictions_per_seq: int | None = None,
    do_whole_word_mask: bool = False,
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
      do_whole_word_mask: whether all pieces of a word are masked, or no piece.
      max_seq_length: the most tokens of a row; defaults to the weights' training, else to 128.
      random_seed: determines the masks, and the weights of a head that `weights` lacks.

    Raises:
      UserError: as `load`; or an argument is wrong.
    """
    found = Parts(weights, (bert_config_file, vocab_file, do_lower_case))
    tokenize = Tokenize(found.tokenizer, found.length(max_seq_length))
    with naming_arguments():
        options = PretrainingDataOptions(
            max_seq_length=tokenize.max_seq_length,
            masked_lm_prob=masked_lm_prob,
            max_predictions_per_seq=1 if max_predictions_per_seq is None else max_predictions_per_seq,
            do_whole_word_mask=do_whole_word_mask,
        )
    most = options.max_predictions_per_seq
    if max_predictions_per_seq is None:
        most = max(1, math.ceil(options.masked_lm_prob * tokenize.max_seq_length))
    there = found.source.shapes
    if missing := names.missing(names.MASKED_LM, there):
        logging.warning("%s: has no masked-LM head; it begins with random %s", found.source.path, and_more(missing, 3))
    has_pooler = not names.missing(names.POOLER, there)
    model = found.model(heads.MaskedLMModel, has_pooler, seed=random_seed)
    settings = {"masked_lm_prob": options.masked_lm_prob, "max_predictions_per_seq": most}
    settings |= {"do_whole_word_mask": options.do_whole_word_mask, "random_seed": int(random_seed)}
    return MaskedTextModel(model, tokenize, settings=settings)

"""`bert_tf2.embedder`: vectors of texts that `fit` trains on pairs of like meaning, or on pairs with a score.

    vectors = bert_tf2.embedder("uncased_L-12_H-768_A-12")
    vectors.fit([("a question", "its answer"), ...], epochs=1)              # or (question, answer, wrong answer)
    vectors.fit([("a man eats", "a man is eating"), ...], [0.9, ...])       # a cosine for each pair
    vectors.search(["a question"], answers, top_k=3)                        # indexes and cosines

The other texts of a batch are the wrong answers of each row. Keras' loop trains; see `text_models`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf2 import heads
from bert_tf2.api import targets, text_rows
from bert_tf2.api.readers import Reader
from bert_tf2.api.text_models import TextModel
from bert_tf2.api.text_parts import Parts, path_of
from bert_tf2.api.text_rows import Batches, Rows
from bert_tf2.api.text_steps import Answers
from bert_tf2.api.vectors import Vectors, unit
from bert_tf2.config import BertConfig
from bert_tf2.exporting.tokenize_layer import Tokenize
from bert_tf2.finetuning.classification.results import correlations
from bert_tf2.losses import in_batch_negatives
from bert_tf2.modeling import BertModel
from bert_tf2.support import containers
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import check_type
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.weights import model_folder, names, sentence_vectors
from bert_tf2.weights.sentence_vectors import Prompts, SentenceVectors

_MOST = 16  # texts in a row
_RECALL_AT = (1, 10)
_ANCHORS_AT_ONCE = 1024  # rows whose positives are compared with all candidates at once
_NUMBERS_OF_TEXTS = 2**24  # float32, to which Keras converts them, has all of them
_POOLINGS = ("mean", "max", "cls")


class _RowReader(Reader):
    """Reads rows of texts, an anchor, its positive and negatives, or pairs with scores."""

    needs_y = False  # rows without scores have negatives

    def rows(self, x: Any, y: Any, sample_weight: Any) -> Rows:
        """The columns of texts, strings [N] each, the scores, [N, 1], and the weights of rows."""
        if y is not None and not _are_numbers(y) and not _has_rows_of_texts(x):
            x, y = (x, y), None  # a batch (anchors, positives) of a generator
        columns = _columns(x)
        scores = np.zeros([len(columns[0]), 1], np.int32)
        if y is not None:
            scores = targets.numbers(y, "y")[:, np.newaxis]
            if (wrong := np.abs(scores) > 1).any():
                row = int(np.argmax(wrong))
                raise UserError(f"y: row {row + 1} is {scores[row, 0]:g}; {_OF_SCORES}")
        if y is not None:
            _check_are_pairs(columns)
        return Rows(columns, scores, targets.weights_of_rows(sample_weight)).counted()

    def of_rows(self, rows: Rows, batch_size: int, shuffle: bool) -> Batches:
        found = super().of_rows(rows, batch_size, shuffle)
        learns_pairs = shuffle and len(rows.x) == 2 and rows.y.dtype.kind != "f"
        if learns_pairs and any(len(scores) == 1 for _, scores, *_ in found.first):
            logging.warning("x: a batch of one pair has no wrong match, so its loss is 0; give 2 pairs or more")
        return found

    def of_dataset(self, data: tf.data.Dataset) -> tf.data.Dataset:
        return data.map(_parts_in_graph, tf.data.AUTOTUNE)

    def features(self, x: Any, *others: tf.Tensor) -> tuple[tuple, tf.Tensor]:
        """Converts a batch of columns to the input of the model, arrays [B, C, F]."""
        texts = tf.stack([text_rows.refuse_blank_in_graph(column) for column in x], axis=1)
        features, are_cut = self.tokenize.with_cut(tf.reshape(texts, [-1]))
        scores, *weights = others
        if not scores.dtype.is_floating:
            scores = tf.strings.to_hash_bucket_fast(texts, _NUMBERS_OF_TEXTS)
        shape = [-1, len(x), tf.shape(features["input_ids"])[1]]
        features = {name: tf.reshape(part, shape) for name, part in features.items()}
        return (features, scores, *map(targets.weights_in_graph, weights)), are_cut

    def of_validation(self, given: Any) -> tuple[Any, Any, Any]:
        """As in the base, and `given` may have rows alone; a tuple (x, y, ...) has scores or None after the rows."""
        is_x_y = isinstance(given, tuple) and len(given) in (2, 3) and (given[1] is None or _are_numbers(given[1]))
        return super().of_validation(given if is_x_y or text_rows.has_batches(given) else (given, None))


@keras.saving.register_keras_serializable(package="bert_tf2")
class EmbeddingModel(Vectors, Answers, TextModel):
    """A model that makes a vector of each text, made by `bert_tf2.embedder`; see `embed`, `similarity` and `search`.

    `x` of `fit` and `evaluate` has rows (anchor, positive) or (anchor, positive, negative, ...), all of one length: a
    list of tuples, an array [N, 2], a table, a tuple or dict of columns, or batches of these in a `tf.data.Dataset`, a
    `keras.utils.PyDataset` or a generator. The positives and negatives of all rows in a batch are the wrong answers of
    each other row, also with several devices; but an anchor, and the positives of an equal anchor, are no wrong answers
    to it. With `y`, rows are pairs, and `y` has the cosine that each pair should have, from -1 to 1. `sample_weight` is
    a number for each row.

    `evaluate` and the validation of `fit` also measure all rows together. With `y`, "spearman" is the rank correlation
    of cosines and scores. Without `y`, "recall@1" and "recall@10" are the shares of anchors whose positive is the
    closest of all positives and negatives, or one of the ten closest.

    `fit` and `evaluate` put no prompt before texts; `embed` puts the default prompt of the folder, if any.

    A call of the model makes a vector of each text, or of each pair as one text: float32 [B, D]. `predict` is `embed`.

    Attributes:
      model: the heads.VectorModel, with `pooling` and `normalize`.
      tokenize: the Tokenize layer.
      temperature: see `compile`.
    """

    export_as = "features"

    def __init__(
        self,
        model: heads.VectorModel,
        tokenize: Tokenize,
        prompts: Prompts | Mapping[str, Any] = Prompts(),  # noqa: B008, a tuple
        **kwargs,
    ):
        super().__init__(model, tokenize, **kwargs)
        self._judge = _Judge()
        self._prompts = Prompts(**prompts) if isinstance(prompts, Mapping) else prompts

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "prompts": {**self._prompts._asdict(), "named": dict(self._prompts.named)}}

    def _make_reader(self, loss: Any) -> Reader:
        return _RowReader(self.tokenize)

    @property
    def config(self) -> BertConfig:
        return self.model.config

    @property
    def encoder(self) -> BertModel:
        """The encoder without pooling; see Bert.encoder."""
        return self.model.bert

    @property
    def tokenizer(self) -> FullTokenizer:
        return self.tokenize.tokenizer

    @property
    def _sentence_vectors(self) -> SentenceVectors:
        return SentenceVectors(self.model.pooling, self.model.normalize, self.tokenize.max_seq_length)

    def call(self, inputs: Any, training: bool = False) -> tf.Tensor:
        """Strings [B], a pair of them, or `Tokenize`'s arrays -> [B, D]; arrays [B, C, F] of C texts -> [B, C, D]."""
        features = inputs if isinstance(inputs, Mapping) else self.tokenize(inputs)
        if features["input_ids"].shape.rank == 2:
            return self.model(features, training=training)
        _, count, length = tf.unstack(tf.shape(features["input_ids"]))
        alone = {name: tf.reshape(part, [-1, length]) for name, part in features.items()}
        return tf.reshape(self.model(alone, training=training), [-1, count, self.config.hidden_size])

    def compile(
        self, optimizer: Any = None, loss: Any = None, metrics: Any = None, temperature: float = 0.05, **kwargs
    ) -> None:
        """As in Keras; arguments that are left out follow the recipe of run_classifier.py.

        Args:
          optimizer: see TextModel.compile.
          loss: a loss of Keras that compares the cosines of pairs with `y`, float [B, 1] each; defaults to the squared
            error. Without `y`, the loss is `losses.in_batch_negatives`.
          metrics: of the same cosines; default to none. "spearman" and "recall@k" are always there: see the class.
          temperature: the cosines are divided by it before the softmax over the texts of a batch.
          **kwargs: see TextModel.compile.
        """
        check_type("temperature", temperature, float)
        if not 1e-3 <= temperature <= 1e3:
            raise UserError(f"temperature={temperature}: must be from 0.001 to 1000")
        self.temperature = float(temperature)
        self._negatives = _InBatchNegatives(self.temperature)
        super().compile(optimizer, loss or "mean_squared_error", [] if metrics is None else metrics, **kwargs)

    def get_compile_config(self) -> dict[str, Any]:
        return {**super().get_compile_config(), "temperature": self.temperature}

    # The loss and the measures. The scores of a batch are float [B, 1]. If the rows have no scores, they are numbers of
    # the texts, int [B, C], by which the loss recognizes equal texts.

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> tf.Tensor:
        if not training:
            tf.numpy_function(self._judge.add, [y_pred, y], [])
        if not y.dtype.is_floating:
            return self._negatives(y, y_pred, sample_weight)
        return super().compute_loss(x, y, _cosines(y_pred), sample_weight, training)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        if not y.dtype.is_floating:
            return self.get_metrics_result()
        return super().compute_metrics(x, y, _cosines(y_pred), sample_weight)

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """Keras' metrics, without the compiled metrics before the first scores."""
        return [one for one in super().metrics if getattr(one, "built", True)]

    def make_test_function(self, force: bool = False) -> Any:
        compiles, self.jit_compile = self.jit_compile, False  # the judge is no operation of XLA
        try:
            return super().make_test_function(force)
        finally:
            self.jit_compile = compiles

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **kwargs,
    ) -> Any:
        """As in Keras, with texts, and with "spearman" or "recall@k" after the loss and the metrics; see the class."""
        given = (x, y, batch_size, verbose, sample_weight, steps)
        with self._judge.at_work():
            found = super().evaluate(*given, callbacks=callbacks, return_dict=True, **kwargs)
            found = {**found, **self._judge.measures()}
        return found if return_dict else [*found.values()]

    def _answers(self, x: Any, batch_size: int) -> np.ndarray:
        is_iterator = hasattr(x, "__next__")
        return self.embed(text_rows.texts(x) if is_iterator else x, batch_size=batch_size)

    # Folders

    def save_folder(self, output_dir: str | os.PathLike[str]) -> None:
        """Writes a folder of sentence-transformers, which `load`, `embedder` and the scripts read, too.

        Raises UserError if the folder holds another model, or is not writable.
        """
        folder, how = path_of("output_dir", output_dir), (self._sentence_vectors, self._prompts)
        model_folder.save_vectors(folder, self.model, self.tokenizer, *how)


_OF_SCORES = "a score is the cosine that a pair should have, from -1 to 1; divide scores from 0 to 5 by 5"


class _InBatchNegatives(keras.losses.Loss):
    """losses.in_batch_negatives, with Keras' weights of rows and its division by the number of replicas."""

    def __init__(self, temperature: float):
        super().__init__("in_batch_negatives")
        self._temperature = temperature

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return in_batch_negatives(y_pred, y_true, self._temperature)


class _Judge:
    """Collects vectors of texts [B, C, D] and their scores in an evaluation, and measures all of them."""

    def __init__(self):
        self._batches: list[tuple[np.ndarray, np.ndarray]] | None = None  # None outside an evaluation

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        self._batches = []
        try:
            yield
        finally:
            self._batches = None

    def add(self, vectors: np.ndarray, scores: np.ndarray) -> None:
        """Replicas call this at the same time."""
        if self._batches is not None:
            self._batches.append((unit(vectors), scores))

    def measures(self) -> dict[str, float]:
        vectors, scores = (np.concatenate(parts) for parts in zip(*self._batches, strict=True))
        own = np.sum(vectors[:, 0] * vectors[:, 1], axis=-1)  # cosines of the pairs, [N]
        if scores.dtype.kind == "f":
            return {"spearman": correlations(scores[:, 0], own)["spearman"]}
        candidates = vectors[:, 1:].reshape(-1, vectors.shape[-1])
        closer = []
        for start in range(0, len(own), _ANCHORS_AT_ONCE):
            part = slice(start, start + _ANCHORS_AT_ONCE)
            found = vectors[part, 0] @ candidates.T
            closer.append(np.sum(found > own[part, None] + 1e-6, axis=1))  # a text that occurs twice is no closer
        return {f"recall@{k}": float(np.mean(np.concatenate(closer) < k)) for k in _RECALL_AT}


def _cosines(vectors: tf.Tensor) -> tf.Tensor:
    """Vectors of pairs, [B, 2, D] -> [B, 1]."""
    vectors = tf.math.l2_normalize(vectors, axis=-1)
    return tf.reduce_sum(vectors[:, 0] * vectors[:, 1], axis=-1, keepdims=True)


def _are_numbers(given: Any) -> bool:
    try:
        return np.asarray(given).dtype.kind in "fiub"
    except ValueError:  # rows of several lengths
        return False


def _has_rows_of_texts(x: Any) -> bool:
    """Whether `x` has pairs or longer rows, and not a column of texts."""
    return isinstance(next(iter(containers.texts(x, "x", most=_MOST)[0]), None), tuple)


def _columns(x: Any) -> tuple[tf.Tensor, ...]:
    """The texts at each place of the rows, strings [N] each. Raises UserError for rows that are no pairs or longer."""
    found, _ = containers.texts(x, "x", most=_MOST)
    sizes = [len(row) if isinstance(row, tuple) else 1 for row in found]
    for number, size in enumerate(sizes):
        if size != sizes[0] or size < 2:
            wanted = f"{sizes[0]} as in the first row" if sizes[0] > 1 else "an anchor and its positive"
            raise UserError(f"x: row {number + 1} has {size} text{'s' * (size > 1)}; each row needs {wanted}")
    if not found:
        raise UserError("x: has no texts")
    blank = [number for number, row in enumerate(found) if not all(text.strip() for text in row)]
    containers.refuse(blank, "x", f"of {len(found)} rows have an empty text", "leave these rows out")
    return tuple(tf.constant([*map(containers.encodable, column)]) for column in zip(*found, strict=True))


def _check_are_pairs(columns: tuple) -> None:
    if len(columns) != 2:
        raise UserError(f"y: rows of {len(columns)} texts have no score; give pairs, or leave y out")


def _parts_in_graph(*element: Any) -> tuple:
    """Columns of texts, scores and weights of a batch in a dataset, whose element has them in any nested form."""
    flat: list[tf.Tensor] = []

    def collect(part: Any) -> None:
        if isinstance(part, Mapping | tuple | list):
            for inner in part.values() if isinstance(part, Mapping) else part:
                collect(inner)
        elif part.dtype == tf.string and part.shape.rank == 2 and part.shape[1] not in (None, 1):
            flat.extend(tf.unstack(part, axis=1))
        else:
            flat.append(part)

    collect(element)
    columns = tuple(tf.reshape(part, [-1]) for part in flat if part.dtype == tf.string)
    numbers = [tf.reshape(tf.cast(part, tf.float32), [-1]) for part in flat if part.dtype != tf.string]
    if len(columns) < 2:
        raise UserError("x: the dataset has single texts; its batches must be (anchors, positives), strings [B] each")
    scores = tf.zeros([tf.size(columns[0]), 1], tf.int32)
    if numbers:
        _check_are_pairs(columns)
        scores = targets.checked(numbers[0], tf.abs(numbers[0]) <= 1, "y: ", numbers[0], f"; {_OF_SCORES}")[:, None]
    return (columns, scores, *numbers[1:2])


def embedder(
    weights: str | os.PathLike[str],
    pooling: str | None = None,
    normalize: bool | None = None,
    *,
    max_seq_length: int | None = None,
    bert_config_file: str | os.PathLike[str] | None = None,
    vocab_file: str | os.PathLike[str] | None = None,
    do_lower_case: bool | None = None,
) -> EmbeddingModel:
    """A model of sentence vectors as a Keras model, compiled with the reference's recipe.

    If the weights are a folder of sentence-transformers, its files have the defaults of `pooling`, `normalize` and
    `max_seq_length`.

    Args:
      weights, bert_config_file, vocab_file, do_lower_case: see `load`.
      pooling: "mean" (the default) or "max" over the states of all tokens, including [CLS] and [SEP]; "cls" for the
        state of the first token.
      normalize: whether vectors get length 1 (the default).
      max_seq_length: texts are cut to this number of tokens; defaults to 128.

    Raises:
      UserError: as `load`; or an argument is wrong.
    """
    check_type("pooling", pooling, str, optional=True)
    normalize = check_type("normalize", normalize, bool, optional=True)
    if pooling not in (None, *_POOLINGS):
        raise UserError(f"pooling={pooling!r}: must be one of {', '.join(_POOLINGS)}")
    found = Parts(weights, (bert_config_file, vocab_file, do_lower_case))
    stated = None
    if None in (pooling, normalize, max_seq_length):
        stated = sentence_vectors.read(found.source.folder)
    stated = stated or SentenceVectors(normalize=True)
    if max_seq_length is None and stated.max_seq_length:
        max_seq_length = min(stated.max_seq_length, found.config.max_position_embeddings)
    how = (stated.pooling if pooling is None else pooling, stated.normalize if normalize is None else normalize)
    has_pooler = not names.missing(names.POOLER, found.source.shapes)
    model = found.model(heads.VectorModel, *how, has_pooler, seed=0)
    tokenize = Tokenize(found.tokenizer, found.length(max_seq_length))
    return EmbeddingModel(model, tokenize, sentence_vectors.read_prompts(found.source.folder))

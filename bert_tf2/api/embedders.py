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

from bert_tf2 import heads
from bert_tf2.api import data_warnings, targets, text_rows
from bert_tf2.api.readers import Reader
from bert_tf2.api.text_models import TextModel
from bert_tf2.api.text_parts import Parts, path_of
from bert_tf2.api.text_rows import Rows
from bert_tf2.api.text_steps import Answers
from bert_tf2.api.vectors import Vectors, unit
from bert_tf2.config import BertConfig
from bert_tf2.exporting.tokenize_layer import Tokenize, columns_of
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

    def parts(self, batch: Any) -> tuple:
        """As in the base; a tuple of more than two columns of texts is x."""
        has_numbers = not isinstance(batch, tuple) or any(part is None or _are_numbers(part) for part in batch[2:])
        return super().parts(batch if has_numbers or len(batch) < 3 else (batch,))

    def rows(self, x: Any, y: Any = None, sample_weight: Any = None) -> Rows:
        """x: a tuple of texts for each row. y: scores, float32 [N, 1]."""
        if y is not None and not _are_numbers(y) and not _has_rows_of_texts(x):
            x, y = (x, y), None  # a batch (anchors, positives)
        x = _rows_of_texts(x)
        if y is not None:
            y = targets.numbers(y, "y")[:, np.newaxis]
            if len(x[0]) != 2:
                raise UserError(f"y: rows of {len(x[0])} texts have no score; give pairs, or leave y out")
            if (wrong := np.abs(y) > 1).any():
                row = int(np.argmax(wrong))
                raise UserError(f"y: row {row + 1} is {y[row, 0]:g}; {_OF_SCORES}")
        return Rows(x, y, targets.weights_of_rows(sample_weight)).counted()

    def arrays(self, rows: Rows) -> tuple:
        """The columns of texts, strings [N] each; the scores, or numbers of the texts, int64 [N, C]; the weights."""
        columns, y = columns_of(rows.x), rows.y
        if y is None:
            y = tf.strings.to_hash_bucket_fast(tf.stack(columns, axis=1), _NUMBERS_OF_TEXTS)
        return (columns, y) if rows.weights is None else (columns, y, rows.weights)

    def features(self, x: Any, *others: tf.Tensor) -> tuple[tuple, tf.Tensor]:
        """Converts a batch of columns to the input of the model, arrays [B, C, F]."""
        features, are_cut = self.tokenize.with_cut(tf.reshape(tf.stack(x, axis=1), [-1]))
        shape = [-1, len(x), tf.shape(features["input_ids"])[1]]
        return ({name: tf.reshape(part, shape) for name, part in features.items()}, *others), are_cut

    def of_validation(self, given: Any) -> tuple[Any, Any, Any]:
        """As in the base, and `given` may have rows alone; a tuple (x, y, ...) has scores or None after the rows."""
        is_x_y = isinstance(given, tuple) and len(given) in (2, 3) and (given[1] is None or _are_numbers(given[1]))
        return super().of_validation(given if is_x_y or text_rows.has_batches(given) else (given, None))

    def warn(self, given: Any, first: tuple) -> None:
        super().warn(given, first)
        data_warnings.of_single_pair(first[1])


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

    def evaluate(self, *args, return_dict: bool = False, **kwargs) -> Any:
        """As in Keras, with texts, and with "spearman" or "recall@k" after the loss and the metrics; see the class."""
        with self._judge.at_work():
            found = {**super().evaluate(*args, return_dict=True, **kwargs), **self._judge.measures()}
        return found if return_dict else [*found.values()]

    def _rows(self, x: Any) -> list[containers.Text]:
        return containers.texts(x)[0]

    def _answers(self, x: Any, batch_size: int) -> np.ndarray:
        return self.embed(x, batch_size=batch_size)

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


def _rows_of_texts(x: Any) -> list[tuple[str, ...]]:
    """The texts of each row. Raises UserError for rows that are no pairs or longer."""
    found, _ = containers.texts(x, "x", most=_MOST)
    sizes = [len(row) if isinstance(row, tuple) else 1 for row in found]
    for number, size in enumerate(sizes):
        if size != sizes[0] or size < 2:
            wanted = f"{sizes[0]} as in the first row" if sizes[0] > 1 else "an anchor and its positive"
            raise UserError(f"x: row {number + 1} has {size} text{'s' * (size > 1)}; each row needs {wanted}")
    if not found:
        raise UserError("x: has no texts")
    text_rows.refuse_blank(found)
    return found


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

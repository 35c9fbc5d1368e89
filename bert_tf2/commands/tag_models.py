"""`bert_tf2.tagger`: a Keras model whose `fit`, `evaluate` and `predict` take sentences as lists of words.

names = bert_tf2.tagger("cased_L-12_H-768_A-12", labels=["O", "B-PER", "I-PER"])
names.fit(sentences, tags, epochs=3)
names.predict([["Ann", "lives", "here"]])       # [["B-PER", "O", "O"]]
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_tf2 import heads
from bert_tf2.commands.text_models import TextModel, check_labels
from bert_tf2.commands.text_parts import RANDOM_SEED, Parts, find_labels
from bert_tf2.finetuning.answering import NER, Answerer
from bert_tf2.finetuning.ner.features import IGNORED_LABEL_ID
from bert_tf2.support.errors import UserError


@keras.saving.register_keras_serializable(package="bert_tf2")
class TagModel(TextModel):
    """A tagger of words, made by `bert_tf2.tagger`.

    `x` has sentences, each a list of words, or a text with blanks between the words; `y` a list of tags for each, or a
    text of tags. A `tf.data.Dataset` has texts. In `fit` and `evaluate`, what is beyond max_seq_length tokens is cut.
    """

    def compile(self, optimizer: Any = None, loss: Any = None, metrics: Any = None, **kwargs) -> None:
        """See TextModel.compile; padding and all pieces of a word but the first have weight 0."""
        loss = loss or keras.losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight")
        kwargs = {"weighted_metrics": ["accuracy"], **kwargs}
        super().compile(*([] if optimizer is None else [optimizer]), loss=loss, metrics=metrics or [], **kwargs)

    def predict(self, x: Iterable[Sequence[str]], batch_size: int | None = None, *_, **__) -> list[list[str]]:
        """A tag for each word, of long sentences in windows as run_ner.py has them."""
        answerer = Answerer(self.model, self.tokenize.tokenizer, self._label_map, self.name)
        return answerer.tag(_split(x), NER | {"max_seq_length": self.tokenize.max_seq_length}, batch_size or 32)

    @staticmethod
    def _columns(x: Any) -> tf.RaggedTensor:
        """Words, string [B, (words)]."""
        if isinstance(x, tf.RaggedTensor):
            return x
        if isinstance(x, tf.Tensor):
            return tf.strings.split(x)
        rows = _split(x)
        for number, words in enumerate(rows, 1):
            if not words or not all(isinstance(word, str) for word in words):
                raise UserError(f"sentence {number}: {words!r:.60} is no list of words")
        return tf.ragged.constant(rows, tf.string, ragged_rank=1)

    def _count_cut(self, x: Any) -> int:
        return super()._count_cut(tf.strings.reduce_join(self._columns(x), -1, separator=" "))

    def _targets(self, y: Any) -> tf.RaggedTensor | None:
        """Tags as their indexes, int32 [B, (words)]."""
        if y is None or isinstance(y, tf.RaggedTensor):
            return y
        rows = _split(y)
        index = {label: number for number, label in enumerate(self.labels)}
        check_labels({tag for tags in rows for tag in tags} - index.keys(), self.labels)
        return tf.ragged.constant([[index[tag] for tag in tags] for tags in rows], tf.int32, ragged_rank=1)

    def _element(self, x: Any, y: Any = None, sample_weight: tf.Tensor | None = None) -> tuple:
        words = self._columns(x)
        features, numbers = self.tokenize.of_words(words)
        if y is None:
            return (features,)
        if not isinstance(y, tf.RaggedTensor):
            y = tf.ragged.map_flat_values(self._index, tf.strings.split(y))
        same = tf.debugging.Assert(
            tf.reduce_all(y.row_lengths() == words.row_lengths()), ["a sentence has another number of words than tags"]
        )
        with tf.control_dependencies([same]):
            tags = tf.gather(y.to_tensor(), tf.maximum(numbers, 0), batch_dims=1)  # [B, F]
        weights = tf.cast(numbers > IGNORED_LABEL_ID, tf.float32)
        return features, tags, weights if sample_weight is None else weights * sample_weight[:, None]


def _split(rows: Iterable[str | Sequence[str]]) -> list[list[str]]:
    return [row.split() if isinstance(row, str) else [*row] for row in rows]


def tagger(
    weights: str | os.PathLike[str],
    labels: Sequence[str] | None = None,
    *,
    max_seq_length: int | None = None,
    bert_config_file: str | os.PathLike[str] | None = None,
    vocab_file: str | os.PathLike[str] | None = None,
    do_lower_case: bool | None = None,
    random_seed: int = RANDOM_SEED,
) -> TagModel:
    """A tagger of words as a Keras model, compiled with the reference's recipe; see `classifier` for the arguments.

    Raises:
      UserError: as `classifier`.
    """
    found = Parts(weights, bert_config_file, vocab_file, do_lower_case, max_seq_length)
    label_map = find_labels(found.source, labels, tags=True)
    model = found.model(heads.TaggingModel, len(label_map.labels), seed=random_seed)
    return TagModel(model, found.tokenize, label_map)

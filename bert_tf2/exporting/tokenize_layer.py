"""`bert_tf2.Tokenize`: texts to the features of a record, as a Keras layer for tf.data, models and SavedModels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_tf2.data.records import MOST_TOKENS
from bert_tf2.data.rows import INPUTS
from bert_tf2.exporting.graph_tokenization import GraphTokenizer
from bert_tf2.finetuning.options import checked_length
from bert_tf2.support import containers
from bert_tf2.support.errors import UserError
from bert_tf2.support.process import check_process
from bert_tf2.support.settings import check_type
from bert_tf2.tokenization import FullTokenizer


@keras.saving.register_keras_serializable(package="bert_tf2")
class Tokenize(keras.layers.Layer):
    """Converts strings to `input_ids`, `input_mask` and `segment_ids`, int32 [B, F], like `classify` and the scripts.

    Example:
      tokenize = bert_tf2.Tokenize(bert.tokenizer, max_seq_length=64)
      data = data.batch(32).map(lambda text, label: (tokenize(text), label))
    """

    supports_jit = False  # XLA has no strings

    def __init__(
        self,
        tokenizer: FullTokenizer | Mapping[str, Any],
        max_seq_length: int = 128,
        pad_to_max_length: bool = False,
        **kwargs,
    ):
        """Makes a layer, in a second or two.

        Args:
          tokenizer: the tokenizer of a model, or its entry in `get_config`.
          max_seq_length: texts are cut to this number of tokens, including [CLS] and [SEP].
          pad_to_max_length: whether F is always max_seq_length, and not the length of the longest text of a batch.
        """
        super().__init__(**kwargs)
        self.tokenizer = FullTokenizer("vocab.txt", **tokenizer) if isinstance(tokenizer, Mapping) else tokenizer
        self.max_seq_length = checked_length(max_seq_length, MOST_TOKENS)
        self.pad_to_max_length = check_type("pad_to_max_length", pad_to_max_length, bool)
        self._graph = GraphTokenizer(self.tokenizer, for_servers=False)
        self.built = True

    def get_config(self) -> dict[str, Any]:
        basic = self.tokenizer.basic_tokenizer
        stated = {"entries": self.tokenizer.entries, "do_lower_case": basic.do_lower_case, **self.tokenizer.rules}
        own = {"max_seq_length": self.max_seq_length, "pad_to_max_length": self.pad_to_max_length}
        return {**super().get_config(), "tokenizer": stated, **own}

    def __call__(self, texts: Any, **kwargs) -> dict[str, tf.Tensor]:
        """`texts`: strings [B], a tuple of two such columns, or texts in any container that `columns` takes."""
        found = columns(texts)
        return super().__call__(found if len(found) > 1 else found[0], **kwargs)

    def call(self, texts: tf.Tensor | tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        return self.with_cut(texts)[0]

    def with_cut(self, texts: tf.Tensor | tuple[tf.Tensor, tf.Tensor]) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """The result of `call`, and whether each text or pair has more tokens than are read, bool [B]."""
        given = texts if isinstance(texts, list | tuple) else (texts,)
        pieces = [self._graph.tokenize(tf.reshape(text, [-1])) for text in given]
        found = self._graph.combine(pieces[0], pieces[1] if pieces[1:] else None, self.max_seq_length)
        missing = self.max_seq_length - tf.shape(found.input_ids)[1] if self.pad_to_max_length else 0
        first, *second = (one.ids.row_lengths() for one in pieces)
        length = first + 2 + sum(more + tf.cast(more > 0, more.dtype) for more in second)  # a second text has a [SEP]
        features = {name: tf.pad(getattr(found, name), [[0, 0], [0, missing]]) for name in INPUTS}
        return features, length > self.max_seq_length

    def in_rows(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """All tokens of strings [B] in rows of at most max_seq_length ids with [CLS] and [SEP], int32 [R, None].

        A row has tokens of one text. Rows are full, except for the last row of a text.
        """
        ids = self._graph.tokenize(tf.reshape(texts, [-1])).ids
        room, lengths = self.max_seq_length - 2, tf.cast(ids.row_lengths(), tf.int32)  # [B]
        counts = -(-lengths // room)  # of rows, [B]
        places = tf.ragged.range(counts).values  # of a row in its text, [R]
        sizes = tf.minimum(tf.repeat(lengths, counts) - places * room, room)
        rows = tf.RaggedTensor.from_row_lengths(ids.values, sizes)
        ends = self.tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
        cls, sep = (tf.fill([tf.size(sizes), 1], token) for token in ends)
        return tf.concat([cls, rows, sep], axis=1)

    def compute_output_spec(self, texts: Any) -> dict[str, keras.KerasTensor]:
        first = texts[0] if isinstance(texts, list | tuple) else texts
        shape = (first.shape[0], self.max_seq_length if self.pad_to_max_length else None)
        return {name: keras.KerasTensor(shape, "int32", name=name) for name in INPUTS}


def columns(texts: Any) -> tuple[tf.Tensor, ...]:
    """Texts as one column of strings [B], or as two if some are pairs; a single text has "" in the second column.

    Args:
      texts: strings [B] or [B, 1], a tuple or dict of one or two such tensors, or an argument for `containers.texts`.
    """
    check_process()
    if isinstance(texts, Mapping) and all(isinstance(text, tf.Tensor | keras.KerasTensor) for text in texts.values()):
        texts = tuple(texts.values())
    if isinstance(texts, tf.Tensor | keras.KerasTensor):
        kind, shape = keras.backend.standardize_dtype(texts.dtype), [*texts.shape]
        if kind != "string" or not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)):
            raise UserError(f"texts: {kind} of shape {shape}, not strings [B]; single texts need `dataset.batch(32)`")
        return (texts,)
    are_few = isinstance(texts, list | tuple) and 1 <= len(texts) <= 2
    if are_few and all(isinstance(text, tf.Tensor | keras.KerasTensor) and text.shape != () for text in texts):
        return tuple(column for text in texts for column in columns(text))
    return columns_of(containers.texts(texts)[0])


def columns_of(texts: Sequence[containers.Text]) -> tuple[tf.Tensor, ...]:
    """The columns of `columns`, strings [N] each, for texts and pairs of Python."""
    rows = [text if isinstance(text, tuple) else (text,) for text in texts]
    count = max(map(len, rows), default=1)
    filled = [[*map(containers.encodable, row)] + [""] * (count - len(row)) for row in rows]
    return tuple(tf.constant([row[place] for row in filled], tf.string, [len(rows)]) for place in range(count))

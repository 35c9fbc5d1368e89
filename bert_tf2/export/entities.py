"""The signatures of a tagger (task ner): words with their labels, and the entities that these labels form."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf2 import heads
from bert_tf2.export.graph_tokenization import Inputs, Pieces, character_offsets
from bert_tf2.export.request_checks import Rows, checked_texts
from bert_tf2.export.signatures import Outputs, Setting, WithHead, fill_rows
from bert_tf2.finetuning import ner
from bert_tf2.finetuning.ner import scores as ner_scores


class Tagger(WithHead):
    """For tokens label, string [B, F], and probability [B, F].

    For texts words, labels, probabilities, starts, ends [B, W] and entities, entity_labels, entity_starts, entity_ends
    [B, E]; offsets are in characters of the text, the end exclusive. The first piece of a word determines its label, as
    in ner.py. Words after max_seq_length pieces are omitted.
    """

    def __init__(self, setting: Setting, head: heads.OutputLayer, labels: Sequence[str]):
        super().__init__(setting, head)
        self._labels = tf.constant([*labels, ""])
        self._grouping = _Grouping.of(labels)

    def from_rows(self, rows: Rows) -> Outputs:
        probabilities = tf.nn.softmax(self.head(self.encode(rows)[0]))
        is_token = rows.input_mask > 0
        # "" is looked up, too: OpenVINO cannot choose between strings.
        labels = tf.where(is_token, tf.argmax(probabilities, axis=-1), tf.size(self._labels, tf.int64) - 1)
        best = tf.reduce_max(probabilities, axis=-1)
        return {"label": tf.gather(self._labels, labels), "probability": tf.where(is_token, best, 0.0)}

    def from_texts(self, **texts: tf.Tensor) -> Outputs:
        texts = checked_texts(texts)
        (text,) = texts.values()
        (pieces,) = self.tokenize(texts).values()
        inputs = self.setting.tokenizer.combine(pieces, None, self.setting.max_seq_length)
        before = tf.pad(inputs.words[:, :-1], [[0, 0], [1, 0]], constant_values=-1)
        places = tf.where((inputs.words >= 0) & tf.not_equal(inputs.words, before))  # of first pieces: [words, 2]
        probabilities = tf.nn.softmax(self.head(tf.gather_nd(self.encode(inputs)[0], places)))  # [words, L]
        labels = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
        words = _Spans(text, places[:, 0], tf.gather_nd(inputs.starts, places), self._ends(pieces, inputs, places))
        first, last = self._grouping.entities(labels, words.rows)
        entities = _Spans(text, *(tf.gather(part, first) for part in words[1:3]), tf.gather(words.ends, last))
        types = tf.gather(self._grouping.types, tf.gather(labels, first))
        return {
            **words.outputs("words", "starts", "ends"),
            "labels": words.filled(tf.gather(self._labels, labels), ""),
            "probabilities": words.filled(tf.reduce_max(probabilities, axis=-1), 0.0),
            **entities.outputs("entities", "entity_starts", "entity_ends"),
            "entity_labels": entities.filled(types, ""),
        }

    @staticmethod
    def _ends(pieces: Pieces, inputs: Inputs, places: tf.Tensor) -> tf.Tensor:
        """Returns where the words at `places` end, including those whose last pieces were cut off: bytes [words]."""
        words, rows = pieces.words.values, pieces.words.value_rowids()
        is_last = tf.not_equal(words[1:], words[:-1]) | tf.not_equal(rows[1:], rows[:-1])
        is_last = tf.concat([is_last, [True]], 0)
        ends = tf.boolean_mask(pieces.ends.values, is_last)  # of all words of the batch
        words_before = tf.gather(tf.cumsum(tf.cast(is_last, tf.int32), exclusive=True), pieces.words.row_starts())
        return tf.gather(ends, tf.gather(words_before, places[:, 0]) + tf.gather_nd(inputs.words, places))


class _Spans(NamedTuple):
    """Parts of texts: the texts [B]; the row, and the first and the last byte (exclusive) of each part, all [n]."""

    texts: tf.Tensor
    rows: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor

    def filled(self, values: tf.Tensor, default: str | float) -> tf.Tensor:
        """Returns values [n] as [B, longest row]."""
        return fill_rows(values, self.rows, tf.size(self.texts), default)

    def outputs(self, content: str, starts: str, ends: str) -> Outputs:
        """Returns the parts as written in their texts, and their character offsets, under these names."""
        parts = tf.strings.substr(tf.gather(self.texts, self.rows), self.starts, self.ends - self.starts)
        return {
            content: self.filled(parts, ""),
            starts: character_offsets(self.texts, self.filled(self.starts, -1)),
            ends: character_offsets(self.texts, self.filled(self.ends, -1)),
        }


@dataclasses.dataclass(frozen=True)
class _Grouping:
    """How tags form entities, by the rules of `ner_scores`.

    Attributes:
      types: string [L], the entity type of each tag.
      inside: bool [L], whether a word with this tag belongs to an entity.
      begins: bool [L + 1, L], whether a tag begins an entity after another tag; the last row is for no other tag.
    """

    types: tf.Tensor
    inside: tf.Tensor
    begins: tf.Tensor

    @classmethod
    def of(cls, labels: Sequence[str]) -> _Grouping:
        """Evaluates the rules for every tag, alone and after every other."""
        return cls(
            tf.constant([ner_scores.split_tag(label)[1] for label in labels]),
            tf.constant([label != ner.OUTSIDE for label in labels]),
            tf.constant([[ner_scores.begins(b, a) for b in labels] for a in [*labels, ner.OUTSIDE]]),
        )

    def entities(self, labels: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the first and last word of each entity, given the tags of all words of a batch and their rows."""
        nothing = tf.shape(self.types)[0]
        is_same_row = tf.concat([[False], tf.equal(rows[1:], rows[:-1])], 0)
        before = tf.where(is_same_row, tf.concat([[0], labels[:-1]], 0), nothing)
        begins = tf.gather_nd(self.begins, tf.stack([before, labels], axis=1))
        inside = tf.where(tf.gather(self.inside, labels))[:, 0]
        entity = tf.gather(tf.cumsum(tf.cast(begins, tf.int32)) - 1, inside)
        first = tf.where(begins)[:, 0]
        return first, tf.math.unsorted_segment_max(inside, entity, tf.size(first))

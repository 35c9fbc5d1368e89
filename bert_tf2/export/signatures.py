"""What an exported model computes, task by task: from the checked inputs of a signature to its named outputs.

    serving_default     input_ids, input_mask, segment_ids     int32 [B, F]
    serving_ids         input_ids                              the mask is 1 where no [PAD] stands, all segments are 0
    serving_text        text_a, or question and context        string [B]
    serving_text_pair   text_a, text_b                         an empty text_b is none

Every output has the batch as its first axis, and all have one size each: where rows differ in length, "", -1 or 0 fills
them up, so that a server can put requests together and take their answers apart again.

Letters as in modeling.py, and L labels, W words of a text, E entities, M masks, K predictions for each.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf2 import heads, modeling
from bert_tf2.export import graph_answers
from bert_tf2.export.graph_answers import SpanSettings
from bert_tf2.export.graph_tokenization import GraphTokenizer, Inputs, Pieces, character_offsets
from bert_tf2.export.request_checks import Limits, Rows, SpecialIds, checked_rows, checked_texts, require_words
from bert_tf2.finetuning import ner, squad
from bert_tf2.finetuning.ner import scores as ner_scores

IDS = ("input_ids", "input_mask", "segment_ids")

Outputs = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all tasks need.

    Attributes:
      encoder: inference.Encoder: three int32 [B, F] -> sequence_output [B, F, D], which is 0 at padding, and
        pooled_output [B, D].
      limits, special: of model and vocabulary.
      tokenizer: None where no signature takes text.
      max_seq_length: to which texts are cut.
    """

    encoder: tf.Module
    limits: Limits
    special: SpecialIds
    tokenizer: GraphTokenizer | None
    max_seq_length: int


class Task(tf.Module):
    """A model with its signatures."""

    texts: tuple[str, ...] = ("text_a",)
    """The inputs of serving_text."""
    pairs = False
    """Whether there is a signature serving_text_pair."""

    def __init__(self, setting: Setting):
        super().__init__()
        self.setting = setting
        self.encoder = setting.encoder  # by this attribute its variables are found and saved
        self._encode = self._shared(setting.encoder.__call__)

    @staticmethod
    def _shared(encode: Callable) -> Callable:
        """One function for all signatures, which are then four small graphs and a large one."""
        return tf.function(encode, input_signature=[tf.TensorSpec([None, None], tf.int32)] * 3, autograph=False)

    def signatures(self) -> dict[str, Callable]:
        """Name -> function to be saved."""
        found = {"serving_default": self._take(self._from_ids, IDS), "serving_ids": self._take(self._from_ids, IDS[:1])}
        if self.setting.tokenizer:
            found["serving_text"] = self._take(self.from_texts, self.texts, tf.TensorSpec([None], tf.string))
            if self.pairs and self.setting.limits.type_vocab_size > 1:  # or the model cannot tell them apart
                pair = ("text_a", "text_b")
                found["serving_text_pair"] = self._take(self.from_texts, pair, tf.TensorSpec([None], tf.string))
        return found

    @staticmethod
    def _take(function: Callable, names: Sequence[str], spec: tf.TensorSpec | None = None) -> Callable:
        """A `tf.function` with inputs of these names, [B, F] ids by default."""
        spec = spec or tf.TensorSpec([None, None], tf.int32)
        specs = [tf.TensorSpec(spec.shape, spec.dtype, name) for name in names]
        return tf.function(
            lambda *inputs: function(**dict(zip(names, inputs, strict=True))), input_signature=specs, autograph=False
        )

    def _from_ids(self, **inputs: tf.Tensor) -> Outputs:
        return self.from_rows(checked_rows(self.setting.limits, self.setting.special, **inputs))

    def from_rows(self, rows: Rows) -> Outputs:
        """The outputs of serving_default and serving_ids."""
        raise NotImplementedError

    def from_texts(self, **texts: tf.Tensor) -> Outputs:
        """The outputs of serving_text and serving_text_pair."""
        raise NotImplementedError

    def encode(self, rows: Rows | Inputs) -> tuple[tf.Tensor, tf.Tensor]:
        """sequence_output float32 [B, F, D], pooled_output [B, D]."""
        return self._encode(rows.input_ids, rows.input_mask, rows.segment_ids)

    def tokenize(self, texts: Mapping[str, tf.Tensor], may_be_empty: Sequence[str] = ()) -> dict[str, Pieces]:
        """The pieces of checked texts, each of which has one at least."""
        pieces = {name: self.setting.tokenizer.tokenize(text, name) for name, text in texts.items()}
        checks = [
            require_words(name, found.ids.row_lengths()) for name, found in pieces.items() if name not in may_be_empty
        ]
        with tf.control_dependencies(checks):
            return {
                name: Pieces(*(part.with_values(tf.identity(part.values)) for part in found))
                for name, found in pieces.items()
            }

    def read(self, texts: Mapping[str, tf.Tensor]) -> Inputs:
        """A text, or a pair whose second text may be empty, as the encoder reads it."""
        texts = checked_texts(texts, may_be_empty=["text_b"])
        pieces = self.tokenize(texts, may_be_empty=["text_b"])
        return self.setting.tokenizer.combine(pieces["text_a"], pieces.get("text_b"), self.setting.max_seq_length)


class Features(Task):
    """sequence_output [B, F, D], pooled_output [B, D] if there is a trained pooler, mean_pooled [B, D] over all tokens.

    For texts also tokens, string [B, F].
    """

    pairs = True

    def __init__(self, setting: Setting, tokens: Sequence[str], has_pooler: bool):
        """`tokens`: the vocabulary."""
        super().__init__(setting)
        self._tokens = tf.constant([*tokens])
        self._has_pooler = has_pooler

    def from_rows(self, rows: Rows | Inputs) -> Outputs:
        sequence, pooled = self.encode(rows)
        count = tf.reduce_sum(tf.cast(rows.input_mask, tf.float32), axis=1, keepdims=True)
        outputs = {"sequence_output": sequence, "mean_pooled": tf.reduce_sum(sequence, axis=1) / count}
        return {**outputs, "pooled_output": pooled} if self._has_pooler else outputs

    def from_texts(self, **texts: tf.Tensor) -> Outputs:
        inputs = self.read(texts)
        tokens = tf.where(inputs.input_mask > 0, tf.gather(self._tokens, inputs.input_ids), "")
        return {**self.from_rows(inputs), "tokens": tokens}


class _WithHead(Task):
    """A task with an output layer; `head` is a Keras layer, of which the graph takes the computation."""

    def __init__(self, setting: Setting, head: heads.OutputLayer | heads.MaskedLMHead):
        super().__init__(setting)
        self.head = head.__call__  # not the layer itself: much of Keras would be saved with it
        self._variables = [variable.value for variable in head.weights]


class Classifier(_WithHead):
    """probabilities [B, L] and label, string [B]; of a regression (without labels) value [B]."""

    pairs = True

    def __init__(self, setting: Setting, head: heads.OutputLayer, labels: Sequence[str]):
        super().__init__(setting, head)
        self._labels = tf.constant([*labels]) if labels else None
        self._pool = self._shared(setting.encoder.pooled_output)  # less work than the whole sequence

    def from_rows(self, rows: Rows | Inputs) -> Outputs:
        logits = self.head(self._pool(rows.input_ids, rows.input_mask, rows.segment_ids))
        if self._labels is None:
            return {"value": logits[:, 0]}
        return {"probabilities": tf.nn.softmax(logits), "label": tf.gather(self._labels, tf.argmax(logits, axis=-1))}

    def from_texts(self, **texts: tf.Tensor) -> Outputs:
        return self.from_rows(self.read(texts))


class MaskedLM(_WithHead):
    """For each [MASK] its place among the tokens, and the best pieces: positions [B, M], tokens, scores [B, M, K].

    The scores are probabilities. In texts [MASK] is written as it is here.
    """

    pairs = True

    def __init__(self, setting: Setting, head: heads.MaskedLMHead, table: tf.Variable, tokens: Sequence[str], k: int):
        """`table`: the word embeddings [V, D]. `k`: how many pieces for each [MASK]."""
        super().__init__(setting, head)
        self._table = table
        self._tokens = tf.constant([*tokens])
        self._k = k

    def from_rows(self, rows: Rows | Inputs) -> Outputs:
        is_mask = tf.equal(rows.input_ids, self.setting.special.mask) & (rows.input_mask > 0)
        places = tf.where(is_mask)  # [masks of the batch, 2]
        states = tf.gather_nd(self.encode(rows)[0], places)
        logits = self.head(states, self._table)  # [masks, V]
        best, ids = tf.math.top_k(logits, self._k)
        # The softmax over all V words, worked out for the best ones only.
        scores = tf.exp(best - tf.reduce_logsumexp(logits, axis=-1, keepdims=True))
        filled = functools.partial(_fill_rows, rows=places[:, 0], count=tf.shape(is_mask)[0])
        return {
            "positions": filled(tf.cast(places[:, 1], tf.int32), default=-1),
            "tokens": filled(tf.gather(self._tokens, ids), default=""),
            "scores": filled(scores, default=0.0),
        }

    def from_texts(self, **texts: tf.Tensor) -> Outputs:
        return self.from_rows(self.read(texts))


def _fill_rows(values: tf.Tensor, rows: tf.Tensor, count: tf.Tensor, default: str | float) -> tf.Tensor:
    """Values [n, ...] of the rows [n], in order, as [count, longest row, ...]."""
    ragged = tf.RaggedTensor.from_value_rowids(values, rows, nrows=tf.cast(count, rows.dtype), validate=False)
    return ragged.to_tensor(default)


class Tagger(_WithHead):
    """For tokens label, string [B, F], and probability [B, F].

    For texts words, labels, probabilities, starts, ends [B, W] and entities, entity_labels, entity_starts, entity_ends
    [B, E]; places are counted in characters of the text, the end exclusive. The first piece of a word decides on its
    label, as in ner.py. The words behind max_seq_length pieces are left out.
    """

    def __init__(self, setting: Setting, head: heads.OutputLayer, labels: Sequence[str]):
        super().__init__(setting, head)
        self._labels = tf.constant([*labels])
        self._grouping = _Grouping.of(labels)

    def from_rows(self, rows: Rows) -> Outputs:
        probabilities = tf.nn.softmax(self.head(self.encode(rows)[0]))
        is_token = rows.input_mask > 0
        labels = tf.gather(self._labels, tf.argmax(probabilities, axis=-1))
        best = tf.reduce_max(probabilities, axis=-1)
        return {"label": tf.where(is_token, labels, ""), "probability": tf.where(is_token, best, 0.0)}

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
        """Where the words at `places` end, also those of which only the first pieces were kept: bytes [words]."""
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
        """Values [n] as [B, longest row]."""
        return _fill_rows(values, self.rows, tf.size(self.texts), default)

    def outputs(self, content: str, starts: str, ends: str) -> Outputs:
        """The parts as they stand in their texts, and their places in characters, under these names."""
        parts = tf.strings.substr(tf.gather(self.texts, self.rows), self.starts, self.ends - self.starts)
        return {
            content: self.filled(parts, ""),
            starts: character_offsets(self.texts, self.filled(self.starts, -1)),
            ends: character_offsets(self.texts, self.filled(self.ends, -1)),
        }


@dataclasses.dataclass(frozen=True)
class _Grouping:
    """How tags make entities, by the rules of `ner_scores`.

    Attributes:
      types: string [L], of an entity with this tag.
      inside: bool [L], whether a word with this tag is of an entity.
      begins: bool [L + 1, L], whether a tag begins an entity behind another one; the last row is for no other one.
    """

    types: tf.Tensor
    inside: tf.Tensor
    begins: tf.Tensor

    @classmethod
    def of(cls, labels: Sequence[str]) -> _Grouping:
        """Asks about every tag, alone and behind every other."""
        return cls(
            tf.constant([ner_scores.split_tag(label)[1] for label in labels]),
            tf.constant([label != ner.OUTSIDE for label in labels]),
            tf.constant([[ner_scores.begins(b, a) for b in labels] for a in [*labels, ner.OUTSIDE]]),
        )

    def entities(self, labels: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """From the tags of all words of a batch and their rows: first and last word of each entity."""
        nothing = tf.shape(self.types)[0]
        is_same_row = tf.concat([[False], tf.equal(rows[1:], rows[:-1])], 0)
        before = tf.where(is_same_row, tf.concat([[0], labels[:-1]], 0), nothing)
        begins = tf.gather_nd(self.begins, tf.stack([before, labels], axis=1))
        inside = tf.where(tf.gather(self.inside, labels))[:, 0]
        entity = tf.gather(tf.cumsum(tf.cast(begins, tf.int32)) - 1, inside)
        first = tf.where(begins)[:, 0]
        return first, tf.math.unsorted_segment_max(inside, entity, tf.size(first))


# Windows that are in the encoder at a time; a long paragraph has many more than a batch usually has rows.
_WINDOWS_AT_A_TIME = 32


class Answerer(_WithHead):
    """For ids start_logits, end_logits [B, F], and the best span: start, end (positions of its pieces), score [B].

    A span lies behind the first [SEP] of its row; where no span can be, start and end are 0. At padding the logits are
    modeling.MASKED_SCORE.

    For texts answer, string [B], which is the part of the context from the character start to end (exclusive), score
    [B], and null_odds [B]: by how much "no answer" scores higher. Where there is no answer it is "", from -1 to -1.
    """

    texts = ("question", "context")

    def __init__(self, setting: Setting, head: heads.OutputLayer, settings: SpanSettings):
        super().__init__(setting, head)
        self._settings = settings

    def _logits(self, rows: Rows) -> tuple[tf.Tensor, tf.Tensor]:
        logits = tf.where(rows.input_mask[..., tf.newaxis] > 0, self.head(self.encode(rows)[0]), modeling.MASKED_SCORE)
        return logits[..., 0], logits[..., 1]

    def from_rows(self, rows: Rows) -> Outputs:
        start_logits, end_logits = self._logits(rows)
        is_sep = tf.equal(rows.input_ids, self.setting.special.sep)
        in_context = (tf.cumsum(tf.cast(is_sep, tf.int32), axis=1) > 0) & ~is_sep & (rows.input_mask > 0)
        spans = graph_answers.best_spans(start_logits, end_logits, in_context, in_context, self._settings)
        is_there = tf.math.is_finite(spans.scores)
        score = tf.where(is_there, tf.cast(spans.scores, tf.float32), start_logits[:, 0] + end_logits[:, 0])
        start, end = (tf.where(is_there, places, 0) for places in spans[:2])
        return {"start_logits": start_logits, "end_logits": end_logits, "start": start, "end": end, "score": score}

    def from_texts(self, **texts: tf.Tensor) -> Outputs:
        texts = checked_texts(texts)
        pieces = self.tokenize(texts)
        context, paragraph = texts["context"], pieces["context"]
        windows = graph_answers.make_windows(
            pieces["question"].ids, paragraph.ids, self.setting.special, self._settings
        )
        start_logits, end_logits = self._logits_of_all(Rows(*windows[1:4]))
        spans = graph_answers.best_spans(
            start_logits, end_logits, windows.max_context, windows.pieces >= 0, self._settings
        )
        best = graph_answers.best_windows(spans.scores, windows.rows)  # [B]
        score = tf.gather(spans.scores, best)
        is_there = tf.math.is_finite(score)
        at_cls = tf.cast(start_logits[:, 0], tf.float64) + tf.cast(end_logits[:, 0], tf.float64)
        null_odds = tf.where(is_there, tf.math.segment_min(at_cls, windows.rows) - score, squad.NO_SPAN_ODDS)
        threshold = self._settings.null_score_diff_threshold
        is_answer = is_there if threshold is None else is_there & (null_odds <= threshold)
        first, last = (
            tf.gather_nd(windows.pieces, tf.stack([best, tf.gather(places, best)], axis=1)) for places in spans[:2]
        )
        start = tf.where(is_answer, tf.gather(paragraph.starts.values, tf.maximum(first, 0)), -1)
        end = tf.where(is_answer, tf.gather(paragraph.ends.values, tf.maximum(last, 0)), -1)
        return {
            "answer": tf.strings.substr(context, tf.maximum(start, 0), end - start),
            "start": character_offsets(context, start[:, tf.newaxis])[:, 0],
            "end": character_offsets(context, end[:, tf.newaxis])[:, 0],
            "score": tf.cast(tf.where(is_there, score, -squad.NO_SPAN_ODDS), tf.float32),
            "null_odds": tf.cast(null_odds, tf.float32),
        }

    def _logits_of_all(self, rows: Rows) -> tuple[tf.Tensor, tf.Tensor]:
        """Start and end logits of any number of windows, computed a handful at a time: memory has an end."""

        def add(begin: tf.Tensor, *found: tf.Tensor) -> tuple[tf.Tensor, ...]:
            part = Rows(*(values[begin : begin + _WINDOWS_AT_A_TIME] for values in rows))
            logits = self._logits(part)
            return begin + _WINDOWS_AT_A_TIME, *(tf.concat(pair, 0) for pair in zip(found, logits, strict=True))

        shape = tf.TensorShape([None, None])
        empty = tf.zeros([0, tf.shape(rows.input_ids)[1]])
        _, start_logits, end_logits = tf.while_loop(
            lambda begin, *_: begin < tf.shape(rows.input_ids)[0],
            add,
            (0, empty, empty),
            shape_invariants=(tf.TensorShape([]), shape, shape),
            parallel_iterations=1,
        )
        return start_logits, end_logits

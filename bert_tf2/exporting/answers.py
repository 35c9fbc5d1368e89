"""The signatures of models whose answers are parts of a text: of questions (task squad), and taggers (task ner).

squad: a long paragraph is divided into windows, the model scores the spans of each window, and the best span over all
windows is the answer, by the rules of run_squad.py as graph operations. ner: words with their labels.

Dimensions: B questions or texts, W windows of all questions, F positions, N pieces of all paragraphs, L labels.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf2 import heads, modeling
from bert_tf2.exporting.graph_tokenization import Inputs, Pieces, character_offsets
from bert_tf2.exporting.options import ExportOptions
from bert_tf2.exporting.request_checks import Rows, SpecialIds, checked_texts
from bert_tf2.exporting.signatures import Outputs, Setting, Task, divide, fill_rows
from bert_tf2.finetuning import squad

# Windows in the encoder at a time; a long paragraph has many more than the usual number of rows in a batch.
_WINDOWS_AT_A_TIME = 32
_SPECIAL_PIECES = 3  # [CLS], and a [SEP] after the question and after the paragraph


class Windows(NamedTuple):
    """The inputs of the encoder, and their origin."""

    questions: tf.Tensor  # int32 [W], the question of each window, in order
    rows: Rows  # int32 [W, F] each, as the next one
    pieces: tf.Tensor  # the index among the N pieces at each position; -1 outside of the paragraph
    max_context: tf.Tensor  # bool [W, F], whether this is the window to score the piece in


class Spans(NamedTuple):
    """The best span of each row: int32 positions of its first and last piece, float64 score; all of the same shape.

    If a row has no span, the score is -infinity and the positions are undefined.
    """

    starts: tf.Tensor
    ends: tf.Tensor
    scores: tf.Tensor


def make_windows(
    questions: tf.RaggedTensor, paragraphs: tf.RaggedTensor, special: SpecialIds, options: ExportOptions
) -> Windows:
    """Makes [CLS] question [SEP] part of the paragraph [SEP], like squad.convert_examples_to_features.

    `questions`, `paragraphs`: ids of their pieces, int32 [B, (pieces)]; paragraphs must not be empty.
    """
    questions = questions[:, : options.max_query_length]
    query_length, total = (tf.cast(ragged.row_lengths(), tf.int32) for ragged in (questions, paragraphs))  # [B]
    room = options.max_seq_length - query_length - _SPECIAL_PIECES
    rows, start, length = divide(total, room, options.doc_stride, "context")
    query_begin, begin = (tf.gather(tf.cast(ragged.row_starts(), tf.int32), rows) for ragged in (questions, paragraphs))
    columns = (tf.gather(query_length, rows), query_begin, begin + start, length)  # begin: of all pieces
    query_length, query_begin, begin, length = (values[:, tf.newaxis] for values in columns)  # [W, 1]

    doc_start = query_length + 2
    end = doc_start + length  # position of the last [SEP]
    position = tf.range(tf.reduce_max(end) + 1)[tf.newaxis]  # [1, F]
    in_query = (position > 0) & (position <= query_length)
    within = position - doc_start
    in_paragraph = (within >= 0) & (within < length)
    pieces = tf.where(in_paragraph, begin + within, -1)
    is_sep = tf.equal(position, doc_start - 1) | tf.equal(position, end)
    ids = tf.where(is_sep, special.sep, tf.where(tf.equal(position, 0), special.cls, special.pad))
    ids = tf.where(in_query, _pick(questions, in_query, query_begin + position - 1), ids)
    ids = tf.where(in_paragraph, _pick(paragraphs, in_paragraph, pieces), ids)
    mask = tf.cast(position <= end, tf.int32)
    segments = mask * tf.cast(position >= doc_start, tf.int32)
    max_context = _max_context(pieces, within, length, tf.size(paragraphs.values))
    return Windows(rows, Rows(ids, mask, segments), pieces, max_context)


def _pick(ragged: tf.RaggedTensor, where: tf.Tensor, indexes: tf.Tensor) -> tf.Tensor:
    """Returns the flat values at the indexes where `where` is true, 0 elsewhere."""
    return tf.gather(tf.concat([ragged.values, [0]], 0), tf.where(where, indexes, tf.size(ragged.values)))


def _max_context(pieces: tf.Tensor, within: tf.Tensor, length: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Marks each of `count` pieces in the window with the most context for it: see squad._max_context_windows."""
    places = tf.where(pieces >= 0)
    window, piece = places[:, 0], tf.gather_nd(pieces, places)
    poorer_side = tf.cast(tf.minimum(within, length - 1 - within), tf.float64)
    score = tf.gather_nd(poorer_side + 0.01 * tf.cast(length, tf.float64), places)
    best = tf.math.unsorted_segment_max(score, piece, count)
    candidates = tf.where(tf.equal(score, tf.gather(best, piece)), window, tf.shape(pieces, tf.int64)[0])
    winner = tf.math.unsorted_segment_min(candidates, piece, count)
    is_winner = tf.equal(window, tf.gather(winner, piece))
    return tf.scatter_nd(places, is_winner, tf.shape(pieces, tf.int64))


def best_spans(
    start_logits: tf.Tensor, end_logits: tf.Tensor, may_start: tf.Tensor, may_end: tf.Tensor, options: ExportOptions
) -> Spans:
    """Returns the best span of each row, like squad.compute_predictions.

    Considers the n_best_size best first and last positions of the whole row. Among equal scores the first span in that
    order wins. All are [B, F]; `may_start`, `may_end`: where a span may begin and end.
    """
    count = tf.minimum(options.n_best_size, tf.shape(start_logits)[1])
    start_values, starts = tf.math.top_k(start_logits, count)  # [B, n]
    end_values, ends = tf.math.top_k(end_logits, count)
    allowed = tf.gather(may_start, starts, batch_dims=1)[:, :, tf.newaxis]
    allowed &= tf.gather(may_end, ends, batch_dims=1)[:, tf.newaxis]
    lengths = ends[:, tf.newaxis] - starts[:, :, tf.newaxis] + 1  # [B, n, n]
    allowed &= (lengths >= 1) & (lengths <= options.max_answer_length)
    # In double precision, like squad: single precision would make more spans equal.
    scores = tf.cast(start_values, tf.float64)[:, :, tf.newaxis] + tf.cast(end_values, tf.float64)[:, tf.newaxis]
    scores = tf.where(allowed, scores, tf.constant(float("-inf"), tf.float64))
    scores = tf.reshape(scores, [-1, count * count])
    best = tf.argmax(scores, axis=1, output_type=tf.int32)
    return Spans(
        tf.gather(starts, best // count, batch_dims=1),
        tf.gather(ends, best % count, batch_dims=1),
        tf.gather(scores, best, batch_dims=1),
    )


def best_windows(scores: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns the window with the best score for each question, the first of equals: [W], [W] -> int32 [B]."""
    best = tf.gather(tf.math.segment_max(scores, rows), rows)
    count = tf.size(scores)
    return tf.math.segment_min(tf.where(tf.equal(scores, best), tf.range(count), count), rows)


class SpanFinder(Task):
    """For ids start_logits, end_logits [B, F], which are modeling.MASKED_SCORE at padding.

    For texts answer, string [B], the part of the context from the character start to end (exclusive), score [B], and
    null_odds [B]: the score of "no answer" minus that of the best span. Without an answer it is "", from -1 to -1.
    """

    texts = ("question", "context")

    def _logits(self, rows: Rows) -> tuple[tf.Tensor, tf.Tensor]:
        logits = self.head(self.encode(rows)[0])
        return tf.unstack(tf.where(tf.expand_dims(rows.input_mask, -1) > 0, logits, modeling.MASKED_SCORE), axis=-1)

    def from_rows(self, rows: Rows) -> Outputs:
        start_logits, end_logits = self._logits(rows)
        return {"start_logits": start_logits, "end_logits": end_logits}

    def from_texts(self, **texts: tf.Tensor) -> Outputs:
        texts = checked_texts(texts)
        pieces = self.tokenize(texts)
        context, paragraph = texts["context"], pieces["context"]
        windows = make_windows(pieces["question"].ids, paragraph.ids, self.setting.special, self.setting.options)
        start_logits, end_logits = self._logits_of_all(windows.rows)
        spans = best_spans(start_logits, end_logits, windows.max_context, windows.pieces >= 0, self.setting.options)
        best = best_windows(spans.scores, windows.questions)  # [B]
        score = tf.gather(spans.scores, best)
        is_there = tf.math.is_finite(score)
        at_cls = tf.cast(start_logits[:, 0], tf.float64) + tf.cast(end_logits[:, 0], tf.float64)
        null_odds = tf.where(is_there, tf.math.segment_min(at_cls, windows.questions) - score, squad.NO_SPAN_ODDS)
        threshold = self.setting.options.null_score_diff_threshold
        is_answer = is_there if threshold is None else is_there & (null_odds <= threshold)

        def offset(of_pieces: tf.RaggedTensor, positions: tf.Tensor) -> tf.Tensor:
            piece = tf.gather_nd(windows.pieces, tf.stack([best, tf.gather(positions, best)], axis=1))
            return tf.where(is_answer, tf.gather(of_pieces.values, tf.maximum(piece, 0)), -1)

        start, end = offset(paragraph.starts, spans.starts), offset(paragraph.ends, spans.ends)
        return {
            "answer": tf.strings.substr(context, tf.maximum(start, 0), end - start),
            "start": character_offsets(context, start[:, tf.newaxis])[:, 0],
            "end": character_offsets(context, end[:, tf.newaxis])[:, 0],
            "score": tf.cast(tf.where(is_there, score, -squad.NO_SPAN_ODDS), tf.float32),
            "null_odds": tf.cast(null_odds, tf.float32),
        }

    def _logits_of_all(self, rows: Rows) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns start and end logits of any number of windows, computed a few at a time to limit memory."""

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


class Tagger(Task):
    """For tokens label, string [B, F], and probability [B, F].

    For texts words, labels, probabilities, starts, ends [B, W]; offsets are in characters of the text, the end
    exclusive. The first piece of a word determines its label, as in ner.py. Words after max_seq_length pieces are
    omitted.
    """

    def __init__(self, setting: Setting, head: heads.OutputLayer, labels: Sequence[str]):
        super().__init__(setting, head)
        self._labels = tf.constant([*labels, ""])

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
        inputs = self.setting.tokenizer.combine(pieces, None, self.setting.options.max_seq_length)
        before = tf.pad(inputs.words[:, :-1], [[0, 0], [1, 0]], constant_values=-1)
        places = tf.where((inputs.words >= 0) & tf.not_equal(inputs.words, before))  # of first pieces: [words, 2]
        probabilities = tf.nn.softmax(self.head(tf.gather_nd(self.encode(inputs)[0], places)))  # [words, L]
        labels = tf.gather(self._labels, tf.argmax(probabilities, axis=-1))
        starts, ends = tf.gather_nd(inputs.starts, places), self._ends(pieces, inputs, places)  # bytes
        words = tf.strings.substr(tf.gather(text, places[:, 0]), starts, ends - starts)
        filled = functools.partial(fill_rows, rows=places[:, 0], count=tf.size(text))
        return {
            "words": filled(words, default=""),
            "labels": filled(labels, default=""),
            "probabilities": filled(tf.reduce_max(probabilities, axis=-1), default=0.0),
            "starts": character_offsets(text, filled(starts, default=-1)),
            "ends": character_offsets(text, filled(ends, default=-1)),
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

"""The signatures of a question answering model (task squad), with the rules of run_squad.py as graph operations.

A long paragraph is divided into windows, the model scores the spans of each window, and the best span over all windows
is the answer.

Dimensions: B questions, W windows of all questions, F positions, N pieces of all paragraphs.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from bert_tf2 import heads, modeling
from bert_tf2.export.graph_tokenization import character_offsets
from bert_tf2.export.request_checks import Rows, SpecialIds, checked_texts, require_none
from bert_tf2.export.signatures import Outputs, Setting, WithHead
from bert_tf2.finetuning import squad

# Windows per paragraph. More would keep a server busy for minutes with a request of about a megabyte.
MAX_WINDOWS = 64
# Less than any score, and more than -infinity, which OpenVINO would replace by the smallest number of float32.
_NO_SCORE = -1e30
_SPECIAL_PIECES = 3  # [CLS], and a [SEP] after the question and after the paragraph


class SpanSettings(NamedTuple):
    """The settings of run_squad.py, with the same names.

    Attributes:
      null_score_diff_threshold: the answer is "no answer" if its score exceeds the best span's by more than this; None
        if there always is an answer (SQuAD 1.1).
    """

    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    n_best_size: int = 20
    max_answer_length: int = 30
    null_score_diff_threshold: float | None = None


class Windows(NamedTuple):
    """The inputs of the encoder, and their origin.

    Attributes:
      rows: int32 [W], the question of each window, in order.
      input_ids, input_mask, segment_ids: int32 [W, F].
      pieces: int32 [W, F], the index among the N pieces at each position; -1 outside of the paragraph.
      max_context: bool [W, F], whether this is the window to score the piece in.
    """

    rows: tf.Tensor
    input_ids: tf.Tensor
    input_mask: tf.Tensor
    segment_ids: tf.Tensor
    pieces: tf.Tensor
    max_context: tf.Tensor


class Spans(NamedTuple):
    """The best span of each row: int32 positions of its first and last piece, float64 score; all of the same shape.

    If a row has no span, the score is -infinity and the positions are undefined.
    """

    starts: tf.Tensor
    ends: tf.Tensor
    scores: tf.Tensor


def make_windows(
    questions: tf.RaggedTensor, paragraphs: tf.RaggedTensor, special: SpecialIds, settings: SpanSettings
) -> Windows:
    """Makes [CLS] question [SEP] part of the paragraph [SEP], like squad.convert_examples_to_features.

    Args:
      questions, paragraphs: ids of their pieces, int32 [B, (pieces)]; paragraphs must not be empty.

    Raises:
      InvalidArgumentError: a paragraph is too long (in the graph, like all errors here).
    """
    questions = questions[:, : settings.max_query_length]
    query_length, total = (tf.cast(ragged.row_lengths(), tf.int32) for ragged in (questions, paragraphs))  # [B]
    rows, start, length = _divide(total, settings.max_seq_length - query_length - _SPECIAL_PIECES, settings.doc_stride)
    query_begin, begin = (tf.gather(tf.cast(ragged.row_starts(), tf.int32), rows) for ragged in (questions, paragraphs))
    begin += start  # of all pieces
    columns = (tf.gather(query_length, rows), query_begin, begin, length)
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
    return Windows(rows, ids, mask, segments, pieces, _max_context(pieces, within, length, tf.size(paragraphs.values)))


def _divide(total: tf.Tensor, room: tf.Tensor, doc_stride: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Divides paragraphs of `total` pieces [B] into windows of at most `room` [B], like squad._windows.

    Returns:
      For each window its paragraph, its first piece there, and its number of pieces: int32 [W].
    """
    step = tf.minimum(room, doc_stride)
    counts = 1 + (tf.maximum(total - room, 0) + step - 1) // step
    too_long = f"row {{}} of context takes {{}} windows of the model; {MAX_WINDOWS} are allowed: ask about its parts"
    with tf.control_dependencies([require_none(counts > MAX_WINDOWS, too_long, counts)]):
        rows = tf.repeat(tf.range(tf.size(counts)), counts)
    number = tf.range(tf.size(rows)) - tf.gather(tf.cumsum(counts, exclusive=True), rows)
    start = number * tf.gather(step, rows)
    return rows, start, tf.minimum(tf.gather(room, rows), tf.gather(total, rows) - start)


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
    start_logits: tf.Tensor,
    end_logits: tf.Tensor,
    may_start: tf.Tensor,
    may_end: tf.Tensor,
    settings: SpanSettings,
) -> Spans:
    """Returns the best span of each row, like squad.compute_predictions.

    Considers the n_best_size best first and last positions of the whole row. Among equal scores the first span in that
    order wins.

    Args:
      start_logits, end_logits: float32 [B, F].
      may_start, may_end: bool [B, F], where a span may begin and end.
    """
    count = tf.minimum(settings.n_best_size, tf.shape(start_logits)[1])
    start_values, starts = tf.math.top_k(start_logits, count)  # [B, n]
    end_values, ends = tf.math.top_k(end_logits, count)
    allowed = tf.gather(may_start, starts, batch_dims=1)[:, :, tf.newaxis]
    allowed &= tf.gather(may_end, ends, batch_dims=1)[:, tf.newaxis]
    lengths = ends[:, tf.newaxis] - starts[:, :, tf.newaxis] + 1  # [B, n, n]
    allowed &= (lengths >= 1) & (lengths <= settings.max_answer_length)
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


# Windows in the encoder at a time; a long paragraph has many more than the usual number of rows in a batch.
_WINDOWS_AT_A_TIME = 32


class Answerer(WithHead):
    """For ids start_logits, end_logits [B, F], and the best span: start, end (positions of its pieces), score [B].

    A span lies after the first [SEP] of its row; if no span is possible, start and end are 0. At padding the logits are
    modeling.MASKED_SCORE.

    For texts answer, string [B], the part of the context from the character start to end (exclusive), score [B], and
    null_odds [B]: the score of "no answer" minus that of the best span. Without an answer it is "", from -1 to -1.
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
        spans = best_spans(start_logits, end_logits, in_context, in_context, self._settings)
        is_there = spans.scores > _NO_SCORE
        score = tf.where(is_there, tf.cast(spans.scores, tf.float32), start_logits[:, 0] + end_logits[:, 0])
        start, end = (tf.where(is_there, places, 0) for places in spans[:2])
        return {"start_logits": start_logits, "end_logits": end_logits, "start": start, "end": end, "score": score}

    def from_texts(self, **texts: tf.Tensor) -> Outputs:
        texts = checked_texts(texts)
        pieces = self.tokenize(texts)
        context, paragraph = texts["context"], pieces["context"]
        windows = make_windows(pieces["question"].ids, paragraph.ids, self.setting.special, self._settings)
        start_logits, end_logits = self._logits_of_all(Rows(*windows[1:4]))
        spans = best_spans(start_logits, end_logits, windows.max_context, windows.pieces >= 0, self._settings)
        best = best_windows(spans.scores, windows.rows)  # [B]
        score = tf.gather(spans.scores, best)
        is_there = score > _NO_SCORE
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

"""Windows over long paragraphs and the best spans in them: the rules of `squad.py` inside of a TensorFlow graph.

Letters: B questions, W windows of all of them, F positions, N pieces of all paragraphs.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from bert_tf2.export.request_checks import SpecialIds, require_none

# Windows of one paragraph. More would keep a server busy for minutes, with a request of a megabyte or so.
MAX_WINDOWS = 64
_SPECIAL_PIECES = 3  # [CLS], and a [SEP] after the question and after the paragraph


class SpanSettings(NamedTuple):
    """The settings of run_squad.py, under its names.

    Attributes:
      null_score_diff_threshold: by how much "no answer" has to score higher than the best answer to be the answer; None
        where there always is one (SQuAD 1.1).
    """

    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    n_best_size: int = 20
    max_answer_length: int = 30
    null_score_diff_threshold: float | None = None


class Windows(NamedTuple):
    """What the encoder reads, and where it comes from.

    Attributes:
      rows: int32 [W], the question of each window, in order.
      input_ids, input_mask, segment_ids: int32 [W, F].
      pieces: int32 [W, F], which of the N pieces stands at a position; -1 outside of the paragraph.
      max_context: bool [W, F], whether this is the window to score the piece in.
    """

    rows: tf.Tensor
    input_ids: tf.Tensor
    input_mask: tf.Tensor
    segment_ids: tf.Tensor
    pieces: tf.Tensor
    max_context: tf.Tensor


class Spans(NamedTuple):
    """The best span of each row: int32 positions of its first and last piece, float64 score; all of one shape.

    The score is -infinity where a row has no span at all; its positions then mean nothing.
    """

    starts: tf.Tensor
    ends: tf.Tensor
    scores: tf.Tensor


def make_windows(
    questions: tf.RaggedTensor, paragraphs: tf.RaggedTensor, special: SpecialIds, settings: SpanSettings
) -> Windows:
    """[CLS] question [SEP] part of the paragraph [SEP], as squad.convert_examples_to_features makes them.

    Args:
      questions, paragraphs: ids of their pieces, int32 [B, (pieces)]; no paragraph is without any.

    Raises:
      InvalidArgumentError: a paragraph is too long (in the graph, as all errors here).
    """
    questions = questions[:, : settings.max_query_length]
    query_length, total = (tf.cast(ragged.row_lengths(), tf.int32) for ragged in (questions, paragraphs))  # [B]
    rows, start, length = _divide(total, settings.max_seq_length - query_length - _SPECIAL_PIECES, settings.doc_stride)
    query_begin, begin = (tf.gather(tf.cast(ragged.row_starts(), tf.int32), rows) for ragged in (questions, paragraphs))
    begin += start  # of all pieces
    columns = (tf.gather(query_length, rows), query_begin, begin, length)
    query_length, query_begin, begin, length = (values[:, tf.newaxis] for values in columns)  # [W, 1]

    doc_start = query_length + 2
    end = doc_start + length  # where the last [SEP] stands
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
    """Divides paragraphs of `total` pieces [B] into windows of at most `room` [B], as squad._windows does.

    Returns:
      For each window its paragraph, its first piece there, and how many it has: int32 [W].
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
    """The flat values at the indexes, where these are good for anything."""
    return tf.gather(tf.concat([ragged.values, [0]], 0), tf.where(where, indexes, tf.size(ragged.values)))


def _max_context(pieces: tf.Tensor, within: tf.Tensor, length: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """In which window each of `count` pieces has the most context: see squad._max_context_windows."""
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
    """The best span of each row, as squad._AnswerFinder looks for it.

    It considers the n_best_size best first and last positions of the whole row. Of equal spans the first one in that
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
    # In double precision, as there: in single precision more spans would be equal.
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
    """The window with the best score for each question, the first of equals: [W], [W] -> int32 [B]."""
    best = tf.gather(tf.math.segment_max(scores, rows), rows)
    count = tf.size(scores)
    return tf.math.segment_min(tf.where(tf.equal(scores, best), tf.range(count), count), rows)

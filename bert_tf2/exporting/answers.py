"""The signatures of models whose answers are parts of a text: answers to questions (squad) and tagged words (ner).

squad: a long paragraph is divided into windows, the model scores the spans of each window, and the best span over all
windows is the answer. The graph operations follow the rules of run_squad.py. ner: words with their labels.

Dimensions: B questions or texts, W windows of all questions, F positions, N pieces of all paragraphs, L labels.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import tensorflow as tf

from bert_tf2 import modeling
from bert_tf2.data.rows import INPUTS
from bert_tf2.exporting.graph_tokenization import Pieces, character_offsets
from bert_tf2.exporting.options import ExportOptions
from bert_tf2.exporting.request_checks import Rows, checked_texts, require_none
from bert_tf2.exporting.signatures import MAX_WINDOWS, ExportedTask, Outputs, Setting, fill_rows, require_few_windows
from bert_tf2.finetuning import squad
from bert_tf2.long_texts import few_at_a_time


class SpanFinder(ExportedTask):
    """Outputs for ids: start_logits, end_logits [B, F], which are modeling.MASKED_SCORE at padding.

    Outputs for texts, [B]: answer (string), the part of the context from the character start to end (exclusive); score;
    and null_odds, the score of "no answer" minus the score of the best span. If the context has no answer, answer is ""
    and start and end are -1.
    """

    stated = ("doc_stride", "max_query_length", "n_best_size", "max_answer_length", "null_score_diff_threshold")
    texts = ("question", "context")

    def tokenize(self, texts: Mapping[str, tf.Tensor]) -> dict[str, Pieces]:
        """Returns the pieces of checked texts, which must not be blank, as in `answer`."""
        pieces = super().tokenize(texts)
        checks = [
            require_none(found.ids.row_lengths() == 0, f"row {{}} of {name} is empty: it has only blanks")
            for name, found in pieces.items()
        ]
        with tf.control_dependencies(checks):
            return {
                name: Pieces(*(part.with_values(tf.identity(part.values)) for part in found))
                for name, found in pieces.items()
            }

    def _logits(self, rows: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """The logits of start and end, [B, F, 2]."""
        ids, mask, segments = (rows[name] for name in INPUTS)
        logits = self.head(self._encode(ids, mask, segments)[0])
        return tf.where(tf.expand_dims(mask, -1) > 0, logits, modeling.MASKED_SCORE)

    def from_rows(self, rows: Rows) -> Outputs:
        start_logits, end_logits = tf.unstack(self._logits(rows._asdict()), axis=-1)
        return {"start_logits": start_logits, "end_logits": end_logits}

    def from_texts(self, **texts: tf.Tensor) -> Outputs:
        texts = checked_texts(texts)
        pieces = self.tokenize(texts)
        context, paragraph = texts["context"], pieces["context"]
        options = self.setting.options
        of_windows, rows = paragraph_windows(pieces, options)
        inputs = self.combine(of_windows)
        places = tf.maximum(inputs.words - tf.size(pieces["question"].ids), -1)  # indexes of paragraph pieces, [W, F]
        ids = {name: getattr(inputs, name) for name in INPUTS}
        start_logits, end_logits = tf.unstack(few_at_a_time(self._logits, ids, [tf.shape(places)[1], 2]), axis=-1)
        may_start = max_context(places, tf.size(paragraph.ids))
        starts, ends, scores = best_spans(start_logits, end_logits, may_start, places >= 0, options)
        is_best, count = tf.equal(scores, tf.gather(tf.math.segment_max(scores, rows), rows)), tf.size(scores)
        best = tf.math.segment_min(tf.where(is_best, tf.range(count), count), rows)  # the first best window, [B]
        score = tf.gather(scores, best)
        is_there = tf.math.is_finite(score)
        at_cls = tf.cast(start_logits[:, 0], tf.float64) + tf.cast(end_logits[:, 0], tf.float64)
        null_odds = tf.where(is_there, tf.math.segment_min(at_cls, rows) - score, squad.NO_SPAN_ODDS)
        threshold = options.null_score_diff_threshold
        is_answer = is_there if threshold is None else is_there & (null_odds <= threshold)

        def offset(of_pieces: tf.RaggedTensor, positions: tf.Tensor) -> tf.Tensor:
            piece = tf.gather_nd(places, tf.stack([best, tf.gather(positions, best)], axis=1))
            return tf.where(is_answer, tf.gather(of_pieces.values, tf.maximum(piece, 0)), -1)

        start, end = offset(paragraph.starts, starts), offset(paragraph.ends, ends)
        return {
            "answer": tf.strings.substr(context, tf.maximum(start, 0), end - start),
            "start": character_offsets(context, start[:, tf.newaxis])[:, 0],
            "end": character_offsets(context, end[:, tf.newaxis])[:, 0],
            "score": tf.cast(tf.where(is_there, score, -squad.NO_SPAN_ODDS), tf.float32),
            "null_odds": tf.cast(null_odds, tf.float32),
        }


def paragraph_windows(pieces: Mapping[str, Pieces], options: ExportOptions) -> tuple[dict[str, Pieces], tf.Tensor]:
    """Divides paragraphs into windows behind their questions, as run_squad.py does.

    Returns:
      text_a and text_b of W windows: the cut question and a part of its paragraph, whose `words` are indexes of pieces
      in the concatenation of all questions and all paragraphs; and the question of each window, int32 [W].
    """
    questions, paragraphs = (pieces[name].ids for name in ("question", "context"))
    ids = tf.concat([questions.values, paragraphs.values], 0)
    begin_a, size_a, begin, total = (
        tf.cast(each, tf.int32)
        for ragged in (questions, paragraphs)
        for each in (ragged.row_starts(), ragged.row_lengths())
    )
    begin += tf.size(questions.values)
    size_a = tf.minimum(size_a, options.max_query_length)
    room = options.max_seq_length - 3 - size_a  # [CLS] and two [SEP]
    step = tf.minimum(room, options.doc_stride)
    counts = 1 + (tf.maximum(total - room, 0) + step - 1) // step
    with tf.control_dependencies([require_few_windows(counts)]):
        rows = tf.repeat(tf.range(tf.size(counts)), counts)
    columns = (begin_a, size_a, begin, total, room, step, tf.cumsum(counts, exclusive=True))
    begin_a, size_a, begin, total, room, step, first = (tf.gather(each, rows) for each in columns)
    start = (tf.range(tf.size(rows)) - first) * step

    def part(begin: tf.Tensor, size: tf.Tensor) -> Pieces:
        numbers = tf.ragged.range(begin, begin + size, row_splits_dtype=tf.int32)
        return Pieces(tf.gather(ids, numbers), numbers, numbers, numbers)

    return {"text_a": part(begin_a, size_a), "text_b": part(begin + start, tf.minimum(room, total - start))}, rows


def max_context(pieces: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Whether a window has the most context for the piece at a position, bool [W, F].

    The rule is in squad.features._max_context_windows.
    `pieces`: int32 [W, F], the index of the piece at each position, among all `count` pieces; -1 if there is no piece.
    """
    inside = tf.cast(pieces >= 0, tf.int32)
    within, length = tf.cumsum(inside, axis=1) - 1, tf.reduce_sum(inside, axis=1, keepdims=True)
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
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Finds the best span of each row, like squad.compute_predictions: the first span among equal scores.

    All tensors are [B, F]; `may_start`, `may_end`: whether a span may begin or end at a position. Returns the positions
    of first and last pieces, int32 [B], and the scores, float64 [B]. A row without a span has the score -infinity and
    undefined positions.
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
    starts, ends = tf.gather(starts, best // count, batch_dims=1), tf.gather(ends, best % count, batch_dims=1)
    return starts, ends, tf.gather(scores, best, batch_dims=1)


class Tagger(ExportedTask):
    """Outputs for ids: label, string [B, F], and probability [B, F].

    Outputs for texts: words, labels, probabilities, starts, ends [B, W]; starts and ends (exclusive) count characters
    of the text. The first piece of a word determines its label, and long texts are read in windows, as in run_ner.py.
    """

    stated = ("doc_stride",)

    def __init__(self, setting: Setting):
        super().__init__(setting)
        self._labels = tf.constant([*setting.labels.labels, ""])

    def from_rows(self, rows: Rows) -> Outputs:
        probabilities = tf.nn.softmax(self.head(self.encode(rows)[0]))
        is_token = rows.input_mask > 0
        # "" is a label in the table, because OpenVINO cannot choose between strings with tf.where.
        labels = tf.where(is_token, tf.argmax(probabilities, axis=-1), tf.size(self._labels, tf.int64) - 1)
        best = tf.reduce_max(probabilities, axis=-1)
        return {"label": tf.gather(self._labels, labels), "probability": tf.where(is_token, best, 0.0)}

    def from_texts(self, **texts: tf.Tensor) -> Outputs:
        texts = checked_texts(texts)
        (text,) = texts.values()
        words = _Words(self.tokenize(texts)["text_a"], self.setting.options)
        inputs = self.combine({"text_a": words.pieces_of_windows()})
        logits = few_at_a_time(
            lambda part: self.head(self._encode(*part.values())[0]),
            {name: getattr(inputs, name) for name in INPUTS},
            [tf.shape(inputs.input_ids)[1], self._labels.shape[0] - 1],
        )
        probabilities = tf.nn.softmax(tf.gather_nd(logits, words.places()))  # [words, L]
        labels = tf.gather(self._labels, tf.argmax(probabilities, axis=-1))
        starts, ends = words.starts, words.ends
        found = tf.strings.substr(tf.gather(text, words.rows), starts, ends - starts)
        filled = functools.partial(fill_rows, rows=words.rows, count=tf.size(text))
        return {
            "words": filled(found, default=""),
            "labels": filled(labels, default=""),
            "probabilities": filled(tf.reduce_max(probabilities, axis=-1), default=0.0),
            "starts": character_offsets(text, filled(starts, default=-1)),
            "ends": character_offsets(text, filled(ends, default=-1)),
        }


class _Words:
    """The words of texts, and the windows in which they get their labels, by the rule of finetuning.ner.features.

    Words are numbered over the batch. `rows`, `starts`, `ends`: int32 [words], the text of each word and its bytes.
    """

    def __init__(self, pieces: Pieces, options: ExportOptions):
        """Divides the words of each text; a word keeps at most as many pieces as a window has room for."""
        self._capacity = options.max_seq_length - 2
        self._stride = options.doc_stride or max(1, self._capacity // 2)
        of_pieces, rows = pieces.words.values, pieces.words.value_rowids()
        begins = tf.not_equal(of_pieces[1:], of_pieces[:-1]) | tf.not_equal(rows[1:], rows[:-1])
        begins = tf.concat([[False], begins], 0)[: tf.size(rows)]  # texts without words have no piece
        number = tf.cumsum(tf.cast(begins, tf.int32))  # of the word of each piece
        self.starts = tf.math.segment_min(pieces.starts.values, number)
        self.ends = tf.math.segment_max(pieces.ends.values, number)
        self.rows = tf.cast(tf.math.segment_max(rows, number), tf.int32)
        sizes = tf.math.segment_sum(tf.ones_like(number), number)
        within = tf.range(tf.size(number)) - tf.gather(tf.cumsum(sizes, exclusive=True), number)
        self._ids = tf.boolean_mask(pieces.ids.values, within < self._capacity)
        self._offsets = tf.pad(tf.cumsum(tf.minimum(sizes, self._capacity)), [[1, 0]])  # pieces before each word
        counts = tf.math.unsorted_segment_sum(tf.ones_like(self.rows), self.rows, pieces.words.nrows(tf.int32))
        self._firsts, self._stops = self._slide(tf.cumsum(counts, exclusive=True), tf.cumsum(counts))

    def _slide(self, begin: tf.Tensor, stop: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The first word and the word after the last word of each window, text by text; see ner.features._slide."""
        offsets = self._offsets

        def after(start: tf.Tensor) -> tf.Tensor:
            last = tf.searchsorted(offsets, tf.gather(offsets, start) + self._capacity, side="right") - 1
            return tf.minimum(last, stop)

        def add(number: tf.Tensor, start: tf.Tensor, found: tf.TensorArray) -> tuple:
            end = after(start)
            is_last = tf.equal(end, stop)
            full = tf.clip_by_value(tf.searchsorted(offsets, tf.gather(offsets, stop) - self._capacity), begin, start)
            # A text that has no window left has the start `stop`.
            first = tf.where(is_last & (start < stop), full, start)
            then = tf.searchsorted(offsets, tf.gather(offsets, start) + self._stride)
            following = tf.where(is_last, stop, tf.clip_by_value(then, start + 1, end))
            return number + 1, following, found.write(number, tf.stack([first, end], 1))

        found = tf.TensorArray(tf.int32, 0, dynamic_size=True, element_shape=[None, 2])
        _, start, found = tf.while_loop(
            # The first turn is for a batch of texts without words, too, since an empty TensorArray has no shape.
            lambda number, start, _: (number == 0) | (tf.reduce_any(start < stop) & (number < MAX_WINDOWS)),
            add,
            (0, begin, found),
        )
        with tf.control_dependencies([require_few_windows(tf.where(start < stop, MAX_WINDOWS + 1, 0))]):
            windows = tf.transpose(found.stack(), [1, 0, 2])  # [B, most windows, 2]
        return tuple(tf.unstack(tf.boolean_mask(windows, windows[..., 0] < windows[..., 1]), axis=1))

    def pieces_of_windows(self) -> Pieces:
        begins, ends = tf.gather(self._offsets, self._firsts), tf.gather(self._offsets, self._stops)
        numbers = tf.ragged.range(begins, ends, row_splits_dtype=tf.int32)
        return Pieces(tf.gather(self._ids, numbers), numbers, numbers, numbers)

    def places(self) -> tf.Tensor:
        """The window of each word, and the position of its first piece there, int32 [words, 2]."""
        words = tf.ragged.range(self._firsts, self._stops)
        window, word, offsets = tf.cast(words.value_rowids(), tf.int32), words.values, self._offsets
        left = tf.gather(offsets, word) - tf.gather(offsets, tf.gather(self._firsts, window))
        right = tf.gather(offsets, tf.gather(self._stops, window)) - tf.gather(offsets, word + 1)
        context = tf.minimum(left, right) * (2 * self._capacity + 1) + left + right
        best = tf.equal(context, tf.gather(tf.math.unsorted_segment_max(context, word, tf.size(self.rows)), word))
        place = tf.where(best, tf.range(tf.size(word)), tf.size(word))
        place = tf.math.unsorted_segment_min(place, word, tf.size(self.rows))  # the first of equal windows
        return tf.stack([tf.gather(window, place), 1 + tf.gather(left, place)], 1)

"""SQuAD features: windows of a paragraph, each with the question in front, as the model reads them.

The input of the model is `[CLS] question [SEP] window [SEP]`. Words become word pieces. A paragraph that is too long
becomes several windows, each `doc_stride` pieces after the previous one. A piece in several windows is scored only in
the window where it has the most context on its shorter side. The features are the same as in google-research/bert's
run_squad.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_tf2 import tokenization
from bert_tf2.data import records, rows, tfrecords
from bert_tf2.data.example import encode
from bert_tf2.finetuning.squad.examples import WORD, SquadExample
from bert_tf2.support import errors
from bert_tf2.support.errors import UserError

FIRST_UNIQUE_ID = 1000000000

# [CLS], and a [SEP] after the question and after the paragraph.
_SPECIAL_PIECES = 3


@dataclasses.dataclass
class InputFeatures:
    """One window of a paragraph with its question, the input of the model. L is max_seq_length."""

    unique_id: int  # identifies the window in the results of the model
    example_index: int  # the index of the question in the list of examples
    doc_span_index: int  # the index of the window in its paragraph
    tokens: list[str]  # the pieces with the special tokens, without padding
    input_ids: list[int]  # L ids
    doc_start: int  # the position of the first piece of the paragraph; the paragraph ends before the last of `tokens`
    word_indexes: np.ndarray  # for each piece of the paragraph, the index of its word in `doc_tokens` of the example
    max_context: np.ndarray  # for each piece of the paragraph, whether it is scored in this window
    # for training, the first and the last position of the answer, or 0 ([CLS]) if it is not whole in the window
    start_position: int | None = None
    end_position: int | None = None
    is_impossible: bool = False  # the same as in the example
    # the whole paragraph, and the number of its pieces before the window
    document: _Document | None = dataclasses.field(default=None, repr=False, compare=False)
    first_piece: int = dataclasses.field(default=0, repr=False, compare=False)

    def text(self, start: int, end: int) -> str:
        """The part of the paragraph from the piece at position `start` to the piece at position `end`."""
        shift = self.first_piece - self.doc_start
        return self.document.text(start + shift, end + shift)

    @property
    def input_mask(self) -> list[int]:
        """L numbers: 1 for tokens, 0 for padding."""
        return [1] * len(self.tokens) + [0] * (len(self.input_ids) - len(self.tokens))

    @property
    def segment_ids(self) -> list[int]:
        """L numbers: 1 for the paragraph and its [SEP], 0 for the rest."""
        paragraph = len(self.tokens) - self.doc_start
        return [0] * self.doc_start + [1] * paragraph + [0] * (len(self.input_ids) - len(self.tokens))

    @property
    def token_to_orig_map(self) -> dict[int, int]:
        """Position of each piece of the paragraph -> the index of its word."""
        return dict(enumerate(self.word_indexes.tolist(), self.doc_start))

    @property
    def token_is_max_context(self) -> dict[int, bool]:
        """Position of each piece of the paragraph -> whether it is scored in this window."""
        return dict(enumerate(self.max_context.tolist(), self.doc_start))


def check_lengths(max_seq_length: int, max_query_length: int, doc_stride: int) -> None:
    """Raises UserError if windows cannot advance next to a question."""
    for name, value in (("max_query_length", max_query_length), ("doc_stride", doc_stride)):
        if value < 1:
            raise UserError(f"--{name}={value}: must be at least 1")
    room = max_seq_length - max_query_length - _SPECIAL_PIECES
    if room < 1:
        shorter = min(max_seq_length // 2, max_seq_length - _SPECIAL_PIECES - 1)
        cure = f"give --max_query_length={shorter} --doc_stride={min(doc_stride, max_seq_length // 4)}, or similar"
        raise UserError(
            f"--max_seq_length={max_seq_length} must be greater than --max_query_length={max_query_length}"
            f" + {_SPECIAL_PIECES}, or a long question leaves no room for the paragraph;"
            f" {cure if shorter > 0 else 'give a greater --max_seq_length'}"
        )


class _Document:
    """The word pieces of a paragraph, the word of each piece, and the first piece of each word (if it has pieces)."""

    def __init__(self, example: SquadExample, tokenizer: tokenization.FullTokenizer):
        words = example.doc_tokens
        self._words, self._context, self._tokenizer = words, example.context or " ".join(words), tokenizer
        pieces = [tokenizer.tokenize(word) for word in words]
        lengths = [len(tokens) for tokens in pieces]
        self.tokens = [token for tokens in pieces for token in tokens]
        self.ids = tokenizer.convert_tokens_to_ids(self.tokens)
        self.word_indexes = np.repeat(np.arange(len(words), dtype=np.int32), lengths)
        self.first_piece = [0, *itertools.accumulate(lengths)]

    def text(self, first: int, last: int) -> str:
        """The part of the context that the pieces from `first` to `last` represent."""
        return self._context[self._span(first)[0] : self._span(last)[1]]

    def _span(self, piece: int) -> tuple[int, int]:
        word = self.word_indexes[piece]
        start, end = piece_spans(self._words[word], self._tokenizer)[piece - self.first_piece[word]]
        return self._starts[word] + start, self._starts[word] + end

    @functools.cached_property
    def _starts(self) -> list[int]:
        return [match.start() for match in WORD.finditer(self._context)]


def piece_spans(word: str, tokenizer: tokenization.FullTokenizer) -> list[tuple[int, int]]:
    """The range of characters of the word, (first, last + 1), for each of its pieces.

    An accent belongs to its letter. If a tokenizer with other rules made pieces that cannot be located, each piece has
    the range of the whole word.
    """
    basic = getattr(tokenizer, "basic_tokenizer", None)
    if basic is None:  # a tokenizer of the user's own, without the parts of FullTokenizer
        return [(0, len(word))] * len(tokenizer.tokenize(word))
    # The origin of each letter: cleaning, lower case and accents change the number of letters of each character.
    letters = [len("".join(basic.tokenize(char))) for char in word]
    sources = [place for place, count in enumerate(letters) for _ in range(count)]
    pieces: list[str] = []
    lengths: list[int] = []
    for part in basic.tokenize(word):
        found = tokenizer.wordpiece_tokenizer.tokenize(part)
        pieces += found
        lengths += [len(piece.removeprefix("##")) for piece in found] if len(found) > 1 else [len(part)]
    given = tokenizer.tokenize(word)
    if given != pieces or sum(lengths) != len(sources):
        return [(0, len(word))] * len(given)
    spans = []
    for begin, after in itertools.pairwise(itertools.accumulate(lengths, initial=0)):
        end = sources[after - 1] + 1
        while end < len(word) and not letters[end] and unicodedata.category(word[end]) == "Mn":
            end += 1
        spans.append((sources[begin], end))
    return spans


def convert_examples_to_features(
    examples: Iterable[SquadExample],
    tokenizer: tokenization.FullTokenizer,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    is_training: bool,
    output_fn: Callable[[InputFeatures], Any] | None = None,
) -> Iterator[InputFeatures] | None:
    """Returns an iterator over the windows of all examples, in order; a paragraph without pieces has no window.

    With `output_fn`, calls `output_fn` with each window and returns None, as the reference does.
    """
    features = _convert_examples(examples, tokenizer, max_seq_length, doc_stride, max_query_length, is_training)
    if output_fn is None:
        return features
    for feature in features:
        output_fn(feature)
    return None


def _convert_examples(
    examples: Iterable[SquadExample],
    tokenizer: tokenization.FullTokenizer,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    is_training: bool,
) -> Iterator[InputFeatures]:
    unique_ids = itertools.count(FIRST_UNIQUE_ID)
    words, document = None, None
    for example_index, example in enumerate(examples):
        if example.doc_tokens is not words:  # the questions of a paragraph follow each other
            words, document = example.doc_tokens, _Document(example, tokenizer)
        with errors.reading(f"question {example.qas_id}", tokenization.NotTextError):
            query = tokenizer.tokenize(example.question_text)[:max_query_length]
        head = ["[CLS]", *query, "[SEP]"]
        head_ids = tokenizer.convert_tokens_to_ids(head)
        answer = _answer_pieces(example, document, tokenizer) if is_training else None
        pieces, room = len(document.tokens), max_seq_length - len(head) - 1
        windows = rows.windows(pieces, room, doc_stride) if pieces else []
        best_windows = _max_context_windows(windows, len(document.tokens))
        for doc_span_index, window in enumerate(windows):
            inside = slice(window.start, window.stop)
            ids = [*head_ids, *document.ids[inside], head_ids[-1]]  # the last of the head is [SEP]
            feature = InputFeatures(
                next(unique_ids),
                example_index,
                doc_span_index,
                tokens=[*head, *document.tokens[inside], "[SEP]"],
                input_ids=ids + [0] * (max_seq_length - len(ids)),
                doc_start=len(head),
                word_indexes=document.word_indexes[inside],
                max_context=best_windows[inside] == doc_span_index,
                is_impossible=example.is_impossible,
                document=document,
                first_piece=window.start,
            )
            if is_training:
                contained = answer is not None and window.start <= answer[0] and answer[1] < window.stop
                shift = len(head) - window.start
                feature.start_position = answer[0] + shift if contained else 0
                feature.end_position = answer[1] + shift if contained else 0
            yield feature


def _max_context_windows(windows: Sequence[range], total: int) -> np.ndarray:
    """The index of the window that scores each of `total` pieces, as in the reference; of equal windows the first."""
    best = np.zeros(total, np.int32)
    best_score = np.full(total, -1.0)
    for index, window in enumerate(windows):
        left = np.arange(len(window))
        score = np.minimum(left, left[::-1]) + 0.01 * len(window)
        better = window.start + np.flatnonzero(score > best_score[window.start : window.stop])
        best[better] = index
        best_score[better] = score[better - window.start]
    return best


def _answer_pieces(
    example: SquadExample, document: _Document, tokenizer: tokenization.FullTokenizer
) -> tuple[int, int] | None:
    """First and last piece of the answer, such as "1895" in "(1895-1943).", else of its words; None if impossible."""
    if example.is_impossible:
        return None
    # For an answer that begins in blanks before the first word, -1 is the last word, as in the reference.
    start = document.first_piece[:-1][example.start_position]
    end = document.first_piece[example.end_position + 1] - 1
    return _improve_answer_span(document.tokens, start, end, tokenizer, example.orig_answer_text)


def _improve_answer_span(
    doc_tokens: list[str],
    input_start: int,
    input_end: int,
    tokenizer: tokenization.FullTokenizer,
    orig_answer_text: str,
) -> tuple[int, int]:
    """The first place of the answer's pieces between two pieces, else these two; the reference's function."""
    wanted = tokenizer.tokenize(orig_answer_text)
    for start in range(input_start, input_end + 2 - len(wanted)):
        if wanted and doc_tokens[start : start + len(wanted)] == wanted:
            return start, start + len(wanted) - 1
    return input_start, input_end


def _check_is_max_context(doc_spans: Sequence[Any], cur_span_index: int, position: int) -> bool:
    """Whether this window scores a piece. The reference's function, whose windows have a `start` and a `length`."""
    windows = [range(span.start, span.start + span.length) for span in doc_spans]
    best = _max_context_windows(windows, max(window.stop for window in windows))
    return position in windows[cur_span_index] and bool(best[position] == cur_span_index)


def as_record(feature: InputFeatures, is_training: bool) -> dict[str, list[int]]:
    """A row for `records.SQUAD_TRAIN` or `records.SQUAD_PREDICT`."""
    row = {name: getattr(feature, name) for name in rows.INPUTS}
    row["unique_ids"] = [feature.unique_id]
    if is_training:
        row["start_positions"] = [feature.start_position]
        row["end_positions"] = [feature.end_position]
        row["is_impossible"] = [int(feature.is_impossible)]
    return row


class FeatureWriter:
    """Writes features to a TFRecord file one by one; the file appears under its name with `close`."""

    def __init__(self, filename: str, is_training: bool):
        self.filename, self.is_training, self.num_features = filename, is_training, 0
        self._file = contextlib.ExitStack()
        (self._append,) = self._file.enter_context(tfrecords.writing(filename))

    def process_feature(self, feature: InputFeatures) -> None:
        kind = records.SQUAD_TRAIN if self.is_training else records.SQUAD_PREDICT
        self._append(encode(records.columns(kind, [as_record(feature, self.is_training)])))
        self.num_features += 1

    def close(self) -> None:
        self._file.close()

"""SQuAD: from questions and paragraphs to model inputs, and from span logits back to answers (paper sections 4.2, 4.3).

The model sees `[CLS] question [SEP] paragraph [SEP]` and gives each position a score for being the answer's first piece
and one for being its last. So this module

1. reads the JSON file (`read_squad_examples`): a context is cut into words at blanks, an answer becomes a range of
   words;
2. makes features (`convert_examples_to_features`): words become pieces, and a paragraph that is too long becomes
   several windows, each `doc_stride` pieces after the one before. A piece in several windows is scored only in the
   window in which it has the most context on its poorer side;
3. finds answers (`compute_predictions`): the best spans of all windows of a question, as text of the paragraph.

Answers, their order, their probabilities and the files are those of google-research/bert's run_squad.py.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import json
import math
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from bert_tf2 import tokenization
from bert_tf2.support import console, files
from bert_tf2.support.errors import UserError

FIRST_UNIQUE_ID = 1000000000

# [CLS], and a [SEP] after the question and after the paragraph.
_SPECIAL_PIECES = 3
_LOGGED_EXAMPLES = 20
_SHUFFLE_SEED = 12345

# null_odds.json's figure for a question that no span can answer: "no answer" at any threshold. A finite number, because
# JSON has no infinity.
NO_SPAN_ODDS = 1e6

# Five blanks end a word. Others, a no-break space say, stay inside it, and the tokenizer deals with them.
_WORD = re.compile("[^ \t\r\n\u202f]+")


# --- Reading ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class SquadExample:
    """One question about one paragraph.

    Attributes:
      qas_id: the question's id in the file.
      question_text: the question.
      doc_tokens: the words of the paragraph; the questions of one paragraph share the list.
      orig_answer_text: for training, the annotated answer; "" where there is none.
      start_position, end_position: for training, its first and last word; -1 where there is no answer.
      is_impossible: for training on version 2, whether the paragraph has no answer.
    """

    qas_id: str
    question_text: str
    doc_tokens: list[str]
    orig_answer_text: str | None = None
    start_position: int | None = None
    end_position: int | None = None
    is_impossible: bool = False


def read_dataset(input_file: str) -> Any:
    """Parses a JSON file.

    Raises:
      UserError: the file is missing, empty, not UTF-8 or not JSON (names line and column).
    """
    return files.read_json(input_file, kind=None)


_JSON_NAMES = {list: "a list", str: "text", int: "a whole number", (str, int): "text", (bool, int): "true or false"}


def field(node: Any, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """`node[key]`, where `node` is a piece of a parsed SQuAD file that stands at the place `where`.

    Raises:
      UserError: `node` is no object, has no such key, or something else than a `kind` stands there.
    """
    if not isinstance(node, dict):
        raise UserError(f"{where}: not in SQuAD's layout: an object with the key {key!r} is needed here")
    if key not in node:
        raise UserError(f"{where}: not in SQuAD's layout: the key {key!r} is missing")
    if not isinstance(node[key], kind):
        raise UserError(f"{where}: not in SQuAD's layout: {key!r} must be {_JSON_NAMES[kind]}")
    return node[key]


def paragraphs(dataset: Any, name: str) -> Iterator[tuple[dict, str]]:
    """Yields each paragraph of a parsed SQuAD file, and its place, for messages. `name` is the file's."""
    for i, article in enumerate(field(dataset, "data", list, name)):
        for j, paragraph in enumerate(field(article, "paragraphs", list, f"{name}, data[{i}]")):
            yield paragraph, f"{name}, data[{i}].paragraphs[{j}]"


def questions(paragraph: dict, where: str) -> Iterator[tuple[str, dict, str]]:
    """Yields id, JSON object and place of each question of a paragraph."""
    for k, question in enumerate(field(paragraph, "qas", list, where)):
        # Some data sets number their questions; in the files that the reference writes such an id is text as well.
        qas_id = str(field(question, "id", (str, int), f"{where}.qas[{k}]"))
        yield qas_id, question, f"{where}, question {qas_id}"


class _Document:
    """A context cut into words, which knows the word at each character."""

    def __init__(self, context: str):
        found = list(_WORD.finditer(context))
        self.length = len(context)
        self.words = [match.group() for match in found]
        self._starts = [match.start() for match in found]

    def word_at(self, offset: int) -> int:
        """The word that holds this character, or the one before it; -1 in blanks at the beginning."""
        return bisect.bisect_right(self._starts, offset) - 1


def read_squad_examples(
    input_file: str, is_training: bool, version_2_with_negative: bool = False
) -> list[SquadExample]:
    """Reads the questions of a SQuAD file (the reference's function of this name).

    Answers are read only for training. A question whose answer does not stand in the words at its place (odd blanks in
    the answer, for the most part) is left out, as in the reference; one line says how many these are. So is an answer
    without a word, for which the reference trains on whatever stands at its place.

    Raises:
      UserError: no SQuAD file; no question in it; and for training, a question with no answer or several, or an answer
        outside of its context (names the question), or no usable question.
    """
    examples: list[SquadExample] = []
    unaligned: list[str] = []
    places: dict[str, str] = {}
    for paragraph, where in paragraphs(read_dataset(input_file), input_file):
        document = _Document(field(paragraph, "context", str, where))
        for qas_id, question, place in questions(paragraph, where):
            if places.setdefault(qas_id, place) is not place and not is_training:
                raise UserError(
                    f"{place}: the id {qas_id} was there before, at {places[qas_id].removeprefix(f'{input_file}, ')};"
                    " predictions are kept by id, so give each question one of its own"
                )
            example = SquadExample(qas_id, field(question, "question", str, place), document.words)
            if is_training and not _add_answer(example, question, document, version_2_with_negative, place):
                unaligned.append(qas_id)
            else:
                examples.append(example)
    _report_unaligned(input_file, unaligned, len(examples))
    if not examples:
        raise UserError(f"{input_file}: there is no question in this file")
    return examples


def _report_unaligned(input_file: str, unaligned: Sequence[str], usable: int) -> None:
    if not unaligned:
        return
    total = len(unaligned) + usable
    what = (
        f"{input_file}: {len(unaligned)} of {total} answers do not stand in the words of their context, the first is"
        f" that of question {unaligned[0]}"
    )
    if not usable:
        raise UserError(f"{what}; nothing is left to train on (is answer_start right?)")
    logging.warning("%s; these questions are left out of training", what)


def _add_answer(example: SquadExample, question: dict, document: _Document, version_2: bool, where: str) -> bool:
    """Fills in the answer that training needs; False where it does not stand in the context's words."""
    if version_2 and field(question, "is_impossible", (bool, int), where):
        example.orig_answer_text, example.start_position, example.end_position = "", -1, -1
        example.is_impossible = True
        return True
    answers = field(question, "answers", list, where)
    if len(answers) != 1:
        hint = " (is --version_2_with_negative=true missing?)" if not answers and not version_2 else ""
        raise UserError(f"{where}: training needs exactly 1 answer to each question, here are {len(answers)}{hint}")
    text = field(answers[0], "text", str, where)
    start = field(answers[0], "answer_start", int, where)
    if start < 0 or start + len(text) > document.length:
        raise UserError(
            f"{where}: the answer lies outside of its context: characters {start} to {start + len(text)} of"
            f" {document.length}; correct its answer_start"
        )
    example.orig_answer_text = text
    example.start_position = document.word_at(start)
    example.end_position = document.word_at(start + len(text) - 1)
    words = " ".join(document.words[example.start_position : example.end_position + 1])
    wanted = " ".join(tokenization.whitespace_tokenize(text))
    return bool(wanted) and wanted in words


def shuffled_for_training(examples: Iterable[SquadExample]) -> list[SquadExample]:
    """The examples in the order in which the reference writes them to train.tf_record."""
    shuffled = list(examples)
    random.Random(_SHUFFLE_SEED).shuffle(shuffled)
    return shuffled


# --- Features --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class InputFeatures:
    """One window of a paragraph together with its question, as the model gets it. L is max_seq_length.

    What follows from other attributes is a property, so that the windows of a whole test set fit into memory: the
    reference keeps two dictionaries and two more lists of length L for each.

    Attributes:
      unique_id: identifies the window; the model's results carry it.
      example_index: the place of the question in the list of examples.
      doc_span_index: which window of its paragraph.
      tokens: the pieces, special ones included, padding not.
      input_ids: L ids.
      doc_start: the position of the window's first paragraph piece; the paragraph ends before the last of `tokens`.
      word_indexes: for each paragraph piece of the window, its word in the example's `doc_tokens`.
      max_context: for each paragraph piece of the window, whether this window is the one to score it in.
      start_position, end_position: for training, the answer's first and last position, or 0 ([CLS]) where the window
        does not hold all of it.
      is_impossible: the example's.
    """

    unique_id: int
    example_index: int
    doc_span_index: int
    tokens: list[str]
    input_ids: list[int]
    doc_start: int
    word_indexes: np.ndarray
    max_context: np.ndarray
    start_position: int | None = None
    end_position: int | None = None
    is_impossible: bool = False

    @property
    def input_mask(self) -> list[int]:
        """L numbers: 1 for a piece, 0 for padding."""
        return [1] * len(self.tokens) + [0] * (len(self.input_ids) - len(self.tokens))

    @property
    def segment_ids(self) -> list[int]:
        """L numbers: 1 for the paragraph and its [SEP], otherwise 0."""
        paragraph = len(self.tokens) - self.doc_start
        return [0] * self.doc_start + [1] * paragraph + [0] * (len(self.input_ids) - len(self.tokens))

    @property
    def token_to_orig_map(self) -> dict[int, int]:
        """Position of each paragraph piece -> its word."""
        return dict(enumerate(self.word_indexes.tolist(), self.doc_start))

    @property
    def token_is_max_context(self) -> dict[int, bool]:
        """Position of each paragraph piece -> whether it is scored in this window."""
        return dict(enumerate(self.max_context.tolist(), self.doc_start))


def check_lengths(max_seq_length: int, max_query_length: int, doc_stride: int) -> None:
    """Makes sure that windows can advance beside a question of any length, and warns where they will not overlap.

    The reference checks only that the longest question leaves room (in `validate_flags_or_throw`). With a doc_stride
    below 1 it never ends; one larger than the room beside a question sets its windows side by side, so that none holds
    an answer across a border. That is refused where it befalls every question.

    Raises:
      UserError: the lengths do not fit together (names the flags).
    """
    for name, value in (("max_query_length", max_query_length), ("doc_stride", doc_stride)):
        if value < 1:
            raise UserError(f"--{name}={value}: must be at least 1")
    room = max_seq_length - max_query_length - _SPECIAL_PIECES
    if room < 1:
        raise UserError(
            f"--max_seq_length={max_seq_length} must be greater than --max_query_length={max_query_length}"
            f" + {_SPECIAL_PIECES}, or a long question leaves no room for the paragraph; lower --max_query_length"
        )
    most = max_seq_length - 1 - _SPECIAL_PIECES  # beside the shortest question, of one piece
    if doc_stride > most:
        raise UserError(
            f"--doc_stride={doc_stride} is larger than the {most} pieces that fit beside any question with"
            f" --max_seq_length={max_seq_length}; give at most {room}, better half of it"
        )
    if doc_stride > room:
        logging.warning(
            "--doc_stride=%d is larger than the %d pieces that fit beside a question of --max_query_length=%d: the"
            " windows of long questions lie side by side without overlap",
            doc_stride, room, max_query_length,
        )  # fmt: skip


@dataclasses.dataclass
class _Pieces:
    """A document in pieces.

    Attributes:
      tokens, ids: the pieces of all words, one after the other.
      word_indexes: the word of each piece.
      first_piece: for each word, the place of its first piece (a word may have none).
    """

    tokens: list[str]
    ids: list[int]
    word_indexes: np.ndarray
    first_piece: list[int]


def _pieces(words: Sequence[str], tokenizer: tokenization.FullTokenizer) -> _Pieces:
    tokens: list[str] = []
    word_indexes: list[int] = []
    first_piece: list[int] = []
    for index, word in enumerate(words):
        first_piece.append(len(tokens))
        tokens += tokenizer.tokenize(word)
        word_indexes += [index] * (len(tokens) - len(word_indexes))
    return _Pieces(tokens, tokenizer.convert_tokens_to_ids(tokens), np.array(word_indexes, np.int32), first_piece)


def convert_examples_to_features(
    examples: Iterable[SquadExample],
    tokenizer: tokenization.FullTokenizer,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    is_training: bool,
    output_fn: Callable[[InputFeatures], Any] | None = None,
    *,
    log_level: int = logging.INFO,
) -> Iterator[InputFeatures] | None:
    """Makes the windows of each example, in order; returns an iterator that yields them.

    With `output_fn` it calls this function with each window, like the reference's function of this name, and returns
    None.

    A paragraph without pieces yields nothing. The first window is logged in words at `log_level`; those of the first 20
    examples as the model gets them, at the level DEBUG.

    Raises:
      ValueError: a question leaves no room for its paragraph, or doc_stride is below 1; see `check_lengths`.
    """
    lengths = (max_seq_length, doc_stride, max_query_length)
    features = _convert_examples(examples, tokenizer, *lengths, is_training, log_level)
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
    log_level: int,
) -> Iterator[InputFeatures]:
    unique_id = FIRST_UNIQUE_ID
    words, document = None, None
    for example_index, example in enumerate(examples):
        if example.doc_tokens is not words:  # a file has a paragraph's questions one after the other
            words, document = example.doc_tokens, _pieces(example.doc_tokens, tokenizer)
        query = tokenizer.tokenize(example.question_text)[:max_query_length]
        answer = _answer_pieces(example, document, tokenizer) if is_training else None
        windows = _windows(len(document.tokens), max_seq_length - len(query) - _SPECIAL_PIECES, doc_stride)
        best_windows = _max_context_windows(windows, len(document.tokens))
        for doc_span_index, window in enumerate(windows):
            feature = InputFeatures(
                unique_id,
                example_index,
                doc_span_index,
                **_model_inputs(query, document, window, max_seq_length, tokenizer),
                max_context=best_windows[window.start : window.stop] == doc_span_index,
                is_impossible=example.is_impossible,
            )
            if is_training:
                feature.start_position, feature.end_position = _positions(answer, window, feature.doc_start)
            if unique_id == FIRST_UNIQUE_ID:
                logging.log(log_level, "%s", console.table("The first window:", _in_words(example, feature)))
            if example_index < _LOGGED_EXAMPLES:
                _log_feature(feature, is_training)
            yield feature
            unique_id += 1


def _model_inputs(
    query: list[str], document: _Pieces, window: range, max_seq_length: int, tokenizer: tokenization.FullTokenizer
) -> dict[str, Any]:
    """The attributes of InputFeatures that describe what the model sees of one window."""
    inside = slice(window.start, window.stop)
    head = ["[CLS]", *query, "[SEP]"]
    head_ids = tokenizer.convert_tokens_to_ids(head)
    ids = [*head_ids, *document.ids[inside], head_ids[-1]]  # the last of the head is [SEP]
    return {
        "tokens": [*head, *document.tokens[inside], "[SEP]"],
        "input_ids": ids + [0] * (max_seq_length - len(ids)),
        "doc_start": len(head),
        "word_indexes": document.word_indexes[inside],
    }


def _windows(total: int, room: int, doc_stride: int) -> list[range]:
    """Ranges of at most `room` pieces that cover `total` pieces, `doc_stride` apart.

    A stride beyond the room would leave gaps; like the reference this then takes the room as the stride.
    """
    step = min(room, doc_stride)
    if step < 1:
        raise ValueError(f"no window can advance: {room} pieces fit beside the question and doc_stride is {doc_stride}")
    windows: list[range] = []
    for start in range(0, total, step):
        windows.append(range(start, min(start + room, total)))
        if windows[-1].stop == total:
            break
    return windows


def _max_context_windows(windows: Sequence[range], total: int) -> np.ndarray:
    """For each of `total` pieces, the index of the window in which it counts.

    That is the window with the most pieces on the poorer side of the piece, where a hundred pieces of window length are
    worth as much as one piece of context. The first of equals wins; equality is that of doubles, as in the reference.
    """
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
    example: SquadExample, document: _Pieces, tokenizer: tokenization.FullTokenizer
) -> tuple[int, int] | None:
    """First and last piece of the answer in the document, or None where the question is impossible."""
    if example.is_impossible:
        return None
    start = document.first_piece[example.start_position]
    following = example.end_position + 1
    end = (document.first_piece[following] if following < len(document.first_piece) else len(document.tokens)) - 1
    return _improve_answer_span(document.tokens, start, end, tokenizer.tokenize(example.orig_answer_text))


def _improve_answer_span(doc_tokens: Sequence[str], start: int, end: int, answer: Sequence[str]) -> tuple[int, int]:
    """Narrows a span made of whole words to the pieces of the answer itself, where these stand in it.

    The answer "1895" is one of the six pieces of "(1895-1943)."; "Japan" is no piece of "Japanese", which then stays
    whole. The reference tries every pair of ends; for each start only one end gives the answer's length.
    """
    for new_start in range(start, end + 2 - len(answer)):
        if answer and doc_tokens[new_start : new_start + len(answer)] == answer:
            return new_start, new_start + len(answer) - 1
    return start, end


def _positions(answer: tuple[int, int] | None, window: range, doc_start: int) -> tuple[int, int]:
    """Where the answer stands in the model's input; (0, 0), which is [CLS], if it is not wholly in the window."""
    if answer is None or answer[0] < window.start or answer[1] >= window.stop:
        return 0, 0
    shift = doc_start - window.start
    return answer[0] + shift, answer[1] + shift


def _in_words(example: SquadExample, feature: InputFeatures) -> dict[str, str]:
    rows = {"question": example.question_text, "tokens": " ".join(feature.tokens)}
    if feature.start_position:
        rows["answer"] = " ".join(feature.tokens[feature.start_position : feature.end_position + 1])
    elif feature.start_position is not None:
        rows["answer"] = "none" if feature.is_impossible else "not in this window"
    return rows


def _log_feature(feature: InputFeatures, is_training: bool) -> None:
    lines = {
        "unique_id": feature.unique_id,
        "example_index": feature.example_index,
        "doc_span_index": feature.doc_span_index,
        "tokens": " ".join(feature.tokens),
        "token_to_orig_map": " ".join(f"{k}:{v}" for k, v in feature.token_to_orig_map.items()),
        "token_is_max_context": " ".join(f"{k}:{v}" for k, v in feature.token_is_max_context.items()),
    }
    for name in ("input_ids", "input_mask", "segment_ids"):
        lines[name] = " ".join(map(str, getattr(feature, name)))
    if is_training and not feature.is_impossible:
        lines["start_position"], lines["end_position"] = feature.start_position, feature.end_position
        lines["answer"] = " ".join(feature.tokens[feature.start_position : feature.end_position + 1])
    logging.debug("*** Example ***")
    for name, value in lines.items():
        logging.debug("%s: %s", name, value)
    if is_training and feature.is_impossible:
        logging.debug("impossible example")


def as_record(feature: InputFeatures, is_training: bool) -> dict[str, list[int]]:
    """A row for `records.SQUAD_TRAIN` or `records.SQUAD_PREDICT`."""
    row = {
        "unique_ids": [feature.unique_id],
        "input_ids": feature.input_ids,
        "input_mask": feature.input_mask,
        "segment_ids": feature.segment_ids,
    }
    if is_training:
        row["start_positions"] = [feature.start_position]
        row["end_positions"] = [feature.end_position]
        row["is_impossible"] = [int(feature.is_impossible)]
    return row


# --- Answers ---------------------------------------------------------------------------------------------------------


class RawResult(NamedTuple):
    """What the model says about one window: two logits for each position."""

    unique_id: int
    start_logits: Sequence[float]
    end_logits: Sequence[float]


class Answers(NamedTuple):
    """The answers to all questions; question ids are in the order of the examples.

    Attributes:
      predictions: question id -> text, "" for "no answer".
      nbest: question id -> the best answers, best first: text, probability, start_logit, end_logit.
      null_odds: question id -> by how much "no answer" scores higher than the best answer; None for version 1.
    """

    predictions: dict[str, str]
    nbest: dict[str, list[dict[str, Any]]]
    null_odds: dict[str, float] | None


# A span of the model's input: `feature` counts the windows of the question.
_SPAN = np.dtype(
    [("feature", np.int32), ("start", np.int32), ("end", np.int32), ("start_logit", "f8"), ("end_logit", "f8")]
)


class _Candidate(NamedTuple):
    text: str
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


def compute_predictions(
    examples: Sequence[SquadExample],
    features: Iterable[InputFeatures],
    results: Iterable[RawResult],
    n_best_size: int,
    max_answer_length: int,
    do_lower_case: bool,
    version_2_with_negative: bool = False,
    null_score_diff_threshold: float = 0.0,
    verbose_logging: bool = False,
) -> Answers:
    """Finds the answer to each question (the computing half of `write_predictions`).

    In each window the `n_best_size` best first and last positions are combined to spans of at most `max_answer_length`
    pieces within the paragraph. The best spans of all windows with different texts are the n-best list. Where there is
    none, version 1 answers "empty". In version 2 the span from [CLS] to [CLS] means "no answer" and is in the list
    too; the answer is "" if it beats the best other one by more than the threshold. Without any other one the reference
    fails, and here the answer is "" with null odds of `NO_SPAN_ODDS`.

    Args:
      results: one for each feature, in any order; logits [L], or any length that covers the feature's tokens.

    Raises:
      UserError: a logit is NaN or infinite (names the question).
      KeyError: a feature has no result.
    """
    windows: dict[int, list[InputFeatures]] = {}
    for feature in features:
        windows.setdefault(feature.example_index, []).append(feature)
    result_of = {result.unique_id: result for result in results}
    finder = _AnswerFinder(n_best_size, max_answer_length, do_lower_case, version_2_with_negative, verbose_logging)
    answers = Answers({}, {}, {} if version_2_with_negative else None)
    for index, example in enumerate(examples):
        mine = windows.get(index, [])
        logits = [_logits(result_of[feature.unique_id], example) for feature in mine]
        candidates, null_score = finder.candidates(example, mine, logits)
        answers.nbest[example.qas_id] = _with_probabilities(candidates)
        text = candidates[0].text
        if answers.null_odds is not None:
            odds = _null_odds(candidates, null_score)
            text = "" if odds is None or odds > null_score_diff_threshold else _best_text(candidates).text
            answers.null_odds[example.qas_id] = NO_SPAN_ODDS if odds is None else odds
        answers.predictions[example.qas_id] = text
    return answers


def _logits(result: RawResult, example: SquadExample) -> np.ndarray:
    """Start and end logits in double precision, in which the reference adds them: [2, L]."""
    logits = np.array([result.start_logits, result.end_logits], np.float64)
    if not np.isfinite(logits).all():
        raise UserError(
            f"question {example.qas_id}: the model's logits are not finite numbers; its training has diverged (try a"
            f" lower --learning_rate)"
        )
    return logits


def _best_text(candidates: Iterable[_Candidate]) -> _Candidate | None:
    """The best candidate that is an answer, if there is one."""
    return next((candidate for candidate in candidates if candidate.text), None)


def _null_odds(candidates: Iterable[_Candidate], null_score: float) -> float | None:
    best = _best_text(candidates)
    if best is None:
        return None
    # One subtraction after the other, as in the reference: the sum of both logits would round differently.
    return null_score - best.start_logit - best.end_logit


@dataclasses.dataclass(frozen=True)
class _AnswerFinder:
    """The rules by which spans are chosen; see `compute_predictions`."""

    n_best_size: int
    max_answer_length: int
    do_lower_case: bool
    version_2_with_negative: bool
    verbose_logging: bool

    def candidates(
        self, example: SquadExample, features: Sequence[InputFeatures], logits: Sequence[np.ndarray]
    ) -> tuple[list[_Candidate], float]:
        """The n-best list, and in version 2 the score of "no answer", lowest over the windows."""
        spans = [self._spans(*item) for item in zip(range(len(features)), features, logits, strict=True)]
        null = _null_span(logits)
        if self.version_2_with_negative:
            spans.append(null)
        ranked = np.concatenate(spans) if spans else null[:0]
        # Equal scores keep their order: windows, then starts, then ends from better to worse, "no answer" last.
        ranked = ranked[np.argsort(-(ranked["start_logit"] + ranked["end_logit"]), kind="stable")]
        found = self._distinct(example, features, ranked)
        null_candidate = _Candidate("", null["start_logit"].item(), null["end_logit"].item())
        if self.version_2_with_negative and all(candidate.text for candidate in found):
            found.append(null_candidate)
        return found or [_Candidate("empty", 0.0, 0.0)], null_candidate.score

    def _spans(self, index: int, feature: InputFeatures, logits: np.ndarray) -> np.ndarray:
        """The spans of one window that may be answers, as an array of _SPAN."""
        start_logits, end_logits = logits
        starts = self._best_in_paragraph(start_logits, feature)
        starts = starts[feature.max_context[starts - feature.doc_start]]
        ends = self._best_in_paragraph(end_logits, feature)
        lengths = ends[np.newaxis, :] - starts[:, np.newaxis] + 1
        rows, columns = np.nonzero((lengths >= 1) & (lengths <= self.max_answer_length))
        spans = np.empty(len(rows), _SPAN)
        spans["feature"], spans["start"], spans["end"] = index, starts[rows], ends[columns]
        spans["start_logit"], spans["end_logit"] = start_logits[spans["start"]], end_logits[spans["end"]]
        return spans

    def _best_in_paragraph(self, logits: np.ndarray, feature: InputFeatures) -> np.ndarray:
        """Those of the best positions of the whole input that are in the paragraph, best first."""
        best = np.argsort(-logits, kind="stable")[: self.n_best_size]
        return best[(best >= feature.doc_start) & (best < feature.doc_start + len(feature.word_indexes))]

    def _distinct(
        self, example: SquadExample, features: Sequence[InputFeatures], ranked: np.ndarray
    ) -> list[_Candidate]:
        """The best spans, each text once."""
        found: list[_Candidate] = []
        seen: set[str] = set()
        for index, start, end, start_logit, end_logit in ranked.tolist():
            if len(found) >= self.n_best_size:
                break
            is_null = start == 0
            text = "" if is_null else self._text(example, features[index], start, end)
            if is_null or text not in seen:
                seen.add(text)
                found.append(_Candidate(text, start_logit, end_logit))
        return found

    def _text(self, example: SquadExample, feature: InputFeatures, start: int, end: int) -> str:
        """The text of the paragraph for a span of its pieces."""
        pieces = " ".join(feature.tokens[start : end + 1]).replace(" ##", "").replace("##", "")
        first, last = (feature.word_indexes[position - feature.doc_start] for position in (start, end))
        return get_final_text(
            " ".join(pieces.split()),
            " ".join(example.doc_tokens[first : last + 1]),
            self.do_lower_case,
            self.verbose_logging,
        )


def _null_span(logits: Sequence[np.ndarray]) -> np.ndarray:
    """The span [CLS] to [CLS] of the window in which it scores lowest, the first of equals: an array of one _SPAN."""
    at_cls = [(start_logits[0], end_logits[0]) for start_logits, end_logits in logits] or [(0.0, 0.0)]
    return np.array([(0, 0, 0, *min(at_cls, key=sum))], _SPAN)


def _with_probabilities(candidates: Sequence[_Candidate]) -> list[dict[str, Any]]:
    """The n-best list as it is written: softmax over the scores of the candidates that are in it."""
    best = max(candidate.score for candidate in candidates)
    weights = [math.exp(candidate.score - best) for candidate in candidates]
    # Added up one by one: sum() of Python 3.12 rounds better than that, and the last digit would differ.
    total = functools.reduce(float.__add__, weights)
    return [
        {"text": c.text, "probability": weight / total, "start_logit": c.start_logit, "end_logit": c.end_logit}
        for c, weight in zip(candidates, weights, strict=True)
    ]


@functools.cache
def _basic_tokenizer(do_lower_case: bool) -> tokenization.BasicTokenizer:
    return tokenization.BasicTokenizer(do_lower_case=do_lower_case)  # kept, since it remembers words


def get_final_text(pred_text: str, orig_text: str, do_lower_case: bool, verbose_logging: bool = False) -> str:
    """The part of `orig_text` that `pred_text` stands for (the reference's function of this name).

    `pred_text` is a span in words of the tokenizer ("jose ' s"), `orig_text` the whole words of the paragraph that it
    touches ("(José's"). Tokenizing `orig_text` changes letters and adds blanks. If that has neither added nor removed
    another character, the n-th character that is no blank is the same one in both, and the answer is cut out of
    `orig_text` with its own spelling ("José's"). Otherwise it is all of `orig_text`.
    """
    tok_text = " ".join(_basic_tokenizer(do_lower_case).tokenize(orig_text))
    start = tok_text.find(pred_text)
    end = start + len(pred_text)
    if start < 0:
        problem = "Unable to find text"
    elif len(tok_text) - tok_text.count(" ") != len(orig_text) - orig_text.count(" "):
        problem = "Length not equal after stripping spaces"
    elif not pred_text or " " in (pred_text[0], pred_text[-1]):
        problem = "Couldn't map the ends"
    else:
        places = [place for place, char in enumerate(orig_text) if char != " "]
        first = start - tok_text.count(" ", 0, start)
        last = end - 1 - tok_text.count(" ", 0, end)
        return orig_text[places[first] : places[last] + 1]
    if verbose_logging:
        logging.info("%s: '%s' in '%s'", problem, pred_text, orig_text)
    return orig_text


def write_answers(output_dir: str, answers: Answers) -> None:
    """Writes predictions.json, nbest_predictions.json and, for version 2, null_odds.json: all complete, or none."""
    names = ("predictions.json", "nbest_predictions.json", "null_odds.json")
    _write_answers([os.path.join(output_dir, name) for name in names], answers)


def _write_answers(paths: Sequence[str], answers: Answers) -> None:
    contents = {path: content for path, content in zip(paths, answers, strict=True) if content is not None}
    with files.complete_or_absent(*contents) as beside:
        for name, content in zip(beside, contents.values(), strict=True):
            with files.open_binary(name, "wb") as stream:
                stream.write((json.dumps(content, indent=4) + "\n").encode())


def write_predictions(
    all_examples: Sequence[SquadExample],
    all_features: Iterable[InputFeatures],
    all_results: Iterable[RawResult],
    n_best_size: int,
    max_answer_length: int,
    do_lower_case: bool,
    output_prediction_file: str,
    output_nbest_file: str,
    output_null_log_odds_file: str,
    version_2_with_negative: bool = False,
    null_score_diff_threshold: float = 0.0,
    verbose_logging: bool = False,
) -> None:
    """`compute_predictions`, written to these files: the reference's function. Its last three settings are flags there.

    Raises:
      UserError: a logit is NaN or infinite, or a file cannot be written.
    """
    answers = compute_predictions(
        all_examples,
        all_features,
        all_results,
        n_best_size,
        max_answer_length,
        do_lower_case,
        version_2_with_negative,
        null_score_diff_threshold,
        verbose_logging,
    )
    _write_answers([output_prediction_file, output_nbest_file, output_null_log_odds_file], answers)

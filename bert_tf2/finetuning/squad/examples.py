"""SQuAD files: questions as words and ranges of words, like the reference's run_squad.py, and the scores of answers.

The scores equal the scores of the official evaluate-v1.1.py and evaluate-v2.0.py to the last digit.
"""

from __future__ import annotations

import bisect
import dataclasses
import random
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from absl import logging

from bert_tf2 import tokenization
from bert_tf2.support import files
from bert_tf2.support.errors import UserError

_SHUFFLE_SEED = 12345

# A word ends at one of five blanks. Other blanks, such as a no-break space, stay inside it for the tokenizer.
WORD = re.compile("[^ \t\r\n\u202f]+")

_ARTICLE = re.compile(r"\b(?:an?|the)\b")
_NO_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation))


@dataclasses.dataclass
class SquadExample:
    """One question about one paragraph."""

    qas_id: str  # the id of the question in the file
    question_text: str  # the question
    doc_tokens: list[str]  # the words of the paragraph; the questions of a paragraph share the list
    orig_answer_text: str | None = None  # for training, the annotated answer, or ""
    # start_position, end_position: for training, the first and the last word of the answer, or -1
    start_position: int | None = None
    end_position: int | None = None
    is_impossible: bool = False  # for training on version 2, whether the paragraph does not contain an answer
    context: str = ""  # the paragraph, from which answers may be cut; "" if it is the words with single blanks

    def __repr__(self) -> str:
        """The reference's text, which has no answer that begins with the first word."""
        shown = {"qas_id": self.qas_id, "question_text": self.question_text}
        shown["doc_tokens"] = f"[{' '.join(self.doc_tokens)}]"
        if self.start_position:
            shown |= {name: getattr(self, name) for name in ("start_position", "end_position", "is_impossible")}
        return ", ".join(f"{name}: {value}" for name, value in shown.items())


_JSON_NAMES = {list: "a list", str: "text", int: "a whole number", (str, int): "text", (bool, int): "true or false"}


def field(node: Any, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """`node[key]`, where `node` is a part of a parsed SQuAD file; `where` is its place in the file, for messages."""
    if not isinstance(node, dict) or key not in node:
        raise UserError(f"{where}: not in SQuAD's layout: no object is here, or its key {key!r} is missing")
    if not isinstance(node[key], kind):
        raise UserError(f"{where}: not in SQuAD's layout: {key!r} must be {_JSON_NAMES[kind]}")
    return node[key]


def paragraphs(dataset: Any, name: str) -> Iterator[tuple[dict, str]]:
    """Yields each paragraph of a parsed SQuAD file and its place in the file `name`, for messages."""
    for i, article in enumerate(field(dataset, "data", list, name)):
        for j, paragraph in enumerate(field(article, "paragraphs", list, f"{name}, data[{i}]")):
            yield paragraph, f"{name}, data[{i}].paragraphs[{j}]"


def questions(paragraph: dict, where: str) -> Iterator[tuple[str, dict, str]]:
    """Yields the id, the JSON object and the place of each question of a paragraph."""
    for k, question in enumerate(field(paragraph, "qas", list, where)):
        # In some data sets the ids are numbers; in the files that the reference writes they are strings.
        qas_id = str(field(question, "id", (str, int), f"{where}.qas[{k}]"))
        yield qas_id, question, f"{where}, question {qas_id}"


def split_words(context: str) -> list[str]:
    """The words of a paragraph, as `SquadExample.doc_tokens` has them."""
    return WORD.findall(context)


def read_squad_examples(
    input_file: str, is_training: bool, version_2_with_negative: bool = False
) -> list[SquadExample]:
    """Reads the questions of a SQuAD file; the reference's function of the same name.

    Answers are read only for training. A question is skipped if its answer is not found in the words at its position,
    mostly because of unusual blanks; one warning counts the skipped questions. A question whose answer has no word is
    skipped as well, whereas the reference trains on the words at its position.
    """
    return examples_of(files.read_json(input_file, kind=None), input_file, is_training, version_2_with_negative)


def examples_of(
    dataset: Any, input_file: str, is_training: bool, version_2_with_negative: bool = False
) -> list[SquadExample]:
    """The questions of a parsed SQuAD file; see `read_squad_examples`."""
    examples: list[SquadExample] = []
    unaligned: list[str] = []
    impossible: list[str] = []
    places: dict[str, str] = {}
    for paragraph, where in paragraphs(dataset, input_file):
        context = field(paragraph, "context", str, where)
        found = list(WORD.finditer(context))
        words, starts = [match.group() for match in found], [match.start() for match in found]
        for qas_id, question, place in questions(paragraph, where):
            if places.setdefault(qas_id, place) is not place and not is_training:
                raise UserError(
                    f"{place}: the id {qas_id} was there before, at {places[qas_id].removeprefix(f'{input_file}, ')};"
                    " predictions are kept by id, so give each question one of its own"
                )
            example = SquadExample(qas_id, field(question, "question", str, place), words, context=context)
            if is_training and not _add_answer(example, question, context, starts, version_2_with_negative, place):
                unaligned.append(qas_id)
            else:
                examples.append(example)
                if question.get("is_impossible") and not version_2_with_negative:
                    impossible.append(qas_id)
    if unaligned:
        what = (
            f"{input_file}: {len(unaligned)} of {len(unaligned) + len(examples)} answers are not in the words of"
            f" their context, the first is the answer to question {unaligned[0]}"
        )
        if not examples:
            raise UserError(f"{what}; nothing is left to train on (is answer_start right?)")
        logging.warning("%s; these questions are left out of training", what)
    if not examples:
        raise UserError(f"{input_file}: there is no question in this file")
    if blank := [example.qas_id for example in examples if not example.question_text.strip()]:
        logging.warning(
            "%s: %d of %d questions have no text, and their answers are guesses; write or remove them. The first is %s",
            input_file, len(blank), len(examples), blank[0],
        )  # fmt: skip
    if impossible:
        logging.warning(
            "%s: %d of %d questions are marked as impossible, and are taken like the others; is"
            " --version_2_with_negative missing? The first is %s",
            input_file, len(impossible), len(examples), impossible[0],
        )  # fmt: skip
    return examples


def _add_answer(
    example: SquadExample, question: dict, context: str, starts: list[int], version_2: bool, where: str
) -> bool:
    """Sets the answer of an example; returns whether it is found in the words of the context, which are at `starts`."""
    if version_2 and "is_impossible" not in question:
        raise UserError(
            f"{where}: its key 'is_impossible' is missing, as in SQuAD 1.1; leave out --version_2_with_negative"
        )
    if version_2 and field(question, "is_impossible", (bool, int), where):
        example.orig_answer_text, example.start_position, example.end_position = "", -1, -1
        example.is_impossible = True
        return True
    answers = field(question, "answers", list, where)
    if len(answers) != 1:
        hint = " (is --version_2_with_negative=true missing?)" if not answers and not version_2 else ""
        hint = " (is it a dev set, where several people answered? Keep one answer)" if answers else hint
        raise UserError(f"{where}: training needs exactly 1 answer to each question, here are {len(answers)}{hint}")
    text = field(answers[0], "text", str, where)
    start = field(answers[0], "answer_start", int, where)
    if not -len(context) <= start <= len(context) - len(text):
        raise UserError(
            f"{where}: the answer is outside of its context: characters {start} to {start + len(text)} of"
            f" {len(context)}; correct its answer_start"
        )
    example.orig_answer_text = text
    # A negative place counts from the end, as in the reference: some files have -1 for an unknown place.
    first, last = (place % max(1, len(context)) for place in (start, start + len(text) - 1))
    # The words that contain the ends of the answer or precede them; -1 for an end in blanks before the first word.
    example.start_position = bisect.bisect_right(starts, first) - 1
    example.end_position = bisect.bisect_right(starts, last) - 1
    words = " ".join(example.doc_tokens[example.start_position : example.end_position + 1])
    wanted = " ".join(tokenization.whitespace_tokenize(text))
    return bool(wanted) and wanted in words


def shuffled_for_training(examples: Iterable[SquadExample]) -> list[SquadExample]:
    """The examples in the order in which the reference writes them to train.tf_record."""
    shuffled = list(examples)
    random.Random(_SHUFFLE_SEED).shuffle(shuffled)
    return shuffled


def evaluate_predictions(
    dataset: str | Mapping[str, Any],
    predictions: str | Mapping[str, str],
    null_odds: str | Mapping[str, float] | None = None,
    threshold: float = 1.0,
    version_2_with_negative: bool = False,
) -> dict[str, float]:
    """Scores predictions in percent. Each of the first three arguments is a file name or the parsed content.

    Args:
      dataset: SQuAD questions with answers.
      predictions: question id -> answer, as in predictions.json.
      null_odds: question id -> a number, higher if an answer is less likely, as in null_odds.json; for version 2.
      threshold: with `null_odds`, a question with higher odds counts as "no answer" (--na-prob-thresh there).
      version_2_with_negative: whether to score as for version 2.

    Returns:
      Version 1: exact_match, f1; a question without prediction counts as wrong.
      Version 2: exact, f1, total; the same three over the questions with answers (HasAns_) and without (NoAns_); with
      `null_odds` best_exact, best_f1: the best scores of any threshold, and best_exact_thresh, best_f1_thresh.
    """
    name = dataset if isinstance(dataset, str) else "the data set"
    dataset = files.read_json(dataset, kind=None) if isinstance(dataset, str) else dataset
    predictions, null_odds = (files.read_json(p) if isinstance(p, str) else p for p in (predictions, null_odds))
    gold = list(_annotated_answers(dataset, name, version_2_with_negative))
    if not gold:
        raise UserError(f"{name}: there is no question in it")
    if not version_2_with_negative:
        return _evaluate_v1(gold, predictions, name)
    return _evaluate_v2(dict(gold), predictions, null_odds, threshold, name)


def check_answers(input_file: str, version_2_with_negative: bool) -> None:
    """Checks that a file can be scored, so that missing answers are reported before anything is computed."""
    for _ in _annotated_answers(files.read_json(input_file, kind=None), input_file, version_2_with_negative):
        pass


def _annotated_answers(dataset: Any, name: str, may_be_missing: bool) -> Iterator[tuple[str, list[str]]]:
    for paragraph, where in paragraphs(dataset, name):
        for qas_id, question, place in questions(paragraph, where):
            answers = field(question, "answers", list, place)
            if not answers and not may_be_missing:
                raise UserError(
                    f"{place} has no answer to score against; use --do_predict (or is --version_2_with_negative"
                    " missing?)"
                )
            yield qas_id, [field(answer, "text", str, place) for answer in answers]


def normalize_answer(text: str) -> str:
    """The text in lower case, without ASCII punctuation (which may join words) and articles, with single blanks."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_score(prediction: str, answer: str) -> int:
    """1 if both are the same after normalization, else 0."""
    return int(normalize_answer(prediction) == normalize_answer(answer))


def f1_score(prediction: str, answer: str) -> float:
    """Overlap of the normalized words, each as often as it occurs; 0.0 if they share none."""
    predicted, annotated = normalize_answer(prediction).split(), normalize_answer(answer).split()
    same = (Counter(predicted) & Counter(annotated)).total()
    if not same:
        return 0.0
    precision, recall = same / len(predicted), same / len(annotated)
    return 2 * precision * recall / (precision + recall)


def _percent(scores: Iterable[float]) -> float:
    scores = list(scores)
    total = 0.0
    for score in scores:  # not sum(): it is more exact from Python 3.12 on, so the last digit would differ
        total += score
    return 100.0 * total / len(scores)


def _evaluate_v1(gold: Iterable[tuple[str, list[str]]], predictions: Mapping[str, str], name: str) -> dict[str, float]:
    scores: list[tuple[float, float]] = []
    missing = 0
    for qas_id, answers in gold:
        predicted = predictions.get(qas_id)
        missing += predicted is None
        scores.append(_best(predicted, answers) if predicted is not None else (0, 0))
    if missing:
        logging.warning("%s: %d of %d questions have no prediction and score 0", name, missing, len(scores))
    exact, f1 = (_percent(column) for column in zip(*scores, strict=True))
    return {"exact_match": exact, "f1": f1}


def _best(prediction: str, answers: Iterable[str]) -> tuple[float, float]:
    """The highest exact match and the highest F1 over the annotated answers."""
    return tuple(max(score(prediction, answer) for answer in answers) for score in (exact_score, f1_score))


def _evaluate_v2(
    gold: Mapping[str, list[str]],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None,
    threshold: float,
    name: str,
) -> dict[str, float]:
    for what, given in (("prediction", predictions), ("null odds", null_odds)):
        missing = [] if given is None else [qas_id for qas_id in gold if qas_id not in given]
        if missing:
            raise UserError(
                f"{name}: {len(missing)} of {len(gold)} questions have no {what}, the first is {missing[0]}"
            )
    raw = {qas_id: _score_v2(predictions[qas_id], answers) for qas_id, answers in gold.items()}
    silent = {qas_id for qas_id in gold if null_odds is not None and null_odds[qas_id] > threshold}
    scores = {qas_id: (not gold[qas_id],) * 2 if qas_id in silent else score for qas_id, score in raw.items()}
    answerable = {qas_id for qas_id, answers in gold.items() if answers}
    result = _summary("", scores.values())
    result |= _summary("HasAns_", [score for qas_id, score in scores.items() if qas_id in answerable])
    result |= _summary("NoAns_", [score for qas_id, score in scores.items() if qas_id not in answerable])
    for index, measure in enumerate(("exact", "f1") if null_odds is not None else ()):
        column = {qas_id: score[index] for qas_id, score in raw.items()}
        best, where = _best_threshold(column, predictions, null_odds, answerable)
        result |= {f"best_{measure}": best, f"best_{measure}_thresh": where}
    return result


def _score_v2(prediction: str, answers: Iterable[str]) -> tuple[float, float]:
    """Exact match and F1 of one question; an empty answer is right only if there is no annotated answer."""
    annotated = [answer for answer in answers if normalize_answer(answer)]
    return _best(prediction, annotated) if annotated else (exact_score(prediction, ""),) * 2


def _summary(prefix: str, scores: Iterable[tuple[float, float]]) -> dict[str, float]:
    scores = list(scores)
    if not scores:
        return {}
    exact, f1 = (_percent(column) for column in zip(*scores, strict=True))
    return {f"{prefix}exact": exact, f"{prefix}f1": f1, f"{prefix}total": len(scores)}


def _best_threshold(
    scores: Mapping[str, float], predictions: Mapping[str, str], null_odds: Mapping[str, float], answerable: set[str]
) -> tuple[float, float]:
    """The best score in percent that a threshold on the null odds can reach, and that threshold.

    As in the official script, every question counts as "no answer" at first; then questions get their predicted
    answer, the most certain question first.
    """
    score = best = len(scores) - len(answerable)
    threshold = 0.0
    for qas_id in sorted(null_odds, key=null_odds.__getitem__):
        if qas_id not in scores:
            continue
        if qas_id in answerable:
            score += scores[qas_id]
        elif predictions[qas_id]:
            score -= 1
        if score > best:
            best, threshold = score, null_odds[qas_id]
    return 100.0 * best / len(scores), threshold

"""Exact match and F1 of SQuAD answers, equal to the last digit to the official evaluate-v1.1.py and evaluate-v2.0.py.

A predicted and an annotated answer are compared after normalization: lower case, no ASCII punctuation, no articles.
Exact match is 1 if they are then equal; F1 is the harmonic mean of precision and recall of their common words. With
several annotated answers the best score counts.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from absl import logging

from bert_tf2.finetuning.squad import examples
from bert_tf2.support import files
from bert_tf2.support.errors import UserError

_ARTICLE = re.compile(r"\b(?:an?|the)\b")
_NO_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation))


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
    predictions = _by_question(predictions, "the predictions", str)
    gold = list(_annotated_answers(dataset, name))
    if not gold:
        raise UserError(f"{name}: there is no question in it")
    if not version_2_with_negative:
        return _evaluate_v1(gold, predictions, name)
    null_odds = None if null_odds is None else _by_question(null_odds, "the null odds", (int, float))
    return _evaluate_v2(dict(gold), predictions, null_odds, threshold, name)


def check_answers(input_file: str, version_2_with_negative: bool) -> None:
    """Checks that a file can be scored, so that missing answers are reported before anything is computed."""
    for qas_id, answers in _annotated_answers(files.read_json(input_file, kind=None), input_file):
        if not answers and not version_2_with_negative:
            raise UserError(
                f"{input_file}: question {qas_id} has no answer to score against; use --do_predict (or is"
                " --version_2_with_negative missing?)"
            )


def _by_question(given: str | Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Mapping[str, Any]:
    if isinstance(given, str):
        name, given = given, files.read_json(given, kind=None)
    if not isinstance(given, Mapping) or not all(isinstance(value, kind) for value in given.values()):
        what = "answers" if kind is str else "numbers"
        raise UserError(f"{name}: must map question ids to {what}, as run_squad.py writes it")
    return given


def _annotated_answers(dataset: Any, name: str) -> Iterator[tuple[str, list[str]]]:
    for paragraph, where in examples.paragraphs(dataset, name):
        for qas_id, question, place in examples.questions(paragraph, where):
            answers = examples.field(question, "answers", list, place)
            yield qas_id, [examples.field(answer, "text", str, place) for answer in answers]


def normalize_answer(text: str) -> str:
    """Lower case; ASCII punctuation removed, which may join words; then articles; single blanks."""
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
        if not answers:
            raise UserError(f"{name}, question {qas_id}: has no annotated answer to score with (a version 2 data set?)")
        predicted = predictions.get(qas_id)
        missing += predicted is None
        scores.append(_best(predicted, answers) if predicted is not None else (0, 0))
    if missing:
        logging.warning("%s: %d of %d questions have no prediction and score 0", name, missing, len(scores))
    exact, f1 = (_percent(column) for column in zip(*scores, strict=True))
    return {"exact_match": exact, "f1": f1}


def _best(prediction: str, answers: Iterable[str]) -> tuple[float, float]:
    """Exact match and F1 with those annotated answers for which each is highest."""
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
    """Exact match and F1 of one question, where an empty answer is right if and only if there is no annotated one."""
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
    """The best score in percent that a threshold on the null odds can reach, and that threshold, as officially.

    At first every question counts as "no answer"; then they get their predicted answer, the most certain first.
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

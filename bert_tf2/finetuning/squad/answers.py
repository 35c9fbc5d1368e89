"""SQuAD answers: turns the logits of all windows of a question into a text of the paragraph; writes the answer files.

The model gives each position a score for being the first piece of the answer and a score for being the last. Answers,
their order, their probabilities and the files are the same as in google-research/bert's run_squad.py.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from bert_tf2 import tokenization
from bert_tf2.finetuning.squad.examples import SquadExample
from bert_tf2.finetuning.squad.features import InputFeatures
from bert_tf2.support import files
from bert_tf2.support.errors import UserError

# The value in null_odds.json for a question without any possible span: "no answer" at every threshold. It is finite
# because JSON has no infinity.
NO_SPAN_ODDS = 1e6


class RawResult(NamedTuple):
    """The output of the model for one window: two logits for each position."""

    unique_id: int
    start_logits: Sequence[float]
    end_logits: Sequence[float]


class Answers(NamedTuple):
    """The answers to all questions, by the id of the question, in the order of the examples."""

    predictions: dict[str, str]  # id -> text, "" for "no answer"
    nbest: dict[str, list[dict[str, Any]]]  # id -> the best answers, sorted: text, probability, start_logit, end_logit
    null_odds: dict[str, float] | None  # id -> score of "no answer" minus score of the best answer; None for version 1
    # the questions whose answer is longer than the span that the model chose; see `get_final_text`
    longer: Sequence[str] = ()
    empty: Sequence[str] = ()  # the questions that have no span, so that the answer is "empty"


# A span of the input of the model; `feature` is the index of the window of the question.
_SPAN = np.dtype(
    [("feature", np.int32), ("start", np.int32), ("end", np.int32), ("start_logit", "f8"), ("end_logit", "f8")]
)


class _Candidate(NamedTuple):
    """A possible answer; `place` is its window with the positions of its first and last piece, None for "no answer"."""

    text: str
    start_logit: float
    end_logit: float
    place: tuple[InputFeatures, int, int] | None = None

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
    answer_offsets: bool = False,
) -> Answers:
    """Finds the answer to each question; `write_predictions` also writes the files.

    In each window, the `n_best_size` best first and last positions are combined to spans of at most `max_answer_length`
    pieces within the paragraph. The best spans of all windows with distinct texts are the n-best list; if there is no
    span, the answer of version 1 is "empty". In version 2 the list also has the span from [CLS] to [CLS], "no answer",
    which is the answer if its score exceeds the score of the best other span by more than the threshold. If there is no
    other span, the null odds are `NO_SPAN_ODDS` (the reference fails).

    Args:
      results: a RawResult for each feature, in any order; logits [L], or as many as the feature has tokens.
      answer_offsets: whether an answer is the part of the paragraph from its first to its last piece. The answer is
        then "" in place of "empty".
    """
    windows: dict[int, list[InputFeatures]] = {}
    for feature in features:
        windows.setdefault(feature.example_index, []).append(feature)
    result_of = {result.unique_id: result for result in results}
    text_of = _cut if answer_offsets else functools.partial(_compared, (do_lower_case, verbose_logging))
    answers = Answers({}, {}, {} if version_2_with_negative else None, [], [])
    for index, example in enumerate(examples):
        mine = windows.get(index, [])
        logits = _logits(example, mine, result_of)
        spans = [_spans(*window, n_best_size, max_answer_length) for window in zip(itertools.count(), mine, logits)]
        # [CLS] to [CLS] in the window where the score is lowest, the first such window
        null = min(((values[0, 0], values[1, 0]) for values in logits), key=sum, default=(0.0, 0.0))
        no_answer = _Candidate("", *map(float, null))
        if version_2_with_negative:
            spans.append(np.array([(0, 0, 0, *null)], _SPAN))
        candidates = _distinct(example, mine, spans, n_best_size, text_of)
        if version_2_with_negative and all(candidate.text for candidate in candidates):
            candidates.append(no_answer)
        if not candidates:
            candidates = [_Candidate("" if answer_offsets else "empty", 0.0, 0.0)]
            answers.empty.append(example.qas_id)
        answers.nbest[example.qas_id] = _with_probabilities(candidates)
        text, best = candidates[0].text, candidates[0]
        if answers.null_odds is not None:
            best = next((candidate for candidate in candidates if candidate.text), None)
            # Two subtractions as in the reference, because subtracting the sum of the logits is rounded differently.
            odds = no_answer.score - best.start_logit - best.end_logit if best else NO_SPAN_ODDS
            text = best.text if best and odds <= null_score_diff_threshold else ""
            answers.null_odds[example.qas_id] = odds
        answers.predictions[example.qas_id] = text
        if text and not answer_offsets and best.place and best.place[0].document:
            words = _basic_tokenizer(do_lower_case).tokenize
            if words(text) != words(_cut(example, *best.place)):
                answers.longer.append(example.qas_id)
    return answers


def _logits(
    example: SquadExample, features: Sequence[InputFeatures], result_of: Mapping[int, RawResult]
) -> list[np.ndarray]:
    """The logits [2, L] of each window, in float64, the precision in which the reference adds logits."""
    if missing := [feature.unique_id for feature in features if feature.unique_id not in result_of]:
        raise UserError(f"question {example.qas_id}: no result has the unique_id {missing[0]} of its window")
    found = [np.array(result_of[feature.unique_id][1:], np.float64) for feature in features]
    if not all(np.isfinite(values).all() for values in found):
        raise UserError(
            f"question {example.qas_id}: the model's logits are not finite numbers; its training has diverged (try"
            " a lower --learning_rate)"
        )
    return found


def _spans(
    index: int, feature: InputFeatures, logits: np.ndarray, n_best_size: int, max_answer_length: int
) -> np.ndarray:
    """The possible answers in window number `index` of a question as an array of _SPAN; logits: [2, L]."""
    # The best positions of the whole input, sorted, without the positions outside of the paragraph.
    best = (np.array(_get_best_indexes(row, n_best_size), np.int64) for row in logits)
    last = feature.doc_start + len(feature.word_indexes) - 1
    starts, ends = (row[(row >= feature.doc_start) & (row <= last)] for row in best)
    starts = starts[feature.max_context[starts - feature.doc_start]]
    lengths = ends[np.newaxis, :] - starts[:, np.newaxis] + 1
    rows, columns = np.nonzero((lengths >= 1) & (lengths <= max_answer_length))
    spans = np.empty(len(rows), _SPAN)
    spans["feature"], spans["start"], spans["end"] = index, starts[rows], ends[columns]
    spans["start_logit"], spans["end_logit"] = logits[0, spans["start"]], logits[1, spans["end"]]
    return spans


def _distinct(
    example: SquadExample,
    features: Sequence[InputFeatures],
    spans: Sequence[np.ndarray],
    most: int,
    text_of: Callable[[SquadExample, InputFeatures, int, int], str],
) -> list[_Candidate]:
    """The best spans with distinct texts, sorted; at most `most`."""
    ranked = np.concatenate([np.empty(0, _SPAN), *spans])
    # Equal scores keep their order: windows, then starts, then ends from better to worse, "no answer" last.
    ranked = ranked[np.argsort(-(ranked["start_logit"] + ranked["end_logit"]), kind="stable")]
    found: list[_Candidate] = []
    seen: set[str] = set()
    for index, start, end, *logits in ranked.tolist():
        if len(found) >= most:
            break
        place = (features[index], start, end) if start > 0 else None  # else "no answer"
        text = text_of(example, *place) if place else ""
        if place is None or text not in seen:
            seen.add(text)
            found.append(_Candidate(text, *logits, place))
    return found


def _cut(example: SquadExample, feature: InputFeatures, start: int, end: int) -> str:
    return feature.text(start, end)


def _compared(settings: tuple[bool, bool], example: SquadExample, feature: InputFeatures, start: int, end: int) -> str:
    """The text of a span as the reference finds it; `settings` are the last arguments of `get_final_text`."""
    pieces = " ".join(feature.tokens[start : end + 1]).replace(" ##", "").replace("##", "")
    first, last = (feature.word_indexes[position - feature.doc_start] for position in (start, end))
    return get_final_text(" ".join(pieces.split()), " ".join(example.doc_tokens[first : last + 1]), *settings)


def _get_best_indexes(logits: Sequence[float], n_best_size: int) -> list[int]:
    """The positions of the highest logits, sorted; of equal logits the first. The reference's function."""
    return np.argsort(-np.asarray(logits), kind="stable")[:n_best_size].tolist()


def _compute_softmax(scores: Sequence[float]) -> list[float]:
    """The probabilities of scores; the reference's function of the same name."""
    best = max(scores, default=0.0)
    weights = [math.exp(score - best) for score in scores]
    # Not sum(), which is more exact from Python 3.12 on, so that the last digit would differ.
    total = functools.reduce(float.__add__, weights, 0.0)
    return [weight / total for weight in weights]


def _with_probabilities(candidates: Sequence[_Candidate]) -> list[dict[str, Any]]:
    """The n-best list for the file."""
    probabilities = _compute_softmax([candidate.score for candidate in candidates])
    return [
        {"text": c.text, "probability": probability, "start_logit": c.start_logit, "end_logit": c.end_logit}
        for c, probability in zip(candidates, probabilities, strict=True)
    ]


@functools.cache
def _basic_tokenizer(do_lower_case: bool) -> tokenization.BasicTokenizer:
    return tokenization.BasicTokenizer(do_lower_case=do_lower_case)  # kept because it caches words


def get_final_text(pred_text: str, orig_text: str, do_lower_case: bool, verbose_logging: bool = False) -> str:
    """The part of `orig_text` that corresponds to `pred_text`; the reference's function of the same name.

    `pred_text` is a span in the tokens of the basic tokenizer ("jose ' s"), and `orig_text` has the words that it
    touches ("(José's"). If tokenization has only changed letters and added blanks, the n-th non-blank character is the
    same in both, and the result is a part of `orig_text` ("José's"). Otherwise it is all of `orig_text`.
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


def write_answers(
    output_dir: str,
    answers: Answers,
    names: Sequence[str] = ("predictions.json", "nbest_predictions.json", "null_odds.json"),
) -> None:
    """Writes predictions.json, nbest_predictions.json and, for version 2, null_odds.json: all files or no file."""
    contents = {os.path.join(output_dir, name): content for name, content in zip(names, answers[:3], strict=True)}
    contents = {path: content for path, content in contents.items() if content is not None}
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
    **flags: Any,
) -> None:
    """Writes the result of `compute_predictions` to files; `flags` are the last arguments of `compute_predictions`."""
    given = (all_examples, all_features, all_results, n_best_size, max_answer_length, do_lower_case)
    answers = compute_predictions(*given, **flags)
    write_answers("", answers, (output_prediction_file, output_nbest_file, output_null_log_odds_file))

"""Exact match and F1 by hand; test_answers.py compares them with the official scripts."""

import itertools

import pytest
from squad_data import dataset_of, written

from bert_tf2.finetuning.squad import examples as squad_scores
from bert_tf2.support.errors import UserError


@pytest.mark.parametrize(
    ("prediction", "answer", "exact", "f1"),
    [
        ("The Fox!", "fox", 1, 1.0),
        ("a.n", "an", 1, 0.0),  # both are articles once the full stop is gone; without words F1 is 0
        ("theatre", "atre", 0, 0.0),
        ("in  the year\t1895", "1895", 0, 0.5),
        ("fox fox dog", "fox dog dog", 0, 2 / 3),
        ("don't", "dont", 1, 1.0),
    ],
)
def test_measures_by_hand(prediction, answer, exact, f1):
    assert squad_scores.exact_score(prediction, answer) == exact
    assert squad_scores.f1_score(prediction, answer) == pytest.approx(f1)


def test_version_1_takes_the_best_annotated_answer_and_counts_missing_ones(caplog):
    dataset = dataset_of(("a", [("red fox", 0), ("fox", 0)], {}), ("b", [("dog", 0)], {}))
    scores = squad_scores.evaluate_predictions(dataset, {"a": "Fox", "other": "x"})
    assert scores == {"exact_match": 50.0, "f1": 50.0}
    assert "1 of 2 questions have no prediction" in caplog.text


V2 = dataset_of(
    ("has", [("red fox", 0)], {}), ("none", [], {}), ("wrong", [("dog", 0)], {}), ("punctuation", [("the", 0)], {})
)
V2_PREDICTIONS = {"has": "fox", "none": "dog", "wrong": "", "punctuation": ""}


def test_null_odds_move_answers_and_give_the_best_threshold():
    odds = {"none": 3.0, "has": -1.0, "wrong": -0.5, "punctuation": -2.0}
    scores = squad_scores.evaluate_predictions(V2, V2_PREDICTIONS, odds, threshold=1.0, version_2_with_negative=True)
    assert scores["NoAns_exact"] == 100.0  # 3.0 is over the threshold
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (50.0, -2.0)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (pytest.approx(100 * (2 + 2 / 3) / 4), -1.0)


def test_what_cannot_be_scored_is_said_in_one_line(tmp_path):
    answered = dataset_of(("Q1", [("fox", 4)], {}))
    bad = written(tmp_path, "[]", "predictions.json")
    cases = [
        ((dataset_of(("Q1", [], {})), {"Q1": "x"}), {}, "question Q1 has no answer to score against"),
        ((answered, {}), {"version_2_with_negative": True}, "1 of 1 questions have no prediction, the first is Q1"),
        ((answered, {"Q1": "x"}, {}), {"version_2_with_negative": True}, "have no null odds, the first is Q1"),
        (({"data": []}, {}), {}, "no question"),
        ((answered, bad), {}, f"{bad}: an object {{...}} is needed in this JSON file"),
    ]
    for arguments, settings, wanted in cases:
        with pytest.raises(UserError) as error:
            squad_scores.evaluate_predictions(*arguments, **settings)
        assert wanted in str(error.value) and "\n" not in str(error.value)


def test_scores_do_not_depend_on_how_python_sums(tmp_path):
    # 0.1 added ten times is not 1.0: sum() says 1.0 from Python 3.12 on, the official scripts were made before.
    naive = list(itertools.accumulate([0.1] * 10))[-1]
    assert squad_scores._percent([0.1] * 10) == 100.0 * naive / 10 != 10.0

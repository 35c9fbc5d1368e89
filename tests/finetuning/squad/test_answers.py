"""Answers to SQuAD questions and their scores: the files of the reference, and small cases by hand."""

import gzip
import itertools
import json
import pathlib

import numpy as np
import pytest
import toy_data
from golden_data import GOLDEN, cases
from refused import refuses
from small_models import randomize
from squad_data import dataset_of, features_of, golden_features, make_tokenizer, written

from bert_tf2 import commands, heads
from bert_tf2.finetuning import squad
from bert_tf2.finetuning.squad import examples as squad_scores
from bert_tf2.weights import checkpoint


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("vocab"))


@pytest.mark.slow
@pytest.mark.parametrize("case", cases("squad-predictions"))
def test_answer_files_and_scores_are_those_of_the_reference(case, tmp_path):
    flags, expected = case["flags"], case["expected"]
    examples, features = golden_features(case, is_training=False)
    with np.load(GOLDEN / case["logits"]) as stored:
        columns = [stored[name] for name in ("unique_ids", "start_logits", "end_logits")]
    results = [squad.RawResult(int(unique_id), start, end) for unique_id, start, end in zip(*columns, strict=True)]
    for threshold, predictions in expected["predictions"].items():
        answers = squad.compute_predictions(
            examples,
            features,
            results,
            **{name: flags[name] for name in ("n_best_size", "max_answer_length", "do_lower_case")},
            version_2_with_negative=flags["version_2_with_negative"],
            null_score_diff_threshold=float(threshold),
        )
        output = tmp_path / threshold
        squad.write_answers(str(output), answers)
        wanted = {
            "predictions.json": (GOLDEN / predictions).read_bytes(),
            "nbest_predictions.json": gzip.decompress((GOLDEN / expected["nbest"]).read_bytes()),
        }
        if "null_odds" in expected:
            wanted["null_odds.json"] = (GOLDEN / expected["null_odds"]).read_bytes()
        assert {path.name: path.read_bytes() for path in output.iterdir()} == wanted
        for command, scores in case["scores"][threshold].items():
            odds = str(output / "null_odds.json") if "null_odds.json" in command else None
            files = (str(GOLDEN / case["input"]), str(output / "predictions.json"), odds)
            assert squad_scores.evaluate_predictions(*files, version_2_with_negative="v2.0" in command) == scores


def results_of(features, logits_of, others=-9.0):
    """The results of windows: logits_of(feature) gives {position: logit} for starts and for ends."""
    found = []
    for feature in features:
        logits = np.full((2, len(feature.input_ids)), others, np.float32)
        for row, given in zip(logits, logits_of(feature), strict=True):
            row[[*given]] = [*given.values()]
        found.append(squad.RawResult(feature.unique_id, *logits))
    return found


def answers_of(tokenizer, words, start, end, n_best=3, longest=4, **settings):
    """Answers to one question from {position: logit}; other positions have -9."""
    features = features_of(tokenizer, words, length=24)
    example = squad.SquadExample("q", "who", words.split())
    results = results_of(features, lambda feature: (start, end))
    return squad.compute_predictions([example], features, results, n_best, longest, True, **settings)


# [CLS] who [SEP] | the fox was born in 1895 . : positions 3 to 9
FOX = "The fox was born in 1895."


def test_best_spans_by_hand(tokenizer):
    answers = answers_of(tokenizer, FOX, {4: 5, 8: 3, 1: 9}, {5: 4, 8: 4.5, 1: 9, 3: 4.4}, n_best=4)
    # "fox was" has 5 + 4 and "1895" 3 + 4.5. Better or between would be spans in the question, an end before its start,
    # and "fox ... 1895", which is longer than 4 pieces.
    texts = [entry["text"] for entry in answers.nbest["q"]]
    assert texts == ["fox was", "1895"]
    assert answers.predictions == {"q": "fox was"}
    assert answers.null_odds is None
    first, second = (entry["probability"] for entry in answers.nbest["q"])
    assert first == pytest.approx(1 / (1 + np.exp(-1.5))) and first + second == pytest.approx(1)
    assert (answers.nbest["q"][0]["start_logit"], answers.nbest["q"][0]["end_logit"]) == (5.0, 4.0)


@pytest.mark.parametrize("words", [FOX, "\u200b"])
def test_without_any_span_version_2_says_no_answer(tokenizer, words, tmp_path):
    settings = {"version_2_with_negative": True, "null_score_diff_threshold": 1e9}
    answers = answers_of(tokenizer, words, {0: 1, 1: 2}, {0: 1, 1: 2}, n_best=2, **settings)
    assert answers.predictions == {"q": ""}
    assert [entry["text"] for entry in answers.nbest["q"]] == [""]
    squad.write_answers(str(tmp_path), answers)
    assert json.loads((tmp_path / "null_odds.json").read_text()) == {"q": squad.NO_SPAN_ODDS}


def test_logits_that_are_not_numbers_name_the_question(tokenizer):
    refuses("question q: diverged", answers_of, tokenizer, FOX, {4: float("nan")}, {4: 1})


@pytest.mark.parametrize(
    ("pred_text", "orig_text", "do_lower_case", "wanted"),
    [
        ("steve smith", "Steve Smith's", True, "Steve Smith"),
        ("jose ' s", "(José's", True, "José's"),
        ("1895", "(1895-1943).", True, "1895"),
        ("##x", "fox", True, "fox"),  # not found
        ("fox", "fox\u200b jumped", True, "fox\u200b jumped"),  # a character went, so they cannot be counted off
        ("", "fox", True, "fox"),
        ("Fox", "(Fox)", False, "Fox"),
        ("fox", "(Fox)", False, "(Fox)"),
    ],
)
def test_get_final_text(pred_text, orig_text, do_lower_case, wanted):
    assert squad.get_final_text(pred_text, orig_text, do_lower_case) == wanted


@pytest.mark.parametrize(
    ("context", "start", "end", "compared", "cut", "longer"),
    [
        ("the\u201cfox dog\u201djumped over", 1, 3, "the\u201cfox dog\u201djumped", "\u201cfox dog", True),  # [UNK]
        ("the fox \t dog.", 1, 2, "fox dog", "fox \t dog", False),
        ("The F\u00d3x\u200b jumped", 1, 1, "F\u00d3x\u200b", "F\u00d3x", False),
        ("(fox)\u202fdog", 1, 3, "fox) dog", "fox)\u202fdog", False),
        ("the xxq-fox", 1, 1, "xxq-fox", "xxq", True),
    ],
)
def test_answers_by_offsets(tokenizer, context, start, end, compared, cut, longer):
    example = squad.SquadExample("q", "who", squad.split_words(context), context=context)
    features = list(squad.convert_examples_to_features([example], tokenizer, 12, 4, 4, False))
    results = results_of(features, lambda feature: ({3 + start: 9}, {3 + end: 9}))
    for offsets, wanted in ((False, compared), (True, cut)):
        answers = squad.compute_predictions([example], features, results, 1, 4, True, answer_offsets=offsets)
        assert answers.predictions == {"q": wanted}
        assert answers.longer == (["q"] if longer and not offsets else [])


def test_answers_by_offsets_in_later_windows(tokenizer):
    """A window may begin within a word, and the words may be all that is known of the paragraph."""
    words = "w0-w1-w2-w3-w4-w5-w6-w7-w8-w9 xxq,foxs"
    features = features_of(tokenizer, words, length=12, stride=3)
    for position, wanted in (("w6", "w6"), ("[UNK]", "xxq"), ("##s", "s")):
        chosen = [f for f in features if position in f.tokens and f.max_context[f.tokens.index(position) - f.doc_start]]
        place = chosen[0].tokens.index(position)
        assert len(chosen) == 1 and chosen[0].text(place, place) == wanted
    whole = features[-1]
    assert whole.text(whole.doc_start, whole.doc_start + len(whole.word_indexes) - 1).endswith(" xxq,foxs")


def test_the_script_counts_odd_answers(tmp_path, log_lines):
    """Answers of more than their span, "empty" ones, and questions that are marked as impossible."""
    files = toy_data.write_model(tmp_path, num_hidden_layers=1)
    model = heads.SpanModel(toy_data.config(num_hidden_layers=1))
    randomize(model)
    checkpoint.CheckpointFolder(str(tmp_path)).save(checkpoint.tf1_variables(model), 7)
    contexts = {"a": "\u201cx\u201dy\u201cz\u201d", "b": "\u200b", "c": "ann lives in oslo"}
    qas = {name: [{"id": name, "question": "where ?", "answers": [], "is_impossible": True}] for name in contexts}
    paragraphs = [{"context": context, "qas": qas[name]} for name, context in contexts.items()]
    (tmp_path / "dev.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    sizes = {"max_seq_length": 32, "max_query_length": 8, "doc_stride": 8, "max_answer_length": 3}
    files |= {"init_checkpoint": str(tmp_path), "predict_file": str(tmp_path / "dev.json")}
    for offsets in (False, True):
        out = tmp_path / f"out{offsets}"
        commands.call("run_squad", do_predict=True, answer_offsets=offsets, output_dir=str(out), **sizes, **files)
        answers = json.loads((out / "predictions.json").read_text())
        assert answers["b"] == ("" if offsets else "empty")
        assert (answers["a"] == contexts["a"]) != offsets and answers["a"] in contexts["a"]
        warnings = [line for line in log_lines if " of 3 " in line]
        log_lines.clear()
        assert "3 of 3 questions are marked as impossible" in warnings[0] and "--version_2_with_negative" in warnings[0]
        assert [line[:22] for line in warnings[1:-1]] == ([] if offsets else ["1 of 3 answers are lon"])
        assert warnings[-1].startswith('1 of 3 answers are "empty" for want of a possible span')
        assert warnings[-1].endswith("The first is that of question b")


def test_verbose_logging_says_why_a_text_stays_whole(caplog):
    with caplog.at_level("INFO", logger="absl"):
        squad.get_final_text("dog", "fox", True)
        assert not caplog.records
        squad.get_final_text("dog", "fox", True, verbose_logging=True)
    assert "'dog' in 'fox'" in caplog.text


def test_answer_files(tmp_path):
    nbest = {"b": [{"text": "é", "probability": 1.0, "start_logit": 1.5, "end_logit": -2.0}]}
    squad.write_answers(str(tmp_path / "new"), squad.Answers({"b": "é"}, nbest, None))
    assert (tmp_path / "new" / "predictions.json").read_bytes() == b'{\n    "b": "\\u00e9"\n}\n'
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["nbest_predictions.json", "predictions.json"]


def test_the_reference_s_way_from_examples_to_files(tokenizer, tmp_path):
    """convert_examples_to_features calls back, write_predictions computes and writes."""
    example = squad.SquadExample("q", "who", FOX.split())
    features = []
    assert squad.convert_examples_to_features([example], tokenizer, 24, 8, 4, False, features.append) is None
    again = squad.convert_examples_to_features([example], tokenizer, 24, 8, 4, False)
    assert list(map(str, features)) == list(map(str, again))
    logits = np.arange(48.0).reshape(2, 24) % 7
    results = [squad.RawResult(feature.unique_id, *logits) for feature in features]
    for version_2 in (False, True):
        paths = [str(tmp_path / f"{name}{version_2}") for name in ("answers", "nbest", "odds")]
        squad.write_predictions([example], features, results, 5, 4, True, *paths, version_2_with_negative=version_2)
        wanted = squad.compute_predictions([example], features, results, 5, 4, True, version_2)
        written = [json.loads(path.read_text()) for path in map(pathlib.Path, paths) if path.exists()]
        assert written == [content for content in wanted[:3] if content is not None]


# Scores; golden cases compare them with the official scripts


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
    assert squad.evaluate_predictions(dataset, {"a": "Fox", "other": "x"}) == {"exact_match": 50.0, "f1": 50.0}
    assert "1 of 2 questions have no prediction" in caplog.text
    # Sums are those of the official scripts, also where Python's sum is exact (from 3.12 on).
    words = [" ".join(f"w{n}" for n in range(19))] * 10
    dataset = dataset_of(*((str(number), [(text, 0)], {}) for number, text in enumerate(words)))
    naive = [*itertools.accumulate(squad_scores.f1_score("w0", text) for text in words)][-1]
    assert squad.evaluate_predictions(dataset, {str(n): "w0" for n in range(10)})["f1"] == 100.0 * naive / 10 != 10.0


def test_null_odds_move_answers_and_give_the_best_threshold():
    asked = {"has": [("red fox", 0)], "none": [], "wrong": [("dog", 0)], "punctuation": [("the", 0)]}
    dataset = dataset_of(*((name, answers, {}) for name, answers in asked.items()))
    predictions = {"has": "fox", "none": "dog", "wrong": "", "punctuation": ""}
    odds = {"none": 3.0, "has": -1.0, "wrong": -0.5, "punctuation": -2.0}
    scores = squad.evaluate_predictions(dataset, predictions, odds, threshold=1.0, version_2_with_negative=True)
    assert scores["NoAns_exact"] == 100.0  # 3.0 is over the threshold
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (50.0, -2.0)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (pytest.approx(100 * (2 + 2 / 3) / 4), -1.0)


def test_questions_without_answers_or_predictions_are_refused(tmp_path):
    answered, version_2 = dataset_of(("Q1", [("fox", 4)], {})), {"version_2_with_negative": True}
    bad = written(tmp_path, "[]", "predictions.json")
    refuses("Q1 no answer", squad.evaluate_predictions, dataset_of(("Q1", [], {})), {"Q1": "x"})
    refuses("1 of 1 no prediction Q1", squad.evaluate_predictions, answered, {}, **version_2)
    refuses("null odds Q1", squad.evaluate_predictions, answered, {"Q1": "x"}, {}, **version_2)
    refuses("no question", squad.evaluate_predictions, {"data": []}, {})
    refuses(f"{bad}: object", squad.evaluate_predictions, answered, bad)

"""SQuAD: against google-research/bert's own files where they are at hand, and against hand calculations everywhere."""

import gzip
import importlib.util
import itertools
import json
import pathlib

import numpy as np
import pytest
from absl import logging

from bert_tf2 import records, tokenization
from bert_tf2.finetuning import squad
from bert_tf2.finetuning.squad import scores as squad_scores
from bert_tf2.support.errors import UserError

SHARED = pathlib.Path(__file__).resolve().parents[4] / "shared"
GOLDEN = SHARED / "golden" / "data"
WORDS = """
the a of in fox dog jumped over ##s born year was john smith 1895 1943 who when ( ) - . , ' japanese what
"""
VOCAB = [*tokenization.SPECIAL_TOKENS, *WORDS.split(), *(f"w{i}" for i in range(30))]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    vocab = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    vocab.write_text("\n".join(VOCAB), encoding="utf-8")
    return tokenization.FullTokenizer(vocab_file=str(vocab), do_lower_case=True)


def dataset_of(*questions, context="The fox was born in 1895.", **more):
    """A SQuAD file in memory. A question is (id, answers, further keys); an answer is (text, answer_start)."""
    qas = [
        {"id": qid, "question": "When?", "answers": [{"text": t, "answer_start": s} for t, s in answers], **further}
        for qid, answers, further in questions
    ]
    return {"version": "x", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas, **more}]}]}


def written(tmp_path, dataset, name="squad.json"):
    path = tmp_path / name
    path.write_text(dataset if isinstance(dataset, str) else json.dumps(dataset), encoding="utf-8")
    return str(path)


def features_of(tokenizer, words, question="who", length=16, stride=4, query=4, training=False, **answer):
    example = squad.SquadExample("q", question, words.split(), **answer)
    return list(squad.convert_examples_to_features([example], tokenizer, length, stride, query, training))


# --- The reference's own files ---------------------------------------------------------------------------------------


def golden_cases(kind):
    path = GOLDEN / "cases.json"
    if not path.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason="the golden data are not beside this checkout"))]
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return [pytest.param(case, id=case["name"]) for case in cases if case["kind"] == kind]


@pytest.fixture(scope="module")
def golden_tokenizer():
    made = {}

    def get(case):
        key = case["vocab"], case["flags"]["do_lower_case"]
        if key not in made:
            made[key] = tokenization.FullTokenizer(vocab_file=str(GOLDEN / key[0]), do_lower_case=key[1])
        return made[key]

    return get


@pytest.fixture(scope="module")
def digest():
    spec = importlib.util.spec_from_file_location("tfrecord_digest", GOLDEN / "tfrecord_digest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.digest


def golden_features(case, tokenizer, is_training):
    flags = case["flags"]
    examples = squad.read_squad_examples(str(GOLDEN / case["input"]), is_training, flags["version_2_with_negative"])
    if case.get("example_order", "").startswith("shuffled"):
        examples = squad.shuffled_for_training(examples)
    lengths = flags["max_seq_length"], flags["doc_stride"], flags["max_query_length"]
    features = squad.convert_examples_to_features(examples, tokenizer, *lengths, is_training, log_level=logging.DEBUG)
    return examples, list(features)


@pytest.mark.parametrize("case", golden_cases("squad-features"))
def test_feature_file_is_that_of_the_reference(case, golden_tokenizer, digest, tmp_path):
    is_training = case["is_training"]
    examples, features = golden_features(case, golden_tokenizer(case), is_training)
    path = str(tmp_path / "features.tf_record")
    kind = records.SQUAD_TRAIN if is_training else records.SQUAD_PREDICT
    records.write_records(path, kind, (squad.as_record(feature, is_training) for feature in features))
    found = digest(path)
    assert len(examples) == case["examples"]
    assert (found["count"], found["digest"]) == (case["outputs"][0]["count"], case["outputs"][0]["digest"])


@pytest.mark.parametrize("case", golden_cases("squad-predictions"))
def test_answer_files_and_scores_are_those_of_the_reference(case, golden_tokenizer, tmp_path):
    flags, expected = case["flags"], case["expected"]
    examples, features = golden_features(case, golden_tokenizer(case), is_training=False)
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
        check_scores(case, output, case["scores"][threshold])


def check_scores(case, output, wanted):
    for command, scores in wanted.items():
        found = squad_scores.evaluate_predictions(
            str(GOLDEN / case["input"]),
            str(output / "predictions.json"),
            str(output / "null_odds.json") if "null_odds.json" in command else None,
            version_2_with_negative="v2.0" in command,
        )
        assert found == scores


# --- Reading ---------------------------------------------------------------------------------------------------------


def test_a_context_is_cut_at_five_blanks_only(tmp_path):
    dataset = dataset_of(("q", [], {}), context="  one\ttwo\r\nthree\u202ffour\u00a0five six\u3000seven ")
    (example,) = squad.read_squad_examples(written(tmp_path, dataset), is_training=False)
    assert example.doc_tokens == ["one", "two", "three", "four\u00a0five", "six\u3000seven"]
    assert (example.orig_answer_text, example.start_position, example.is_impossible) == (None, None, False)


def test_an_answer_becomes_its_range_of_words(tmp_path):
    dataset = dataset_of(("a", [("fox was", 4)], {}), ("b", [("895", 21)], {}), ("c", [("The", 0)], {}))
    examples = squad.read_squad_examples(written(tmp_path, dataset), is_training=True)
    assert [(e.start_position, e.end_position) for e in examples] == [(1, 2), (5, 5), (0, 0)]


def test_predicting_needs_no_answers(tmp_path):
    dataset = {"data": [{"paragraphs": [{"context": "x", "qas": [{"id": 7, "question": "?"}]}]}]}
    (example,) = squad.read_squad_examples(written(tmp_path, dataset), is_training=False, version_2_with_negative=True)
    assert example.qas_id == "7"


def test_impossible_questions_need_no_answer_in_version_2(tmp_path):
    dataset = dataset_of(("a", [], {"is_impossible": True}), ("b", [("fox", 4)], {"is_impossible": False}))
    impossible, possible = squad.read_squad_examples(written(tmp_path, dataset), True, version_2_with_negative=True)
    assert (impossible.start_position, impossible.end_position, impossible.orig_answer_text) == (-1, -1, "")
    assert impossible.is_impossible and not possible.is_impossible


def test_answers_that_do_not_stand_in_the_words_are_counted_once(tmp_path, caplog):
    wrong = [(f"q{i}", [("dog", 4)], {}) for i in range(50)]
    dataset = dataset_of(*wrong, ("blank", [(" ", 3)], {}), ("empty", [("", 0)], {}), ("right", [("fox", 4)], {}))
    examples = squad.read_squad_examples(written(tmp_path, dataset), is_training=True)
    assert [example.qas_id for example in examples] == ["right"]
    (message,) = [record.getMessage() for record in caplog.records]
    assert "52 of 53 answers" in message and "question q0" in message


def test_training_order_is_that_of_the_reference():
    # What random.Random(12345).shuffle makes of 0..9; the shuffled golden cases hold it for real data.
    examples = list(range(10))
    assert squad.shuffled_for_training(examples) == [8, 7, 3, 5, 1, 2, 9, 4, 0, 6]
    assert examples == list(range(10))


BAD_FILES = {
    "broken JSON": ('{"data": [\n  {"title" 3}]}', False, ["line 2, column 12", "JSON"]),
    "empty": ("  \n", False, ["empty"]),
    "no object": ("[1]", False, ["'data'", "object"]),
    "no data": ({"questions": []}, False, ["'data' is missing"]),
    "no questions": ({"data": []}, False, ["no question"]),
    "no paragraphs": ({"data": [{}]}, False, ["data[0]", "'paragraphs' is missing"]),
    "no context": (
        {"data": [{"paragraphs": [{"qas": []}]}]},
        False,
        ["data[0].paragraphs[0]", "'context' is missing"],
    ),
    "no id": (
        {"data": [{"paragraphs": [{"context": "", "qas": [{}]}]}]},
        False,
        ["data[0].paragraphs[0].qas[0]", "'id' is missing"],
    ),
    "question is no text": (dataset_of(("Q1", [], {"question": 3})), False, ["question Q1", "'question' must be text"]),
    "no answers": (dataset_of(("Q1", [], {"answers": None})), True, ["question Q1", "'answers' must be a list"]),
    "several answers": (dataset_of(("Q1", [("The", 0), ("fox", 4)], {})), True, ["question Q1", "exactly 1", "are 2"]),
    "version 2 unasked": (dataset_of(("Q1", [], {})), True, ["question Q1", "are 0", "--version_2_with_negative"]),
    "offset negative": (dataset_of(("Q1", [("fox", -1)], {})), True, ["question Q1", "outside"]),
    "offset behind": (dataset_of(("Q1", [("1895.", 21)], {})), True, ["question Q1", "21 to 26 of 25"]),
    "nothing aligned": (dataset_of(("Q1", [("dog", 4)], {})), True, ["1 of 1", "question Q1", "answer_start"]),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_named_in_one_line(name, tmp_path):
    content, is_training, wanted = BAD_FILES[name]
    path = written(tmp_path, content)
    with pytest.raises(UserError) as error:
        squad.read_squad_examples(path, is_training)
    for part in [path, *wanted]:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_version_2_training_needs_the_mark_of_impossible_questions(tmp_path):
    path = written(tmp_path, dataset_of(("Q1", [("fox", 4)], {})))
    with pytest.raises(UserError, match=r"question Q1: .*'is_impossible' is missing"):
        squad.read_squad_examples(path, is_training=True, version_2_with_negative=True)


# --- Features --------------------------------------------------------------------------------------------------------


def test_one_window_by_hand(tokenizer):
    (feature,) = features_of(tokenizer, "The foxs jumped.", question="who was john", length=16, query=2)
    assert " ".join(feature.tokens) == "[CLS] who was [SEP] the fox ##s jumped . [SEP]"
    assert feature.input_ids == [VOCAB.index(token) for token in feature.tokens] + [0] * 6
    assert feature.input_mask == [1] * 10 + [0] * 6
    assert feature.segment_ids == [0] * 4 + [1] * 6 + [0] * 6
    assert feature.token_to_orig_map == {4: 0, 5: 1, 6: 1, 7: 2, 8: 2}
    assert feature.token_is_max_context == dict.fromkeys(range(4, 9), True)
    assert (feature.unique_id, feature.example_index, feature.doc_span_index) == (1000000000, 0, 0)
    assert squad.as_record(feature, is_training=False) == {
        "unique_ids": [1000000000],
        "input_ids": feature.input_ids,
        "input_mask": feature.input_mask,
        "segment_ids": feature.segment_ids,
    }


def test_windows_by_hand(tokenizer):
    # 14 pieces beside a question of one piece, room for 12 - 1 - 3 = 8, stride 3: [0, 8), [3, 11), [6, 14).
    words = " ".join(f"w{i}" for i in range(14))
    features = features_of(tokenizer, words, length=12, stride=3)
    assert [feature.tokens[3:-1] for feature in features] == [words.split()[start : start + 8] for start in (0, 3, 6)]
    assert [feature.unique_id for feature in features] == [1000000000, 1000000001, 1000000002]
    # The smaller context of w5 is 2 in both windows that hold it, so the first has it; w6 has 1, 3, 0.
    scored = [(3 * i + np.flatnonzero(feature.max_context)).tolist() for i, feature in enumerate(features)]
    assert scored == [[0, 1, 2, 3, 4, 5], [6, 7, 8], [9, 10, 11, 12, 13]]


def test_a_stride_beyond_the_room_sets_windows_side_by_side(tokenizer):
    features = features_of(tokenizer, " ".join(f"w{i}" for i in range(10)), length=8, stride=100)
    assert [len(feature.word_indexes) for feature in features] == [4, 4, 2]


@pytest.mark.parametrize("total", [1, 7, 30, 97, 240])
@pytest.mark.parametrize(("room", "stride"), [(30, 7), (10, 10), (9, 1), (96, 13), (200, 150)])
def test_every_piece_is_scored_once_where_it_has_most_context(total, room, stride):
    windows = squad._windows(total, room, stride)
    best = squad._max_context_windows(windows, total)
    for piece in range(total):
        context = {
            i: min(piece - w.start, w.stop - 1 - piece) + 0.01 * len(w) for i, w in enumerate(windows) if piece in w
        }
        assert best[piece] == max(context, key=context.get)


@pytest.mark.parametrize("year", ["(1895-1943).", "(1895", "1895."])
def test_answer_is_narrowed_to_its_pieces(tokenizer, year):
    answer = {"orig_answer_text": "1895", "start_position": 3, "end_position": 3}
    (feature,) = features_of(tokenizer, f"john smith was {year}", length=20, training=True, **answer)
    place = [feature.tokens.index("1895")]
    record = squad.as_record(feature, is_training=True)
    assert (record["start_positions"], record["end_positions"], record["is_impossible"]) == (place, place, [0])


def test_answer_inside_a_piece_takes_the_word(tokenizer):
    answer = {"orig_answer_text": "Japan", "start_position": 1, "end_position": 1}
    (feature,) = features_of(tokenizer, "the Japanese fox", training=True, **answer)
    assert (feature.start_position, feature.end_position) == (4, 4)


def test_answer_that_a_window_does_not_hold_is_at_cls(tokenizer):
    answer = {"orig_answer_text": "w7 w8", "start_position": 7, "end_position": 8}
    words = " ".join(f"w{i}" for i in range(14))
    features = features_of(tokenizer, words, length=12, stride=3, training=True, **answer)
    assert [(f.start_position, f.end_position) for f in features] == [(0, 0), (7, 8), (4, 5)]


def test_impossible_question_is_at_cls(tokenizer):
    answer = {"orig_answer_text": "", "start_position": -1, "end_position": -1, "is_impossible": True}
    (feature,) = features_of(tokenizer, "the fox", training=True, **answer)
    assert squad.as_record(feature, is_training=True)["is_impossible"] == [1]
    assert (feature.start_position, feature.end_position) == (0, 0)


def test_a_paragraph_without_pieces_has_no_window(tokenizer):
    assert features_of(tokenizer, "\u200b") == []


def test_one_window_is_logged_in_words_and_more_at_debug(tokenizer, caplog):
    examples = [squad.SquadExample(f"q{i}", "who", ["fox"]) for i in range(25)]
    with caplog.at_level("INFO", logger="absl"):
        list(squad.convert_examples_to_features(examples, tokenizer, 12, 4, 4, False, log_level=logging.DEBUG))
        assert not caplog.records
        list(squad.convert_examples_to_features(examples, tokenizer, 12, 4, 4, False))
        (message,) = (record.getMessage() for record in caplog.records)
        assert message == "The first window:\n  question  who\n  tokens    [CLS] who [SEP] fox [SEP]"
    with caplog.at_level("DEBUG", logger="absl"):
        list(squad.convert_examples_to_features(examples, tokenizer, 12, 4, 4, False))
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("*** Example ***") == 20
    assert "tokens: [CLS] who [SEP] fox [SEP]" in messages


def test_lengths(caplog):
    squad.check_lengths(384, 64, 128)
    squad.check_lengths(128, 64, 61)
    assert not caplog.records
    for stride in (62, 124):  # beyond the room for the longest question, and all that fits beside the shortest
        squad.check_lengths(128, 64, stride)
        (warning,) = caplog.records
        assert f"--doc_stride={stride} is larger than the 61 pieces" in warning.getMessage()
        caplog.clear()
    for lengths, wanted in (
        ((67, 64, 1), "--max_query_length=64"),
        ((128, 64, 125), "--doc_stride=125 is larger than the 124 pieces .* at most 61"),
        ((128, 64, 0), "--doc_stride=0"),
        ((128, -1, 8), "--max_query_length=-1"),
    ):
        with pytest.raises(UserError, match=wanted):
            squad.check_lengths(*lengths)


def test_windows_that_cannot_advance_are_refused(tokenizer):
    with pytest.raises(ValueError, match="advance"):
        features_of(tokenizer, "the fox", length=4)


# --- Answers ---------------------------------------------------------------------------------------------------------


def answers_of(tokenizer, words, start, end, n_best=3, longest=4, question="who", **settings):
    """Answers to one question from {position: logit}; other positions have -9."""
    features = features_of(tokenizer, words, question=question, length=24)
    results = []
    for feature in features:
        logits = np.full((2, 24), -9.0, np.float32)
        for row, given in zip(logits, (start, end), strict=True):
            for position, value in given.items():
                row[position] = value
        results.append(squad.RawResult(feature.unique_id, *logits))
    example = squad.SquadExample("q", question, words.split())
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


def test_equal_scores_keep_the_order_of_position(tokenizer):
    answers = answers_of(tokenizer, FOX, {4: 1, 6: 1}, {4: 1, 6: 1}, n_best=2)
    assert [entry["text"] for entry in answers.nbest["q"]] == ["fox", "fox was born"]


def test_the_same_text_is_listed_once(tokenizer):
    answers = answers_of(tokenizer, "fox , fox", {3: 2, 5: 1}, {3: 2, 5: 1}, longest=1)
    assert [entry["text"] for entry in answers.nbest["q"]] == ["fox"]


def test_no_span_at_all_is_called_empty_in_version_1(tokenizer):
    answers = answers_of(tokenizer, FOX, {0: 1, 1: 2}, {0: 1, 1: 2}, n_best=2)
    assert answers.nbest["q"] == [{"text": "empty", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}]


def test_a_span_is_taken_from_its_window_of_most_context(tokenizer):
    words = " ".join(f"w{i}" for i in range(14))
    features = features_of(tokenizer, words, length=12, stride=3)
    results = []
    for feature in features:  # w7 is at 10, 7, 4 of the three windows; only the second may use it
        logits = np.zeros((2, 12))
        logits[:, feature.tokens.index("w7")] = (9, 1, 9)[feature.doc_span_index]
        results.append(squad.RawResult(feature.unique_id, *logits))
    example = squad.SquadExample("q", "who", words.split())
    answers = squad.compute_predictions([example], features, reversed(results), 1, 1, True)
    assert answers.nbest["q"] == [{"text": "w7", "probability": 1.0, "start_logit": 1.0, "end_logit": 1.0}]


@pytest.mark.parametrize(("threshold", "wanted"), [(-1.5, ""), (-1.0, "fox"), (0.0, "fox")])
def test_null_threshold(tokenizer, threshold, wanted):
    settings = {"version_2_with_negative": True, "null_score_diff_threshold": threshold}
    answers = answers_of(tokenizer, FOX, {4: 3, 0: 2}, {4: 3, 0: 3}, n_best=2, **settings)
    assert answers.null_odds == {"q": -1.0}
    assert answers.predictions == {"q": wanted}
    assert [entry["text"] for entry in answers.nbest["q"]] == ["fox", ""]


def test_no_answer_is_added_behind_a_full_list(tokenizer):
    answers = answers_of(tokenizer, FOX, {4: 3}, {4: 3, 5: 2}, n_best=1, version_2_with_negative=True)
    assert [entry["text"] for entry in answers.nbest["q"]] == ["fox", ""]


def test_no_answer_counts_in_the_window_where_it_is_least_likely(tokenizer):
    features = features_of(tokenizer, " ".join(f"w{i}" for i in range(14)), length=12, stride=3)
    results = []
    for feature, null in zip(features, (3.0, -1.0, 2.0), strict=True):
        logits = np.full((2, 12), -50.0)
        logits[:, 0], logits[:, 3] = null, 1.0
        results.append(squad.RawResult(feature.unique_id, *logits))
    example = squad.SquadExample("q", "who", [f"w{i}" for i in range(14)])
    answers = squad.compute_predictions([example], features, results, 5, 4, True, version_2_with_negative=True)
    assert answers.null_odds == {"q": -2.0 - 2.0}


@pytest.mark.parametrize("words", [FOX, "\u200b"])
def test_without_any_span_version_2_says_no_answer(tokenizer, words, tmp_path):
    settings = {"version_2_with_negative": True, "null_score_diff_threshold": 1e9}
    answers = answers_of(tokenizer, words, {0: 1, 1: 2}, {0: 1, 1: 2}, n_best=2, **settings)
    assert answers.predictions == {"q": ""}
    assert [entry["text"] for entry in answers.nbest["q"]] == [""]
    squad.write_answers(str(tmp_path), answers)
    assert json.loads((tmp_path / "null_odds.json").read_text()) == {"q": squad.NO_SPAN_ODDS}


def test_logits_that_are_not_numbers_name_the_question(tokenizer):
    with pytest.raises(UserError, match=r"question q: .*diverged"):
        answers_of(tokenizer, FOX, {4: float("nan")}, {4: 1})


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
        assert written == [content for content in wanted if content is not None]


def test_answer_files_appear_together_or_not_at_all(tmp_path):
    with pytest.raises(TypeError):
        squad.write_answers(str(tmp_path), squad.Answers({"q": "fox"}, {"q": [{"text": object()}]}, None))
    assert list(tmp_path.iterdir()) == []


# --- Scores ----------------------------------------------------------------------------------------------------------


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


def test_version_2_by_hand():
    scores = squad_scores.evaluate_predictions(V2, V2_PREDICTIONS, version_2_with_negative=True)
    f1 = 100 * 2 / 3
    assert scores == {
        "exact": 25.0,
        "f1": pytest.approx((f1 + 100) / 4),
        "total": 4,
        "HasAns_exact": pytest.approx(100 / 3),
        "HasAns_f1": pytest.approx((f1 + 100) / 3),
        "HasAns_total": 3,
        "NoAns_exact": 0.0,
        "NoAns_f1": 0.0,
        "NoAns_total": 1,
    }


def test_null_odds_move_answers_and_give_the_best_threshold():
    odds = {"none": 3.0, "has": -1.0, "wrong": -0.5, "punctuation": -2.0}
    scores = squad_scores.evaluate_predictions(V2, V2_PREDICTIONS, odds, threshold=1.0, version_2_with_negative=True)
    assert scores["NoAns_exact"] == 100.0  # 3.0 is over the threshold
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (50.0, -2.0)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (pytest.approx(100 * (2 + 2 / 3) / 4), -1.0)


def test_best_threshold_is_the_best_of_all_thresholds():
    rng = np.random.default_rng(5)
    ids = [f"q{i}" for i in range(40)]
    gold = {qid: [("fox", 0)] if rng.random() < 0.6 else [] for qid in ids}
    dataset = dataset_of(*((qid, answers, {}) for qid, answers in gold.items()))
    predictions = {qid: str(rng.choice(["fox", "dog"])) for qid in ids}
    odds = {qid: rng.normal() + (not gold[qid]) for qid in ids}

    def exact_at(threshold):
        right = [(answers == []) if odds[q] > threshold else bool(answers) and predictions[q] == "fox"
                 for q, answers in gold.items()]  # fmt: skip
        return 100.0 * sum(right) / len(right)

    scores = squad_scores.evaluate_predictions(dataset, predictions, odds, version_2_with_negative=True)
    assert scores["best_exact"] == max(map(exact_at, [-100.0, *odds.values()]))
    assert scores["best_exact"] == exact_at(scores["best_exact_thresh"])
    assert scores["exact"] == exact_at(1.0)


def test_what_cannot_be_scored_is_said_in_one_line(tmp_path):
    answered = dataset_of(("Q1", [("fox", 4)], {}))
    bad = written(tmp_path, '{"Q1": 3}', "predictions.json")
    cases = [
        ((dataset_of(("Q1", [], {})), {"Q1": "x"}), {}, "question Q1: has no annotated answer"),
        ((answered, {}), {"version_2_with_negative": True}, "1 of 1 questions have no prediction, the first is Q1"),
        ((answered, {"Q1": "x"}, {}), {"version_2_with_negative": True}, "have no null odds, the first is Q1"),
        (({"data": []}, {}), {}, "no question"),
        ((answered, bad), {}, f"{bad}: must map question ids to answers"),
    ]
    for arguments, settings, wanted in cases:
        with pytest.raises(UserError) as error:
            squad_scores.evaluate_predictions(*arguments, **settings)
        assert wanted in str(error.value) and "\n" not in str(error.value)


def test_scores_do_not_depend_on_how_python_sums(tmp_path):
    # 0.1 added ten times is not 1.0: sum() says 1.0 from Python 3.12 on, the official scripts were made before.
    naive = list(itertools.accumulate([0.1] * 10))[-1]
    assert squad_scores._percent([0.1] * 10) == 100.0 * naive / 10 != 10.0

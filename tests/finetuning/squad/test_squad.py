"""SQuAD: files, windows, answers and scores are those of the reference; and what the reference has not, by hand.

The reference's own data hold words, windows, spans, n-best lists and the official scores; the data called `edge`
consist of odd ones.
"""

from __future__ import annotations

import functools
import gzip
import json
import pathlib
import re
import types

import numpy as np
import pytest
import toy_data
from golden_data import GOLDEN, cases, digest
from refused import message_of, refuses

from bert_tf2 import commands, heads, run_squad, tokenization
from bert_tf2.data import records
from bert_tf2.finetuning import squad

WORDS = "the a of in fox dog jumped over ##s born year was john smith 1895 1943 who when ( ) - . , '"
VOCAB = [*tokenization.SPECIAL_TOKENS, *WORDS.split(), *(f"w{i}" for i in range(30))]
FOX = "The fox was born in 1895."
ACCENTS = "Fo\u0301\u0327xs\u0301"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(VOCAB), encoding="utf-8")
    return tokenization.FullTokenizer(str(path))


def dataset_of(*questions, context=FOX):
    """A SQuAD file in memory. A question is (id, answers, further keys); an answer is (text, answer_start)."""
    qas = [
        {"id": qid, "question": "When?", "answers": [{"text": t, "answer_start": s} for t, s in answers], **further}
        for qid, answers, further in questions
    ]
    return {"version": "x", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas}]}]}


def read(tmp_path, dataset, training=True, version_2=False):
    path = tmp_path / "squad.json"
    path.write_text(dataset if isinstance(dataset, str) else json.dumps(dataset), encoding="utf-8")
    return squad.read_squad_examples(str(path), training, version_2)


def features_of(tokenizer, words, question="who", length=16, stride=4, query=4):
    example = squad.SquadExample("q", question, squad.split_words(words), context=words)
    return [example], list(squad.convert_examples_to_features([example], tokenizer, length, stride, query, False))


# The reference's data


@functools.cache
def golden_tokenizer(vocab, do_lower_case):
    return tokenization.FullTokenizer(vocab_file=str(GOLDEN / vocab), do_lower_case=do_lower_case)


def golden_features(case, is_training):
    """The examples of a case and their windows."""
    flags = case["flags"]
    tokenizer = golden_tokenizer(case["vocab"], flags["do_lower_case"])
    examples = squad.read_squad_examples(str(GOLDEN / case["input"]), is_training, flags["version_2_with_negative"])
    if case.get("example_order", "").startswith("shuffled"):
        examples = squad.shuffled_for_training(examples)
    lengths = flags["max_seq_length"], flags["doc_stride"], flags["max_query_length"]
    return examples, list(squad.convert_examples_to_features(examples, tokenizer, *lengths, is_training))


@pytest.mark.parametrize("case", cases("squad-features", quick="edge"))
def test_feature_file_is_that_of_the_reference(case, tmp_path):
    is_training = case["is_training"]
    examples, features = golden_features(case, is_training)
    path = str(tmp_path / "features.tf_record")
    kind = records.SQUAD_TRAIN if is_training else records.SQUAD_PREDICT
    records.write_records(path, kind, (squad.as_record(feature, is_training) for feature in features))
    assert len(examples) == case["examples"]
    assert digest(path) == {name: case["outputs"][0][name] for name in ("digest", "count")}


@pytest.mark.parametrize("case", cases("squad-predictions", quick="edge"))
def test_answer_files_and_scores_are_those_of_the_reference(case, tmp_path):
    flags, expected = case["flags"], case["expected"]
    examples, features = golden_features(case, is_training=False)
    with np.load(GOLDEN / case["logits"]) as stored:
        columns = [stored[name] for name in ("unique_ids", "start_logits", "end_logits")]
    results = [squad.RawResult(int(unique_id), start, end) for unique_id, start, end in zip(*columns, strict=True)]
    how = {name: flags[name] for name in ("n_best_size", "max_answer_length", "do_lower_case")}
    how["version_2_with_negative"] = flags["version_2_with_negative"]
    for threshold, predictions in expected["predictions"].items():
        null_score = {"null_score_diff_threshold": float(threshold)}
        answers = squad.compute_predictions(examples, features, results, **how, **null_score)
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
            given = (str(GOLDEN / case["input"]), str(output / "predictions.json"), odds)
            assert squad.evaluate_predictions(*given, version_2_with_negative="v2.0" in command) == scores


def test_the_reference_s_names(tokenizer, tmp_path):
    """Features' attributes; convert_examples_to_features calls back, write_predictions computes and writes."""
    examples, features = features_of(tokenizer, "The foxs jumped.", question="who was john", query=2)
    (feature,) = features
    assert " ".join(feature.tokens) == "[CLS] who was [SEP] the fox ##s jumped . [SEP]"
    assert feature.input_mask == [1] * 10 + [0] * 6 and feature.segment_ids == [0] * 4 + [1] * 6 + [0] * 6
    assert feature.token_to_orig_map == {4: 0, 5: 1, 6: 1, 7: 2, 8: 2} and len(feature.input_ids) == 16
    assert feature.token_is_max_context == dict.fromkeys(range(4, 9), True)
    assert (feature.unique_id, feature.example_index, feature.doc_span_index) == (1000000000, 0, 0)
    (nothing,) = read(tmp_path, dataset_of(("q", [], {"is_impossible": True})), version_2=True)
    assert (nothing.orig_answer_text, nothing.start_position, nothing.end_position) == ("", -1, -1)
    shown = ["qas_id: q, question_text: When?, doc_tokens: [The fox was born in 1895.]"]
    shown.append(f"{shown[0]}, start_position: -1, end_position: -1, is_impossible: True")
    (first,) = read(tmp_path, dataset_of(("q", [("The", 0)], {})))
    assert [str(first), repr(nothing)] == shown  # the reference shows no answer in the first word
    blank = read(tmp_path, dataset_of(("q", [(" fox", 0)], {}), context=" fox "))  # the answer begins before the word
    (feature,) = squad.convert_examples_to_features(blank, tokenizer, 16, 4, 2, True)
    assert (feature.start_position, feature.end_position) == (4, 4)
    last = read(tmp_path, dataset_of(("q", [("fox" + " " * 9, 0)], {}), context=" fox dog fox"))  # then -1 is a word
    (feature,) = squad.convert_examples_to_features(last, tokenizer, 16, 4, 2, True)
    assert (feature.start_position, feature.end_position) == (6, 6)
    called = []
    assert squad.convert_examples_to_features(examples, tokenizer, 16, 4, 2, False, called.append) is None
    assert list(map(str, called)) == list(map(str, features))
    results = [squad.RawResult(feature.unique_id, *(np.arange(32.0).reshape(2, 16) % 7))]
    assert squad.compute_predictions(examples, features, results, 0, 4, True).predictions == {"q": "empty"}
    for version_2 in (False, True):
        paths = [str(tmp_path / f"{name}{version_2}") for name in ("answers", "nbest", "odds")]
        squad.write_predictions(examples, features, results, 5, 4, True, *paths, version_2_with_negative=version_2)
        wanted = squad.compute_predictions(examples, features, results, 5, 4, True, version_2)
        written = [json.loads(path.read_text()) for path in map(pathlib.Path, paths) if path.exists()]
        assert written == [content for content in wanted[:3] if content is not None]


@pytest.mark.parametrize("is_training", [True, False])
def test_features_are_written_one_by_one(is_training, tokenizer, tmp_path):
    """As in programs around the reference, which collect the features, too."""
    example = squad.SquadExample("q", "who", FOX.split(), "fox", 1, 1)
    path, collected = tmp_path / "by_one", []
    writer = run_squad.FeatureWriter(filename=str(path), is_training=is_training)
    run_squad.convert_examples_to_features([example], tokenizer, 8, 2, 2, is_training, writer.process_feature)
    run_squad.convert_examples_to_features([example], tokenizer, 8, 2, 2, is_training, collected.append)
    assert writer.num_features == len(collected) > 1 and not path.exists()
    writer.close()
    kind = records.SQUAD_TRAIN if is_training else records.SQUAD_PREDICT
    rows = (run_squad.as_record(feature, is_training) for feature in collected)
    records.write_records(str(tmp_path / "at_once"), kind, rows)
    assert pathlib.Path(writer.filename).read_bytes() == (tmp_path / "at_once").read_bytes()


def test_a_tokenizer_without_the_parts_of_the_reference_s(tokenizer, tmp_path):
    """Forks for Chinese have their own class, with three methods."""
    methods = {
        name: getattr(tokenizer, name) for name in ("tokenize", "convert_tokens_to_ids", "convert_ids_to_tokens")
    }
    examples, features = features_of(types.SimpleNamespace(**methods), FOX)
    logits = [[float(position == feature.doc_start + 1) for position in range(16)] for feature in features]
    results = [run_squad.RawResult(feature.unique_id, row, row) for feature, row in zip(features, logits, strict=True)]
    paths = [str(tmp_path / name) for name in ("answers", "nbest", "odds")]
    run_squad.write_predictions(examples, features, results, 5, 4, True, *paths)
    assert json.loads((tmp_path / "answers").read_text()) == {"q": "fox"}
    words = "question q unique_id 1000000000"
    refuses(words, run_squad.write_predictions, examples, features, results[1:], 5, 4, True, *paths)


def test_the_reference_s_functions_for_spans(tokenizer):
    """By hand."""
    assert run_squad._get_best_indexes([1.0, 3.0, 3.0, 2.0], 3) == [1, 2, 3]
    np.testing.assert_allclose(run_squad._compute_softmax([1.0, 1.0 + np.log(3)]), [0.25, 0.75], rtol=1e-12)
    assert run_squad._compute_softmax([]) == []
    improve = functools.partial(run_squad._improve_answer_span, ["the", "fox", ".", "fox"], tokenizer=tokenizer)
    assert improve(0, 3, orig_answer_text="Fox") == (1, 1)
    assert improve(2, 3, orig_answer_text="the fox") == (2, 3)
    spans = [types.SimpleNamespace(start=start, length=5) for start in (0, 3)]  # 3 and 4 are in both
    scored = [[run_squad._check_is_max_context(spans, index, at) for at in range(9)] for index in (0, 1)]
    assert scored == [[True] * 4 + [False] * 5, [False] * 4 + [True] * 4 + [False]]


# Files


def test_answers_that_are_not_in_the_words_are_counted_once(tmp_path, log_lines):
    wrong = [(f"q{i}", [("dog", 4)], {}) for i in range(50)]
    wrong += [("blank", [(" ", 3)], {}), ("empty", [("", 0)], {}), ("unknown", [("fox", -1)], {})]
    dataset = dataset_of(*wrong, (7, [("fox", 4)], {}), ("from the end", [("1895.", -5)], {}))
    assert [example.qas_id for example in read(tmp_path, dataset)] == ["7", "from the end"]
    (message,) = log_lines
    assert "53 of 55 answers" in message and "question q0" in message


@pytest.mark.parametrize("training", [False, True])
def test_questions_without_text_are_counted_once(training, tmp_path, log_lines):
    fox = [("fox", 4)]
    read(tmp_path, dataset_of(("a", fox, {}), ("b", fox, {"question": " \n"}), ("c", fox, {"question": ""})), training)
    (message,) = log_lines
    assert "squad.json: 2 of 3 questions have no text" in message and message.endswith(" b")


@pytest.mark.parametrize(
    ("content", "training", "words"),
    [
        ('{"id": "a"}\n{"id": "b"}\n', False, "line 2, column 1 JSON lines"),
        ({"questions": []}, False, "'data' missing"),
        ({"data": [{"paragraphs": [{"context": "", "qas": [{}]}]}]}, False, "data[0].paragraphs[0].qas[0] 'id'"),
        (dataset_of(("Q1", [], {"question": 3})), False, "Q1 'question' text"),
        (dataset_of(("Q1", [], {})), True, "Q1 0 --version_2_with_negative"),
        (dataset_of(("Q1", [("fox", 4)] * 3, {})), True, "Q1 3 dev"),
        (dataset_of(("Q1", [("fox", -26)], {})), True, "Q1 outside"),
        (dataset_of(("Q1", [("1895.", 21)], {})), True, "Q1 21 to 26 of 25"),
        (dataset_of(("Q1", [("dog", 4)], {})), True, "1 of 1 Q1 answer_start"),
        (dataset_of(("Q1", [("fox", 4)], {})), "version 2", "Q1 'is_impossible' missing"),
    ],
    ids=str,
)
def test_bad_files(content, training, words, tmp_path):
    version_2 = training == "version 2"
    refuses(f"{tmp_path}/squad.json {words}", read, tmp_path, content, bool(training), version_2)


def test_lengths():
    squad.check_lengths(68, 64, 128)  # the windows are adjacent, as in the reference
    for lengths, words in (
        ((67, 64, 1), "--max_query_length=64"),
        ((128, 64, 0), "--doc_stride=0"),
        ((128, -1, 8), "--max_query_length=-1"),
    ):
        refuses(words, squad.check_lengths, *lengths)


@pytest.mark.parametrize("length", [5, 7, 64, 67])
def test_lengths_that_the_message_gives_are_right(length):
    """The positions of a small model, with the other defaults of run_squad.py."""
    message = message_of(squad.check_lengths, length, 64, 128)
    query, stride = (
        int(re.search(f"; give .*--{name}=(\\d+)", message)[1]) for name in ("max_query_length", "doc_stride")
    )
    squad.check_lengths(length, query, stride)
    assert stride < length - query - 3 or length < 8  # windows overlap


# Answers where their pieces are


def answers_of(examples, features, start, end, **settings):
    """Answers to one question from {position: logit}; other positions have -9."""
    results = []
    for feature in features:
        logits = np.full((2, len(feature.input_ids)), -9.0, np.float32)
        for row, given in zip(logits, (start, end), strict=True):
            row[[*given]] = [*given.values()]
        results.append(squad.RawResult(feature.unique_id, *logits))
    return squad.compute_predictions(examples, features, results, 2, 4, True, **settings)


@pytest.mark.parametrize(
    ("context", "start", "end", "compared", "cut", "longer"),
    [
        ("the\u201cfox dog\u201djumped over", 1, 3, "the\u201cfox dog\u201djumped", "\u201cfox dog", True),  # [UNK]
        ("the fox \t dog.", 1, 2, "fox dog", "fox \t dog", False),
        ("The F\u00d3x\u200b jumped", 1, 1, "F\u00d3x\u200b", "F\u00d3x", False),
        ("(fox)\u202fdog", 1, 3, "fox) dog", "fox)\u202fdog", False),
        ("the xxq-fox", 1, 1, "xxq-fox", "xxq", True),
        (ACCENTS, 0, 0, ACCENTS, ACCENTS[:5], True),
        ("fox\u5317the\u4eac", 1, 2, "fox\u5317the\u4eac", "\u5317the", True),
        ("\u0130n\ufb01 fox", 1, 1, "fox", "fox", False),
        ("\u200b", 0, 0, "empty", "", False),
    ],
)
def test_answers_by_offsets(tokenizer, context, start, end, compared, cut, longer):
    given = features_of(tokenizer, context)
    for offsets, wanted in ((False, compared), (True, cut)):
        answers = answers_of(*given, {3 + start: 9}, {3 + end: 9}, answer_offsets=offsets)
        assert answers.predictions == {"q": wanted}
        assert (answers.longer, answers.empty) == (["q"] * (longer and not offsets), ["q"] * (cut == ""))


def test_answers_by_offsets_in_later_windows(tokenizer):
    """A window may begin within a word."""
    _, features = features_of(tokenizer, "w0-w1-w2-w3-w4-w5-w6-w7-w8-w9 xxq,foxs", length=12, stride=3)
    for position, wanted in (("w6", "w6"), ("[UNK]", "xxq"), ("##s", "s")):
        chosen = [f for f in features if position in f.tokens and f.max_context[f.tokens.index(position) - f.doc_start]]
        place = chosen[0].tokens.index(position)
        assert len(chosen) == 1 and chosen[0].text(place, place) == wanted
    whole = features[-1]
    assert whole.text(whole.doc_start, whole.doc_start + len(whole.word_indexes) - 1).endswith(" xxq,foxs")


@pytest.mark.parametrize("words", [FOX, "\u200b"])
def test_without_any_span_version_2_says_no_answer(tokenizer, words):
    """Where the reference fails: the best positions are in the question."""
    settings = {"version_2_with_negative": True, "null_score_diff_threshold": 1e9}
    answers = answers_of(*features_of(tokenizer, words), {0: 1, 1: 2}, {0: 1, 1: 2}, **settings)
    assert (answers.predictions, answers.null_odds) == ({"q": ""}, {"q": squad.NO_SPAN_ODDS})
    assert [entry["text"] for entry in answers.nbest["q"]] == [""]


def test_the_script_counts_odd_answers(tmp_path, log_lines):
    """Answers of more than their span, "empty" ones, questions marked as impossible, and a stride of whole windows."""
    toy_data.write_trained(tmp_path / "start", heads.SpanModel(toy_data.config(num_hidden_layers=1)))
    contexts = {"a": "\u201cx\u201dy\u201cz\u201d", "b": "\u200b", "c": "ann lives in oslo"}
    qas = {name: [{"id": name, "question": "where ?", "answers": [], "is_impossible": True}] for name in contexts}
    paragraphs = [{"context": context, "qas": qas[name]} for name, context in contexts.items()]
    (tmp_path / "dev.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    sizes = {"max_seq_length": 32, "max_query_length": 8, "doc_stride": 29, "max_answer_length": 3}
    files = {"init_checkpoint": str(tmp_path / "start"), "predict_file": str(tmp_path / "dev.json")}
    commands.call("run_squad", do_predict=True, output_dir=str(tmp_path / "out"), **sizes, **files)
    answers = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert answers["b"] == "empty" and answers["a"] == contexts["a"]
    impossible, longer, empty = [line for line in log_lines if " of 3 " in line]
    assert "3 of 3 questions" in impossible and "version_2_with_negative" in impossible
    assert sum("doc_stride=29" in line for line in log_lines) == 1  # no window overlaps the next
    assert "1 of 3 answers are longer" in longer and "1 of 3 answers are" in empty and "question b" in empty
    assert not any("characters" in line for line in log_lines)
    answered = [{"id": "d", "question": "where ?", "answers": [{"text": "北京", "answer_start": 0}]}]
    chinese = {"data": [{"paragraphs": [{"context": "北京 北京 北京", "qas": answered}]}]}
    (tmp_path / "dev.json").write_text(json.dumps(chinese))
    commands.call("run_squad", do_eval=True, output_dir=str(tmp_path / "chinese"), **sizes, **files)
    assert any("f1 counts words" in line for line in log_lines)


def test_verbose_logging_says_why_a_text_stays_whole(log_lines):
    assert squad.get_final_text("dog", "fox", True) == "fox" and not log_lines
    assert squad.get_final_text("dog", "fox", True, verbose_logging=True) == "fox" and "'dog' in 'fox'" in log_lines[0]


# Scores


def test_a_missing_prediction_and_the_threshold_of_null_odds(log_lines):
    dataset = dataset_of(("a", [("red fox", 0), ("fox", 0)], {}), ("b", [("dog", 0)], {}))
    assert squad.evaluate_predictions(dataset, {"a": "Fox", "other": "x"}) == {"exact_match": 50.0, "f1": 50.0}
    assert "1 of 2 questions have no prediction" in log_lines[0]
    given = (dataset_of(("none", [], {})), {"none": "dog"}, {"none": 3.0})
    for threshold, exact in ((3.0, 0.0), (2.0, 100.0)):
        assert squad.evaluate_predictions(*given, threshold, True)["NoAns_exact"] == exact


def test_questions_without_answers_or_predictions_are_refused(tokenizer, tmp_path):
    answered, version_2 = dataset_of(("Q1", [("fox", 4)], {})), {"version_2_with_negative": True}
    (tmp_path / "bad.json").write_text("[]")
    refuses("Q1 no answer", squad.evaluate_predictions, dataset_of(("Q1", [], {})), {"Q1": "x"})
    refuses("1 of 1 no prediction Q1", squad.evaluate_predictions, answered, {}, **version_2)
    refuses("null odds Q1", squad.evaluate_predictions, answered, {"Q1": "x"}, {}, **version_2)
    refuses("no question", squad.evaluate_predictions, {"data": []}, {})
    refuses("bad.json: object", squad.evaluate_predictions, answered, str(tmp_path / "bad.json"))
    refuses("question q: nan text", features_of, tokenizer, FOX, float("nan"))
    refuses("question q: diverged", answers_of, *features_of(tokenizer, FOX), {4: float("nan")}, {4: 1})

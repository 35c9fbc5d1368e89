"""SQuAD's files as examples and windows: the record files of the reference, small ones by hand, and bad files."""

import numpy as np
import pytest
from golden_data import cases, digest
from refused import refuses
from squad_data import VOCAB, dataset_of, features_of, golden_features, make_tokenizer, written

from bert_tf2 import tokenization
from bert_tf2.data import records
from bert_tf2.finetuning import squad
from bert_tf2.finetuning.squad import features as squad_features


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("vocab"))


@pytest.mark.slow
@pytest.mark.parametrize("case", cases("squad-features"))
def test_feature_file_is_that_of_the_reference(case, tmp_path):
    is_training = case["is_training"]
    examples, features = golden_features(case, is_training)
    path = str(tmp_path / "features.tf_record")
    kind = records.SQUAD_TRAIN if is_training else records.SQUAD_PREDICT
    records.write_records(path, kind, (squad.as_record(feature, is_training) for feature in features))
    assert len(examples) == case["examples"]
    assert digest(path) == {name: case["outputs"][0][name] for name in ("digest", "count")}


# Examples


def read(tmp_path, dataset, training=True, version_2=False):
    return squad.read_squad_examples(written(tmp_path, dataset), training, version_2)


def test_words_and_ranges_of_answers(tmp_path):
    """A context is cut at five blanks only. Predicting needs no answers, and an impossible question has none."""
    dataset = dataset_of(("q", [], {}), context="  one\ttwo\r\nthree\u202ffour\u00a0five six\u3000seven ")
    (example,) = read(tmp_path, dataset, training=False)
    assert example.doc_tokens == ["one", "two", "three", "four\u00a0five", "six\u3000seven"]
    assert (example.orig_answer_text, example.start_position, example.is_impossible) == (None, None, False)
    dataset = dataset_of(("a", [("fox was", 4)], {}), ("b", [("895", 21)], {}), ("c", [("The", 0)], {}))
    assert [(e.start_position, e.end_position) for e in read(tmp_path, dataset)] == [(1, 2), (5, 5), (0, 0)]
    dataset = {"data": [{"paragraphs": [{"context": "x", "qas": [{"id": 7, "question": "?"}]}]}]}
    assert read(tmp_path, dataset, training=False, version_2=True)[0].qas_id == "7"
    dataset = dataset_of(("a", [], {"is_impossible": True}), ("b", [("fox", 4)], {"is_impossible": False}))
    impossible, possible = read(tmp_path, dataset, version_2=True)
    assert (impossible.start_position, impossible.end_position, impossible.orig_answer_text) == (-1, -1, "")
    assert impossible.is_impossible and not possible.is_impossible


def test_answers_that_are_not_in_the_words_are_counted_once(tmp_path, caplog):
    wrong = [(f"q{i}", [("dog", 4)], {}) for i in range(50)]
    dataset = dataset_of(*wrong, ("blank", [(" ", 3)], {}), ("empty", [("", 0)], {}), ("right", [("fox", 4)], {}))
    assert [example.qas_id for example in read(tmp_path, dataset)] == ["right"]
    (message,) = [record.getMessage() for record in caplog.records]
    assert "52 of 53 answers" in message and "question q0" in message


def test_training_order_is_that_of_the_reference():
    # The order that random.Random(12345).shuffle makes of 0..9; the shuffled golden cases hold it for real data.
    examples = list(range(10))
    assert squad.shuffled_for_training(examples) == [8, 7, 3, 5, 1, 2, 9, 4, 0, 6]
    assert examples == list(range(10))


@pytest.mark.parametrize(
    ("content", "training", "words"),
    [
        ('{"data": [\n  {"title" 3}]}', False, "line 2, column 12 JSON"),
        ('{"id": "a"}\n{"id": "b"}\n', False, "line 2, column 1 JSON"),
        ("  \n", False, "empty"),
        ("[1]", False, "'data' object"),
        ({"questions": []}, False, "'data' missing"),
        ({"data": []}, False, "no question"),
        ({"data": [{}]}, False, "data[0] 'paragraphs' missing"),
        ({"data": [{"paragraphs": [{"qas": []}]}]}, False, "data[0].paragraphs[0] 'context' missing"),
        ({"data": [{"paragraphs": [{"context": "", "qas": [{}]}]}]}, False, "data[0].paragraphs[0].qas[0] 'id'"),
        (dataset_of(("Q1", [], {"question": 3})), False, "Q1 'question' text"),
        (dataset_of(("Q1", [], {"answers": None})), True, "Q1 'answers' list"),
        (dataset_of(("Q1", [("The", 0), ("fox", 4)], {})), True, "Q1 exactly 1 2"),
        (dataset_of(("Q1", [], {})), True, "Q1 0 --version_2_with_negative"),
        (dataset_of(("Q1", [("fox", -1)], {})), True, "Q1 outside"),
        (dataset_of(("Q1", [("1895.", 21)], {})), True, "Q1 21 to 26 of 25"),
        (dataset_of(("Q1", [("dog", 4)], {})), True, "1 of 1 Q1 answer_start"),
        (dataset_of(("Q1", [("fox", 4)], {})), "version 2", "Q1 'is_impossible' missing"),
    ],
    ids=str,
)
def test_bad_files(content, training, words, tmp_path):
    version_2 = training == "version 2"
    refuses(f"{tmp_path}/squad.json {words}", read, tmp_path, content, bool(training), version_2)


# Windows


def test_windows_by_hand(tokenizer):
    (feature,) = features_of(tokenizer, "The foxs jumped.", question="who was john", length=16, query=2)
    assert " ".join(feature.tokens) == "[CLS] who was [SEP] the fox ##s jumped . [SEP]"
    record = squad.as_record(feature, is_training=False)
    assert record == {
        "unique_ids": [1000000000],
        "input_ids": [VOCAB.index(token) for token in feature.tokens] + [0] * 6,
        "input_mask": [1] * 10 + [0] * 6,
        "segment_ids": [0] * 4 + [1] * 6 + [0] * 6,
    }
    assert {
        name: getattr(feature, name) for name in ("input_ids", "input_mask", "segment_ids")
    }.items() < record.items()
    assert feature.token_to_orig_map == {4: 0, 5: 1, 6: 1, 7: 2, 8: 2}
    assert feature.token_is_max_context == dict.fromkeys(range(4, 9), True)
    assert (feature.unique_id, feature.example_index, feature.doc_span_index) == (1000000000, 0, 0)
    # 14 pieces beside a question of one piece, room for 12 - 1 - 3 = 8, stride 3: [0, 8), [3, 11), [6, 14).
    words = " ".join(f"w{i}" for i in range(14))
    features = features_of(tokenizer, words, length=12, stride=3)
    assert [feature.tokens[3:-1] for feature in features] == [words.split()[start : start + 8] for start in (0, 3, 6)]
    assert [feature.unique_id for feature in features] == [1000000000, 1000000001, 1000000002]
    # The smaller context of w5 is 2 in both windows that hold it, so the first has it; w6 has 1, 3, 0.
    scored = [(3 * i + np.flatnonzero(feature.max_context)).tolist() for i, feature in enumerate(features)]
    assert scored == [[0, 1, 2, 3, 4, 5], [6, 7, 8], [9, 10, 11, 12, 13]]
    assert features_of(tokenizer, "\u200b") == []  # a paragraph without pieces


@pytest.mark.parametrize("year", ["(1895-1943).", "(1895", "1895."])
def test_answer_is_narrowed_to_its_pieces(tokenizer, year):
    answer = {"orig_answer_text": "1895", "start_position": 3, "end_position": 3}
    (feature,) = features_of(tokenizer, f"john smith was {year}", length=20, training=True, **answer)
    place = [feature.tokens.index("1895")]
    record = squad.as_record(feature, is_training=True)
    assert (record["start_positions"], record["end_positions"], record["is_impossible"]) == (place, place, [0])


def test_lengths():
    squad.check_lengths(384, 64, 128)
    squad.check_lengths(128, 64, 124)  # all that fits beside the shortest question
    for lengths, words in (
        ((67, 64, 1), "--max_query_length=64"),
        ((128, 64, 125), "--doc_stride=125 124 61"),
        ((128, 64, 0), "--doc_stride=0"),
        ((128, -1, 8), "--max_query_length=-1"),
    ):
        refuses(words, squad.check_lengths, *lengths)


class Whole(tokenization.FullTokenizer):
    """A tokenizer of one's own, with other rules."""

    def tokenize(self, text):
        return ["fox", "dog"]


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("foxs,", "fox s ,"),
        ("(xxq-1895)", "( xxq - 1895 )"),  # [UNK] is all of xxq
        ("\u200bFo\u0301\u0327x\u0301\u200b", "Fo\u0301\u0327x\u0301"),  # accents belong to their letters
        ("who\u3000\u201cis\u201d", "who \u201c is \u201d"),
        ("\u5317the\u4eac", "\u5317 the \u4eac"),
        ("\u0130n\ufb01", "\u0130n\ufb01"),
        ("\u0001\u0301", ""),
    ],
)
def test_the_places_of_the_pieces_of_a_word(tokenizer, tmp_path, word, parts):
    spans = squad_features.piece_spans(word, tokenizer)
    assert [word[start:end] for start, end in spans] == parts.split()
    assert len(spans) == len(tokenizer.tokenize(word))
    make_tokenizer(tmp_path)
    assert squad_features.piece_spans("foxs", Whole(str(tmp_path / "vocab.txt"))) == [(0, 4), (0, 4)]

"""Windows of SQuAD: the record files of the reference, and small windows by hand."""

import numpy as np
import pytest
from golden_data import cases, digest
from squad_data import VOCAB, features_of, golden_features, make_tokenizer

from bert_tf2.data import records
from bert_tf2.finetuning import squad
from bert_tf2.finetuning.squad import features as squad_features
from bert_tf2.support.errors import UserError


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


@pytest.mark.parametrize("year", ["(1895-1943).", "(1895", "1895."])
def test_answer_is_narrowed_to_its_pieces(tokenizer, year):
    answer = {"orig_answer_text": "1895", "start_position": 3, "end_position": 3}
    (feature,) = features_of(tokenizer, f"john smith was {year}", length=20, training=True, **answer)
    place = [feature.tokens.index("1895")]
    record = squad.as_record(feature, is_training=True)
    assert (record["start_positions"], record["end_positions"], record["is_impossible"]) == (place, place, [0])


def test_a_paragraph_without_pieces_has_no_window(tokenizer):
    assert features_of(tokenizer, "\u200b") == []


def test_lengths():
    squad.check_lengths(384, 64, 128)
    squad.check_lengths(128, 64, 124)  # all that fits beside the shortest question
    for lengths, wanted in (
        ((67, 64, 1), "--max_query_length=64"),
        ((128, 64, 125), "--doc_stride=125 is larger than the 124 pieces .* at most 61"),
        ((128, 64, 0), "--doc_stride=0"),
        ((128, -1, 8), "--max_query_length=-1"),
    ):
        with pytest.raises(UserError, match=wanted):
            squad.check_lengths(*lengths)


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
def test_where_the_pieces_of_a_word_stand(tokenizer, word, parts):
    spans = squad_features.piece_spans(word, tokenizer)
    assert [word[start:end] for start, end in spans] == parts.split()
    assert len(spans) == len(tokenizer.tokenize(word))


def test_pieces_of_other_rules_stand_for_the_whole_word(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "tokenize", lambda text: ["fox", "dog"])
    assert squad_features.piece_spans("foxs", tokenizer) == [(0, 4), (0, 4)]

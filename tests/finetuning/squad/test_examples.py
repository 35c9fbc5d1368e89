"""SQuAD files: words, ranges of words, and files that cannot be read."""

import pytest
from squad_data import dataset_of, written

from bert_tf2.finetuning import squad
from bert_tf2.support.errors import UserError


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
    "JSON lines": ('{"id": "a"}\n{"id": "b"}\n', False, ["line 2, column 1: not valid JSON (Extra data)"]),
    "empty": ("  \n", False, ["empty"]),
    "no object": ("[1]", False, ["'data'", "object"]),
    "no data": ({"questions": []}, False, ["'data' is missing"]),
    "no questions": ({"data": []}, False, ["no question"]),
    "no paragraphs": ({"data": [{}]}, False, ["data[0]", "'paragraphs' is missing"]),
    "no context": ({"data": [{"paragraphs": [{"qas": []}]}]}, False, ["data[0].paragraphs[0]", "'context' is missing"]),
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

"""Predictions as one tag per word, and as a column of the input."""

from __future__ import annotations

import random

import pytest
from ner_data import CONLL_2003, make_tokenizer, random_sentences, sentence, write_to

from bert_tf2.finetuning import ner
from bert_tf2.support.errors import UserError


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("vocab"))


@pytest.fixture
def write(tmp_path):
    return lambda text: write_to(tmp_path, text)


@pytest.mark.parametrize("document_context", [False, True])
def test_right_labels_come_back_as_the_tags(tokenizer, document_context):
    """Labels as predictions give the tags, whatever stands at the other positions."""
    for seed in range(20):
        rng = random.Random(seed)
        given, labels = random_sentences(rng)
        windows = ner.convert_sentences_to_features(
            given, labels, 12, tokenizer, document_context=document_context, doc_stride=rng.randint(1, 10)
        )
        predictions = [
            [rng.randrange(len(labels)) if label == -1 else label for label in ner.as_record(window)["label_ids"]]
            for window in windows
        ]
        assert ner.assemble_tags(given, windows, predictions, labels) == [s.tags for s in given]


def test_predictions_must_fit_the_windows(tokenizer):
    given = [sentence("a"), sentence("b")]
    windows = ner.convert_sentences_to_features(given, ["O"], 8, tokenizer)
    with pytest.raises(ValueError):
        ner.assemble_tags(given, windows, [[0] * 8], ["O"])
    with pytest.raises(ValueError, match="sentence 1: 1 words, but the windows answer for 0"):
        ner.assemble_tags(given, windows[:1], [[0] * 8], ["O"])


def test_predictions_stand_in_the_inputs_own_columns(write, tmp_path):
    text = "\ufeff-DOCSTART- -X- O\r\n\r\n# id 7\r\nEU  NNP B-ORG \r\nsays VBZ O\r\n\r\n\r\nLondon NNP B-LOC"
    path, output = write(text), tmp_path / "new" / "predictions.txt"
    ner.write_predictions(path, str(output), ner.read_conll(path), [["B-X", "O"], ["O"]])
    assert output.read_bytes().decode() == (
        "\ufeff-DOCSTART- -X- O O\r\n\r\n# id 7\r\nEU  NNP B-ORG B-X\r\nsays VBZ O O\r\n\r\n\r\nLondon NNP B-LOC O"
    )


@pytest.mark.parametrize("text", [CONLL_2003, CONLL_2003.replace(" ", "\t"), "a\nb\n\nc\n", "\n\n#a\n\nb"])
def test_written_file_reads_back(write, tmp_path, text):
    path, output = write(text), str(tmp_path / "predictions.txt")
    given = ner.read_conll(path)
    tags = [["B-X"] * len(s.words) for s in given]
    ner.write_predictions(path, output, given, tags)
    again = ner.read_conll(output)
    assert [(s.words, s.rows, s.document, s.tags) for s in again] == [
        (s.words, s.rows, s.document, tag) for s, tag in zip(given, tags, strict=True)
    ]
    if given[0].tags is not None:
        assert [s.tags for s in ner.read_conll(output, tag_column=-2)] == [s.tags for s in given]


def test_predictions_complete_or_absent(write, tmp_path):
    path = write(CONLL_2003)
    given = ner.read_conll(path)
    output = tmp_path / "predictions.txt"
    with pytest.raises(ValueError):
        ner.write_predictions(path, str(output), given, [["O"] * 3, ["O"], ["O"]])
    write(CONLL_2003.replace("London", "Paris"))
    with pytest.raises(UserError, match="line 12: the word 'London' is gone"):
        ner.write_predictions(path, str(output), given, [["O"] * 3, ["O"] * 2, ["O"]])
    assert [name.name for name in tmp_path.iterdir()] == ["data.txt"]

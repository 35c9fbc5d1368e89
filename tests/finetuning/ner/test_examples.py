"""Files of words and tags in columns, those that cannot be read, and predictions as one more column."""

from __future__ import annotations

import types

import pytest
from ner_data import CONLL_2003, sentence, write_to
from refused import message_of

from bert_tf2.finetuning import ner
from bert_tf2.finetuning.ner.run import NerTask
from bert_tf2.support.errors import UserError


@pytest.fixture
def write(tmp_path):
    return lambda text: write_to(tmp_path, text)


def test_reads_conll_2003(write):
    path = write(CONLL_2003)
    assert ner.read_conll(path) == [
        ner.NerSentence(["EU", "rejects", "German"], ["B-ORG", "O", "B-MISC"], [3, 4, 5], 1, path),
        ner.NerSentence(["Peter", "Blackburn"], ["B-PER", "I-PER"], [7, 8], 1, path),
        ner.NerSentence(["London"], ["B-LOC"], [12], 2, path),
    ]


def test_other_columns(write):
    path = write("1\tNew York\tx\tS-LOC\t_\n2\tis\tx\tO\t_\n")
    (found,) = ner.read_conll(path, word_column=1, tag_column=-2)
    assert (found.words, found.tags) == (["New York", "is"], ["S-LOC", "O"])
    assert ner.read_conll(path, word_column=1, tag_column=3) == [found]


def test_spaces_line_ends_and_byte_order_mark(write):
    (found,) = ner.read_conll(write("\ufeffEU   B-ORG \r\nsays O\t\r\n"))
    assert (found.words, found.tags) == (["EU", "says"], ["B-ORG", "O"])


def test_unicode_blanks_belong_to_words(write):
    (found,) = ner.read_conll(write("10\u00a0000 O\n\u00a0 O\na\u2028b O\n"))
    assert found.words == ["10\u00a0000", "\u00a0", "a\u2028b"]
    (found,) = ner.read_conll(write("a\n\u00a0\nb\n"))
    assert found.words == ["a", "\u00a0", "b"]


def test_document_mark_needs_no_blank_line(write):
    sentences = ner.read_conll(write("-DOCSTART-\na O\n-DOCSTART-\nb O\n"))
    assert [(s.words, s.document) for s in sentences] == [(["a"], 1), (["b"], 2)]


def test_comments_are_told_from_words(write):
    sentences = ner.read_conll(write("# id 7 x\n#nlp O\n# B-X\nrocks O\n\n# id 8 y\n# text\nyes O\n"))
    assert [s.words for s in sentences] == [["#nlp", "#", "rocks"], ["yes"]]
    assert sentences[0].rows == [2, 3, 4]


def test_tags_may_be_missing(write):
    assert [s.tags for s in ner.read_conll(write("EU\nsays\n\nLondon\n"))] == [None, None]
    (found,) = ner.read_conll(write("EU NNP\nsays VBZ\n"), has_labels=False)
    assert (found.words, found.tags) == (["EU", "says"], None)


def test_tags_of(write):
    assert ner.tags_of(ner.read_conll(write(CONLL_2003))) == ["O", "B-LOC", "B-MISC", "B-ORG", "B-PER", "I-PER"]
    assert ner.tags_of([sentence("x", tags=["S-A"]), sentence("y")]) == ["O", "S-A"]


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("", {}, "there is no word"),
        ("\n-DOCSTART- O\n \t\n", {}, "there is no word"),
        ("# only comments\n", {}, "there is no word"),
        ("a O\nb x O\n", {}, "line 2: 3 columns, but line 1 has 2"),
        ("a x O\n\nb\n", {}, "line 3: 1 column, but line 1 has 3"),
        ("a O\n# c d\n", {}, "line 2: 3 columns"),
        ("#text PER\na O\n", {}, "line 1: 'PER' in column 2 is not a tag"),
        ("a O\n# text\n", {}, "line 2: 'text' in column 2 is not a tag"),
        ("a\tO\n\tO\n", {}, "line 2: no word in column 1"),
        ("a b O\nc d\te\tO\n", {}, "line 2: tabs separate its columns, and spaces those of line 1; use one"),
        ("a\tx\tO\n\nb c O\n", {}, "line 3: spaces separate its columns, and tabs those of line 1"),
        ("a O\nb B-PER\nc PER\n", {}, "line 3: 'PER' in column 2 is not a tag"),
        ("a B-\n", {}, "line 1: 'B-' in"),
        ("a X-PER\nb O\nc B-PER\n", {}, "line 1: 'X-PER' in"),
        (
            "a O\n",
            {"tag_column": 2},
            "line 1: there is no column 3 among 2 columns (the first is 1, the last is 2 or -1)",
        ),
        ("a O\n", {"word_column": -3}, "line 1: there is no column -3 among 2 columns"),
        ("a\n", {"has_labels": True}, "line 1: column 1 would be word and tag at once"),
        (b"a O\n\xe4 O\n", {}, "line 2: not UTF-8"),
    ],
)
def test_bad_files(write, text, options, expected):
    path = write(text)
    with pytest.raises(UserError) as error:
        ner.read_conll(path, **options)
    assert expected in str(error.value)
    assert str(error.value).startswith(path)
    assert "\n" not in str(error.value)


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


def test_numbers_of_words_are_no_words(tmp_path):
    text = "# text = x\n1\tAnn\tB-PER\n2-3\twon't\tO\n2\two\tO\n3\tn't\tO\n3.1\tgo\tO\n\n1\tYes\tO\n"
    path = write_to(tmp_path, text)
    message = message_of(ner.read_conll, path)
    assert message.startswith(f"{path}: column 1 holds the numbers of the words and not the words")
    assert message.endswith("--word_column=2")
    assert ner.read_conll(path, word_column=1)[1].words == ["Yes"]
    assert message_of(ner.read_conll, path, has_labels=False) == message
    for words in ("1 O\n", "1 O\nbook O\n", "1 O\n2 O\n\nAnn O\n"):
        assert ner.read_conll(write_to(tmp_path, words))


def test_tags_that_differ_in_case(tmp_path, log_lines):
    path = write_to(tmp_path, "Ann\tB-PER\nis\tO\n\nBob\tB-Per\n")
    task = NerTask(types.SimpleNamespace(output_dir="none", init_checkpoint=None, do_train=True, train_file=path))
    task.examples = {"train": ner.read_conll(path)}
    assert task.find_labels().labels == ("O", "B-PER", "B-Per")
    (line,) = log_lines
    assert f"{path}, row 4: the label 'B-Per' and 'B-PER' of row 1 are two classes" in line

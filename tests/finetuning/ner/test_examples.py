"""Files of words and tags in columns, those that cannot be read, and predictions as one more column."""

from __future__ import annotations

import json
import random

import pytest
import toy_data
from ner_data import CONLL_2003, write_to
from refused import message_of, refuses

from bert_tf2.commands import call
from bert_tf2.finetuning import ner


def shown(tmp_path, text, **columns) -> list[tuple]:
    """The words, tags and documents of a file's sentences."""
    found = ner.read_conll(write_to(tmp_path, text), **columns)
    return [(" ".join(s.words), " ".join(s.tags or ()), s.document) for s in found]


def test_a_sentence_knows_its_rows(tmp_path):
    path = write_to(tmp_path, CONLL_2003)
    assert ner.read_conll(path) == [
        ner.NerSentence(["EU", "rejects", "German"], ["B-ORG", "O", "B-MISC"], [3, 4, 5], 1, path),
        ner.NerSentence(["Peter", "Blackburn"], ["B-PER", "I-PER"], [7, 8], 1, path),
        ner.NerSentence(["London"], ["B-LOC"], [12], 2, path),
    ]
    assert ner.tags_of(ner.read_conll(path)) == ["O", "B-LOC", "B-MISC", "B-ORG", "B-PER", "I-PER"]


CONLLU = "# text = x\n1\tAnn\tB-PER\n2-3\twon't\tO\n2\two\tO\n3\tn't\tO\n3.1\tgo\tO\n\n1\tYes\tO\n"
NEW_YORK = "1\tNew York\tx\tS-LOC\t_\n2\tis\tx\tO\t_\n"


@pytest.mark.parametrize(
    ("text", "columns", "wanted"),
    [
        (NEW_YORK, {"word_column": 1, "tag_column": -2}, [("New York is", "S-LOC O", 0)]),
        (NEW_YORK, {"word_column": 1, "tag_column": 3}, [("New York is", "S-LOC O", 0)]),
        ("\ufeffEU   B-ORG \r\nsays O\t\r\n", {}, [("EU says", "B-ORG O", 0)]),
        ("10\u00a0000 O\n\u00a0 O\na\u2028b O\n", {}, [("10\u00a0000 \u00a0 a\u2028b", "O O O", 0)]),
        ("a\n\u00a0\nb\n", {}, [("a \u00a0 b", "", 0)]),  # blanks of Unicode belong to words
        ("-DOCSTART-\na O\n-DOCSTART-\nb O\n", {}, [("a", "O", 1), ("b", "O", 2)]),
        # A hash may begin a comment or a word.
        ("# id 7 x\n#nlp O\n# B-X\nrocks O\n\n# id 8 y\n# text\nyes O\n", {},
         [("#nlp # rocks", "O B-X O", 0), ("yes", "O", 0)]),
        ("# 1\n# SYM\n1 NUM\n= SYM\n\n# text\n# NUM\n", {}, [("# 1 =", "SYM NUM SYM", 0), ("#", "NUM", 0)]),
        ("EU\nsays\n\nLondon\n", {}, [("EU says", "", 0), ("London", "", 0)]),
        ("EU NNP\nsays VBZ\n", {"has_labels": False}, [("EU says", "", 0)]),
        ("1 O\nbook O\n", {}, [("1 book", "O O", 0)]),
        ("1 O\n2 O\n\nAnn O\n", {}, [("1 2", "O O", 0), ("Ann", "O", 0)]),
    ],
)  # fmt: skip
def test_columns_blanks_and_comments(tmp_path, text, columns, wanted):
    assert shown(tmp_path, text, **columns) == wanted


@pytest.mark.parametrize(
    ("text", "columns", "words"),
    [
        ("", {}, "no word"),
        ("\n-DOCSTART- O\n \t\n", {}, "no word"),
        ("# only comments\n", {}, "no word"),
        ("a O\nb x O\n", {}, "line 2: 3 columns line 1 has 2"),
        ("a x O\n\nb\n", {}, "line 3: 1 column line 1 has 3"),
        ("a O\n# c d\n", {}, "line 2: 3 columns"),
        ("#text PER\na O\n", {}, "line 1: 'PER' column 2"),
        ("a O\n# text\n", {}, "line 2: 'text' column 2"),
        ("a\tO\n\tO\n", {}, "line 2: no word column 1"),
        ("a b O\nc d\te\tO\n", {}, "line 2: tabs spaces line 1"),
        ("a\tx\tO\n\nb c O\n", {}, "line 3: spaces tabs line 1"),
        ("a O\nb B-PER\nc PER\n", {}, "line 3: 'PER' column 2"),
        ("a X-PER\nb O\nc B-PER\n", {}, "line 1: 'X-PER'"),
        ("a O\n", {"tag_column": 2}, "line 1: no column 3 2 columns"),
        ("a O\n", {"word_column": -3}, "line 1: no column -3 2 columns"),
        ("a\n", {"has_labels": True}, "line 1: column 1 word and tag"),
        (b"a O\n\xe4 O\n", {}, "line 2: UTF-8"),
        (CONLLU, {}, "column 1 numbers --word_column=2"),
        (CONLLU, {"has_labels": False}, "column 1 numbers --word_column=2"),
        # Misspelt tags of entities are named with those that are taken.
        *(("".join(f"w {tag}\n" for tag in tags.split()), {}, f"line {line} B-PER NOUN") for tags, line in (
            ("B_PER I_PER O", "1: 'B_PER'"), ("O B.PER I.PER", "2: 'B.PER'"), ("O B:PER", "2: 'B:PER'"),
            ("o b-per i-per", "1: 'o'"), ("PER-B PER-I O", "1: 'PER-B'"), ("B-PER I-PER O PER", "4: 'PER'"),
            ("B-PER PER", "2: 'PER'"), ("B- I- O", "1: 'B-'"))),
    ],
)  # fmt: skip
def test_bad_files(tmp_path, text, columns, words):
    path = write_to(tmp_path, text)
    assert refuses(f"{path} {words}", ner.read_conll, path, **columns).startswith(path)


@pytest.mark.parametrize(
    ("tags", "labels"),
    [
        ("NOUN VERB PUNCT", ["NOUN", "PUNCT", "VERB"]),
        ("NN , . '' # $ PRP$ -LRB-", ["#", "$", "''", ",", "-LRB-", ".", "NN", "PRP$"]),
        ("V-INF N-COM S-NOM", ["N-COM", "S-NOM", "V-INF"]),  # one of them looks like the tag of an entity
        ("Case=Nom|Number=Sing _ Case=Acc", ["Case=Acc", "Case=Nom|Number=Sing", "_"]),
        ("PER O LOC O", ["O", "LOC", "PER"]),
        ("0 1 0 1", ["0", "1"]),
    ],
)
def test_plain_tags_are_taken_as_they_are(tmp_path, tags, labels):
    found = ner.read_conll(write_to(tmp_path, "".join(f"word\t{tag}\n" for tag in tags.split())))
    assert found[0].tags == tags.split() and ner.tags_of(found) == labels and ner.is_plain(labels)


def test_predictions_are_in_the_inputs_own_columns(tmp_path):
    text = "\ufeff-DOCSTART- -X- O\r\n\r\n# id 7\r\nEU  NNP B-ORG \r\nsays VBZ O\r\n\r\n\r\nLondon NNP B-LOC"
    path, output = write_to(tmp_path, text), tmp_path / "new" / "predictions.txt"
    ner.write_predictions(path, str(output), ner.read_conll(path), [["B-X", "O"], ["O"]])
    assert output.read_bytes().decode() == (
        "\ufeff-DOCSTART- -X- O O\r\n\r\n# id 7\r\nEU  NNP B-ORG B-X\r\nsays VBZ O O\r\n\r\n\r\nLondon NNP B-LOC O"
    )


@pytest.mark.parametrize("text", [CONLL_2003, CONLL_2003.replace(" ", "\t"), "a\nb\n\nc\n", "\n\n#a\n\nb"])
def test_written_file_reads_back(tmp_path, text):
    path, output = write_to(tmp_path, text), str(tmp_path / "predictions.txt")
    given = ner.read_conll(path)
    tags = [["B-X"] * len(s.words) for s in given]
    ner.write_predictions(path, output, given, tags)
    wanted = [(s.words, s.rows, s.document, tag) for s, tag in zip(given, tags, strict=True)]
    assert [(s.words, s.rows, s.document, s.tags) for s in ner.read_conll(output)] == wanted
    if given[0].tags is not None:
        assert [s.tags for s in ner.read_conll(output, tag_column=-2)] == [s.tags for s in given]


# The script with parts of speech

PARTS = {"good": "ADJ", "bad": "ADJ", "paris": "PROPN", "rome": "PROPN", "book": "NOUN", "film": "NOUN", "is": "AUX"}


def conllu(count: int, seed: int) -> str:
    """Sentences in CoNLL-U, with comments, a range of words that are written as one, and an empty node."""
    draw, lines = random.Random(seed), []
    for number in range(count):
        words = draw.choices([*PARTS], k=draw.randint(3, 8))
        lines += [f"# sent_id = {number}", f"# text = {' '.join(words)}"]
        for place, word in enumerate(words, 1):
            if place == 2:
                lines.append(f"2-3\t{word}{words[2]}" + "\t_" * 8)
            lines.append(f"{place}\t{word}\t{word}\t{PARTS[word]}\tX\tCase=Nom\t0\troot\t_\tSpaceAfter=No")
        lines += [f"{len(words)}.1\tempty\t_\tVERB" + "\t_" * 6, ""]
    return "\n".join(lines)


@pytest.mark.slow
def test_parts_of_speech_of_conllu(tmp_path, log_lines):
    """A training with the columns that docs/finetuning.md gives for CoNLL-U, and a later call, which knows the tags."""
    for part, seed in (("train", 1), ("eval", 2), ("predict", 3)):
        (tmp_path / f"{part}.conllu").write_text(conllu(30, seed), encoding="utf-8")
    settings = {**toy_data.write_model(tmp_path, num_hidden_layers=1), "output_dir": str(tmp_path / "out")}
    settings |= {f"{part}_file": str(tmp_path / f"{part}.conllu") for part in ("train", "eval", "predict")}
    settings |= {"word_column": 2, "tag_column": 4, "max_seq_length": 16, "learning_rate": 1e-2}
    settings |= {"num_train_epochs": 15.0, "train_batch_size": 16}
    found = call("run_ner", do_train=True, do_eval=True, do_predict=True, **settings)
    out = tmp_path / "out"
    assert json.loads((out / "label_map.json").read_text())["labels"] == sorted({*PARTS.values()})
    metrics = json.loads((out / "eval_metrics.json").read_text())
    assert found["accuracy"] == metrics["accuracy"] == metrics["f1"] > 0.9
    assert metrics["tags"].keys() == {*PARTS.values()} and "types" not in metrics
    assert all(0.5 < row["f1"] <= 1 for row in metrics["tags"].values())
    assert "accuracy = " in (out / "eval_results.txt").read_text()
    given = (tmp_path / "predict.conllu").read_text().splitlines()
    right = []
    for line, answer in zip(given, (out / "predictions.txt").read_text().splitlines(), strict=True):
        if line.split("\t")[0].isdigit():
            *before, tag = answer.split("\t")
            assert "\t".join(before) == line
            right.append(tag == before[3])
        else:
            assert answer == line
    assert sum(right) / len(right) > 0.9
    again = call("run_ner", do_eval=True, **{**settings, "train_file": None})
    assert again["accuracy"] == pytest.approx(found["accuracy"])
    (tmp_path / "new.conllu").write_text(conllu(3, 4).replace("\tAUX\t", "\tVERB\t"))
    new = {**settings, "eval_file": str(tmp_path / "new.conllu")}
    refuses("new.conllu, line VERB", call, "run_ner", do_eval=True, **new)
    for column in (-1, 10):
        other = {**settings, "tag_column": column, "output_dir": str(tmp_path / "other")}
        refuses("train.conllu, line --tag_column", call, "run_ner", do_train=True, **other)
    # Tags that differ in case are two classes, with a warning; a single tag is nothing to learn.
    path = write_to(tmp_path, "Ann\tB-PER\nis\tO\n\nBob\tB-Per\n")
    settings = {**settings, "word_column": 1, "tag_column": -1, "train_file": path, "num_train_epochs": 0.0}
    message_of(call, "run_ner", do_train=True, **{**settings, "output_dir": str(tmp_path / "other")})
    assert any(f"{path}, row 4" in line and "'B-Per'" in line and "'B-PER'" in line for line in log_lines)
    write_to(tmp_path, "a\tO\nb\tO\n")
    refuses(f"{path} O --tag_column", call, "run_ner", do_train=True, **{**settings, "output_dir": f"{tmp_path}/new"})

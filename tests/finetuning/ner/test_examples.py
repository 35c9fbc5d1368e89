"""Files of words and tags in columns, what is refused, predictions as one more column, and scores."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
import toy_data
from refused import refuses
from sklearn.metrics import accuracy_score, f1_score

from bert_tf2 import heads
from bert_tf2.commands import call
from bert_tf2.finetuning import ner
from bert_tf2.finetuning.ner.examples import entities
from bert_tf2.weights.task_file import LabelMap, read_label_map

CONLL_2003 = """\
-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
German JJ B-NP B-MISC
 \t
Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER

-DOCSTART- -X- -X- O

London NNP B-NP B-LOC
"""
# The first comment has as many words as there are columns.
CONLLU = "# text = Ann won't a b c d e\n" + "".join(
    "\t".join([*row.split(), *"______"]) + "\n"
    for row in ("1 Ann _ PROPN", "2-3 won't _ _", "2 wo _ AUX", "3 n't _ PART", "3.1 go _ VERB")
)
NEW_YORK = "1\tNew York\tx\tS-LOC\t_\n2\tis\tx\tO\t_\n"


def write(folder, text: str) -> str:
    path = folder / "data.txt"
    path.write_bytes(text.encode())
    return str(path)


def test_a_sentence_knows_its_rows(tmp_path):
    path = write(tmp_path, CONLL_2003)
    assert ner.read_conll(path) == [
        ner.NerSentence(["EU", "rejects", "German"], ["B-ORG", "O", "B-MISC"], [3, 4, 5], 1, path),
        ner.NerSentence(["Peter", "Blackburn"], ["B-PER", "I-PER"], [7, 8], 1, path),
        ner.NerSentence(["London"], ["B-LOC"], [12], 2, path),
    ]
    assert ner.tags_of(ner.read_conll(path)) == ["O", "B-LOC", "B-MISC", "B-ORG", "B-PER", "I-PER"]


@pytest.mark.parametrize(
    ("text", "columns", "wanted"),
    [
        (NEW_YORK, {"word_column": 1, "tag_column": -2}, [("New York is", "S-LOC O")]),
        (CONLLU, {"word_column": 1, "tag_column": 3}, [("Ann wo n't", "PROPN AUX PART")]),
        ("\ufeffEU   B-ORG \r\nsays\tO\t\r\n", {}, [("EU says", "B-ORG O")]),
        ("10\u00a0000 O\n\u00a0 O\na\u2028b O\n", {}, [("10\u00a0000 \u00a0 a\u2028b", "O O O")]),  # parts of words
        # A hash may begin a comment or a word.
        ("# id 7 x\n#nlp O\n# B-X\nrocks O\n\n# id 8 y\n# text\nyes O\n", {},
         [("#nlp # rocks", "O B-X O"), ("yes", "O")]),
        ("# 1\n# SYM\n1 NUM\n= SYM\n\n# text\n# NUM\n", {}, [("# 1 =", "SYM NUM SYM"), ("#", "NUM")]),
        ("EU\nsays\n\nLondon\n", {}, [("EU says", ""), ("London", "")]),
        ("EU NNP\nsays VBZ\n", {"has_labels": False}, [("EU says", "")]),
        ("1 O\n2 O\n\nAnn O\n", {}, [("1 2", "O O"), ("Ann", "O")]),
    ],
)  # fmt: skip
def test_columns_blanks_and_comments(tmp_path, text, columns, wanted):
    found = ner.read_conll(write(tmp_path, text), **columns)
    assert [(" ".join(s.words), " ".join(s.tags or ())) for s in found] == wanted


@pytest.mark.parametrize(
    ("text", "columns", "words"),
    [
        ("\n-DOCSTART- O\n# only comments\n", {}, "no word"),
        ("a O\nb x O\n", {}, "line 2: 3 columns line 1 has 2 tabs"),
        ("a\tx\tO\nb c O\n", {}, "line 2: 1 column line 1 has 3 all between tabs or blanks"),
        ("a\tO\n\tO\n", {}, "line 2: no word column 1"),
        ("#text PER\na O\n", {}, "line 1: 'PER' column 2"),
        ("a O\nb B-PER\nc PER\n", {}, "line 3: 'PER' column 2 NOUN"),
        ("a O\nb B_PER\n", {}, "line 2: 'B_PER' B-PER"),
        ("a o\nb b-per\n", {}, "line 1: 'o' B-PER"),
        ("a\tNN\tx\nb\t\tx\n", {"tag_column": 1}, "line 2: '' column 2"),
        ("a O\n", {"tag_column": 2}, "line 1: no column 3 2 columns"),
        ("a O\n", {"word_column": -3}, "line 1: no column -3 2 columns"),
        ("a\n", {"has_labels": True}, "line 1: column 1 word and tag tab"),
        (CONLLU, {"has_labels": False}, "column 1 numbers --word_column=2"),
    ],
)
def test_bad_files(tmp_path, text, columns, words):
    path = write(tmp_path, text)
    assert refuses(f"{path} {words}", ner.read_conll, path, **columns).startswith(path)


@pytest.mark.parametrize(
    ("tags", "labels"),
    [
        ("NN , . '' # $ PRP$ -LRB-", ["#", "$", "''", ",", "-LRB-", ".", "NN", "PRP$"]),
        ("V-INF N-COM S-NOM", ["N-COM", "S-NOM", "V-INF"]),  # one of them looks like the tag of an entity
        ("PER O LOC O", ["O", "LOC", "PER"]),
    ],
)
def test_plain_tags_are_taken_as_they_are(tmp_path, tags, labels):
    found = ner.read_conll(write(tmp_path, "".join(f"word\t{tag}\n" for tag in tags.split())))
    assert found[0].tags == tags.split() and ner.tags_of(found) == labels and ner.is_plain(labels)


def test_letters_alone_are_entities_without_a_type(tmp_path):
    """The files of BioBERT, and of words in Chinese; the type is seqeval's."""
    found = ner.read_conll(write(tmp_path, "IL B\n- I\n2 I\nand O\nNF B\n"))
    assert ner.tags_of(found) == ["O", "B", "I"] and not ner.is_plain(["O", "B", "I"])
    scores = ner.score([found[0].tags], ["B I O O B".split()])
    assert (scores["true_entities"], scores["correct_entities"], [*scores["types"]]) == (2, 1, ["_"])
    assert entities("B M E S B E".split()) == [("_", 0, 2), ("_", 3, 3), ("_", 4, 5)]
    assert ner.is_plain(["I", "S"]) and ner.is_plain(["B", "N", "S"])


def test_predictions_are_in_the_inputs_own_columns(tmp_path):
    text = "\ufeff-DOCSTART- -X- O\r\n\r\n# id 7\r\nEU  NNP B-ORG \r\nsays VBZ O\r\n\r\n\r\nLondon NNP B-LOC"
    path, output = write(tmp_path, text), tmp_path / "new" / "predictions.txt"
    ner.write_predictions(path, str(output), ner.read_conll(path), [["B-X", "O"], ["O"]])
    assert output.read_bytes().decode() == (
        "\ufeff-DOCSTART- -X- O O\r\n\r\n# id 7\r\nEU  NNP B-ORG B-X\r\nsays VBZ O O\r\n\r\n\r\nLondon NNP B-LOC O"
    )


def test_the_script_scores_and_writes_plain_tags(tmp_path):
    """Of a random model; the scores are those of scikit-learn."""
    labels = LabelMap("ner", ("O", "NAME", "PLACE"), regression=False)
    model = heads.TaggingModel(toy_data.config(num_hidden_layers=1), num_labels=3)
    out = toy_data.write_trained(tmp_path / "out", model, labels).parent
    path = write(tmp_path, toy_data.conll(20, 1).replace("B-LOC", "PLACE").replace("B-PER", "NAME"))
    settings = {"eval_file": path, "predict_file": path, "word_column": 2, "max_seq_length": 32}
    found = call("run_ner", do_eval=True, do_predict=True, output_dir=str(out), **settings)
    lines = (out / "predictions.txt").read_text().splitlines()[1:]  # without -DOCSTART-
    *_, right, predicted = zip(*(line.split() for line in lines if line), strict=True)
    wanted = f1_score(right, predicted, labels=labels.labels[1:], average="micro")
    metrics = json.loads((out / "eval_metrics.json").read_text())
    assert found["accuracy"] == metrics["accuracy"] == pytest.approx(accuracy_score(right, predicted))
    assert metrics["f1"] == pytest.approx(wanted) and metrics["tags"].keys() == {*labels.labels}
    (out / "label_map.json").unlink()  # as a fork's checkpoint
    given = {"output_dir": str(tmp_path / "new"), "init_checkpoint": str(out)}
    message = refuses(f"{out}: label_map.json write", call, "run_ner", do_predict=True, **given, **settings)
    (out / "label_map.json").write_text(re.search("{.*}", message)[0])
    assert read_label_map(str(out / "label_map.json")) == LabelMap("ner", ("O", "B-PER"), regression=False)


def test_tags_that_differ_in_case_are_warned_of(tmp_path, log_lines):
    """Before anything is computed: here the training has no step."""
    files = {**toy_data.write_model(tmp_path, num_hidden_layers=1), "output_dir": str(tmp_path / "out")}
    files |= {"max_seq_length": 16, "num_train_epochs": 0.1}
    files["train_file"] = write(tmp_path, "Ann\tB-PER\nis\tO\n\nBob\tB-Per\n")
    refuses("--num_train_epochs", call, "run_ner", do_train=True, **files)
    assert any("data.txt, row 4" in line and "'B-Per'" in line and "'B-PER'" in line for line in log_lines)


# Scores

SEQEVAL = json.loads((pathlib.Path(__file__).with_name("seqeval.json")).read_text())


@pytest.mark.parametrize("report", SEQEVAL["reports"], ids=["IOB1", "IOB2", "IOBES", "types"])
def test_scores_are_those_of_seqeval(report):
    true, predicted = ([tags.split() for tags in report[name]] for name in ("true", "predicted"))
    found = ner.score(true, predicted)
    assert found["accuracy"] == pytest.approx(report["accuracy"], abs=1e-12)
    assert [*found["types"]] == sorted(report["types"])
    for row, wanted in [(found, report["all"]), *((found["types"][k], v) for k, v in report["types"].items())]:
        assert [row[name] for name in ("precision", "recall", "f1")] == pytest.approx(wanted[:3], abs=1e-12)
        assert row["true_entities"] == wanted[3]


def test_entities_are_those_of_seqeval():
    """Every tag of IOBES alone and behind every other, and longer sequences, few of which are well-formed."""
    for tags, wanted in SEQEVAL["entities"].items():
        assert [f"{kind} {first} {last}" for kind, first, last in entities(tags.split())] == wanted, tags
    assert entities(["PER", "PER", "O", "LOC", "PER"]) == [("PER", 0, 1), ("LOC", 3, 3), ("PER", 4, 4)]
    for letters in ("BILU", "BMES", "BMEW"):  # those of other schemes for B, I, E and S
        tags = [f"{letters['BIES'.index(tag)]}-X" if tag != "O" else tag for tag in "BIEOSSBE"]
        assert not ner.is_plain(tags) and entities(tags) == [("X", 0, 2), ("X", 4, 4), ("X", 5, 5), ("X", 6, 7)]


def test_scores_of_plain_tags_leave_out_o():
    found = ner.score_plain([["PER", "O", "O", "LOC"]], [["PER", "O", "LOC", "O"]])
    assert (found["precision"], found["recall"], found["f1"], found["accuracy"]) == (0.5, 0.5, 0.5, 0.5)
    assert found["tags"]["PER"]["f1"] == 1 and found["tags"]["O"]["f1"] == 0.5 and found["tags"]["LOC"]["f1"] == 0

"""Tags that are not BIO: parts of speech and other plain tags, BILOU and BMES, and misspelt tags of entities."""

from __future__ import annotations

import json
import random

import pytest
import toy_data
from ner_data import write_to
from refused import message_of

from bert_tf2 import commands
from bert_tf2.finetuning import ner

PARTS = {"good": "ADJ", "bad": "ADJ", "paris": "PROPN", "rome": "PROPN", "book": "NOUN", "film": "NOUN", "is": "AUX"}


def conllu(count: int, seed: int) -> str:
    """Sentences in CoNLL-U, with comments, a range of words that are written as one, and an empty node."""
    draw = random.Random(seed)
    lines = []
    for number in range(count):
        words = draw.choices([*PARTS], k=draw.randint(3, 8))
        lines += [f"# sent_id = {number}", f"# text = {' '.join(words)}"]
        for place, word in enumerate(words, 1):
            if place == 2:
                lines.append(f"2-3\t{word}{words[2]}" + "\t_" * 8)
            lines.append(f"{place}\t{word}\t{word}\t{PARTS[word]}\tX\tCase=Nom\t0\troot\t_\tSpaceAfter=No")
        lines += [f"{len(words)}.1\tempty\t_\tVERB" + "\t_" * 6, ""]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A training with the columns that docs/finetuning.md gives for CoNLL-U: its settings."""
    folder = tmp_path_factory.mktemp("parts")
    for part, seed in (("train", 1), ("eval", 2), ("predict", 3)):
        (folder / f"{part}.conllu").write_text(conllu(30, seed), encoding="utf-8")
    settings = {**toy_data.write_model(folder, num_hidden_layers=1), "output_dir": str(folder / "out")}
    settings |= {f"{part}_file": str(folder / f"{part}.conllu") for part in ("train", "eval", "predict")}
    settings |= {"word_column": 2, "tag_column": 4, "max_seq_length": 16, "learning_rate": 1e-2}
    settings |= {"num_train_epochs": 15.0, "train_batch_size": 16}
    found = commands.call("run_ner", do_train=True, do_eval=True, do_predict=True, **settings)
    return folder, settings, found


def test_parts_of_speech_of_conllu(trained):
    folder, _, found = trained
    assert json.loads((folder / "out" / "label_map.json").read_text())["labels"] == sorted({*PARTS.values()})
    metrics = json.loads((folder / "out" / "eval_metrics.json").read_text())
    assert found["accuracy"] == metrics["accuracy"] == metrics["f1"] > 0.9
    assert metrics["tags"].keys() == {*PARTS.values()} and "types" not in metrics
    assert all(0.5 < row["f1"] <= 1 for row in metrics["tags"].values())
    assert "accuracy = " in (folder / "out" / "eval_results.txt").read_text()
    given = (folder / "predict.conllu").read_text().splitlines()
    written = (folder / "out" / "predictions.txt").read_text().splitlines()
    rows = [(line, answer.split("\t")) for line, answer in zip(given, written, strict=True)]
    assert all(len(answer) == 11 for line, answer in rows if line[:1].isdigit() and line.split("\t")[0].isdigit())
    assert all("\t".join(answer) == line for line, answer in rows if not line.split("\t")[0].isdigit())
    right = [answer[10] == answer[3] for line, answer in rows if line.split("\t")[0].isdigit()]
    assert sum(right) / len(right) > 0.9


def test_a_later_call_knows_the_tags(trained):
    folder, settings, found = trained
    settings = {name: value for name, value in settings.items() if name != "train_file"}
    again = commands.call("run_ner", do_eval=True, **settings)
    assert again["accuracy"] == pytest.approx(found["accuracy"])
    (folder / "new.conllu").write_text(conllu(3, 4).replace("\tAUX\t", "\tVERB\t"))
    found = message_of(commands.call, "run_ner", do_eval=True, **{**settings, "eval_file": str(folder / "new.conllu")})
    assert "new.conllu, line " in found and "VERB" in found


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
    path = write_to(tmp_path, "".join(f"word\t{tag}\n" for tag in tags.split()))
    found = ner.read_conll(path)
    assert found[0].tags == tags.split()
    assert ner.tags_of(found) == labels
    assert ner.is_plain(labels)


def test_a_hash_may_be_a_word_or_a_comment(tmp_path):
    path = write_to(tmp_path, "# 1\n# SYM\n1 NUM\n= SYM\n\n# text\n# NUM\n")
    assert [found.words for found in ner.read_conll(path)] == [["#", "1", "="], ["#"]]


# Entities in other schemes.

SCHEMES = {
    "BIOES": "B-PER I-PER E-PER O S-LOC O B-LOC E-LOC",
    "BILOU": "B-PER I-PER L-PER O U-LOC O B-LOC L-LOC",
    "BMES": "B-PER M-PER E-PER O S-LOC O B-LOC E-LOC",
    "BMEWO": "B-PER M-PER E-PER O W-LOC O B-LOC E-LOC",
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_other_letters_mean_the_same(tmp_path, scheme):
    tags = SCHEMES[scheme].split()
    (found,) = ner.read_conll(write_to(tmp_path, "".join(f"word\t{tag}\n" for tag in tags)))
    assert not ner.is_plain(ner.tags_of([found]))
    predicted, expected = [*found.tags], SCHEMES["BIOES"].split()
    wrong, wrong_expected = [*predicted[:4], "O", *predicted[5:]], [*expected[:4], "O", *expected[5:]]
    assert ner.score([predicted], [wrong]) == ner.score([expected], [wrong_expected])
    assert ner.score([predicted], [wrong])["types"]["LOC"]["true_entities"] == 2


def test_two_single_words_are_two_entities():
    tags = [["U-LOC", "U-LOC", "B-LOC", "L-LOC", "B-LOC"]]
    assert ner.score(tags, tags)["true_entities"] == 4


@pytest.mark.parametrize(
    ("tags", "named"),
    [
        ("B_PER I_PER O", "B_PER"),
        ("O B.PER I.PER", "B.PER"),
        ("O B:PER", "B:PER"),
        ("o b-per i-per", "o"),
        ("PER-B PER-I O", "PER-B"),
        ("B-PER I-PER O PER", "PER"),
        ("B-PER PER", "PER"),
        ("B- I- O", "B-"),
    ],
)
def test_misspelt_tags_of_entities_are_named_with_what_is_taken(tmp_path, tags, named):
    path = write_to(tmp_path, "".join(f"word\t{tag}\n" for tag in tags.split()))
    found = message_of(ner.read_conll, path)
    assert f"{path}, line {tags.split().index(named) + 1}: " in found and repr(named) in found
    assert "B-PER" in found and "NOUN" in found


@pytest.mark.parametrize("column", [-1, 10])
def test_the_column_of_conllu_without_tags_is_refused(trained, column):
    _, settings, _ = trained
    found = message_of(commands.call, "run_ner", do_train=True, **{**settings, "tag_column": column, "output_dir": "x"})
    assert "train.conllu, line " in found and "--tag_column" in found


def test_scores_of_plain_tags_leave_out_o():
    true, predicted = [["PER", "O", "O", "LOC"]], [["PER", "O", "LOC", "O"]]
    found = ner.score_plain(true, predicted)
    assert json.loads(json.dumps(found)) == found
    assert (found["precision"], found["recall"], found["f1"], found["accuracy"]) == (0.5, 0.5, 0.5, 0.5)
    assert found["tags"]["PER"]["f1"] == 1 and found["tags"]["O"]["f1"] == 0.5 and found["tags"]["LOC"]["f1"] == 0

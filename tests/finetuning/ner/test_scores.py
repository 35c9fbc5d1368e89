"""Entities and their scores, against conlleval's rules worked by hand and against what seqeval answered."""

import json
import pathlib

import pytest

from bert_tf2.finetuning.ner import scores as ner_scores

SEQEVAL = json.loads((pathlib.Path(__file__).with_name("seqeval.json")).read_text())


def test_entities_are_those_of_seqeval():
    """Every tag of IOBES alone and behind every other, and longer sequences, few of which are well-formed."""
    for tags, wanted in SEQEVAL["entities"].items():
        assert [f"{kind} {first} {last}" for kind, first, last in ner_scores.entities(tags.split())] == wanted, tags


@pytest.mark.parametrize("report", SEQEVAL["reports"], ids=["IOB1", "IOB2", "IOBES", "types"])
def test_scores_are_those_of_seqeval(report):
    true, predicted = ([tags.split() for tags in report[name]] for name in ("true", "predicted"))
    found = ner_scores.score(true, predicted)
    assert found["accuracy"] == pytest.approx(report["accuracy"], abs=1e-12)
    assert found["types"].keys() == report["types"].keys()
    for row, wanted in [(found, report["all"]), *((found["types"][k], v) for k, v in report["types"].items())]:
        assert [row[name] for name in ("precision", "recall", "f1")] == pytest.approx(wanted[:3], abs=1e-12)
        assert row["true_entities"] == wanted[3]


def test_labels_that_are_no_tags_are_types():
    assert ner_scores.entities(["PER", "PER", "O", "LOC", "PER"]) == [("PER", 0, 1), ("LOC", 3, 3), ("PER", 4, 4)]


# conlleval's startOfChunk and endOfChunk, rule by rule: the tags of two words -> the entities in them. E is conlleval's
# too; it has no S.
@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        ("B-A B-A", [("A", 0, 0), ("A", 1, 1)]),
        ("I-A B-A", [("A", 0, 0), ("A", 1, 1)]),
        ("O B-A", [("A", 1, 1)]),
        ("O I-A", [("A", 1, 1)]),
        ("O E-A", [("A", 1, 1)]),
        ("E-A E-A", [("A", 0, 0), ("A", 1, 1)]),
        ("E-A I-A", [("A", 0, 0), ("A", 1, 1)]),
        ("B-A O", [("A", 0, 0)]),
        ("I-A O", [("A", 0, 0)]),
        ("E-A O", [("A", 0, 0)]),
        ("B-A I-A", [("A", 0, 1)]),
        ("B-A E-A", [("A", 0, 1)]),
        ("I-A I-A", [("A", 0, 1)]),
        ("I-A E-A", [("A", 0, 1)]),
        ("I-A I-B", [("A", 0, 0), ("B", 1, 1)]),
        ("B-A I-B", [("A", 0, 0), ("B", 1, 1)]),
        ("E-A E-B", [("A", 0, 0), ("B", 1, 1)]),
        ("O O", []),
    ],
)
def test_the_rules_of_conlleval(tags, wanted):
    assert ner_scores.entities(tags.split()) == wanted


@pytest.mark.parametrize(
    ("true", "predicted", "counts"),  # counts by hand: entities in `true`, in `predicted`, in both
    [
        ("B-A I-A O B-B", "B-A I-A O B-B", (2, 2, 2)),
        ("B-A I-A O", "B-A O O", (1, 1, 0)),  # too short
        ("B-A I-A", "B-B I-B", (1, 1, 0)),  # wrong type
        ("B-A I-A", "I-A I-A", (1, 1, 1)),  # an I- may begin an entity
        ("I-A B-A I-A", "B-A B-A I-A", (2, 2, 2)),  # IOB1 against IOB2
        ("B-A I-A I-A", "B-A I-B I-A", (1, 3, 0)),  # each change of type begins another
        ("B-A B-A", "B-A I-A", (2, 1, 0)),
        ("S-A B-A I-A E-A", "S-A B-A I-A E-A", (2, 2, 2)),
        ("B-A E-A S-B", "I-A I-A B-B", (2, 2, 2)),  # IOBES against IOB1
        ("B-A E-A I-A", "B-A I-A I-A", (2, 1, 0)),  # nothing goes on after an E-
        ("B-a-b I-a-b", "B-a-b I-a-c", (1, 2, 0)),  # hyphens in a type
        ("O O", "O O", (0, 0, 0)),
    ],
)
def test_entities_as_conlleval_counts_them(true, predicted, counts):
    found = ner_scores.score([true.split()], [predicted.split()])
    assert (found["true_entities"], found["predicted_entities"], found["correct_entities"]) == counts


def test_score_by_hand():
    true = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC", "O"], ["B-PER"]]
    predicted = [["B-PER", "I-PER", "O", "O"], ["B-LOC", "B-LOC", "B-ORG"], ["B-LOC"]]
    found = ner_scores.score(true, predicted)
    assert json.loads(json.dumps(found)) == found
    types = found.pop("types")
    assert found == {
        "precision": 2 / 5,
        "recall": 2 / 4,
        "f1": pytest.approx(2 * 0.4 * 0.5 / 0.9),
        "true_entities": 4,
        "predicted_entities": 5,
        "correct_entities": 2,
        "accuracy": 4 / 8,
        "words": 8,
    }
    assert {name: (row["precision"], row["recall"]) for name, row in types.items()} == {
        "LOC": (1 / 3, 1 / 2),
        "ORG": (0.0, 0.0),
        "PER": (1.0, 1 / 2),
    }
    table = ner_scores.score_table({**found, "types": types}).splitlines()
    assert [line.split()[0] for line in table] == ["Scores", "type", "LOC", "ORG", "PER", "all", "0.5000"]
    assert table[5].split()[1:] == ["0.4000", "0.5000", "0.4444", "4", "5", "2"]


def test_score_refuses_other_shapes():
    with pytest.raises(ValueError):
        ner_scores.score([["O"]], [["O", "O"]])
    with pytest.raises(ValueError):
        ner_scores.score([["O"]], [])

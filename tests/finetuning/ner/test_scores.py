"""Entities and their scores, against conlleval's rules worked by hand and against what seqeval answered."""

import json
import pathlib

import pytest

from bert_tf2.finetuning.ner import examples as ner_scores

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


def test_scores_are_json():
    true = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC", "O"], ["B-PER"]]
    predicted = [["B-PER", "I-PER", "O", "O"], ["B-LOC", "B-LOC", "B-ORG"], ["B-LOC"]]
    found = ner_scores.score(true, predicted)
    assert json.loads(json.dumps(found)) == found
    assert [*found["types"]] == ["LOC", "ORG", "PER"]

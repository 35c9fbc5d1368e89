"""The list of variables: the names, what belongs where, the figures, and the code of each.

And two checkpoints: which variables moved, which words, and what is told when they do not fit.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import scipy.spatial
from explorer_model import MOVED, MOVED_WORD, VOCAB_FILE, unpack
from google_folders import write_vocab
from small_models import MAKERS, small_config

from bert_tf2 import heads
from bert_tf2.explorer import inventory
from bert_tf2.explorer.code_lines import PLACES
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checkpoint, names

ENTRIES = VOCAB_FILE.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def facts(explorer):
    return inventory.routes(explorer)["/api/inventory"]({})


def test_every_variable_has_its_names_and_figures(facts, explorer):
    source = checkpoint.open_weights(explorer.bert.path)
    assert [row["name"] for row in facts["variables"]] == [*names.tf1_variables(explorer.bert.model)]
    for row in facts["variables"]:
        values = source.get(row["name"])
        assert row["shape"] == [*values.shape] and row["parameters"] == values.size and row["in_file"]
        expected = [np.linalg.norm(values), values.mean(), values.std()]
        assert [row["norm"], row["mean"], row["deviation"]] == pytest.approx(expected, abs=1e-5)
    kernel = next(row for row in facts["variables"] if row["name"] == "bert/encoder/layer_1/output/dense/kernel")
    assert kernel["huggingface"] == "bert.encoder.layer.1.output.dense.weight" and kernel["transposed"]
    assert kernel["model_garden"] == "transformer/layer_1/output/kernel" and kernel["part"] == "block 1"


def test_the_parts_are_the_whole(facts):
    assert [part["name"] for part in facts["parts"]] == [
        "embeddings", "block 0", "block 1", "pooler", "masked lm", "next sentence",
    ]  # fmt: skip
    assert sum(part["parameters"] for part in facts["parts"]) == facts["parameters"]
    assert sum(part["variables"] for part in facts["parts"]) == len(facts["variables"])


@pytest.mark.parametrize("kind", [*MAKERS])
def test_the_code_of_every_variable_is_known(kind):
    for name in names.tf1_variables(MAKERS[kind](small_config())):
        assert inventory.code_of(name) in PLACES, name


def test_figures_that_are_no_numbers():
    assert inventory.statistics(np.array([1.0, np.nan], np.float32))["norm"] is None
    zero, one = np.zeros(3, np.float32), np.ones(3, np.float32)
    assert [inventory.compare(zero, other)[0]["relative"] for other in (one, zero)] == [None, 0.0]
    assert {*inventory.compare(one, np.full(3, np.nan, np.float32))[0].values()} == {None}


@pytest.mark.parametrize(("count", "step"), [(40, 1), (300, 2)])
def test_cosines_of_positions_are_scipy_s(count, step):
    table = np.random.default_rng(0).normal(0.0, 0.5, (count, 24)).astype(np.float32)
    found = inventory.cosines(table)
    distances = scipy.spatial.distance.cdist(table[::step], table[::step], "cosine")
    assert found["shown"] == [*range(0, count, step)]
    np.testing.assert_allclose(unpack(found["cosines"]), 1 - distances, atol=1e-6)
    assert not unpack(inventory.cosines(np.zeros((6, 4), np.float32))["cosines"]).any()


@pytest.fixture(scope="module")
def moved(explorer):
    return inventory.routes(explorer)["/api/comparison"]({})


def test_the_distances_are_those_of_numpy(moved, weights, tuned):
    one, other = checkpoint.open_weights(weights), checkpoint.open_weights(tuned)
    assert {row["name"] for row in moved["variables"]} == {*one.shapes} & {*other.shapes} - {"global_step"}
    for row in moved["variables"]:
        a, b = one.get(row["name"]).ravel(), other.get(row["name"]).ravel()
        expected = [np.linalg.norm(a - b) / np.linalg.norm(a), a @ b / np.linalg.norm(a) / np.linalg.norm(b)]
        assert [row["relative"], row["cosine"]] == pytest.approx(expected, rel=1e-4)
        assert row["largest"] == pytest.approx(np.abs(a - b).max())


def test_what_moved_most_is_found(moved):
    farthest = max(moved["variables"], key=lambda row: row["relative"])
    assert farthest["name"] == MOVED and not moved["same"]
    parts = {row["name"]: row["relative"] for row in moved["parts"]}
    assert max(parts, key=parts.get) == "block 1"
    words = moved["words"]
    assert words["moved"][0][0] == MOVED_WORD and words["compared"] == len(ENTRIES) and words["equal"] == 0
    assert words["moved"][0][1] > 10 * words["median"]
    only = [sentence for sentence in moved["sentences"] if sentence.startswith("Only ")]
    assert len(only) == 2 and "cls/predictions/output_bias" in only[0] and "output_weights" in only[1]


def test_the_same_weights_have_no_distance(explorer, weights):
    facts = inventory.compare_with(explorer, checkpoint.open_weights(weights))
    assert facts["same"] and facts["words"]["equal"] == len(ENTRIES) and facts["words"]["moved"] == []
    assert all(row["relative"] == 0 and row["cosine"] == pytest.approx(1) for row in facts["variables"])
    assert facts["sentences"] == []


def test_words_of_another_vocabulary_are_not_compared(explorer, weights, tmp_path):
    shutil.copytree(weights, tmp_path / "reordered")
    write_vocab(tmp_path / "reordered" / "vocab.txt", ENTRIES[::-1])
    assert inventory.compare_with(explorer, checkpoint.open_weights(str(tmp_path / "reordered")))["words"] is None


def test_nothing_in_common_is_an_error(explorer, tmp_path):
    model = heads.MaskedLMModel(small_config(num_hidden_layers=1))
    checkpoint.save(str(tmp_path / "model.ckpt"), checkpoint.tf1_variables(model))
    with pytest.raises(UserError, match="has no variable of the model's names and shapes"):
        inventory.compare_with(explorer, checkpoint.open_weights(str(tmp_path)))

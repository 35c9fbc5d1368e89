"""The list of variables: the names, what belongs where, the figures, and the code of each."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.spatial
from explorer_model import unpack
from small_models import MAKERS, small_config

from bert_tf2.explorer import model
from bert_tf2.explorer.code_lines import PLACES
from bert_tf2.weights import checkpoint, names


@pytest.fixture(scope="module")
def facts(explorer):
    return explorer.inventory()


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
        assert model.code_of(name) in PLACES, name


def test_figures_that_are_no_numbers():
    assert model.statistics(np.array([1.0, np.nan], np.float32))["norm"] is None


@pytest.mark.parametrize(("count", "step"), [(40, 1), (300, 2)])
def test_cosines_of_positions_are_scipy_s(count, step):
    table = np.random.default_rng(0).normal(0.0, 0.5, (count, 24)).astype(np.float32)
    found = model.cosines(table)
    distances = scipy.spatial.distance.cdist(table[::step], table[::step], "cosine")
    assert found["shown"] == [*range(0, count, step)]
    np.testing.assert_allclose(unpack(found["cosines"]), 1 - distances, atol=1e-6)
    assert not unpack(model.cosines(np.zeros((6, 4), np.float32))["cosines"]).any()

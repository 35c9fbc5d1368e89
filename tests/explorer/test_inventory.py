"""The list of variables: the names, what belongs where, the figures, and the code of each."""

from __future__ import annotations

import numpy as np
import pytest
from explorer_model import SIZES
from small_models import MAKERS, small_config

from bert_tf2.explorer import inventory
from bert_tf2.explorer.arrays import unpack
from bert_tf2.explorer.code_lines import PLACES
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checkpoint, names


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


def test_the_shared_table_is_one_array(facts, explorer):
    sharing = facts["sharing"]
    assert sharing["shared"] and sharing["saved"] == SIZES["vocab_size"] * SIZES["hidden_size"]
    assert {each["copy"]: each["name"] for each in sharing["copies"]} == {
        "cls.predictions.decoder.weight": "bert/embeddings/word_embeddings",
        "cls.predictions.decoder.bias": "cls/predictions/output_bias",
    }
    assert explorer.bert.model.bert.get_embedding_table() is not None
    shapes = [row["shape"] for row in facts["variables"]]
    assert shapes.count([SIZES["vocab_size"], SIZES["hidden_size"]]) == 1


@pytest.mark.parametrize("kind", [*MAKERS])
def test_the_code_of_every_variable_is_known(kind):
    for name in names.tf1_variables(MAKERS[kind](small_config())):
        told, code = inventory.kind_of(name)
        assert told and code in PLACES, name


def test_a_histogram_counts_every_value(explorer):
    handle = inventory.routes(explorer)["/api/variable"]
    name = "bert/encoder/layer_0/intermediate/dense/kernel"
    found = handle({"name": name})
    values = checkpoint.open_weights(explorer.bert.path).get(name).ravel()
    assert sum(found["counts"]) + found["below"] + found["above"] == values.size
    edges = unpack(found["edges"])
    assert found["counts"][20] == np.sum((values >= edges[20]) & (values < edges[21]))
    assert [found["smallest"], found["largest"]] == pytest.approx([values.min(), values.max()])
    with pytest.raises(UserError, match="no variable 'nonsense'"):
        handle({"name": "nonsense"})


def test_histograms_of_odd_values():
    equal = inventory.histogram(np.zeros((3, 4), np.float32))
    assert sum(equal["counts"]) == equal["zeros"] == 12
    broken = inventory.histogram(np.array([1.0, np.nan, np.inf, 2.0], np.float32))
    assert broken["not_finite"] == 2 and sum(broken["counts"]) + broken["below"] + broken["above"] == 2
    with pytest.raises(UserError, match="none of its values is a number"):
        inventory.histogram(np.full(3, np.nan, np.float32))
    assert inventory.statistics(np.array([1.0, np.nan], np.float32))["norm"] is None

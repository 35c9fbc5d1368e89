"""Two checkpoints: which variables moved, which words, and what is told when they do not fit."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from explorer_model import MOVED, MOVED_WORD, VOCAB_FILE
from google_folders import write_vocab
from small_models import randomize, small_config

from bert_tf2 import heads
from bert_tf2.explorer import comparison, inventory
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checkpoint

WORDS = VOCAB_FILE.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def facts(explorer):
    return comparison.routes(explorer)["/api/comparison"]({})


def test_the_distances_are_those_of_numpy(facts, weights, tuned):
    one, other = checkpoint.open_weights(weights), checkpoint.open_weights(tuned)
    assert {row["name"] for row in facts["variables"]} == {*one.shapes} & {*other.shapes} - {"global_step"}
    for row in facts["variables"]:
        a, b = one.get(row["name"]).ravel(), other.get(row["name"]).ravel()
        expected = [np.linalg.norm(a - b) / np.linalg.norm(a), a @ b / np.linalg.norm(a) / np.linalg.norm(b)]
        assert [row["relative"], row["cosine"]] == pytest.approx(expected, rel=1e-4)
        assert row["largest"] == pytest.approx(np.abs(a - b).max())


def test_what_moved_most_is_found(facts):
    farthest = max(facts["variables"], key=lambda row: row["relative"])
    assert farthest["name"] == MOVED and not facts["same"]
    parts = {row["name"]: row["relative"] for row in facts["parts"]}
    assert max(parts, key=parts.get) == "block 1"
    kinds = {row["name"]: row["relative"] for row in facts["kinds"]}
    assert kinds["output"] > 5 * kinds["query"] and {"LayerNorm: beta", "LayerNorm: gamma"} <= {*kinds}
    words = facts["words"]
    assert words["moved"][0][0] == MOVED_WORD and words["compared"] == len(WORDS) and words["equal"] == 0
    assert words["moved"][0][1] > 10 * words["median"]


def test_variables_of_only_one_side_are_told(facts):
    only = [sentence for sentence in facts["sentences"] if sentence.startswith("Only ")]
    assert len(only) == 2 and "cls/predictions/output_bias" in only[0] and "output_weights" in only[1]


def test_the_same_weights_have_no_distance(explorer, weights):
    facts = comparison.describe(explorer, checkpoint.open_weights(weights))
    assert facts["same"] and facts["words"]["equal"] == len(WORDS) and facts["words"]["moved"] == []
    assert all(row["relative"] == 0 and row["cosine"] == pytest.approx(1) for row in facts["variables"])
    assert facts["sentences"] == []


def test_other_words_are_compared_with_the_same_words(explorer, weights, tmp_path):
    folder = tmp_path / "reordered"
    shutil.copytree(weights, folder)
    write_vocab(folder / "vocab.txt", [*WORDS[:-1], "strange"][::-1])
    facts = comparison.describe(explorer, checkpoint.open_weights(str(folder)))
    assert facts["words"]["compared"] == len(WORDS) - 1
    one = checkpoint.open_weights(weights).get(inventory.WORDS)
    word, relative, _ = facts["words"]["moved"][0]
    a, b = one[WORDS.index(word)], one[::-1][WORDS.index(word)]
    assert relative == pytest.approx(np.linalg.norm(a - b) / np.linalg.norm(a), rel=1e-4)
    assert any("vocabularies differ: 888 entries and 888, 887 of them" in text for text in facts["sentences"])


def test_other_sizes_are_told_in_sentences(explorer, tmp_path):
    model = heads.MaskedLMModel(small_config(vocab_size=888, hidden_size=16, num_hidden_layers=1))
    randomize(model)
    checkpoint.save(str(tmp_path / "model.ckpt"), checkpoint.tf1_variables(model))
    (tmp_path / "bert_config.json").write_text(model.config.to_json_string())
    told = " ".join(comparison.describe(explorer, checkpoint.open_weights(str(tmp_path)))["sentences"])
    assert "intermediate_size 32 and 12" in told and "num_hidden_layers 2 and 1" in told
    assert "Not compared, because their shapes differ: bert/embeddings/position_embeddings is [48, 16]" in told
    assert "no vocabulary beside them" in told and "Only the model has bert/encoder/layer_1" in told


def test_nothing_in_common_is_an_error(explorer, tmp_path):
    model = heads.MaskedLMModel(small_config(num_hidden_layers=1))
    checkpoint.save(str(tmp_path / "model.ckpt"), checkpoint.tf1_variables(model))
    with pytest.raises(UserError, match="has no variable of the model's names and shapes"):
        comparison.describe(explorer, checkpoint.open_weights(str(tmp_path)))


def test_distances_that_are_no_numbers():
    zero, one = np.zeros(3, np.float32), np.ones(3, np.float32)
    assert comparison.compare(zero, one)[0]["relative"] is None
    assert comparison.compare(zero, zero)[0]["relative"] == 0.0
    row, _ = comparison.compare(one, np.full(3, np.nan, np.float32))
    assert row["relative"] is row["cosine"] is row["largest"] is None

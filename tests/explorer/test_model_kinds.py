"""The explorer's steps on models whose positions are no variable, or whose output table is one of its own."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from explorer_model import SIZES, save
from model_kinds import KINDS, OUTPUT_TABLE, POSITIONS
from small_models import randomize, small_config

from bert_tf2 import heads
from bert_tf2.explorer import inventory, masked_words, sentence, trace
from bert_tf2.explorer.opened import Explorer
from bert_tf2.explorer.options import ExplorerOptions

SENTENCE = trace.Sentence(("[CLS]", "a", "b", "[SEP]"), (1, 9, 10, 2), (0, 0, 1, 1), (1, 1, 1, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_steps_are_the_models_own(kind):
    model = heads.MaskedLMModel(small_config(**KINDS[kind]))
    randomize(model)
    found = trace.runner(model.bert)(SENTENCE)
    embeddings = trace.embedding_steps(model.bert, found)
    np.testing.assert_allclose(embeddings.norm, model.bert.embeddings.layer_norm(embeddings.sum), rtol=1e-5, atol=2e-6)
    assert embeddings.positions.any() == (kind != "without positions")

    batch = {"input_ids": [SENTENCE.input_ids], "segment_ids": [SENTENCE.segment_ids], "masked_lm_positions": [[2]]}
    logits = model({name: tf.constant(values) for name, values in batch.items()})[0, 0]
    steps = masked_words.head_steps(model, found.sequence_output[0, 2])
    np.testing.assert_allclose(steps.logits, logits, rtol=1e-5, atol=2e-6)
    best = masked_words.best_words(model, steps, 1)[0]
    np.testing.assert_array_equal(best.row, model.get_output_table()[best.token_id])


def test_every_view_opens_such_a_model(tmp_path):
    model = heads.MaskedLMModel(small_config(**SIZES, **KINDS["untied and sinusoidal"]))
    explorer = Explorer(ExplorerOptions(model=save(tmp_path, model)))
    assert explorer.describe()["config"]["tie_word_embeddings"] is False

    found = inventory.describe(explorer)
    parts = {row["name"]: row["part"] for row in found["variables"]}
    assert parts[OUTPUT_TABLE] == "masked lm" and POSITIONS not in parts
    assert not found["sharing"]["shared"] and not found["sharing"]["copies"]
    assert found["positions"] is None
    asked = {"text": "the capital of france is [MASK] .", "token": 6}
    routes = sentence.routes(explorer)
    assert len(routes["/api/embeddings"](asked)["norms"]) == 5
    assert routes["/api/words"](asked)["words"]

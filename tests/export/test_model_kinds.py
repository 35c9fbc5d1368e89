"""Exports of models with other positions, and with an output table of their own."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from export_cases import CONFIG, Exported, assert_outputs, expected_outputs, make_options, rows, save_weights
from model_kinds import KINDS
from small_models import randomize, small_batch, small_config

from bert_tf2 import heads, modeling
from bert_tf2.config import BertConfig
from bert_tf2.export import folded_encoder
from bert_tf2.export.run import run


@pytest.mark.parametrize("kind", KINDS)
def test_the_encoder_computes_what_the_model_does(kind):
    model = modeling.BertModel(small_config(**KINDS[kind]))
    randomize(model)
    batch = small_batch()
    inputs = [batch[name] for name in ("input_ids", "input_mask", "segment_ids")]
    sequence, pooled = folded_encoder.Encoder(model)(*map(tf.constant, inputs))
    wanted = model(*inputs)
    there = inputs[1] > 0
    np.testing.assert_allclose(sequence.numpy()[there], wanted.sequence_output.numpy()[there], atol=1e-5)
    np.testing.assert_allclose(pooled, wanted.pooled_output, atol=1e-5)


@pytest.mark.parametrize("kind", ["untied and sinusoidal", "without positions"])
def test_the_exported_words_are_those_of_the_model(tmp_path, kind):
    config = BertConfig.from_dict({**CONFIG.to_dict(), **KINDS[kind]})
    model = heads.PretrainingModel(config)
    weights = save_weights(tmp_path, "masked_lm", model)
    options = make_options(tmp_path, "masked_lm", weights, text_signatures=False)
    pathlib.Path(options.bert_config_file).write_text(config.to_json_string())
    made = Exported(run(options), weights, model, None, options)
    inputs = rows()
    assert_outputs(made.ask("serving_default", **inputs), expected_outputs(made, inputs))
    assert BertConfig.from_dict(made.info["config"]) == config
    # Every table is in the file once.
    size = pathlib.Path(made.folder, "variables", "variables.data-00000-of-00001").stat().st_size
    numbers = sum(int(np.prod(variable.shape)) for variable in model.variables)
    positions = 0 if config.position_embedding_type == "none" else config.max_position_embeddings * config.hidden_size
    assert size < 4 * (numbers + positions) + 20_000

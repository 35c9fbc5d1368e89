"""The inference graph against the model that it is made of."""

import numpy as np
import pytest
import tensorflow as tf
from small_models import LENGTH, VOCAB, randomize, small_config

from bert_tf2 import modeling
from bert_tf2.exporting import folded_encoder

ONES = [1] * LENGTH
MASKS = {
    "one full row": [ONES],
    "one short row": [[1, 1, 1] + [0] * 7],
    "no padding": [ONES] * 3,
    "all lengths": [[1] * length + [0] * (10 - length) for length in (7, 1, 10, 3, 9, 2, 5, 8, 4, 6, 10)],
    "holes": [[1, 0, 1, 0, 0, 1, 1, 0, 0, 1], [1, 1, 0, 1] + [0] * 6, ONES],
    "padding in front": [[0, 0, 1, 1, 1, 1, 1, 0, 0, 0], [0] * 9 + [1]],
}


def check(model, masks) -> None:
    """All states, and those at three positions of each row, one of them twice; zeros at padding."""
    encoder, random = folded_encoder.Encoder(model), np.random.default_rng(1)
    graph = tf.function(encoder, input_signature=[tf.TensorSpec([None, None], tf.int32)] * 4)
    for mask in (np.array(mask, np.int32) for mask in masks):
        ids = random.integers(0, VOCAB, mask.shape).astype(np.int32)
        inputs = [ids, mask, random.integers(0, 2, mask.shape).astype(np.int32)]
        wanted, is_token = model(*inputs), mask[..., None]
        reads = np.array([np.flatnonzero(row)[[0, -1, 0]] for row in mask], np.int32)
        states = np.take_along_axis(wanted.sequence_output.numpy(), reads[..., None], 1)
        for found, sequence in ((encoder(*inputs), wanted.sequence_output * is_token), (graph(*inputs, reads), states)):
            np.testing.assert_allclose(found[0], sequence, atol=1e-5, rtol=0)
            np.testing.assert_allclose(found[1], wanted.pooled_output, atol=1e-5, rtol=0)


def test_any_mask_gives_the_models_numbers():
    model = modeling.BertModel(small_config())
    randomize(model)
    check(model, MASKS.values())


@pytest.mark.parametrize(
    "changes",
    [
        *({"hidden_act": name} for name in ("gelu_erf", "GELU", "relu", "tanh", "linear")),
        *({"layer_norm_eps": epsilon} for epsilon in (1e-12, 0.5)),  # which is what decides, of small states
    ],
    ids=str,
)
def test_kinds_of_models(changes):
    model = modeling.BertModel(small_config(**changes))
    randomize(model, scale=0.01 if "layer_norm_eps" in changes else 0.3)
    check(model, [MASKS["all lengths"]])


def test_the_weights_are_its_own():
    model, ids = modeling.BertModel(small_config()), tf.ones([2, 5], tf.int32)
    randomize(model)
    encoder = folded_encoder.Encoder(model)
    before = [output.numpy() for output in encoder(ids, ids, ids)]
    for variable in model.variables:
        variable.assign(tf.zeros(variable.shape))
    for output, same in zip(encoder(ids, ids, ids), before, strict=True):
        np.testing.assert_array_equal(output, same)
    assert sum(int(tf.size(variable)) for variable in encoder.variables) == model.count_params()

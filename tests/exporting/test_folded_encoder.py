"""The encoder of exports against the model that it is made of; test_signatures.py has it in graphs."""

import numpy as np
import pytest
import tensorflow as tf
from small_models import LENGTH, VOCAB, randomize, small_config

from bert_tf2 import modeling
from bert_tf2.exporting import folded_encoder

ONES = [1] * LENGTH
ALL_LENGTHS = [[1] * length + [0] * (10 - length) for length in (7, 1, 10, 3, 9, 2, 5, 8, 4, 6, 10)]
HOLES = [[1, 0, 1, 0, 0, 1, 1, 0, 0, 1], [1, 1, 0, 1] + [0] * 6, ONES, [0, 0, 1, 1, 1, 1, 1, 0, 0, 0], [0] * 9 + [1]]


@pytest.mark.parametrize(
    ("changes", "masks"),
    [
        ({}, [[ONES], [[1, 1, 1] + [0] * 7], [ONES] * 3, ALL_LENGTHS, HOLES]),
        *(({"hidden_act": name}, [ALL_LENGTHS]) for name in ("gelu_erf", "GELU", "relu", "tanh", "linear")),
        *(({"layer_norm_eps": epsilon}, [ALL_LENGTHS]) for epsilon in (1e-12, 0.5)),  # decides on small states
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_it_gives_the_numbers_of_the_model(changes, masks):
    """All states, and those at three positions of each row, one of them twice; zeros at padding."""
    model, random = modeling.BertModel(small_config(**changes)), np.random.default_rng(1)
    randomize(model, scale=0.01 if "layer_norm_eps" in changes else 0.3)
    encoder = folded_encoder.Encoder(model)
    for mask in (np.array(mask, np.int32) for mask in masks):
        ids, segments = (random.integers(0, high, mask.shape).astype(np.int32) for high in (VOCAB, 2))
        wanted = model(ids, mask, segments)
        reads = np.array([np.flatnonzero(row)[[0, -1, 0]] for row in mask], np.int32)
        states = np.take_along_axis(wanted.sequence_output.numpy(), reads[..., None], 1)
        for given, sequence in (((), wanted.sequence_output * mask[..., None]), ((reads,), states)):
            found = encoder(ids, mask, segments, *given)
            np.testing.assert_allclose(found[0], sequence, atol=1e-5, rtol=0)
            np.testing.assert_allclose(found[1], wanted.pooled_output, atol=1e-5, rtol=0)


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

"""The encoder of exports against the model that it is made of; test_signatures.py has it in graphs."""

import numpy as np
import pytest
import tensorflow as tf
from small_models import VOCAB, randomize, small_config

from bert_tf2 import modeling
from bert_tf2.exporting import folded_encoder

ONES = [1] * 10
ALL_LENGTHS = [[1] * length + [0] * (10 - length) for length in (7, 1, 10, 3, 9, 2, 5, 8, 4, 6, 10)]
HOLES = [[1, 0, 1, 0, 0, 1, 1, 0, 0, 1], [1, 1, 0, 1] + [0] * 6, ONES, [0, 0, 1, 1, 1, 1, 1, 0, 0, 0], [0] * 9 + [1]]


@pytest.mark.parametrize("changes", [{}, {"hidden_act": "relu"}, {"layer_norm_eps": 0.5}], ids=str)
def test_it_gives_the_numbers_of_the_model(changes):
    """All states, and those at three positions of each row, one of them twice; zeros at padding."""
    model, random = modeling.BertModel(small_config(**changes)), np.random.default_rng(1)
    randomize(model)
    encoder = folded_encoder.Encoder(model)
    assert sum(int(tf.size(variable)) for variable in encoder.variables) == model.count_params()
    for mask in (np.array(mask, np.int32) for mask in ([ONES], [[1, 1, 1] + [0] * 7], [ONES] * 3, ALL_LENGTHS, HOLES)):
        ids, segments = (random.integers(0, high, mask.shape).astype(np.int32) for high in (VOCAB, 2))
        wanted = model(ids, mask, segments)
        reads = np.array([np.flatnonzero(row)[[0, -1, 0]] for row in mask], np.int32)
        states = np.take_along_axis(wanted.sequence_output.numpy(), reads[..., None], 1)
        for given, sequence in (((), wanted.sequence_output * mask[..., None]), ((reads,), states)):
            found = encoder(ids, mask, segments, *given)
            np.testing.assert_allclose(found[0], sequence, atol=1e-5, rtol=0)
            np.testing.assert_allclose(found[1], wanted.pooled_output, atol=1e-5, rtol=0)

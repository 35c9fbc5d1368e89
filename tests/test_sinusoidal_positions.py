"""The fixed positions, against the formula of the paper one number at a time."""

import math

import numpy as np
import pytest
from small_models import small_config

from bert_tf2 import modeling
from bert_tf2.layers import sinusoidal_positions


@pytest.mark.parametrize("width", [1, 2, 7, 12])
def test_the_formula_of_the_paper(width):
    found = sinusoidal_positions(9, width)
    assert found.dtype == np.float32 and found.shape == (9, width)
    for position in range(9):
        for column in range(width):
            angle = position / 10000 ** ((column // 2 * 2) / width)
            wanted = math.sin(angle) if column % 2 == 0 else math.cos(angle)
            assert abs(found[position, column] - wanted) < 1e-6, (position, column)


def test_far_positions_keep_their_precision():
    row = sinusoidal_positions(100_000, 8)[99_999]
    np.testing.assert_allclose(row[0], math.sin(99_999), atol=1e-6)


def test_a_learned_table_can_start_from_it():
    model = modeling.BertModel(small_config(position_embedding_type="learned_from_sinusoidal"))
    table = model.embeddings.position_embeddings
    np.testing.assert_allclose(table.numpy(), 0.02 * np.sqrt(2) * sinusoidal_positions(16, 8), rtol=1e-6)
    assert any(variable is table for variable in model.trainable_variables)

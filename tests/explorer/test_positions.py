"""The figures that compare learned positions with the sinusoid, beside scipy's and those of tables made for it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.spatial
import scipy.stats

from bert_tf2.explorer import positions
from bert_tf2.explorer.opened import unpack
from bert_tf2.layers import sinusoidal_positions
from bert_tf2.support.errors import UserError


def table_of(count=40, width=24, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 0.5, (count, width)).astype(np.float32)


def rotated(table: np.ndarray, seed=1) -> np.ndarray:
    """Turned, moved and scaled: the similarities by cosine change only through the move."""
    random = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(random.normal(size=(table.shape[1], table.shape[1])))
    return 3.0 * table @ turn + random.normal(size=table.shape[1])


@pytest.mark.parametrize("shape", [(40, 24), (24, 40), (5, 64)])
def test_the_rotation_explains_what_scipy_says(shape):
    one, other = table_of(*shape), table_of(*shape, seed=3)
    _, _, disparity = scipy.spatial.procrustes(one, other)
    assert positions.share_after_rotation(one, other) == pytest.approx(1 - disparity, abs=1e-6)
    assert positions.share_after_rotation(other, one) == pytest.approx(1 - disparity, abs=1e-6)


def test_a_rotated_sinusoid_is_recognized_although_no_column_is_alike():
    sinusoid = sinusoidal_positions(48, 16)
    learned = rotated(sinusoid)
    facts = positions.describe(learned.astype(np.float32))
    assert facts["aligned"]["sinusoid"] == pytest.approx(1.0, abs=1e-4)
    assert facts["aligned"]["shuffled"] < 0.5 and facts["aligned"]["random"] < 0.8
    columns = [abs(np.corrcoef(learned[:, i], sinusoid[:, i])[0, 1]) for i in range(16)]
    assert np.median(columns) < 0.5


def test_random_rows_have_nothing_in_common_with_the_sinusoid():
    facts = positions.describe(table_of(64, 32), rows=64)
    for measure in positions.MEASURES:
        assert abs(facts["similarity"][measure]["correlation"]["sinusoid"]) < 0.1
    assert facts["aligned"]["sinusoid"] == pytest.approx(facts["aligned"]["shuffled"], abs=0.05)


def test_smooth_rows_have_the_table_s_neighbors_and_nothing_else():
    table = positions.smooth_rows(np.ones([400, 300]), np.random.default_rng(0))
    assert np.diagonal(positions.similarities(table), 1).mean() == pytest.approx(0.999, abs=0.001)
    learned = table_of(200, 300).astype(np.float64)
    learned[1:] += 0.7 * learned[:-1]
    wanted = np.diagonal(positions.similarities(learned), 1).mean()
    smooth = positions.smooth_rows(learned, np.random.default_rng(1))
    assert np.diagonal(positions.similarities(smooth), 1).mean() == pytest.approx(wanted, abs=0.03) and wanted > 0.3
    assert positions.by_distance(positions.similarities(smooth))[100:].max() < 0.2
    found = positions.describe(learned.astype(np.float32))["smooth"]
    for measure in positions.MEASURES:  # similar neighbors alone look like the sinusoid
        assert found["correlation"][measure] > 0.2
    rough = positions.describe(table_of(64, 32), rows=64)["smooth"]
    assert abs(rough["correlation"]["cosine"]) < 0.1 and rough["aligned"] > 0.1  # a rotation explains some of anything


def test_correlation_is_pearsons_over_the_pairs():
    one, other = (positions.similarities(table_of(seed=seed)) for seed in (1, 2))
    pairs = np.triu_indices(40, 1)
    assert positions.correlation(one, other) == pytest.approx(scipy.stats.pearsonr(one[pairs], other[pairs])[0])
    assert positions.correlation(one, np.ones((40, 40))) == 0.0


def test_similarities_and_distances_by_hand():
    table = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
    assert positions.similarities(table, "dot").tolist() == [[1, 0, 3], [0, 4, 8], [3, 8, 25]]
    cosines = positions.similarities(table, "cosine")
    assert cosines == pytest.approx(np.array([[1, 0, 0.6], [0, 1, 0.8], [0.6, 0.8, 1]]))
    assert positions.by_distance(cosines) == pytest.approx([1.0, 0.4, 0.6])


def test_the_effective_rank_counts_directions():
    equal = np.eye(8)[:, :4].repeat(1, axis=0)  # 4 equal directions among 8 rows
    shares = positions.variance_shares(np.vstack([equal[:4], -equal[:4]]))
    assert shares.sum() == pytest.approx(1.0) and positions.effective_rank(shares) == pytest.approx(4.0, abs=0.01)
    line = np.outer(np.arange(9.0), np.ones(5))
    assert positions.effective_rank(positions.variance_shares(line)) == pytest.approx(1.0)


def test_components_are_the_rows_along_the_main_directions():
    table = table_of()
    centered = table - table.mean(axis=0)
    _, _, directions = np.linalg.svd(centered, full_matrices=False)
    found = positions.components(table)
    for index in range(4):
        assert abs(np.corrcoef(found[index], centered @ directions[index])[0, 1]) == pytest.approx(1.0, abs=1e-4)
    assert np.abs(found).max() == pytest.approx(1.0)


@pytest.mark.parametrize("trained", [0, 20, 40])
def test_rows_that_were_never_trained_are_found(trained):
    table = table_of(40, 96)
    table[:trained] = 1.5 * sinusoidal_positions(trained, 96)
    assert positions.trained_rows(table) == trained
    facts = positions.describe(table)
    assert facts["trained"] == trained and facts["rows"] == (trained or 40)


def test_of_many_positions_every_second_is_sent():
    facts = positions.describe(table_of(300, 8), rows=300)
    assert facts["shown"] == [*range(0, 300, 2)]
    learned = unpack(facts["similarity"]["cosine"]["learned"])
    assert learned.shape == (150, 150) and np.diagonal(learned) == pytest.approx(1.0, abs=1e-6)
    assert unpack(facts["similarity"]["cosine"]["by_distance"]["learned"]).shape == (300,)


def test_the_address_answers_for_other_numbers_of_rows(explorer):
    handle = positions.routes(explorer)["/api/positions"]
    assert handle({"rows": "10"})["rows"] == 10
    with pytest.raises(UserError, match="rows must be a whole number from 3 to 48"):
        handle({"rows": 49})


def test_a_zero_table_is_no_error():
    facts = positions.describe(np.zeros((6, 4), np.float32))
    assert facts["similarity"]["cosine"]["correlation"]["sinusoid"] == 0.0

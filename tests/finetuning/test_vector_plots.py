"""Vectors as points: the principal components by hand, who gets which color, and extract_features.py --plot."""

from __future__ import annotations

import numpy as np
import pytest
import toy_data

from bert_tf2 import modeling
from bert_tf2.finetuning import extract_features, vector_plots
from bert_tf2.finetuning.options import FeatureOptions
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import WrongSetting
from bert_tf2.weights import checkpoint


def test_principal_components_by_hand():
    vectors = np.random.default_rng(1).normal(size=[40, 6]) * [5, 1, 3, 1, 1, 1]
    points, shares = vector_plots.principal_components(vectors)
    centered = vectors - vectors.mean(axis=0)
    values, directions = np.linalg.eigh(centered.T @ centered)
    wanted = centered @ directions[:, [-1, -2]]
    np.testing.assert_allclose(np.abs(points), np.abs(wanted), atol=1e-8)  # the sign of a direction is free
    np.testing.assert_allclose(shares, values[[-1, -2]] / values.sum())


def test_few_and_equal_vectors():
    points, shares = vector_plots.principal_components(np.array([[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]]))
    assert np.abs(points[:, 0]) == pytest.approx([1.5, 1.5]) and shares == pytest.approx([1, 0])
    points, shares = vector_plots.principal_components(np.ones([3, 4]))
    assert not points.any() and not shares.any()
    with pytest.raises(UserError, match="--plot needs two lines of text or more"):
        vector_plots.principal_components(np.ones([1, 4]))
    with pytest.raises(UserError, match="a vector is not finite"):
        vector_plots.principal_components(np.array([[np.nan, 1.0], [1.0, 1.0]]))


def test_a_sample_is_of_the_whole_stream(monkeypatch):
    monkeypatch.setattr(vector_plots, "MOST_POINTS", 50)
    sample = vector_plots.Sample()
    assert [*sample.through(range(2000))] == [*range(2000)]
    assert sample.vectors == sample.places and sample.seen == 2000 and len({*sample.places}) == 50
    assert 700 < np.mean(sample.places) < 1300  # 1000 with a deviation of 82


def drawn(labels) -> tuple:
    """The axes of a figure with a point for each label."""
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axis = figure.subplots()
    vector_plots._draw_labeled(axis, np.zeros([len(labels), 2]), labels)
    return figure, axis


def test_labels_are_told_apart_the_frequent_ones_first():
    labels = [f"label {number}" for number in range(30) for _ in range(number + 1)]
    figure, axis = drawn(labels)
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.texts]
    assert names[:2] == ["label 29 (30)", "label 28 (29)"]
    assert names[-1] == "6 other labels (21)" and len(names) == vector_plots.MOST_LABELS + 1
    looks = {(line.get_color(), line.get_marker()) for line in axis.lines}
    assert len(looks) == len(names)
    assert sum(len(points.get_offsets()) for points in axis.collections) == len(labels)


def test_many_numbers_are_a_scale_of_colors():
    figure, _ = drawn([str(number / 4) for number in range(20)])
    assert not figure.legends and figure.axes[-1].get_ylabel() == "label"
    figure, _ = drawn([str(number % 3) for number in range(20)])
    assert len(figure.legends) == 1


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("vectors")
    files = toy_data.write_model(folder)
    checkpoint.save(str(folder / "model.ckpt"), checkpoint.tf1_variables(modeling.BertModel(toy_data.config())))
    toy_data.write_tsv_task(folder)
    return {**files, "init_checkpoint": str(folder / "model.ckpt"), "input_file": str(folder / "dev.tsv")}


COLUMNS = {"text_a_column": "text", "label_column": "answer"}


def test_the_vectors_of_a_table(settings, tmp_path):
    pytest.importorskip("matplotlib")
    common = {**settings, "layers": "-1", "max_seq_length": 16, "pooling": "mean"}
    path = tmp_path / "x.svg"
    options = FeatureOptions(**common, **COLUMNS, output_file=str(tmp_path / "x.npy"), plot=str(path))
    assert extract_features.run(options) == 21
    picture = path.read_text()
    assert "21 lines: mean of the tokens, layers -1" in picture
    assert "yes (11)" in picture and "no (10)" in picture and "% of the variance)" in picture
    lines = [text for text, _ in toy_data.sentences(21, 2)]
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
    as_text = {**common, "input_file": str(tmp_path / "lines.txt"), "output_file": str(tmp_path / "y.npy")}
    extract_features.run(FeatureOptions(**as_text))
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), np.load(tmp_path / "y.npy"))


def test_settings_that_do_not_fit(settings):
    common = {**settings, "output_file": "x.json"}
    with pytest.raises(WrongSetting, match=r"--plot=x\.png: a point is a vector of a line, which needs --pooling"):
        FeatureOptions(**common, plot="x.png")
    with pytest.raises(WrongSetting, match="--label_column needs --text_a_column"):
        FeatureOptions(**common, plot="x.png", pooling="mean", label_column="answer")
    with pytest.raises(WrongSetting, match="--label_column needs --plot"):
        FeatureOptions(**common, pooling="mean", **COLUMNS)
    with pytest.raises(UserError, match="has no column 'stars'; its header is name, text, answer"):
        extract_features.run(FeatureOptions(**common, text_a_column="stars", layers="-1", max_seq_length=16))

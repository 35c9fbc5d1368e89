"""Records without protobuf and TensorFlow: the same bytes as with them."""

from __future__ import annotations

import numpy as np
import pytest

from bert_tf2.data import example_bytes, records


def reference(columns):
    """The rows of the columns, as TensorFlow serializes them."""
    kind = records.RecordKind(
        "random",
        {
            name: records.Feature("float32" if values.dtype == np.float32 else "int64", values.shape[1])
            for name, values in columns.items()
        },
    )
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [records.encode(kind, {name: values.tolist() for name, values in row.items()}) for row in rows]


@pytest.mark.parametrize("seed", range(10))
def test_random_rows(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 20))
    columns = {}
    for name in rng.permutation(["input_ids", "b", "B", "é", "a" * 200, "input_mask", "x_1"])[: rng.integers(1, 8)]:
        length = int(rng.choice([1, 2, 20, 127, 128, 3000]))
        bits = int(rng.choice([1, 7, 8, 14, 15, 31, 32, 33, 62]))
        values = rng.integers(0, 2 ** rng.integers(0, bits + 1, size=(count, length)), dtype=np.int64)
        kind = rng.choice(["float", "small", "negative", "long"])
        if kind == "float":
            values = rng.normal(size=(count, length)).astype(np.float32)
        elif kind == "small":
            values = (values & 1).astype(np.uint8)
        elif kind == "negative":
            values *= rng.choice([-1, 1], size=values.shape)
        columns[str(name)] = values
    assert example_bytes.encode(columns) == reference(columns)


@pytest.mark.parametrize(
    "values", [[0, 127], [128, 0], [16383, 16384], [2**32 - 1, 1], [2**32, 5], [2**63 - 1, 0], [-1, 3], [-(2**63), 0]]
)
def test_borders_of_varints(values):
    columns = {"x": np.array([values, values[::-1], [1, 1]], np.int64)}
    assert example_bytes.encode(columns) == reference(columns)


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_different_lengths(seed):
    rng = np.random.default_rng(seed)
    count, longest = int(rng.integers(1, 20)), int(rng.choice([1, 5, 200]))
    lengths = rng.integers(1, longest + 1, count)
    values = rng.integers(0, 2 ** int(rng.choice([1, 7, 14, 40])), (count, longest))
    values *= np.arange(longest) < lengths[:, None]
    labels = rng.integers(0, 2, (count, 1))
    found = example_bytes.encode({"labels": labels, "ids": example_bytes.Ragged(values, lengths)})
    for row, record in enumerate(found):
        own = {"labels": labels[row, None], "ids": values[row, None, : lengths[row]]}
        assert [record] == reference(own)


def test_ragged_rows_that_cannot_be_written():
    with pytest.raises(ValueError, match="x: a row has no values"):
        example_bytes.encode({"x": example_bytes.Ragged(np.zeros((2, 3), np.int64), np.array([3, 0]))})


def test_no_rows():
    assert example_bytes.encode({"x": np.zeros((0, 3), np.int64), "y": np.zeros((0, 1), np.float32)}) == []


def test_files_are_those_of_tensorflow(tmp_path):
    import tensorflow as tf

    contents = [b"", b"a", bytes(range(256)) * 300]
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for content in contents:
            writer.write(content)
    assert example_bytes.frames(contents) == (tmp_path / "theirs").read_bytes()
    assert example_bytes.frames([]) == b""


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": np.zeros((2, 3), int), "y": np.zeros((3, 3), int)}, r"y: an array of shape \(3, 3\) is not \[2, L\]"),
        ({"x": np.zeros((2, 0), int)}, "x: an array of shape"),
        ({"x": np.zeros(2, int)}, "x: an array of shape"),
        ({"x": np.zeros((2, 3))}, "x: values of type float64"),
    ],
)
def test_other_arrays_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        example_bytes.encode(columns)

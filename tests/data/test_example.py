"""Serialized Examples, written and read: the same bytes and numbers as with protobuf."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from bert_tf2.data import example, records
from bert_tf2.data.example import Ragged


def message(**features: list) -> tf.train.Example:
    found = tf.train.Example()
    for name, values in features.items():
        slot = found.features.feature[name]
        (slot.float_list if values and isinstance(values[0], float) else slot.int64_list).value.extend(values)
    return found


def reference(columns) -> list[bytes]:
    """The rows of the columns, as TensorFlow serializes them."""
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    found = [message(**dict(zip(columns, row, strict=True))) for row in rows]
    return [each.SerializeToString(deterministic=True) for each in found]


EDGES = [0, 1, 127, 128, 16383, 16384, 2**32 - 1, 2**32, 2**63 - 1, -1, -(2**63)]


@pytest.mark.parametrize("seed", range(40))
def test_rows(seed):
    """Random ones of floats, and of integers at the edges of their lengths as varints."""
    rng = np.random.default_rng(seed)
    count, columns = int(rng.integers(1, 20)), {}
    for name in rng.permutation(["input_ids", "b", "B", "é", "a" * 200, "input_mask", "x_1"])[: rng.integers(1, 8)]:
        length = int(rng.choice([1, 2, 20, 127, 128, 3000]))
        edges = np.array(EDGES[: rng.integers(1, 1 + len(EDGES))])
        values = rng.choice(edges, (count, length)) // rng.integers(1, 9)
        kind = rng.choice(["float", "ragged", "long"])
        if kind == "float":
            values = rng.normal(size=(count, length)).astype(np.float32)
        elif kind == "ragged":
            lengths = rng.integers(1, length + 1, count)
            values = Ragged(values * (np.arange(length) < lengths[:, None]), lengths)
        elif not values.any() or (0 < values.max() < 128 and values.min() >= 0):
            values = values.astype(np.uint8)
        columns[str(name)] = values
    assert example.encode(columns) == reference(columns)


def test_rows_of_a_kind():
    """No fraction becomes a whole number."""
    kind = records.RecordKind("x", {"a": records.Feature("int64", 3), "b": records.Feature("float32", 1)})
    rows = [{"a": [1, 300, 2], "b": [1]}, {"a": [-1, 2, 3], "b": [0.5]}]
    found = example.encode(records.columns(kind, rows))
    assert found == [message(a=row["a"], b=[float(row["b"][0])]).SerializeToString(deterministic=True) for row in rows]
    with pytest.raises(TypeError):
        records.encode(kind, {"a": [0.5, 1, 1], "b": [1.0]})
    assert example.encode({"x": np.zeros((0, 3), np.int64), "y": np.zeros((0, 1), np.float32)}) == []
    with pytest.raises(ValueError, match="x: values of type float64"):
        example.encode({"x": np.zeros((2, 3))})


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content) & 0x7F | 0x80, len(content) >> 7]) + content


@pytest.mark.parametrize("values", [b"\x05\xac", b"\xff" * 10 + b"\1\2"])
def test_bytes_that_are_no_example(values):
    bad = field(1, field(1, field(1, b"ids") + field(2, field(3, field(1, values)))))
    for data in (bad, b"hello", message(ids=[1]).SerializeToString()[:-1]):
        with pytest.raises(example.NotAnExample):
            example.parse(data)


def test_features_are_read():
    found = message(ids=[1, -2], scores=[0.5], none=[])
    found.features.feature["words"].bytes_list.value.append(b"x")
    found.features.feature["unset"].SetInParent()
    read = example.parse(found.SerializeToString())
    assert {name: values.tolist() for name, values in read.items()} == {"ids": [1, -2], "scores": [0.5], "none": []}
    assert read["ids"].dtype == np.int64 and read["scores"].dtype == np.float32

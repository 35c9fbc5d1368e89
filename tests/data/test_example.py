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


EDGES = [0, 1, 127, 128, 16383, 16384, 2**32 - 1, 2**32, 2**63 - 1, -1, -(2**63)]


@pytest.mark.parametrize("seed", range(25))
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
    rows = (
        dict(zip(columns, row, strict=True)) for row in zip(*map(lambda v: v.tolist(), columns.values()), strict=True)
    )
    encoded = example.encode(columns)
    assert encoded == [message(**row).SerializeToString(deterministic=True) for row in rows]
    for name, values in example.parse(encoded[0]).items():
        assert values.tolist() == columns[name].tolist()[0]
        assert values.dtype == (np.float32 if getattr(columns[name], "dtype", None) == np.float32 else np.int64)


def test_no_fraction_becomes_a_whole_number():
    kind = records.RecordKind("x", {"a": records.Feature("int64", 3), "b": records.Feature("float32", 1)})
    found = example.encode(records.columns(kind, [{"a": [-1, 300, 2], "b": [1]}]))
    assert found == [message(a=[-1, 300, 2], b=[1.0]).SerializeToString(deterministic=True)]
    with pytest.raises(TypeError):
        records.encode(kind, {"a": [0.5, 1, 1], "b": [1.0]})
    with pytest.raises(ValueError, match="x: values of type float64"):
        example.encode({"x": np.zeros((2, 3))})


def test_what_else_an_example_may_hold():
    """Features without values, of bytes, and without a kind; bytes that are no Example."""
    found = message(ids=[1, -2], none=[])
    found.features.feature["words"].bytes_list.value.append(b"x")
    found.features.feature["unset"].SetInParent()
    data = found.SerializeToString()
    assert {name: values.tolist() for name, values in example.parse(data).items()} == {"ids": [1, -2], "none": []}
    # A list of integers whose last byte promises another one, in a feature of an entry of an Example.
    torn = b"\x0a\x10\x0a\x0e\x0a\x03ids\x12\x07\x1a\x05\x0a\x03\x05\x05\xac"
    for damaged in (torn, b"hello", data[:-1]):
        with pytest.raises(example.NotAnExample):
            example.parse(damaged)

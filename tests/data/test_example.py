"""Serialized Examples, written and read: the same bytes and numbers as with protobuf."""

import random

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_tf2.data import example, records
from bert_tf2.data.example import BYTES, FLOATS, INTEGERS
from bert_tf2.data.varints import Ragged

NAMES = ("ids", "mask", "weights")


def message(**features: list) -> tf.train.Example:
    found = tf.train.Example()
    for name, values in features.items():
        slot = found.features.feature[name]
        target = slot.float_list if values and isinstance(values[0], float) else slot.int64_list
        target.value.extend(values)
    return found


# Writing


def reference(columns):
    """The rows of the columns, as TensorFlow serializes them."""
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [
        message(**{name: values.tolist() for name, values in row.items()}).SerializeToString(deterministic=True)
        for row in rows
    ]


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
    assert example.encode(columns) == reference(columns)


@pytest.mark.parametrize(
    "values", [[0, 127], [128, 0], [16383, 16384], [2**32 - 1, 1], [2**32, 5], [2**63 - 1, 0], [-1, 3], [-(2**63), 0]]
)
def test_borders_of_varints(values):
    columns = {"x": np.array([values, values[::-1], [1, 1]], np.int64)}
    assert example.encode(columns) == reference(columns)


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_different_lengths(seed):
    rng = np.random.default_rng(seed)
    count, longest = int(rng.integers(1, 20)), int(rng.choice([1, 5, 200]))
    lengths = rng.integers(1, longest + 1, count)
    values = rng.integers(0, 2 ** int(rng.choice([1, 7, 14, 40])), (count, longest))
    values *= np.arange(longest) < lengths[:, None]
    labels = rng.integers(0, 2, (count, 1))
    found = example.encode({"labels": labels, "ids": Ragged(values, lengths)})
    for row, record in enumerate(found):
        own = {"labels": labels[row, None], "ids": values[row, None, : lengths[row]]}
        assert [record] == reference(own)


def test_ragged_rows_that_cannot_be_written():
    with pytest.raises(ValueError, match="x: a row has no values"):
        example.encode({"x": Ragged(np.zeros((2, 3), np.int64), np.array([3, 0]))})


def test_rows_of_a_kind():
    """Lists of any length; no fraction becomes a whole number."""
    kind = records.RecordKind("x", {"a": records.Feature("int64", 3), "b": records.Feature("float32", 1)})
    rows = [{"a": [1, 300], "b": [1]}, {"a": [-1], "b": [0.5]}]
    found = example.encode(records.columns(kind, rows))
    assert found == [message(a=row["a"], b=[float(row["b"][0])]).SerializeToString(deterministic=True) for row in rows]
    for wrong, error in (({"a": [0.5], "b": [1.0]}, TypeError), ({"a": [1], "b": []}, ValueError)):
        with pytest.raises(error):
            records.encode(kind, wrong)


def test_no_rows():
    assert example.encode({"x": np.zeros((0, 3), np.int64), "y": np.zeros((0, 1), np.float32)}) == []


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"x": np.zeros((2, 3), int), "y": np.zeros((3, 3), int)}, r"y: an array of shape \(3, 3\) is not \[2, L\]"),
        ({"x": np.zeros((2, 0), int)}, "x: an array of shape"),
        ({"x": np.zeros(2, int)}, "x: an array of shape"),
        ({"x": np.zeros((2, 3))}, "x: values of type float64"),
    ],
)
def test_other_arrays_are_refused(columns, words):
    with pytest.raises(ValueError, match=words):
        example.encode(columns)


# Reading


def located(records: list[bytes], names=NAMES):
    lengths = np.array([*map(len, records)], np.int64)
    starts = np.cumsum(lengths) - lengths + 3  # anything may stand before, between and behind
    return example.locate(b"abc" + b"".join(records), starts, lengths, names)


def decoded(records: list[bytes], names=NAMES) -> dict[str, list]:
    array, found, problems = located(records, names)
    assert not problems
    return {
        name: (example.floats if name == "weights" else example.integers)(array, found[name]).tolist() for name in names
    }


def field(number: int, content: bytes, wire: int = 2) -> bytes:
    size = bytes([len(content) & 0x7F | 0x80, len(content) >> 7]) if wire == 2 else b""
    return bytes([number << 3 | wire]) + size + content


LENGTHS_OF_VARINTS = [0, 1, 127, 128, 16383, 16384, 2**21 - 1, 2**21, 2**28, 2**35, 2**62, 2**63 - 1, -1, -(2**63)]


@pytest.mark.parametrize("most", [127, 30521, 2**27, 2**40, 2**63 - 1])
def test_numbers_of_all_lengths(most):
    rng = random.Random(most)
    rows = [
        {
            "ids": [rng.choice([0, rng.randint(0, most), rng.randint(0, 200), most]) for _ in range(33)],
            "mask": [rng.randint(0, 1) for _ in range(5)],
            "weights": [float(rng.randint(-9, 9)) / 4 for _ in range(7)],
        }
        for _ in range(40)
    ]
    answer = decoded([message(**row).SerializeToString() for row in rows])
    assert answer == {name: [row[name] for row in rows] for name in NAMES}


def test_negative_numbers_and_borders():
    count = len(LENGTHS_OF_VARINTS)
    rows = [LENGTHS_OF_VARINTS[shift:] + LENGTHS_OF_VARINTS[:shift] for shift in range(count)]
    records = [message(ids=row).SerializeToString() for row in rows]
    assert decoded(records, ["ids"]) == {"ids": rows}


def odd_forms() -> dict[str, bytes]:
    """Valid serializations of ids [5, 300] and weights [0.5] that writers of this project do not produce."""

    def list_of(kind, *parts):
        return field(kind, b"".join(parts))

    def entry(name, feature):
        return field(1, field(1, name) + field(2, feature))

    ids, half = field(1, b"\x05\xac\x02"), field(1, b"\0\0\0\x3f")
    weights = entry(b"weights", list_of(FLOATS, half))
    unpacked = field(1, b"\x05", wire=0) + field(1, b"\xac\x02", wire=0)
    usual = entry(b"ids", list_of(INTEGERS, ids))
    stale = entry(b"ids", list_of(INTEGERS, field(1, b"\x09")))
    return {
        "usual": field(1, usual + weights),
        "another order": field(1, weights + usual),
        "not packed": field(1, entry(b"ids", list_of(INTEGERS, unpacked)) + weights),
        "a float that is not packed": field(
            1, usual + entry(b"weights", list_of(FLOATS, field(1, b"\0\0\0\x3f", wire=5)))
        ),
        "in two lists": field(1, entry(b"ids", list_of(INTEGERS, field(1, b"\x05"), field(1, b"\xac\x02"))) + weights),
        "value before key": field(1, field(1, field(2, list_of(INTEGERS, ids)) + field(1, b"ids")) + weights),
        "features in two parts": field(1, usual) + field(1, weights),
        "a key twice": field(1, stale + weights + usual),
        "another kind before": field(1, entry(b"ids", list_of(FLOATS, half) + list_of(INTEGERS, ids)) + weights),
        "feature in two parts": field(
            1,
            field(
                1,
                field(1, b"ids")
                + field(2, list_of(INTEGERS, field(1, b"\x05")))
                + field(2, list_of(INTEGERS, field(1, b"\xac\x02"))),
            )
            + weights,
        ),
        "unknown fields": field(9, b"x")
        + field(1, field(7, b"\1", wire=0) + usual + weights)
        + field(8, b"12345678", 1),
        "other features": field(
            1, entry(b"name", list_of(BYTES, field(1, b"abc"))) + usual + entry(b"", b"") + weights
        ),
    }


@pytest.mark.parametrize("name", odd_forms())
def test_other_valid_forms(name):
    """Each alone, and among others, so that one odd record does not disturb its neighbors."""
    record, usual = odd_forms()[name], odd_forms()["usual"]
    expected = tf.train.Example.FromString(record).features.feature
    assert list(expected["ids"].int64_list.value) == [5, 300]
    assert list(expected["weights"].float_list.value) == [0.5]
    for several in ([record], [usual, record, usual], [*odd_forms().values()]):
        answer = decoded(several, ["ids", "weights"])
        assert answer == {"ids": [[5, 300]] * len(several), "weights": [[0.5]] * len(several)}


def test_more_features_than_usual():
    record = message(**{f"f{number}": [number] for number in range(150)}, ids=[1, 2]).SerializeToString()
    assert decoded([record, record], ["ids"]) == {"ids": [[1, 2]] * 2}


def test_what_is_missing_or_of_another_length():
    rows = [[1, 300], [3, 4], [5], [6, 7, 2**40]]
    records = [message(ids=row, mask=[1], weights=[0.5] * len(row)).SerializeToString() for row in rows]
    array, found, _ = located([*records, message(mask=[1]).SerializeToString()])
    assert found["ids"].kinds.tolist() == [INTEGERS] * 4 + [0]
    assert example.integers(array, found["ids"]).tolist() == rows
    assert example.floats(array, found["weights"]).tolist() == [[0.5] * len(row) for row in rows]
    assert len(example.floats(array, found["ids"])) == len(example.integers(array, found["weights"])) == 0


@pytest.mark.parametrize("values", [b"\x05\xac", b"\xff" * 10 + b"\1\2"])
def test_lists_that_are_cut_off(values):
    good = message(ids=[5, 300]).SerializeToString()
    bad = field(1, field(1, field(1, b"ids") + field(2, field(INTEGERS, field(1, values)))))
    array, found, _ = located([good, bad, good])
    assert example.integers(array, found["ids"]).tolist() == [[5, 300]]


@pytest.mark.parametrize("seed", range(4))
def test_damaged_bytes_are_read_as_protobuf_reads_them(seed):
    """Whatever protobuf accepts gives the same values, and what is refused here protobuf refuses too."""
    rng = random.Random(seed)
    whole = message(ids=[5, 300, 2**40], mask=[0, 1], weights=[0.5, 1.0]).SerializeToString()
    refused = read = 0
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 2)):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 2, 8, 10, 18, 26, 127, 128, 255, rng.randrange(256)])
        data = bytes(data[: rng.choice([len(data), len(data), rng.randrange(len(data))])])
        try:
            expected = tf.train.Example.FromString(data).features.feature
        except DecodeError:
            expected = None
        array, found, problems = located([whole, data, whole])
        assert problems in ([], [1])
        if problems:
            refused += 1
            assert expected is None
        elif expected is not None:
            read += 1
            for name in NAMES:
                floats = name == "weights"
                wanted = list((expected[name].float_list if floats else expected[name].int64_list).value)
                part = example.Located(*(vars(found[name])[key][1:2] for key in ("kinds", "starts", "lengths")))
                values = (example.floats if floats else example.integers)(array, part).values
                expectation = np.array([wanted] if wanted else np.zeros((0, 0)), values.dtype)
                np.testing.assert_array_equal(values, expectation, str(data))  # NaN is equal
    assert refused > 50 and read > 300

"""The decoder of serialized Examples against protobuf's own."""

import random

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_tf2.data import example_parser
from bert_tf2.data.example_parser import BYTES, FLOATS, INTEGERS

NAMES = ("ids", "mask", "weights")


def example(**features: list) -> tf.train.Example:
    found = tf.train.Example()
    for name, values in features.items():
        slot = found.features.feature[name]
        target = slot.float_list if values and isinstance(values[0], float) else slot.int64_list
        target.value.extend(values)
    return found


def located(records: list[bytes], names=NAMES):
    lengths = np.array([*map(len, records)], np.int64)
    starts = np.cumsum(lengths) - lengths + 3  # anything may stand before, between and behind
    return example_parser.locate(b"abc" + b"".join(records), starts, lengths, names)


def decoded(records: list[bytes], sizes: dict[str, int]) -> dict[str, list]:
    array, found, problems = located(records)
    assert not problems
    answers = {}
    for name, size in sizes.items():
        read = example_parser.floats if name == "weights" else example_parser.integers
        values, other = read(array, found[name], size)
        assert len(values) == len(records), (name, other)
        answers[name] = values.tolist()
    return answers


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
    answer = decoded([example(**row).SerializeToString() for row in rows], {"ids": 33, "mask": 5, "weights": 7})
    assert answer == {name: [row[name] for row in rows] for name in NAMES}


def test_negative_numbers_and_borders():
    count = len(LENGTHS_OF_VARINTS)
    rows = [LENGTHS_OF_VARINTS[shift:] + LENGTHS_OF_VARINTS[:shift] for shift in range(count)]
    records = [example(ids=row).SerializeToString() for row in rows]
    assert decoded(records, {"ids": count})["ids"] == rows


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
    for records in ([record], [usual, record, usual], [*odd_forms().values()]):
        answer = decoded(records, {"ids": 2, "weights": 1})
        assert answer == {"ids": [[5, 300]] * len(records), "weights": [[0.5]] * len(records)}


def test_more_features_than_usual():
    record = example(**{f"f{number}": [number] for number in range(150)}, ids=[1, 2]).SerializeToString()
    assert decoded([record, record], {"ids": 2})["ids"] == [[1, 2]] * 2


def test_what_is_missing_or_of_another_length():
    records = [example(ids=row, mask=[1]).SerializeToString() for row in ([1, 300], [3, 4], [5], [6, 7])]
    array, found, _ = located([*records, example(mask=[1]).SerializeToString()])
    values, other = example_parser.integers(array, found["ids"], 2)
    assert (values.tolist(), other) == ([[1, 300], [3, 4]], 1)
    assert found["ids"].kinds.tolist() == [INTEGERS] * 4 + [0]
    values, other = example_parser.integers(array, found["ids"], 3)
    assert (len(values), other) == (0, 2)
    assert example_parser.floats(array, found["ids"], 2)[1] == 0


@pytest.mark.parametrize(("values", "number"), [(b"\x05\xac", -1), (b"\xff" * 10 + b"\1\2", -1), (b"\x05" * 30, 30)])
def test_lists_that_are_cut_off_or_long(values, number):
    good = example(ids=[5, 300]).SerializeToString()
    bad = field(1, field(1, field(1, b"ids") + field(2, field(INTEGERS, field(1, values)))))
    array, found, _ = located([good, bad, good])
    read, other = example_parser.integers(array, found["ids"], 2)
    assert (read.tolist(), other) == ([[5, 300]], number)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_bytes_are_read_as_protobuf_reads_them(seed):
    """Whatever protobuf accepts gives the same values, and what is refused here protobuf refuses too."""
    rng = random.Random(seed)
    whole = example(ids=[5, 300, 2**40], mask=[0, 1], weights=[0.5, 1.0]).SerializeToString()
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
        assert [*problems] in ([], [1])
        if problems:
            refused += 1
            assert expected is None or "wire type" in problems[1]  # groups, which no Example has
        elif expected is not None:
            read += 1
            for name in NAMES:
                floats = name == "weights"
                wanted = list((expected[name].float_list if floats else expected[name].int64_list).value)
                part = example_parser.Located(*(vars(found[name])[key][1:2] for key in ("kinds", "starts", "lengths")))
                decode = example_parser.floats if floats else example_parser.integers
                values, other = decode(array, part, len(wanted) or 1)
                if wanted:
                    np.testing.assert_array_equal(values, np.array([wanted], values.dtype), str(data))  # NaN is equal
                else:
                    assert len(values) == 0 and other == 0, data
    assert refused > 50 and read > 300

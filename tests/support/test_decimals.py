"""Text of many numbers at a time is that of Python's json module."""

import json

import numpy as np
import pytest

from bert_tf2.support.decimals import json_lists

ROWS = {
    "usual": [0.5, -1.25, 0.123456, 3.0, -0.1, 12.5, 123.456789, 999.999],
    "trailing zeros": [0.1, 0.12, 0.123, 0.1234, 0.12345, 1.001, 1.0001, 100.0, 10.0],
    "zero": [0.0, -0.0, -1e-9, 1e-9],
    "with an exponent": [1e-6, 9.5e-5, -1.2e-5, 9.99999e-5, 1e-4],
    "half of a millionth": [2.0**-6 / 2, 3 * 2.0**-7, -5 * 2.0**-7, 2.0**-20],
    "large": [1000.0, 999.9999995, 1e9, -3.4e38, 2.0**24],
}


def by_python(values: np.ndarray) -> list[str]:
    return [json.dumps([round(float(value), 6) for value in row]) for row in values]


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_rows_by_python(row):
    values = np.array([row], np.float32)
    assert json_lists(values) == by_python(values)


def test_many_rows_stay_in_order():
    random = np.random.default_rng(1)
    values = (random.normal(size=(300, 40)) * 10.0 ** random.integers(-3, 3, (300, 40))).astype(np.float32)
    values[7, 3] = 0.0  # rows that are not simple, between those that are
    values[250] *= 1e6
    assert json_lists(values) == by_python(values) and json_lists(values[:0]) == []

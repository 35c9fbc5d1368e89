"""Text of many numbers at a time is the text of Python's json module."""

import json

import numpy as np

from bert_tf2.support.decimals import json_lists

ROWS = (
    [0.5, -1.25, 0.123456, 3.0, -0.1, 12.5, 123.456789, 999.999],
    [0.1, 0.12, 0.123, 0.1234, 0.12345, 1.001, 1.0001, 100.0, 10.0],  # zeros at the end
    [0.0, -0.0, -1e-9, 1e-9, 1e-6, 9.5e-5, -1.2e-5, 9.99999e-5, 1e-4],  # zero, and exponents
    [2.0**-6 / 2, 3 * 2.0**-7, -5 * 2.0**-7, 2.0**-20],  # half of a millionth
    [1000.0, 999.9999995, 1e9, -3.4e38, 2.0**24],
)


def test_rows_by_python():
    random = np.random.default_rng(1)
    many = random.normal(size=(300, 40)) * 10.0 ** random.integers(-3, 3, (300, 40))
    many[250] *= 1e6  # a row that is not simple, between those that are
    for rows in (*([row] for row in ROWS), many, many[:0]):
        values = np.array(rows, np.float32)
        assert json_lists(values) == [json.dumps([round(float(value), 6) for value in row]) for row in values]

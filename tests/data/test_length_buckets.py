"""Batches of like length: which rows they have, and that the order of the file comes back."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf2.data import record_order
from bert_tf2.layers import MASKED_SCORE

BATCH, WIDTH = 4, 32


def rows(count: int) -> dict[str, np.ndarray]:
    """Texts of random length, with a hole in some masks, and one without any token."""
    drawn = np.random.default_rng(1)
    lengths = drawn.integers(1, WIDTH + 1, count)
    mask = (np.arange(WIDTH) < lengths[:, np.newaxis]).astype(np.int32)
    mask[::5, 0] = 0
    mask[count // 2] = 0
    ids = (drawn.integers(1, 100, [count, WIDTH]) * mask).astype(np.int32)
    return {"input_ids": ids, "input_mask": mask, "label_ids": np.arange(count, dtype=np.int32)}


def divided(values: dict[str, np.ndarray], batch_size: int = BATCH) -> list[dict[str, np.ndarray]]:
    windows = tf.data.Dataset.from_tensor_slices(values).batch(record_order.rows_of_window(batch_size))
    return [*record_order.of_like_length(windows, batch_size).as_numpy_iterator()]


def cut(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Each batch as wide as its longest row, as record_order.read_records cuts it."""
    used = max([1, *(np.nonzero(batch["input_mask"])[1] + 1)])
    return {name: values[:, :used] if name.startswith("input_") else values for name, values in batch.items()}


# Two windows and a part of one; a part of a batch; a single row.
@pytest.mark.parametrize("count", [2 * 128 * BATCH + 13, 3, 1])
def test_the_order_of_the_file_comes_back(count):
    values = rows(count)
    found = [*record_order.put_back(map(cut, divided(values)), BATCH, MASKED_SCORE)]
    assert [len(batch["label_ids"]) for batch in found] == [BATCH] * (count // BATCH) + [count % BATCH] * bool(
        count % BATCH
    )
    assert set(found[0]) == set(values)
    for start, batch in zip(range(0, count, BATCH), found, strict=True):
        for name, array in batch.items():
            expected = values[name][start : start + BATCH]
            if name.startswith("input_"):
                width = array.shape[1]
                assert not expected[:, width:].any()
                expected = expected[:, :width]
            np.testing.assert_array_equal(array, expected)


def test_the_batches_are_as_large_as_a_padded_one_and_have_little_padding():
    values = rows(3 * 128 * BATCH)
    found = [*map(cut, divided(values))]
    sizes = [batch["input_ids"].shape for batch in found]
    assert all(count * width <= BATCH * WIDTH for count, width in sizes)
    last_of_window = [a["places"][0, 0] != b["places"][0, 0] for a, b in itertools.pairwise(found)] + [True]
    assert all(count >= BATCH for (count, _), last in zip(sizes, last_of_window, strict=True) if not last)
    computed = sum(count * width for count, width in sizes)
    assert computed < 1.1 * np.sum(np.maximum(values["input_mask"].sum(axis=1), 1))
    assert len(found) < 0.7 * len(values["input_ids"]) / BATCH


@pytest.mark.parametrize("batch_size", [2**31 - 1, 10**12])
def test_a_batch_may_be_larger_than_the_file(batch_size):
    values = rows(20)
    (batch,) = record_order.put_back(divided(values, batch_size), batch_size, MASKED_SCORE)
    np.testing.assert_array_equal(batch["label_ids"], values["label_ids"])


def test_a_window_has_whole_batches_and_fits_into_memory():
    sizes = (1, 7, 8, 32, 129, 1000, 16384, 50_000)
    assert [record_order.rows_of_window(size) % size for size in sizes] == [0] * len(sizes)
    assert record_order.rows_of_window(8) == 1024
    assert max(record_order.rows_of_window(size) for size in sizes[:-1]) <= 16384
    assert record_order.rows_of_window(50_000) == 50_000


def test_what_was_not_computed_is_no_answer():
    """Rows of one batch of the file that were computed in batches of different widths."""
    found = [
        {
            "places": np.array([[0, 1]]),
            "logits": np.array([[1.0, 2.0, 3.0]], np.float32),
            "tags": np.array([[1, 2, 3]]),
        },
        {"places": np.array([[0, 0]]), "logits": np.array([[4.0]], np.float32), "tags": np.array([[4]])},
    ]
    (batch,) = record_order.put_back(found, 2, MASKED_SCORE)
    assert batch["logits"].tolist() == [[4.0, MASKED_SCORE, MASKED_SCORE], [1.0, 2.0, 3.0]]
    assert batch["tags"].tolist() == [[4, 0, 0], [1, 2, 3]]

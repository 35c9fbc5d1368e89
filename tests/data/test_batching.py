"""Batches of rows of like length."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
from refused import refuses

from bert_tf2.data import batching, record_order, records
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
    """Each batch as wide as its longest row, as record_order.read_records cuts it."""
    pools = tf.data.Dataset.from_tensor_slices(values).batch(batching.rows_of_pool(batch_size))
    batches = batching.of_like_length(pools, batch_size)
    wide = ("input_ids", "input_mask")
    return [*batches.map(lambda batch: batching.cut_to_longest(batch, wide, 1)).as_numpy_iterator()]


def check_order(values, found, batch_size) -> None:
    """Checks that the batches, put back, are those of the file."""
    found = [*batching.put_back(found, batch_size, MASKED_SCORE)]
    starts = range(0, len(values["label_ids"]), batch_size)
    for start, batch in zip(starts, found, strict=True):
        assert batch.keys() == values.keys()
        for name, array in batch.items():
            expected = values[name][start : start + batch_size]
            if name.startswith("input_"):
                assert not expected[:, array.shape[1] :].any()
                expected = expected[:, : array.shape[1]]
            np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(("count", "batch_size"), [(1, BATCH), (20, 10**12)])
def test_a_part_of_a_batch(count, batch_size):
    check_order(rows(count), divided(rows(count), batch_size), batch_size)


def test_the_batches_are_as_large_as_a_padded_one_and_have_little_padding():
    values = rows(2 * 128 * BATCH + 13)  # two pools and a part of one
    found = divided(values)
    check_order(values, found, BATCH)
    sizes = [batch["input_ids"].shape for batch in found]
    assert all(count * width <= BATCH * WIDTH for count, width in sizes)
    last_of_window = [a["places"][0, 0] != b["places"][0, 0] for a, b in itertools.pairwise(found)] + [True]
    assert all(count >= BATCH for (count, _), last in zip(sizes, last_of_window, strict=True) if not last)
    computed = sum(count * width for count, width in sizes)
    assert computed < 1.1 * np.sum(np.maximum(values["input_mask"].sum(axis=1), 1))
    assert len(found) < 0.7 * len(values["input_ids"]) / BATCH
    pools = {size: batching.rows_of_pool(size) for size in (1, 7, 8, 32, 129, 1000, 16384, 50_000)}
    assert all(count % size == 0 for size, count in pools.items())  # they fit into memory
    assert pools.pop(50_000) == 50_000 and max(pools.values()) <= 16384 and pools[8] == 1024


def test_a_long_text_widens_its_own_batch_alone(tmp_path):
    """As whole texts, a pool of rows as wide as the longest text would take gigabytes."""
    kind = records.WHOLE_TEXTS[records.CLASSIFICATION.name]
    lengths = [5000 if n == 7 else 3 + n % 40 for n in range(200)]
    rows = ({"input_ids": [5] * n, "segment_lengths": [n], "label_ids": [1], "is_real_example": [1]} for n in lengths)
    records.write_records(str(tmp_path / "a"), kind, rows)

    def transform(batch, origin):
        padded = batching.padded_texts(batch, origin)
        return {**padded, "sizes": tf.fill([tf.shape(padded["input_ids"])[0]], tf.size(padded["input_ids"]))}

    sizes = {"vocab_size": 9, "type_vocab_size": 2, "num_labels": 2}
    refuses("num_labels, type_vocab_size", record_order.read_records, [str(tmp_path / "a")], kind, {"vocab_size": 9}, 2)
    how = {"pad_to_max_length": False, "like_lengths": True, "transform": transform}
    found = [*record_order.read_records([str(tmp_path / "a")], kind, sizes, 2, **how).as_numpy_iterator()]
    assert found[0]["input_ids"].shape == (2, 5000) and max(batch["sizes"].max() for batch in found) == 2 * 5000
    back = [*batching.put_back(found, 2, MASKED_SCORE)]
    assert [int(row.sum()) for batch in back for row in batch["input_mask"]] == lengths


def test_a_position_that_was_not_computed_is_no_answer():
    """Rows of one batch of the file that were computed in batches of different widths."""
    wide = {"places": np.array([[0, 1]]), "logits": np.array([[1.0, 2.0, 3.0]], "f"), "tags": np.array([[1, 2, 3]])}
    narrow = {"places": np.array([[0, 0]]), "logits": np.array([[4.0]], "f"), "tags": np.array([[4]])}
    (batch,) = batching.put_back([wide, narrow], 2, MASKED_SCORE)
    assert batch["logits"].tolist() == [[4.0, MASKED_SCORE, MASKED_SCORE], [1.0, 2.0, 3.0]]
    assert batch["tags"].tolist() == [[4, 0, 0], [1, 2, 3]]

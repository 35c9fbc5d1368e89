"""The order of training: every record once in an epoch, and the same from any place on; batches of like length."""

from __future__ import annotations

import itertools
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from refused import refuses

from bert_tf2.data import record_index, record_order, records
from bert_tf2.layers import MASKED_SCORE

COUNTS = {"d": 14_000, "a": 1, "c": 0, "b.gz": 9000, "e": 4096, "f": 2048}
TOTAL = sum(COUNTS.values())
BEGINS = np.cumsum([0, *(COUNTS[name] for name in sorted(COUNTS))])
WINDOW = 16 * 1024


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[str]:
    """Files of numbered records; those of a later name have larger numbers."""
    folder = tmp_path_factory.mktemp("records")
    for begin, name in zip(BEGINS, sorted(COUNTS), strict=False):
        with tf.io.TFRecordWriter(str(folder / name), "GZIP" if name.endswith(".gz") else "") as writer:
            for number in range(COUNTS[name]):
                writer.write(f"{begin + number:05d}".encode())
    return [str(folder / name) for name in COUNTS]


@pytest.fixture(scope="module")
def index(files):
    return record_index.read_index(files)


@pytest.fixture(scope="module")
def whole(index):
    """Three epochs."""
    return read(index, 3 * TOTAL)


def read(index, count, first=0, seed=1) -> list[int]:
    """The numbers of `count` records, after a check of the places that they are said to be from."""
    found = []
    for data, origin in record_order.shuffled(index, seed, first).rebatch(512):
        data = [int(value) for value in data.numpy()]
        assert (BEGINS[origin["file"].numpy()] + origin["record"].numpy()).tolist() == data
        place = np.arange(first + len(found), first + len(found) + len(data))
        assert origin["epoch"].numpy().tolist() == (place // TOTAL).tolist()
        found += data
        if len(found) >= count:
            return found[:count]
    raise AssertionError("the order has an end")


def test_every_epoch_has_every_record_once_in_its_own_order(index, whole):
    assert index.total == TOTAL and index.paths == tuple(sorted(index.paths))
    assert index.counts.tolist() == [1, 9000, *[1024] * 13, 688, *[1024] * 6]  # an archive is one run
    epochs = [whole[start : start + TOTAL] for start in range(0, 3 * TOTAL, TOTAL)]
    assert all(sorted(epoch) == [*range(TOTAL)] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert read(index, 999, seed=2) != whole[:999]
    # A window holds records of sixteen runs, or fewer with the long archive: not the neighbors of a single place.
    runs = np.searchsorted(np.cumsum(index.counts), np.arange(TOTAL), side="right")
    window = whole[:WINDOW]
    assert len({runs[number] for number in window}) >= 8 and window != sorted(window)
    assert len({runs[number] for number in window[:100]}) >= 4


@pytest.mark.parametrize("first", [TOTAL + WINDOW + 5, 2 * TOTAL - 1])
def test_reading_goes_on_from_every_place(index, whole, first):
    assert read(index, 500, first) == whole[first : first + 500]


def test_neither_the_order_of_the_names_nor_the_batches_matter(files, whole):
    index = record_index.read_index(files[::-1])
    batches = record_order.shuffled(index, 1, endless=False).rebatch(311)
    assert [int(value) for data, _ in batches for value in data.numpy()] == whole[:TOTAL]


def test_the_records_of_a_step_are_named(index, whole):
    found = record_order.where(index, 1, 7, 3)
    for number in whole[7:10]:
        file = np.searchsorted(BEGINS, number, side="right") - 1
        assert index.paths[file] in found and str(number - BEGINS[file] + 1) in found  # counted from 1


@pytest.fixture
def own(files, tmp_path):
    """Copies of the files, which a test may change."""
    return [shutil.copy(path, tmp_path) for path in files]


def test_other_records_are_told_from_these(own, index):
    before = record_index.read_index(own)
    assert before.description == index.description and f"{TOTAL} records in 6 files" in index.description
    assert record_index.find_change(before) is None
    assert record_index.read_index(own[:-1]).description != index.description
    with tf.io.TFRecordWriter(own[-1]) as writer:
        for number in range(TOTAL - 2048, TOTAL):
            writer.write(f"{number - (number == TOTAL - 1):05d}".encode())
    after = record_index.read_index(own)
    assert after.description != before.description and after.sizes.tolist() == before.sizes.tolist()
    assert str(record_index.find_change(before)).startswith(f"{own[-1]}: changed")


@pytest.mark.parametrize(("number", "size", "words"), [(0, 0, " 14000 "), (3, 200, "damaged"), (0, None, ", record ")])
def test_files_that_lose_records_or_change_end_the_order_and_are_named(own, tmp_path, number, size, words):
    """An order without an end would look for their records for ever. A checksum is verified again."""
    for _ in range(2):  # kept, then known
        index, _ = record_index.read(own, str(tmp_path / "out"), keep=True, smallest=1)
    content = bytearray(pathlib.Path(own[number]).read_bytes())
    content[-30] ^= size is None
    pathlib.Path(own[number]).write_bytes(content[:size])
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.DataLossError)):
        [*record_order.shuffled(index, 1).take(5)]  # windows
    found = str(record_index.find_change(index))
    assert found.startswith(own[number]) and words in found


# Batches of like length

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
    windows = tf.data.Dataset.from_tensor_slices(values).batch(record_order.rows_of_window(batch_size))
    batches = record_order.of_like_length(windows, batch_size)
    wide = ("input_ids", "input_mask")
    return [*batches.map(lambda batch: record_order.cut_to_longest(batch, wide, 1)).as_numpy_iterator()]


def check_order(values, found, batch_size) -> None:
    """Checks that the batches, put back, are those of the file."""
    found = [*record_order.put_back(found, batch_size, MASKED_SCORE)]
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
    values = rows(2 * 128 * BATCH + 13)  # two windows and a part of one
    found = divided(values)
    check_order(values, found, BATCH)
    sizes = [batch["input_ids"].shape for batch in found]
    assert all(count * width <= BATCH * WIDTH for count, width in sizes)
    last_of_window = [a["places"][0, 0] != b["places"][0, 0] for a, b in itertools.pairwise(found)] + [True]
    assert all(count >= BATCH for (count, _), last in zip(sizes, last_of_window, strict=True) if not last)
    computed = sum(count * width for count, width in sizes)
    assert computed < 1.1 * np.sum(np.maximum(values["input_mask"].sum(axis=1), 1))
    assert len(found) < 0.7 * len(values["input_ids"]) / BATCH
    windows = {size: record_order.rows_of_window(size) for size in (1, 7, 8, 32, 129, 1000, 16384, 50_000)}
    assert all(count % size == 0 for size, count in windows.items())  # they fit into memory
    assert windows.pop(50_000) == 50_000 and max(windows.values()) <= 16384 and windows[8] == 1024


def test_a_long_text_widens_its_own_batch_alone(tmp_path):
    """As whole texts, a window of rows as wide as the longest text would take gigabytes."""
    kind = records.WHOLE_TEXTS[records.CLASSIFICATION.name]
    lengths = [5000 if n == 7 else 3 + n % 40 for n in range(200)]
    rows = ({"input_ids": [5] * n, "segment_lengths": [n], "label_ids": [1], "is_real_example": [1]} for n in lengths)
    records.write_records(str(tmp_path / "a"), kind, rows)

    def transform(batch, origin):
        padded = record_order.padded_texts(batch, origin)
        return {**padded, "sizes": tf.fill([tf.shape(padded["input_ids"])[0]], tf.size(padded["input_ids"]))}

    sizes = {"vocab_size": 9, "type_vocab_size": 2, "num_labels": 2}
    refuses("num_labels, type_vocab_size", record_order.read_records, [str(tmp_path / "a")], kind, {"vocab_size": 9}, 2)
    how = {"pad_to_max_length": False, "like_lengths": True, "transform": transform}
    found = [*record_order.read_records([str(tmp_path / "a")], kind, sizes, 2, **how).as_numpy_iterator()]
    assert found[0]["input_ids"].shape == (2, 5000) and max(batch["sizes"].max() for batch in found) == 2 * 5000
    back = [*record_order.put_back(found, 2, MASKED_SCORE)]
    assert [int(row.sum()) for batch in back for row in batch["input_mask"]] == lengths


def test_a_position_that_was_not_computed_is_no_answer():
    """Rows of one batch of the file that were computed in batches of different widths."""
    wide = {"places": np.array([[0, 1]]), "logits": np.array([[1.0, 2.0, 3.0]], "f"), "tags": np.array([[1, 2, 3]])}
    narrow = {"places": np.array([[0, 0]]), "logits": np.array([[4.0]], "f"), "tags": np.array([[4]])}
    (batch,) = record_order.put_back([wide, narrow], 2, MASKED_SCORE)
    assert batch["logits"].tolist() == [[4.0, MASKED_SCORE, MASKED_SCORE], [1.0, 2.0, 3.0]]
    assert batch["tags"].tolist() == [[4, 0, 0], [1, 2, 3]]

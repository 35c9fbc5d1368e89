"""The order of training: every record once in an epoch, and the same from any place on."""

from __future__ import annotations

import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from bert_tf2.data import record_index, record_order

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

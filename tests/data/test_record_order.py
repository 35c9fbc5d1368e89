"""The order of training: every record once in an epoch, and the same order from any place on."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from bert_tf2.data import record_index, record_order, tfrecords

COUNTS = {"d": 70, "a": 1, "c": 0, "b.gz": 33, "e": 16, "f": 8}
TOTAL = sum(COUNTS.values())


@pytest.fixture
def small(monkeypatch):
    """Runs of 8 records, windows of 32."""
    monkeypatch.setattr(record_index, "RUN", 8)
    monkeypatch.setattr(record_order, "RUN", 8)
    monkeypatch.setattr(record_order, "WINDOW", 32)


@pytest.fixture
def paths(tmp_path, small) -> list[str]:
    """Files of numbered records; those of a later name have larger numbers."""
    number = 0
    for name in sorted(COUNTS):
        with tf.io.TFRecordWriter(str(tmp_path / name), "GZIP" if name.endswith(".gz") else "") as writer:
            for _ in range(COUNTS[name]):
                writer.write(str(number).encode())
                number += 1
    return [str(tmp_path / name) for name in COUNTS]


def read(index, count, seed=1, first=0, batch_size=5) -> list[int]:
    """The numbers of `count` records, after a check of what is said about where they are from."""
    begins = np.cumsum([0, *(COUNTS[name] for name in sorted(COUNTS))])
    found = []
    for data, origin in record_order.shuffled(index, seed, first).rebatch(batch_size):
        data = [int(value) for value in data.numpy()]
        assert (begins[origin["file"].numpy()] + origin["record"].numpy()).tolist() == data
        place = np.arange(first + len(found), first + len(found) + len(data))
        assert origin["epoch"].numpy().tolist() == (place // TOTAL).tolist()
        found += data
        if len(found) >= count:
            return found[:count]
    raise AssertionError("the order has an end")


def test_the_index_knows_where_runs_begin(paths):
    index = record_index.read_index(paths)
    assert index.paths == tuple(sorted(paths)) and index.total == TOTAL
    assert index.counts.tolist() == [1, 33, *[8] * 8, 6, 8, 8, 8]  # a, b.gz, d, e, f
    assert index.starts.tolist() == [0, 0, *range(0, 72, 8), 0, 8, 0]
    for file, offset, start in zip(index.files, index.offsets, index.starts, strict=True):
        if not index.paths[file].endswith(".gz"):
            data = tf.data.Dataset.from_tensors(offset).flat_map(
                lambda place, path=index.paths[file]: record_order._opened(path, "", place)
            )
            assert int(next(iter(data)).numpy()) == sum(COUNTS[name] for name in sorted(COUNTS)[:file]) + start


@pytest.mark.parametrize("block_bytes", [1, 64, 100, 1 << 20])
def test_the_index_does_not_depend_on_how_much_is_read_at_a_time(paths, block_bytes, monkeypatch):
    expected = record_index.read_index(paths)
    blocks = tfrecords.read_blocks
    monkeypatch.setattr(tfrecords, "read_blocks", lambda path: blocks(path, block_bytes))
    found = record_index.read_index(paths)
    assert found.description == expected.description
    np.testing.assert_array_equal(found.offsets, expected.offsets)


def test_every_epoch_has_every_record_once_in_its_own_order(paths):
    index = record_index.read_index(paths)
    found = read(index, 3 * TOTAL)
    epochs = [found[start : start + TOTAL] for start in range(0, 3 * TOTAL, TOTAL)]
    assert all(sorted(epoch) == list(range(TOTAL)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert read(index, TOTAL) == epochs[0] != read(index, TOTAL, seed=2)


def test_reading_goes_on_from_every_place(paths):
    index = record_index.read_index(paths)
    whole = read(index, 3 * TOTAL)
    for first in (1, 31, 32, 50, TOTAL, TOTAL + 63, 2 * TOTAL - 1):
        assert read(index, 40, first=first) == whole[first : first + 40]


def test_neither_the_order_of_the_names_nor_the_batches_matter(paths):
    expected = read(record_index.read_index(paths), 2 * TOTAL)
    assert read(record_index.read_index(paths[::-1]), 2 * TOTAL, batch_size=31) == expected


def test_a_window_holds_records_of_several_places(paths):
    """Four runs of 8, and of the long archive as many as there is room for: not the neighbors of a single place."""
    index = record_index.read_index(paths)
    runs = np.searchsorted(np.cumsum(index.counts), np.arange(TOTAL), side="right")
    for seed in range(5):
        whole = read(index, TOTAL, seed)
        windows = [whole[start : start + 32] for start in range(0, TOTAL - 32, 32)]
        assert max(len({runs[number] for number in window}) for window in windows) >= 4
        for window in windows:
            assert window != sorted(window)


def test_two_replicas_read_what_one_reads(paths, two):
    data = record_order.shuffled(record_index.read_index(paths), 1).rebatch(6, drop_remainder=True).take(40)
    alone = [records.numpy().tolist() for records, _ in data]
    for batch, (parts, _) in zip(alone, two.experimental_distribute_dataset(data), strict=True):
        parts = two.experimental_local_results(parts)
        assert [len(part) for part in parts] == [3, 3]
        assert tf.concat(parts, 0).numpy().tolist() == batch


def test_a_description_tells_records_from_others(paths, tmp_path):
    descriptions = {record_index.read_index(paths).description, record_index.read_index(paths[:-1]).description}
    with tf.io.TFRecordWriter(str(tmp_path / "a")) as writer:
        writer.write(b"another length")
    descriptions.add(record_index.read_index(paths).description)
    assert len(descriptions) == 3
    assert any(text.startswith(f"{TOTAL} records in 6 files (") for text in descriptions)


def test_the_records_of_a_step_are_named(paths, tmp_path):
    """Counted from 1; those of `shuffled` at the same place, and no more than fit on a screen."""
    index = record_index.read_index(paths)
    _, origin = next(iter(record_order.shuffled(index, 1, 7).rebatch(3)))
    found = record_order.where(index, 1, 7, 3)
    for file, record in zip(origin["file"].numpy(), origin["record"].numpy(), strict=True):
        assert index.paths[file] in found and str(record + 1) in found
    assert " more" in record_order.where(index, 1, 0, 100)


def test_other_records_of_the_same_size_are_others(paths):
    before = record_index.read_index(paths)
    path = str(pathlib.Path(paths[0]).with_name("f"))
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(TOTAL - 8, TOTAL):
            writer.write(str(number - (number == TOTAL - 1)).encode())
    after = record_index.read_index(paths)
    assert after.description != before.description and after.sizes.tolist() == before.sizes.tolist()
    assert str(record_index.find_change(before)).startswith(f"{path}: changed")


@pytest.mark.parametrize(
    "name, size, told",
    [
        ("d", 0, ": changed while it was read: 0 records now, 70 when"),
        ("d", 152, ", record"),
        ("b.gz", 20, ": the gzip archive is damaged"),
    ],
)
def test_files_that_lose_records_end_the_order_and_are_named(name, size, told, paths):
    """An order without an end would look for their records for ever."""
    index = record_index.read_index(paths)
    assert record_index.find_change(index) is None
    path = str(pathlib.Path(paths[0]).with_name(name))
    with open(path, "r+b") as stream:
        stream.truncate(size)
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.DataLossError)):
        read(index, 2 * TOTAL)
    assert str(record_index.find_change(index)).startswith(f"{path}{told}")

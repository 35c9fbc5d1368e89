"""The index of records, and its kept form: equal to one that is read, written once, and read anew for what changed."""

from __future__ import annotations

import dataclasses
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from refused import message_of

from bert_tf2.data import record_index, tfrecords

COUNTS = (2500, 1, 1024, 3000)


@pytest.fixture
def paths(tmp_path):
    rng = np.random.default_rng(3)
    (tmp_path / "records").mkdir()
    names = [str(tmp_path / "records" / name) for name in ("a", "b", "c.gz", "d")]
    for name, count in zip(names, COUNTS, strict=True):
        with tfrecords.writing(name) as (write,):
            write([rng.bytes(int(size)) for size in rng.integers(1, 60, count)])
    return names


@pytest.fixture
def read(tmp_path):
    """Reads the index, and keeps it although the files are small."""
    out = str(tmp_path / "out")
    return lambda paths, **how: record_index.read(paths, out, **{"keep": True, "smallest": 1, **how})


def kept(folder):
    return [path.parent.name for path in folder.rglob(record_index.NAME) if path.is_file()]


def equal(index, expected):
    for field in dataclasses.fields(record_index.RecordIndex):
        assert np.array_equal(getattr(index, field.name), getattr(expected, field.name)), field.name
    assert index.description == expected.description


def test_runs_of_a_file_that_is_not_read_at_once(tmp_path):
    sizes = np.random.default_rng(1).integers(5000, 15000, 1500)  # three blocks
    with tf.io.TFRecordWriter(f"{tmp_path}/x") as writer:
        for size in sizes.tolist():
            writer.write(bytes(size))
    index = record_index.read_index([f"{tmp_path}/x"])
    ends = np.cumsum(sizes + 16)
    assert index.offsets.tolist() == [0, ends[1023]] and index.starts.tolist() == [0, 1024]
    assert index.counts.tolist() == [1024, 476] and index.sizes.tolist() == [ends[1023], ends[-1] - ends[1023]]


def test_known_files_are_not_opened_and_what_changed_is_read_anew(paths, read):
    expected = record_index.read_index(paths)
    index, fresh = read(paths[::-1])
    equal(index, expected)
    assert fresh == paths
    contents = [*map(pathlib.Path.read_bytes, map(pathlib.Path, paths))]
    for path, content in zip(paths, contents, strict=True):
        before = os.stat(path)
        pathlib.Path(path).write_bytes(b"x" * len(content))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    index, fresh = read(paths)
    equal(index, expected)
    assert fresh == []
    pathlib.Path(paths[0]).write_bytes(contents[0] * 2)  # another size, and another time
    pathlib.Path(paths[3]).write_bytes(contents[3])
    os.utime(paths[3], ns=(1, 10**18))
    index, fresh = read(paths)
    assert fresh == [paths[0], paths[3]] and index.total == sum(COUNTS) + COUNTS[0]


def test_what_is_not_kept(paths, read, tmp_path):
    """A worker that keeps nothing, small records, and files that are refused."""

    def check(counts, unlike):
        assert counts == dict(zip(paths, COUNTS, strict=True)) and unlike == paths[:1]
        raise ZeroDivisionError

    read(paths, keep=False)
    read(paths, smallest=10**9)
    with pytest.raises(ZeroDivisionError):
        read(paths, check=check)
    content = bytearray(pathlib.Path(paths[3]).read_bytes())
    content[-6] ^= 1
    pathlib.Path(paths[3]).write_bytes(content)
    assert "records/d, record 3000" in message_of(read, paths)
    assert kept(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"nonsense", b"4 0\n{}", b"4 123\n[1]", None])
def test_a_damaged_index_is_made_again(paths, read, tmp_path, content):
    expected, _ = read(paths)
    place = tmp_path / "records" / record_index.NAME
    place.write_bytes(place.read_bytes()[:-50] if content is None else content)
    index, fresh = read(paths)
    equal(index, expected)
    assert fresh == paths and read(paths)[1] == []


def test_where_the_records_are_nothing_can_be_written(paths, read, tmp_path):
    (tmp_path / "records" / record_index.NAME).mkdir()
    assert read(paths)[1] == paths and kept(tmp_path) == ["out"] and read(paths)[1] == []

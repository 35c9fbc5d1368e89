"""The kept index of records: equal to one that is read, written once, and read anew for what changed."""

from __future__ import annotations

import dataclasses
import os
import pathlib

import numpy as np
import pytest

from bert_tf2.data import record_index, tfrecords
from bert_tf2.support.errors import UserError

COUNTS = (2500, 1, 1024, 3000)


@pytest.fixture(autouse=True)
def _small_files_count(monkeypatch):
    monkeypatch.setattr(record_index, "SMALLEST", 1)


@pytest.fixture
def paths(tmp_path):
    rng = np.random.default_rng(3)
    folder = tmp_path / "records"
    folder.mkdir()
    names = [str(folder / name) for name in ("a", "b", "c.gz", "d")]
    for name, count in zip(names, COUNTS, strict=True):
        with tfrecords.writing(name) as (write,):
            write([rng.bytes(int(size)) for size in rng.integers(1, 60, count)])
    return names


@pytest.fixture
def opened(monkeypatch):
    """The record files that were read."""
    found = []
    read_blocks = tfrecords.read_blocks

    def noted(path, *more, **options):
        found.append(os.path.basename(path))
        return read_blocks(path, *more, **options)

    monkeypatch.setattr(tfrecords, "read_blocks", noted)
    return found


def equal(index, expected):
    for field in dataclasses.fields(record_index.RecordIndex):
        assert np.array_equal(getattr(index, field.name), getattr(expected, field.name)), field.name
    assert index.description == expected.description


def test_it_is_the_index_that_is_read_and_opens_no_file_again(paths, tmp_path, opened):
    expected = record_index.read_index(paths)
    opened.clear()
    index, fresh = record_index.read(paths[::-1], str(tmp_path / "out"), keep=True)
    equal(index, expected)
    assert fresh == paths and sorted(opened) == ["a", "b", "c.gz", "d"]
    opened.clear()
    index, fresh = record_index.read(paths, str(tmp_path / "out"), keep=True)
    equal(index, expected)
    assert fresh == [] and opened == []


def test_two_sets_of_records_in_a_folder_share_the_kept_index(paths, tmp_path):
    for some in (paths[:2], paths[2:]) * 2:
        index, fresh = record_index.read(some, str(tmp_path / "out"), keep=True)
        equal(index, record_index.read_index(some))
    assert fresh == []
    os.remove(paths[0])
    os.utime(paths[2], ns=(1, 1))  # so that something is read, and all is kept again
    record_index.read(paths[2:], str(tmp_path / "out"), keep=True)
    assert [*record_index._load(str(tmp_path / "records" / record_index.NAME))] == paths[1:]


@pytest.mark.parametrize(("keep", "smallest"), [(False, 1), (True, 10**9)])
def test_a_worker_that_keeps_nothing_and_small_records_leave_no_file(paths, tmp_path, monkeypatch, keep, smallest):
    monkeypatch.setattr(record_index, "SMALLEST", smallest)
    record_index.read(paths, str(tmp_path / "out"), keep=keep)
    assert not list(tmp_path.rglob(record_index.NAME))


def test_what_changed_is_read_anew(paths, tmp_path, opened):
    record_index.read(paths, str(tmp_path / "out"), keep=True)
    content = pathlib.Path(paths[0]).read_bytes()
    pathlib.Path(paths[0]).write_bytes(content + content)
    before = os.stat(paths[3])
    os.utime(paths[3], ns=(before.st_atime_ns, before.st_mtime_ns + 10**6))
    opened.clear()
    index, fresh = record_index.read(paths, str(tmp_path / "out"), keep=True)
    assert sorted(opened) == ["a", "d"] and fresh == [paths[0], paths[3]]
    equal(index, record_index.read_index(paths))


def test_a_damaged_file_is_named_and_nothing_is_kept(paths, tmp_path):
    content = bytearray(pathlib.Path(paths[3]).read_bytes())
    content[-6] ^= 1
    pathlib.Path(paths[3]).write_bytes(content)
    with pytest.raises(UserError, match=r"records/d, record 3000"):
        record_index.read(paths, str(tmp_path / "out"), keep=True)
    assert not list(tmp_path.rglob(record_index.NAME))


@pytest.mark.parametrize("content", [b"", b"nonsense", b"4 0\n{}", b"4 123\n[1]", None])
def test_a_damaged_index_is_made_again(paths, tmp_path, content):
    expected, _ = record_index.read(paths, str(tmp_path / "out"), keep=True)
    place = tmp_path / "records" / record_index.NAME
    place.write_bytes(place.read_bytes()[:-50] if content is None else content)
    index, fresh = record_index.read(paths, str(tmp_path / "out"), keep=True)
    equal(index, expected)
    assert fresh == paths
    assert record_index.read(paths, str(tmp_path / "out"), keep=True)[1] == []


def test_where_the_records_lie_nothing_can_be_written(paths, tmp_path, monkeypatch):
    complete_or_absent = record_index.files.complete_or_absent

    def refuse(place, **more):
        if os.path.dirname(place) == os.path.dirname(paths[0]):
            raise UserError(f"{place}: is read-only")
        return complete_or_absent(place, **more)

    monkeypatch.setattr(record_index.files, "complete_or_absent", refuse)
    record_index.read(paths, str(tmp_path / "out"), keep=True)
    assert [path.parent.name for path in tmp_path.rglob(record_index.NAME)] == ["out"]
    assert record_index.read(paths, str(tmp_path / "out"), keep=True)[1] == []

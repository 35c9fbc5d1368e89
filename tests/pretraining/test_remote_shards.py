"""create_pretraining_data.py with remote files; `ram://` is TensorFlow's own file system, within one process."""

from __future__ import annotations

import gzip
import json
import os

import pytest
import tensorflow as tf
from pretraining_text import CORPUS, VOCABULARY, data_options

from bert_tf2.pretraining import inspect_records, manifest, sharded, shards
from bert_tf2.pretraining.options import InspectRecordsOptions
from bert_tf2.support import files
from bert_tf2.support.errors import UserError

TEXT = f"{CORPUS}\n" * 6


@pytest.fixture
def there():
    """A remote folder with a vocabulary and two files of text, of which one is compressed."""
    folder = f"ram://pretraining-{os.getpid()}"
    if tf.io.gfile.exists(folder):
        tf.io.gfile.rmtree(folder)
    tf.io.gfile.makedirs(folder)
    half = len(TEXT) // 2
    write(f"{folder}/one.txt", TEXT[:half].encode())
    write(f"{folder}/two.gz", gzip.compress(TEXT[half:].encode()))
    write(f"{folder}/vocab.txt", "\n".join(VOCABULARY).encode())
    return folder


def write(path, content):
    with tf.io.gfile.GFile(path, "wb") as stream:
        stream.write(content)


def read(path):
    with tf.io.gfile.GFile(path, "rb") as stream:
        return stream.read()


def options(folder, output, **changes):
    settings = {"input_file": f"{folder}/o*.txt,{folder}/two.gz", "num_shards": 40, **changes}
    return data_options(folder, output, **settings)


@pytest.fixture
def here(there, tmp_path):
    """A local folder with the same files."""
    for name in tf.io.gfile.listdir(there):
        (tmp_path / name).write_bytes(read(f"{there}/{name}"))
    return tmp_path


@pytest.mark.parametrize("name", ["x", "x.gz"])
def test_remote_shards_are_those_on_a_disk(there, here, in_process, name):
    sharded.run(options(here, f"out/{name}"))
    sharded.run(options(there, f"out/{name}"))
    found = sorted(tf.io.gfile.listdir(f"{there}/out"))
    assert found == sorted(path.name for path in (here / "out").iterdir())
    for path in (here / "out").glob("x-*"):
        assert read(f"{there}/out/{path.name}") == path.read_bytes()
    assert any(not row["examples"] for row in json.loads(read(f"{there}/out/manifest.json"))["shards"])
    inspected = [inspect_records.run(InspectRecordsOptions(input_file=f"{place}/out/x-*")) for place in (there, here)]
    assert inspected[0] == inspected[1]


def test_unsharded_remote_files(there, here):
    for name in ("alone", "alone.gz"):
        for place in (there, here):
            sharded.run(options(place, name, num_shards=None))
        assert read(f"{there}/{name}") == (here / name).read_bytes()


def test_finished_remote_shards_are_kept(there, in_process, monkeypatch):
    one = shards.make_shard
    monkeypatch.setattr(manifest, "_SECONDS_BETWEEN_REMOTE", 0.0)
    monkeypatch.setattr(shards, "make_shard", lambda shard, job: 1 / (3 - shard.number) and one(shard, job))
    with pytest.raises(ZeroDivisionError):
        sharded.run(options(there, "out/x"))
    write(f"{there}/out/.x-00003-of-00040.host.123.partial", b"of a worker that was killed")
    assert not json.loads(read(f"{there}/out/manifest.json"))["complete"]
    in_process.clear()
    monkeypatch.setattr(shards, "make_shard", one)
    sharded.run(options(there, "out/x"))
    assert in_process == [*range(3, 40)]
    names = tf.io.gfile.listdir(f"{there}/out")
    assert len(names) == 41 and not [name for name in names if name.endswith("partial")]
    in_process.clear()
    sharded.run(options(there, "out/x"))
    assert in_process == []
    with pytest.raises(UserError, match="with --dupe_factor=10, not 3"):
        sharded.run(options(there, "out/x", dupe_factor=3))


def test_the_manifest_of_remote_shards_is_not_written_for_each(there, in_process, monkeypatch):
    written = []
    save = files.write_json
    monkeypatch.setattr(files, "write_json", lambda path, content: (written.append(path), save(path, content)))
    sharded.run(options(there, "out/x"))
    assert len(in_process) == 40 and len(written) <= 4

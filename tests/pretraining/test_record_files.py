"""Files of records against the numbers in their names and the manifest beside them, for all who read records."""

from __future__ import annotations

import functools
import json
import os
import shutil

import pytest
import tensorflow as tf
from pretraining_text import CORPUS, VOCABULARY, data_options
from small_models import tiny_config

from bert_tf2.data import record_index
from bert_tf2.pretraining import inspect_records, sharded
from bert_tf2.pretraining.options import InspectRecordsOptions, PretrainingOptions
from bert_tf2.pretraining.record_source import Source
from bert_tf2.support.errors import UserError

SIZES = {"max_seq_length": 24, "max_predictions_per_seq": 4}


@pytest.fixture
def shards(tmp_path, vocab_file, in_process):
    """A folder with the shards of a run."""
    (tmp_path / "corpus.txt").write_text(f"{CORPUS}\n" * 6)
    sharded.run(data_options(tmp_path, "s/t", num_shards=3, dupe_factor=1))
    return tmp_path / "s"


def inspect(names: str) -> None:
    inspect_records.run(InspectRecordsOptions(input_file=names))


def train(names: str) -> None:
    source(names).index()


def evaluate(names: str) -> None:
    source(names).for_evaluation()


def source(names: str) -> Source:
    settings = {"input_file": names, "bert_config_file": "none", "output_dir": "none", "do_eval": True, **SIZES}
    settings["max_eval_steps"] = 10_000
    return Source(PretrainingOptions(**settings), tiny_config(vocab_size=len(VOCABULARY)), None, names)


READERS = pytest.mark.parametrize("read", [inspect, train, evaluate])


def shard(number: int, count: int = 3) -> str:
    return f"t-{number:05d}-of-{count:05d}"


def edit(folder, **changes) -> None:
    made = json.loads((folder / "manifest.json").read_text())
    rows = changes.pop("rows", {})
    made |= changes
    made["shards"][1] |= rows
    (folder / "manifest.json").write_text(json.dumps(made))


def reorder(folder) -> None:
    """Another content of as many bytes and records: the first record comes last."""
    content = (folder / shard(1)).read_bytes()
    first = int.from_bytes(content[:8], "little") + 16
    (folder / shard(1)).write_bytes(content[first:] + content[:first])
    assert content != (folder / shard(1)).read_bytes()


def lengthen(folder) -> None:
    content = (folder / shard(0)).read_bytes()
    (folder / shard(0)).write_bytes(content * 2)


BY_NAME = {
    "missing": (lambda s: (s / shard(1)).unlink(), r"t-\*: 1 of 3 files are missing .*t-00001-of-00003"),
    "renamed": (lambda s: (s / shard(1)).rename(s / "t-1"), r"1 of 3 files are missing"),
    "too many": (lambda s: shutil.copy(s / shard(1), s / shard(3)), r"matches t-00003-of-00003, which by .* is none"),
    "two runs": (
        lambda s: [shutil.copy(s / shard(n), s / shard(n, 2)) for n in range(2)],
        r"several runs, t-\*-of-00002 and t-\*-of-00003|none of the 3 files",
    ),
}
BY_MANIFEST = {
    "a copy": (lambda s: shutil.copy(s / shard(1), s / "t-copy"), r"matches t-copy, which by .*manifest.json is none"),
    "of another run": (reorder, r"t-00001-of-00003: has another SHA-256, and the manifest.json"),
    "of another size": (lengthen, r"t-00000-of-00003: has \d+,?\d* bytes, and the manifest.json"),
    "not complete": (lambda s: edit(s, complete=False), r"manifest.json: lists 3 of 3 files of a run that goes on"),
    "fewer rows": (lambda s: edit(s, shards=[{}, {}, {}]), r"manifest.json: lists 0 of 3 files"),
    "another name": (lambda s: edit(s, rows={"file": "t-9"}), r"files are missing by .*manifest.json \(t-9\)"),
    "another count": (lambda s: edit(s, rows={"examples": 1}), r"has \d+ records, and the manifest.json .* states 1,"),
}


@READERS
@pytest.mark.parametrize("manifest", [True, False])
@pytest.mark.parametrize("case", BY_NAME)
def test_names_say_which_files_there_should_be(shards, case, manifest, read):
    spoil, message = BY_NAME[case]
    spoil(shards)
    if not manifest:
        os.remove(shards / "manifest.json")
    with pytest.raises(UserError, match=message):
        read(f"{shards}/t-*")


@READERS
@pytest.mark.parametrize("case", BY_MANIFEST)
def test_the_manifest_says_it_too(shards, case, read):
    spoil, message = BY_MANIFEST[case]
    spoil(shards)
    with pytest.raises(UserError, match=message):
        read(f"{shards}/t-*")


@pytest.mark.parametrize("spoil", [reorder, lambda s: edit(s, rows={"examples": 1})])
def test_what_is_refused_is_refused_again(shards, spoil, monkeypatch):
    monkeypatch.setattr(record_index, "SMALLEST", 1)
    spoil(shards)
    for _ in range(2):
        with pytest.raises(UserError, match=r"and the manifest\.json beside it states"):
            train(f"{shards}/t-*")
        assert not (shards / record_index.NAME).exists()


@pytest.mark.parametrize("changes", [{"max_seq_length": 32}, {"objective": "mlm"}, {"dynamic_masking": True}], ids=str)
def test_the_first_record_of_every_file_is_checked(shards, changes, monkeypatch):
    monkeypatch.setattr(record_index, "SMALLEST", 1)
    for number in range(120):
        (shards / f"x{number:03d}").symlink_to(shards / shard(0))
    sharded.run(data_options(shards.parent, "more/y", num_shards=1, dupe_factor=1, **changes))
    os.replace(shards.parent / "more" / "y-00000-of-00001", shards / "x120")
    index_all = functools.partial(record_index.read, [*map(str, shards.glob("x*"))], "none", keep=True)
    for read in (train, evaluate, lambda names: index_all() and train(names)):
        with pytest.raises(UserError, match=r"x120, record 1: (was made for max_seq_length 32|has no feature)"):
            read(f"{shards}/x*")


@READERS
def test_what_is_meant_may_be_read(shards, read, log_lines):
    read(f"{shards}/t-*")
    read(f"{shards}/t-0000[01]-of-*")  # trained on, and the last one is held out
    read(f"{shards}/{shard(2)}")
    edit(shards, complete=False)
    read(f"{shards}/{shard(0)},{shards}/{shard(2)}")
    os.remove(shards / "manifest.json")
    (shards / shard(1)).rename(shards / shard(3))  # counted from 1
    (shards / shard(0)).rename(shards / shard(1))
    read(f"{shards}/t-*")
    for number in (1, 2, 3):
        (shards / shard(number)).rename(shards / f"plain{number}.tfrecord")
    read(f"{shards}/*.tfrecord")
    assert not [line for line in log_lines if "matches" in line]


def test_other_files_beside_numbered_ones_are_told(shards, log_lines):
    os.remove(shards / "manifest.json")
    shutil.copy(shards / shard(0), shards / "t-more")
    inspect(f"{shards}/t-*")
    assert [line for line in log_lines if "t-*: matches t-more beside numbered files" in line]


@pytest.mark.parametrize("case", ["missing", "another count", "not complete", "of another size"])
def test_remote_files(shards, case):
    there = f"ram://record-files-{os.getpid()}-{case.replace(' ', '-')}"
    spoil, message = {**BY_NAME, **BY_MANIFEST}[case]
    spoil(shards)
    tf.io.gfile.makedirs(there)
    for path in shards.iterdir():
        tf.io.gfile.copy(str(path), f"{there}/{path.name}")
    with pytest.raises(UserError, match=message):
        train(f"{there}/t-*")

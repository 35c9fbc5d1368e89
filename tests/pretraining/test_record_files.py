"""Files of records against the numbers in their names and the manifest beside them, for all who read records."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import tensorflow as tf
from pretraining_text import CORPUS, VOCABULARY, Here, data_options
from refused import message_of
from small_models import tiny_config

from bert_tf2.data import record_index
from bert_tf2.pretraining import inspect_records, sharded
from bert_tf2.pretraining.options import InspectRecordsOptions, PretrainingOptions
from bert_tf2.pretraining.record_source import Source


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the shards of a run; and `more`, those of records of other sizes and kinds."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "corpus.txt").write_text(f"{CORPUS}\n" * 6)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    sharded.run(data_options(folder, "s/t", num_shards=3, dupe_factor=1), Here())
    for name, changes in OTHERS.items():
        sharded.run(data_options(folder, f"more/{name}", dupe_factor=1, **changes))
    return folder


OTHERS = {"longer": {"max_seq_length": 32}, "words": {"objective": "mlm"}, "unmasked": {"dynamic_masking": True}}


@pytest.fixture
def shards(made, tmp_path):
    return shutil.copytree(made / "s", tmp_path / "s")


def inspect(names: str) -> None:
    inspect_records.run(InspectRecordsOptions(input_file=names))


def source(names: str) -> Source:
    settings = {"input_file": names, "bert_config_file": "none", "output_dir": "none", "do_eval": True}
    settings |= {"max_seq_length": 24, "max_predictions_per_seq": 4, "max_eval_steps": 10_000}
    return Source(PretrainingOptions(**settings), tiny_config(vocab_size=len(VOCABULARY)), None, names)


def train(names: str) -> None:
    source(names).index()


def evaluate(names: str) -> None:
    source(names).for_evaluation()


def shard(number: int, count: int = 3) -> str:
    return f"t-{number:05d}-of-{count:05d}"


def edit(folder, row=None, **changes) -> None:
    made = json.loads((folder / "manifest.json").read_text()) | changes
    if row:
        made["shards"][1] |= row
    (folder / "manifest.json").write_text(json.dumps(made))


def reorder(folder) -> None:
    """Another content of as many bytes and records: the first record comes last."""
    content = (folder / shard(1)).read_bytes()
    first = int.from_bytes(content[:8], "little") + 16
    (folder / shard(1)).write_bytes(content[first:] + content[:first])
    assert content != (folder / shard(1)).read_bytes()


# What is done to the folder, and the words of the answer: with the manifest, or also without it.
BY_NAME = {
    "missing": (lambda s: (s / shard(1)).unlink(), ["1 of 3 files", "t-00001-of-00003"]),
    "renamed": (lambda s: (s / shard(1)).rename(s / "t-1"), ["1 of 3 files"]),
    "too many": (lambda s: shutil.copy(s / shard(1), s / shard(3)), ["t-00003-of-00003", "none of the 3"]),
    "two runs": (lambda s: [shutil.copy(s / shard(n), s / shard(n, 2)) for n in range(2)], ["t-", "-of-00002"]),
}
BY_MANIFEST = {
    "a copy": (lambda s: shutil.copy(s / shard(1), s / "t-copy"), ["t-copy", "manifest.json"]),
    "of another run": (reorder, ["t-00001-of-00003", "SHA-256", "manifest.json"]),
    "of another size": (
        lambda s: (s / shard(0)).write_bytes((s / shard(0)).read_bytes() * 2),
        ["t-00000-of-00003", " bytes", "manifest.json"],
    ),
    "not complete": (lambda s: edit(s, complete=False), ["manifest.json", "3 of 3 files"]),
    "fewer rows": (lambda s: edit(s, shards=[{}, {}, {}]), ["manifest.json", "0 of 3 files"]),
    "a damaged row": (lambda s: edit(s, {"index": None}), ["manifest.json", "2 of 3 files"]),
    "another name": (lambda s: edit(s, {"file": "t-9"}), ["manifest.json", "t-9"]),
    "another count": (lambda s: edit(s, {"examples": 1}), ["t-00001-of-00003", " records", "manifest.json"]),
}
CASES = [*((name, True) for name in (*BY_NAME, *BY_MANIFEST)), *((name, False) for name in BY_NAME)]


@pytest.mark.parametrize(("case", "manifest"), CASES)
def test_files_that_are_not_those_of_a_run(shards, case, manifest):
    spoil, words = {**BY_NAME, **BY_MANIFEST}[case]
    spoil(shards)
    if not manifest:
        os.remove(shards / "manifest.json")
    there = f"ram://{shards.parent.name}"
    tf.io.gfile.makedirs(there)
    for path in shards.iterdir():
        tf.io.gfile.copy(str(path), f"{there}/{path.name}")
    reads = [(inspect, shards), (train, shards), (train, shards), (evaluate, shards)]  # refused is refused again
    if case != "of another run":  # a remote file would be read once more
        reads.append((train, there))
    for read, place in reads:
        found = message_of(read, f"{place}/t-*")
        assert all(word in found for word in words), found
    assert not (shards / record_index.NAME).exists()


@pytest.mark.parametrize(
    ("name", "words"), [("longer", "max_seq_length"), ("words", "next_sentence"), ("unmasked", "")]
)
def test_the_first_record_of_every_file_is_checked(made, shards, name, words):
    for number in range(120):
        (shards / f"x{number:03d}").symlink_to(shards / shard(0))
    shutil.copy(made / "more" / name, shards / "x120")
    for number, read in enumerate((train, evaluate, train)):
        if number == 2:  # of files that are known
            record_index.read([*map(str, shards.glob("x*"))], "none", keep=True, smallest=1)
        found = message_of(read, f"{shards}/x*")
        assert "x120, record 1: " in found and words in found


@pytest.mark.parametrize("read", [inspect, train, evaluate])
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
    assert not [line for line in log_lines if "matches" in line]
    shutil.copy(shards / shard(1), shards / "t-more")
    read(f"{shards}/t-*")
    assert [line for line in log_lines if "matches t-more beside numbered files" in line]
    for number in (1, 2, 3):
        (shards / shard(number)).rename(shards / f"plain{number}.tfrecord")
    read(f"{shards}/*.tfrecord")

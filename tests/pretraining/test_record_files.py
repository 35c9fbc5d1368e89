"""Files of records against the manifest beside them, for all who read records."""

from __future__ import annotations

import json
import shutil

import pytest
import tensorflow as tf
from refused import message_of, refuses
from unmasked_data import make, training_options

from bert_tf2 import commands, create_pretraining_data
from bert_tf2.data import example, record_index
from bert_tf2.pretraining import run as pretraining

OTHERS = {"longer": {"max_seq_length": 40}, "words": {"objective": "mlm"}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the shards of a run in `s`, and other records."""
    folder = tmp_path_factory.mktemp("made")
    for name, changes in {"s/t": {"num_shards": 3}, "good": {}, **OTHERS}.items():
        make(folder, name, 12, dynamic_masking=False, **changes)
    return folder


@pytest.fixture
def shards(made, tmp_path):
    return shutil.copytree(made / "s", tmp_path / "s")


def inspect(names, folder) -> None:
    commands.call("inspect_records", input_file=names)


def train(names, folder) -> None:
    pretraining.run(training_options(folder, input_file=names))


def evaluate(names, folder) -> None:
    one = f"{folder}/s/t-00000-of-00003"
    pretraining.run(training_options(folder, input_file=one, eval_input_file=names, eval_steps=1, max_eval_steps=9999))


def edit(folder, row=None, **changes) -> None:
    manifest = json.loads((folder / "manifest.json").read_text()) | changes
    manifest["shards"][1] |= row or {}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def reorder(shard) -> None:
    """Another content of as many bytes and records: the first record comes last."""
    content = shard.read_bytes()
    first = int.from_bytes(content[:8], "little") + 16
    shard.write_bytes(content[first:] + content[:first])
    assert content != shard.read_bytes()


SHARD = "t-00001-of-00003"
SPOILED = {
    "missing": (lambda s: (s / SHARD).unlink(), f"1 of 3 {SHARD}"),
    "of two runs": (lambda s: shutil.copy(s / SHARD, s / "t-00001-of-00002"), "t-00001-of-00002"),
    "a copy": (lambda s: shutil.copy(s / SHARD, s / "t-copy"), "t-copy"),
    "of another run": (lambda s: reorder(s / SHARD), f"{SHARD} SHA-256"),
    "of another size": (lambda s: (s / SHARD).write_bytes((s / SHARD).read_bytes() * 2), f"{SHARD} bytes"),
    "of another count": (lambda s: edit(s, {"examples": 1}), f"{SHARD} records"),
    "not complete": (lambda s: edit(s, complete=False), "3 of 3"),
    "a damaged row": (lambda s: edit(s, {"index": None}), "2 of 3"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_files_that_are_not_those_of_a_run(made, shards, case):
    spoil, words = SPOILED[case]
    spoil(shards)
    for read in (inspect, train, train, evaluate):  # refused is refused again
        refuses(f"manifest.json {words}", read, f"{shards}/t-*", made)
    if case.startswith("of another"):  # also by its name
        refuses(f"manifest.json {words}", inspect, f"{shards}/{SHARD}", made)
    if case != "of another run":  # a remote file would be read once more
        there = f"ram://{shards.parent.name}"
        tf.io.gfile.makedirs(there)
        for path in shards.iterdir():
            tf.io.gfile.copy(str(path), f"{there}/{path.name}")
        refuses(f"manifest.json {words}", train, f"{there}/t-*", made)
    assert not (shards / record_index.NAME).exists()


@pytest.mark.parametrize(("name", "word"), [("longer", "max_seq_length"), ("words", "next_sentence")])
def test_the_first_record_of_every_file_is_checked(made, shards, name, word):
    """The files are beside a manifest that is not about them."""
    for number in range(120):
        (shards / f"x{number:03d}").symlink_to(made / "good")
    shutil.copy(made / name, shards / "x120")
    refuses(f"x120, record 1: {word}", train, f"{shards}/x*", made)
    refuses(f"x120, record 1: {word}", evaluate, f"{shards}/x*", made)
    record_index.read([*map(str, shards.glob("x*"))], "none", keep=True, smallest=1)  # so the files are known
    refuses(f"x120, record 1: {word}", train, f"{shards}/x*", made)


def test_what_is_meant_may_be_read(made, shards):
    names = ["t-*", "t-0000[01]-of-*", SHARD]
    for name in names:
        inspect(f"{shards}/{name}", made)
    edit(shards, complete=False)
    inspect(f"{shards}/t-00000-of-00003,{shards}/t-00002-of-00003", made)
    assert "manifest.json" in message_of(inspect, f"{shards}/t-*", made)
    (shards / "manifest.json").unlink()
    (shards / SHARD).unlink()
    inspect(f"{shards}/t-*", made)  # nothing says that a file is missing


def test_features_of_records_of_one_s_own():
    """Under the reference's names."""
    features = {
        "ids": create_pretraining_data.create_int_feature(iter([3, 1 << 40])),
        "weights": create_pretraining_data.create_float_feature([0.5]),
    }
    record = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    found = {name: (values.dtype.name, values.tolist()) for name, values in example.parse(record).items()}
    assert found == {"ids": ("int64", [3, 1 << 40]), "weights": ("float32", [0.5])}

"""TFRecord files that are compressed by gzip: written, read by TensorFlow and without it, and damaged ones."""

from __future__ import annotations

import gzip
import hashlib

import pytest
from pretraining_text import data_options

from bert_tf2.data import record_index, record_order, records, tfrecords
from bert_tf2.data.records import read_all
from bert_tf2.pretraining import example_files
from bert_tf2.support.errors import UserError

SIZES = {"max_seq_length": 24, "max_predictions_per_seq": 4, "vocab_size": 60, "type_vocab_size": 2}


def make(folder, output, **changes):
    example_files.run(data_options(folder, output, **{"dupe_factor": 30, **changes}))


@pytest.fixture
def both(tmp_path, corpus, vocab_file):
    """The same records in `plain` and `packed.gz`."""
    make(tmp_path, "plain")
    make(tmp_path, "packed.gz")
    return tmp_path


def test_the_bytes_depend_on_the_content_alone(both):
    packed = (both / "packed.gz").read_bytes()
    assert gzip.decompress(packed) == (both / "plain").read_bytes()
    assert packed[:8] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00"  # no name, no time
    make(both, "other_name.gz")
    assert (both / "other_name.gz").read_bytes() == packed


def batches(paths, **more):
    return [
        hashlib.sha256(row["input_ids"].numpy().tobytes()).hexdigest()
        for row in record_order.read_records([str(path) for path in paths], records.PRETRAINING, SIZES, 4, **more)
    ]


@pytest.mark.parametrize("renamed", [False, True])
def test_both_are_read_alike(both, renamed):
    plain, packed = both / "plain", both / "packed.gz"
    if renamed:  # the content tells
        plain, packed = plain.rename(both / "plain.gz"), packed.rename(both / "packed")
        assert len(record_index.runs_of(str(packed))) == 5  # a single run
    expected = batches([plain])
    assert batches([packed]) == expected
    assert batches([plain, plain]) == batches([plain, packed]) == batches([packed, plain])
    assert batches([packed, packed]) == batches([plain, plain])
    seed = {"shuffle_seed": 3}
    assert batches([plain, plain], **seed) == batches([packed, plain], **seed) != batches([plain, plain])
    found = [[record.values["input_ids"].tolist() for record in read_all([str(path)])] for path in (plain, packed)]
    assert found[0] == found[1]
    assert records.find_fault([str(packed)], records.PRETRAINING, SIZES) is None


def faults(path):
    """What each reader says."""
    yield str(records.find_fault([str(path)], records.PRETRAINING, SIZES))
    with pytest.raises(UserError) as caught:
        [*tfrecords.read_blocks(str(path))]
    yield str(caught.value)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda packed, plain: packed[: len(packed) // 2], ["damaged or incomplete"] * 2),
        (lambda packed, plain: packed[:-40], ["damaged or incomplete"] * 2),
        (lambda packed, plain: packed[:200] + b"\x55" * 30 + packed[230:], ["damaged or incomplete"] * 2),
        (lambda packed, plain: gzip.compress(plain[:-5]), ["truncated", "truncated"]),
        (lambda packed, plain: gzip.compress(plain[:30] + b"\x55" + plain[31:]), ["corrupted", "corrupted"]),
        (lambda packed, plain: b"a b c\n" * 90, ["is text, not TFRecord"] * 2),
        (lambda packed, plain: gzip.compress(b"a b c\n" * 90), ["is text, not TFRecord"] * 2),
    ],
)
def test_damaged_files_are_named_in_one_line(both, harm, words):
    path = both / "packed.gz"
    path.write_bytes(harm(path.read_bytes(), (both / "plain").read_bytes()))
    for found, expected in zip(faults(path), words, strict=True):
        assert found.startswith(str(path)) and expected in found and "\n" not in found


def test_no_records(both):
    (both / "empty").write_text("\n")
    make(both, "none.gz", input_file=f"{both}/empty")
    assert gzip.decompress((both / "none.gz").read_bytes()) == b""
    assert batches([both / "none.gz"]) == []  # like a file of 0 bytes, which a shard without documents is
    assert batches([both / "none.gz", both / "packed.gz"]) == batches([both / "plain"])
    with pytest.raises(UserError, match=r"none\.gz: no records in there"):
        batches([both / "none.gz"], repeat=True)

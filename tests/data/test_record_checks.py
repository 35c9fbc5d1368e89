"""Records that are damaged or invalid: the first one is named, with the reason."""

import pathlib
import struct

import google_crc32c
import pytest
import tensorflow as tf
from mutations import framed

from bert_tf2.data import records, tfrecords
from bert_tf2.data.records import read_all
from bert_tf2.support.errors import UserError

LENGTH, PREDICTIONS = 8, 3
TOKENS = {"input_ids": [2, 300, 5, 6, 3, 0, 0, 0], "input_mask": [1, 1, 1, 1, 1, 0, 0, 0], "segment_ids": [0] * 8}
ROW = {
    **TOKENS,
    "masked_lm_positions": [1, 3, 0],
    "masked_lm_ids": [7, 6, 0],
    "masked_lm_weights": [1.0, 1.0, 0.0],
    "next_sentence_labels": [1],
}


@pytest.fixture
def path(tmp_path) -> pathlib.Path:
    return tmp_path / "some.tfrecord"


def write(path, *rows: dict, kind=records.PRETRAINING) -> None:
    """Writes rows, as TensorFlow does; they may lack values."""
    examples = []
    for row in rows:
        example = tf.train.Example()
        for name, values in row.items():
            feature = example.features.feature[name]
            slot = feature.int64_list if kind.features[name].dtype == "int64" else feature.float_list
            slot.value.extend(values)
        examples.append(example.SerializeToString(deterministic=True))
    path.write_bytes(framed(*examples))


def complaint(*paths, vocab_size=None) -> str:
    with pytest.raises(UserError) as caught:
        list(read_all([*map(str, paths)], vocab_size))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_values_are_those_that_were_written(path):
    rows = [{**ROW, "input_ids": [number, *ROW["input_ids"][1:]]} for number in range(1000)]
    write(path, *rows)
    found = [*read_all([str(path)], 1000)]
    assert [record[:3] for record in found] == [(str(path), number, records.PRETRAINING) for number in range(1, 1001)]
    assert [{name: values.tolist() for name, values in record.values.items()} for record in found] == rows


@pytest.mark.parametrize("block_bytes", [1, 12, 13, 100, 1000, 10**6])
def test_blocks_of_any_size_hold_the_same_records(path, block_bytes):
    pieces = [bytes([number]) * (number * 37 % 400) for number in range(60)]
    path.write_bytes(framed(*pieces))
    expected = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    found, number = [], 1
    for block in tfrecords.read_blocks(str(path), block_bytes):
        assert block.first == number
        found += [block.record(row) for row in range(len(block))]
        number += len(block)
    assert found == expected == pieces


def test_files_are_those_of_tensorflow(tmp_path):
    contents = [b"", b"a", bytes(range(256)) * 300]
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for content in contents:
            writer.write(content)
    assert tfrecords.frames(contents) == (tmp_path / "theirs").read_bytes()
    assert tfrecords.frames([]) == b""


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (20, "the data do not match their checksum: the file is corrupted"),
        (-1, "the data do not match their checksum"),
        (1, "the length does not match its checksum"),
        (9, "the length does not match its checksum"),
    ],
)
@pytest.mark.parametrize("record", [1, 2, 3])
def test_a_changed_byte(path, place, words, record):
    piece = framed(records.encode(records.PRETRAINING, ROW))
    damaged = bytearray(piece)
    damaged[place] ^= 4
    path.write_bytes(piece * (record - 1) + damaged + piece)
    message = complaint(path)
    assert f"{path}, record {record}: {words}" in message and "copy it again" in message


def test_a_file_that_ends_anywhere(path):
    """Every length but those between two records is an error, and the complete records are read before.

    TensorFlow's reader takes a file that ends within the 12 bytes before a record for a complete one.
    """
    piece = framed(records.encode(records.PRETRAINING, ROW))
    for cut in range(1, len(piece)):
        path.write_bytes(piece * 2 + piece[:cut])
        read = 0
        with pytest.raises(UserError) as caught:
            for _ in read_all([str(path)]):
                read += 1
        assert read == 2
        assert f"{path}, record 3: the file is truncated: {cut} bytes of a record; " in str(caught.value)


def test_files_of_other_kinds_and_without_records(path, tmp_path):
    path.write_text("A text.\n")
    assert "is text, not TFRecord; create_pretraining_data.py" in complaint(path)
    path.write_bytes(b"\x1f\x8b\x08" + b"\0" * 40)
    assert "gzip" in complaint(path)
    path.write_bytes(b"")
    assert complaint(path) == f"{path}: no records in there; was the corpus empty?"
    assert "no such file" in complaint(tmp_path / "none")
    path.write_bytes(b"\x01\x02\xff")
    assert "record 1: the file is truncated: 3 bytes of a record" in complaint(path)
    length = struct.pack("<Q", 2**40)
    path.write_bytes(length + struct.pack("<I", tfrecords.mask(google_crc32c.value(length))))
    assert "record 1: claims to have 1,099,511,627,776 bytes" in complaint(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input_ids": [2, 300, 5, 6, 3, 0, 0]}, "has 7 values in input_ids, where 8 are in the first record"),
        ({"input_ids": [2, 1000, 5, 6, 3, 0, 0, 0]}, "input_ids holds 1000, which is not in 0..999 (vocab_size)"),
        ({"input_ids": [2, -7, 5, 6, 3, 0, 0, 0]}, "input_ids holds -7, which is not in 0..999"),
        ({"input_mask": [1, 1, 1, 0, 1, 0, 0, 0]}, "input_mask has a 1 behind a 0"),
        ({"input_mask": [2, 1, 1, 0, 0, 0, 0, 0]}, "input_mask holds 2, which is not in 0..1"),
        ({"input_mask": [0] * 8}, "input_mask has no 1"),
        ({"segment_ids": [0, 0, 2, 0, 0, 0, 0, 0]}, "segment_ids holds 2, which is not in 0..1"),
        ({"masked_lm_positions": [1, 8, 0]}, "masked_lm_positions holds 8, which is not in 0..7"),
        ({"masked_lm_positions": [1, 5, 0]}, "masked_lm_positions holds 5, and the record has 5 tokens"),
        ({"masked_lm_positions": [3, 3, 0]}, "masked_lm_positions holds 3 twice"),
        ({"masked_lm_positions": [1, 3]}, "has 2 values in masked_lm_positions, where 3 are"),
        ({"masked_lm_ids": [7, 1000, 0]}, "masked_lm_ids holds 1000, which is not in 0..999"),
        (
            {"masked_lm_weights": [1.0, float("nan"), 0.0]},
            "masked_lm_weights holds nan, which is not a number from 0 to",
        ),
        ({"masked_lm_weights": [1.0, -1.0, 0.0]}, "masked_lm_weights holds -1.0"),
        ({"next_sentence_labels": [2]}, "next_sentence_labels holds 2, which is not in 0..1"),
        ({"next_sentence_labels": [0, 1]}, "has 2 values in next_sentence_labels, where 1 is needed"),
        ({"next_sentence_labels": []}, "has no values of type int64 in its feature next_sentence_labels"),
    ],
)
def test_an_invalid_record(path, change, words):
    """It is the fourth in the second file; a later record, invalid in another way, is not the first."""
    good = path.with_name("good.tfrecord")
    write(good, ROW)
    later = {**ROW, "input_ids": [-1] * 5}
    write(path, ROW, ROW, ROW, {**ROW, **change}, ROW, later)
    message = complaint(good, path, vocab_size=1000)
    assert message.startswith(f"{path}, record 4: {words}"), message


def test_masked_positions_need_no_order(path):
    write(path, {**ROW, "masked_lm_positions": [3, 1, 0]}, {**ROW, "masked_lm_positions": [3, 0, 0]})
    assert len([*read_all([str(path)])]) == 2


def test_records_of_different_kinds_and_other_examples(path):
    kind, row = records.CLASSIFICATION, {**TOKENS, "label_ids": [1], "is_real_example": [1]}
    good = path.with_name("good.tfrecord")
    write(good, ROW)
    write(path, row, kind=kind)
    assert f"{path}, record 1: has no feature masked_lm_positions, which pretraining records have" in complaint(
        good, path
    )
    other = tf.train.Example()
    other.features.feature["image"].bytes_list.value.append(b"x")
    path.write_bytes(framed(other.SerializeToString()))
    assert f"{path}, record 1: is no record of this project" in complaint(path)
    encoded = records.encode(records.PRETRAINING, ROW)
    path.write_bytes(framed(b"hello"))
    assert f"{path}, record 1: is no tf.train.Example" in complaint(path)
    path.write_bytes(framed(encoded, encoded[:-3], b""))
    assert f"{path}, record 2: is no tf.train.Example" in complaint(path)
    path.write_bytes(framed(encoded, b""))
    assert f"{path}, record 2: has no feature input_ids" in complaint(path)

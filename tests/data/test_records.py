"""Records and TFRecord files: every kind is written, read, and named where it is damaged or does not match."""

from __future__ import annotations

import gzip
import itertools

import numpy as np
import pytest
import tensorflow as tf
from mutations import framed, record_of
from refused import message_of, refuses
from unmasked_data import write as write_rows

from bert_tf2.data import example, record_order, records, tfrecords
from bert_tf2.support.errors import UserError

SIZES = {"max_seq_length": 6, "max_predictions_per_seq": 2, "vocab_size": 30, "type_vocab_size": 2, "num_labels": 3}
_NAMES = ("PRETRAINING", "CLASSIFICATION", "REGRESSION", "SQUAD_PREDICT", "SQUAD_TRAIN", "TOKEN_TAGGING")
KINDS = {(kind := getattr(records, name)).name: kind for name in _NAMES}


def row_of(kind: records.RecordKind, number: int) -> dict:
    """A row whose first input id is its number."""
    length = min(number + 2, SIZES["max_seq_length"])
    row = {}
    for name, feature in kind.features.items():
        size = SIZES.get(feature.length, feature.length)
        row[name] = [0.5 + number] * size if feature.dtype == "float32" else [(number + i) % 2 for i in range(size)]
    row["input_ids"] = [number] + [7] * (SIZES["max_seq_length"] - 1)
    row["input_mask"] = [1] * length + [0] * (SIZES["max_seq_length"] - length)
    return row


def write(path, kind, rows) -> str:
    records.write_records(str(path), kind, rows)
    return str(path)


def numbered(path, count, first=0) -> str:
    return write(path, records.PRETRAINING, [row_of(records.PRETRAINING, first + i) for i in range(count)])


def numbers(batches) -> list[int]:
    return [int(number) for batch in batches for number in batch["input_ids"][:, 0]]


def read(paths, batch_size=2, kind=records.PRETRAINING, **how):
    return record_order.read_records(paths, kind, SIZES, batch_size, **how)


def inspect(*paths) -> None:
    for _ in records.read_all([*map(str, paths)], 1000):
        pass


# Batches


@pytest.mark.parametrize("name", KINDS)
def test_records_are_read_as_they_were_written(tmp_path, name):
    kind = KINDS[name]
    rows = [row_of(kind, number) for number in range(5)]
    path = f"{tmp_path}/deep/file.tfrecord" + ".gz" * (name in ("pretraining", "regression"))
    assert records.write_records(path, kind, iter(rows)) == 5
    inspected = [*records.read_all([path], 30)]
    assert [record[:3] for record in inspected] == [(path, number, kind) for number in range(1, 6)]
    assert [{name: values.tolist() for name, values in record.values.items()} for record in inspected] == rows
    batches = [*read([path], kind=kind)]
    assert [len(batch["input_ids"]) for batch in batches] == [2, 2, 1]
    for feature_name, feature in kind.features.items():
        values = np.concatenate([batch[feature_name] for batch in batches])
        assert values.dtype == (np.int32 if feature.dtype == "int64" else np.float32)
        wanted = np.array([row[feature_name] for row in rows])
        np.testing.assert_array_equal(values, wanted[:, 0] if feature.length == 1 else wanted)
    assert records.find_fault([path], kind, SIZES) is None


def test_a_failure_while_writing_leaves_no_file(tmp_path):
    rows = itertools.chain([row_of(records.PRETRAINING, 0)], (1 / 0 for _ in "x"))
    with pytest.raises(ZeroDivisionError):
        write(tmp_path / "file", records.PRETRAINING, rows)
    assert [*tmp_path.iterdir()] == []


def test_the_order_is_that_of_the_files(tmp_path):
    """Compressed or not, whatever the names are."""
    for name, number, count, first in (("b", "b.gz", 3, 0), ("x.gz", "a", 4, 10)):
        numbered(tmp_path / name, count, first)
        (tmp_path / name).rename(tmp_path / number)
    paths = [f"{tmp_path}/b.gz", f"{tmp_path}/a"]
    assert numbers(read(paths, batch_size=3, drop_remainder=True)) == [0, 1, 2, 10, 11, 12]
    assert numbers(read(paths, batch_size=4, repeat=True).take(3)) == [0, 1, 2, 10, 11, 12, 13, 0, 1, 2, 10, 11]


@pytest.mark.parametrize(("multiple", "widths"), [(1, [4, 1, 5]), (4, [4, 4, 6])])
def test_batches_are_cut_to_their_own_longest_row(tmp_path, multiple, widths):
    """The last token counts, not the number of tokens; of few widths, where that is asked for."""
    masks = [[1, 0, 0, 0, 0, 0], [1, 0, 0, 1, 0, 0], [0] * 6, [0] * 6, [1, 1, 1, 1, 1, 0]]
    rows = [{**row_of(records.PRETRAINING, number), "input_mask": mask} for number, mask in enumerate(masks)]
    path = write(tmp_path / "a", records.PRETRAINING, rows)
    cut = [*read([path], pad_to_max_length=False, width_multiple=multiple)]
    for start, (short, width) in enumerate(zip(cut, widths, strict=True)):
        for name, values in short.items():
            long = np.array([row[name] for row in rows[2 * start :][:2]])
            wide = records.PRETRAINING.features[name].length == "max_seq_length"
            np.testing.assert_array_equal(values, long[:, :width] if wide else long.reshape(values.shape))


def test_files_without_records(tmp_path):
    """tf.data alone would search for ever."""
    path = write(tmp_path / "a.gz", records.PRETRAINING, [])
    found = str(records.find_fault([path], records.PRETRAINING, SIZES))
    assert found.startswith(path) and message_of(inspect, path) == found
    for seed in (None, 1):
        assert message_of(read, [path], repeat=True, shuffle_seed=seed) == found
    other = numbered(tmp_path / "b", 2)
    assert {*numbers(read([path, other], repeat=True, shuffle_seed=1).take(10))} == {0, 1}


# What is wrong with a record

UNMASKED = {"input_ids": [2, 6, 7, 3, 8, 3], "segment_lengths": [4, 2], "next_sentence_labels": [1]}


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("pretraining", {"masked_lm_positions": [1, 6]}, "holds 6,"),
        ("classification", {"label_ids": [3]}, "holds 3,"),
        ("SQuAD training", {"end_positions": [6]}, "holds 6,"),
        ("token tagging", {"label_ids": [0, -2, 0, 0, 0, 0]}, "holds -2,"),
        ("regression", {"label_ids": [-1e30]}, "holds -1"),
        ("regression", {"label_ids": [float("nan")]}, "holds nan"),
        ("regression", {"label_ids": [-3.5]}, None),
        ("pretraining", {"masked_lm_weights": [0.25, 3.0]}, None),
        ("unmasked", {"segment_lengths": [5, 1]}, "holds 1,"),
        ("unmasked", {"segment_lengths": [2, 2, 2]}, "3 values in segment_lengths"),
        ("unmasked", {"input_ids": []}, "no values of type int64 in its feature input_ids"),
        ("unmasked", {"input_ids": [2] * 7}, "7 values in input_ids"),
    ],
)
def test_what_training_refuses_is_found(tmp_path, kind, change, words):
    """There is a fault if and only if reading fails, at once or in a batch."""
    kind = KINDS.get(kind, records.UNMASKED)
    rows = [UNMASKED if kind is records.UNMASKED else row_of(kind, number) for number in range(4)]
    rows[2] = rows[2] | change
    path = write_rows(tmp_path / "a", rows)
    try:
        unusable = not [*read([path], kind=kind)]
    except (UserError, tf.errors.InvalidArgumentError):
        unusable = True
    found = records.find_fault([path], kind, SIZES)
    assert unusable == (found is not None) == (words is not None)
    assert words is None or (str(found).startswith(f"{path}, record 3: ") and words in str(found))


TOKENS = {"input_ids": [2, 300, 5, 6, 3, 0, 0, 0], "input_mask": [1, 1, 1, 1, 1, 0, 0, 0], "segment_ids": [0] * 8}
MASKS = {"masked_lm_positions": [3, 1, 0], "masked_lm_ids": [7, 6, 0], "masked_lm_weights": [1.0, 1.0, 0.0]}
ROW = {**TOKENS, **MASKS, "next_sentence_labels": [1]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input_ids": [2, 300, 5, 6, 3, 0, 0]}, "has 7 values in input_ids, where 8"),
        ({"input_ids": [2, 1000, 5, 6, 3, 0, 0, 0]}, "input_ids holds 1000,"),
        ({"input_ids": [2, -7, 5, 6, 3, 0, 0, 0]}, "input_ids holds -7,"),
        ({"input_mask": [1, 1, 1, 0, 1, 0, 0, 0]}, "input_mask has a 1 behind a 0"),
        ({"input_mask": [0] * 8}, "input_mask has no 1"),
        ({"segment_ids": [0, 0, 2, 0, 0, 0, 0, 0]}, "segment_ids holds 2,"),
        ({"masked_lm_positions": [1, 5, 0]}, "masked_lm_positions holds 5,"),
        ({"masked_lm_positions": [3, 3, 0]}, "masked_lm_positions holds 3 twice"),
        ({"masked_lm_weights": [1.0, float("nan"), 0.0]}, "masked_lm_weights holds nan,"),
        ({"masked_lm_weights": [1.0, -1.0, 0.0]}, "masked_lm_weights holds -1.0,"),
        ({"next_sentence_labels": []}, "has no values of type int64 in its feature next_sentence_labels"),
        ({"next_sentence_labels": None}, "has no feature next_sentence_labels, which the first record has; inspect"),
        ({"masked_lm_positions": [3, 0, 0], "masked_lm_weights": [1.0, 0.0, 0.0]}, None),
    ],
)
def test_what_an_inspection_finds(tmp_path, change, words):
    """In the fourth record of the second file; a later one, invalid in another way, is not the first."""
    one, later = write_rows(tmp_path / "one", [ROW]), {**ROW, "input_ids": [-1] * 5}
    changed = {name: values for name, values in {**ROW, **change}.items() if values is not None}
    two = write_rows(tmp_path / "two", [ROW, ROW, ROW, changed, ROW, later])
    expected = f"{two}, record 4: {words}" if words else f"{two}, record 6: "
    assert message_of(inspect, one, two).startswith(expected)


# Files


def test_files_are_those_of_tensorflow(tmp_path):
    """However many bytes are read at a time."""
    pieces = [bytes([number]) * (number * 37 % 400) for number in range(60)] + [b"", bytes(range(256)) * 300]
    path = str(tmp_path / "x")
    with tf.io.TFRecordWriter(path) as writer:
        for piece in pieces:
            writer.write(piece)
    assert tfrecords.frames(pieces) == (tmp_path / "x").read_bytes() and tfrecords.frames([]) == b""
    for block_bytes in (1, 12, 13, 100, 1000, 10**6):
        found = []
        for block in tfrecords.read_blocks(path, block_bytes):
            assert block.first == len(found) + 1
            found += [block.record(row) for row in range(len(block))]
        assert found == pieces


PIECE = framed(example.encode(records.columns(records.PRETRAINING, [ROW]))[0])


def flipped(place: int) -> bytes:
    damaged = bytearray(PIECE)
    damaged[place] ^= 4
    return bytes(damaged)


PACKED = gzip.compress(PIECE * 50)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (PIECE * 2 + flipped(20) + PIECE, ", record 3: data"),
        (PIECE + flipped(-1) + PIECE, ", record 2: data"),
        (PIECE + flipped(1) + PIECE, ", record 2: length"),
        (flipped(9) + PIECE, ", record 1: length"),
        (record_of(2**40), ", record 1: 1,099,511,627,776 bytes"),
        (b"\x01\x02\xff", ", record 1: truncated"),
        (gzip.compress(b"A text.\n" * 9), "text"),
        (b"PK\3\4\x14\0\0\0" + PIECE, "zip unzip"),
        (gzip.compress(b"records".ljust(257, b"\0") + b"ustar\0" + PIECE), "tar tar -xf"),
        (b"PAR1\x15\x04\x15\xf2\x9c", "Parquet"),
        (b"\x93NUMPY\x01\0" + PIECE, ", record 1: TFRecord"),
        (b"\x1f\x8b\x08" + b"\0" * 40, "gzip"),
        (PACKED[: len(PACKED) // 2], "damaged"),
        (PACKED[:-4], "damaged"),
        (PACKED[:40] + b"\x55" * 30 + PACKED[70:], "damaged"),
        (gzip.compress(PIECE * 2 + PIECE[:-5]), ", record 3: truncated"),
        (PIECE + framed(b""), ", record 2: input_ids"),
        (PIECE + framed(b"hello"), ", record 2: tf.train.Example"),
    ],
)
def test_damaged_files_are_named(tmp_path, content, words):
    path = tmp_path / "x"
    path.write_bytes(content)
    sizes = {"max_seq_length": 8, "max_predictions_per_seq": 3, "vocab_size": 1000, "type_vocab_size": 2}
    found = str(records.find_fault([str(path)], records.PRETRAINING, sizes))
    assert all(word in found for word in [f"{path}", *words.split()]) and path.name in refuses("", inspect, path)


def test_records_of_other_kinds(tmp_path):
    one = write_rows(tmp_path / "one", [ROW])
    two = write_rows(tmp_path / "two", [{**TOKENS, "label_ids": [1], "is_real_example": [1]}])
    refuses(f"{two}, record 1: masked_lm_positions", inspect, one, two)
    refuses("record 1: project", inspect, write_rows(two, [{"image": [1]}]))


def test_a_file_that_ends_anywhere(tmp_path):
    """TensorFlow's reader takes a file that ends within the 12 bytes before a record for a complete one."""
    for cut in range(1, len(PIECE)):
        (tmp_path / "x").write_bytes(PIECE * 2 + PIECE[:cut])
        blocks = tfrecords.read_blocks(f"{tmp_path}/x")
        assert len(next(blocks)) == 2
        refuses(f"{tmp_path}/x, record 3: truncated: {cut} bytes", next, blocks)


# Serialized Examples: the same bytes and numbers as with protobuf


def message(**features: list) -> tf.train.Example:
    found = tf.train.Example()
    for name, values in features.items():
        slot = found.features.feature[name]
        (slot.float_list if values and isinstance(values[0], float) else slot.int64_list).value.extend(values)
    return found


EDGES = [0, 1, 127, 128, 16383, 16384, 2**32 - 1, 2**32, 2**63 - 1, -1, -(2**63)]


@pytest.mark.parametrize("seed", range(25))
def test_rows(seed):
    """Random ones of floats, and of integers at the edges of their lengths as varints."""
    rng = np.random.default_rng(seed)
    count, columns = int(rng.integers(1, 20)), {}
    for name in rng.permutation(["input_ids", "b", "B", "é", "a" * 200, "input_mask", "x_1"])[: rng.integers(1, 8)]:
        length = int(rng.choice([1, 2, 20, 127, 128, 3000]))
        edges = np.array(EDGES[: rng.integers(1, 1 + len(EDGES))])
        values = rng.choice(edges, (count, length)) // rng.integers(1, 9)
        kind = rng.choice(["float", "ragged", "long"])
        if kind == "float":
            values = rng.normal(size=(count, length)).astype(np.float32)
        elif kind == "ragged":
            lengths = rng.integers(1, length + 1, count)
            values = np.ma.array(values, mask=np.arange(length) >= lengths[:, None])
        elif not values.any() or (0 < values.max() < 128 and values.min() >= 0):
            values = values.astype(np.uint8)
        columns[str(name)] = values
    encoded = example.encode(columns)
    columns |= {name: [[n for n in row if n is not None] for row in columns[name].tolist()] for name in columns}
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    assert encoded == [message(**row).SerializeToString(deterministic=True) for row in rows]
    for name, values in example.parse(encoded[0]).items():
        assert values.tolist() == columns[name][0]
        assert values.dtype == (np.float32 if isinstance(columns[name][0][0], float) else np.int64)


def test_no_fraction_becomes_a_whole_number():
    kind = records.RecordKind("x", {"a": records.Feature("int64", 3), "b": records.Feature("float32", 1)})
    found = example.encode(records.columns(kind, [{"a": [-1, 300, 2], "b": [1]}]))
    assert found == [message(a=[-1, 300, 2], b=[1.0]).SerializeToString(deterministic=True)]
    with pytest.raises(TypeError):
        records.columns(kind, [{"a": [0.5, 1, 1], "b": [1.0]}])
    with pytest.raises(ValueError, match="x: values of type float64"):
        example.encode({"x": np.zeros((2, 3))})


def test_what_else_an_example_may_hold():
    """Features without values, of bytes, and without a kind; bytes that are no Example."""
    found = message(ids=[1, -2], none=[])
    found.features.feature["words"].bytes_list.value.append(b"x")
    found.features.feature["unset"].SetInParent()
    data = found.SerializeToString()
    assert {name: values.tolist() for name, values in example.parse(data).items()} == {"ids": [1, -2], "none": []}
    # A list of integers whose last byte promises another one, in a feature of an entry of an Example.
    torn = b"\x0a\x10\x0a\x0e\x0a\x03ids\x12\x07\x1a\x05\x0a\x03\x05\x05\xac"
    for damaged in (torn, b"hello", data[:-1]):
        with pytest.raises(example.NotAnExample):
            example.parse(damaged)

"""Records: every kind is written, read, and rejected if it does not match."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf2.data import record_order, records
from bert_tf2.support.errors import UserError

SIZES = {"max_seq_length": 6, "max_predictions_per_seq": 2, "vocab_size": 30, "type_vocab_size": 2, "num_labels": 3}
_NAMES = ("PRETRAINING", "CLASSIFICATION", "REGRESSION", "SQUAD_PREDICT", "SQUAD_TRAIN", "TOKEN_TAGGING")
KINDS = {(kind := getattr(records, name)).name: kind for name in _NAMES}


def row_of(kind: records.RecordKind, number: int) -> dict:
    """A row whose first input id is its number."""
    length = number % SIZES["max_seq_length"] + 1
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


def numbered(path, count, first=0, kind=records.PRETRAINING) -> str:
    return write(path, kind, [row_of(kind, first + i) for i in range(count)])


def numbers(dataset) -> list[int]:
    return [int(number) for batch in dataset for number in batch["input_ids"][:, 0]]


def read(paths, batch_size=2, kind=records.PRETRAINING, sizes=SIZES, **how):
    return record_order.read_records(paths, kind, sizes, batch_size, **how)


def fault(path, kind=records.PRETRAINING, sizes=SIZES) -> str | None:
    """The message of find_fault, after a check that there is one if and only if reading fails."""
    refusal = None
    try:
        unusable = not list(read([path], kind=kind, sizes=sizes))
    except UserError as error:  # the first record is looked at beforehand
        unusable, refusal = True, str(error)
    except (tf.errors.InvalidArgumentError, tf.errors.DataLossError, UnicodeDecodeError):  # what training expects
        unusable = True
    found = records.find_fault([path], kind, sizes)
    assert (found is not None) == unusable
    if found is None:
        return None
    assert isinstance(found, UserError)
    assert "\n" not in str(found)
    assert refusal in (None, str(found))
    return str(found)


# Round trips.


@pytest.mark.parametrize("name", KINDS)
def test_what_is_written_is_read(tmp_path, name):
    kind = KINDS[name]
    rows = [row_of(kind, number) for number in range(5)]
    path = str(tmp_path / "deep" / "file.tfrecord")
    assert records.write_records(path, kind, iter(rows)) == 5
    batches = list(read([path], kind=kind))
    assert [len(batch["input_ids"]) for batch in batches] == [2, 2, 1]
    for feature_name, feature in kind.features.items():
        values = np.concatenate([batch[feature_name] for batch in batches])
        assert values.dtype == (np.int32 if feature.dtype == "int64" else np.float32)
        wanted = np.array([row[feature_name] for row in rows])
        np.testing.assert_array_equal(values, wanted[:, 0] if feature.length == 1 else wanted)
    assert fault(path, kind) is None


def test_a_failure_while_writing_leaves_no_file(tmp_path):
    rows = itertools.chain([row_of(records.PRETRAINING, 0)], (1 / 0 for _ in "x"))
    with pytest.raises(ZeroDivisionError):
        write(tmp_path / "file", records.PRETRAINING, rows)
    assert list(tmp_path.iterdir()) == []


# Order.


def test_without_a_seed_the_order_is_that_of_the_files(tmp_path):
    paths = [numbered(tmp_path / "b", 3), numbered(tmp_path / "a", 4, first=10)]
    assert numbers(read(paths)) == [0, 1, 2, 10, 11, 12, 13]
    assert numbers(read(paths, batch_size=3, drop_remainder=True)) == [0, 1, 2, 10, 11, 12]


def test_repeated_batches_run_across_the_end(tmp_path):
    path = numbered(tmp_path / "a", 3)
    assert numbers(read([path], repeat=True).take(3)) == [0, 1, 2, 0, 1, 2]


# Cutting to the longest row.


def test_batches_are_cut_to_their_own_longest_row(tmp_path):
    path = numbered(tmp_path / "a", 5)  # rows of 1, 2, 3, 4, 5 tokens
    cut, whole = (list(read([path], pad_to_max_length=pad)) for pad in (False, True))
    assert [batch["input_ids"].shape[1] for batch in cut] == [2, 4, 5]
    for short, long in zip(cut, whole, strict=True):
        length = short["input_ids"].shape[1]
        for name, values in long.items():
            kept = values[:, :length] if records.PRETRAINING.features[name].length == "max_seq_length" else values
            np.testing.assert_array_equal(short[name], kept)


def test_batches_of_few_widths(tmp_path):
    path = numbered(tmp_path / "a", 5)  # of the six columns that a row may have
    found = read([path], pad_to_max_length=False, width_multiple=4)
    assert [batch["input_ids"].shape[1] for batch in found] == [4, 4, 6]


@pytest.mark.parametrize(("mask", "width"), [([1, 0, 0, 1, 0, 0], 4), ([0] * 6, 1)])
def test_the_last_token_counts_not_the_number_of_tokens(tmp_path, mask, width):
    row = {**row_of(records.PRETRAINING, 0), "input_mask": mask}
    (batch,) = read([write(tmp_path / "a", records.PRETRAINING, [row])], pad_to_max_length=False)
    assert batch["input_ids"].shape == (1, width)


# Faults.


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("pretraining", {"masked_lm_positions": [1, 6]}, "holds 6, which is not in 0..5"),
        ("classification", {"label_ids": [3]}, "holds 3, which is not in 0..2 (num_labels)"),
        ("SQuAD training", {"end_positions": [6]}, "holds 6, which is not in 0..5 (max_seq_length)"),
        ("token tagging", {"label_ids": [0, -2, 0, 0, 0, 0]}, "holds -2, which is not in -1..2"),
    ],
)
def test_values_out_of_range_name_file_and_record(tmp_path, kind, change, message):
    kind = KINDS[kind]
    rows = [row_of(kind, number) for number in range(4)]
    rows[2] |= change
    path = write(tmp_path / "a", kind, rows)
    assert fault(path, kind).startswith(f"{path}, record 3: {next(iter(change))} {message}")


def test_an_empty_file(tmp_path):
    path = tmp_path / "a"
    path.touch()
    assert fault(str(path)) == f"{path}: no records in there; was the corpus empty?"
    for seed in (None, 1):
        with pytest.raises(UserError, match="no records in there"):  # tf.data alone would search for ever
            read([str(path)], repeat=True, shuffle_seed=seed)
    other = numbered(tmp_path / "b", 2)
    assert set(numbers(read([str(path), other], repeat=True, shuffle_seed=1).take(10))) == {0, 1}


def test_a_regression_score_that_no_square_has(tmp_path):
    for score, fits in ((-3.5, True), (1e30, False), (float("nan"), False)):
        row = {**row_of(records.REGRESSION, 1), "label_ids": [score]}
        assert (fault(write(tmp_path / "a", records.REGRESSION, [row]), records.REGRESSION) is None) == fits


def test_weights_between_0_and_1_are_fine(tmp_path):
    row = {**row_of(records.PRETRAINING, 1), "masked_lm_weights": [0.25, 3.0]}
    assert fault(write(tmp_path / "a", records.PRETRAINING, [row])) is None

"""Decodes the records of TFRecord files and checks every value against the table of their kind, without TensorFlow.

find_fault           what is wrong with files that training could not read, whose sizes the flags state
check_first_records  the same of the first records, before a training
Reader               an inspection: kind and sizes are those of the first record
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from bert_tf2.data import example, schemas, tfrecords, unmasked
from bert_tf2.data.schemas import Columns, Condition, Feature, RecordKind
from bert_tf2.support.errors import UserError, and_more

_SEGMENTS = 2  # BERT's type_vocab_size
_MOST_IDS = 10_000_000  # without a vocabulary; counting them takes memory
_TABLE_BYTES = 1 << 25  # of records of different lengths, each padded to the longest
_FILES_TO_CHECK = 100  # a corpus may consist of thousands of remote files
_SIZES_OF_MODEL = ("vocab_size", "type_vocab_size")
# What to do about a record that lacks a feature.
_ADVICE = {"next_sentence_labels": ", so it is for masked words only; give --objective=mlm"}

Sizes = Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Batch:
    """Consecutive records of a file, all of them valid.

    Attributes:
      path: the file.
      first: the number of the first record in the file, counted from 1.
      kind: the kind of the records.
      features: feature name -> [N, length] of any integer type, or float32. Where the number of values varies, rows are
        padded with zeros; `input_mask` then tells which of the ids are padding.
    """

    path: str
    first: int
    kind: RecordKind
    features: Columns

    def __len__(self) -> int:
        return len(self.features["input_ids"])


def read_all(paths: Sequence[str], vocab_size: int | None = None) -> Iterator[Batch]:
    """Yields the records of several files in order; see Reader.

    Raises:
      UserError: see Reader.batches; or there is no record in any file.
    """
    reader = Reader(vocab_size)
    for path in paths:
        yield from reader.batches(path)
    if reader.kind is None:
        raise _no_records(paths)


class Reader:
    """Reads files whose records are of one kind and of the same lengths, both of which the first record determines.

    Attributes:
      kind: the kind of the records; None before the first record.
      sizes: the sizes that the kind's table names, e.g. {"max_seq_length": 128, ...}.
    """

    def __init__(self, vocab_size: int | None = None):
        """`vocab_size`: every id must be smaller; None if it is unknown."""
        self.kind: RecordKind | None = None
        self.sizes = {"type_vocab_size": _SEGMENTS, "vocab_size": _MOST_IDS if vocab_size is None else vocab_size}

    def batches(self, path: str) -> Iterator[Batch]:
        """Yields the records of a file.

        Raises:
          UserError: the file cannot be read or is damaged, or a record is invalid; names the file and the record.
        """
        for block in tfrecords.read_blocks(path):
            if self.kind is None:
                self._look_at_first(block)
            yield from _checked(block, self.kind, self.sizes, inspects=True)

    def _look_at_first(self, block: tfrecords.Block) -> None:
        """Determines the kind and the sizes."""
        place = f"{block.path}, record {block.first}"
        try:
            found = example.parse(block.record(0))
        except example.NotAnExample:
            raise UserError(f"{place}: is no tf.train.Example; make the file again") from None
        self.kind = _kind_of(found)
        if self.kind is None:
            raise UserError(
                f"{place}: is no record of this project, which would have input_ids, and masked_lm_positions, label_ids"
                f" or unique_ids, for example (found: {and_more(sorted(found), 8) or 'nothing'})"
            )
        for name, feature in self.kind.features.items():
            if isinstance(feature.length, str) and not feature.varies:
                self.sizes.setdefault(feature.length, len(found.get(name, ())))


def _kind_of(found: Columns) -> RecordKind | None:
    """The kind of a record by its features, name -> values; None if it is of none."""
    if "input_ids" not in found:
        return None
    if kind := unmasked.kind_of(found):
        return kind
    if "masked_lm_positions" in found:
        return schemas.PRETRAINING if "next_sentence_labels" in found else schemas.MASKED_WORDS
    if "unique_ids" in found:
        return schemas.SQUAD_TRAIN if "start_positions" in found else schemas.SQUAD_PREDICT
    if "label_ids" not in found:
        return None
    if "is_real_example" not in found:
        return schemas.TOKEN_TAGGING
    if found["label_ids"].dtype == np.float32:
        return schemas.REGRESSION
    return schemas.CLASSIFICATION if len(found["label_ids"]) == 1 else schemas.MULTI_LABEL


def check_first_records(paths: Sequence[str], kind: RecordKind, sizes: Sizes, must_have_some: bool) -> None:
    """Raises UserError for a wrong kind or wrong lengths in the first record of each file."""
    some = False
    for path in paths[:_FILES_TO_CHECK]:
        if block := next(tfrecords.read_blocks(path), None):
            some |= any(_checked(block.part(0, 1), kind, sizes))
    if must_have_some and not some and not any(map(any, map(tfrecords.read_blocks, paths[_FILES_TO_CHECK:]))):
        raise _no_records(paths)  # tf.data would search forever for a first record


def find_fault(paths: Sequence[str], kind: RecordKind, sizes: Sizes) -> UserError | None:
    """Finds the first invalid record; returns an error that names it and the reason, or None if all are valid.

    Used after a failure, because it reads all records once more.
    """
    total = 0
    try:
        for path in paths:
            for block in tfrecords.read_blocks(path):
                total += sum(map(len, _checked(block, kind, sizes)))
    except UserError as error:
        return error
    return None if total else _no_records(paths)


def _no_records(paths: Sequence[str]) -> UserError:
    return UserError(f"{and_more(paths, 8)}: no records in there; was the corpus empty?")


def _checked(block: tfrecords.Block, kind: RecordKind, sizes: Sizes, *, inspects: bool = False) -> Iterator[Batch]:
    """Decodes and checks records.

    Args:
      block: the records.
      kind: their kind.
      sizes: the sizes that the kind's table names. A limit that is not in there is not checked.
      inspects: whether they are those of the first record; then what no training depends on is checked, too.

    Yields:
      The valid records, up to the first one that is not.

    Raises:
      UserError: a record is invalid; names the first one.
    """
    varies = any(feature.varies for feature in kind.features.values())
    for part in block.parts(_TABLE_BYTES) if varies else [block]:
        check = _Check(part, kind, sizes, inspects)
        if check.good:
            features = {name: values[: check.good] for name, values in check.values.items()}
            yield Batch(block.path, part.first, kind, features)
        if check.problem:
            raise UserError(f"{block.path}, record {part.first + check.good}: {check.problem}")


class _Check:
    """The records of a block, and the first of them that is invalid.

    Attributes:
      values: feature name -> [rows, length], at least of the `good` rows.
      good: the number of rows before the first invalid one.
      problem: what is wrong with it, or None.
    """

    def __init__(self, block: tfrecords.Block, kind: RecordKind, sizes: Sizes, inspects: bool):
        self._kind, self._sizes, self._inspects = kind, sizes, inspects
        self.good = len(block)
        self.problem: str | None = None
        array, located, invalid = example.locate(block.data, block.starts, block.lengths, [*kind.features])
        for row in invalid:
            self._add(row, f"is no tf.train.Example; a file of {kind.name} records is needed")
        self.values: dict[str, np.ndarray] = {}
        counts: dict[str, np.ndarray] = {}  # of features whose number of values varies
        for name, feature in kind.features.items():
            if feature.varies:
                counts[name] = self._decode_varying(name, feature, array, located[name])
            else:
                self._decode(name, feature, array, located[name])
        self.values = {name: values[: self.good] for name, values in self.values.items()}
        counts = {name: numbers[: self.good] for name, numbers in counts.items()}
        for name, feature in kind.features.items():
            self._check_range(name, feature, counts.get(name))
        for condition in kind.conditions(self.values, counts) if kind.conditions else ():
            self._note(*condition)
        if unmasked.are_of(kind):
            width = self.values["input_ids"].shape[1]
            self.values["input_mask"] = (np.arange(width) < counts["input_ids"][:, None]).view(np.uint8)
        for conditions in (_mask_conditions, _position_conditions) if inspects else ():
            for condition in conditions(self.values):
                self._note(*condition)

    def _add(self, row: int, problem: str) -> None:
        if row < self.good:
            self.good, self.problem = row, problem

    def _note(self, wrong: np.ndarray, describe: Callable[[int], str]) -> None:
        if wrong.any() and (row := int(wrong.argmax())) < self.good:
            self._add(row, describe(row))

    def _size(self, size: float | str | None) -> float | None:
        return self._sizes.get(size) if isinstance(size, str) else size

    def _decode(self, name: str, feature: Feature, array: np.ndarray, located: example.Located) -> None:
        """Decodes a feature of a fixed number of values, up to the first row that has another number."""
        wanted = self._size(feature.length)
        if wanted:
            read = example.integers if feature.dtype == "int64" else example.floats
            self.values[name], number = read(array, located, wanted)
        else:  # the first record has none
            self.values[name], number = np.zeros((0, 0), np.int64), 0
        self._add_number(name, feature, located, len(self.values[name]), number)

    def _decode_varying(self, name: str, feature: Feature, array, located: example.Located) -> np.ndarray:
        """Decodes a feature whose number of values varies; returns the numbers."""
        found = example.varying_integers(array, located)
        self.values[name], row = found.values, len(found)
        if row < len(located.kinds):
            is_list = located.kinds[row] == example.INTEGERS and located.lengths[row]
            self._add_number(name, feature, located, row, -1 if is_list else 0)
        most = self._size(feature.length)
        more = "; give the value with which they were made" if feature.length not in _SIZES_OF_MODEL else ""

        def describe(row: int) -> str:
            count = found.lengths[row]
            return f"has {count} values in {name}, and at most {most} are possible here ({feature.length}){more}"

        if most is not None:
            self._note(found.lengths > most, describe)
        return found.lengths

    def _add_number(self, name: str, feature: Feature, located: example.Located, row: int, number: int) -> None:
        """Notes a row, unless it is behind the last one, that has another number of values; -1 for an invalid list."""
        if row >= self.good:
            return
        wanted = self._size(feature.length)
        if not located.kinds[row]:
            problem = f"has no feature {name}{_ADVICE.get(name, f', which {self._kind.name} records have')}"
        elif number < 0:
            problem = f"the values of {name} are cut off; make the file again"
        elif not number:
            problem = f"has no values of type {feature.dtype} in its feature {name}"
        elif isinstance(feature.length, int):
            problem = f"{name} has {number} values of type {feature.dtype} where {wanted} is needed"
        elif self._inspects:
            problem = (
                f"has {number} values of type {feature.dtype} in {name}, and the first record has {wanted};"
                " inspect records of different lengths one file at a time"
            )
        else:
            problem = (
                f"was made for {feature.length} {number}, but {feature.length} is {wanted} here ({name});"
                f" give --{feature.length}={number} or make the records again"
            )
        self._add(row, problem)

    def _check_range(self, name: str, feature: Feature, counts: np.ndarray | None) -> None:
        """Checks the values of a feature; with `counts`, only so many of each row."""
        values, limit = self.values[name], self._size(feature.exclusive_maximum)
        if feature.exclusive_maximum is None or not values.size:
            return
        # A comparison with NaN is false, so NaN is not in the range.
        if counts is None and values.min() >= feature.minimum and (limit is None or values.max() < limit):
            return
        fits = values >= feature.minimum
        if limit is not None:
            fits &= values < limit
        if counts is not None:
            fits |= np.arange(values.shape[1]) >= counts[:, None]
        allowed = self._allowed(feature, limit)
        self._note(~fits.all(axis=1), lambda row: f"{name} holds {values[row][~fits[row]][0]}, which is not {allowed}")

    def _allowed(self, feature: Feature, limit: float | None) -> str:
        least, size = feature.minimum, feature.exclusive_maximum
        if limit is None:
            return f"{least:g} or more"
        if feature.dtype != "int64":
            return f"a number from {least:g} to {limit:g}"
        meaning = f" ({size})" if isinstance(size, str) else ""
        if size in _SIZES_OF_MODEL and not self._inspects:
            meaning = f" ({size} {limit} in the model's configuration; are the records for another model?)"
        return f"in {least}..{limit - 1}{meaning}"


def _mask_conditions(values: Columns) -> Iterator[Condition]:
    """The input mask must be ones, then zeros. Records that only fill up a batch have no ones."""
    mask = values["input_mask"]
    yield (mask[:, 1:] > mask[:, :-1]).any(axis=1), lambda row: "input_mask has a 1 behind a 0"
    empty = (mask == 0).all(axis=1)
    if "is_real_example" in values:
        empty &= values["is_real_example"][:, 0] != 0
    yield empty, lambda row: "input_mask has no 1: the record has no tokens"


def _position_conditions(values: Columns) -> Iterator[Condition]:
    """Masked positions must be within the tokens, and different from each other."""
    if "masked_lm_positions" not in values:
        return
    used = values["masked_lm_weights"] > 0
    positions = values["masked_lm_positions"].astype(np.int64)
    tokens = (values["input_mask"] != 0).sum(axis=1)
    outside = used & (positions >= tokens[:, None])
    holds = "masked_lm_positions holds"
    yield (
        outside.any(axis=1),
        lambda row: f"{holds} {positions[row][outside[row]][0]}, and the record has {tokens[row]} tokens",
    )
    # Unused places get numbers of their own below 0.
    different = np.where(used, positions, -1 - np.arange(positions.shape[1]))
    if (different[:, 1:] > different[:, :-1])[used[:, 1:]].all():
        return  # in order, as all writers leave them
    ordered = np.sort(different, axis=1)
    twice = ordered[:, 1:] == ordered[:, :-1]
    yield (
        twice.any(axis=1),
        lambda row: f"{holds} {ordered[row, 1:][twice[row]][0]} twice; a position is predicted once",
    )

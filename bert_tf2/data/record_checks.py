"""Decodes the records of TFRecord files and checks every value against the table of their kind, without TensorFlow.

find_fault           what is wrong with files that training could not read, whose sizes the flags state
check_first_records  the same of the first records, before a training
read_all             an inspection: kind and sizes are those of the first record
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import google_crc32c
import numpy as np

from bert_tf2.data import example, schemas, tfrecords, unmasked
from bert_tf2.data.schemas import Columns, Condition, Feature, RecordKind
from bert_tf2.data.varints import Ragged
from bert_tf2.support.errors import UserError, and_more

_SEGMENTS = 2  # BERT's type_vocab_size
_MOST_IDS = 10_000_000  # without a vocabulary; counting them takes memory
_TABLE_BYTES = 1 << 22  # of records of different lengths, each padded to the longest; a number has one or more
_FILES_TO_CHECK = 100
_SIZES_OF_MODEL = ("vocab_size", "type_vocab_size")
# What to do about a record that lacks a feature.
_ADVICE = {"next_sentence_labels": ", so it is for masked words only; give --objective=mlm"}

Sizes = Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Batch:
    """Consecutive records of a file, all of them valid."""

    path: str  # the file
    first: int  # the number of the first record in the file, counted from 1
    kind: RecordKind  # the kind of the records
    # feature name -> [N, length] of any integer type, or float32. Where the number of values varies, rows are padded
    # with zeros; `input_mask` then tells which of the ids are padding
    features: Columns

    def __len__(self) -> int:
        return len(self.features["input_ids"])


def read_all(paths: Sequence[str], vocab_size: int | None = None) -> Iterator[Batch]:
    """Yields the records of several files in order: of one kind and the same lengths, those of the first record.

    `vocab_size`: every id must be smaller; None if it is unknown.
    """
    kind: RecordKind | None = None
    sizes = {"type_vocab_size": _SEGMENTS, "vocab_size": _MOST_IDS if vocab_size is None else vocab_size}
    for path in paths:
        for block in tfrecords.read_blocks(path):
            if kind is None:
                kind, lengths = _look_at_first(block)
                sizes = {**lengths, **sizes}
            yield from _checked(block, kind, sizes, inspects=True)
    if kind is None:
        raise _no_records(paths)


def _look_at_first(block: tfrecords.Block) -> tuple[RecordKind, Sizes]:
    """The kind of the first record, and the sizes that the kind's table names: {"max_seq_length": 128, ...}."""
    place = f"{block.path}, record {block.first}"
    try:
        found = example.parse(block.record(0))
    except example.NotAnExample:
        raise UserError(f"{place}: is no tf.train.Example; make the file again") from None
    kind = _kind_of(found)
    if kind is None:
        raise UserError(
            f"{place}: is no record of this project, which would have input_ids, and masked_lm_positions, label_ids"
            f" or unique_ids, for example (found: {and_more(sorted(found), 8) or 'nothing'})"
        )
    sizes: dict[str, int] = {}
    for name, feature in kind.features.items():
        if isinstance(feature.length, str) and not feature.varies:
            sizes.setdefault(feature.length, len(found.get(name, ())))
    return kind, sizes


def form_of(block: tfrecords.Block) -> int:
    """A number that tells the kind and the lengths of the first record from others; 0 if that is of no kind."""
    try:
        kind, sizes = _look_at_first(block)
    except UserError:
        return 0
    return google_crc32c.value(f"{[*kind.features]} {sizes}".encode())


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
    """`check_first` of the first files: a corpus may consist of thousands of remote ones."""
    some = False
    for path in paths[:_FILES_TO_CHECK]:
        if block := next(tfrecords.read_blocks(path), None):
            check_first(block, kind, sizes)
            some = True
    if must_have_some and not some and not any(map(any, map(tfrecords.read_blocks, paths[_FILES_TO_CHECK:]))):
        raise _no_records(paths)  # tf.data would search forever for a first record


def check_first(block: tfrecords.Block, kind: RecordKind, sizes: Sizes) -> None:
    """Raises UserError for a wrong kind or wrong lengths in the first record of a block."""
    for _ in _checked(block.part(0, 1), kind, sizes):
        pass


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
    """Yields the valid records, up to the first one that is not; a limit that is not in `sizes` is not checked.

    `inspects`: they are those of the first record; then what no training depends on is checked, too.
    """
    for part in block.parts(_TABLE_BYTES):
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
        rows = [*self._parsed(block)]
        found = {name: self._column(name, feature, rows) for name, feature in kind.features.items()}
        counts = {name: found[name].lengths[: self.good] for name in found if kind.features[name].varies}
        self.values = {
            name: column.values[: self.good, : column.lengths[: self.good].max(initial=0)]
            for name, column in found.items()
        }
        if not self.good:
            return
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

    def _parsed(self, block: tfrecords.Block) -> Iterator[Columns]:
        """The records before the first one that is no Example."""
        for row in range(len(block)):
            try:
                yield example.parse(block.record(row))
            except example.NotAnExample:
                return self._add(row, f"is no tf.train.Example; a file of {self._kind.name} records is needed")

    def _column(self, name: str, feature: Feature, rows: Sequence[Columns]) -> Ragged:
        """The values of a feature up to the first row without any, or with a wrong number of them."""
        column = [row.get(name) for row in rows[: self.good]]
        for row, values in enumerate(column):
            if values is None:
                self._add(row, f"has no feature {name}{_ADVICE.get(name, f', which {self._kind.name} records have')}")
            elif values.dtype != feature.dtype or not len(values):
                self._add(row, f"has no values of type {feature.dtype} in its feature {name}")
        column = column[: self.good]
        lengths, size = np.array([*map(len, column)], np.int64), self._size(feature.length)
        if size is not None:
            wrong = lengths > size if feature.varies else lengths != size
            self._note(wrong, lambda row: self._wrong_number(name, feature, lengths[row]))
        lengths = lengths[: self.good]  # now no row is much longer than the others
        found = Ragged(np.zeros((len(lengths), lengths.max(initial=0)), feature.dtype), lengths)
        if self.good:
            found.values[found.used] = np.concatenate(column[: self.good])
        return found

    def _wrong_number(self, name: str, feature: Feature, number: int) -> str:
        length, size = feature.length, self._size(feature.length)
        if feature.varies:
            advice = "" if length in _SIZES_OF_MODEL else "; give the value with which they were made"
            return f"has {number} values in {name}, and at most {size} are possible here ({length}){advice}"
        if isinstance(length, int):
            return f"{name} has {number} values of type {feature.dtype} where {size} is needed"
        if self._inspects:
            return (
                f"has {number} values of type {feature.dtype} in {name}, and the first record has {size};"
                " inspect records of different lengths one file at a time"
            )
        return (
            f"was made for {length} {number}, but {length} is {size} here ({name}); give --{length}={number} or make"
            " the records again"
        )

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

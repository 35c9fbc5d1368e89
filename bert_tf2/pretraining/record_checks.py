"""Reads the records of TFRecord files as arrays and checks every value, without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from bert_tf2.data import example_parser, record_framing, records
from bert_tf2.data.records import Feature, RecordKind
from bert_tf2.pretraining import unmasked
from bert_tf2.support.errors import UserError, and_more

_KINDS = (
    records.PRETRAINING,
    records.MASKED_WORDS,
    unmasked.ALL,
    records.CLASSIFICATION,
    records.MULTI_LABEL,
    records.REGRESSION,
    records.SQUAD_PREDICT,
    records.SQUAD_TRAIN,
    records.TOKEN_TAGGING,
)
_NAMES = tuple(dict.fromkeys(name for kind in _KINDS for name in kind.features))
_SEGMENTS = 2  # BERT's type_vocab_size
_MOST_IDS = 10_000_000  # without a vocabulary; counting them takes memory
_TABLE_BYTES = 1 << 25  # of records of different lengths, each padded to the longest


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
    features: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.features["input_ids"])


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
        for whole in record_framing.read_blocks(path):
            if self.kind is None:
                self._look_at_first(whole)
            for block in whole.parts(_TABLE_BYTES) if unmasked.are_of(self.kind) else [whole]:
                features, good, problem = self._decode(block)
                if good:
                    yield Batch(path, block.first, self.kind, features)
                if problem:
                    raise UserError(f"{path}, record {block.first + good}: {problem}")

    def _look_at_first(self, block: record_framing.Block) -> None:
        """Determines the kind and the sizes."""
        try:
            found = example_parser.parse(block.record(0), _NAMES)
        except example_parser.NotAnExample as error:
            raise UserError(f"{block.path}, record {block.first}: {_not_an_example(error)}") from None
        lengths = {name: _count(*found[name]) for name in found}
        self.kind = _kind_of(found, lengths)
        if self.kind is None:
            held = and_more(sorted(found), 8) or "none of them"
            raise UserError(
                f"{block.path}, record {block.first}: is no record of this project, which would have input_ids, and"
                f" masked_lm_positions, label_ids or unique_ids, for example (found: {held})"
            )
        for name, feature in self.kind.features.items():
            if isinstance(feature.length, str) and not feature.varies:
                self.sizes.setdefault(feature.length, lengths.get(name, 0))

    def _decode(self, block: record_framing.Block) -> tuple[dict[str, np.ndarray], int, str | None]:
        """Returns the features of the records before the first invalid one, their number, and what is wrong with it."""
        array, located, problems = example_parser.locate(block.data, block.starts, block.lengths, [*self.kind.features])
        faults = _Faults(len(block))
        for row, problem in problems.items():
            faults.add(row, _not_an_example(problem))
        features: dict[str, np.ndarray] = {}
        counts: dict[str, np.ndarray] = {}
        for name, feature in self.kind.features.items():
            if feature.varies:
                features[name], counts[name] = self._varying(name, feature, array, located[name], faults)
            else:
                features[name] = self._values(name, feature, array, located[name], faults)
        for name, feature in self.kind.features.items():
            self._check_range(name, feature, features[name][: faults.good], faults, counts.get(name))
        if unmasked.are_of(self.kind):
            features["input_mask"] = self._check_unmasked(features, counts, faults)
        for check in (_check_mask, _check_positions):
            check(features, faults)
        return {name: values[: faults.good] for name, values in features.items()}, faults.good, faults.problem

    def _values(self, name: str, feature: Feature, array, located, faults: _Faults) -> np.ndarray:
        """[rows, length] of a feature, up to the first invalid row."""
        wanted = feature.length if isinstance(feature.length, int) else self.sizes[feature.length]
        if not wanted:  # the first record has none
            faults.add(0, f"has no values of type {feature.dtype} in its feature {name}")
            return np.zeros((0, 0), np.int64)
        read = example_parser.integers if feature.dtype == "int64" else example_parser.floats
        values, other = read(array, located, wanted)
        row = len(values)
        if row < len(located.kinds):
            faults.add(row, self._wrong_number(name, feature, wanted, other, bool(located.kinds[row])))
        return values

    def _varying(self, name: str, feature: Feature, array, located, faults: _Faults) -> tuple[np.ndarray, np.ndarray]:
        """[rows, length] of a feature whose number of values varies, padded with zeros, and the numbers [rows]."""
        found = example_parser.varying_integers(array, located)
        row = len(found)
        if row < len(located.kinds):
            found_kind = int(located.kinds[row])
            if not found_kind or (found_kind == example_parser.INTEGERS and located.lengths[row]):
                faults.add(row, self._wrong_number(name, feature, 1, -1, bool(found_kind)))
            else:
                faults.add(row, f"has no values of type {feature.dtype} in its feature {name}")
        return found.values, found.lengths

    def _check_unmasked(
        self, features: Mapping[str, np.ndarray], counts: Mapping[str, np.ndarray], faults: _Faults
    ) -> np.ndarray:
        """Checks the lengths of examples without masks; returns the input mask, uint8 [rows, length]."""
        values = {name: features[name][: faults.good] for name in features}
        numbers = {name: counts[name][: faults.good] for name in counts}

        def problem(row: int) -> str:
            return self.kind.problem({name: values[name][row, : numbers[name][row]].tolist() for name in numbers})

        faults.note(unmasked.wrong(values, numbers), problem)
        width = features["input_ids"].shape[1]
        return (np.arange(width) < counts["input_ids"][:, None]).view(np.uint8)

    def _wrong_number(self, name: str, feature: Feature, wanted: int, other: int, is_there: bool) -> str:
        if not is_there:
            return f"has no feature {name}, which {self.kind.name} records have"
        if other < 0:
            return f"the values of {name} are cut off; make the file again"
        if isinstance(feature.length, str) and other:
            return (
                f"has {other} values of type {feature.dtype} in {name}, and the first record has {wanted};"
                " inspect records of different lengths one file at a time"
            )
        return f"{name} has {other} values of type {feature.dtype} where {wanted} is needed"

    def _check_range(
        self, name: str, feature: Feature, values: np.ndarray, faults: _Faults, counts: np.ndarray | None = None
    ) -> None:
        """Checks the values [rows, length]; with `counts`, only so many of each row."""
        if feature.below is None or not values.size:
            return
        limit = self.sizes.get(feature.below) if isinstance(feature.below, str) else feature.below
        if name == "label_ids" and self.kind is not records.MULTI_LABEL and feature.dtype == "int64":
            limit = None  # the number of labels is not in the records
        # A comparison with NaN is false, so NaN is not in the range.
        if counts is None and values.min() >= feature.least and (limit is None or values.max() < limit):
            return
        fits = values >= feature.least
        if limit is not None:
            fits &= values < limit
        if counts is not None:
            fits |= np.arange(values.shape[1]) >= counts[: len(values), None]
        allowed = f"from {feature.least:g} to {limit:g}" if limit is not None else f"{feature.least:g} or more"
        if limit is not None and feature.dtype == "int64":
            allowed = f"in {feature.least}..{limit - 1}{' (vocab_size)' if feature.below == 'vocab_size' else ''}"
        faults.note(~fits.all(axis=1), lambda row: f"{name} holds {values[row][~fits[row]][0]}, which is not {allowed}")


class _Faults:
    """The first invalid row of a block.

    Attributes:
      good: the number of rows before it.
      problem: what is wrong with it, or None.
    """

    def __init__(self, count: int):
        self.good = count
        self.problem: str | None = None

    def add(self, row: int, problem: str) -> None:
        if row < self.good:
            self.good, self.problem = row, problem

    def note(self, bad: np.ndarray, problem: Callable[[int], str]) -> None:
        """`bad`: bool [rows]; `problem` describes one of them."""
        row = int(bad.argmax()) if len(bad) else 0
        if row < self.good and bad[row]:
            self.add(row, problem(row))


def _not_an_example(reason: object) -> str:
    return f"is no tf.train.Example ({reason}); make the file again"


def _count(kind: int, packed: bytes) -> int:
    return len(packed) // 4 if kind == example_parser.FLOATS else sum(byte < 0x80 for byte in packed)


def _kind_of(found: Mapping[str, tuple[int, bytes]], lengths: Mapping[str, int]) -> RecordKind | None:
    """The kind of a record by its features; None if it is of none."""
    if "input_ids" not in found:
        return None
    if kind := unmasked.kind_of(found):
        return kind
    if "masked_lm_positions" in found:
        return records.PRETRAINING if "next_sentence_labels" in found else records.MASKED_WORDS
    if "unique_ids" in found:
        return records.SQUAD_TRAIN if "start_positions" in found else records.SQUAD_PREDICT
    if "label_ids" not in found:
        return None
    if "is_real_example" not in found:
        return records.TOKEN_TAGGING
    if found["label_ids"][0] == example_parser.FLOATS:
        return records.REGRESSION
    return records.CLASSIFICATION if lengths["label_ids"] == 1 else records.MULTI_LABEL


def _check_mask(features: Mapping[str, np.ndarray], faults: _Faults) -> None:
    """The input mask must be ones, then zeros. Records that only fill up a batch have no ones."""
    mask = features["input_mask"][: faults.good]
    empty = (mask == 0).all(axis=1)
    if "is_real_example" in features:
        empty &= features["is_real_example"][: len(mask), 0] != 0
    faults.note((mask[:, 1:] > mask[:, :-1]).any(axis=1), lambda row: "input_mask has a 1 behind a 0")
    faults.note(empty, lambda row: "input_mask has no 1: the record has no tokens")


def _check_positions(features: Mapping[str, np.ndarray], faults: _Faults) -> None:
    """Masked positions must be within the tokens, and different from each other."""
    if "masked_lm_positions" not in features:
        return
    rows = faults.good
    used = features["masked_lm_weights"][:rows] > 0
    positions = features["masked_lm_positions"][:rows].astype(np.int64)
    tokens = (features["input_mask"][:rows] != 0).sum(axis=1)
    outside = used & (positions >= tokens[:, None])

    def outside_problem(row: int) -> str:
        wrong = positions[row][outside[row]][0]
        return f"masked_lm_positions holds {wrong}, and the record has {tokens[row]} tokens"

    faults.note(outside.any(axis=1), outside_problem)
    # Unused places get numbers of their own below 0.
    different = np.where(used, positions, -1 - np.arange(positions.shape[1]))
    if (different[:, 1:] > different[:, :-1])[used[:, 1:]].all():
        return  # in order, as all writers leave them
    ordered = np.sort(different, axis=1)
    twice = ordered[:, 1:] == ordered[:, :-1]
    faults.note(
        twice.any(axis=1),
        lambda row: f"masked_lm_positions holds {ordered[row, 1:][twice[row]][0]} twice; a position is predicted once",
    )


def read_all(paths: Sequence[str], vocab_size: int | None = None) -> Iterator[Batch]:
    """Yields the records of several files in order; see Reader.

    Raises:
      UserError: see Reader.batches; or there is no record in any file.
    """
    reader = Reader(vocab_size)
    for path in paths:
        yield from reader.batches(path)
    if reader.kind is None:
        raise UserError(f"{and_more(paths, 8)}: no records in there; was the corpus empty?")

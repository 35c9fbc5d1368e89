"""Decodes the records of TFRecord files and checks every value against the table of their kind, without TensorFlow.

find_fault           what is wrong with files that training could not read, whose sizes the flags state
check_first_records  the same of the first records, before a training
read_all             an inspection: kind and sizes are those of the first record
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np

from bert_tf2.data import example, schemas, tfrecords
from bert_tf2.data.schemas import Feature, RecordKind
from bert_tf2.support.errors import UserError, and_more

_SEGMENTS = 2  # BERT's type_vocab_size
_MOST_IDS = 10_000_000  # without a vocabulary
_FILES_TO_CHECK = 100  # a corpus may consist of thousands of remote ones
_SIZES_OF_MODEL = ("vocab_size", "type_vocab_size")
# What to do about a record that lacks a feature.
_ADVICE = {"next_sentence_labels": ", so it is for masked words only; give --objective=mlm"}

Sizes = Mapping[str, int]
Values = Mapping[str, np.ndarray]
"""Feature name -> int64 or float32 [length]."""


class Record(NamedTuple):
    """A valid record."""

    path: str  # the file
    number: int  # in the file, counted from 1
    kind: RecordKind
    values: Values  # of all features of the kind


def read_all(paths: Sequence[str], vocab_size: int | None = None) -> Iterator[Record]:
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
            for row in range(len(block)):
                yield check(block, row, kind, sizes, inspects=True)
    if kind is None:
        raise _no_records(paths)


def _look_at_first(block: tfrecords.Block) -> tuple[RecordKind, Sizes]:
    """The kind of the first record, and the sizes that its table names: {"max_seq_length": 128, ...}."""
    place = f"{block.path}, record {block.first}"
    try:
        found = example.parse(block.record(0))
    except example.NotAnExample:
        raise UserError(f"{place}: is no tf.train.Example; make the file again") from None
    kind = kind_of(found)
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
    """Tells the kind and the lengths of the first record from others; 0 if that is of no kind."""
    try:
        kind, sizes = _look_at_first(block)
    except UserError:
        return 0
    return google_crc32c.value(f"{[*kind.features]} {sizes}".encode())


def kind_of(found: Values) -> RecordKind | None:
    if "input_ids" not in found:
        return None
    if "segment_lengths" in found:
        return schemas.UNMASKED if "next_sentence_labels" in found else schemas.UNMASKED_WORDS
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
    """Raises UserError for a wrong kind or wrong lengths in the first records of the first files."""
    some = False
    for path in paths[:_FILES_TO_CHECK]:
        if block := next(tfrecords.read_blocks(path), None):
            check(block, 0, kind, sizes)
            some = True
    if must_have_some and not some and not any(map(any, map(tfrecords.read_blocks, paths[_FILES_TO_CHECK:]))):
        raise _no_records(paths)  # tf.data would search forever for a first record


def find_fault(paths: Sequence[str], kind: RecordKind, sizes: Sizes) -> UserError | None:
    """An error that names the first invalid record and the reason, or None if all are valid; reads them all."""
    some = False
    try:
        for path in paths:
            for block in tfrecords.read_blocks(path):
                for row in range(len(block)):
                    some = bool(check(block, row, kind, sizes))
    except UserError as error:
        return error
    return None if some else _no_records(paths)


def _no_records(paths: Sequence[str]) -> UserError:
    return UserError(f"{and_more(paths, 8)}: no records in there; was the corpus empty?")


def check(block: tfrecords.Block, row: int, kind: RecordKind, sizes: Sizes, inspects: bool = False) -> Record:
    """A record of a block; raises UserError if it is invalid. A limit that is not in `sizes` is not checked.

    `inspects`: the sizes are those of the first record; what no training depends on is checked, too.
    """
    number = block.first + row
    try:
        found = example.parse(block.record(row))
        problem = next(_problems(found, kind, sizes, inspects), None)
    except example.NotAnExample:
        problem = f"is no tf.train.Example; a file of {kind.name} records is needed"
    if problem:
        raise UserError(f"{block.path}, record {number}: {problem}")
    return Record(block.path, number, kind, {name: found[name] for name in kind.features})


def _problems(found: Values, kind: RecordKind, sizes: Sizes, inspects: bool) -> Iterator[str]:
    """What is wrong with a record. Each problem supposes that those before it are none."""
    for name, feature in kind.features.items():
        values, length = found.get(name), feature.length
        size = sizes.get(length) if isinstance(length, str) else length
        if values is None:
            yield f"has no feature {name}{_ADVICE.get(name, f', which {kind.name} records have')}"
        if values.dtype != feature.dtype or not len(values):
            yield f"has no values of type {feature.dtype} in its feature {name}"
        if size is not None and (len(values) > size if feature.varies else len(values) != size):
            yield _wrong_number(name, feature, len(values), size, inspects)
    for name, feature in kind.features.items():
        limit = feature.exclusive_maximum
        limit = sizes.get(limit) if isinstance(limit, str) else limit
        if feature.exclusive_maximum is not None:
            # A comparison with NaN is false, so NaN is not in the range.
            fits = (found[name] >= feature.minimum) & (found[name] < (np.inf if limit is None else limit))
            if not fits.all():
                yield f"{name} holds {found[name][~fits][0]}, which is not {_allowed(feature, limit, inspects)}"
    if kind in (schemas.UNMASKED, schemas.UNMASKED_WORDS):
        yield from _problems_of_lengths(found["segment_lengths"], len(found["input_ids"]))
    elif inspects:
        yield from _problems_of_masks(found)


def _wrong_number(name: str, feature: Feature, number: int, size: int, inspects: bool) -> str:
    length = feature.length
    if feature.varies:
        return f"has {number} values in {name}, and at most {size} are possible here ({length})"
    if isinstance(length, int) or inspects:
        what = "is needed" if isinstance(length, int) else "are in the first record; inspect such files one at a time"
        return f"has {number} values in {name}, where {size} {what}"
    return f"was made for {length} {number}, but it is {size} here; give --{length}={number} or make the records again"


def _allowed(feature: Feature, limit: float | None, inspects: bool) -> str:
    least, size = feature.minimum, feature.exclusive_maximum
    if limit is None:
        return f"{least:g} or more"
    if feature.dtype != "int64":
        return f"a number from {least:g} to {limit:g}"
    meaning = f" ({size})" if isinstance(size, str) else ""
    if size in _SIZES_OF_MODEL and not inspects:
        meaning = f" ({size} {limit} in the model's configuration; are the records for another model?)"
    return f"in {least}..{limit - 1}{meaning}"


def _problems_of_lengths(segments: np.ndarray, num_tokens: int) -> Iterator[str]:
    if len(segments) > schemas.MOST_SEGMENTS:
        yield f"has {len(segments)} segments, at most {schemas.MOST_SEGMENTS} are possible"
    if segments.sum() != num_tokens:
        yield f"the sum of segment_lengths is {segments.sum()}, and the record has {num_tokens} tokens"


def _problems_of_masks(values: Values) -> Iterator[str]:
    mask = values["input_mask"]
    if (mask[1:] > mask[:-1]).any():
        yield "input_mask has a 1 behind a 0"
    tokens = np.count_nonzero(mask)
    if not tokens and values.get("is_real_example", [1])[0]:  # otherwise, it only fills up a batch
        yield "input_mask has no 1: the record has no tokens"
    if "masked_lm_positions" in values:
        positions = values["masked_lm_positions"][values["masked_lm_weights"] > 0]
        if (outside := positions[positions >= tokens]).size:
            yield f"masked_lm_positions holds {outside[0]}, and the record has {tokens} tokens"
        positions = np.sort(positions)
        if (twice := positions[1:][positions[1:] == positions[:-1]]).size:
            yield f"masked_lm_positions holds {twice[0]} twice; a position is predicted once"

"""The kinds of records, with a table of features for each kind. Records are written and checked by these tables.

A record is a `tf.train.Example`. Only the tables define the names, types and lengths of its features. The checks need
no TensorFlow:

find_fault           finds the first invalid record of files that training could not read; the flags give the sizes
check_first_records  checks the first records before a training run; the flags give the sizes
read_all             reads all records for an inspection; the first record decides kind and sizes
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np

from bert_tf2.data import example, tfrecords
from bert_tf2.support.errors import UserError, and_more


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of a record."""

    dtype: str  # "int64" or "float32"
    length: int | str  # the number of values, as a number or as the name of a size
    minimum: float = 0  # the smallest allowed value
    # every value must be smaller than this number or size, so NaN is not allowed; None if there is no limit
    exclusive_maximum: float | str | None = None
    varies: bool = False  # whether a record may have fewer values, at least one


@dataclasses.dataclass(frozen=True)
class RecordKind:
    """One kind of record."""

    name: str  # for messages
    # feature name -> Feature. The values of the sizes that a Feature names ("max_seq_length", "vocab_size") are passed
    # when a file is read
    features: Mapping[str, Feature]


# A weight is 0, 1, or a fraction. Very large weights would overflow the sums over a batch.
_LARGEST_WEIGHT = 1e6
# The square of an error must be finite in float32.
LARGEST_SCORE = 1e15

_TOKENS = {
    "input_ids": Feature("int64", "max_seq_length", exclusive_maximum="vocab_size"),
    "input_mask": Feature("int64", "max_seq_length", exclusive_maximum=2),
    "segment_ids": Feature("int64", "max_seq_length", exclusive_maximum="type_vocab_size"),
}

MASKED_WORDS = RecordKind(
    "pretraining (masked words only)",
    {
        **_TOKENS,
        "masked_lm_positions": Feature("int64", "max_predictions_per_seq", exclusive_maximum="max_seq_length"),
        "masked_lm_ids": Feature("int64", "max_predictions_per_seq", exclusive_maximum="vocab_size"),
        "masked_lm_weights": Feature("float32", "max_predictions_per_seq", exclusive_maximum=_LARGEST_WEIGHT),
    },
)

PRETRAINING = RecordKind(
    "pretraining", {**MASKED_WORDS.features, "next_sentence_labels": Feature("int64", 1, exclusive_maximum=2)}
)

PACKED = ("packed_tokens", "packed_firsts")
"""Features that batching.packed adds to a batch, by which models compute several examples in a row."""

MOST_SEGMENTS = 2  # the type_vocab_size of released models
_UNMASKED = {
    "input_ids": Feature("int64", "max_seq_length", exclusive_maximum="vocab_size", varies=True),
    "segment_lengths": Feature("int64", "type_vocab_size", minimum=2, exclusive_maximum=1 << 20, varies=True),
}

# create_pretraining_data.py --dynamic_masking writes these records, and training draws the masks. Such a record omits
# all that can be computed, and has a third of the bytes of a record with masks: the ids of [CLS] A [SEP] B [SEP]
# without padding; the number of tokens of [CLS] A [SEP] and of B [SEP], or of a single segment; for pairs whether B is
# random.
UNMASKED_WORDS = RecordKind("unmasked pretraining", _UNMASKED)
UNMASKED = RecordKind(
    "unmasked pretraining", {**_UNMASKED, "next_sentence_labels": Feature("int64", 1, exclusive_maximum=2)}
)


def _labelled(name: str, labels: Feature) -> RecordKind:
    return RecordKind(name, {**_TOKENS, "label_ids": labels, "is_real_example": Feature("int64", 1)})


CLASSIFICATION = _labelled("classification", Feature("int64", 1, exclusive_maximum="num_labels"))
MULTI_LABEL = _labelled("multi-label classification", Feature("int64", "num_labels", exclusive_maximum=2))
REGRESSION = _labelled("regression", Feature("float32", 1, -LARGEST_SCORE, LARGEST_SCORE))

MOST_TOKENS = 1 << 20
"""The limit of a text that is read in windows."""
_WHOLE = {**_UNMASKED, "input_ids": dataclasses.replace(_UNMASKED["input_ids"], length=MOST_TOKENS)}
WHOLE_TEXTS = {
    kind.name: RecordKind(
        f"{kind.name} of whole texts",
        {**_WHOLE, **{name: feature for name, feature in kind.features.items() if name not in _TOKENS}},
    )
    for kind in (CLASSIFICATION, MULTI_LABEL, REGRESSION)
}
"""The kinds for texts that are read in windows, by the name of the kind for texts that are cut. Such records have all
tokens of a text, without padding, as in UNMASKED."""


SQUAD_PREDICT = RecordKind("SQuAD prediction", {"unique_ids": Feature("int64", 1), **_TOKENS})

SQUAD_TRAIN = RecordKind(
    "SQuAD training",
    {
        **SQUAD_PREDICT.features,
        "start_positions": Feature("int64", 1, exclusive_maximum="max_seq_length"),
        "end_positions": Feature("int64", 1, exclusive_maximum="max_seq_length"),
        "is_impossible": Feature("int64", 1),
    },
)

# A label id of -1 means no label (a later piece of a word, [CLS], padding).
TOKEN_TAGGING = RecordKind(
    "token tagging",
    {**_TOKENS, "label_ids": Feature("int64", "max_seq_length", minimum=-1, exclusive_maximum="num_labels")},
)


# Writing

_ROWS_AT_ONCE = 256


def columns(kind: RecordKind, rows: Sequence[Mapping[str, Sequence]]) -> dict[str, np.ndarray]:
    """The features of some rows (feature name -> values, equally many in each row), as `example.encode` takes them.

    Raises TypeError if a value is not a number, or a fraction where the kind has integers.
    """
    return {
        name: np.array([row[name] for row in rows]).astype(feature.dtype, casting="same_kind")
        for name, feature in kind.features.items()
    }


def write_records(path: str, kind: RecordKind, rows: Iterable[Mapping[str, Sequence]]) -> int:
    """Writes rows (feature name -> values) to a TFRecord file, complete or absent; returns the number of rows."""
    count, rows = 0, iter(rows)
    # Rows of different lengths do not make an array.
    at_once = 1 if any(feature.varies for feature in kind.features.values()) else _ROWS_AT_ONCE
    with tfrecords.writing(path) as (append,):
        while some := [*itertools.islice(rows, at_once)]:
            append(example.encode(columns(kind, some)))
            count += len(some)
    return count


# Checking

_MOST_IDS = 10_000_000  # the limit of ids without a vocabulary
FILES_TO_CHECK = 100
"""The number of files that are opened before a training run; a corpus may consist of thousands of remote files."""
_SIZES_OF_MODEL = ("vocab_size", "type_vocab_size")
# Advice to a user whose record lacks a feature.
_ADVICE = {"next_sentence_labels": ", so it is for masked words only; give --objective=mlm"}

_IN_FIRST = ", which the first record has; inspect such files one at a time"

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
    """Yields the records of several files in order. Raises UserError for an invalid record.

    All records must have the kind and the lengths of the first record. `vocab_size`: every id must be smaller; None if
    the size is unknown.
    """
    kind: RecordKind | None = None
    sizes = {"type_vocab_size": MOST_SEGMENTS, "vocab_size": _MOST_IDS if vocab_size is None else vocab_size}
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
    """Returns the kind of the first record, and the sizes that the kind's table names: {"max_seq_length": 128, ...}.

    Raises UserError if the record is of no kind.
    """
    place = f"{block.path}, record {block.first}"
    try:
        found = example.parse(block.record(0))
    except example.NotAnExample:
        raise UserError(f"{place}: is not a tf.train.Example; make the file again") from None
    kind = kind_of(found)
    if kind is None:
        raise UserError(
            f"{place}: is not a record of this project, which would have input_ids, and masked_lm_positions, label_ids"
            f" or unique_ids, for example (found: {and_more(sorted(found), 8) or 'nothing'})"
        )
    sizes: dict[str, int] = {}
    for name, feature in kind.features.items():
        if isinstance(feature.length, str) and not feature.varies:
            sizes.setdefault(feature.length, len(found.get(name, ())))
    return kind, sizes


def form_of(block: tfrecords.Block) -> int:
    """Returns a hash of the first record's kind and lengths, 0 if the kind is unknown."""
    try:
        kind, sizes = _look_at_first(block)
    except UserError:
        return 0
    return google_crc32c.value(f"{[*kind.features]} {sizes}".encode())


def kind_of(found: Values) -> RecordKind | None:
    """Returns the kind of a record with these values, None if the kind is unknown."""
    if "segment_lengths" in found and "is_real_example" not in found:
        return UNMASKED if "next_sentence_labels" in found else UNMASKED_WORDS
    if "input_ids" not in found:
        return None
    if "masked_lm_positions" in found:
        return PRETRAINING if "next_sentence_labels" in found else MASKED_WORDS
    if "unique_ids" in found:
        return SQUAD_TRAIN if "start_positions" in found else SQUAD_PREDICT
    if "label_ids" not in found:
        return None
    if "is_real_example" not in found:
        return TOKEN_TAGGING
    kind = CLASSIFICATION if len(found["label_ids"]) == 1 else MULTI_LABEL
    kind = REGRESSION if found["label_ids"].dtype == np.float32 else kind
    return WHOLE_TEXTS[kind.name] if "segment_lengths" in found else kind


def check_first_records(paths: Sequence[str], kind: RecordKind, sizes: Sizes, must_have_some: bool) -> None:
    """Raises UserError for a wrong kind or wrong lengths in the first records of the first files."""
    some = False
    for path in paths[:FILES_TO_CHECK]:
        if block := next(tfrecords.read_blocks(path), None):
            check(block, 0, kind, sizes)
            some = True
    if must_have_some and not some and not any(map(any, map(tfrecords.read_blocks, paths[FILES_TO_CHECK:]))):
        raise _no_records(paths)  # otherwise tf.data would search forever for a first record


def find_fault(paths: Sequence[str], kind: RecordKind, sizes: Sizes) -> UserError | None:
    """Reads all records. Returns an error that names the first invalid record and the reason, None if all are valid."""
    blocks = (block for path in paths for block in tfrecords.read_blocks(path))
    try:
        count = sum(1 for block in blocks for row in range(len(block)) if check(block, row, kind, sizes))
    except UserError as error:
        return error
    return None if count else _no_records(paths)


def _no_records(paths: Sequence[str]) -> UserError:
    return UserError(f"{and_more(paths, 8)}: no records in there; was the corpus empty?")


def check(block: tfrecords.Block, row: int, kind: RecordKind, sizes: Sizes, inspects: bool = False) -> Record:
    """Returns a record of a block. Raises UserError if the record is invalid.

    A limit that is not in `sizes` is not checked. `inspects`: whether the sizes come from the first record, as in
    `read_all`; then values on which no training depends are checked, too.
    """
    number = block.first + row
    try:
        found = example.parse(block.record(row))
        problem = next(_problems(found, kind, sizes, inspects), None)
    except example.NotAnExample:
        problem = f"is not a tf.train.Example; a file of {kind.name} records is needed"
    if problem:
        raise UserError(f"{block.path}, record {number}: {problem}")
    return Record(block.path, number, kind, {name: found[name] for name in kind.features})


def _problems(found: Values, kind: RecordKind, sizes: Sizes, inspects: bool) -> Iterator[str]:
    """Yields the problems of a record. Use only the first: each check supposes that the checks before it passed."""
    if missing := next((name for name in kind.features if name not in found), None):
        advice = _ADVICE.get(missing, f", which {kind.name} records have")
        yield f"has no feature {missing}{_IN_FIRST if inspects else advice}"
    for name, feature in kind.features.items():
        values, length = found[name], feature.length
        size = sizes.get(length) if isinstance(length, str) else length
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
    if "segment_lengths" in kind.features:
        segments, tokens = found["segment_lengths"], len(found["input_ids"])
        if len(segments) > MOST_SEGMENTS:
            yield f"has {len(segments)} segments, at most {MOST_SEGMENTS} are possible"
        if segments.sum() != tokens:
            yield f"the sum of segment_lengths is {segments.sum()}, and the record has {tokens} tokens"
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


def _problems_of_masks(values: Values) -> Iterator[str]:
    mask = values["input_mask"]
    if (mask[1:] > mask[:-1]).any():
        yield "input_mask has a 1 behind a 0"
    tokens = np.count_nonzero(mask)
    if not tokens and values.get("is_real_example", [1])[0]:  # a record that is not real only fills up a batch
        yield "input_mask has no 1: the record has no tokens"
    if "masked_lm_positions" in values:
        positions = values["masked_lm_positions"][values["masked_lm_weights"] > 0]
        if (outside := positions[positions >= tokens]).size:
            yield f"masked_lm_positions holds {outside[0]}, and the record has {tokens} tokens"
        positions = np.sort(positions)
        if (twice := positions[1:][positions[1:] == positions[:-1]]).size:
            yield f"masked_lm_positions holds {twice[0]} twice; a position is predicted once"

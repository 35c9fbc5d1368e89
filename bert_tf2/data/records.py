"""TFRecord files: one table of features per kind of record, used for writing, reading and checking.

A record is a `tf.train.Example`. Only the tables below, and the one of `pretraining.unmasked`, define its feature
names, types and lengths.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from bert_tf2.data import length_buckets, record_framing, record_index, record_order
from bert_tf2.support import files, free_memory, gzip_files
from bert_tf2.support.environment import human
from bert_tf2.support.errors import UserError


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of a record.

    Attributes:
      dtype: "int64" or "float32".
      length: the number of values, as a number or as the name of a size.
      least: the smallest allowed value.
      below: every value must be smaller than this number or size, so NaN is not allowed; None for no limit.
      varies: whether a record may have fewer values, at least one.
    """

    dtype: str
    length: int | str
    least: float = 0
    below: float | str | None = None
    varies: bool = False


@dataclasses.dataclass(frozen=True)
class RecordKind:
    """One kind of record.

    Attributes:
      name: for messages.
      features: feature name -> Feature. The values of the sizes that a Feature names ("max_seq_length", "vocab_size")
        are passed when a file is read.
      problem: returns what is wrong between the features of a row (name -> values), or None.
    """

    name: str
    features: Mapping[str, Feature]
    problem: Callable[[Mapping[str, Sequence]], str | None] | None = None


# A weight is 0, 1, or a fraction. Very large weights would overflow the sums over a batch.
_LARGEST_WEIGHT = 1e6
# The square of an error must be finite in float32.
LARGEST_SCORE = 1e15

_TOKENS = {
    "input_ids": Feature("int64", "max_seq_length", below="vocab_size"),
    "input_mask": Feature("int64", "max_seq_length", below=2),
    "segment_ids": Feature("int64", "max_seq_length", below="type_vocab_size"),
}

MASKED_WORDS = RecordKind(
    "pretraining (masked words only)",
    {
        **_TOKENS,
        "masked_lm_positions": Feature("int64", "max_predictions_per_seq", below="max_seq_length"),
        "masked_lm_ids": Feature("int64", "max_predictions_per_seq", below="vocab_size"),
        "masked_lm_weights": Feature("float32", "max_predictions_per_seq", below=_LARGEST_WEIGHT),
    },
)

PRETRAINING = RecordKind(
    "pretraining",
    {**MASKED_WORDS.features, "next_sentence_labels": Feature("int64", 1, below=2)},
)

CLASSIFICATION = RecordKind(
    "classification",
    {**_TOKENS, "label_ids": Feature("int64", 1, below="num_labels"), "is_real_example": Feature("int64", 1)},
)

MULTI_LABEL = RecordKind(
    "multi-label classification",
    {**_TOKENS, "label_ids": Feature("int64", "num_labels", below=2), "is_real_example": Feature("int64", 1)},
)

REGRESSION = RecordKind(
    "regression",
    {
        **_TOKENS,
        "label_ids": Feature("float32", 1, -LARGEST_SCORE, LARGEST_SCORE),
        "is_real_example": Feature("int64", 1),
    },
)

SQUAD_PREDICT = RecordKind("SQuAD prediction", {"unique_ids": Feature("int64", 1), **_TOKENS})

SQUAD_TRAIN = RecordKind(
    "SQuAD training",
    {
        **SQUAD_PREDICT.features,
        "start_positions": Feature("int64", 1, below="max_seq_length"),
        "end_positions": Feature("int64", 1, below="max_seq_length"),
        "is_impossible": Feature("int64", 1),
    },
)

# A label id of -1 means no label (a later piece of a word, [CLS], padding).
TOKEN_TAGGING = RecordKind(
    "token tagging",
    {**_TOKENS, "label_ids": Feature("int64", "max_seq_length", least=-1, below="num_labels")},
)


def encode(kind: RecordKind, row: Mapping[str, Sequence]) -> bytes:
    """Serializes a row; the same row gives the same bytes in every run.

    protobuf may write a map in any order, hence `deterministic`.
    """
    import tensorflow as tf

    example = tf.train.Example()
    slots = example.features.feature
    for name, feature in kind.features.items():
        values = slots[name].int64_list.value if feature.dtype == "int64" else slots[name].float_list.value
        values.extend(row[name])
    return example.SerializeToString(deterministic=True)


def write_records(path: str, kind: RecordKind, rows: Iterable[Mapping[str, Sequence]]) -> int:
    """Writes rows (feature name -> values) to a TFRecord file, complete or absent; returns their number."""
    import tensorflow as tf

    count = 0
    with files.complete_or_absent(path) as (beside,), tf.io.TFRecordWriter(beside) as writer:
        for row in rows:
            writer.write(encode(kind, row))
            count += 1
    return count


Sizes = Mapping[str, int]


def _size(what: float | str, sizes: Sizes) -> float:
    return sizes[what] if isinstance(what, str) else what


def read_records(
    paths: Sequence[str],
    kind: RecordKind,
    sizes: Sizes,
    batch_size: int,
    *,
    shuffle_seed: int | None = None,
    index: record_index.RecordIndex | None = None,
    first: int = 0,
    share: record_order.Share | None = None,
    repeat: bool = False,
    drop_remainder: bool = False,
    pad_to_max_length: bool = True,
    width_multiple: int = 1,
    like_lengths: bool = False,
    transform: Callable | None = None,
):
    """Creates a tf.data pipeline over TFRecord files.

    Args:
      paths: the files; those that end in .gz are compressed by gzip.
      kind: the kind of their records.
      sizes: the value of every size that `kind` names, e.g. {"max_seq_length": 128, "vocab_size": 30522, ...}.
      batch_size: examples per batch, over all replicas.
      shuffle_seed: shuffles the records, see `record_order.shuffled`; None for the order of the files.
      index: with `shuffle_seed`, that of `paths`, if it was read before.
      first: with `shuffle_seed`, the number of examples that were read before; reading goes on behind them.
      share: the rows of each batch that this process reads, with `drop_remainder`; None for all.
      repeat: whether to repeat the records endlessly. A batch may then contain the last and the first records.
      drop_remainder: whether to drop a last batch that is smaller.
      pad_to_max_length: False cuts each batch to its longest row.
      width_multiple: the width of such a batch is a multiple of this, or the whole width; for few different widths.
      like_lengths: with pad_to_max_length=False, whether to read batches of rows of like length; see `by_length`.
      transform: makes another batch of each batch. It is called with the batch, in which features whose number of
        values varies are RaggedTensors, and with the origins of its records: the dict of `record_order.shuffled`,
        each int64 [B].

    Returns:
      A dataset of dicts: features of length 1 as [B], the others as [B, length]; int32 or float32. An invalid record
      stops the iteration with a TensorFlow error; `find_fault` then finds the record.

    Raises:
      UserError: the first record of a file is invalid; with `repeat`, there is none, or a batch is larger than memory;
        with `shuffle_seed`, a file is damaged at any place.
    """
    import tensorflow as tf

    check_first_records(paths, kind, sizes, must_have_some=repeat)
    if repeat:  # otherwise, a batch is not larger than the files
        _check_batch(batch_size, kind, sizes)

    def parse(serialized, origin):
        batch = _parse(serialized, kind, sizes)
        return batch if transform is None else transform(batch, origin)

    data = record_order.ordered(paths, shuffle_seed, index, first, repeat)
    at_once = length_buckets.rows_of_window(batch_size) if like_lengths else batch_size
    data = record_order.batched(data, at_once, drop_remainder, share).map(parse, num_parallel_calls=2)
    if like_lengths:
        data = length_buckets.batches(data, batch_size)
    if not pad_to_max_length:
        wide = {name for name, feature in kind.features.items() if feature.length == "max_seq_length"}
        data = data.map(lambda batch: length_buckets.cut_to_longest(batch, wide, width_multiple))
    options = tf.data.Options()
    options.autotune.enabled = False  # not needed, and its thread can delay the end of the program by a minute
    return data.prefetch(2).with_options(options)


def check_first_records(paths: Sequence[str], kind: RecordKind, sizes: Sizes, must_have_some: bool) -> None:
    """Raises UserError for a wrong kind or wrong lengths in the first record of each file."""
    some = False
    for path in paths[:_FILES_TO_CHECK]:
        first = next(_raw_records(path), None)
        if first and (fault := _fault(path, *first, kind, sizes)):
            raise fault
        some = some or first is not None
    if must_have_some and not some and not any(next(_raw_records(path), None) for path in paths[_FILES_TO_CHECK:]):
        raise _no_records(paths)  # tf.data would search forever for a first record


def _fault(path: str, number: int, data: bytes, kind: RecordKind, sizes: Sizes) -> UserError | None:
    """Returns what is wrong with an item of _raw_records."""
    problem = _record_problem(data, kind, sizes)
    return UserError(f"{path}, record {number}: {problem}") if problem else None


def _check_batch(batch_size: int, kind: RecordKind, sizes: Sizes) -> None:
    """Raises UserError if the features of a batch would exceed the memory that this process can get."""
    numbers = sum(_size(feature.length, sizes) for feature in kind.features.values())
    wanted, there = batch_size * numbers * 8, free_memory.available_bytes(swap=True)
    if there is not None and wanted > there:
        raise UserError(
            f"a batch of {batch_size} examples with {numbers} numbers each takes {human(wanted)}, and"
            f" {human(there)} are free for this process; lower the batch size"
        )


_FILES_TO_CHECK = 100  # a corpus may consist of thousands of remote files


def _parse(serialized, kind: RecordKind, sizes: Sizes) -> dict:
    """Parses serialized Examples [B] into a batch, and checks every value against its limits."""
    import tensorflow as tf

    spec = {
        name: tf.io.RaggedFeature(feature.dtype, row_splits_dtype=tf.int64)
        if feature.varies
        else tf.io.FixedLenFeature([_size(feature.length, sizes)], feature.dtype)
        for name, feature in kind.features.items()
    }
    batch = tf.io.parse_example(serialized, spec)
    checks = []
    for name, feature in kind.features.items():
        values = batch[name]
        if feature.varies:
            values, lengths = values.flat_values, values.row_lengths()
            right = (lengths > 0) & (lengths <= _size(feature.length, sizes))
            checks.append(tf.debugging.Assert(tf.reduce_all(right), [f"{name} has too many values or none"]))
        if feature.below is not None:  # on a GPU, an index out of range would return zeros, not fail
            # A comparison with NaN is false, so NaN is out of range.
            fits = (values >= feature.least) & (values < _size(feature.below, sizes))
            checks.append(tf.debugging.Assert(tf.reduce_all(fits), [f"{name} out of range"]))
    with tf.control_dependencies(checks):
        return {name: tf.identity(_narrow(batch[name], feature)) for name, feature in kind.features.items()}


def _narrow(values, feature: Feature):
    import tensorflow as tf

    values = tf.cast(values, tf.int32) if feature.dtype == "int64" else values  # TPUs have no int64
    return values[:, 0] if feature.length == 1 and not feature.varies else values


def find_fault(paths: Sequence[str], kind: RecordKind, sizes: Sizes) -> UserError | None:
    """Finds the first invalid record; returns an error that names it and the reason, or None if all are valid.

    Used after a failure, because it reads the records one by one in Python.
    """
    total = 0
    try:
        for path in paths:
            for number, data in _raw_records(path):
                total += 1
                if fault := _fault(path, number, data, kind, sizes):
                    return fault
    except UserError as error:
        return error
    return None if total else _no_records(paths)


def _no_records(paths: Sequence[str]) -> UserError:
    return UserError(f"{', '.join(paths)}: no records in there; was the corpus empty?")


def _raw_records(path: str) -> Iterator[tuple[int, bytes]]:
    """Yields the records of a file, numbered from 1.

    TensorFlow's reader would end the process at a record that claims more bytes than there is memory.

    Raises:
      UserError: the file cannot be read or is damaged; names the file and the record.
    """
    number = 0
    try:
        for block in record_framing.read_blocks(path):
            for number in range(block.first, block.first + len(block)):
                yield number, block.record(number - block.first)
    except UserError as error:
        if not number and (problem := _kind_problem(path)):
            raise UserError(f"{path}: {problem}") from error
        raise


def _kind_problem(path: str) -> str | None:
    """Returns what is wrong with a file without a readable record."""
    if not files.exists(path):
        return None
    if gzip_files.is_named_gzip(path):
        return gzip_files.problem_of_records(path)
    kind = files.kind_of(path)
    if kind and kind.name != "TFRecord":
        return kind.sentence("TFRecord")
    if not kind and files.is_text(path):
        return "is text, not TFRecord; create_pretraining_data.py makes records of text, to be given here"
    return None


def _record_problem(data: bytes, kind: RecordKind, sizes: Sizes) -> str | None:
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        features = tf.train.Example.FromString(data).features.feature
    except DecodeError:
        return f"is no tf.train.Example; a file of {kind.name} records is needed"
    for name, feature in kind.features.items():
        if problem := _feature_problem(name, feature, features.get(name), sizes):
            return problem
    return kind.problem and kind.problem({name: features[name].int64_list.value for name in kind.features})


def _allowed(feature: Feature, limit: float) -> str:
    if feature.dtype != "int64":
        return f"a number from {feature.least:g} to {limit:g}"
    meaning = f" ({feature.below})" if isinstance(feature.below, str) else ""
    if feature.below in _SIZES_OF_MODEL:
        meaning = f" ({feature.below} {limit} in the model's configuration; are the records for another model?)"
    return f"in {feature.least}..{limit - 1}{meaning}"


_SIZES_OF_MODEL = ("vocab_size", "type_vocab_size")
# What to do about a record that lacks a feature.
_ADVICE = {"next_sentence_labels": ", so it is for masked words only; give --objective=mlm"}


def _feature_problem(name: str, feature: Feature, found, sizes: Sizes) -> str | None:
    if found is None:
        return f"has no feature {name}{_ADVICE.get(name, '')}"
    values = found.int64_list.value if feature.dtype == "int64" else found.float_list.value
    wanted = _size(feature.length, sizes)
    if not values:
        return f"has no values of type {feature.dtype} in its feature {name}"
    if feature.varies and len(values) > wanted:
        more = "; give the value with which they were made" if feature.length not in _SIZES_OF_MODEL else ""
        return f"has {len(values)} values in {name}, and at most {wanted} are possible here ({feature.length}){more}"
    if len(values) != wanted and not feature.varies:
        if isinstance(feature.length, str):
            return (
                f"was made for {feature.length} {len(values)}, but {feature.length} is {wanted} here ({name});"
                f" give --{feature.length}={len(values)} or make the records again"
            )
        return f"{name} has {len(values)} values of type {feature.dtype} where {wanted} is needed"
    if feature.below is not None:
        limit = _size(feature.below, sizes)
        bad = [value for value in values if not feature.least <= value < limit]
        if bad:
            return f"{name} holds {bad[0]}, which is not {_allowed(feature, limit)}"
    return None

"""The kinds of records: one table of features for each, used for writing, reading and checking.

A record is a `tf.train.Example`. Only these tables, and the one of `unmasked`, define the names, types and lengths of
its features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np

Columns = Mapping[str, np.ndarray]
Condition = tuple[np.ndarray, Callable[[int], str]]


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of a record."""

    dtype: str  # "int64" or "float32"
    length: int | str  # the number of values, as a number or as the name of a size
    minimum: float = 0  # the smallest allowed value
    # every value must be smaller than this number or size, so NaN is not allowed; None for no limit
    exclusive_maximum: float | str | None = None
    varies: bool = False  # whether a record may have fewer values, at least one


@dataclasses.dataclass(frozen=True)
class RecordKind:
    """One kind of record."""

    name: str  # for messages
    # feature name -> Feature. The values of the sizes that a Feature names ("max_seq_length", "vocab_size") are passed
    # when a file is read
    features: Mapping[str, Feature]
    # what must hold between the features. It is called with the values, feature name -> [N, L], and with their numbers,
    # feature name -> [N], of those features whose number varies. It yields what may be wrong: the rows for which it is,
    # bool [N], and a function that describes one of them
    conditions: Callable[[Columns, Columns], Iterator[Condition]] | None = None


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

CLASSIFICATION = RecordKind(
    "classification",
    {
        **_TOKENS,
        "label_ids": Feature("int64", 1, exclusive_maximum="num_labels"),
        "is_real_example": Feature("int64", 1),
    },
)

MULTI_LABEL = RecordKind(
    "multi-label classification",
    {
        **_TOKENS,
        "label_ids": Feature("int64", "num_labels", exclusive_maximum=2),
        "is_real_example": Feature("int64", 1),
    },
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

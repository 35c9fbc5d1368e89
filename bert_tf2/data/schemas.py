"""The kinds of records: one table of features for each, used for writing, reading and checking.

A record is a `tf.train.Example`. Only these tables define the names, types and lengths of its features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


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

MOST_SEGMENTS = 2
_UNMASKED = {
    "input_ids": Feature("int64", "max_seq_length", exclusive_maximum="vocab_size", varies=True),
    "segment_lengths": Feature("int64", "type_vocab_size", minimum=2, exclusive_maximum=1 << 20, varies=True),
}

# Of create_pretraining_data.py --dynamic_masking, for which training draws the masks. A record has nothing that can be
# computed, and a third of the bytes of one with masks: the ids of [CLS] A [SEP] B [SEP] without padding, the number of
# tokens of [CLS] A [SEP] and of B [SEP] or of a single segment, and for pairs whether B is random.
UNMASKED_WORDS = RecordKind("unmasked pretraining", _UNMASKED)
UNMASKED = RecordKind(
    "unmasked pretraining", {**_UNMASKED, "next_sentence_labels": Feature("int64", 1, exclusive_maximum=2)}
)


def _labelled(name: str, labels: Feature) -> RecordKind:
    return RecordKind(name, {**_TOKENS, "label_ids": labels, "is_real_example": Feature("int64", 1)})


CLASSIFICATION = _labelled("classification", Feature("int64", 1, exclusive_maximum="num_labels"))
MULTI_LABEL = _labelled("multi-label classification", Feature("int64", "num_labels", exclusive_maximum=2))
REGRESSION = _labelled("regression", Feature("float32", 1, -LARGEST_SCORE, LARGEST_SCORE))

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

"""The weight of each class in the training loss: --class_weights."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from bert_tf2.finetuning.classification.examples import InputExample, labels_of
from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.weights.labels import LabelMap

BALANCED = "balanced"
_LARGEST = 1e6  # a loss of larger ones overflows; an integer may even be too large for a float


def class_weights(wanted: str, examples: Sequence[InputExample], label_map: LabelMap) -> tuple[float, ...]:
    """The weight of each label, in the order of the outputs; see heads.ClassifierModel.class_weights.

    Args:
      wanted: "balanced", or a JSON file: {label: weight} with a positive number for each label. Balanced weights are
        n / (classes * count), which gives every class the same total weight; if a text may have several labels,
        (n - count) / count, which gives the texts with a label the same total weight as the texts without it.
      examples: the training set.
      label_map: the labels.

    Raises:
      UserError: the file cannot be read, or does not give each label a positive number.
    """
    if wanted != BALANCED:
        return _read(wanted, label_map.labels)
    counts = collections.Counter(label for example in examples for label in labels_of(example))
    size = len(examples)
    if label_map.multi_label:
        return tuple(max(1, size - counts[label]) / max(1, counts[label]) for label in label_map.labels)
    # A class without examples does not affect the loss, regardless of its weight.
    return tuple(size / (len(label_map.labels) * max(1, counts[label])) for label in label_map.labels)


def _read(path: str, labels: Sequence[str]) -> tuple[float, ...]:
    content = files.read_json(path)
    unknown = sorted({*content} - {*labels})
    missing = [label for label in labels if label not in content]
    if unknown or missing:
        problem = (
            f"has no weight for {missing[0]!r}" if missing else f"has a weight for {unknown[0]!r}, which no text has"
        )
        raise UserError(f"{path}: {problem}; a number for each of the labels is needed: {', '.join(labels)}")
    for label in labels:
        value = content[label]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _LARGEST:
            raise UserError(
                f"{path}: the weight of {label!r} is {value!r:.40}; a positive number up to {_LARGEST:g} is needed"
            )
    return tuple(float(content[label]) for label in labels)

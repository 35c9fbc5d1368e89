"""The meaning of a classifier's or tagger's outputs: `label_map.json`, which is stored beside the weights."""

from __future__ import annotations

import dataclasses
import os

from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more

LABEL_MAP_FILE = "label_map.json"
THRESHOLD = 0.5
"""A multi-label model predicts the labels whose probability is at least this."""
TAGGING_TASK = "ner"
"""The task name of run_ner.py in label_map.json."""
UNKNOWN_TASK = "classification"
"""The task name of weights that do not say it: their labels decide what they are used for."""


@dataclasses.dataclass(frozen=True)
class LabelMap:
    """The meaning of a trained classifier's outputs."""

    task: str  # the name of the task that it was trained for
    labels: tuple[str, ...]  # in the order of the outputs; empty for a regression
    regression: bool  # whether the single output is a score
    multi_label: bool = False  # whether each output is an independent probability: a text may have several labels

    @property
    def num_labels(self) -> int:
        """The number of outputs of the model."""
        return 1 if self.regression else len(self.labels)

    @property
    def labeled(self) -> str:
        """What the labels apply to, "tokens" or "texts"; the models of `heads` have the same attribute."""
        return "tokens" if self.task == TAGGING_TASK else "texts"

    def check_unique(self, where: str) -> None:
        """Raises UserError, which begins with `where`, if two outputs have one name."""
        if doubled := [label for label in self.labels if self.labels.count(label) > 1]:
            raise UserError(f"{where}: {doubled[0]!r} is the name of two outputs; give each a name of its own")

    def describe(self) -> str:
        if self.regression:
            return "a score"
        return f"{'any of the ' if self.multi_label else ''}labels {and_more(self.labels)}"


def numbered(count: int) -> tuple[str, ...]:
    """Returns names for labels that have none, those of `transformers`: LABEL_0, LABEL_1, ..."""
    return tuple(f"LABEL_{index}" for index in range(count))


def save_label_map(output_dir: str, label_map: LabelMap) -> None:
    """Writes label_map.json beside the checkpoints, so that prediction needs no training file."""
    content = dataclasses.asdict(label_map)
    if not label_map.multi_label:
        del content["multi_label"]
    files.write_json(os.path.join(output_dir, LABEL_MAP_FILE), content)


def read_label_map(path: str) -> LabelMap:
    """Reads a file in the format of label_map.json."""
    content = {"multi_label": False, **files.read_json(path)}
    kinds = {"task": str, "labels": list, "regression": bool, "multi_label": bool}
    task, labels, regression, multi_label = map(content.get, kinds)
    is_right = all(isinstance(content.get(name), kind) for name, kind in kinds.items())
    is_right = is_right and all(isinstance(label, str) and files.is_utf8(label) for label in labels)
    if not is_right or (labels if regression else len(labels) < 2):
        raise UserError(
            f"{path}: must have 'task' (a text), 'labels' (two or more texts; none for a regression),"
            " 'regression' and 'multi_label' (true or false); put back the file that the training wrote, or train again"
        )
    return LabelMap(task, tuple(labels), regression, multi_label)

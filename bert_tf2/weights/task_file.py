"""Files beside weights that describe a fine-tuned model's task.

label_map.json is the meaning of a classifier's or tagger's outputs. task.json states the task, and the settings that
decide the model's answers:

{"task": "squad", "version_2_with_negative": true, "settings": {"max_seq_length": 384, ...}, "made_with": {...}}

"made_with" repeats facts of other files beside the weights that no shape shows: the number of heads, the order of
labels. If such a file is changed later, the same weights give other answers.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from absl import logging

from bert_tf2.config import BertConfig, not_in_shapes
from bert_tf2.support import files
from bert_tf2.support.containers import is_utf8
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.support.settings import Options, check_type, kept, settings_of

if TYPE_CHECKING:
    from bert_tf2.weights.base import Weights

LABEL_MAP_FILE = "label_map.json"
NAME = "task.json"
SETTINGS, MADE_WITH = "settings", "made_with"
THRESHOLD = 0.5
"""A multi-label model predicts the labels whose probability is at least this."""
TAGGING_TASK = "ner"
"""The task name of run_ner.py in label_map.json."""
UNKNOWN_TASK = "classification"
"""The task name of weights that do not state a task. Their labels decide their use."""
ACTIVATIONS = ("sigmoid", "tanh")
"""The functions that may be applied to a score."""


@dataclasses.dataclass(frozen=True)
class LabelMap:
    """The meaning of a trained classifier's outputs."""

    task: str  # the name of the task for which the classifier was trained
    labels: tuple[str, ...]  # in the order of the outputs; empty for a regression
    regression: bool  # whether the single output is a score
    multi_label: bool = False  # whether each output is an independent probability: a text may have several labels
    # of ACTIVATIONS: the function of a score in sentence-transformers, which `classify` and exports apply
    activation: str = ""

    @property
    def num_labels(self) -> int:
        """The number of outputs of the model."""
        return 1 if self.regression else len(self.labels)

    @property
    def labeled(self) -> str:
        """Whether labels are for "tokens" or "texts"; the models of `heads` have the same attribute."""
        return "tokens" if self.task == TAGGING_TASK else "texts"

    def check_unique(self, where: str) -> None:
        """Raises UserError, which begins with `where`, if two outputs have one name."""
        if doubled := [label for label in self.labels if self.labels.count(label) > 1]:
            raise UserError(f"{where}: {doubled[0]!r} is the name of two outputs; give each a name of its own")

    def to_json_string(self) -> str:
        """Returns the text of a label_map.json."""
        content = dataclasses.asdict(self).items()
        return files.json_text({name: x for name, x in content if x or name not in ("multi_label", "activation")})

    def describe(self) -> str:
        if self.regression:
            return "a score"
        return f"{'any of the ' if self.multi_label else ''}labels {and_more(self.labels)}"


def numbered(count: int) -> tuple[str, ...]:
    """Returns names for labels without names, as in `transformers`: LABEL_0, LABEL_1, ..."""
    return tuple(f"LABEL_{index}" for index in range(count))


def save_label_map(output_dir: str, label_map: LabelMap) -> None:
    """Writes label_map.json into a folder."""
    files.write_text(os.path.join(output_dir, LABEL_MAP_FILE), label_map.to_json_string())


def read_label_map(path: str) -> LabelMap:
    """Reads a file in the format of label_map.json. Raises UserError if it has another format."""
    content = {"multi_label": False, "activation": "", **files.read_json(path)}
    kinds = {"task": str, "labels": list, "regression": bool, "multi_label": bool, "activation": str}
    task, labels, regression, multi_label, activation = map(content.get, kinds)
    is_right = all(isinstance(content.get(name), kind) for name, kind in kinds.items())
    is_right = is_right and all(isinstance(label, str) and is_utf8(label) for label in labels)
    if is_right and activation and not (regression and activation in ACTIVATIONS):
        raise UserError(
            f"{path}: activation is {activation!r:.60}; only a regression has one, {', '.join(ACTIVATIONS)}"
        )
    if not is_right or (labels if regression else len(labels) < 2):
        raise UserError(
            f"{path}: must have 'task' (a text), 'labels' (two or more texts; none for a regression),"
            " 'regression' and 'multi_label' (true or false); put back the file that the training wrote, or train again"
        )
    return LabelMap(task, tuple(labels), regression, multi_label, activation)


def load_label_map(folder: str) -> LabelMap | None:
    """Reads label_map.json and compares it with task.json; None if there is no file (the reference writes none)."""
    path = files.companion(folder, LABEL_MAP_FILE)
    found = read_label_map(path) if path else None
    if found:
        check(path, {"labels": list(found.labels)})
    return found


def label_map_of(source: Weights) -> LabelMap | None:
    """The meaning of a classifier's or tagger's outputs, from label_map.json or else the weights; None if unknown."""
    return load_label_map(source.folder) or source.labels()


# task.json


def content(
    purpose: Mapping[str, Any], kept: Mapping[str, Any], config: BertConfig, labels: LabelMap | None
) -> dict[str, Any]:
    """The content of task.json.

    `purpose`: facts for model_folder.check_task. `kept`: settings by their flags' names. `config` and `labels` become
    facts for `check`.
    """
    made_with = {**not_in_shapes(config), **({"labels": labels.labels} if labels else {})}
    return {**purpose, SETTINGS: dict(kept), MADE_WITH: made_with}


def check(path: str, now: Mapping[str, Any]) -> None:
    """Raises UserError if a file beside the weights states other values now than during the training."""
    then = read(os.path.dirname(path)).get(MADE_WITH, {})
    for name, value in now.items():
        if (before := then.get(name, value)) != value:
            raise UserError(
                f"{path}: says {name} {json.dumps(value)}, but according to {NAME} the weights beside it were trained"
                f" with {json.dumps(before)}; put that value back, or correct both files if the change is intended"
            )


def read(folder: str) -> dict[str, Any]:
    """The content of the task.json in a folder; empty if there is no such file."""
    path = files.companion(folder, NAME)
    stated = files.read_json(path) if path else {}
    if not all(isinstance(stated.get(part, {}), dict) for part in (SETTINGS, MADE_WITH)):
        raise UserError(f"{path}: is not a task.json of a training; put a copy back, or remove it")
    return stated


def settings(folder: str, known: Mapping[str, type]) -> dict[str, Any]:
    """The settings with these names in a folder's task.json. Raises UserError for a value of a wrong type."""
    stated = read(folder)
    found = {name: value for name, value in stated.get(SETTINGS, {}).items() if name in known}
    if not stated.get("version_2_with_negative"):
        found.pop("null_score_diff_threshold", None)  # every question has an answer
    for name, value in found.items():
        check_type(f"{os.path.join(folder, NAME)}: {name}", value, known[name])
    return found


def taken(
    given: Options,
    weights: str | None,
    output_dir: str | None = None,
    *,
    is_trained: bool = True,
    only: Collection[str] | None = None,
    of_task: str | None = None,
) -> dict[str, Any]:
    """Returns values for the settings that were not given (None), by name: the training's values, from task.json.

    The task.json is beside the checkpoints in output_dir, or without checkpoints beside `weights`. If `is_trained` is
    False, the defaults count. `only`: the names of the settings to take; None for all. `of_task`: the task that the
    training must have had, because settings of other tasks may be out of range; None for any task.
    """
    kinds = {name: settings_of(type(given))[name][1] for name in kept(given) if only is None or name in only}
    stated, found = {}, {}
    if is_trained:
        from bert_tf2.weights import bundle  # late: it needs numpy

        used = output_dir if output_dir and bundle.has_checkpoints(output_dir) else weights or ""
        folder = files.folder_of(used)
        stated = settings(folder, kinds) if of_task in (None, read(folder).get("task", of_task)) else {}
    for name, value in kept(given).items():
        usual = settings_of(type(given))[name][0].flag_default
        then = stated.get(name, usual)
        if value is None and then is not None:
            found[name] = then
            if name in stated and then != usual:
                logging.info("--%s=%s: as in the training, from %s beside the weights", name, then, NAME)
        elif value is not None and name in stated and value != then:
            logging.warning("--%s=%s: the model was trained with %s; its answers may differ", name, value, then)
    return found

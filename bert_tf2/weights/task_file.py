"""task.json beside the weights of a fine-tuned model: what it is for, and the settings that decide its answers.

{"task": "squad", "version_2_with_negative": true, "settings": {"max_seq_length": 384, ...}, "made_with": {...}}

"made_with" repeats what other files beside the weights say and no shape shows: heads, the order of labels. If such a
file is changed later, the same weights answer something else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from typing import Any

from absl import logging

from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import Options, check_type, kept, settings_of

NAME = "task.json"
_SETTINGS, _MADE_WITH = "settings", "made_with"


def content(purpose: Mapping[str, Any], kept: Mapping[str, Any], made_with: Mapping[str, Any]) -> dict[str, Any]:
    """What a training writes: facts for metadata.check_task, settings by their flags' names, and what `check` gets."""
    return {**purpose, _SETTINGS: dict(kept), _MADE_WITH: dict(made_with)}


def made_with(content: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The content for weights that go with other files: `now` is what these say."""
    return {**content, _MADE_WITH: {**content.get(_MADE_WITH, {}), **now}}


def check(path: str, now: Mapping[str, Any]) -> None:
    """Compares what a file beside the weights says with what it said when they were trained."""
    then = read(os.path.dirname(path)).get(_MADE_WITH, {})
    for name, value in now.items():
        if (before := then.get(name, value)) != value:
            raise UserError(
                f"{path}: says {name} {json.dumps(value)}, and the weights beside it were trained with"
                f" {json.dumps(before)}, says {NAME}; put it back, or correct both files if that is meant"
            )


def read(folder: str) -> dict[str, Any]:
    """The content of the task.json in a folder; empty if there is none."""
    path = files.companion(folder, NAME)
    stated = files.read_json(path) if path else {}
    if not all(isinstance(stated.get(part, {}), dict) for part in (_SETTINGS, _MADE_WITH)):
        raise UserError(f"{path}: is no task.json of a training; put a copy back, or remove it")
    return stated


def settings(folder: str, known: Mapping[str, type]) -> dict[str, Any]:
    """The settings in `read`, those with these names."""
    stated = read(folder)
    found = {name: value for name, value in stated.get(_SETTINGS, {}).items() if name in known}
    if not stated.get("version_2_with_negative"):
        found.pop("null_score_diff_threshold", None)  # an answer is always there
    for name, value in found.items():
        check_type(f"{os.path.join(folder, NAME)}: {name}", value, known[name])
    return found


def take(
    given: Options,
    weights: str | None,
    output_dir: str | None = None,
    *,
    is_trained: bool = True,
    only: Collection[str] | None = None,
) -> None:
    """Gives settings that were not given, which are None, the values of the training, from task.json.

    `weights`, or what is in output_dir if it has checkpoints, are used; if they are not trained, the defaults count.
    `only`: the names of the settings to take; None for all.
    """
    kinds = {name: settings_of(type(given))[name][1] for name in kept(given) if only is None or name in only}
    stated = {}
    if is_trained:
        from bert_tf2.weights import bundle  # late: it needs numpy

        used = output_dir if output_dir and bundle.latest_checkpoint(output_dir) else weights or ""
        stated = settings(used if files.is_directory(used) else os.path.dirname(used), kinds)
    for name, value in kept(given).items():
        usual = settings_of(type(given))[name][0].flag_default
        then = stated.get(name, usual)
        if value is None and then is not None:
            object.__setattr__(given, name, then)
            if name in stated and then != usual:
                logging.info("--%s=%s: as in the training, from %s beside the weights", name, then, NAME)
        elif value is not None and name in stated and value != then:
            logging.warning("--%s=%s: the model was trained with %s; it may answer otherwise", name, value, then)

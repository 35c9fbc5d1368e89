"""task.json beside the weights of a fine-tuned model: what it is for, and the settings that decide its answers.

{"task": "squad", "version_2_with_negative": true, "settings": {"max_seq_length": 384, ...}}
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf2.support import files
from bert_tf2.support.settings import Options, kept, settings_of

NAME = "task.json"
_SETTINGS = "settings"


def content(purpose: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """What a training writes: facts for metadata.check_task, and settings by the names of their flags."""
    return {**purpose, _SETTINGS: dict(kept)}


def read(folders: Sequence[str | None]) -> dict[str, Any]:
    """The content of the first task.json that lies in one of these folders, or with weights named by their path.

    Raises:
      UserError: it is damaged.
    """
    for path in filter(None, folders):
        folder = path if files.is_directory(path) else os.path.dirname(path)
        if found := files.companion(folder, NAME):
            stated = files.read_json(found)
            return stated if isinstance(stated, dict) else {}
    return {}


def settings(folders: Sequence[str | None]) -> dict[str, Any]:
    """The kept settings in `read`, those that are numbers."""
    stated = read(folders).get(_SETTINGS)
    return {name: value for name, value in (stated or {}).items() if isinstance(value, int | float)}


def take(given: Options, folders: Sequence[str | None], is_trained: bool) -> None:
    """Gives settings that were not given the values of the training, from the task.json of `read`.

    Args:
      given: the settings of a script; those that task.json keeps are None if they were not given.
      folders: of weights.
      is_trained: whether trained weights are used; a training takes the defaults of the flags.
    """
    stated = settings(folders) if is_trained else {}
    for name, value in kept(given).items():
        usual = settings_of(type(given))[name][0].flag_default
        then = stated.get(name, usual)
        if value is None and then is not None:
            object.__setattr__(given, name, then)
            if name in stated and then != usual:
                logging.info("--%s=%s: as in the training, from %s beside the weights", name, then, NAME)
        elif value is not None and name in stated and value != then:
            logging.warning("--%s=%s: the model was trained with %s; it may answer otherwise", name, value, then)

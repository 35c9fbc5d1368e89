"""The second step of settings: the values with which a run begins. `settings` has the first step."""

from __future__ import annotations

import dataclasses
import glob
from typing import Any

from bert_tf2.support import files, hub
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import Options, WrongSetting, needed, settings_of, without_effect


def resolve(given: Options) -> Any:
    """Returns the settings with which a run begins, of the same class.

    The names of weights at the hub, and archives, become folders. Settings that were not given get values from the
    files beside the weights. No other code fetches or reads files for a setting. Raises UserError if the files are
    damaged, WrongSetting if a setting is still missing.
    """
    cls, known = type(given), settings_of(type(given))
    weights = {name: getattr(given, name) for name, (stated, _, _) in known.items() if stated.reads == "weights"}
    given = dataclasses.replace(given, **{name: hub.fetched(path) for name, path in weights.items() if path})
    stated, given = given, dataclasses.replace(given, **given.from_files())
    if problem := next(without_effect(stated, given), None):
        raise WrongSetting(problem)
    beside = {name: stated.beside_weights for name, (stated, _, _) in known.items() if stated.beside_weights}
    if missing := [name for name in beside if getattr(given, name) is None]:
        flags = " and ".join(f"--{name}" for name in missing)
        if not (path := weights.get("init_checkpoint")):
            raise WrongSetting(f"{flags} must be given, or --init_checkpoint with these files beside the weights")
        is_there = files.is_remote(path) or glob.glob(f"{glob.escape(path)}*")  # the files of a checkpoint have endings
        if not is_there:
            raise UserError(f"--init_checkpoint={path}: {files.missing(path)}")
        sought, folder = " and no ".join(beside[name] for name in missing), files.folder_of(path) or "."
        raise WrongSetting(f"{flags} must be given: there is no {sought} beside the weights, in {folder}")
    for switch, name in needed(cls):
        if getattr(given, switch) and not getattr(given, name):
            raise WrongSetting(f"--{switch} needs --{name}")
    return given

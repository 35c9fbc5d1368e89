"""The second step of settings: the values with which a run begins. `settings` has the first step."""

from __future__ import annotations

import dataclasses
from typing import Any

from bert_tf2.support import hub
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
        sought = " and no ".join(beside[name] for name in missing)
        flags = " and ".join(f"--{name}" for name in missing)
        raise WrongSetting(f"{flags} must be given: there is no {sought} beside the weights")
    for switch, name in needed(cls):
        if getattr(given, switch) and not getattr(given, name):
            raise WrongSetting(f"--{switch} needs --{name}")
    return given

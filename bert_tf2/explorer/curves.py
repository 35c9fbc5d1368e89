"""The curves of trainings, for the page: those of --training_dir, and of the model's own folder if it has any."""

from __future__ import annotations

import math
import os
from typing import Any

from bert_tf2.explorer.opened import Explorer, Handler
from bert_tf2.support.errors import UserError
from bert_tf2.training import curves


def routes(explorer: Explorer) -> dict[str, Handler]:
    return {"/api/training": lambda arguments: describe(folders(explorer))}


def folders(explorer: Explorer) -> list[str]:
    """The folders whose curves are shown."""
    given = [*(explorer.options.training_dir or ())]
    own = explorer.options.model
    own = own if os.path.isdir(own) else os.path.dirname(own) or "."
    # The weights of the best evaluation are in a folder within that of the training.
    beside = [folder for folder in (own, os.path.dirname(os.path.abspath(own))) if curves.has_events(folder)]
    return given or beside[:1]


def describe(given: list[str]) -> dict[str, Any]:
    """The curves of several trainings.

    Returns:
      For /api/training. `runs`: `name` (unique), `folder`, `scalars` (name -> [steps, values], with null for what is
      not finite), `updated` in seconds since 1970. `settings`: those that differ between the runs, name -> a value for
      each. `problems`: the sentences of folders that cannot be read.
    """
    runs, problems = [], []
    for folder in given:
        try:
            runs.append(curves.read_run(folder))
        except UserError as error:
            problems.append(str(error))
    return {
        "runs": [
            {
                "name": name,
                "folder": run.folder,
                "updated": run.updated,
                "scalars": {key: _columns(points) for key, points in run.scalars.items()},
            }
            for name, run in zip(unique_names(runs), runs, strict=True)
        ],
        "settings": different_settings(runs),
        "problems": problems,
    }


def _columns(points: curves.Curve) -> list[list[float | None]]:
    return [[step for step, _ in points], [value if math.isfinite(value) else None for _, value in points]]


def unique_names(runs: list[curves.Run]) -> list[str]:
    """The names of the runs; their paths where two have the same."""
    names = [run.name for run in runs]
    return [run.name if names.count(run.name) == 1 else run.folder for run in runs]


def different_settings(runs: list[curves.Run]) -> dict[str, list[str]]:
    """The settings that are not the same in all runs, which state them in their events."""
    tables = [run.settings for run in runs]
    every = dict.fromkeys(name for table in tables for name in table)
    values = {name: [table.get(name, "") for table in tables] for name in every if name != "output_dir"}
    return {name: each for name, each in values.items() if len(set(each)) > 1}

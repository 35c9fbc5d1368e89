"""The best weights of a training with evaluations, in a separate folder, and early stopping."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import numpy as np
from absl import logging

from bert_tf2.support import files, json_text
from bert_tf2.support.errors import UserError
from bert_tf2.training.monitor import write_scalars
from bert_tf2.training.options import MOST_STEPS
from bert_tf2.weights import checkpoint


def best_folder(output_dir: str) -> str:
    return os.path.join(output_dir, "best")


def folder_of_weights(output_dir: str) -> str:
    """The folder of the trained weights: the best ones, unless the training continued without an evaluation."""
    newest = checkpoint.latest_checkpoint(output_dir)
    best = Best(output_dir, begun=newest is not None)
    up_to_date = best.found and best.last_step >= checkpoint.Checkpoint(newest).global_step
    return best.folder if up_to_date else output_dir


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_STEPS


_LARGEST_MEASURE = 1e9  # all measures are shares, percentages or logarithms


def _is_measure(value: object) -> bool:
    """Whether `value` is the value of a measure, or the placeholder if there is none yet."""
    if value is None or value == -np.inf:
        return True
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LARGEST_MEASURE


# The fields of measure.json, and a check for each.
_SEEN: Mapping[str, Callable[[object], bool]] = {
    "measure": lambda value: value is None or isinstance(value, str),
    "value": _is_measure,
    **dict.fromkeys(("step", "last_step", "evaluations_since"), _is_count),
}


class Best:
    """The best weights so far, in a separate folder, and early stopping.

    `measure.json` next to the weights holds the results so far, for a resumed training and for later calls.
    """

    def __init__(self, output_dir: str, begun: bool, patience: int = 0):
        """Reads the results so far.

        Args:
          output_dir: the folder of the training.
          begun: whether it contains a training. If not, weights in the folder are those of a deleted one.
          patience: the number of evaluations without improvement after which to stop; 0 for no limit.

        Raises:
          UserError: the results cannot be read.
        """
        self.folder = best_folder(output_dir)
        self._patience = patience
        self._file = os.path.join(self.folder, "measure.json")
        self._seen = {"measure": None, "value": -np.inf, "step": 0, "last_step": 0, "evaluations_since": 0}
        self._events = os.path.join(output_dir, "eval")
        if begun and files.exists(self._file):
            self._seen = self._read()

    def _read(self) -> dict:
        """Reads the results so far.

        Raises:
          UserError: the file is damaged, or its weights are missing.
        """
        try:
            seen = json_text.without_checksum(files.read_json(self._file))
        except UserError as error:
            raise self._unusable(str(error).removeprefix(f"{self._file}: ")) from error
        if seen is None:
            raise self._unusable("it does not match its checksum")
        for name, is_good in _SEEN.items():
            if name not in seen or not is_good(seen[name]):
                raise self._unusable(f"its {name} is missing or makes no sense")
        if seen["measure"] is not None and checkpoint.latest_checkpoint(self.folder) is None:
            raise self._unusable(f"it tells of weights of step {seen['step']}, which are not in {self.folder}")
        return {**seen, "value": -np.inf if seen["value"] is None else seen["value"]}

    def _unusable(self, reason: str) -> UserError:
        aside = f"{self.folder}.old"
        return UserError(
            f"{self._file}: tells which weights were the best, and cannot be used: {reason}. Put back a copy of the"
            f" file, or go on without it: mv {self.folder} {aside} (nothing is lost: the training itself is in"
            f" {os.path.dirname(self.folder)}, and goes on from its newest checkpoint)"
        )

    @property
    def found(self) -> bool:
        return self._seen["measure"] is not None

    @property
    def last_step(self) -> int:
        """The step of the last evaluation."""
        return self._seen["last_step"]

    @property
    def should_stop(self) -> bool:
        """Returns whether to stop the training, and logs it."""
        if not 0 < self._patience <= self._seen["evaluations_since"]:
            return False
        since, name = self._seen["evaluations_since"], self._seen["measure"]
        logging.info("No better %s in %d evaluations: the training ends here", name, since)
        return True

    def update(self, model, step: int, name: str, value: float) -> bool:
        """Records the result of an evaluation; returns whether to stop."""
        if value > self._seen["value"]:
            self._seen = {"measure": name, "value": value, "step": step, "last_step": step, "evaluations_since": 0}
            folder = checkpoint.CheckpointFolder(self.folder, keep_checkpoint_max=1)
            folder.save(checkpoint.tf1_variables(model), step)
        elif step > self._seen["last_step"]:  # otherwise it was counted, before a damaged checkpoint was given up
            self._seen["last_step"] = step
            self._seen["evaluations_since"] += 1
        # JSON has no infinity, the value while no evaluation has given a number.
        seen = {**self._seen, "value": self._seen["value"] if self.found else None}
        files.write_json(self._file, json_text.with_checksum(seen), durable=True)
        write_scalars(self._events, step, {name: value})
        logging.info("step %d: %s %.4f (best so far %.4f)", step, name, value, self._seen["value"])
        return self.should_stop

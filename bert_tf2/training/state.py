"""What a training remembers beside each checkpoint, so that it continues exactly.

TensorFlow 1's format has room for variables only. The number of examples read, and the settings that decide what the
following steps compute, are in `model.ckpt-STEP.training.json`, which TensorFlow 1 ignores.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.training.options import TrainOptions

# Settings that change what the following steps compute, and what it means to change one.
_OTHER_SCHEDULE = "the learning rate of the steps to come is another one"
_CONSEQUENCES = {
    "random_seed": "the order of the examples and the dropout change from here on",
    "train_batch_size": "the larger or smaller batches begin behind the last example read",
    "learning_rate": _OTHER_SCHEDULE,
    "num_train_steps": _OTHER_SCHEDULE,
    "num_warmup_steps": _OTHER_SCHEDULE,
    "adam_bias_correction": "the updates change from here on",
    "precision": "numbers are rounded in another way from here on",
}
_RECORDS = "records"
_OTHER_RECORDS = "the order is that of the new ones; in this epoch, some may be read twice and others not at all"


@dataclasses.dataclass(frozen=True)
class TrainingState:
    """The state of a training at a checkpoint.

    Attributes:
      examples: the number of examples that were read for training.
      settings: the values of the options in `_CONSEQUENCES`, and a description of the records.
    """

    examples: int = 0
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def changes(self, now: TrainingState) -> Iterator[str]:
        """Yields a sentence for each setting that has another value now."""
        for name, consequence in {**_CONSEQUENCES, _RECORDS: _OTHER_RECORDS}.items():
            before, after = (state.settings.get(name) for state in (self, now))
            if None not in (before, after) and before != after:
                yield f"{name}: {before} before, {after} now: {consequence}"


def current(options: TrainOptions, examples: int, records: str | None) -> TrainingState:
    """The state of a training with these options; `records` describes what it reads."""
    settings = {name: getattr(options, name) for name in _CONSEQUENCES}
    return TrainingState(examples, {**settings, _RECORDS: records})


def path_of(prefix: str) -> str:
    """The file that belongs to a checkpoint."""
    return f"{prefix}.training.json"


def write(prefix: str, state: TrainingState) -> None:
    """Writes the file. Raises UserError if that is not possible."""
    files.write_json(path_of(prefix), {"examples": state.examples, "settings": dict(state.settings)}, durable=True)


def read(prefix: str) -> TrainingState | None:
    """The state at a checkpoint; None if it has none, because TensorFlow 1 wrote it, for example.

    Raises:
      UserError: the file is damaged.
    """
    path = path_of(prefix)
    if not files.exists(path):
        return None
    found = files.read_json(path)
    examples, settings = (found.get(name) if isinstance(found, dict) else None for name in ("examples", "settings"))
    if not isinstance(examples, int) or isinstance(examples, bool) or examples < 0 or not isinstance(settings, dict):
        raise UserError(
            f"{path}: says where in the data the training continues, and holds something else; remove it to begin"
            f" {os.path.basename(prefix)}'s step with as many examples as batches were read"
        )
    return TrainingState(examples, settings)

"""What a training remembers beside each checkpoint, so that it continues exactly.

TensorFlow 1's format has room for variables only. The number of examples read, and the settings that decide what the
following steps compute, are in `model.ckpt-STEP.training.json`, which TensorFlow 1 ignores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from bert_tf2.support import files, json_text
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
    "gradient_accumulation_steps": "the dropout changes from here on",
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
    content = json_text.with_checksum({"examples": state.examples, "settings": dict(state.settings)})
    files.write_json(path_of(prefix), content, durable=True)


def read(prefix: str) -> TrainingState | None:
    """The state at a checkpoint; None if it has none, because TensorFlow 1 wrote it, for example.

    Raises:
      UserError: the file is damaged.
    """
    path = path_of(prefix)
    if not files.exists(path):
        return None
    try:
        found = files.read_json(path)
    except UserError as error:
        raise UserError(f"{path}: is damaged; {_WITHOUT}") from error
    found = json_text.without_checksum(found)
    if found is None:
        raise UserError(f"{path}: is damaged, it does not match its checksum; {_WITHOUT}")
    examples, settings = (found.get(name) for name in ("examples", "settings"))
    is_count = isinstance(examples, int) and not isinstance(examples, bool) and 0 <= examples < _MOST_EXAMPLES
    if not is_count or not isinstance(settings, dict):
        raise UserError(f"{path}: does not tell how many examples were read; {_WITHOUT}")
    return TrainingState(examples, settings)


_MOST_EXAMPLES = 2**62
# What to do about a damaged file.
_WITHOUT = (
    "put back a copy, or remove it: the training then continues behind as many examples as its steps read with this"
    " --train_batch_size"
)

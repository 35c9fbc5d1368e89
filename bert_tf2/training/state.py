"""What a training remembers beside each checkpoint, so that it continues exactly.

TensorFlow 1's format has room for variables only. The number of examples read, and the settings that decide what the
following steps compute, are in `model.ckpt-STEP.training.json`, which TensorFlow 1 ignores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from bert_tf2.config import BertConfig
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
# Of the model's configuration: what metadata does not refuse, because it is a matter of the training.
_OF_MODEL = {
    name: "the dropout changes from here on" for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")
}
_RECORDS = "records"
_OTHER_RECORDS = "the order is that of the new ones; in this epoch, some may be read twice and others not at all"


@dataclasses.dataclass(frozen=True)
class TrainingState:
    """The state of a training at a checkpoint.

    Attributes:
      examples: the number of examples that were read for training.
      settings: the values of what is in `_CONSEQUENCES` and `_OF_MODEL`, and a description of the records.
      skipped: the number of updates that were left out.
    """

    examples: int = 0
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    skipped: int = 0

    def changes(self, now: TrainingState) -> Iterator[str]:
        """Yields a sentence for each setting that has another value now."""
        for name, consequence in {**_CONSEQUENCES, **_OF_MODEL, _RECORDS: _OTHER_RECORDS}.items():
            before, after = (state.settings.get(name) for state in (self, now))
            if None not in (before, after) and before != after:
                yield f"{name}: {before} before, {after} now: {consequence}"


def current(
    options: TrainOptions, examples: int, records: str | None, config: BertConfig, skipped: int = 0
) -> TrainingState:
    """The state of a training of a model with this configuration; `records` describes what it reads."""
    settings = {name: getattr(options, name) for name in _CONSEQUENCES}
    settings |= {name: getattr(config, name) or 0.0 for name in _OF_MODEL}
    return TrainingState(examples, {**settings, _RECORDS: records}, skipped)


def path_of(prefix: str) -> str:
    """The file that belongs to a checkpoint."""
    return f"{prefix}.training.json"


def write(prefix: str, state: TrainingState) -> None:
    """Writes the file. Raises UserError if that is not possible."""
    content = json_text.with_checksum({"step": int(_step_of(prefix)), **dataclasses.asdict(state)})
    files.write_json(path_of(prefix), content, durable=True)


def _step_of(prefix: str) -> str:
    return prefix.rpartition("-")[2]


def read(prefix: str) -> TrainingState | None:
    """The state at a checkpoint; None if it has none, because TensorFlow 1 wrote it, for example.

    Raises:
      UserError: the file is damaged, or is that of another step.
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
    # A version before this one wrote neither the step nor the updates that were left out.
    examples, skipped, settings = found.get("examples"), found.get("skipped", 0), found.get("settings")
    if not (_is_count(examples) and _is_count(skipped) and isinstance(settings, dict)):
        raise UserError(f"{path}: does not tell how many examples were read; {_WITHOUT}")
    if str(found.get("step", _step_of(prefix))) != _step_of(prefix):
        raise UserError(f"{path}: is that of step {found['step']}, not of this checkpoint; {_WITHOUT}")
    return TrainingState(examples, settings, skipped)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_EXAMPLES


_MOST_EXAMPLES = 2**62
# What to do about a damaged file.
_WITHOUT = (
    "put back a copy, or remove it: the training then continues behind as many examples as its steps read with this"
    " --train_batch_size"
)

"""Checkpoints of a training: they are written beside it, with what it needs to continue exactly.

TensorFlow 1's format has room for variables only. The number of examples read, and the settings that decide what the
following steps compute, are in `model.ckpt-STEP.training.json`, which TensorFlow 1 ignores.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf2.config import BertConfig
from bert_tf2.support import files, json_text, process
from bert_tf2.support.errors import UserError
from bert_tf2.training.options import TrainOptions
from bert_tf2.weights import checkpoint

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
    "all_reduce_dtype": "gradients are rounded in another way from here on",
}
# Of the model's configuration: what metadata does not refuse, because it is a matter of the training.
_OF_MODEL = {
    name: "the dropout changes from here on" for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")
}
_RECORDS = "records"
_OTHER_RECORDS = "the order is that of the new ones; in this epoch, some may be read twice and others not at all"
_MOST_EXAMPLES = 2**62
# What to do about a damaged file.
_WITHOUT = (
    "put back a copy, or remove it: the training then continues behind as many examples as its steps read with this"
    " --train_batch_size"
)


@dataclasses.dataclass(frozen=True)
class TrainingState:
    """The state of a training at a checkpoint, besides its variables.

    Attributes:
      examples: the number of examples that were read for training.
      settings: the values of what is in `_CONSEQUENCES` and `_OF_MODEL`, and a description of the records.
      skipped: the number of updates that were left out.
    """

    examples: int = 0
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    skipped: int = 0

    @classmethod
    def current(
        cls, options: TrainOptions, examples: int, records: str | None, config: BertConfig, skipped: int = 0
    ) -> TrainingState:
        """The state of a training of a model with this configuration; `records` describes what it reads."""
        settings = {name: getattr(options, name) for name in _CONSEQUENCES}
        settings |= {name: getattr(config, name) or 0.0 for name in _OF_MODEL}
        return cls(examples, {**settings, _RECORDS: records}, skipped)

    def changes(self, now: TrainingState) -> Iterator[str]:
        """Yields a sentence for each setting that has another value now."""
        for name, consequence in {**_CONSEQUENCES, **_OF_MODEL, _RECORDS: _OTHER_RECORDS}.items():
            before, after = (state.settings.get(name) for state in (self, now))
            if None not in (before, after) and before != after:
                yield f"{name}: {before} before, {after} now: {consequence}"

    def write(self, prefix: str) -> None:
        """Writes the file that belongs to a checkpoint. Raises UserError if that is not possible."""
        content = json_text.with_checksum({"step": int(_step_of(prefix)), **dataclasses.asdict(self)})
        files.write_json(path_of(prefix), content, durable=True)

    @classmethod
    def read(cls, prefix: str) -> TrainingState | None:
        """The state at a checkpoint; None if it has none, because TensorFlow 1 wrote it, for example.

        Raises:
          UserError: the file is damaged, or is that of another step.
        """
        path = path_of(prefix)
        if not files.exists(path):
            return None
        try:
            found = json_text.without_checksum(files.read_json(path))
        except UserError as error:
            raise UserError(f"{path}: is damaged; {_WITHOUT}") from error
        if found is None:
            raise UserError(f"{path}: is damaged, it does not match its checksum; {_WITHOUT}")
        # A version before this one wrote neither the step nor the updates that were left out.
        examples, skipped, settings = found.get("examples"), found.get("skipped", 0), found.get("settings")
        if not (_is_count(examples) and _is_count(skipped) and isinstance(settings, dict)):
            raise UserError(f"{path}: does not tell how many examples were read; {_WITHOUT}")
        if str(found.get("step", _step_of(prefix))) != _step_of(prefix):
            raise UserError(f"{path}: is that of step {found['step']}, not of this checkpoint; {_WITHOUT}")
        return cls(examples, settings, skipped)


def path_of(prefix: str) -> str:
    """The file of the state at a checkpoint."""
    return f"{prefix}.training.json"


def _step_of(prefix: str) -> str:
    return prefix.rpartition("-")[2]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_EXAMPLES


class Saver:
    """The writer of the checkpoints of a training. A context manager, which waits for the last one.

    Not if a second signal stops the process at once: then the checkpoint that is being written is lost.
    """

    def __init__(self, output_dir: str, keep_checkpoint_max: int, keep_checkpoint_every_n_hours: float = 0.0):
        self._output_dir = output_dir
        self._folder = checkpoint.CheckpointFolder(output_dir, keep_checkpoint_max, keep_checkpoint_every_n_hours)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        # Kept from one checkpoint to the next: new memory costs more time than the copying.
        self._copies: dict[str, np.ndarray] = {}

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        if kind is None or not issubclass(kind, process.Stopped):
            self._join()
        if kind is None:
            self.check()

    @property
    def count(self) -> int:
        """The number of checkpoints that are kept now."""
        return self._folder.count

    def save(self, variables: Mapping[str, tf.Variable], step: int, beside: TrainingState) -> None:
        """Begins to write a checkpoint, once the one before is written.

        Args:
          variables: by the reference's names; they may change as soon as this returns.
          step: the global step.
          beside: what belongs to the checkpoint and TensorFlow 1's format has no room for.

        Raises:
          UserError: the one before could not be written.
        """
        self.wait()
        for name, variable in variables.items():
            if name not in self._copies:
                self._copies[name] = np.empty(variable.shape, variable.dtype.as_numpy_dtype)
            np.copyto(self._copies[name], variable.numpy())
        self._thread = threading.Thread(target=self._write, args=(self._copies, step, beside), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits until the last checkpoint is written. Raises UserError if that was not possible."""
        self._join()
        self.check()

    def check(self) -> None:
        """Raises UserError if a checkpoint could not be written; does not wait."""
        error, self._error = self._error, None
        if isinstance(error, UserError):
            latest = checkpoint.latest_checkpoint(self._output_dir)
            way_back = f"; {latest} is there, the same command continues from it" if latest else ""
            raise UserError(f"{error}{way_back}") from error
        if error is not None:
            raise error

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, copies: Mapping[str, np.ndarray], step: int, beside: TrainingState) -> None:
        try:
            beside.write(self._folder.prefix(step))
            self._folder.save(copies, step)
        except BaseException as error:  # a thread has nobody to raise it to
            self._error = error

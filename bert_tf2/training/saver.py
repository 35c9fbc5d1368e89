"""The files of a training run: its checkpoints, the state for an exact continuation, and its best weights.

TensorFlow 1's format has room for variables only. The number of examples read, and the settings on which the following
steps depend, are in `model.ckpt-STEP.training.json`, which TensorFlow 1 ignores. The results of evaluations are in
`best/measure.json`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from concurrent import futures
from typing import Any

import google_crc32c
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf2.fast.encoder import plan_of
from bert_tf2.support import files, process, settings
from bert_tf2.support.errors import UserError
from bert_tf2.training.monitor import write_scalars
from bert_tf2.training.options import OTHER_DROPOUT, OTHER_ROUNDING, OTHER_SCHEDULE, LoopOptions
from bert_tf2.training.workers import in_thread
from bert_tf2.weights import bundle, names

# The fields of the model's configuration that decide training alone, so `weights.model_folder` does not compare them.
_OF_MODEL = ("hidden_dropout_prob", "attention_probs_dropout_prob")
_CHECKSUM = "crc32c"  # the key of the checksum in these files
_OTHER_RECORDS = "the order changes; in this epoch, some records may be read twice and others not at all"


def deciding(options: LoopOptions, model, records: str | None, replicas: int) -> dict[str, tuple[Any, str]]:
    """The settings and facts that decide the steps to come: name -> value, and the consequence of another value.

    Each of the `replicas` draws its own dropout, and the encoder of `model` draws it for padding that is computed, too.
    """
    found = {**settings.deciding(options), **options.deciding}
    found |= {name: (getattr(options, name), OTHER_SCHEDULE) for name in ("num_train_steps", "num_warmup_steps")}
    if replicas == 1:  # gradients are not sent
        found["all_reduce_dtype"] = ("float32", OTHER_ROUNDING)
    rates = {name: getattr(model.config, name) or 0.0 for name in _OF_MODEL}
    found |= {name: (rate, OTHER_DROPOUT) for name, rate in rates.items()}
    if any(rates.values()):
        found["computes_padding"] = (plan_of(model).computes_padding, OTHER_DROPOUT)
    if any(rates.values()) or model.head_dropout:
        found["replicas"] = (replicas, OTHER_DROPOUT)
    return {**found, "records": (records, _OTHER_RECORDS)}


@dataclasses.dataclass(frozen=True)
class TrainingState:
    """The state of a training run at a checkpoint, besides its variables."""

    examples: int = 0  # the number of examples that were read for training
    # name -> value, of the settings that a continuation compares
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def changes(self, now: Mapping[str, tuple[Any, str]]) -> Iterator[tuple[str, str]]:
        """Yields each setting that has another value now, and the consequence; `now`: see `deciding`."""
        for name, (after, consequence) in now.items():
            before = self.settings.get(name, after)  # a version that knew fewer settings did not write this setting
            if before != after and not (name == "records" and None in (before, after)):  # None: unknown records
                yield f"{name}: {before} before, {after} now", consequence

    def write(self, prefix: str) -> None:
        content = {"step": int(prefix.rpartition("-")[2]), **dataclasses.asdict(self)}
        files.write_json(_path_beside(prefix), with_checksum(content), durable=True)

    @classmethod
    def read(cls, prefix: str) -> TrainingState | None:
        """The state at a checkpoint, None if it has no state, for example because TensorFlow 1 wrote it.

        Raises UserError if the file is damaged, or belongs to another checkpoint.
        """
        path, step = files.companion(*os.path.split(_path_beside(prefix))), prefix.rpartition("-")[2]
        if path is None:
            return None
        try:
            found = _read(path)
            if str(found["step"]) != step:
                raise UserError(f"{path}: belongs to step {found['step']}, not to this checkpoint")
        except UserError as error:
            raise UserError(
                f"{error}; put back a copy, or remove the file: the training then continues behind as many examples as"
                " its steps read with this --train_batch_size"
            ) from error
        return cls(found["examples"], found["settings"])


def _path_beside(prefix: str) -> str:
    return f"{prefix}.training.json"


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Adds a checksum of all keys and values to an object, so that a changed digit is found."""
    return {**content, _CHECKSUM: f"{google_crc32c.value(json.dumps(content, sort_keys=True).encode()):08x}"}


def _read(path: str) -> dict[str, Any]:
    """Reads a file with a checksum. Raises UserError if the content does not match the checksum."""
    found = files.read_json(path)
    content = {name: value for name, value in found.items() if name != _CHECKSUM}
    if with_checksum(content) != found:
        raise UserError(f"{path}: does not match its checksum")
    return content


class Saver:
    """Writes the checkpoints of a training run in a thread. The end of its context waits for the last checkpoint.

    If a second signal stops the process at once, the context does not wait, and an unfinished checkpoint is lost.
    """

    def __init__(self, output_dir: str, keep_checkpoint_max: int):
        self._output_dir = output_dir
        self._folder = bundle.CheckpointFolder(output_dir, keep_checkpoint_max)
        self._writing: futures.Future[None] | None = None
        # Kept from one checkpoint to the next, because new memory costs more time than the copying.
        self._copies: dict[str, np.ndarray] = {}

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        if kind is None or not issubclass(kind, process.Stopped):
            futures.wait([self._writing] if self._writing else [])
        if kind is None:
            self.check()

    @property
    def count(self) -> int:
        return self._folder.count

    def save(self, variables: Mapping[str, tf.Variable], step: int, beside: TrainingState) -> None:
        """Waits for the checkpoint before, then begins to write a checkpoint; the variables may change afterwards."""
        self.wait()
        for name, variable in variables.items():
            if name not in self._copies:
                self._copies[name] = np.empty(variable.shape, variable.dtype.as_numpy_dtype)
            np.copyto(self._copies[name], variable.numpy())
        self._writing = in_thread(lambda: self._write(step, beside))

    def wait(self) -> None:
        """Waits until the last checkpoint is written. Raises UserError if it could not be written."""
        futures.wait([self._writing] if self._writing else [])
        self.check()

    def check(self) -> None:
        """Raises UserError if a checkpoint could not be written; does not wait."""
        if self._writing is None or not self._writing.done():
            return
        writing, self._writing = self._writing, None
        try:
            writing.result()
        except UserError as error:
            latest = None
            with contextlib.suppress(UserError):  # perhaps `checkpoint`, which names the newest, could not be written
                latest = bundle.latest_checkpoint(self._output_dir)
            way_back = f"; {latest} is there, the same command continues from it" if latest else ""
            raise UserError(f"{error}{way_back}") from error

    def _write(self, step: int, beside: TrainingState) -> None:
        beside.write(prefix := self._folder.prefix(step))
        try:
            self._folder.save(self._copies, step)
        except Exception:
            if not files.exists(f"{prefix}.index"):  # for example because the disk is full
                files.remove(_path_beside(prefix))
            raise


def best_folder(output_dir: str) -> str:
    return os.path.join(output_dir, "best")


def folder_of_weights(output_dir: str) -> str:
    """The folder of the trained weights: the best weights, unless training continued without an evaluation."""
    newest = bundle.latest_checkpoint(output_dir)
    best = Best(output_dir, begun=newest is not None)
    up_to_date = best.found and best.last_step >= bundle.Checkpoint(newest).global_step
    return best.folder if up_to_date else output_dir


class Best:
    """The best weights so far, in a separate folder with the results in `measure.json`, and early stopping."""

    def __init__(self, output_dir: str, begun: bool, patience: int = 0):
        """`begun`: whether output_dir has checkpoints. If not, best weights belong to a deleted run and are ignored."""
        self.folder = best_folder(output_dir)
        self._patience = patience
        self._file = os.path.join(self.folder, "measure.json")
        self._seen = {"measure": None, "value": -np.inf, "step": 0, "last_step": 0, "evaluations_since": 0}
        self._events = os.path.join(output_dir, "eval")
        if begun and files.companion(*os.path.split(self._file)):
            self._seen = self._read()

    def _read(self) -> dict[str, Any]:
        try:
            seen = _read(self._file)
            if seen["measure"] is not None and bundle.latest_checkpoint(self.folder) is None:
                raise UserError(f"{self._file}: its weights, of step {seen['step']}, are not in {self.folder}")
        except UserError as error:
            raise UserError(
                f"{error}; put back a copy of this file, which records the best weights, or let the training continue"
                f" without it: mv {self.folder} {self.folder}.old"
            ) from error
        return {**seen, "value": -np.inf if seen["value"] is None else seen["value"]}

    @property
    def found(self) -> bool:
        return self._seen["measure"] is not None

    @property
    def last_step(self) -> int:
        return self._seen["last_step"]

    def ends_training(self) -> bool:
        if not 0 < self._patience <= self._seen["evaluations_since"]:
            return False
        since, name = self._seen["evaluations_since"], self._seen["measure"]
        logging.info("No better %s in %d evaluations: the training ends here", name, since)
        return True

    def update(self, model, step: int, name: str, value: float) -> bool:
        """Records the result of an evaluation; returns whether to stop."""
        if value > self._seen["value"]:
            self._seen = {"measure": name, "value": value, "step": step, "last_step": step, "evaluations_since": 0}
            folder = bundle.CheckpointFolder(self.folder, keep_checkpoint_max=1)
            folder.save(names.tf1_variables(model), step)
        elif step > self._seen["last_step"]:  # a run may repeat a counted step, after a damaged checkpoint was given up
            self._seen["last_step"] = step
            self._seen["evaluations_since"] += 1
        # JSON has no infinity, which is the value until an evaluation gives a number.
        seen = {**self._seen, "value": self._seen["value"] if self.found else None}
        files.write_json(self._file, with_checksum(seen), durable=True)
        write_scalars(self._events, step, {name: value})
        logging.info("step %d: %s %.4f (best so far %.4f)", step, name, value, self._seen["value"])
        return self.ends_training()

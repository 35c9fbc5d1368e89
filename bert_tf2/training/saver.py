"""Writes checkpoints beside the training: a copy of the variables, and a thread that writes the copy."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bert_tf2.support import process
from bert_tf2.support.errors import UserError
from bert_tf2.training import state
from bert_tf2.training.state import TrainingState
from bert_tf2.weights import checkpoint


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
            state.write(self._folder.prefix(step), beside)
            self._folder.save(copies, step)
        except BaseException as error:  # a thread has nobody to raise it to
            self._error = error

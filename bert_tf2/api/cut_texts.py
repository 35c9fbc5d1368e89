"""Counts the texts that a training cuts, because they have more tokens than a row."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf2.finetuning.classification.features import log_cut


class CutTexts:
    """Counts cut texts by epoch, in the order in which a model reads their batches."""

    def __init__(self, max_seq_length: int, steps: int | None, continues: bool = False):
        """`steps`: the batches of an epoch, None if their number is not known before the end of the first epoch.

        `continues`: an epoch begins where the epoch before ended, and not with the first batch.
        """
        self._max_seq_length, self._steps, self._continues = max_seq_length, steps, continues
        self._is_logged = False
        self._epochs: list[list[tuple[int, int]]] = []  # for each batch the number of cut texts, and of all texts

    def add(self, number: tf.Tensor, are_cut: tf.Tensor) -> None:
        """Counts the cut texts of batch `number` in a graph; `are_cut`: bool [B], or [0] of a batch without texts."""

        def note(number: np.int64, are_cut: np.ndarray) -> None:
            if number == 0 or (self._continues and len(self._epochs[-1]) == self._steps):
                self._epochs.append([])
            self._epochs[-1].append((int(are_cut.sum()), len(are_cut)))

        tf.numpy_function(note, [number, are_cut], [])

    def logged_between_epochs(self, callbacks: Any) -> Any:
        """Adds `log` to callbacks, before each epoch; within an epoch, Keras' line on the terminal is not finished."""
        if isinstance(callbacks, keras.callbacks.CallbackList):
            return callbacks
        return [*keras.tree.flatten(callbacks), keras.callbacks.LambdaCallback(lambda *_, **__: self.log())]

    def log(self) -> None:
        """Logs the cut texts of the first epoch, once, after its end."""
        if self._epochs and not self._is_logged:
            self._is_logged = True
            log_cut(*self._counts()[0], self._max_seq_length)

    def write(self, history: dict[str, list], prefix: str = "") -> None:
        """Adds to a History `cut_texts`, the number of cut texts in each epoch, unless the pipeline has ids, not texts.

        `prefix`: "val_" for a validation.
        """
        counts = self._counts()[: len(history.get(f"{prefix}loss", ()))]
        if any(count for _, count in counts):
            history[f"{prefix}cut_texts"] = [cut for cut, _ in counts]

    def _counts(self) -> list[tuple[int, int]]:
        """The number of cut texts, and of all texts, for each epoch. A pipeline may read more batches than a model."""
        read = (batches[: self._steps] for batches in self._epochs)
        return [(sum(cut for cut, _ in batches), sum(count for _, count in batches)) for batches in read]

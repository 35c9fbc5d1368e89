"""The record files of a task's parts: written on first use, read in batches, and answered by the model."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from typing import Any

import tensorflow as tf

from bert_tf2.data import length_buckets, records
from bert_tf2.finetuning.task import Task
from bert_tf2.layers import MASKED_SCORE
from bert_tf2.support import output_lock, progress
from bert_tf2.support.errors import UserError
from bert_tf2.training.runner import Runner

# The number of widths of training batches with --xla, which compiles the step for each of them.
_XLA_WIDTHS = 4


class PartRecords:
    """The records of the parts of one call, in the files PART.tf_record."""

    def __init__(self, task: Task, strategy: tf.distribute.Strategy, opened: contextlib.ExitStack):
        """`task` has its model and its examples; `opened` is closed at the end of the call."""
        self._task = task
        self._options = task.options
        self._opened = opened
        self._runner = Runner(task.model, strategy)
        self._written: dict[str, tuple[str, int]] = {}
        self._sizes = {
            "max_seq_length": task.options.max_seq_length,
            "vocab_size": task.config.vocab_size,
            "type_vocab_size": task.config.type_vocab_size,
            "num_labels": task.label_map.num_labels if task.label_map else 0,
        }

    def path(self, part: str) -> str:
        """The path for the records of a part: in output_dir, as in the reference.

        While another training is running it is in a temporary folder, since that training evaluates on the records in
        output_dir.
        """
        folder = self._options.output_dir
        if not self._options.do_train and output_lock.is_training_elsewhere(folder):
            folder = self._opened.enter_context(tempfile.TemporaryDirectory())
        return os.path.join(folder, f"{part}.tf_record")

    def write(self, part: str) -> tuple[str, int]:
        """Writes the records of a part, unless it has done so; returns their path and their number."""
        if part not in self._written:
            path = self.path(part)
            self._written[part] = path, records.write_records(path, self._task.kind(part), self._task.features(part))
        return self._written[part]

    def for_training(self, **how) -> tf.data.Dataset:
        """The batches of the part "train", endless and shuffled; `how`: arguments of records.read_records."""
        options, multiple = self._options, 1
        if options.xla:
            multiple = 8 * math.ceil(options.max_seq_length / (8 * _XLA_WIDTHS))  # as matrix units of GPUs like it
        how |= {"shuffle_seed": options.random_seed, "repeat": True, "drop_remainder": True}
        return self._read("train", self.path("train"), options.train_batch_size, width_multiple=multiple, **how)

    def answers(self, part: str) -> Any:
        """The answers of the model, with its current weights, to a part."""
        task, options, evaluating = self._task, self._options, part in self._task.eval_parts
        path, count = self.write(part)
        batch_size = (evaluating and getattr(options, "eval_batch_size", 0)) or options.predict_batch_size
        data = self._read(part, path, batch_size, like_lengths=not options.pads_batches)
        batches = self._runner.run(data, explain=lambda: self.find_fault(part))
        what = "Evaluating" if evaluating else "Predicting"
        batches = progress.track(batches, what, count, task.unit, size=lambda batch: len(batch["input_ids"]))
        if not options.pads_batches:
            batches = length_buckets.in_order(batches, batch_size, MASKED_SCORE)
        return task.answers(part, batches)

    def find_fault(self, part: str) -> UserError | None:
        """The first invalid record of a part; see records.find_fault."""
        path = self._written[part][0] if part in self._written else self.path(part)
        return records.find_fault([path], self._task.kind(part), self._sizes)

    def _read(self, part: str, path: str, batch_size: int, **how) -> tf.data.Dataset:
        padded = self._options.pads_batches
        return records.read_records(
            [path], self._task.kind(part), self._sizes, batch_size, pad_to_max_length=padded, **how
        )

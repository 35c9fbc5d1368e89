"""One call of a fine-tuning task: the model, its weights, the training and the runs over record files."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from absl import logging

from bert_tf2.config import BertConfig
from bert_tf2.data import length_buckets, record_index, record_order, records
from bert_tf2.fast.encoder import accelerate
from bert_tf2.finetuning.options import FineTuneOptions
from bert_tf2.layers import MASKED_SCORE
from bert_tf2.support import files, output_lock, progress, settings
from bert_tf2.support.errors import UserError
from bert_tf2.training.best import Best, best_folder, folder_of_weights
from bert_tf2.training.devices import build_model, check_batch, create_strategy, join, plan_for
from bert_tf2.training.forward import Runner
from bert_tf2.training.loop import Trainer, start_from
from bert_tf2.training.options import MOST_STEPS, TrainOptions, hyperparameters
from bert_tf2.training.precision import PRECISIONS
from bert_tf2.weights import checkpoint, metadata
from bert_tf2.weights.labels import LabelMap, save_label_map

# The number of widths of training batches with --xla, which compiles the step for each of them.
_XLA_WIDTHS = 4


def flag_of_weights(options: FineTuneOptions) -> str | None:
    """The flag that names the fine-tuned weights that a call uses; None if it trains new ones."""
    if checkpoint.latest_checkpoint(options.output_dir):
        return "--output_dir"
    return "--init_checkpoint" if options.init_checkpoint and not options.do_train else None


class FineTuner:
    """One call of a fine-tuning script: the configuration, the tokenizer, the devices, and the model once it is made.

    Attributes:
      config: the model's configuration.
      tokenizer: for the model's vocabulary.
      model: None until `make_model`.
      team: the workers of the training, connected.
      global_step: that of the model's weights; set by `make_model`.
    """

    def __init__(self, options: FineTuneOptions, task: Mapping[str, str | bool]):
        """Reads the configuration, the vocabulary and the metadata of the initial weights.

        Args:
          options: the settings.
          task: what the model is for; see metadata.check_task.

        Raises:
          UserError: files are missing, files or settings are inconsistent, there are no weights and none will be
            trained, or they were fine-tuned for another task.
        """
        self.options = options
        self._task = task
        self.config = BertConfig.from_json_file(options.bert_config_file)
        self.config.check_sequence_length(options.max_seq_length)
        self.team = join(options)
        if options.do_train and self.team.is_chief:
            checkpoint.recover(options.output_dir)
        self.team.wait()  # the others read what the chief has mended
        source = checkpoint.weights_in_use(options.output_dir, options.init_checkpoint, options.do_train)
        flag = flag_of_weights(options)
        if source is not None and flag is not None:
            metadata.check_task(source, task, flag, options.other_task)
        self.tokenizer = metadata.load_tokenizer(
            options.vocab_file, options.do_lower_case, self.config.vocab_size, source, options.init_checkpoint
        )
        if options.do_train:
            metadata.check_output_dir(options.output_dir, self.config, options.vocab_file)
        self.model = None
        self.global_step: int | None = None
        self._strategy = None  # see make_model
        self._runner: Runner | None = None
        self._held = contextlib.ExitStack()

    def __enter__(self) -> FineTuner:
        return self

    def __exit__(self, *exception) -> None:
        self._held.close()

    def make_model(self, make: Callable[[str], object]) -> None:
        """Builds the model with `make(dtype policy)` and loads its weights, so that a mismatch is found early.

        The weights are the newest in output_dir, or the best there if nothing is trained, else those of
        init_checkpoint. If this call trains, it locks output_dir.

        Raises:
          UserError: a checkpoint cannot be read or belongs to another model, or another training runs in output_dir.
        """
        options = self.options
        files.make_directory(options.output_dir)
        if options.do_train and self.team.is_chief:
            self._held.enter_context(output_lock.training_in(options.output_dir))
        self._strategy = create_strategy(options, team=self.team)
        if options.do_train:
            check_batch(options, self._strategy.num_replicas_in_sync)  # before the records of the training are written
        policy = PRECISIONS[options.precision].policy
        self.model = build_model(self._strategy, lambda: make(policy), options.random_seed)
        accelerate(self.model, plan_for(options, self._strategy, self.config.hidden_size, self._padded))
        self._runner = Runner(self.model, self._strategy)
        folder = options.output_dir if options.do_train else folder_of_weights(options.output_dir)
        self.global_step = start_from(self.model, folder, options.init_checkpoint, will_train=options.do_train)

    def output_file(self, name: str) -> str:
        return os.path.join(self.options.output_dir, name)

    def record_file(self, name: str) -> str:
        """The path for a record file: in output_dir, as in the reference.

        While another training is running it is in a temporary folder, since that training evaluates on the records in
        output_dir.
        """
        if self.options.do_train or not output_lock.is_training_elsewhere(self.options.output_dir):
            return self.output_file(name)
        return os.path.join(self._held.enter_context(tempfile.TemporaryDirectory()), name)

    def save_labels(self, label_map: LabelMap) -> None:
        """Writes label_map.json next to all weights that the training will write."""
        save_label_map(self.options.output_dir, label_map)
        if self.options.eval_steps:
            save_label_map(best_folder(self.options.output_dir), label_map)

    def _sizes(self, num_labels: int) -> dict[str, int]:
        return {
            "max_seq_length": self.options.max_seq_length,
            "vocab_size": self.config.vocab_size,
            "type_vocab_size": self.config.type_vocab_size,
            "num_labels": num_labels,
        }

    def _read(self, path: str, kind: records.RecordKind, sizes: records.Sizes, batch_size: int, **how):
        return records.read_records([path], kind, sizes, batch_size, pad_to_max_length=self._padded, **how)

    @property
    def _width_multiple(self) -> int:
        if not self.options.xla:
            return 1
        return 8 * math.ceil(self.options.max_seq_length / (8 * _XLA_WIDTHS))  # as the matrix units of GPUs like it

    @property
    def _padded(self) -> bool:
        return self.options.pad_to_max_length or self.options.on_tpu

    def train(
        self,
        path: str,
        kind: records.RecordKind,
        num_examples: int,
        num_labels: int = 0,
        measure: Callable[[], tuple[str, float]] | None = None,
    ) -> None:
        """Trains on a record file.

        Args:
          path: the records.
          kind: their kind.
          num_examples: the number of examples in an epoch (for SQuAD questions, not windows, as in the reference).
          num_labels: the limit for label ids, if there are any.
          measure: evaluates the current model; returns the measure's name and value, higher is better.

        Raises:
          UserError: too few examples for a single step.
        """
        options = self.options
        trainer = self._trainer(num_examples)
        begun = checkpoint.latest_checkpoint(options.output_dir) is not None
        if begun:
            trainer.start()  # loads the weights again, with the optimizer's slots
        best = Best(options.output_dir, begun, options.patience) if measure and options.eval_steps else None
        if self.team.is_chief:
            for folder in [options.output_dir, *([best.folder] if best else [])]:
                metadata.write(folder, self.config, self.tokenizer, options.vocab_file, self._task)
        if best is None or not best.should_stop:
            sizes = self._sizes(num_labels)
            index = record_index.read([path])
            data = self._read(
                path, kind, sizes, options.train_batch_size,
                shuffle_seed=options.random_seed, index=index, first=trainer.examples, share=self.team.share,
                repeat=True, drop_remainder=True, width_multiple=self._width_multiple,
            )  # fmt: skip
            trainer.train(
                data,
                records=index.description,
                explain=lambda: records.find_fault([path], kind, sizes),
                evaluate=(lambda step: best.update(self.model, step, *measure())) if best else None,
                eval_steps=options.eval_steps,
                evaluated=best.last_step if best else 0,
                where=functools.partial(record_order.where, index, options.random_seed),
            )
        self.global_step = trainer.global_step
        if best and self.team.is_chief and best.found:
            self.global_step = start_from(self.model, best.folder, None)

    def num_train_steps(self, num_examples: int) -> int:
        """The number of training steps, computed as in the reference.

        Raises:
          UserError: there is not a single step, or there are too many.
        """
        options = self.options
        steps = num_examples / options.train_batch_size * options.num_train_epochs
        if not 1 <= steps < MOST_STEPS:
            few = steps < 1
            raise UserError(
                f"{num_examples} examples, batches of {options.train_batch_size} and {options.num_train_epochs} epochs"
                f" make {'not a single' if few else f'{steps:.3g}'} training step{'' if few else 's'};"
                + (" lower --train_batch_size or raise --num_train_epochs" if few else " lower --num_train_epochs")
            )
        return int(steps)

    def _trainer(self, num_examples: int) -> Trainer:
        options = self.options
        steps = self.num_train_steps(num_examples)
        logging.info(
            "Training on %d examples in batches of %d: %d steps", num_examples, options.train_batch_size, steps
        )
        train_options = TrainOptions(
            **settings.shared(options, TrainOptions),
            num_train_steps=steps,
            num_warmup_steps=int(steps * options.warmup_proportion),
            texts=hyperparameters(options),
        )
        return Trainer(self.model, self._strategy, train_options, self.team)

    def run(
        self,
        path: str,
        kind: records.RecordKind,
        batch_size: int,
        num_labels: int = 0,
        *,
        what: str = "Evaluating",
        total: int | None = None,
        unit: str = "examples",
    ) -> Iterator[Mapping[str, np.ndarray]]:
        """Runs the model over a record file; see Runner.run.

        Args:
          what, total, unit: how the progress is shown; see progress.track.
        """
        sizes = self._sizes(num_labels)
        data = self._read(path, kind, sizes, batch_size, like_lengths=not self._padded)
        batches = self._runner.run(data, explain=lambda: records.find_fault([path], kind, sizes))
        batches = progress.track(batches, what, total, unit, size=lambda batch: len(batch["input_ids"]))
        return batches if self._padded else length_buckets.in_order(batches, batch_size, MASKED_SCORE)

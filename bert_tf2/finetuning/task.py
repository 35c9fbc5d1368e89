"""The base class of fine-tuning tasks: examples in parts, their records, and the scores of the model's answers.

`training.driver` describes a task and runs it.

    read:     files -> examples of each part -> labels
    records:  examples -> PART.tf_record -> batches for the training, or for the model's answers
    outcome:  answers -> scores, predictions
"""

from __future__ import annotations

import abc
import contextlib
import functools
import itertools
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf2.data import batching, record_index, record_order, records
from bert_tf2.finetuning.options import FineTuneOptions
from bert_tf2.layers import MASKED_SCORE
from bert_tf2.long_texts import Windows
from bert_tf2.support import console, files, output_lock, progress, settings
from bert_tf2.support.errors import UserError
from bert_tf2.training import driver
from bert_tf2.training.driver import Outcome, TrainingData
from bert_tf2.training.loop import Trainer
from bert_tf2.training.monitor import write_eval_results
from bert_tf2.training.options import Program
from bert_tf2.training.workers import Team
from bert_tf2.weights import bundle, model_folder, sources, task_file, text_rules
from bert_tf2.weights.task_file import LABEL_MAP_FILE, TAGGING_TASK, UNKNOWN_TASK, LabelMap, numbered

Batches = Iterator[Mapping[str, np.ndarray]]


class Scores(NamedTuple):
    """The scores of the answers."""

    metrics: dict[str, Any]  # all metrics, for `eval_metrics.json`
    main: str  # the key in `metrics` by which --eval_steps chooses the best weights; higher is better
    figures: Sequence[str]  # the keys of the metrics in the summary at the end of a run
    results: dict[str, float] | None = None  # for `eval_results.txt`, which the reference writes for some tasks
    screen: str = ""  # a table for the log, or ""


class FineTuningTask(driver.Task):
    """A fine-tuning task: its data in the parts "train", "eval" and "predict", the model, its answers and their scores.

    `examples` has the parts that the call needs; `label_map` is None for a task without labels.
    """

    uses_best_weights = True
    cuts_batches = True
    predicted_part = "predict"  # the part whose answers are written
    windows: Windows | None = None  # how a classifier divides long texts
    options: FineTuneOptions

    def __init__(self, options: FineTuneOptions):
        super().__init__(options)
        self.examples: dict[str, Sequence] = {}
        if self.flag_of_weights == "--init_checkpoint":
            self.source = sources.open_weights(options.init_checkpoint)

    @property
    def flag_of_weights(self) -> str | None:
        """The flag that names the fine-tuned weights of a call; None if the call trains new weights."""
        if bundle.has_checkpoints(self.options.output_dir):  # the driver may have to recover them
            return "--output_dir"
        return "--init_checkpoint" if self.options.init_checkpoint and not self.options.do_train else None

    def known_labels(self, tagging: bool = False) -> LabelMap | None:
        """The labels beside the weights in use (of words if `tagging`, else of texts); None for a new training."""
        flag, source = self.flag_of_weights, self.source
        if flag is None:
            return None
        if flag == "--output_dir":
            folder, label_map = self.options.output_dir, task_file.load_label_map(self.options.output_dir)
        else:
            folder, label_map = source.folder, task_file.label_map_of(source)
            own_file = files.exists(os.path.join(folder, LABEL_MAP_FILE))
            nameless = label_map and label_map.labels == numbered(label_map.num_labels) and not label_map.multi_label
            if nameless and not tagging and (label_map.task == UNKNOWN_TASK or not own_file):
                return None  # Hugging Face's default names; the names of the task are better
        if label_map:
            label_map.check_unique(folder)
        if label_map and (label_map.task == TAGGING_TASK) != tagging:
            raise UserError(
                f"{os.path.join(folder, LABEL_MAP_FILE)}: the model there was trained for the task"
                f" {label_map.task}, which this script does not do; give another {flag}"
            )
        return label_map

    def initial_labels(self, tagging: bool = False) -> tuple[str, ...]:
        """The labels of the weights with which a training begins (of words if `tagging`); empty if they are not known.

        Labels that are collected from the examples have the order of these labels, because the weights have a head for
        them.
        """
        if self.flag_of_weights or self.source is None or self.options.other_task:
            return ()
        with contextlib.suppress(UserError):  # a training does not need them
            found = task_file.label_map_of(self.source)
            return found.labels if found and (found.labeled == "tokens") == tagging else ()
        return ()

    # A subclass defines:

    @property
    def predicts(self) -> bool:
        return self.options.do_predict

    @property
    @abc.abstractmethod
    def purpose(self) -> dict[str, str | bool]:
        """The purpose of the model: the name of the task, and facts about its data; see model_folder.check_task."""

    @abc.abstractmethod
    def read(self, part: str) -> Sequence:
        """The examples of a part. Raises UserError if its file is missing or malformed."""

    def find_labels(self) -> LabelMap | None:
        """The labels, after all parts have been read. Raises UserError if they are not known."""
        return None

    def epoch_size(self) -> int:
        return len(self.examples["train"])

    def kind(self, part: str) -> records.RecordKind:
        """The kind of the records of a part; defaults to the kind that the model is trained on."""
        return self.model.record_kind

    @abc.abstractmethod
    def features(self, part: str) -> Iterable[Mapping[str, Sequence]]:
        """The records of a part: its examples as the model reads them. Called once for each part."""

    @abc.abstractmethod
    def answers(self, part: str, batches: Batches) -> Any:
        """Converts model outputs to answers; a batch contains the record's features and `model.outputs`."""

    @abc.abstractmethod
    def score(self, answers: Any) -> Scores:
        """Scores the answers of the part "eval" against the labels."""

    @abc.abstractmethod
    def write(self, answers: Any) -> Sequence[str]:
        """Writes the answers of `predicted_part` into output_dir; returns the names of the files."""

    def draw(self, metrics: Mapping[str, Any]) -> Sequence[str]:
        """Draws the scores into output_dir; returns the names of the files."""
        return ()

    def export_settings(self) -> dict[str, Any]:
        return {"labels": self.label_map}

    # The steps that all tasks share; see training.driver

    @property
    def computes(self) -> bool:
        return super().computes or self.predicts

    @property
    def is_padded(self) -> bool:
        return self.options.pads_batches

    def prepare(self) -> None:
        options, source = self.options, self.source
        if source is not None and (flag := self.flag_of_weights):
            model_folder.check_task(source, self.purpose, flag, options.other_task)
        self.tokenizer = text_rules.load_tokenizer(
            options.vocab_file, options.do_lower_case, self.config.vocab_size, source, options.init_checkpoint
        )
        # All parts are read first, so that an error in the last part does not appear after hours of training.
        evaluates = options.do_eval or options.evaluates_during_training
        parts = {"train": options.do_train, "eval": evaluates} | ({self.predicted_part: True} if self.predicts else {})
        self.examples = {part: self.read(part) for part, is_needed in parts.items() if is_needed}
        self.label_map = self.find_labels()
        if source is not None and self.flag_of_weights is None and options.other_task:
            self.source = source.without_labels(self.label_map and self.label_map.num_labels)
        if options.do_train:
            self._num_train_steps()

    def _num_train_steps(self) -> int:
        """The number of training steps, computed as in the reference."""
        options, num_examples = self.options, self.epoch_size()
        steps = num_examples / options.train_batch_size * options.num_train_epochs
        if not 1 <= steps < 2**31:
            amount, cure = ("not a single training step", "more") if steps < 1 else ("too many steps", "fewer")
            raise UserError(
                f"{num_examples} examples, batches of {options.train_batch_size} and {options.num_train_epochs} epochs"
                f" make {amount}; give {cure} --num_train_epochs or another --train_batch_size"
            )
        return int(steps)

    def schedule(self) -> dict[str, Any]:
        steps = self._num_train_steps()
        return {"num_train_steps": steps, "num_warmup_steps": int(steps * self.options.warmup_proportion)}

    @functools.cached_property
    def _records(self) -> PartRecords:
        return PartRecords(self)

    def training_data(self, trainer: Trainer, team: Team) -> TrainingData:
        options, steps = self.options, self._num_train_steps()
        given = (self.epoch_size(), options.train_batch_size, steps)
        logging.info("Training on %d examples in batches of %d: %d steps", *given)
        if options.evaluates_during_training:
            self._records.evaluations = steps // options.eval_steps + 1
        if team.is_chief:
            self._records.write("train")
        team.wait()  # until the chief has written the records
        index = record_index.read_index([self._records.path("train")])
        program = trainer.step.program
        how = {"shuffle_seed": options.random_seed, "repeat": True, "drop_remainder": True}
        how |= {"index": index, "first": trainer.examples, "share": trainer.share}
        batches = self._records.read("train", options.train_batch_size, program, **how)
        if program.packs:
            batches = batching.with_packed_rows(batches, options.gradient_accumulation_steps)
        return TrainingData(batches, index, lambda: self._records.find_fault("train"))

    def measure(self, step: int) -> tuple[str, float]:
        scores = self.score(self._records.answers("eval"))
        return scores.main, scores.metrics[scores.main]

    def content(self) -> dict[str, Any]:
        return task_file.content(self.purpose, settings.kept(self.options), self.config, self.label_map)

    def outcome(self, global_step: int) -> Outcome:
        answers = functools.cache(self._records.answers)  # SQuAD scores and writes the same answers
        results, written, figures = None, [], None
        if self.options.do_eval:
            scores = self.score(answers("eval"))
            results, written = self._write_scores(scores, global_step)
            figures = {name: scores.metrics[name] for name in scores.figures if name in scores.metrics}
        if self.predicts:
            written += self.write(answers(self.predicted_part))
        return Outcome(results, written, figures)

    def _write_scores(self, scores: Scores, global_step: int) -> tuple[dict[str, Any], list[str]]:
        """Writes and logs the scores; returns them, and the names of the files."""
        output_dir, results, written = self.options.output_dir, {}, []
        if scores.results:
            results = {**scores.results, "global_step": global_step}
            write_eval_results(output_dir, results)
            written.append("eval_results.txt")
        files.write_json(os.path.join(output_dir, "eval_metrics.json"), scores.metrics)
        written += ["eval_metrics.json", *self.draw(scores.metrics)]
        if scores.screen:
            logging.info("%s", scores.screen)
        return {**scores.metrics, **results}, written


class PartRecords:
    """The records of a task's parts, in the files PART.tf_record (written on first use), and the model's answers."""

    def __init__(self, task: FineTuningTask):
        self._task = task
        self._options = task.options
        self.evaluations = 1  # the number of times that the part "eval" is answered
        self.write = functools.cache(self._write)
        self._sizes = {
            "max_seq_length": task.options.max_seq_length,
            "vocab_size": task.config.vocab_size,
            "type_vocab_size": task.config.type_vocab_size,
            "num_labels": task.label_map.num_labels if task.label_map else 0,
        }

    @functools.cached_property
    def _folder(self) -> str:
        """The folder for the records of evaluations: output_dir, unless another call has its records there.

        The model would answer the other call's records if both calls used the same files.
        """
        folder, opened = self._options.output_dir, self._task.opened
        is_first = opened.enter_context(output_lock.first(folder, "evaluation"))
        return folder if is_first else opened.enter_context(tempfile.TemporaryDirectory())

    def path(self, part: str) -> str:
        """The path for the records of a part."""
        return os.path.join(self._options.output_dir if part == "train" else self._folder, f"{part}.tf_record")

    def _write(self, part: str) -> int:
        rows = iter(self._task.features(part))
        if part == next(iter(self._task.examples)) and (first := next(rows, None)):
            shown = min(sum(first["input_mask"]), self._options.max_seq_length)
            tokens = self._task.tokenizer.convert_ids_to_tokens(first["input_ids"][:shown])
            known = self._task.kind(part).features
            numbers = {name: str(values[0]) for name, values in first.items() if len(values) == 1 and name in known}
            logging.info("%s", console.table("The first record:", {"tokens": " ".join(tokens), **numbers}))
            rows = itertools.chain([first], rows)
        return records.write_records(self.path(part), self._task.kind(part), self._counted(part, rows))

    def _counted(self, part: str, rows: Iterable[Mapping[str, Sequence]]) -> Iterator[Mapping[str, Sequence]]:
        """Yields the rows; warns at the end of rows without a word, and of many words that the vocabulary lacks."""
        unk, cls, sep = self._task.tokenizer.convert_tokens_to_ids(["[UNK]", "[CLS]", "[SEP]"])
        count = empty = unknown = words = 0
        for row in rows:
            ids, tokens = row["input_ids"], sum(row["input_mask"])
            words_of_row = tokens - ids.count(cls) - ids.count(sep)
            count += 1
            empty += tokens > 0 and words_of_row == 0  # a row without tokens only fills up a batch
            unknown += ids.count(unk)
            words += words_of_row
            yield row
        if empty:
            logging.warning("The %s data: %d of %d rows have no word; write or remove them", part, empty, count)
        text_rules.check_unknown(f"The {part} data", unknown, words)

    def read(self, part: str, batch_size: int, program: Program, **how) -> tf.data.Dataset:
        """The batches of a part for a program; `how`: arguments of record_order.read_records."""
        how |= {"pad_to_max_length": program.is_padded, "width_multiple": program.width_multiple}
        how["transform"] = self._task.transform
        return record_order.read_records([self.path(part)], self._task.kind(part), self._sizes, batch_size, **how)

    def answers(self, part: str) -> Any:
        """The answers of the model, with its current weights, to a part."""
        task, options, evaluating = self._task, self._options, part == "eval"
        count = self.write(part)
        batch_size = (evaluating and getattr(options, "eval_batch_size", 0)) or options.predict_batch_size
        num_batches = math.ceil(count / batch_size) * (self.evaluations if evaluating else 1)
        program = task.program(num_batches)
        # XLA would compile for each number of rows of the batches of like length.
        are_divided = not (program.is_padded or program.is_compiled)
        data = self.read(part, batch_size, program, like_lengths=are_divided)
        batches = task.runner.run(data, batch_size, program, explain=lambda: self.find_fault(part))
        what = "Evaluating" if evaluating else "Predicting"
        batches = progress.track(batches, what, count, "records", size=lambda batch: len(batch["input_ids"]))
        if are_divided:
            batches = batching.put_back(batches, batch_size, MASKED_SCORE)
        return task.answers(part, batches)

    def find_fault(self, part: str) -> UserError | None:
        return records.find_fault([self.path(part)], self._task.kind(part), self._sizes)

"""Fine-tuning for all tasks: read, train with optional evaluations, evaluate, predict, export.

A task is an object with a few methods (`Task`), as in ELECTRA (finetune/task.py there).
"""

from __future__ import annotations

import abc
import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from bert_tf2.config import BertConfig
from bert_tf2.data import records
from bert_tf2.finetuning.options import FineTuneOptions
from bert_tf2.finetuning.tuner import FineTuner, flag_of_weights
from bert_tf2.support import console, files
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.training import workers
from bert_tf2.training.best import best_folder, folder_of_weights
from bert_tf2.training.devices import is_chief
from bert_tf2.training.monitor import write_eval_results
from bert_tf2.training.options import OptimizerOptions
from bert_tf2.training.precision import PRECISIONS
from bert_tf2.weights import checkpoint, sources
from bert_tf2.weights.labels import LABEL_MAP_FILE, TAGGING_TASK, LabelMap, load_label_map

Batches = Iterator[Mapping[str, np.ndarray]]
Export = Callable[..., str]


class Scores(NamedTuple):
    """The scores of the answers of one part.

    Attributes:
      metrics: all metrics, for `eval_metrics.json`.
      main: the key in `metrics` by which --eval_steps chooses the best weights; higher is better.
      figures: the keys of the metrics in the summary at the end of a run.
      results: for `eval_results.txt`, which the reference writes for some tasks; None for the others.
      screen: a table for the log, or "".
    """

    metrics: dict[str, Any]
    main: str
    figures: Sequence[str]
    results: dict[str, float] | None = None
    screen: str = ""


class Task(abc.ABC):
    """A fine-tuning task. The driver calls `begin` first, then the other methods.

    The examples of a call are divided into parts: "train", "eval" and "predict", or a name with such a prefix
    ("eval_mismatched" is a second evaluation set). The records of a part are written to PART.tf_record.

    Attributes:
      script: the script of the task, for the suggested next command.
      export_as: the name of the task in export_saved_model.py.
      unit: what a record contains: examples, or windows over longer texts.
      eval_parts, predict_parts: the parts to evaluate on and to predict.
      options: the settings.
      config, tokenizer: those of the model; set by `begin`.
      examples: part -> examples, for the parts that the call needs.
      label_map: the meaning of the outputs; None for a task without labels.
    """

    script: str
    export_as: str
    unit = "examples"
    eval_parts: Sequence[str] = ("eval",)
    predict_parts: Sequence[str] = ("predict",)

    def __init__(self, options: FineTuneOptions):
        self.options = options
        self.config: BertConfig
        self.tokenizer: FullTokenizer
        self.examples: dict[str, Sequence] = {}
        self.label_map: LabelMap | None = None

    def begin(self, config: BertConfig, tokenizer: FullTokenizer) -> None:
        """Reads all parts, so that an error in the last one does not appear after hours of training."""
        self.config, self.tokenizer = config, tokenizer
        self.examples = {part: self.read(part) for part in self._parts()}
        self.label_map = self.find_labels()

    def _parts(self) -> dict[str, None]:
        return dict.fromkeys(
            [
                *(["train"] if self.options.do_train else []),
                *(self.eval_parts if self.options.do_eval or self.watching else []),
                *(self.predict_parts if self.predicting else []),
            ]
        )

    @property
    def watching(self) -> bool:
        """Whether to evaluate during training."""
        return self.options.do_train and self.options.eval_steps > 0

    @property
    def predicting(self) -> bool:
        """Whether to write answers."""
        return self.options.do_predict

    @property
    @abc.abstractmethod
    def purpose(self) -> dict[str, str | bool]:
        """What the model is for: the name of the task, and facts about its data; see metadata.check_task."""

    @abc.abstractmethod
    def read(self, part: str) -> Sequence:
        """The examples of a part. Raises UserError if its file is missing or malformed."""

    def find_labels(self) -> LabelMap | None:
        """The labels, after all parts have been read. Raises UserError if they are not known."""
        return None

    @abc.abstractmethod
    def make_model(self, dtype: str):
        """Creates the model, one of `heads`; `dtype` is a Keras dtype policy."""

    def size(self, part: str) -> int:
        """The number of examples in an epoch."""
        return len(self.examples[part])

    @abc.abstractmethod
    def kind(self, part: str) -> records.RecordKind:
        """The kind of its records."""

    @abc.abstractmethod
    def rows(self, part: str) -> Iterable[Mapping[str, Sequence]]:
        """The examples as the model reads them. Called once for each part."""

    @abc.abstractmethod
    def answers(self, part: str, batches: Batches) -> Any:
        """Converts model outputs to answers; a batch contains the record's features and `model.outputs`."""

    @abc.abstractmethod
    def score(self, part: str, answers: Any) -> Scores:
        """Scores the answers of a part against the right ones."""

    @abc.abstractmethod
    def write(self, part: str, answers: Any) -> Sequence[str]:
        """Writes the answers of a part into output_dir; returns the names of the files."""

    def draw(self, part: str, metrics: Mapping[str, Any]) -> Sequence[str]:
        """Draws the scores of a part into output_dir; returns the names of the files."""
        return ()

    def export_settings(self) -> dict[str, Any]:
        """Fields of export.options.ExportOptions that the task adds."""
        return {"labels": self.label_map}

    def next_switches(self) -> Iterable[str]:
        """The switches to suggest after a training, in this order: those for which there are files."""
        raise NotImplementedError


def run(task: Task, export: Export | None = None) -> dict[str, Any] | None:
    """Trains, evaluates, predicts and exports, according to the switches of the options.

    Args:
      task: the task, with its options.
      export: writes a SavedModel; `bert_tf2.export.run.export_model`. Needed with do_export. (Tasks do
        not import it, because an export may contain any task.)

    Returns:
      The results of the evaluation, as in `eval_metrics.json` and `eval_results.txt`. None without an evaluation.

    Raises:
      UserError: files are missing, malformed or inconsistent.
      ValueError: do_export without `export`.
    """
    if task.options.do_export and export is None:
        raise ValueError("do_export needs the function that exports: run(..., export=bert_tf2.export.run.export_model)")
    if not (task.options.do_train or is_chief(task.options)):
        logging.info(workers.NOTHING_TO_DO)
        return None
    with FineTuner(task.options, task.purpose) as tuner:
        return _Call(task, tuner).run(export)


class _Call:
    """One run of the driver. The constructor raises errors before anything is computed."""

    def __init__(self, task: Task, tuner: FineTuner):
        self._task = task
        self._tuner = tuner
        self._options = task.options
        self._written: dict[str, tuple[str, int]] = {}
        self._answered: dict[str, Any] = {}
        task.begin(tuner.config, tuner.tokenizer)
        if self._options.do_train:
            tuner.num_train_steps(task.size("train"))
        tuner.make_model(task.make_model)

    def run(self, export: Export | None) -> dict[str, Any] | None:
        task, options = self._task, self._options
        written: list[str] = []
        if options.do_train:
            self._train()
        if not self._tuner.team.is_chief:
            return None
        scores = {part: self._score(part) for part in task.eval_parts} if options.do_eval else {}
        results = self._report(scores, written) if scores else None
        if task.predicting:
            for part in task.predict_parts:
                written += task.write(part, self._answers(part))
        exported = self._export(export) if options.do_export else None
        self._tell_summary(scores, written, exported)
        return results

    @property
    def _num_labels(self) -> int:
        return self._task.label_map.num_labels if self._task.label_map else 0

    def _records(self, part: str) -> tuple[str, int]:
        """The path of the records of a part, which are written on first use, and their number."""
        if part not in self._written:
            path = self._tuner.record_file(_record_file(part))
            self._written[part] = path, records.write_records(path, self._task.kind(part), self._task.rows(part))
        return self._written[part]

    def _train(self) -> None:
        task = self._task
        team = self._tuner.team
        if team.is_chief:
            self._records("train")
            if task.label_map:
                self._tuner.save_labels(task.label_map)
        team.wait()  # for the records of the chief
        path = self._tuner.record_file(_record_file("train"))
        measure = self._main_measure if task.watching else None
        self._tuner.train(path, task.kind("train"), task.size("train"), self._num_labels, measure)

    def _main_measure(self) -> tuple[str, float]:
        part = self._task.eval_parts[0]
        scores = self._task.score(part, self._compute(part))
        return scores.main, scores.metrics[scores.main]

    def _compute(self, part: str) -> Any:
        (path, count), evaluating = self._records(part), part in self._task.eval_parts
        batch_size = (evaluating and getattr(self._options, "eval_batch_size", 0)) or self._options.predict_batch_size
        batches = self._tuner.run(
            path, self._task.kind(part), batch_size, self._num_labels,
            what="Evaluating" if evaluating else "Predicting", total=count, unit=self._task.unit,
        )  # fmt: skip
        return self._task.answers(part, batches)

    def _answers(self, part: str) -> Any:
        """The answers of the final weights."""
        if part not in self._answered:
            self._answered[part] = self._compute(part)
        return self._answered[part]

    def _score(self, part: str) -> Scores:
        return self._task.score(part, self._answers(part))

    def _report(self, scores: Mapping[str, Scores], written: list[str]) -> dict[str, Any]:
        """Writes and logs the results of an evaluation; those of a further set under the second part of its name."""
        metrics: dict[str, Any] = {}
        results: dict[str, float] = {}
        for part, found in scores.items():
            further = part.partition("_")[2]
            metrics |= {further: found.metrics} if further else found.metrics
            prefix = f"{further}_" if further else ""
            results |= {f"{prefix}{name}": value for name, value in (found.results or {}).items()}
        if results:
            results["global_step"] = self._tuner.global_step
            write_eval_results(self._options.output_dir, results)
            written.append("eval_results.txt")
        files.write_json(self._tuner.output_file("eval_metrics.json"), metrics)
        written.append("eval_metrics.json")
        for part, found in scores.items():
            written += self._task.draw(part, found.metrics)
        for found in scores.values():
            if found.screen:
                logging.info("%s", found.screen)
        return {**metrics, **results}

    def _export(self, export: Export) -> str:
        """Exports the weights that evaluation and prediction use."""
        options = self._options
        from_folder = folder_of_weights(options.output_dir)
        return export(
            task=self._task.export_as,
            init_checkpoint=checkpoint.weights_in_use(from_folder, options.init_checkpoint).path,
            export_dir=options.export_dir or self._tuner.output_file("export"),
            do_lower_case=self._task.tokenizer.basic_tokenizer.do_lower_case,
            **{name: getattr(options, name) for name in _ALSO_OF_EXPORT},
            precision=PRECISIONS[options.precision].exported,
            **self._task.export_settings(),
        )

    def _tell_summary(self, scores: Mapping[str, Scores], written: Sequence[str], exported: str | None) -> None:
        """Logs the files, the scores, and the suggested next command: the first switch that was off."""
        options = self._options
        trained = checkpoint.latest_checkpoint(options.output_dir) if options.do_train else None
        paths = [trained] if trained else []
        if trained and options.eval_steps and files.exists(os.path.join(best_folder(options.output_dir), "checkpoint")):
            paths.append(best_folder(options.output_dir))
        paths += [os.path.join(options.output_dir, name) for name in written]
        paths += [exported] if exported else []
        first = next(iter(scores.values()), None)
        figures = {name: first.metrics[name] for name in first.figures if name in first.metrics} if first else None
        left = [switch for switch in self._task.next_switches() if not getattr(options, switch)]
        flags = console.changed(options, without=_OF_TRAINING)
        if not checkpoint.latest_checkpoint(options.output_dir):
            flags["init_checkpoint"] = options.init_checkpoint
        following = console.command(self._task.script, **{left[0]: True}, **flags) if left else None
        console.summary(paths, figures, following)


def _record_file(part: str) -> str:
    return f"{part}.tf_record"


_ALSO_OF_EXPORT = ("bert_config_file", "vocab_file", "max_seq_length")

# Settings of training, which do not affect what follows it.
_OF_TRAINING = {
    *(field.name for field in dataclasses.fields(OptimizerOptions)),
    *("do_train", "do_eval", "do_predict", "do_export", "train_file", "init_checkpoint", "num_train_epochs"),
    *("warmup_proportion", "eval_steps", "patience", "class_weights", "verbose_logging"),
}


def known_labels(options: FineTuneOptions, tagging: bool = False) -> LabelMap | None:
    """The labels in label_map.json next to the weights in use, if it exists. A new training determines its own.

    Args:
      options: the settings of the call.
      tagging: whether the weights must be for tagging words, and not for classification.

    Raises:
      UserError: the labels are for the other kind of task, or label_map.json is malformed.
    """
    flag = flag_of_weights(options)
    if flag == "--output_dir":
        folder, label_map = options.output_dir, load_label_map(options.output_dir)
    elif flag:
        source = sources.open_weights(options.init_checkpoint)
        folder, label_map = source.folder, sources.labels_of(source)
        own_file = files.exists(os.path.join(folder, LABEL_MAP_FILE))
        if not tagging and not own_file and _are_numbered(label_map):
            label_map = None  # the task has better names for its outputs
    else:
        return None
    if label_map and (label_map.task == TAGGING_TASK) != tagging:
        raise UserError(
            f"{os.path.join(folder, LABEL_MAP_FILE)}: the model there was trained for the task"
            f" {label_map.task}, which this script does not do; give another {flag}"
        )
    return label_map


def _are_numbered(label_map: LabelMap | None) -> bool:
    """Whether the labels are LABEL_0 and so on, Hugging Face's default names."""
    single = label_map and not label_map.multi_label
    return bool(single and label_map.labels) and all(re.fullmatch(r"LABEL_\d+", name) for name in label_map.labels)

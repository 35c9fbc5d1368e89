"""What a fine-tuning task is, an object with few methods as in ELECTRA, and the way through it, the same for all tasks.

prepare:  configuration, vocabulary, weights, examples -> everything that can be wrong shows here
build:    devices -> the model with its weights
train:    records -> Trainer, with the best weights if there are evaluations
then:     records -> the model's answers -> scores, predictions; weights -> SavedModel
"""

from __future__ import annotations

import abc
import contextlib
import functools
import itertools
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf2.config import BertConfig
from bert_tf2.data import record_index, record_order, records
from bert_tf2.fast.encoder import accelerate
from bert_tf2.finetuning.options import FineTuneOptions
from bert_tf2.layers import MASKED_SCORE
from bert_tf2.support import console, files, output_lock, progress, settings
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.training import workers
from bert_tf2.training.devices import build_model, compiles_step, create_strategy, join, plan_for
from bert_tf2.training.forward import Runner
from bert_tf2.training.loop import Trainer, start_from
from bert_tf2.training.monitor import write_eval_results
from bert_tf2.training.options import PRECISIONS, TrainOptions
from bert_tf2.training.saver import Best, best_folder, folder_of_weights
from bert_tf2.training.workers import Team, is_chief
from bert_tf2.weights import checkpoint, model_folder, sources, task_file, text_rules
from bert_tf2.weights.base import Weights
from bert_tf2.weights.task_file import LABEL_MAP_FILE, TAGGING_TASK, UNKNOWN_TASK, LabelMap, numbered, save_label_map

Batches = Iterator[Mapping[str, np.ndarray]]
_WIDTHS = 4  # of training batches that are not padded to max_seq_length, if XLA compiles a program for each width


class Scores(NamedTuple):
    """The scores of the answers."""

    metrics: dict[str, Any]  # all metrics, for `eval_metrics.json`
    main: str  # the key in `metrics` by which --eval_steps chooses the best weights; higher is better
    figures: Sequence[str]  # the keys of the metrics in the summary at the end of a run
    results: dict[str, float] | None = None  # for `eval_results.txt`, which the reference writes for some tasks
    screen: str = ""  # a table for the log, or ""


class Task(abc.ABC):
    """A fine-tuning task: its data in the parts "train", "eval" and "predict", the model, its answers and their scores.

    `run` sets the attributes before it calls the methods that need them: `examples` those of the parts that the call
    needs, `label_map` None for a task without labels.
    """

    export_as: str  # the name of the task in export_saved_model.py
    predicted_part = "predict"  # the part whose answers are written
    config: BertConfig
    tokenizer: FullTokenizer

    def __init__(self, options: FineTuneOptions):
        self.options = options
        self.model = None
        self.examples: dict[str, Sequence] = {}
        self.label_map: LabelMap | None = None
        opens = self.flag_of_weights == "--init_checkpoint"
        self.source: Weights | None = sources.open_weights(options.init_checkpoint) if opens else None

    @property
    def flag_of_weights(self) -> str | None:
        """The flag that names the fine-tuned weights that a call uses; None if it trains new ones."""
        if checkpoint.has_checkpoints(self.options.output_dir):  # which `_prepare` may have to recover
            return "--output_dir"
        return "--init_checkpoint" if self.options.init_checkpoint and not self.options.do_train else None

    def known_labels(self, tagging: bool = False) -> LabelMap | None:
        """The labels next to the weights in use, of words if `tagging`, else of texts; None for a new training."""
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
                return None  # Hugging Face's default names; the task has better ones
        if label_map:
            label_map.check_unique(folder)
        if label_map and (label_map.task == TAGGING_TASK) != tagging:
            raise UserError(
                f"{os.path.join(folder, LABEL_MAP_FILE)}: the model there was trained for the task"
                f" {label_map.task}, which this script does not do; give another {flag}"
            )
        return label_map

    @property
    def predicts(self) -> bool:
        return self.options.do_predict

    @property
    @abc.abstractmethod
    def purpose(self) -> dict[str, str | bool]:
        """What the model is for: the name of the task, and facts about its data; see sources.check_task."""

    @abc.abstractmethod
    def read(self, part: str) -> Sequence:
        """The examples of a part. Raises UserError if its file is missing or malformed."""

    def find_labels(self) -> LabelMap | None:
        """The labels, after all parts have been read. Raises UserError if they are not known."""
        return None

    @abc.abstractmethod
    def make_model(self, dtype: str):
        """Creates the model, one of `heads`; `dtype` is a Keras dtype policy."""

    def epoch_size(self) -> int:
        return len(self.examples["train"])

    def kind(self, part: str) -> records.RecordKind:
        """The kind of the records of a part; defaults to what the model is trained on."""
        return self.model.record_kind

    @abc.abstractmethod
    def features(self, part: str) -> Iterable[Mapping[str, Sequence]]:
        """The records of a part: its examples as the model reads them. Called once for each part."""

    @abc.abstractmethod
    def answers(self, part: str, batches: Batches) -> Any:
        """Converts model outputs to answers; a batch contains the record's features and `model.outputs`."""

    @abc.abstractmethod
    def score(self, answers: Any) -> Scores:
        """Scores the answers of the part "eval" against the right ones."""

    @abc.abstractmethod
    def write(self, answers: Any) -> Sequence[str]:
        """Writes the answers of `predicted_part` into output_dir; returns the names of the files."""

    def draw(self, metrics: Mapping[str, Any]) -> Sequence[str]:
        """Draws the scores into output_dir; returns the names of the files."""
        return ()

    def export_settings(self) -> dict[str, Any]:
        """Fields of exporting.options.ExportOptions that the task adds."""
        return {"labels": self.label_map}


Export = Callable[..., str]


def run(task: Task, export: Export | None = None) -> dict[str, Any] | None:
    """Trains, evaluates, predicts and exports, according to the switches of the options.

    `export`: `bert_tf2.exporting.run.export_model`, needed with do_export. (Tasks do not import it, because an export
    may contain any task.)

    Returns the results of an evaluation, as in `eval_metrics.json` and `eval_results.txt`; None without.
    """
    options = task.options
    if not (options.do_train or is_chief(options)):
        logging.info(workers.NOTHING_TO_DO)
        return None
    with contextlib.ExitStack() as opened:
        team = _prepare(task)
        strategy = _build(task, team, opened)
        parts = PartRecords(task, strategy, opened)
        if options.do_train:
            global_step = _train(task, parts, strategy, team)
        else:
            folder = folder_of_weights(options.output_dir)
            global_step = start_from(task.model, folder, options.init_checkpoint, task.source)
            task.source = None
        if not team.is_chief:
            return None
        answers = functools.cache(parts.answers)  # those to questions are scored and written
        scores = task.score(answers("eval")) if options.do_eval else None
        results, written = _write_scores(task, scores, global_step) if scores else (None, [])
        if task.predicts:
            written += task.write(answers(task.predicted_part))
        exported = _export(task, export) if options.do_export else None
        _tell_summary(task, scores, written, exported)
        return results


def _prepare(task: Task) -> Team:
    """Connects the workers and reads all that the task needs, so that errors show before anything is computed."""
    options = task.options
    task.config = options.config
    task.config.check_sequence_length(options.max_seq_length)
    team = join(options)
    if options.do_train and team.is_chief:
        checkpoint.recover(options.output_dir)
    team.wait()  # the others read what the chief has mended
    if task.source is None:
        task.source = checkpoint.weights_in_use(options.output_dir, options.init_checkpoint, options.do_train)
    source = task.source
    if source is not None and (flag := task.flag_of_weights):
        sources.check_task(source, task.purpose, flag, options.other_task)
    task.tokenizer = text_rules.load_tokenizer(
        options.vocab_file, options.do_lower_case, task.config.vocab_size, source, options.init_checkpoint
    )
    if options.do_train:
        model_folder.check_output_dir(options.output_dir, task.config, options.vocab_file)
    # All parts, so that an error in the last one does not appear after hours of training.
    evaluates = options.do_eval or options.evaluates_during_training
    parts = {"train": options.do_train, "eval": evaluates} | ({task.predicted_part: True} if task.predicts else {})
    task.examples = {part: task.read(part) for part, is_needed in parts.items() if is_needed}
    task.label_map = task.find_labels()
    if options.do_train:
        _num_train_steps(options, task.epoch_size())
    return team


def _build(task: Task, team: Team, opened: contextlib.ExitStack) -> tf.distribute.Strategy:
    """Makes the model on the devices, which the strategy names."""
    options = task.options
    files.make_directory(options.output_dir)
    if options.do_train and team.is_chief:
        opened.enter_context(output_lock.locked(options.output_dir))
    strategy = create_strategy(options, team=team)
    policy = PRECISIONS[options.precision].policy
    task.model = build_model(strategy, lambda: task.make_model(policy), options.random_seed)
    accelerate(task.model, plan_for(options, strategy, task.config.hidden_size, options.pads_batches))
    return strategy


class PartRecords:
    """The records of a task's parts, in the files PART.tf_record: written on first use, and answered by the model."""

    def __init__(self, task: Task, strategy: tf.distribute.Strategy, opened: contextlib.ExitStack):
        self._task = task
        self._options = task.options
        self._opened = opened
        self._strategy = strategy
        self._runner = Runner(task.model, strategy)
        self.evaluations = 1  # the number of times that the part "eval" is answered
        self.path, self.write = functools.cache(self._path), functools.cache(self._write)
        self._sizes = {
            "max_seq_length": task.options.max_seq_length,
            "vocab_size": task.config.vocab_size,
            "type_vocab_size": task.config.type_vocab_size,
            "num_labels": task.label_map.num_labels if task.label_map else 0,
        }

    def _path(self, part: str) -> str:
        """The path for the records of a part: in output_dir, unless another training uses those that are there."""
        folder = self._options.output_dir
        if not self._options.do_train and output_lock.is_training_elsewhere(folder):
            folder = self._opened.enter_context(tempfile.TemporaryDirectory())
        return os.path.join(folder, f"{part}.tf_record")

    def _write(self, part: str) -> int:
        rows = iter(self._task.features(part))
        if part == next(iter(self._task.examples)) and (first := next(rows, None)):
            tokens = self._task.tokenizer.convert_ids_to_tokens(first["input_ids"][: sum(first["input_mask"])])
            numbers = {name: str(values[0]) for name, values in first.items() if len(values) == 1}
            logging.info("%s", console.table("The first record:", {"tokens": " ".join(tokens), **numbers}))
            rows = itertools.chain([first], rows)
        return records.write_records(self.path(part), self._task.kind(part), rows)

    def read(self, part: str, batch_size: int, **how) -> tf.data.Dataset:
        """The batches of a part; `how`: arguments of record_order.read_records."""
        how = {"pad_to_max_length": self._options.pads_batches, **how}
        return record_order.read_records([self.path(part)], self._task.kind(part), self._sizes, batch_size, **how)

    def answers(self, part: str) -> Any:
        """The answers of the model, with its current weights, to a part."""
        task, options, evaluating = self._task, self._options, part == "eval"
        count = self.write(part)
        batch_size = (evaluating and getattr(options, "eval_batch_size", 0)) or options.predict_batch_size
        # Batches of like length have many sizes, for each of which XLA would compile the model.
        fixed = options.pads_batches and task.model.encoder.computes_padding
        num_batches = math.ceil(count / batch_size) * (self.evaluations if evaluating else 1)
        compiles = fixed and compiles_step(self._strategy, options.xla, num_batches)
        data = self.read(part, batch_size, like_lengths=not options.pads_batches)
        batches = self._runner.run(
            data, explain=lambda: self.find_fault(part), compiled_size=batch_size if compiles else None
        )
        what = "Evaluating" if evaluating else "Predicting"
        batches = progress.track(batches, what, count, "records", size=lambda batch: len(batch["input_ids"]))
        if not options.pads_batches:
            batches = record_order.put_back(batches, batch_size, MASKED_SCORE)
        return task.answers(part, batches)

    def find_fault(self, part: str) -> UserError | None:
        return records.find_fault([self.path(part)], self._task.kind(part), self._sizes)


def _num_train_steps(options: FineTuneOptions, num_examples: int) -> int:
    """The number of training steps, computed as in the reference."""
    steps = num_examples / options.train_batch_size * options.num_train_epochs
    if not 1 <= steps < 2**31:
        raise UserError(
            f"{num_examples} examples, batches of {options.train_batch_size} and {options.num_train_epochs} epochs make"
            f" {'not a single training step' if steps < 1 else 'too many steps'}; change --num_train_epochs"
        )
    return int(steps)


def _train(task: Task, parts: PartRecords, strategy: tf.distribute.Strategy, team: Team) -> int:
    """Trains the model; returns the global step of its weights, which are the best ones if there were evaluations."""
    options, size = task.options, task.epoch_size()
    steps = _num_train_steps(options, size)
    padding = task.model.encoder.computes_padding
    widths = 1 if options.pads_batches else _WIDTHS
    xla = "true" if compiles_step(strategy, options.xla, steps, padding, widths) else "false"
    train_options = TrainOptions(
        **{**settings.shared(options, TrainOptions), "xla": xla},
        num_train_steps=steps,
        num_warmup_steps=int(steps * options.warmup_proportion),
        deciding=settings.deciding(options),
    )
    trainer = Trainer(task.model, strategy, train_options, team)  # tells a wrong batch before records are written
    begun = checkpoint.latest_checkpoint(options.output_dir) is not None
    trainer.start(options.init_checkpoint, task.source)
    task.source = None  # Keras' and PyTorch's files are in memory
    logging.info("Training on %d examples in batches of %d: %d steps", size, options.train_batch_size, steps)
    if team.is_chief:
        parts.write("train")
    team.wait()  # for the records of the chief
    best = None
    if options.evaluates_during_training:
        best = Best(options.output_dir, begun, options.patience)
        parts.evaluations = steps // options.eval_steps + 1
    if team.is_chief:
        made_with = sources.decisive(task.config) | ({"labels": task.label_map.labels} if task.label_map else {})
        content = task_file.content(task.purpose, settings.kept(options), made_with)
        for folder in [options.output_dir, *([best.folder] if best else [])]:
            model_folder.write_companions(folder, task.config, task.tokenizer, options.vocab_file, content)
            if task.label_map:
                save_label_map(folder, task.label_map)
    if best is None or not best.ends_training():
        index = record_index.read_index([parts.path("train")])
        # XLA compiles the step for each width: few of them, and multiples of 8, which GPUs compute faster.
        multiple = 8 * math.ceil(options.max_seq_length / (8 * _WIDTHS)) if trainer.step.is_compiled else 1
        how = {"shuffle_seed": options.random_seed, "repeat": True, "drop_remainder": True, "width_multiple": multiple}
        how |= {"index": index, "first": trainer.examples, "share": trainer.share}
        how["pad_to_max_length"] = options.pads_batches or options.pack_rows  # rows that share a width
        batches = parts.read("train", options.train_batch_size, **how)
        if options.pack_rows:
            batches = record_order.with_packed_rows(batches, options.gradient_accumulation_steps)
        trainer.train(
            batches,
            records=index.description,
            explain=lambda: record_index.find_change(index) or parts.find_fault("train"),
            evaluate=(lambda step: best.update(task.model, step, *_main_measure(task, parts))) if best else None,
            eval_steps=options.eval_steps,
            evaluated=best.last_step if best else 0,
            where=functools.partial(record_order.where, index, options.random_seed),
        )
    if best and team.is_chief and best.found:
        return start_from(task.model, best.folder, None)
    return trainer.global_step


def _main_measure(task: Task, parts: PartRecords) -> tuple[str, float]:
    scores = task.score(parts.answers("eval"))
    return scores.main, scores.metrics[scores.main]


def _write_scores(task: Task, scores: Scores, global_step: int) -> tuple[dict[str, Any], list[str]]:
    """Writes and logs the scores; returns them, and the names of the files."""
    output_dir, results, written = task.options.output_dir, {}, []
    if scores.results:
        results = {**scores.results, "global_step": global_step}
        write_eval_results(output_dir, results)
        written.append("eval_results.txt")
    files.write_json(os.path.join(output_dir, "eval_metrics.json"), scores.metrics)
    written += ["eval_metrics.json", *task.draw(scores.metrics)]
    if scores.screen:
        logging.info("%s", scores.screen)
    return {**scores.metrics, **results}, written


def _export(task: Task, export: Export) -> str:
    options = task.options
    weights = checkpoint.weights_in_use(folder_of_weights(options.output_dir), options.init_checkpoint)
    return export(
        task=task.export_as,
        init_checkpoint=weights.path,
        export_dir=options.export_dir or os.path.join(options.output_dir, "export"),
        do_lower_case=task.tokenizer.basic_tokenizer.do_lower_case,
        **{name: getattr(options, name) for name in ("bert_config_file", "vocab_file", "max_seq_length")},
        precision=PRECISIONS[options.precision].exported,
        **task.export_settings(),
    )


def _tell_summary(task: Task, scores: Scores | None, written: Sequence[str], exported: str | None) -> None:
    options, best = task.options, best_folder(task.options.output_dir)
    latest = checkpoint.latest_checkpoint(options.output_dir)
    paths = [latest] if latest and options.do_train else []
    if paths and options.eval_steps and files.exists(os.path.join(best, "checkpoint")):
        paths.append(best)
    paths += [os.path.join(options.output_dir, name) for name in written]
    paths += [exported] if exported else []
    figures = {name: scores.metrics[name] for name in scores.figures if name in scores.metrics} if scores else None
    console.summary(paths, figures)

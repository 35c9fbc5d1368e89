"""The driver of training scripts, the same for pretraining and every fine-tuning task, and the interface of a task.

A task is an object with few methods, as in ELECTRA. `run` does:

prepare:  configuration, weights, vocabulary, data -> errors of a user's files show here
build:    devices -> the model
train:    records -> Trainer, with the best weights if there are evaluations
then:     records -> the model's answers -> results, predictions; weights -> SavedModel
"""

from __future__ import annotations

import abc
import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from absl import logging

from bert_tf2.config import BertConfig
from bert_tf2.data import record_index, record_order
from bert_tf2.fast.encoder import accelerate, plan_of
from bert_tf2.support import console, files, output_lock, settings
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.training import layerwise, workers
from bert_tf2.training.devices import build_model, create_strategy, join, plan_for
from bert_tf2.training.forward import Runner
from bert_tf2.training.loop import Trainer, start_from
from bert_tf2.training.options import PRECISIONS, LoopOptions, Program, TrainingOptions
from bert_tf2.training.programs import program_for
from bert_tf2.training.saver import Best, best_folder, folder_of_weights
from bert_tf2.training.workers import Team, is_chief
from bert_tf2.weights import bundle, checkpoint, model_folder, task_file
from bert_tf2.weights.base import Weights
from bert_tf2.weights.task_file import LabelMap

Export = Callable[..., str]
"""`bert_tf2.exporting.run.export_model`. Tasks do not import it, because an export may contain any task."""


class TrainingData(NamedTuple):
    """The data that training reads."""

    batches: tf.data.Dataset  # endless, from the first example that was not read yet
    index: record_index.RecordIndex  # the records of which the batches are made
    find_fault: Callable[[], UserError | None]  # reads all records to find the invalid one, after reading failed


class Outcome(NamedTuple):
    """The outcome of a run, besides the weights."""

    results: dict[str, Any] | None = None  # of an evaluation
    written: Sequence[str] = ()  # the files in output_dir
    figures: Mapping[str, Any] | None = None  # the measures that the summary shows


class Task(abc.ABC):
    """A task: its data, its model, and the meaning of the model's outputs.

    `run` sets the attributes before it calls the methods that need them: `config`, `source` and `opened` before
    `prepare`, which sets `tokenizer` and perhaps `label_map`; `strategy`, `model` and `runner` after `prepare`.
    """

    export_as: str  # the name of the task in export_saved_model.py
    uses_best_weights = False  # whether evaluations, predictions and exports use output_dir/best, if it is up to date
    cuts_batches = False  # whether batches are cut to their longest row, unless `is_padded`
    transform: Callable | None = None  # of the batches of records, to other widths; see record_order.read_records
    options: TrainingOptions  # which also has do_eval, eval_steps, max_seq_length and vocab_file
    config: BertConfig
    strategy: tf.distribute.Strategy
    runner: Runner  # computes the model's answers
    opened: contextlib.ExitStack  # is closed when the run ends

    def __init__(self, options: TrainingOptions):
        self.options = options
        self.source: Weights | None = None  # the weights in use, until the model has them
        self.tokenizer: FullTokenizer | None = None
        self.label_map: LabelMap | None = None
        self.model = None

    @property
    def computes(self) -> bool:
        """Whether the call needs the model: it does more than export weights."""
        return self.options.do_train or self.options.do_eval

    @property
    def is_padded(self) -> bool:
        """Whether the model computes padding regardless of the options."""
        return False

    def program(self, num_steps: int, trains: bool = False) -> Program:
        """How the batches of a training, or else of an evaluation with so many batches, are computed."""
        options, is_fixed = self.options, plan_of(self.model).computes_padding and self.transform is None
        how = {"is_fixed": is_fixed, "is_padded": self.is_padded or not self.cuts_batches, "trains": trains}
        return program_for(options, self.strategy, num_steps, **how, longest=options.max_seq_length)

    @abc.abstractmethod
    def prepare(self) -> None:
        """Reads the vocabulary and all data; sets `tokenizer`. Raises UserError for files that do not fit."""

    @abc.abstractmethod
    def make_model(self, dtype: str):
        """Creates the model, one of `heads`; `dtype` is a Keras dtype policy."""

    @abc.abstractmethod
    def schedule(self) -> dict[str, Any]:
        """The fields of LoopOptions that the options lack: num_train_steps, num_warmup_steps."""

    @abc.abstractmethod
    def training_data(self, trainer: Trainer, team: Team) -> TrainingData:
        """The data that training reads, from the example `trainer.examples` on; every worker calls this."""

    @abc.abstractmethod
    def measure(self, step: int) -> tuple[str, float]:
        """The name of a measure, of which higher values are better, and its value with the weights of this step."""

    def content(self) -> dict[str, Any]:
        """The content of task.json beside the weights."""
        return task_file.content({}, {}, self.config, None)

    @abc.abstractmethod
    def outcome(self, global_step: int) -> Outcome:
        """Evaluates and predicts with the weights of this step, as the options request; writes the results."""

    def export_settings(self) -> dict[str, Any]:
        """The fields of exporting.options.ExportOptions that the task adds."""
        return {}


def run(task: Task, export: Export | None = None) -> dict[str, Any] | None:
    """Trains, evaluates, predicts and exports, according to the switches of the options.

    `export` is needed with do_export. Returns the results of an evaluation, None if there is no evaluation.
    """
    options = task.options
    if not (options.do_train or is_chief(options)):
        logging.info(workers.NOTHING_TO_DO)
        return None
    outcome, exported = Outcome(), []
    with contextlib.ExitStack() as opened:
        task.opened = opened
        team = _prepare(task)
        if task.computes:
            _build(task, team)
            step = _train(task, team) if options.do_train else _use_weights(task)
            if team.is_chief:
                outcome = task.outcome(step)
        if not team.is_chief:
            return None
        if options.do_export:
            exported = [_export(task, export)]
    _log_summary(options, outcome, exported)
    return outcome.results


def _prepare(task: Task) -> Team:
    """Connects the workers and reads all files of the task, so that errors show before anything is computed."""
    options = task.options
    task.config = options.config
    task.config.check_sequence_length(options.max_seq_length)
    team = join(options)
    if options.do_train and team.is_chief:
        bundle.recover(options.output_dir)
    team.wait()  # until the chief has repaired the folder, which the other workers read next
    if task.source is None:
        task.source = checkpoint.weights_in_use(options.output_dir, options.init_checkpoint, options.do_train)
    blocks, begun = layerwise.blocks_in(options.init_from_layers), bundle.latest_checkpoint(options.output_dir)
    if blocks and not begun:
        task.source = model_folder.with_blocks(task.source, blocks, "--init_from_layers")
    if task.source is not None:
        model_folder.check_config(task.source, task.config, continues=bool(begun))
    if options.do_train:
        model_folder.check_output_dir(options.output_dir, task.config, options.vocab_file)
    task.prepare()
    return team


def _build(task: Task, team: Team) -> None:
    """Makes the model on the devices; locks output_dir for training."""
    options = task.options
    task.opened.enter_context(files.made_directory(options.output_dir))
    if options.do_train and team.is_chief:
        task.opened.enter_context(output_lock.locked(options.output_dir))
    task.strategy = create_strategy(options, team=team)
    policy = PRECISIONS[options.precision].policy
    task.model = build_model(task.strategy, lambda: task.make_model(policy), options.random_seed)
    accelerate(task.model, plan_for(options, task.strategy, task.config.hidden_size, task.is_padded))
    task.runner = Runner(task.model, task.strategy)


def _folder_of_weights(task: Task) -> str:
    return folder_of_weights(task.options.output_dir) if task.uses_best_weights else task.options.output_dir


def _use_weights(task: Task) -> int:
    """Loads trained weights; returns their global step."""
    step = start_from(task.model, _folder_of_weights(task), task.options.init_checkpoint, task.source)
    task.source = None  # frees memory, because Keras' and PyTorch's files are in memory
    return step


def _train(task: Task, team: Team) -> int:
    """Trains the model and returns the global step of its weights: the best weights if the task uses these.

    Raises UserError for a wrong batch size before records are read or written.
    """
    options, model = task.options, task.model
    if not options.learning_rate:
        logging.warning("--learning_rate=0: the training changes no weight; give a rate above 0")
    of_run = {**settings.shared(options, LoopOptions), **task.schedule(), "deciding": settings.deciding(options)}
    program = task.program(of_run["num_train_steps"], trains=True)
    trainer = Trainer(model, task.strategy, LoopOptions(**of_run, program=program), team)
    begun = bundle.latest_checkpoint(options.output_dir) is not None
    trainer.start(options.init_checkpoint, task.source)
    task.source = None
    best = Best(options.output_dir, begun, options.patience) if options.eval_steps else None
    done = trainer.is_done(options.eval_steps, best.last_step if best else 0) or (best and best.ends_training())
    if done:
        trainer.warn_of_changes()
    data = None if done else task.training_data(trainer, team)  # may fail, so output_dir is written only afterwards
    if team.is_chief:
        content = task.content() if data is not None else _content_of_finished(task)
        beside = model_folder.ModelFiles.of(task.config, task.tokenizer, task.label_map, content)
        for folder in [options.output_dir, *([best.folder] if best else [])]:
            beside.write(folder)
    if data is not None:
        index = data.index
        trainer.train(
            data.batches,
            records=index.description,
            explain=lambda: record_index.find_change(index) or data.find_fault(),
            evaluate=(lambda step: best.update(model, step, *task.measure(step))) if best else None,
            eval_steps=options.eval_steps,
            evaluated=best.last_step if best else 0,
            where=functools.partial(record_order.where, index, options.random_seed),
        )
    if task.uses_best_weights and best and best.found and team.is_chief:
        return start_from(model, best.folder, None)
    return trainer.global_step


def _content_of_finished(task: Task) -> dict[str, Any]:
    """The content of task.json after a call that trains nothing: as the training wrote it, with a warning."""
    now = task.content()
    found = task_file.read(task.options.output_dir) or now
    then, asked = (content.get(task_file.SETTINGS, {}) for content in (found, now))
    if other := [f"{name} {then[name]}" for name in then if then[name] != asked.get(name, then[name])]:
        path = os.path.join(task.options.output_dir, task_file.NAME)
        logging.warning("%s: keeps %s, because this call trains nothing", path, ", ".join(other))
    return found


def _export(task: Task, export: Export) -> str:
    options, tokenizer = task.options, task.tokenizer
    lower = tokenizer.basic_tokenizer.do_lower_case if tokenizer else options.do_lower_case
    given = {name: getattr(options, name) for name in ("bert_config_file", "vocab_file", "max_seq_length")}
    if options.init_from_layers:  # the trained model has fewer layers than this file states
        given |= model_folder.model_files(options.output_dir)
    return export(
        task=task.export_as,
        init_checkpoint=checkpoint.weights_in_use(_folder_of_weights(task), options.init_checkpoint).path,
        export_dir=options.export_dir or os.path.join(options.output_dir, "export"),
        do_lower_case=lower,
        **given,
        precision=PRECISIONS[options.precision].exported,
        **task.export_settings(),
    )


def _log_summary(options: TrainingOptions, outcome: Outcome, exported: Sequence[str]) -> None:
    latest, best = bundle.latest_checkpoint(options.output_dir), best_folder(options.output_dir)
    trained = [latest] if latest and options.do_train else []
    if trained and options.eval_steps and files.exists(os.path.join(best, "checkpoint")):
        trained.append(best)
    written = [os.path.join(options.output_dir, name) for name in outcome.written]
    console.summary([*trained, *written, *exported], outcome.figures)

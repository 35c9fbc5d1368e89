"""The way through a fine-tuning, the same for all tasks: read, train with optional evaluations, score, predict, export.

prepare:  configuration, vocabulary, weights, examples -> everything that can be wrong shows here
build:    devices -> the model with its weights
train:    records -> Trainer, with the best weights if there are evaluations
then:     records -> the model's answers -> scores, predictions; weights -> SavedModel
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf2.data import record_index, record_order, records
from bert_tf2.fast.encoder import accelerate
from bert_tf2.finetuning.options import FineTuneOptions
from bert_tf2.finetuning.task import Scores, Task, flag_of_weights
from bert_tf2.layers import MASKED_SCORE
from bert_tf2.support import console, files, output_lock, progress, settings
from bert_tf2.support.errors import UserError
from bert_tf2.training import workers
from bert_tf2.training.devices import build_model, check_batch, create_strategy, join, plan_for
from bert_tf2.training.forward import Runner
from bert_tf2.training.loop import Trainer, start_from
from bert_tf2.training.monitor import write_eval_results
from bert_tf2.training.options import MOST_STEPS, TrainOptions
from bert_tf2.training.precision import PRECISIONS
from bert_tf2.training.saver import Best, best_folder, folder_of_weights
from bert_tf2.training.workers import Team, is_chief
from bert_tf2.weights import checkpoint, sources, task_file, text_rules
from bert_tf2.weights.task_file import save_label_map

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
        strategy, global_step = _build(task, team, opened)
        parts = PartRecords(task, strategy, opened)
        if options.do_train:
            global_step = _train(task, parts, strategy, team)
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
    flag = flag_of_weights(options)
    if source is not None and flag is not None:
        sources.check_task(source, task.purpose, flag, options.other_task)
    task.tokenizer = text_rules.load_tokenizer(
        options.vocab_file, options.do_lower_case, task.config.vocab_size, source, options.init_checkpoint
    )
    if options.do_train:
        sources.check_output_dir(options.output_dir, task.config, options.vocab_file)
    task.read_all()
    if options.do_train:
        _num_train_steps(options, task.epoch_size())
    return team


def _build(task: Task, team: Team, opened: contextlib.ExitStack) -> tuple[tf.distribute.Strategy, int]:
    """Builds the model on the devices and loads its weights; returns the strategy and the weights' global step."""
    options = task.options
    files.make_directory(options.output_dir)
    if options.do_train and team.is_chief:
        opened.enter_context(output_lock.training_in(options.output_dir))
    strategy = create_strategy(options, team=team)
    if options.do_train:
        check_batch(options, strategy.num_replicas_in_sync)  # before the records of the training are written
    policy = PRECISIONS[options.precision].policy
    task.model = build_model(strategy, lambda: task.make_model(policy), options.random_seed)
    accelerate(task.model, plan_for(options, strategy, task.config.hidden_size, options.pads_batches))
    folder = options.output_dir if options.do_train else folder_of_weights(options.output_dir)
    how = {"will_train": options.do_train, "opened": task.source}
    task.source = None  # Keras' and PyTorch's files are in memory
    return strategy, start_from(task.model, folder, options.init_checkpoint, **how)


class PartRecords:
    """The records of a task's parts, in the files PART.tf_record: written on first use, and answered by the model."""

    def __init__(self, task: Task, strategy: tf.distribute.Strategy, opened: contextlib.ExitStack):
        self._task = task
        self._options = task.options
        self._opened = opened
        self._runner = Runner(task.model, strategy)
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
            self._show(first)
            rows = itertools.chain([first], rows)
        return records.write_records(self.path(part), self._task.kind(part), rows)

    def _show(self, record: Mapping[str, Sequence]) -> None:
        """Logs a record: its tokens in words, and what has one number."""
        tokens = self._task.tokenizer.convert_ids_to_tokens(record["input_ids"][: sum(record["input_mask"])])
        numbers = {name: str(values[0]) for name, values in record.items() if len(values) == 1}
        logging.info("%s", console.table("The first record:", {"tokens": " ".join(tokens), **numbers}))

    def read(self, part: str, batch_size: int, **how) -> tf.data.Dataset:
        """The batches of a part; `how`: arguments of record_order.read_records."""
        padded = self._options.pads_batches
        return record_order.read_records(
            [self.path(part)], self._task.kind(part), self._sizes, batch_size, pad_to_max_length=padded, **how
        )

    def answers(self, part: str) -> Any:
        """The answers of the model, with its current weights, to a part."""
        task, options, evaluating = self._task, self._options, part == "eval"
        count = self.write(part)
        batch_size = (evaluating and getattr(options, "eval_batch_size", 0)) or options.predict_batch_size
        data = self.read(part, batch_size, like_lengths=not options.pads_batches)
        batches = self._runner.run(data, explain=lambda: self.find_fault(part))
        what = "Evaluating" if evaluating else "Predicting"
        batches = progress.track(batches, what, count, task.unit, size=lambda batch: len(batch["input_ids"]))
        if not options.pads_batches:
            batches = record_order.put_back(batches, batch_size, MASKED_SCORE)
        return task.answers(part, batches)

    def find_fault(self, part: str) -> UserError | None:
        return records.find_fault([self.path(part)], self._task.kind(part), self._sizes)


def _num_train_steps(options: FineTuneOptions, num_examples: int) -> int:
    """The number of training steps, computed as in the reference."""
    steps = num_examples / options.train_batch_size * options.num_train_epochs
    if not 1 <= steps < MOST_STEPS:
        raise UserError(
            f"{num_examples} examples, batches of {options.train_batch_size} and {options.num_train_epochs} epochs make"
            f" {'not a single training step' if steps < 1 else 'too many steps'}; change --num_train_epochs"
        )
    return int(steps)


_XLA_WIDTHS = 4  # of training batches with --xla, which compiles the step for each of them


def _train(task: Task, parts: PartRecords, strategy: tf.distribute.Strategy, team: Team) -> int:
    """Trains the model; returns the global step of its weights, which are the best ones if there were evaluations."""
    options, size = task.options, task.epoch_size()
    if team.is_chief:
        parts.write("train")
    team.wait()  # for the records of the chief
    steps = _num_train_steps(options, size)
    logging.info("Training on %d examples in batches of %d: %d steps", size, options.train_batch_size, steps)
    train_options = TrainOptions(
        **settings.shared(options, TrainOptions),
        num_train_steps=steps,
        num_warmup_steps=int(steps * options.warmup_proportion),
        deciding=settings.deciding(options),
    )
    trainer = Trainer(task.model, strategy, train_options, team)
    begun = checkpoint.latest_checkpoint(options.output_dir) is not None
    if begun:
        trainer.start()  # loads the weights again, with the optimizer's slots
    best = Best(options.output_dir, begun, options.patience) if options.evaluates_during_training else None
    if team.is_chief:
        made_with = sources.decisive(task.config) | ({"labels": task.label_map.labels} if task.label_map else {})
        content = task_file.content(task.purpose, settings.kept(options), made_with)
        for folder in [options.output_dir, *([best.folder] if best else [])]:
            sources.write_companions(folder, task.config, task.tokenizer, options.vocab_file, content)
            if task.label_map:
                save_label_map(folder, task.label_map)
    if best is None or not best.ends_training():
        index = record_index.read_index([parts.path("train")])
        # Multiples of 8, as matrix units of GPUs like them.
        multiple = 8 * math.ceil(options.max_seq_length / (8 * _XLA_WIDTHS)) if options.xla else 1
        how = {"shuffle_seed": options.random_seed, "repeat": True, "drop_remainder": True, "width_multiple": multiple}
        trainer.train(
            parts.read("train", options.train_batch_size, index=index, first=trainer.examples, share=team.share, **how),
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

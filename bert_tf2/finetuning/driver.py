"""What the fine-tuning tasks have in common: setting up, training with an eye on a measure, running over a data set.

finetune_classifier, finetune_squad and finetune_ner add what is their own: reading, features, scores and answers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from absl import logging

from bert_tf2 import checkpoint, modeling, records
from bert_tf2.config import BertConfig
from bert_tf2.support import console, files, output_lock, progress
from bert_tf2.support.errors import UserError
from bert_tf2.training import loop as training
from bert_tf2.weights import provenance, sources
from bert_tf2.weights.labels import LABEL_MAP_FILE, TAGGING_TASK, LabelMap, load_label_map, save_label_map

# Into how many groups of like length a training batch is divided. More would leave less padding, but make the matrix
# products so small that they get slower. The graph takes seconds longer to make, which a short training cannot regain.
_LENGTH_GROUPS = 4
_STEPS_WORTH_GROUPS = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuneOptions:
    """The settings that all tasks share; each is the flag of the same name.

    Attributes:
      do_lower_case: None stands for True, and is an error where a file says that the model is cased.
      pad_to_max_length: whether every batch is as wide as max_seq_length. Otherwise it is as wide as its longest row,
        which changes no answer and, on MRPC, halves the work. Always so on a TPU, which compiles for each width anew.
      eval_steps: steps between two evaluations during training; 0 for none. The best weights are then kept in
        output_dir/best, and are what evaluation and prediction use, in the same call and in later ones.
      patience: how many evaluations without a better measure end the training; 0 for never.
      do_export: whether to write a SavedModel of the weights that evaluation and prediction use; see export.run.
      export_dir: where; output_dir/export if None.
    """

    bert_config_file: str
    vocab_file: str
    output_dir: str
    init_checkpoint: str | None = None
    do_train: bool = False
    do_lower_case: bool | None = None
    max_seq_length: int = 128
    train_batch_size: int = 32
    learning_rate: float = 5e-5
    num_train_epochs: float = 3.0
    warmup_proportion: float = 0.1
    save_checkpoints_steps: int = 1000
    iterations_per_loop: int = 1000
    random_seed: int = 12345
    adam_bias_correction: bool = False
    precision: str = "float32"
    pad_to_max_length: bool = False
    eval_steps: int = 0
    patience: int = 0
    do_export: bool = False
    export_dir: str | None = None
    devices: training.DeviceOptions = dataclasses.field(default_factory=training.DeviceOptions)


class FineTuner:
    """One call of a fine-tuning script: the configuration, the tokenizer, the devices, and the model once it is made.

    Attributes:
      config: the model's configuration.
      tokenizer: for its vocabulary.
      model: None until `make_model`.
      global_step: of the model's weights, from then on.
    """

    def __init__(self, options: FineTuneOptions):
        """Reads configuration and vocabulary, and what is known of the weights that the call begins with.

        Raises:
          UserError: files that are missing or disagree, or settings that do; or there are no weights, and none will be
            trained.
        """
        if options.patience and not options.eval_steps:
            raise UserError(f"--patience={options.patience} counts evaluations during training: give --eval_steps too")
        self.options = options
        self.config = BertConfig.from_json_file(options.bert_config_file)
        self.config.check_sequence_length(options.max_seq_length)
        source = checkpoint.weights_in_use(options.output_dir, options.init_checkpoint, options.do_train)
        self.tokenizer = provenance.load_tokenizer(
            options.vocab_file, options.do_lower_case, self.config.vocab_size, source, options.init_checkpoint
        )
        if options.do_train:
            provenance.check_output_dir(options.output_dir, self.config)
        self.model = None
        self.global_step: int | None = None
        self._strategy = training.create_strategy(options.devices)
        self._runner: training.Runner | None = None
        self._held = contextlib.ExitStack()

    def __enter__(self) -> FineTuner:
        return self

    def __exit__(self, *exception) -> None:
        self._held.close()

    def make_model(self, make: Callable[[BertConfig, str], object]) -> None:
        """Builds the model by `make(config, dtype policy)` and loads its weights, so that a misfit shows at once.

        They are the newest in output_dir, or the best there where nothing is to be trained; else init_checkpoint's.
        From here on output_dir belongs to this call, if it trains.

        Raises:
          UserError: a checkpoint that cannot be read or is another model's, or another training runs in output_dir.
        """
        options = self.options
        files.make_directory(options.output_dir)
        if options.do_train:
            self._held.enter_context(output_lock.training_in(options.output_dir))
        policy = modeling.dtype_policy(options.precision)
        self.model = training.build_model(self._strategy, lambda: make(self.config, policy), options.random_seed)
        self._runner = training.Runner(self.model, self._strategy)
        folder = options.output_dir if options.do_train else _folder_of_weights(options)
        self.global_step = training.start_from(self.model, folder, options.init_checkpoint, will_train=options.do_train)

    @property
    def do_lower_case(self) -> bool:
        """Whether the tokenizer lower-cases text."""
        return self.tokenizer.basic_tokenizer.do_lower_case

    def output_file(self, name: str) -> str:
        return os.path.join(self.options.output_dir, name)

    def record_file(self, name: str) -> str:
        """Where to write examples for the model: into output_dir, as the reference does.

        Beside a running training they go to a temporary folder, since that training evaluates on the records that are
        in output_dir.
        """
        if self.options.do_train or not output_lock.is_training_elsewhere(self.options.output_dir):
            return self.output_file(name)
        return os.path.join(self._held.enter_context(tempfile.TemporaryDirectory()), name)

    def save_labels(self, label_map: LabelMap) -> None:
        """Writes label_map.json beside all the weights that the training will write."""
        save_label_map(self.options.output_dir, label_map)
        if self.options.eval_steps:
            save_label_map(_best_folder(self.options), label_map)

    def _sizes(self, num_labels: int) -> dict[str, int]:
        return {
            "max_seq_length": self.options.max_seq_length,
            "vocab_size": self.config.vocab_size,
            "type_vocab_size": self.config.type_vocab_size,
            "num_labels": num_labels,
        }

    def _read(self, path: str, kind: records.RecordKind, sizes: records.Sizes, batch_size: int, **how):
        return records.read_records([path], kind, sizes, batch_size, pad_to_max_length=self._padded, **how)

    def _length_groups(self, steps: int) -> int:
        if self._padded or steps < _STEPS_WORTH_GROUPS:
            return 1
        return min(_LENGTH_GROUPS, self.options.train_batch_size)

    @property
    def _padded(self) -> bool:
        return self.options.pad_to_max_length or self.options.devices.use_tpu

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
          kind: what they are.
          num_examples: how many examples an epoch counts (for SQuAD questions, not windows, as in the reference).
          num_labels: the limit for label ids, where there are such.
          measure: evaluates the model as it stands: the measure's name and value, higher is better.

        Raises:
          UserError: too few examples for a single step.
        """
        options = self.options
        trainer = self._trainer(num_examples)
        begun = checkpoint.latest_checkpoint(options.output_dir) is not None
        if begun:
            trainer.start()  # loads the weights once more, with the optimizer's slots
        best = _Best(options, begun) if measure and options.eval_steps else None
        for folder in [options.output_dir, *([best.folder] if best else [])]:
            provenance.write(folder, self.config, self.tokenizer, options.vocab_file)
        if best is None or not best.given_up:
            sizes = self._sizes(num_labels)
            data = self._read(
                path, kind, sizes, options.train_batch_size,
                shuffle_seed=options.random_seed + trainer.global_step, repeat=True, drop_remainder=True,
            )  # fmt: skip
            trainer.train(
                data,
                explain=lambda: records.find_fault([path], kind, sizes),
                evaluate=(lambda step: best.look(self.model, step, *measure())) if best else None,
                eval_steps=options.eval_steps,
            )
        self.global_step = trainer.global_step
        if best and best.found:
            self.global_step = training.start_from(self.model, best.folder, None)

    def num_train_steps(self, num_examples: int) -> int:
        """The steps of a training, as the reference counts them.

        Raises:
          UserError: not a single one, or more than can be counted.
        """
        options = self.options
        steps = num_examples / options.train_batch_size * options.num_train_epochs
        if not 1 <= steps < training.MOST_STEPS:
            few = steps < 1
            raise UserError(
                f"{num_examples} examples, batches of {options.train_batch_size} and {options.num_train_epochs} epochs"
                f" make {'not a single' if few else f'{steps:.3g}'} training step{'' if few else 's'};"
                + (" lower --train_batch_size or raise --num_train_epochs" if few else " lower --num_train_epochs")
            )
        return int(steps)

    def _trainer(self, num_examples: int) -> training.Trainer:
        options = self.options
        steps = self.num_train_steps(num_examples)
        logging.info(
            "Training on %d examples in batches of %d: %d steps", num_examples, options.train_batch_size, steps
        )
        train_options = training.TrainOptions(
            output_dir=options.output_dir,
            learning_rate=options.learning_rate,
            num_train_steps=steps,
            num_warmup_steps=int(steps * options.warmup_proportion),
            train_batch_size=options.train_batch_size,
            save_checkpoints_steps=options.save_checkpoints_steps,
            iterations_per_loop=options.iterations_per_loop,
            random_seed=options.random_seed,
            adam_bias_correction=options.adam_bias_correction,
            length_groups=self._length_groups(steps),
            texts=training.hyperparameters(options),
        )
        return training.Trainer(self.model, self._strategy, train_options)

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
        """Runs the model over a record file; see training.Runner.run.

        Args:
          what, total, unit: how the progress is shown; see progress.track.
        """
        sizes = self._sizes(num_labels)
        data = self._read(path, kind, sizes, batch_size)
        batches = self._runner.run(data, explain=lambda: records.find_fault([path], kind, sizes))
        return progress.track(batches, what, total, unit, size=lambda batch: len(batch["input_ids"]))

    def export(self, task: str, **settings) -> str:
        """Writes the weights in use as a SavedModel; returns its folder.

        Args:
          task, settings: fields of export.ExportOptions that are not among the options here.

        Raises:
          UserError: see export.run.
        """
        from bert_tf2.export import run as export  # late: few calls need it

        options = self.options
        shared = {name: getattr(options, name) for name in ("max_seq_length", "precision")}
        return export.run(
            export.ExportOptions(
                task=task,
                bert_config_file=options.bert_config_file,
                vocab_file=options.vocab_file,
                init_checkpoint=checkpoint.weights_in_use(_folder_of_weights(options), options.init_checkpoint).path,
                do_lower_case=self.do_lower_case,
                export_dir=options.export_dir or self.output_file("export"),
                **shared,
                **settings,
            )
        )


# Flags of a training, which mean nothing to what comes after it.
_OF_TRAINING = {
    *("do_train", "do_eval", "do_predict", "do_export", "train_file", "init_checkpoint", "train_batch_size"),
    *("learning_rate", "num_train_epochs", "warmup_proportion", "save_checkpoints_steps", "iterations_per_loop"),
    *("random_seed", "adam_bias_correction", "eval_steps", "patience", "verbose_logging"),
}


def tell_summary(
    options: FineTuneOptions,
    script: str,
    written: Iterable[str],
    figures: Mapping[str, float] | None,
    possible: Iterable[str],
    exported: str | None = None,
) -> None:
    """Logs what a call wrote and found, and the command that comes next.

    Args:
      script: the name of the script that was called.
      written: names of files in output_dir; the checkpoints of a training are named in any case.
      figures: the main results.
      possible: the switches that would make sense after a training, in this order; the first that was off comes next.
      exported: the folder of an export.
    """
    trained = checkpoint.latest_checkpoint(options.output_dir) if options.do_train else None
    paths = [trained] if trained else []
    if trained and options.eval_steps and files.exists(os.path.join(_best_folder(options), "checkpoint")):
        paths.append(_best_folder(options))
    paths += [os.path.join(options.output_dir, name) for name in written]
    paths += [exported] if exported else []
    left = [switch for switch in possible if not getattr(options, switch)]
    flags = {left[0]: True, **console.changed(options, without=_OF_TRAINING)} if left else None
    console.summary(paths, figures, console.command(script, **flags) if flags else None)


def known_labels(options: FineTuneOptions, tagging: bool = False) -> LabelMap | None:
    """What label_map.json beside the weights in use says, if it is there. A training that starts afresh finds its own.

    Args:
      tagging: whether the weights should be for tagging words, not for classification.

    Raises:
      UserError: they are for the other, or label_map.json is broken.
    """
    if checkpoint.latest_checkpoint(options.output_dir):
        folder, label_map = options.output_dir, load_label_map(options.output_dir)
    elif options.init_checkpoint and not options.do_train:
        source = sources.open_weights(options.init_checkpoint)
        folder, label_map = source.folder, sources.labels_of(source)
        own_file = files.exists(os.path.join(folder, LABEL_MAP_FILE))
        if not tagging and not own_file and _are_numbered(label_map):
            label_map = None  # the task knows better names for its outputs
    else:
        return None
    if label_map and (label_map.task == TAGGING_TASK) != tagging:
        raise UserError(
            f"{os.path.join(folder, LABEL_MAP_FILE)}: the model there was trained for the task"
            f" {label_map.task}, which this script does not do; give another --output_dir or --init_checkpoint"
        )
    return label_map


def _are_numbered(label_map: LabelMap | None) -> bool:
    """Whether the labels are LABEL_0 and so on, which Hugging Face's models have where nobody named them."""
    return bool(label_map and label_map.labels) and all(re.fullmatch(r"LABEL_\d+", name) for name in label_map.labels)


def _best_folder(options: FineTuneOptions) -> str:
    return os.path.join(options.output_dir, "best")


def _folder_of_weights(options: FineTuneOptions) -> str:
    """Where to take trained weights from: the best ones, unless the training went on without an evaluation."""
    newest = checkpoint.latest_checkpoint(options.output_dir)
    best = _Best(options, begun=newest is not None)
    up_to_date = best.found and best.last_step >= checkpoint.Checkpoint(newest).global_step
    return best.folder if up_to_date else options.output_dir


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < training.MOST_STEPS


_LARGEST_MEASURE = 1e9  # all measures are shares or percentages


def _is_measure(value: object) -> bool:
    """Whether it is the value of a measure, or the sign that there is none yet."""
    if value is None or value == -np.inf:
        return True
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LARGEST_MEASURE


# What measure.json holds, and how it is recognised.
_SEEN: Mapping[str, Callable[[object], bool]] = {
    "measure": lambda value: value is None or isinstance(value, str),
    "value": _is_measure,
    **dict.fromkeys(("step", "last_step", "evaluations_since"), _is_count),
}


class _Best:
    """The best weights so far, in a folder of their own, and when to give up hope for better ones.

    What was seen is in `measure.json` beside them, for a training that is continued and for later calls.
    """

    def __init__(self, options: FineTuneOptions, begun: bool):
        """`begun`: whether output_dir holds a training. If not, weights in the folder are those of a deleted one."""
        self.folder = _best_folder(options)
        self._patience = options.patience
        self._file = os.path.join(self.folder, "measure.json")
        self._seen = {"measure": None, "value": -np.inf, "step": 0, "last_step": 0, "evaluations_since": 0}
        self._events = os.path.join(options.output_dir, "eval")
        if begun and files.exists(self._file):
            self._seen = self._read()

    def _read(self) -> dict:
        """What was seen until now.

        Raises:
          UserError: the file is damaged, or the weights that it tells of are gone.
        """
        try:
            seen = files.read_json(self._file)
        except UserError as error:
            raise self._unusable(str(error).removeprefix(f"{self._file}: ")) from error
        for name, is_good in _SEEN.items():
            if name not in seen or not is_good(seen[name]):
                raise self._unusable(f"its {name} is missing or makes no sense")
        if seen["measure"] is not None and checkpoint.latest_checkpoint(self.folder) is None:
            raise self._unusable(f"it tells of weights of step {seen['step']}, which are not in {self.folder}")
        return {**seen, "value": -np.inf if seen["value"] is None else seen["value"]}

    def _unusable(self, reason: str) -> UserError:
        aside = f"{self.folder}.old"
        return UserError(
            f"{self._file}: tells which weights were the best, and cannot be used: {reason}. Put back a copy of the"
            f" file, or go on without it: mv {self.folder} {aside} (nothing is lost: the training itself is in"
            f" {os.path.dirname(self.folder)}, and goes on from its newest checkpoint)"
        )

    @property
    def found(self) -> bool:
        return self._seen["measure"] is not None

    @property
    def last_step(self) -> int:
        """The step of the last evaluation."""
        return self._seen["last_step"]

    @property
    def given_up(self) -> bool:
        """Whether the training should end, which is logged."""
        if not 0 < self._patience <= self._seen["evaluations_since"]:
            return False
        since, name = self._seen["evaluations_since"], self._seen["measure"]
        logging.info("No better %s in %d evaluations: the training ends here", name, since)
        return True

    def look(self, model, step: int, name: str, value: float) -> bool:
        """Takes in an evaluation; whether to stop."""
        if value > self._seen["value"]:
            self._seen = {"measure": name, "value": value, "step": step, "last_step": step, "evaluations_since": 0}
            folder = checkpoint.CheckpointFolder(self.folder, keep_checkpoint_max=1)
            folder.save(checkpoint.tf1_variables(model), step)
        else:
            self._seen["last_step"] = step
            self._seen["evaluations_since"] += 1
        # JSON has no infinity, which stands for "no evaluation gave a number".
        write_json(self._file, {**self._seen, "value": self._seen["value"] if self.found else None})
        training.write_scalars(self._events, step, {name: value})
        logging.info("step %d: %s %.4f (best so far %.4f)", step, name, value, self._seen["value"])
        return self.given_up


def write_json(path: str, content: Mapping) -> None:
    """Writes a JSON file as a person wants to read it, complete or not at all."""
    files.write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

"""What the fine-tuning tasks have in common: setting up, training with an eye on a measure, running over a data set.

finetune_classifier, finetune_squad and finetune_ner add what is their own: reading, features, scores and answers.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from absl import logging

from bert_tf2 import checkpoint, files, pretraining, records, tokenization, training
from bert_tf2.config import BertConfig
from bert_tf2.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuneOptions:
    """The settings that all tasks share; each is the flag of the same name.

    Attributes:
      pad_to_max_length: whether every batch is as wide as max_seq_length. Otherwise it is as wide as its longest row,
        which changes no answer and saves most of the work. Always so on a TPU, which compiles for each width anew.
      eval_steps: steps between two evaluations during training; 0 for none. The best weights are then kept in
        output_dir/best, and are what evaluation and prediction in the same call use.
      patience: how many evaluations without a better measure end the training; 0 for never.
    """

    bert_config_file: str
    vocab_file: str
    output_dir: str
    init_checkpoint: str | None = None
    do_lower_case: bool = True
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
    devices: training.DeviceOptions = dataclasses.field(default_factory=training.DeviceOptions)


class FineTuner:
    """One call of a fine-tuning script: the configuration, the tokenizer, the devices, and the model once it is made.

    Attributes:
      config: the model's configuration.
      tokenizer: for its vocabulary.
      model: None until `make_model`.
      global_step: of the model's weights.
    """

    def __init__(self, options: FineTuneOptions):
        """Reads configuration and vocabulary.

        Raises:
          UserError: files that are missing or disagree.
        """
        self.options = options
        tokenization.validate_case_matches_checkpoint(options.do_lower_case, options.init_checkpoint)
        self.config = BertConfig.from_json_file(options.bert_config_file)
        pretraining.check_sequence_length(options.max_seq_length, self.config)
        self.tokenizer = load_tokenizer(options.vocab_file, options.do_lower_case, self.config)
        files.make_directory(options.output_dir)
        self.model = None
        self.global_step: int | None = None
        self._strategy = training.create_strategy(options.devices)
        self._runner: training.Runner | None = None

    def make_model(self, make: Callable[[BertConfig, str], object]) -> None:
        """Builds the model, with fresh weights: `make(config, dtype policy)`."""
        policy = pretraining.dtype_policy(self.options.precision)
        self.model = training.build_model(self._strategy, lambda: make(self.config, policy), self.options.random_seed)
        self._runner = training.Runner(self.model, self._strategy)

    def output_file(self, name: str) -> str:
        return os.path.join(self.options.output_dir, name)

    def _sizes(self, num_labels: int) -> dict[str, int]:
        return {
            "max_seq_length": self.options.max_seq_length,
            "vocab_size": self.config.vocab_size,
            "type_vocab_size": self.config.type_vocab_size,
            "num_labels": num_labels,
        }

    def _read(self, path: str, kind: records.RecordKind, sizes: records.Sizes, batch_size: int, **how):
        pad = self.options.pad_to_max_length or self.options.devices.use_tpu
        return records.read_records([path], kind, sizes, batch_size, pad_to_max_length=pad, **how)

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
        steps = int(num_examples / options.train_batch_size * options.num_train_epochs)
        if steps < 1:
            raise UserError(
                f"{num_examples} examples, batches of {options.train_batch_size} and {options.num_train_epochs} epochs make"
                " not a single training step; lower --train_batch_size or raise --num_train_epochs"
            )
        trainer = training.Trainer(
            self.model,
            self._strategy,
            training.TrainOptions(
                output_dir=options.output_dir,
                learning_rate=options.learning_rate,
                num_train_steps=steps,
                num_warmup_steps=int(steps * options.warmup_proportion),
                train_batch_size=options.train_batch_size,
                save_checkpoints_steps=options.save_checkpoints_steps,
                iterations_per_loop=options.iterations_per_loop,
                random_seed=options.random_seed,
                adam_bias_correction=options.adam_bias_correction,
            ),
        )
        logging.info("***** Running training *****")
        logging.info("  Num examples = %d", num_examples)
        logging.info("  Batch size = %d", options.train_batch_size)
        logging.info("  Num steps = %d", steps)
        sizes = self._sizes(num_labels)
        first = trainer.start(options.init_checkpoint)
        data = self._read(
            path, kind, sizes, options.train_batch_size,
            shuffle_seed=options.random_seed + first, repeat=True, drop_remainder=True,
        )  # fmt: skip
        best = _Best(self.model, options) if measure and options.eval_steps else None
        self.global_step = trainer.train(
            data,
            explain=lambda: records.find_fault([path], kind, sizes),
            evaluate=(lambda step: best.look(step, *measure())) if best else None,
            eval_steps=options.eval_steps,
        )
        if best:
            self.global_step = best.restore()

    def load_weights(self) -> None:
        """Gives a model that was not trained in this call the newest weights, or those of init_checkpoint."""
        if self.global_step is None:
            self.global_step = training.start_from(self.model, self.options.output_dir, self.options.init_checkpoint)

    def run(
        self, path: str, kind: records.RecordKind, batch_size: int, num_labels: int = 0
    ) -> Iterator[Mapping[str, np.ndarray]]:
        """Runs the model over a record file; see training.Runner.run."""
        sizes = self._sizes(num_labels)
        data = self._read(path, kind, sizes, batch_size)
        return self._runner.run(data, explain=lambda: records.find_fault([path], kind, sizes))


def load_tokenizer(vocab_file: str, do_lower_case: bool, config: BertConfig) -> tokenization.FullTokenizer:
    """The tokenizer, once it is clear that vocabulary and model belong together.

    Raises:
      UserError: the vocabulary is missing, lacks a special token, or has more entries than the model has embeddings.
    """
    tokenizer = tokenization.FullTokenizer(vocab_file=vocab_file, do_lower_case=do_lower_case)
    tokenization.check_special_tokens(tokenizer.vocab, vocab_file)
    entries = max(tokenizer.vocab.values()) + 1
    if entries > config.vocab_size:
        raise UserError(
            f"{vocab_file}: {entries} entries, but the model's configuration says vocab_size {config.vocab_size};"
            " take the vocabulary that the model was trained with"
        )
    return tokenizer


class _Best:
    """The best weights so far, in a folder of their own, and when to give up hope for better ones."""

    def __init__(self, model, options: FineTuneOptions):
        self._model = model
        self._patience = options.patience
        self._dir = os.path.join(options.output_dir, "best")
        self._file = os.path.join(self._dir, "measure.json")
        self._value = -np.inf
        self._looks_since = 0
        if checkpoint.latest_checkpoint(self._dir) and files.exists(self._file):  # an earlier call's
            self._value = json.loads(files.read_text(self._file))["value"]

    def look(self, step: int, name: str, value: float) -> bool:
        """Takes in an evaluation; whether to stop."""
        logging.info("step %d: %s %.4f (best so far %.4f)", step, name, value, max(value, self._value))
        if value > self._value:
            self._value, self._looks_since = value, 0
            folder = checkpoint.CheckpointFolder(self._dir, keep_checkpoint_max=1)
            folder.save(checkpoint.tf1_variables(self._model), step)
            files.write_text(self._file, json.dumps({"measure": name, "value": value, "step": step}) + "\n")
            return False
        self._looks_since += 1
        if self._patience and self._looks_since >= self._patience:
            logging.info("No better %s in %d evaluations: the training ends here", name, self._looks_since)
            return True
        return False

    def restore(self) -> int:
        """Puts the best weights back into the model and returns their step."""
        latest = checkpoint.latest_checkpoint(self._dir)
        step = checkpoint.restore(latest, checkpoint.tf1_variables(self._model))
        logging.info("Using the best weights, of step %d", step)
        return step


def write_json(path: str, content: Mapping) -> None:
    """Writes a JSON file as a person wants to read it, complete or not at all."""
    files.write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

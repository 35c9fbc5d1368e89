"""Pretraining as a whole: what run_pretraining.py does once its flags are read."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from absl import logging

from bert_tf2 import checkpoint, heads, modeling, records, tokenization
from bert_tf2.config import BertConfig
from bert_tf2.support import console, files, output_lock, progress
from bert_tf2.support.errors import UserError
from bert_tf2.training import loop as training
from bert_tf2.weights import names, provenance
from bert_tf2.weights.base import Weights

# Without these a model cannot tell whether two sentences follow each other; it can still fill in words.
_OF_NEXT_SENTENCE = (*names.POOLER, *names.NEXT_SENTENCE)


@dataclasses.dataclass(frozen=True)
class PretrainingOptions:
    """The settings of one call; each is the flag of the same name of run_pretraining.py.

    Attributes:
      vocab_file, do_lower_case: what the records were made with; needed for do_export, and kept beside the checkpoints
        where they are given.
    """

    bert_config_file: str
    input_file: str
    output_dir: str
    init_checkpoint: str | None = None
    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    do_train: bool = False
    do_eval: bool = False
    train_batch_size: int = 32
    eval_batch_size: int = 8
    learning_rate: float = 5e-5
    num_train_steps: int = 100000
    num_warmup_steps: int = 10000
    save_checkpoints_steps: int = 1000
    iterations_per_loop: int = 1000
    max_eval_steps: int = 100
    random_seed: int = 12345
    adam_bias_correction: bool = False
    precision: str = "float32"
    do_export: bool = False
    export_dir: str | None = None
    vocab_file: str | None = None
    do_lower_case: bool | None = None
    devices: training.DeviceOptions = dataclasses.field(default_factory=training.DeviceOptions)


def run(options: PretrainingOptions) -> dict[str, float] | None:
    """Trains, evaluates, exports; returns the evaluation's results if there is one.

    Writes into output_dir: checkpoints `model.ckpt-STEP`, TensorBoard events, `eval_results.txt`.

    Raises:
      UserError: neither do_train nor do_eval, files that are missing or do not fit, ...
    """
    if not (options.do_train or options.do_eval or options.do_export):
        raise UserError("nothing to do: give --do_train, --do_eval or both, or --do_export")
    if options.do_export and not options.vocab_file:
        raise UserError("--do_export needs --vocab_file, the vocabulary that the records were made with")
    results = _train_and_evaluate(options) if options.do_train or options.do_eval else None
    exported = [_export(options)] if options.do_export else []
    _tell_summary(options, results, exported)
    return results


def _tell_summary(options: PretrainingOptions, results: Mapping[str, float] | None, exported: Sequence[str]) -> None:
    trained = checkpoint.latest_checkpoint(options.output_dir)
    written = [trained] if options.do_train and trained else []
    written += [os.path.join(options.output_dir, "eval_results.txt")] if results else []
    names = ("loss", "masked_lm_accuracy", "next_sentence_accuracy")
    beside = os.path.join(os.path.dirname(options.bert_config_file), "vocab.txt")
    console.summary(
        [*written, *exported],
        {name: results[name] for name in names if name in results} if results else None,
        console.command(
            "predict_masked.py",
            sentence="The capital of France is [MASK].",
            bert_config_file=options.bert_config_file,
            vocab_file=options.vocab_file or (beside if files.exists(beside) else "vocab.txt"),
            init_checkpoint=options.output_dir if trained else options.init_checkpoint,
            do_lower_case=options.do_lower_case,
        ),
    )


def _export(options: PretrainingOptions) -> str:
    from bert_tf2.export import run as export  # late: few calls need it

    shared = ("bert_config_file", "vocab_file", "do_lower_case", "max_seq_length", "precision")
    return export.run(
        export.ExportOptions(
            task="masked_lm",
            init_checkpoint=checkpoint.weights_in_use(options.output_dir, options.init_checkpoint).path,
            export_dir=options.export_dir or os.path.join(options.output_dir, "export"),
            **{name: getattr(options, name) for name in shared},
        )
    )


def _train_and_evaluate(options: PretrainingOptions) -> dict[str, float] | None:
    config = BertConfig.from_json_file(options.bert_config_file)
    config.check_sequence_length(options.max_seq_length)
    weights = checkpoint.weights_in_use(options.output_dir, options.init_checkpoint, options.do_train)
    tokenizer = _load_tokenizer(options, config, weights)
    if options.do_train:
        provenance.check_output_dir(options.output_dir, config)
    source = _Source(options, config)
    files.make_directory(options.output_dir)
    with output_lock.training_in(options.output_dir) if options.do_train else contextlib.nullcontext():
        return _compute(options, config, source, weights, tokenizer)


def _load_tokenizer(
    options: PretrainingOptions, config: BertConfig, weights: Weights | None
) -> tokenization.FullTokenizer | None:
    """Only the export needs it, but a vocabulary that does not fit should not show after the training."""
    if not options.vocab_file:
        return None
    return provenance.load_tokenizer(
        options.vocab_file, options.do_lower_case, config.vocab_size, weights, options.init_checkpoint
    )


def _compute(
    options: PretrainingOptions,
    config: BertConfig,
    source: _Source,
    weights: Weights | None,
    tokenizer: tokenization.FullTokenizer | None,
) -> dict[str, float] | None:
    strategy = training.create_strategy(options.devices)
    model = training.build_model(
        strategy,
        lambda: heads.PretrainingModel(config, dtype=modeling.dtype_policy(options.precision)),
        options.random_seed,
    )
    global_step = _train(model, strategy, source, options, tokenizer) if options.do_train else None
    if not options.do_eval:
        return None
    masked_words_only = False
    if global_step is None:
        masked_words_only = any(row.reference not in weights.shapes for row in _OF_NEXT_SENTENCE)
        global_step = training.start_from(
            model,
            options.output_dir,
            options.init_checkpoint,
            may_lack=tuple(row.reference for row in _OF_NEXT_SENTENCE),
        )
    batches = training.Runner(model, strategy).run(source.for_evaluation(), explain=source.find_fault)
    results = evaluation_results(_counted(batches, options.max_eval_steps))
    if masked_words_only:
        logging.warning("%s: has no head for next sentences: the results are of masked words only", weights.path)
        results = {name: value for name, value in results.items() if name.startswith("masked_lm_")}
    results["global_step"] = global_step
    training.write_eval_results(options.output_dir, results)
    return results


class _Source:
    """The records of one call."""

    def __init__(self, options: PretrainingOptions, config: BertConfig):
        self._options = options
        self._paths = files.match_files(options.input_file)
        logging.info("Reading records from %s", ", ".join(self._paths))
        self._sizes = {
            "max_seq_length": options.max_seq_length,
            "max_predictions_per_seq": options.max_predictions_per_seq,
            "vocab_size": config.vocab_size,
            "type_vocab_size": config.type_vocab_size,
        }

    def _read(self, batch_size: int, shuffle_seed: int | None):
        return records.read_records(
            self._paths,
            records.PRETRAINING,
            self._sizes,
            batch_size,
            shuffle_seed=shuffle_seed,
            repeat=True,
            drop_remainder=True,
        )

    def for_training(self, global_step: int):
        # A run that goes on from a checkpoint draws another order than the one it began with.
        return self._read(self._options.train_batch_size, self._options.random_seed + global_step)

    def for_evaluation(self):
        """The records in order, again and again, as the reference does: max_eval_steps decides where it ends."""
        return self._read(self._options.eval_batch_size, None)

    def find_fault(self) -> UserError | None:
        return records.find_fault(self._paths, records.PRETRAINING, self._sizes)


def _train(
    model,
    strategy,
    source: _Source,
    options: PretrainingOptions,
    tokenizer: tokenization.FullTokenizer | None,
) -> int:
    train_options = training.TrainOptions(
        output_dir=options.output_dir,
        learning_rate=options.learning_rate,
        num_train_steps=options.num_train_steps,
        num_warmup_steps=options.num_warmup_steps,
        train_batch_size=options.train_batch_size,
        save_checkpoints_steps=options.save_checkpoints_steps,
        iterations_per_loop=options.iterations_per_loop,
        random_seed=options.random_seed,
        adam_bias_correction=options.adam_bias_correction,
        texts=training.hyperparameters(options),
    )
    trainer = training.Trainer(model, strategy, train_options)
    logging.info("Training in batches of %d examples: %d steps", options.train_batch_size, options.num_train_steps)
    global_step = trainer.start(options.init_checkpoint)
    provenance.write(options.output_dir, model.config, tokenizer, options.vocab_file)
    return trainer.train(source.for_training(global_step), explain=source.find_fault)


def _counted(batches: Iterable[Mapping[str, np.ndarray]], count: int) -> Iterable[Mapping[str, np.ndarray]]:
    return progress.track(itertools.islice(batches, count), "Evaluating", count, "batches")


def evaluation_results(batches: Iterable[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """The reference's measures, from what PretrainingModel.outputs says of each batch and the batch itself.

    `masked_lm_loss` and `masked_lm_accuracy` are means over all predictions by weight; `next_sentence_*` over all
    examples; `loss` is the mean of the batches' losses, each the sum of the two: not quite the sum of the means.
    """
    words = {"loss": 0.0, "right": 0.0, "weight": 0.0}
    sentences = {"loss": 0.0, "right": 0.0, "count": 0}
    batch_losses = []
    for batch in batches:
        weights = batch["masked_lm_weights"].astype(np.float64)
        word_loss = float((weights * batch["masked_lm_example_loss"]).sum())
        sentence_losses = batch["next_sentence_example_loss"]
        words["loss"] += word_loss
        words["right"] += float((weights * (batch["masked_lm_predictions"] == batch["masked_lm_ids"])).sum())
        words["weight"] += float(weights.sum())
        sentences["loss"] += float(sentence_losses.sum(dtype=np.float64))
        sentences["right"] += float((batch["next_sentence_predictions"] == batch["next_sentence_labels"]).sum())
        sentences["count"] += len(sentence_losses)
        batch_losses.append(word_loss / (weights.sum() + 1e-5) + float(sentence_losses.mean()))
    return {
        "loss": _as_float32(np.mean(batch_losses)),
        "masked_lm_accuracy": _as_float32(words["right"] / (words["weight"] or 1.0)),
        "masked_lm_loss": _as_float32(words["loss"] / (words["weight"] or 1.0)),
        "next_sentence_accuracy": _as_float32(sentences["right"] / sentences["count"]),
        "next_sentence_loss": _as_float32(sentences["loss"] / sentences["count"]),
    }


def _as_float32(value: float) -> np.float32:
    """The precision that the reference prints its results in."""
    return np.float32(value)

"""Pretraining: the implementation of run_pretraining.py."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf2 import heads, tokenization
from bert_tf2.config import BertConfig
from bert_tf2.data import record_index, record_order
from bert_tf2.fast.encoder import accelerate
from bert_tf2.pretraining.options import PretrainingOptions
from bert_tf2.pretraining.record_source import Source
from bert_tf2.support import console, files, output_lock, progress, settings
from bert_tf2.support.errors import UserError
from bert_tf2.training import workers
from bert_tf2.training.devices import build_model, compiles_step, create_strategy, join, plan_for
from bert_tf2.training.forward import Runner
from bert_tf2.training.loop import Trainer, start_from
from bert_tf2.training.monitor import write_eval_results, write_scalars
from bert_tf2.training.options import PRECISIONS, TrainOptions
from bert_tf2.training.saver import Best, best_folder
from bert_tf2.training.workers import Team, is_chief
from bert_tf2.weights import checkpoint, names, task_file, text_rules
from bert_tf2.weights.base import Weights
from bert_tf2.weights.model_folder import check_output_dir, write_companions
from bert_tf2.weights.sources import decisive


def run(options: PretrainingOptions, export: Callable[..., str] | None = None) -> dict[str, float] | None:
    """Trains, evaluates, exports; returns the results of the evaluation, if there is one.

    Args:
      options: the settings.
      export: writes a SavedModel; `bert_tf2.exporting.run.export_model`. Needed with do_export.

    Writes into output_dir: checkpoints `model.ckpt-STEP`, TensorBoard events, `eval_results.txt`.
    """
    chief = is_chief(options)
    if not (chief or options.do_train):
        logging.info(workers.NOTHING_TO_DO)
        return None
    results = _train_and_evaluate(options) if options.do_train or options.do_eval else None
    if not chief:
        return None
    exported = []
    if options.do_export:
        shared = ("bert_config_file", "vocab_file", "do_lower_case", "max_seq_length")
        exported = [
            export(
                task="masked_lm",
                init_checkpoint=checkpoint.weights_in_use(options.output_dir, options.init_checkpoint).path,
                export_dir=options.export_dir or os.path.join(options.output_dir, "export"),
                precision=PRECISIONS[options.precision].exported,
                **{name: getattr(options, name) for name in shared},
            )
        ]
    _tell_summary(options, results, exported)
    return results


def _tell_summary(options: PretrainingOptions, results: Mapping[str, float] | None, exported: Sequence[str]) -> None:
    trained = checkpoint.latest_checkpoint(options.output_dir)
    written = [trained] if options.do_train and trained else []
    written += [best_folder(options.output_dir)] if options.do_train and options.eval_steps else []
    written += [os.path.join(options.output_dir, "eval_results.txt")] if results else []
    shown = ("loss", "masked_lm_accuracy", "masked_lm_perplexity", "next_sentence_accuracy")
    console.summary([*written, *exported], results and {name: results[name] for name in shown if name in results})


def _train_and_evaluate(options: PretrainingOptions) -> dict[str, float] | None:
    config = options.config
    config.check_sequence_length(options.max_seq_length)
    team = join(options)
    if options.do_train and team.is_chief:
        checkpoint.recover(options.output_dir)
    team.wait()  # the others read what the chief has mended
    weights = checkpoint.weights_in_use(options.output_dir, options.init_checkpoint, options.do_train)
    _check_objective(options, weights)
    tokenizer = None
    if options.vocab_file:  # only the export and dynamic masking need it, but one that does not match is told now
        tokenizer = text_rules.load_tokenizer(
            options.vocab_file, options.do_lower_case, config.vocab_size, weights, options.init_checkpoint
        )
    if options.do_train:
        check_output_dir(options.output_dir, config, options.vocab_file)
    make = functools.partial(Source, options, config, tokenizer)
    sources = {"held_out": make(options.eval_input_file)} if options.eval_input_file else {}
    held_out = sources["held_out"].paths if sources and options.do_train else ()
    sources["training"] = make(options.input_file, held_out)
    files.make_directory(options.output_dir)
    locks = options.do_train and team.is_chief
    with output_lock.locked(options.output_dir) if locks else contextlib.nullcontext():
        return _compute(options, config, sources, weights, tokenizer, team)


def _check_objective(options: PretrainingOptions, weights: Weights | None) -> None:
    """Raises UserError if the weights in output_dir, or those to evaluate, are those of another objective.

    Masked words alone may be evaluated with both heads; training them would lose the one for next sentences.
    """
    if options.do_train and not checkpoint.latest_checkpoint(options.output_dir):
        return
    with_sentences = all(row.reference in weights.shapes for row in names.NEXT_SENTENCE)
    with_words = all(row.reference in weights.shapes for row in names.MASKED_LM)
    if options.objective == "mlm_nsp" and with_words and not with_sentences:
        raise UserError(f"{weights.path}: was trained with masked words only; give --objective=mlm")
    if options.objective == "mlm" and with_sentences and options.do_train:
        raise UserError(
            f"{weights.path}: was trained with next sentences too; to continue with masked words only, give another"
            f" --output_dir and --init_checkpoint={weights.path}"
        )


def _make_model(options: PretrainingOptions, config: BertConfig, weights: Weights | None):
    """The model of the objective; without next sentences, it has a pooler if the weights have one."""
    policy = PRECISIONS[options.precision].policy
    if options.objective == "mlm_nsp":
        return heads.PretrainingModel(config, dtype=policy)
    has_pooler = weights is not None and all(row.reference in weights.shapes for row in names.POOLER)
    return heads.MaskedLMModel(config, has_pooler=has_pooler, dtype=policy)


def _compute(
    options: PretrainingOptions,
    config: BertConfig,
    sources: Mapping[str, Source],
    weights: Weights | None,
    tokenizer: tokenization.FullTokenizer | None,
    team: Team,
) -> dict[str, float] | None:
    strategy = create_strategy(options, team=team)
    model = build_model(strategy, lambda: _make_model(options, config, weights), options.random_seed)
    accelerate(model, plan_for(options, strategy, config.hidden_size))
    evaluation = _Evaluation(options, model, strategy, sources)
    if options.do_train:
        global_step = _train(model, strategy, sources["training"], options, weights, tokenizer, evaluation, team)
    if not options.do_eval or not team.is_chief:
        return None
    if not options.do_train:
        global_step = start_from(model, options.output_dir, options.init_checkpoint, opened=weights)
    results = {**evaluation.results(), "global_step": global_step}
    write_eval_results(options.output_dir, results)
    return results


class _Evaluation:
    """Evaluates a model, also while it is trained: on the records that are held out if there are any."""

    def __init__(
        self, options: PretrainingOptions, model, strategy: tf.distribute.Strategy, sources: Mapping[str, Source]
    ):
        self._options, self._model = options, model
        self._is_held_out = "held_out" in sources
        self._source = sources["held_out" if self._is_held_out else "training"]
        self._strategy, self._runner = strategy, Runner(model, strategy)

    @functools.cached_property
    def data(self):
        return self._source.for_evaluation(once=self._is_held_out)

    def results(self) -> dict[str, float]:
        """See evaluation_results; with `masked_lm_perplexity`, e^masked_lm_loss, for records that are held out."""
        data, count = self.data
        options = self._options
        is_repeated = options.do_train and options.eval_steps
        num_batches = count * (options.num_train_steps // options.eval_steps + 1 if is_repeated else 1)
        compiles = compiles_step(self._strategy, options.xla, num_batches, self._model.encoder.computes_padding)
        size = options.eval_batch_size if compiles else None
        batches = self._runner.run(data, explain=self._source.find_fault, compiled_size=size)
        batches = itertools.islice(batches, count)
        results = evaluation_results(progress.track(batches, "Evaluating", count, "batches"))
        if self._is_held_out:
            results["masked_lm_perplexity"] = np.float32(np.exp(results["masked_lm_loss"]))
        return results

    def look(self, best: Best, step: int) -> bool:
        """What a training calls after every eval_steps steps; whether it is to end."""
        results = self.results()
        write_scalars(os.path.join(self._options.output_dir, "eval"), step, results)
        shown = ", ".join(f"{name} {value:.4f}" for name, value in results.items())
        logging.info("step %d, held out: %s", step, shown)
        # Higher is better: the mean logarithm of the probability of the right word.
        return best.update(self._model, step, "masked_lm_log_likelihood", -float(results["masked_lm_loss"]))


def _train(
    model,
    strategy,
    source: Source,
    options: PretrainingOptions,
    weights: Weights | None,
    tokenizer: tokenization.FullTokenizer | None,
    evaluation: _Evaluation,
    team: Team,
) -> int:
    train_options = TrainOptions(**settings.shared(options, TrainOptions), deciding=settings.deciding(options))
    trainer = Trainer(model, strategy, train_options, team)
    logging.info("Training in batches of %d examples: %d steps", options.train_batch_size, train_options.last_step)
    if options.num_warmup_steps >= options.num_train_steps:
        highest = options.learning_rate * options.num_train_steps / options.num_warmup_steps
        logging.warning(
            "--num_warmup_steps=%d is not below --num_train_steps=%d: the learning rate rises to the end, and only to"
            " %.2g; a tenth of the steps is usual",
            options.num_warmup_steps, options.num_train_steps, highest,
        )  # fmt: skip
    trainer.start(options.init_checkpoint, weights)
    evaluate, evaluated = None, 0
    if options.eval_steps:
        best = Best(options.output_dir, checkpoint.latest_checkpoint(options.output_dir) is not None)
        evaluate, evaluated = functools.partial(evaluation.look, best), best.last_step
        _ = evaluation.data  # what is wrong with it is told before the training
    done = trainer.is_done(options.eval_steps, evaluated)
    if not done:  # a pass over the records that no index knows, before a checkpoint is in output_dir
        index = source.index(team)
        batches = source.for_training(index, trainer.examples, trainer.share)
    if team.is_chief:
        for folder in [options.output_dir, *([best_folder(options.output_dir)] if evaluate else [])]:
            made = task_file.content({}, {}, decisive(model.config))
            write_companions(folder, model.config, tokenizer, options.vocab_file, made)
    if done:
        return trainer.global_step
    return trainer.train(
        batches,
        records=index.description,
        explain=lambda: record_index.find_change(index) or source.find_fault(),
        evaluate=evaluate,
        eval_steps=options.eval_steps,
        evaluated=evaluated,
        where=functools.partial(record_order.where, index, options.random_seed),
    )


def evaluation_results(batches: Iterable[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """The reference's measures, computed from each batch and its PretrainingModel.outputs.

    `masked_lm_loss` and `masked_lm_accuracy` are weighted means over all predictions; `next_sentence_*` over all
    examples; `loss` is the mean over batches of the sum of both losses, not exactly the sum of the means. Those of next
    sentences are left out for the outputs of a MaskedLMModel.
    """
    sums, batch_losses = collections.Counter(), []
    for batch in batches:
        weights = batch["masked_lm_weights"].astype(np.float64)
        loss = float((weights * batch["masked_lm_example_loss"]).sum())
        right = float((weights * (batch["masked_lm_predictions"] == batch["masked_lm_ids"])).sum())
        sums.update(word_loss=loss, right_words=right, words=float(weights.sum()))
        batch_losses.append(loss / (weights.sum() + 1e-5))
        if "next_sentence_example_loss" in batch:
            losses = batch["next_sentence_example_loss"]
            right = int((batch["next_sentence_predictions"] == batch["next_sentence_labels"]).sum())
            sums.update(pair_loss=float(losses.sum(dtype=np.float64)), right_pairs=right, pairs=len(losses))
            batch_losses[-1] += float(losses.mean())
    results = {
        "loss": np.mean(batch_losses),
        "masked_lm_accuracy": sums["right_words"] / (sums["words"] or 1.0),
        "masked_lm_loss": sums["word_loss"] / (sums["words"] or 1.0),
    }
    if sums["pairs"]:
        results["next_sentence_accuracy"] = sums["right_pairs"] / sums["pairs"]
        results["next_sentence_loss"] = sums["pair_loss"] / sums["pairs"]
    return {name: np.float32(value) for name, value in results.items()}  # as the reference prints them

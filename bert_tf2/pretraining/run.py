"""Pretraining, as a task of the driver: implements run_pretraining.py."""

from __future__ import annotations

import collections
import functools
import itertools
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from absl import logging

from bert_tf2 import heads
from bert_tf2.losses import NO_PREDICTIONS
from bert_tf2.pretraining.options import PretrainingOptions
from bert_tf2.pretraining.record_source import RecordSource
from bert_tf2.support import progress
from bert_tf2.support.errors import UserError
from bert_tf2.training import driver
from bert_tf2.training.driver import Export, Outcome, TrainingData
from bert_tf2.training.loop import Trainer
from bert_tf2.training.monitor import write_eval_results, write_scalars
from bert_tf2.training.workers import Team
from bert_tf2.weights import bundle, names, text_rules

_FIGURES = ("loss", "masked_lm_accuracy", "masked_lm_perplexity", "next_sentence_accuracy")


def run(options: PretrainingOptions, export: Export | None = None) -> dict[str, float] | None:
    """Trains, evaluates, exports; returns the results of the evaluation, if there is one; see driver.run.

    Writes into output_dir: checkpoints `model.ckpt-STEP`, TensorBoard events, `eval_results.txt`.
    """
    return driver.run(PretrainingTask(options), export)


class PretrainingTask(driver.Task):
    """Trains masked words, and next sentences unless --objective=mlm.

    Evaluates on the held-out records if there are any, else on the training records, as the reference does.
    """

    export_as = "masked_lm"
    options: PretrainingOptions

    def prepare(self) -> None:
        options = self.options
        if self.computes:
            self._check_objective()
        if options.vocab_file:  # needed later or not at all, but a wrong file is reported now
            self.tokenizer = text_rules.load_tokenizer(
                options.vocab_file, options.do_lower_case, self.config.vocab_size, self.source, options.init_checkpoint
            )
        if not self.computes:
            return
        make = functools.partial(RecordSource, options, self.config, self.tokenizer)
        held_out = make(options.eval_input_file) if options.eval_input_file else None
        self._training = make(options.input_file, held_out.paths if held_out and options.do_train else ())
        self._evaluation, self._is_held_out = held_out or self._training, held_out is not None

    def _check_objective(self) -> None:
        """Raises UserError if the weights in output_dir, or the weights to evaluate, have another objective.

        Weights with both heads may be evaluated on masked words alone; training would lose the next-sentence head.
        """
        options, weights = self.options, self.source
        if options.do_train and not bundle.latest_checkpoint(options.output_dir):
            return
        with_sentences = not names.missing(names.NEXT_SENTENCE, weights.shapes)
        with_words = not names.missing(names.MASKED_LM, weights.shapes)
        if options.objective == "mlm_nsp" and with_words and not with_sentences:
            raise UserError(f"{weights.path}: was trained with masked words only; give --objective=mlm")
        if options.objective == "mlm" and with_sentences and options.do_train:
            raise UserError(
                f"{weights.path}: was trained with next sentences too; to continue with masked words only, give another"
                f" --output_dir and --init_checkpoint={weights.path}"
            )

    def make_model(self, dtype: str) -> heads.PretrainingModel | heads.MaskedLMModel:
        """The model of the objective; without next sentences, it has a pooler if the weights have one."""
        if self.options.objective == "mlm_nsp":
            return heads.PretrainingModel(self.config, dtype=dtype)
        weights = self.source
        has_pooler = weights is not None and not names.missing(names.POOLER, weights.shapes)
        return heads.MaskedLMModel(self.config, has_pooler=has_pooler, dtype=dtype)

    def schedule(self) -> dict[str, Any]:
        return {}  # the options have the whole schedule

    def training_data(self, trainer: Trainer, team: Team) -> TrainingData:
        options = self.options
        last_step = min(options.num_train_steps, options.stop_at_step or options.num_train_steps)
        steps, size = options.num_train_steps, options.train_batch_size
        if options.num_warmup_steps >= options.num_train_steps:
            highest = options.learning_rate * options.num_train_steps / options.num_warmup_steps
            logging.warning(
                "--num_warmup_steps=%d is not below --num_train_steps=%d: the learning rate rises to the end, and only"
                " to %.2g; a tenth of the steps is usual",
                options.num_warmup_steps, options.num_train_steps, highest,
            )  # fmt: skip
        if options.eval_steps:
            _ = self._evaluation_data  # reports errors in these records before the training
        source = self._training
        index = source.index(team)
        logging.info(
            "Training in batches of %d examples: %d steps, which are %.3g epochs of %s examples%s",
            size, steps, steps * size / index.total, f"{index.total:,}",
            f"; this call ends at step {last_step}" if last_step < steps else "",
        )  # fmt: skip
        return TrainingData(source.for_training(index, trainer.examples, trainer.share), index, source.find_fault)

    @functools.cached_property
    def _evaluation_data(self) -> tuple[Any, int]:
        return self._evaluation.for_evaluation(once=self._is_held_out)

    def measure(self, step: int) -> tuple[str, float]:
        results = self._evaluate()
        write_scalars(os.path.join(self.options.output_dir, "eval"), step, results)
        shown = ", ".join(f"{name} {value:.4f}" for name, value in results.items())
        logging.info("step %d, held out: %s", step, shown)
        # The mean logarithm of the probability of the right word.
        return "masked_lm_log_likelihood", -float(results["masked_lm_loss"])

    def _evaluate(self) -> dict[str, float]:
        """See evaluation_results; with `masked_lm_perplexity`, e^masked_lm_loss, for records that are held out."""
        options, (data, count) = self.options, self._evaluation_data
        is_repeated = options.do_train and options.eval_steps
        num_batches = count * (options.num_train_steps // options.eval_steps + 1 if is_repeated else 1)
        given = data, options.eval_batch_size, self.program(num_batches)
        batches = self.runner.run(*given, explain=self._evaluation.find_fault)
        results = evaluation_results(progress.track(itertools.islice(batches, count), "Evaluating", count, "batches"))
        if self._is_held_out:
            results["masked_lm_perplexity"] = np.float32(np.exp(results["masked_lm_loss"]))
        return results

    def outcome(self, global_step: int) -> Outcome:
        if not self.options.do_eval:
            return Outcome()
        results = {**self._evaluate(), "global_step": global_step}
        write_eval_results(self.options.output_dir, results)
        return Outcome(results, ["eval_results.txt"], {name: results[name] for name in _FIGURES if name in results})


def evaluation_results(batches: Iterable[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """The reference's measures, computed from each batch and its PretrainingModel.outputs.

    `masked_lm_loss` and `masked_lm_accuracy` are weighted means over all predictions; `next_sentence_*` over all
    examples; `loss` is the mean over batches of the sum of both losses, not exactly the sum of the means. The outputs
    of a MaskedLMModel give no `next_sentence_*`.
    """
    sums, batch_losses = collections.Counter(), []
    for batch in batches:
        weights = batch["masked_lm_weights"].astype(np.float64)
        loss = float((weights * batch["masked_lm_example_loss"]).sum())
        right = float((weights * (batch["masked_lm_predictions"] == batch["masked_lm_ids"])).sum())
        sums.update(word_loss=loss, right_words=right, words=float(weights.sum()))
        batch_losses.append(loss / (weights.sum() + NO_PREDICTIONS))
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

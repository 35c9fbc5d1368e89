"""Sentence and sentence-pair classification as a whole: what run_classifier.py does once its flags are read."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

import numpy as np
from absl import logging

from bert_tf2 import checkpoint, classification, heads, metrics, training
from bert_tf2.classification_tasks import TsvLayout
from bert_tf2.errors import UserError
from bert_tf2.finetuning import FineTuneOptions, FineTuner, write_json


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierOptions(FineTuneOptions):
    """The settings of one call; each is the flag of the same name of run_classifier.py."""

    data_dir: str
    task_name: str
    do_train: bool = False
    do_eval: bool = False
    do_predict: bool = False
    eval_batch_size: int = 8
    predict_batch_size: int = 8
    text_a_column: str | None = None
    text_b_column: str | None = None
    label_column: str | None = None
    id_column: str | None = None
    header: bool = True


def run(options: ClassifierOptions) -> dict[str, float] | None:
    """Trains, evaluates, predicts; returns the evaluation's results if there is one.

    Writes into output_dir what the reference writes (`train.tf_record`, `eval.tf_record`, `predict.tf_record`,
    checkpoints, `eval_results.txt`, `test_results.tsv`), and `label_map.json`, `eval_metrics.json`, `predictions.tsv`.

    Raises:
      UserError: nothing to do, or files that are missing, malformed or do not fit together.
    """
    if not (options.do_train or options.do_eval or options.do_predict):
        raise UserError("nothing to do: give at least one of --do_train, --do_eval and --do_predict")
    processor = _processor(options)
    call = _Call(FineTuner(options), processor, options)
    call.prepare()
    if options.do_train:
        call.train()
    call.tuner.load_weights()
    results = call.evaluate() if options.do_eval else None
    if options.do_predict:
        call.predict()
    return results


def _processor(options: ClassifierOptions) -> classification.DataProcessor:
    columns = TsvLayout(
        text_a=options.text_a_column or "",
        text_b=options.text_b_column,
        label=options.label_column,
        id=options.id_column,
        header=options.header,
    )
    label_map = _known_labels(options)
    return classification.get_processor(options.task_name, tsv=columns, label_map=label_map)


def _known_labels(options: ClassifierOptions) -> classification.LabelMap | None:
    """The labels that the weights in use were trained for. A training that starts afresh finds its own."""
    if checkpoint.latest_checkpoint(options.output_dir):
        return classification.load_label_map(options.output_dir)
    if options.init_checkpoint and not options.do_train:
        return classification.load_label_map(os.path.dirname(options.init_checkpoint))
    return None


class _Call:
    """One call of run_classifier.py."""

    def __init__(self, tuner: FineTuner, processor: classification.DataProcessor, options: ClassifierOptions):
        self.tuner = tuner
        self._processor = processor
        self._options = options
        self._train: Sequence[classification.InputExample] = ()
        self._dev: tuple[Sequence[classification.InputExample], str] | None = None

    def prepare(self) -> None:
        """Reads what decides on the labels, and builds the model for them."""
        if self._options.do_train:
            self._train = self._processor.get_train_examples(self._options.data_dir)
        self._labels = self._processor.get_labels()
        self._kind = classification.record_kind(self._labels)
        regression = self._processor.task.regression
        self.tuner.make_model(
            lambda config, dtype: heads.ClassifierModel(
                config, num_labels=len(self._labels), regression=regression, dtype=dtype
            )
        )

    def _write(self, examples: Sequence[classification.InputExample], name: str) -> str:
        path = self.tuner.output_file(name)
        classification.file_based_convert_examples_to_features(
            examples, self._labels, self._options.max_seq_length, self.tuner.tokenizer, path
        )
        return path

    def train(self) -> None:
        path = self._write(self._train, "train.tf_record")
        classification.save_label_map(self._options.output_dir, self._processor.label_map())
        watching = self._options.eval_steps > 0
        self.tuner.train(
            path, self._kind, len(self._train), len(self._labels), self._main_measure if watching else None
        )

    def _dev_set(self) -> tuple[Sequence[classification.InputExample], str]:
        if self._dev is None:
            examples = self._processor.get_dev_examples(self._options.data_dir)
            self._dev = examples, self._write(examples, "eval.tf_record")
        return self._dev

    def _main_measure(self) -> tuple[str, float]:
        name = self._processor.task.main_measure
        return name, self._scores()[1][name]

    def _scores(self) -> tuple[dict[str, float], dict]:
        """The reference's results on the development set, and the task's own measures."""
        _, path = self._dev_set()
        batches = list(self.tuner.run(path, self._kind, self._options.eval_batch_size, len(self._labels)))
        losses = np.concatenate([batch["example_loss"] for batch in batches])
        labels = np.concatenate([batch["label_ids"] for batch in batches])
        outputs = np.concatenate([batch["probabilities"] for batch in batches])
        results = {
            "eval_loss": np.float32(losses.mean(dtype=np.float64)),
            # The mean of the batches' means: a smaller last batch counts in full, as in the reference.
            "loss": np.float32(np.mean([batch["example_loss"].mean() for batch in batches])),
            "global_step": self.tuner.global_step,
        }
        if not self._processor.task.regression:
            results["eval_accuracy"] = np.float32(np.mean(outputs.argmax(axis=-1) == labels))
        return results, metrics.compute_metrics(self._processor.task, labels, outputs, self._labels)

    def evaluate(self) -> dict[str, float]:
        examples, _ = self._dev_set()
        logging.info("***** Running evaluation *****")
        logging.info("  Num examples = %d", len(examples))
        results, measures = self._scores()
        training.write_eval_results(self._options.output_dir, results)
        write_json(self.tuner.output_file("eval_metrics.json"), measures)
        for name in self._processor.task.measures:
            logging.info("  %s = %.4f", name, measures[name])
        return results

    def predict(self) -> None:
        examples = self._processor.get_test_examples(self._options.data_dir)
        path = self._write(examples, "predict.tf_record")
        logging.info("***** Running prediction *****")
        logging.info("  Num examples = %d", len(examples))
        batches = self.tuner.run(path, self._kind, self._options.predict_batch_size, len(self._labels))
        probabilities = np.concatenate([batch["probabilities"] for batch in batches])
        classification.write_test_results(self.tuner.output_file("test_results.tsv"), probabilities)
        classification.write_predictions(
            self.tuner.output_file("predictions.tsv"),
            [example.guid for example in examples],
            self._labels,
            probabilities,
        )

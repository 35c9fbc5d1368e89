"""Sentence and sentence-pair classification as a whole: what run_classifier.py does once its flags are read."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from absl import logging

from bert_tf2 import heads
from bert_tf2.finetuning import classification
from bert_tf2.finetuning.classification import scores as metrics
from bert_tf2.finetuning.classification.tasks import TsvLayout
from bert_tf2.finetuning.driver import FineTuneOptions, FineTuner, known_labels, tell_summary, write_json
from bert_tf2.support.errors import UserError
from bert_tf2.training import loop as training


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierOptions(FineTuneOptions):
    """The settings of one call; each is the flag of the same name of run_classifier.py."""

    data_dir: str
    task_name: str
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
    """Trains, evaluates, predicts, exports; returns the evaluation's results if there is one.

    Writes into output_dir what the reference writes (`train.tf_record`, `eval.tf_record`, `predict.tf_record`,
    checkpoints, `eval_results.txt`, `test_results.tsv`), and `label_map.json`, `eval_metrics.json`, `predictions.tsv`.

    Raises:
      UserError: nothing to do, or files that are missing, malformed or do not fit together.
    """
    if not (options.do_train or options.do_eval or options.do_predict or options.do_export):
        raise UserError("nothing to do: give at least one of --do_train, --do_eval, --do_predict and --do_export")
    with FineTuner(options) as tuner:
        call = _Call(tuner, _processor(options), options)
        if options.do_train:
            call.train()
        results = call.evaluate() if options.do_eval else None
        if options.do_predict:
            call.predict()
        if options.do_export:
            call.export()
        call.tell_summary()
    return results


def _processor(options: ClassifierOptions) -> classification.TaskProcessor:
    columns = TsvLayout(
        text_a=options.text_a_column or "",
        text_b=options.text_b_column,
        label=options.label_column,
        id=options.id_column,
        header=options.header,
    )
    return classification.get_processor(options.task_name, tsv=columns, label_map=known_labels(options))


class _Call:
    """One call of run_classifier.py."""

    def __init__(self, tuner: FineTuner, processor: classification.TaskProcessor, options: ClassifierOptions):
        """Reads all tables that will be needed, for a fault in the last one should not show after hours of training.

        Then it builds the model for the labels.
        """
        self._tuner = tuner
        self._processor = processor
        self._options = options
        self._watching = options.do_train and options.eval_steps > 0
        self._written: list[str] = []
        self._figures: dict[str, float] | None = None
        self._exported: str | None = None
        folder = options.data_dir
        self._train = processor.get_train_examples(folder) if options.do_train else []
        self._dev = processor.get_dev_examples(folder) if options.do_eval or self._watching else []
        self._test = processor.get_test_examples(folder) if options.do_predict else []
        self._check(tuner)
        self._labels = processor.get_labels()
        self._kind = classification.record_kind(self._labels)
        tuner.make_model(
            lambda config, dtype: heads.ClassifierModel(
                config, num_labels=len(self._labels), regression=processor.task.regression, dtype=dtype
            )
        )

    def _check(self, tuner: FineTuner) -> None:
        """What shows before anything is computed or written. Raises UserError."""
        if self._train:
            tuner.num_train_steps(len(self._train))
        if any(example.text_b is not None for examples in (self._train, self._dev, self._test) for example in examples):
            tuner.config.check_pairs(f"the task {self._processor.task.name}")

    def _write(self, examples: Sequence[classification.InputExample], name: str) -> str:
        path = self._tuner.record_file(name)
        classification.file_based_convert_examples_to_features(
            examples, self._labels, self._options.max_seq_length, self._tuner.tokenizer, path,
            # One example is enough, and one of the test table would show a label that it does not have.
            log_level=logging.DEBUG if self._train and examples is not self._train else logging.INFO,
        )  # fmt: skip
        return path

    def train(self) -> None:
        path = self._write(self._train, "train.tf_record")
        self._tuner.save_labels(self._processor.label_map())
        measure = self._main_measure if self._watching else None
        self._tuner.train(path, self._kind, len(self._train), len(self._labels), measure)

    @functools.cached_property
    def _dev_records(self) -> str:
        return self._write(self._dev, "eval.tf_record")

    def _main_measure(self) -> tuple[str, float]:
        name = self._processor.task.main_measure
        return name, self._scores()[1][name]

    def _scores(self) -> tuple[dict[str, float], dict]:
        """The reference's results on the development set, and the task's own measures."""
        batches = list(
            self._tuner.run(
                self._dev_records, self._kind, self._options.eval_batch_size, len(self._labels), total=len(self._dev)
            )
        )
        losses = np.concatenate([batch["example_loss"] for batch in batches])
        labels = np.concatenate([batch["label_ids"] for batch in batches])
        outputs = np.concatenate([batch["probabilities"] for batch in batches])
        results = {
            "eval_loss": np.float32(losses.mean(dtype=np.float64)),
            # The mean of the batches' means: a smaller last batch counts in full, as in the reference.
            "loss": np.float32(np.mean([batch["example_loss"].mean() for batch in batches])),
            "global_step": self._tuner.global_step,
        }
        if not self._processor.task.regression:
            results["eval_accuracy"] = np.float32(np.mean(outputs.argmax(axis=-1) == labels))
        return results, metrics.compute_metrics(self._processor.task, labels, outputs, self._labels)

    def evaluate(self) -> dict[str, float]:
        results, measures = self._scores()
        training.write_eval_results(self._options.output_dir, results)
        write_json(self._tuner.output_file("eval_metrics.json"), measures)
        self._figures = {name: measures[name] for name in self._processor.task.measures}
        self._written += ["eval_results.txt", "eval_metrics.json"]
        return results

    def predict(self) -> None:
        path = self._write(self._test, "predict.tf_record")
        batches = self._tuner.run(
            path, self._kind, self._options.predict_batch_size, len(self._labels),
            what="Predicting", total=len(self._test),
        )  # fmt: skip
        probabilities = np.concatenate([batch["probabilities"] for batch in batches])
        classification.write_test_results(self._tuner.output_file("test_results.tsv"), probabilities)
        classification.write_predictions(
            self._tuner.output_file("predictions.tsv"),
            [example.guid for example in self._test],
            self._labels,
            probabilities,
        )
        self._written += ["test_results.tsv", "predictions.tsv"]

    def export(self) -> None:
        self._exported = self._tuner.export("classifier", labels=self._processor.label_map())

    def tell_summary(self) -> None:
        switches = ("do_eval", "do_predict", "do_export")
        tell_summary(self._options, "run_classifier.py", self._written, self._figures, switches, self._exported)

"""Classification of sentences and sentence pairs, as the driver's task: what run_classifier.py does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from bert_tf2 import heads, records
from bert_tf2.finetuning import classification, driver
from bert_tf2.finetuning.classification import scores as metrics
from bert_tf2.finetuning.classification.features import convert_examples
from bert_tf2.finetuning.classification.options import ClassifierOptions
from bert_tf2.finetuning.driver import Batches, Export, Scores, known_labels
from bert_tf2.weights.labels import LabelMap


def run(options: ClassifierOptions, export: Export | None = None) -> dict[str, Any] | None:
    """Trains, evaluates, predicts, exports; see driver.run.

    Writes into output_dir what the reference writes (`train.tf_record`, `eval.tf_record`, `predict.tf_record`,
    checkpoints, `eval_results.txt`, `test_results.tsv`), and `label_map.json`, `eval_metrics.json`, `predictions.tsv`.
    """
    return driver.run(ClassifierTask(options), export)


class ClassifierTask(driver.Task):
    """A task of the table in `tasks`, or the user's own tables."""

    script = "run_classifier.py"
    export_as = "classifier"
    options: ClassifierOptions

    def __init__(self, options: ClassifierOptions):
        super().__init__(options)
        self._processor = classification.get_processor(
            options.task_name, tsv=options.columns, label_map=known_labels(options)
        )

    def read(self, part: str) -> Sequence[classification.InputExample]:
        read = {
            "train": self._processor.get_train_examples,
            "eval": self._processor.get_dev_examples,
            "predict": self._processor.get_test_examples,
        }
        examples = read[part](self.options.data_dir)
        if any(example.text_b is not None for example in examples):
            self.config.check_pairs(f"the task {self._processor.task.name}")
        return examples

    def find_labels(self) -> LabelMap:
        return self._processor.label_map()

    def make_model(self, dtype: str) -> heads.ClassifierModel:
        regression = self._processor.task.regression
        return heads.ClassifierModel(
            self.config, num_labels=len(self.label_map.labels), regression=regression, dtype=dtype
        )

    def kind(self, part: str) -> records.RecordKind:
        return classification.record_kind(self.label_map.labels)

    def rows(self, part: str) -> Iterable[Mapping[str, Sequence]]:
        features = convert_examples(
            self.examples[part],
            self.label_map.labels,
            self.options.max_seq_length,
            self.tokenizer,
            # One example is enough, and one of the test table would show a label that it does not have.
            log_level=logging.DEBUG if part != next(iter(self.examples)) else logging.INFO,
        )
        return map(classification.as_record, features)

    def answers(self, part: str, batches: Batches) -> list[Mapping[str, np.ndarray]]:
        return list(batches)

    def score(self, part: str, answers: list[Mapping[str, np.ndarray]]) -> Scores:
        """The reference's results, and the task's own measures."""
        task = self._processor.task
        losses, labels, outputs = (_column(answers, name) for name in ("example_loss", "label_ids", "probabilities"))
        results = {
            "eval_loss": np.float32(losses.mean(dtype=np.float64)),
            # The mean of the batches' means: a smaller last batch counts in full, as in the reference.
            "loss": np.float32(np.mean([batch["example_loss"].mean() for batch in answers])),
        }
        if not task.regression:
            results["eval_accuracy"] = np.float32(np.mean(outputs.argmax(axis=-1) == labels))
        measures = metrics.compute_metrics(task, labels, outputs, self.label_map.labels)
        return Scores(measures, task.main_measure, task.measures, results)

    def write(self, part: str, answers: list[Mapping[str, np.ndarray]]) -> Sequence[str]:
        probabilities = _column(answers, "probabilities")
        guids = [example.guid for example in self.examples[part]]
        folder, labels = self.options.output_dir, self.label_map.labels
        classification.write_test_results(f"{folder}/test_results.tsv", probabilities)
        classification.write_predictions(f"{folder}/predictions.tsv", guids, labels, probabilities)
        return ["test_results.tsv", "predictions.tsv"]


def _column(batches: Sequence[Mapping[str, np.ndarray]], name: str) -> np.ndarray:
    return np.concatenate([batch[name] for batch in batches])

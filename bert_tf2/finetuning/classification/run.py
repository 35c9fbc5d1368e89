"""Classification of sentences and sentence pairs, as a task of the driver: implements run_classifier.py."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from bert_tf2 import heads
from bert_tf2.data import batching, records
from bert_tf2.finetuning import classification, distillation
from bert_tf2.finetuning.classification import results as outcome
from bert_tf2.finetuning.classification.examples import balanced_weights, labels_of
from bert_tf2.finetuning.options import ClassifierOptions
from bert_tf2.finetuning.tables import score_table, shortened
from bert_tf2.finetuning.task import Batches, FineTuningTask, Scores
from bert_tf2.long_texts import Windows
from bert_tf2.support.errors import and_more
from bert_tf2.training import driver
from bert_tf2.training.driver import Export
from bert_tf2.weights.task_file import LabelMap


def run(options: ClassifierOptions, export: Export | None = None) -> dict[str, Any] | None:
    """Trains, evaluates, predicts, exports; see driver.run.

    Writes into output_dir the files of the reference and `label_map.json`, `eval_metrics.json`, `predictions.tsv`;
    also `confusion_matrix.png` if matplotlib is installed.
    """
    return driver.run(ClassifierTask(options), export)


class ClassifierTask(FineTuningTask):
    """A task of the table in `tasks`, or the user's own tables."""

    export_as = "classifier"
    options: ClassifierOptions

    def __init__(self, options: ClassifierOptions):
        super().__init__(options)
        self._processor = classification.get_processor(
            options.task_name,
            tsv=options.columns,
            label_map=self.known_labels(),
            flag=self.flag_of_weights or "--output_dir",
        )

    @property
    def purpose(self) -> dict[str, str | bool]:
        task = self._processor.task
        return {"task": task.name} | ({} if task.pairs is None else {"pairs": task.pairs})

    def read(self, part: str) -> Sequence[classification.InputExample]:
        if part == "train" and self._processor.task.labels is None:
            self._processor.initial_labels = self.initial_labels()
        examples = self._processor.read(self.options.data_dir, part)
        if any(example.text_b is not None for example in examples):
            self.config.check_pairs(f"the task {self._processor.task.name}")
        if part == "train" and not self._processor.task.regression:  # a wrong label is a class of its own
            counts = collections.Counter(label for example in examples for label in labels_of(example))
            shown = [f"{shortened(str(label), 40)} ({count:,})" for label, count in counts.most_common()]
            logging.info("The labels, and how often each occurs: %s", and_more(shown, 12))
        return examples

    def find_labels(self) -> LabelMap:
        label_map = self._processor.label_map()
        initial, labels = self.initial_labels(), label_map.labels
        if initial != labels and {*initial} == {*labels}:
            what = "%s: its head has the labels in the order %s; the task has the order %s; the head must learn it"
            logging.warning(what, self.source.path, and_more(initial), and_more(labels))
        return label_map

    def make_model(self, dtype: str) -> heads.ClassifierModel:
        label_map = self.label_map
        model = heads.ClassifierModel(
            self.config,
            num_labels=len(label_map.labels),
            regression=label_map.regression,
            multi_label=label_map.multi_label,
            windows=self.windows,
            dtype=dtype,
        )
        if self.options.do_train and self.options.class_weights:
            model.class_weights = balanced_weights(self.examples["train"], label_map)
        model.teacher = distillation.teacher_of(self)
        return model

    @property
    def windows(self) -> Windows | None:
        """How long texts are divided; None if they are cut."""
        options = self.options
        return Windows(options.max_seq_length, options.doc_stride, options.pooling) if options.doc_stride else None

    @property
    def transform(self) -> Callable | None:
        return batching.padded_texts if self.windows else None

    def export_settings(self) -> dict[str, Any]:
        pooling = self.options.pooling if self.windows else None
        return {**super().export_settings(), "stride": self.options.doc_stride, "pooling": pooling}

    def kind(self, part: str) -> records.RecordKind:
        kind = classification.record_kind(self.label_map.labels, self.label_map.multi_label)
        return records.WHOLE_TEXTS[kind.name] if self.windows else kind

    def features(self, part: str) -> Iterable[Mapping[str, Sequence]]:
        settings = (self.label_map.labels, None if self.windows else self.options.max_seq_length, self.tokenizer)
        return map(classification.as_record, classification.iterate_features(self.examples[part], *settings))

    def answers(self, part: str, batches: Batches) -> list[Mapping[str, np.ndarray]]:
        return list(batches)

    def score(self, answers: list[Mapping[str, np.ndarray]]) -> Scores:
        task = self._processor.task
        losses, labels, outputs = (_column(answers, name) for name in ("example_loss", "label_ids", "probabilities"))
        results = {
            "eval_loss": np.float32(losses.mean(dtype=np.float64)),
            # The mean of the batches' means, as in the reference: a smaller last batch has the weight of a full batch.
            "loss": np.float32(np.mean([batch["example_loss"].mean() for batch in answers])),
        }
        if not (task.regression or task.multi_label):
            results["eval_accuracy"] = np.float32(np.mean(outputs.argmax(axis=-1) == labels))
        measures = outcome.compute_metrics(task, labels, outputs, self.label_map.labels)
        if task.multi_label:
            results |= {name: np.float32(measures[name]) for name in task.measures}
        screen = score_table("Scores by label:", measures["per_class"]) if "per_class" in measures else ""
        return Scores(measures, task.main_measure, task.measures, results, screen)

    def draw(self, metrics: Mapping[str, Any]) -> Sequence[str]:
        """Draws the confusion matrix if there is one; only warns of errors, because the predictions come after it."""
        if "confusion_matrix" not in metrics:
            return ()
        path = os.path.join(self.options.output_dir, "confusion_matrix.png")
        try:
            outcome.draw_confusion_matrix(path, **metrics["confusion_matrix"])
        except Exception as error:
            logging.warning("confusion_matrix.png is not drawn: %s", error)
            return ()
        return ("confusion_matrix.png",)

    def write(self, answers: list[Mapping[str, np.ndarray]]) -> Sequence[str]:
        probabilities, labels = _column(answers, "probabilities"), self.label_map.labels
        guids, task = [example.guid for example in self.examples["predict"]], self._processor.task
        written = ("test_results.tsv", "predictions.tsv")
        results, predictions = (os.path.join(self.options.output_dir, name) for name in written)
        classification.write_test_results(results, probabilities)
        classification.write_predictions(predictions, guids, labels, probabilities, task.separator)
        return written


def _column(batches: Sequence[Mapping[str, np.ndarray]], name: str) -> np.ndarray:
    return np.concatenate([batch[name] for batch in batches])

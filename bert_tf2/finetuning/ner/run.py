"""Token classification, as a task of the driver: implements run_ner.py.

The reference has no such script. The setup follows section 5.3 of the paper: a label for the first piece of each word,
and optionally as much of the document around a sentence as fits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf2 import heads
from bert_tf2.finetuning import distillation, ner
from bert_tf2.finetuning.options import NerOptions
from bert_tf2.finetuning.tables import score_table, warn_of_similar
from bert_tf2.finetuning.task import Batches, FineTuningTask, Scores
from bert_tf2.support import progress
from bert_tf2.support.errors import UserError
from bert_tf2.training import driver
from bert_tf2.training.driver import Export
from bert_tf2.weights.task_file import LABEL_MAP_FILE, TAGGING_TASK, LabelMap

_MANY_TAGS = 100  # in a table of texts, almost every line would have a tag of its own
_MEASURES = ("precision", "recall", "f1", "accuracy")


def run(options: NerOptions, export: Export | None = None) -> dict[str, Any] | None:
    """Trains, evaluates, predicts into `predictions.txt`, exports; see driver.run."""
    return driver.run(NerTask(options), export)


class NerTask(FineTuningTask):
    """A tag for every word of a sentence; long sentences are divided into windows."""

    export_as = "ner"
    options: NerOptions

    def __init__(self, options: NerOptions):
        super().__init__(options)
        self._windows = functools.cache(self._make_windows)

    @property
    def purpose(self) -> dict[str, str | bool]:
        return {"task": TAGGING_TASK}

    def read(self, part: str) -> Sequence[ner.NerSentence]:
        columns = {name: getattr(self.options, name) for name in ("word_column", "tag_column")}
        columns = {name: column - 1 if column > 0 else column for name, column in columns.items()}  # from 0
        return ner.read_conll(getattr(self.options, f"{part}_file"), **columns, has_labels=part != "predict")

    def find_labels(self) -> LabelMap:
        found = self.known_labels(tagging=True) or self._labels_to_learn()
        for part in self.examples.keys() - {"predict"}:  # checks all tags before the training starts
            for sentence in self.examples[part]:
                ner.tag_ids(sentence, found.labels)
        return found

    def _labels_to_learn(self) -> LabelMap:
        if not self.options.do_train:
            folder = self.options.output_dir if self.source is None else self.source.folder
            raise UserError(
                f"{folder}: no {LABEL_MAP_FILE} is beside the weights, so the tags are not known; train first, or write"
                ' {"task": "ner", "labels": ["O", "B-PER"], "regression": false} into this file, with all tags in the'
                " order of the outputs"
            )
        labels = ner.tags_of(self.examples["train"])
        first_rows: dict[str, int] = {}
        for sentence in self.examples["train"]:
            for row, tag in zip(sentence.rows, sentence.tags, strict=True):
                first_rows.setdefault(tag, row)
        tags, words = len(first_rows), sum(len(sentence.words) for sentence in self.examples["train"])
        if len(labels) < 2 or tags > max(_MANY_TAGS, words / 2):
            problem = f"every word has the tag {labels[0]}" if len(labels) < 2 else f"{words} words have {tags} tags"
            raise UserError(f"{self.options.train_file}: {problem}, so there is nothing to learn; see --tag_column")
        warn_of_similar(self.options.train_file, first_rows)
        known = self.initial_labels(tagging=True)
        if sorted(known) in (
            sorted(labels),
            sorted(first_rows),
        ):  # earlier versions made no O for letters, such as B, M, E and S
            labels = known
        return LabelMap(TAGGING_TASK, tuple(labels), regression=False)

    def make_model(self, dtype: str) -> heads.TaggingModel:
        model = heads.TaggingModel(self.config, num_labels=self.label_map.num_labels, dtype=dtype)
        model.teacher = distillation.teacher_of(self)
        return model

    def export_settings(self) -> dict[str, Any]:
        return {**super().export_settings(), "doc_stride": self.options.doc_stride}

    def epoch_size(self) -> int:
        return len(self._windows("train"))

    def _make_windows(self, part: str) -> Sequence[ner.InputFeatures]:
        options = self.options
        return ner.convert_sentences_to_features(
            self.examples[part], self.label_map.labels, options.max_seq_length, self.tokenizer,
            options.doc_stride or None, options.document_context,
        )  # fmt: skip

    def features(self, part: str) -> Iterable[Mapping[str, Sequence]]:
        windows = self._windows(part)
        return progress.track(map(ner.as_record, windows), "Writing features", len(windows), "windows")

    def answers(self, part: str, batches: Batches) -> list[list[str]]:
        predictions = [np.asarray(row) for batch in batches for row in batch["predictions"]]
        return ner.assemble_tags(self.examples[part], self._windows(part), predictions, self.label_map.labels)

    def score(self, answers: list[list[str]]) -> Scores:
        is_plain = ner.is_plain(self.label_map.labels)
        score, each = (ner.score_plain, "tags") if is_plain else (ner.score, "types")
        scores = score([sentence.tags for sentence in self.examples["eval"]], answers)
        results = {name: scores[name] for name in _MEASURES}
        overall = {name: value for name, value in scores.items() if name != each}
        screen = score_table(f"Scores by {'tag' if is_plain else 'entity'}:", {**scores[each], "all": overall})
        return Scores(scores, "f1", _MEASURES[3:] if is_plain else _MEASURES[:3], results, screen)

    def write(self, answers: list[list[str]]) -> Sequence[str]:
        path = f"{self.options.output_dir}/predictions.txt"
        ner.write_predictions(self.options.predict_file, path, self.examples["predict"], answers)
        return ["predictions.txt"]

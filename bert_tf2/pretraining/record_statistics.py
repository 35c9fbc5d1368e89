"""What can be counted in records: lengths, padding, masks, labels."""

from __future__ import annotations

from collections import Counter

import numpy as np

from bert_tf2.data import schemas
from bert_tf2.data.record_checks import Batch
from bert_tf2.data.schemas import Columns, RecordKind


class Statistics:
    """Counts over batches of records of one kind.

    Attributes:
      kind: the kind of the records.
      records: their number. Records that only fill up a batch of a TPU (is_real_example 0) are not counted elsewhere.
      fillers: the number of such records.
      of_files: the number of records of each file.
      lengths: int64 [max_seq_length + 1], the number of records with so many tokens; of records without masks, up to
        the length of the longest.
      masked: int64 [max_predictions_per_seq + 1], the number of records with so many masked tokens.
      masked_ids: int64 [ids], how often each id of the vocabulary is to be predicted.
      unchanged: the number of masked positions that hold the token to predict.
      replacements: int64 [ids], how often each id stands at the other masked positions.
      words: the number of words that are masked as a whole, in records without masks.
      random_next: the number of records whose second text is random.
      labels: the number of each label: of records (classification; of SQuAD "answer" and "no answer") or of tokens.
      label_sum: the sum of the labels of a regression.
    """

    def __init__(self, kind: RecordKind, max_seq_length: int):
        self.kind = kind
        self.records = self.fillers = self.unchanged = self.words = self.random_next = 0
        self.of_files: Counter[str] = Counter()
        self.lengths = np.zeros(max_seq_length + 1, np.int64)
        self.masked = self.masked_ids = self.replacements = np.zeros(1, np.int64)
        self.labels: Counter = Counter()
        self.label_sum = 0.0

    def add(self, batch: Batch) -> None:
        features = batch.features
        self.records += len(batch)
        self.of_files[batch.path] += len(batch)
        if "is_real_example" in features:
            real = features["is_real_example"][:, 0] != 0
            self.fillers += int((~real).sum())
            features = {name: values[real] for name, values in features.items()}
        self.lengths = _count(self.lengths, (features["input_mask"] != 0).sum(axis=1))
        self.random_next += int((features.get("next_sentence_labels", np.zeros(0)) != 0).sum())
        if "masked_lm_positions" in features:
            self._add_masks(features)
        elif "word_lengths" in features:
            self.words += int((features["word_lengths"] != 0).sum())
        else:
            self._add_labels(features)

    def _add_masks(self, features: Columns) -> None:
        used = features["masked_lm_weights"] > 0
        ids = features["masked_lm_ids"][used]
        rows, columns = np.nonzero(used)
        inputs = features["input_ids"][rows, features["masked_lm_positions"][rows, columns]]
        self.masked = _count(self.masked, used.sum(axis=1))
        self.masked_ids = _count(self.masked_ids, ids)
        same = inputs == ids
        self.unchanged += int(same.sum())
        self.replacements = _count(self.replacements, inputs[~same])

    def _add_labels(self, features: Columns) -> None:
        labels = features.get("label_ids", np.zeros(0, np.int64))
        if self.kind is schemas.REGRESSION:
            self.label_sum += float(labels.sum(dtype=np.float64))
            return
        if self.kind is schemas.SQUAD_TRAIN:
            labels = np.where(features["is_impossible"] != 0, "no answer", "answer")
        elif self.kind is schemas.MULTI_LABEL:
            labels = np.nonzero(labels)[1]
        elif self.kind is schemas.TOKEN_TAGGING:  # -1 and padding are no labels
            labels = labels[(features["input_mask"] != 0) & (labels >= 0)]
        found, counts = np.unique(labels, return_counts=True)
        self.labels.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))

    @property
    def real(self) -> int:
        """The number of records that are not fillers."""
        return self.records - self.fillers

    @property
    def tokens(self) -> int:
        return int(self.lengths @ np.arange(len(self.lengths)))

    @property
    def predictions(self) -> int:
        """The number of masked tokens."""
        return int(self.masked @ np.arange(len(self.masked)))


def _count(counts: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Adds the numbers of small integers to the counts, which become longer if necessary."""
    more = np.bincount(values.reshape(-1), minlength=len(counts))
    more[: len(counts)] += counts
    return more

"""What can be counted in records: lengths, padding, masks, labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from bert_tf2.data import schemas
from bert_tf2.data.record_checks import Batch
from bert_tf2.data.schemas import RecordKind


class Statistics:
    """Counts over batches of records of one kind.

    Attributes:
      kind: the kind of the records.
      records: their number. Records that only fill up a batch of a TPU (is_real_example 0) are not counted elsewhere.
      fillers: the number of such records.
      of_files: the number of records of each file.
      max_seq_length: the length of each record, with padding; of records without masks, the length of the longest.
      lengths: int64 [max_seq_length + 1], the number of records with so many tokens.
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
        self.records = 0
        self.of_files: Counter[str] = Counter()
        self.fillers = 0
        self.lengths = np.zeros(max_seq_length + 1, np.int64)
        self.masked = np.zeros(1, np.int64)
        self.masked_ids = np.zeros(1, np.int64)
        self.replacements = np.zeros(1, np.int64)
        self.unchanged = 0
        self.words = 0
        self.random_next = 0
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

    def _add_masks(self, features: Mapping[str, np.ndarray]) -> None:
        used = features["masked_lm_weights"] > 0
        ids = features["masked_lm_ids"][used]
        rows, columns = np.nonzero(used)
        inputs = features["input_ids"][rows, features["masked_lm_positions"][rows, columns]]
        self.masked = _count(self.masked, used.sum(axis=1))
        self.masked_ids = _count(self.masked_ids, ids)
        same = inputs == ids
        self.unchanged += int(same.sum())
        self.replacements = _count(self.replacements, inputs[~same])

    def _add_labels(self, features: Mapping[str, np.ndarray]) -> None:
        if self.kind is schemas.SQUAD_TRAIN:
            without = int((features["is_impossible"] != 0).sum())
            self.labels.update({"no answer": without, "answer": len(features["is_impossible"]) - without})
        elif self.kind is schemas.REGRESSION:
            self.label_sum += float(features["label_ids"].sum(dtype=np.float64))
        elif self.kind is schemas.MULTI_LABEL:
            for label, count in enumerate((features["label_ids"] != 0).sum(axis=0).tolist()):
                self.labels[label] += count
        elif "label_ids" in features:
            labels = features["label_ids"]
            if self.kind is schemas.TOKEN_TAGGING:  # -1 and padding are no labels
                labels = labels[(features["input_mask"] != 0) & (labels >= 0)]
            found, counts = np.unique(labels, return_counts=True)
            self.labels.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))

    @property
    def max_seq_length(self) -> int:
        return len(self.lengths) - 1

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

    def padding(self) -> float:
        """The share of the positions that are padding."""
        return 1 - self.tokens / (self.real * self.max_seq_length) if self.real else 0.0

    def rows_when_packed(self) -> int:
        """The number of rows of max_seq_length that hold all records if several short ones share a row.

        The longest records are placed first, each into the fullest row that has room.
        """
        size, rows = self.max_seq_length, 0
        free = np.zeros(size + 1, np.int64)  # free[n]: the number of rows with n free positions
        for length in np.flatnonzero(self.lengths[1:])[::-1] + 1:
            left = self.lengths[length]
            while left:
                rooms = np.flatnonzero(free[length:])
                if len(rooms):
                    room = length + rooms[0]
                    moved = min(left, free[room])
                    free[room] -= moved
                    free[room - length] += moved
                    left -= moved
                else:
                    each = size // length
                    full, rest = divmod(left, each)
                    free[size - each * length] += full
                    free[size - rest * length] += bool(rest)
                    rows += int(full) + bool(rest)
                    left = 0
        return rows


def _count(counts: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Adds the numbers of small integers to the counts, which become longer if necessary."""
    if not values.size:
        return counts
    more = np.bincount(values.reshape(-1).astype(np.int64), minlength=len(counts))
    more[: len(counts)] += counts
    return more

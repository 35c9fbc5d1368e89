"""What a fine-tuning task is: an object with a few methods, as in ELECTRA (finetune/task.py there)."""

from __future__ import annotations

import abc
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf2.config import BertConfig
from bert_tf2.data import records
from bert_tf2.finetuning.options import FineTuneOptions
from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.weights import checkpoint, sources, task_file
from bert_tf2.weights.base import Weights
from bert_tf2.weights.task_file import LABEL_MAP_FILE, TAGGING_TASK, UNKNOWN_TASK, LabelMap, load_label_map, numbered

Batches = Iterator[Mapping[str, np.ndarray]]


class Scores(NamedTuple):
    """The scores of the answers."""

    metrics: dict[str, Any]  # all metrics, for `eval_metrics.json`
    main: str  # the key in `metrics` by which --eval_steps chooses the best weights; higher is better
    figures: Sequence[str]  # the keys of the metrics in the summary at the end of a run
    # for `eval_results.txt`, which the reference writes for some tasks; None for the others
    results: dict[str, float] | None = None
    screen: str = ""  # a table for the log, or ""


class Task(abc.ABC):
    """A fine-tuning task: its data in the parts "train", "eval" and "predict", the model, its answers and their scores.

    The driver sets `config`, `tokenizer` and `model` before it calls the methods that need them, and `read_all` sets
    `examples` (of the parts that the call needs) and `label_map` (None for a task without labels).
    """

    export_as: str  # the name of the task in export_saved_model.py
    unit = "examples"  # what a record contains, or "windows"
    predicted_part = "predict"  # the part whose answers are written
    config: BertConfig
    tokenizer: FullTokenizer

    def __init__(self, options: FineTuneOptions):
        self.options = options
        self.model = None
        self.examples: dict[str, Sequence] = {}
        self.label_map: LabelMap | None = None
        opens = flag_of_weights(options) == "--init_checkpoint"
        self.source: Weights | None = sources.open_weights(options.init_checkpoint) if opens else None

    def read_all(self) -> None:
        """Reads all parts, so that an error in the last one does not appear after hours of training."""
        options = self.options
        evaluates = options.do_eval or options.evaluates_during_training
        parts = {"train": options.do_train, "eval": evaluates} | ({self.predicted_part: True} if self.predicts else {})
        self.examples = {part: self.read(part) for part, is_needed in parts.items() if is_needed}
        self.label_map = self.find_labels()

    @property
    def predicts(self) -> bool:
        return self.options.do_predict

    @property
    @abc.abstractmethod
    def purpose(self) -> dict[str, str | bool]:
        """What the model is for: the name of the task, and facts about its data; see sources.check_task."""

    @abc.abstractmethod
    def read(self, part: str) -> Sequence:
        """The examples of a part. Raises UserError if its file is missing or malformed."""

    def find_labels(self) -> LabelMap | None:
        """The labels, after all parts have been read. Raises UserError if they are not known."""
        return None

    @abc.abstractmethod
    def make_model(self, dtype: str):
        """Creates the model, one of `heads`; `dtype` is a Keras dtype policy."""

    def epoch_size(self) -> int:
        return len(self.examples["train"])

    def kind(self, part: str) -> records.RecordKind:
        """The kind of the records of a part; defaults to what the model is trained on."""
        return self.model.record_kind

    @abc.abstractmethod
    def features(self, part: str) -> Iterable[Mapping[str, Sequence]]:
        """The records of a part: its examples as the model reads them. Called once for each part."""

    @abc.abstractmethod
    def answers(self, part: str, batches: Batches) -> Any:
        """Converts model outputs to answers; a batch contains the record's features and `model.outputs`."""

    @abc.abstractmethod
    def score(self, answers: Any) -> Scores:
        """Scores the answers of the part "eval" against the right ones."""

    @abc.abstractmethod
    def write(self, answers: Any) -> Sequence[str]:
        """Writes the answers of `predicted_part` into output_dir; returns the names of the files."""

    def draw(self, metrics: Mapping[str, Any]) -> Sequence[str]:
        """Draws the scores into output_dir; returns the names of the files."""
        return ()

    def export_settings(self) -> dict[str, Any]:
        """Fields of exporting.options.ExportOptions that the task adds."""
        return {"labels": self.label_map}


def flag_of_weights(options: FineTuneOptions) -> str | None:
    """The flag that names the fine-tuned weights that a call uses; None if it trains new ones."""
    if checkpoint.latest_checkpoint(options.output_dir):
        return "--output_dir"
    return "--init_checkpoint" if options.init_checkpoint and not options.do_train else None


def known_labels(options: FineTuneOptions, tagging: bool = False, opened: Weights | None = None) -> LabelMap | None:
    """The labels in label_map.json next to the weights in use, if it exists. A new training determines its own.

    `tagging`: whether the weights, perhaps `opened` already, must be for tagging words, and not for classification.
    """
    flag = flag_of_weights(options)
    if flag is None:
        return None
    if flag == "--output_dir":
        folder, label_map = options.output_dir, load_label_map(options.output_dir)
    else:
        source = opened or sources.open_weights(options.init_checkpoint)
        folder, label_map = source.folder, task_file.label_map_of(source)
        own_file = files.exists(os.path.join(folder, LABEL_MAP_FILE))
        single = label_map and label_map.labels and not label_map.multi_label
        nameless = single and not tagging and label_map.labels == numbered(label_map.num_labels)
        if nameless and (label_map.task == UNKNOWN_TASK or not own_file):
            return None  # Hugging Face's default names; the task has better ones
    if label_map:
        label_map.check_unique(folder)
    if label_map and (label_map.task == TAGGING_TASK) != tagging:
        raise UserError(
            f"{os.path.join(folder, LABEL_MAP_FILE)}: the model there was trained for the task"
            f" {label_map.task}, which this script does not do; give another {flag}"
        )
    return label_map

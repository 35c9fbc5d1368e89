"""Examples for classification: the tables of a task, read by its processor; and how much each class counts.

An empty list of labels means regression: the label is a number and the model has one output.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import os
from collections.abc import Mapping, Sequence

from absl import logging

from bert_tf2.data import records
from bert_tf2.finetuning.classification.tasks import SCORES, TASKS, Task, find_task
from bert_tf2.finetuning.tables import TsvLayout, as_number, read_rows, warn_of_similar
from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.tokenization import convert_to_unicode
from bert_tf2.weights.task_file import LABEL_MAP_FILE, LabelMap


@dataclasses.dataclass
class InputExample:
    """One row of a task: its name, one or two texts, and its label; a tuple if it may have several."""

    guid: str
    text_a: str
    text_b: str | None = None
    label: str | tuple[str, ...] | None = None


class DataProcessor:
    """Base class of the readers of a task, as in the reference."""

    def get_train_examples(self, data_dir: str) -> list[InputExample]:
        raise NotImplementedError

    def get_dev_examples(self, data_dir: str) -> list[InputExample]:
        raise NotImplementedError

    def get_test_examples(self, data_dir: str) -> list[InputExample]:
        raise NotImplementedError

    def get_labels(self) -> list[str]:
        """The labels, in the order of the model's outputs."""
        raise NotImplementedError

    @classmethod
    def _read_tsv(cls, input_file: str, quotechar: str | None = None) -> list[list[str]]:
        """The cells of all rows of a table. Quotation marks have no special meaning unless `quotechar` is given."""
        lines = files.read_lines(input_file)
        if quotechar is None:
            return [line.split("\t") for line in lines]
        return list(csv.reader((f"{line}\n" for line in lines), delimiter="\t", quotechar=quotechar))


class TaskProcessor(DataProcessor):
    """Reads the data sets of a task in `tasks`; a subclass may name its own."""

    task_name: str

    def __init__(self, task: Task | None = None, labels: Sequence[str] | None = None):
        """`labels`: for a task whose labels are collected from the training file, the labels of an earlier training."""
        self.task = task or find_task(self.task_name)
        self._labels = list(labels) if self.task.labels is None and labels else self.task.labels

    def read(self, data_dir: str, part: str) -> list[InputExample]:
        """The examples of a part; of the training table also the labels, if they are not known.

        As in the reference, every example of a test set has the first label (0 for a regression), which is not used.
        """
        task, table = self.task, self.task.tables[part]
        path = os.path.join(data_dir, table.file)
        if table.label is None and part != "predict":
            raise UserError(f"the task {task.name} has no label column, which is needed to train and evaluate")
        labels = self._labels if part == "train" else self.get_labels()
        examples: dict[int, InputExample] = {}  # by the row
        rows: dict[str, int] = {}  # label -> its first row, while the labels are collected
        for index, cells in read_rows(path, table):
            if cells.get("language", table.only) != table.only:
                continue
            label = cells.get("label", labels[0] if labels else "0")
            if task.multi_label:
                label = tuple(filter(None, (name.strip() for name in label.split(task.separator))))
            else:
                label = task.other_names_of_labels.get(label, label)
            if problem := label_problem(label, labels):
                raise UserError(f"{path}, row {index + 1}: {problem}")
            guid = table.guid.format(cells.get("id", index))
            example = examples[index + 1] = InputExample(guid, cells["text_a"], cells.get("text_b"), label)
            for name in labels_of(example) if labels is None else ():
                rows.setdefault(name, index + 1)
        if not examples:
            raise UserError(f"{path}: has no usable row" + (f" in the language {table.only!r}" if table.only else ""))
        if labels is None:
            self._labels = _collected(path, rows)
        if task.regression:
            _warn_of_scores(path, examples)
        if part == "predict" and table.id is not None:
            _warn_of_doubles(path, examples)
        return [*examples.values()]

    def get_train_examples(self, data_dir: str) -> list[InputExample]:
        return self.read(data_dir, "train")

    def get_dev_examples(self, data_dir: str) -> list[InputExample]:
        return self.read(data_dir, "eval")

    def get_test_examples(self, data_dir: str) -> list[InputExample]:
        return self.read(data_dir, "predict")

    def get_labels(self) -> list[str]:
        """The labels in the order of the outputs of the model; an empty list for a regression."""
        if self._labels is None:
            raise UserError(
                f"the labels of the task {self.task.name} are not known: train first,"
                f" or predict with the output folder of the training, whose {LABEL_MAP_FILE} holds them"
            )
        return list(self._labels)

    def label_map(self) -> LabelMap:
        return LabelMap(self.task.name, tuple(self.get_labels()), self.task.regression, self.task.multi_label)


# The processors of the reference, under their names there.
ColaProcessor, MnliProcessor, MrpcProcessor, XnliProcessor = (
    type(f"{name.title()}Processor", (TaskProcessor,), {"task_name": name, "__doc__": f"The task `{name}`."})
    for name in ("cola", "mnli", "mrpc", "xnli")
)


class _Registered(TaskProcessor):
    """The processor of a task that `register` added: checks what that of the user reads."""

    def read(self, data_dir: str, part: str) -> list[InputExample]:
        method = {"train": "get_train_examples", "eval": "get_dev_examples", "predict": "get_test_examples"}[part]
        labels, name = self.get_labels(), f"{method} of the task {self.task.name}"
        try:
            found = getattr(self.task.processor(), method)(data_dir)
        except NotImplementedError:
            raise UserError(f"there is no {name}, which this call needs") from None
        examples = []
        for number, example in enumerate(found or (), 1):
            # The label of a test set is not used, as in a table without labels.
            label = labels[0] if part == "predict" else str(example.label)
            try:
                text_a = convert_to_unicode(example.text_a)
                text_b = None if example.text_b is None else convert_to_unicode(example.text_b)
            except ValueError as error:
                raise UserError(f"{name}, example {number}: {error}") from None
            if problem := label_problem(label, labels):
                raise UserError(f"{name}, example {number}: {problem}")
            examples.append(InputExample(str(example.guid), text_a, text_b, label))
        if not examples:
            raise UserError(f"{name}: no example in {data_dir}")
        return examples


def register(task_name: str, processor: type[DataProcessor], measures: Sequence[str] = ("accuracy",)) -> None:
    """Adds a data set of one's own to run_classifier.py, for this process: `--task_name` may then be `task_name`.

        run_classifier.register("reviews", ReviewsProcessor)
        commands.run("run_classifier")                                # the script, with all its flags

    Args:
      task_name: its name, in upper or lower case.
      processor: has the methods of DataProcessor, as in a fork of the reference. Called without arguments.
      measures: the names of its scores (see `results.compute_metrics`), the one that --eval_steps compares first.
    """
    name = task_name.lower()
    if name == "tsv" or (name in TASKS and TASKS[name].processor is None):
        raise UserError(f"the name of the task {task_name!r} is taken; give the processor another one")
    labels = tuple(map(str, processor().get_labels()))
    if len({*labels}) < 2 or len({*labels}) < len(labels):
        raise UserError(f"the labels of the task {task_name!r} are {list(labels)}; two or more, each once, are needed")
    TASKS[name] = Task(name, {}, labels, tuple(measures), processor=processor)


def get_processor(
    task_name: str, *, tsv: TsvLayout | None = None, label_map: LabelMap | None = None, flag: str = "--output_dir"
) -> TaskProcessor:
    """The processor of a task: `tsv` has the columns of its tables, `label_map` the labels of the weights of `flag`."""
    task = find_task(task_name, tsv)
    kind = _Registered if task.processor else TaskProcessor
    if label_map is None:
        return kind(task)
    same_kind = (label_map.regression, label_map.multi_label) == (task.regression, task.multi_label)
    if not same_kind or task.labels not in (None, label_map.labels):
        several = label_map.multi_label != task.multi_label and label_map.task == task.name
        advice = f"{'give' if label_map.multi_label else 'leave out'} --multi_label, or " if several else ""
        raise UserError(
            f"{flag} holds a model of the task {label_map.task} ({label_map.describe()});"
            f" it does not fit the task {task.name}: {advice}give another {flag}"
        )
    return kind(task, label_map.labels)


def _collected(path: str, rows: Mapping[str, int]) -> list[str]:
    """The labels of a training table, sorted, from label -> its first row; warns of those that are alike."""
    if len(rows) < 2:
        what = repr(next(iter(rows))) if rows else "of none"
        raise UserError(f"{path}: every row has the label {what}; a classifier needs two labels or more")
    warn_of_similar(path, rows)
    return sorted(rows)


def _warn_of_scores(path: str, examples: Mapping[int, InputExample]) -> None:
    outside = [row for row, example in examples.items() if not SCORES[0] <= float(example.label) <= SCORES[1]]
    if outside:
        what = "%s: %d of %d scores are not between %g and %g, the first is %s in row %d"
        first = examples[outside[0]].label
        logging.warning(what, path, len(outside), len(examples), *SCORES, first, outside[0])


def _warn_of_doubles(path: str, examples: Mapping[int, InputExample]) -> None:
    first: dict[str, int] = {}
    for row, example in examples.items():
        if (before := first.setdefault(example.guid, row)) != row:
            what = "%s, row %d: the id %r was there in row %d; predictions.tsv has a line for each"
            return logging.warning(what, path, row, example.guid, before)


def labels_of(example: InputExample) -> tuple[str, ...]:
    """The labels of an example, whether it has one or may have several."""
    return example.label if isinstance(example.label, tuple) else (example.label,)


def label_problem(label: str | tuple[str, ...], labels: Sequence[str] | None) -> str | None:
    """What is wrong with a label, or None; `labels` is that of a TaskProcessor, None while the labels are collected."""
    if isinstance(label, tuple):
        problems = (label_problem(part, labels) for part in label)
        return next(filter(None, problems), None)
    if labels is None:
        empty = "the label is empty (give --multi_label if a text may have no label, or several)"
        return None if label.strip() else empty
    if labels:
        return None if label in labels else f"unknown label {label!r}; the known ones are {and_more(labels)}"
    score = as_number(label)
    is_score = score is not None and abs(score) < records.LARGEST_SCORE  # no NaN either
    return None if is_score else f"the score {label!r} is not a number"


def balanced_weights(examples: Sequence[InputExample], label_map: LabelMap) -> tuple[float, ...]:
    """The weights of heads.ClassifierModel.class_weights, so that every class has the same total weight.

    If a text may have several labels: so that the texts with a label have that of the texts without it.
    """
    labels, size = label_map.labels, len(examples)
    counts = collections.Counter(label for example in examples for label in labels_of(example))
    if label_map.multi_label:
        return tuple(max(1, size - counts[label]) / max(1, counts[label]) for label in labels)
    # A class without examples does not affect the loss, regardless of its weight.
    return tuple(size / (len(labels) * max(1, counts[label])) for label in labels)

"""Examples for classification: the tables of a task, read by its processor.

`get_processor(task_name)` gives the processor of a task; its `get_train_examples`, `get_dev_examples` and
`get_test_examples` read the tables. An empty list of labels means regression: the label is a number and the model has
one output. The paper describes the tasks in section 4.1 and appendix B.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import os
from collections.abc import Iterator, Sequence

from absl import logging

from bert_tf2.data import records
from bert_tf2.finetuning.classification.tasks import Task, find_task
from bert_tf2.finetuning.tables import Table, TsvLayout, doubtful_labels, read_rows
from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.weights.labels import LABEL_MAP_FILE, LabelMap


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
        """The training set."""
        raise NotImplementedError

    def get_dev_examples(self, data_dir: str) -> list[InputExample]:
        """The evaluation set."""
        raise NotImplementedError

    def get_test_examples(self, data_dir: str) -> list[InputExample]:
        """The test set."""
        raise NotImplementedError

    def get_labels(self) -> list[str]:
        """The labels, in the order of the model's outputs."""
        raise NotImplementedError

    @classmethod
    def _read_tsv(cls, input_file: str, quotechar: str | None = None) -> list[list[str]]:
        """The cells of all rows of a table. Quotation marks have no special meaning unless `quotechar` is given.

        Raises:
          UserError: the file is missing or is not UTF-8.
        """
        lines = files.read_lines(input_file)
        if quotechar is None:
            return [line.split("\t") for line in lines]
        return list(csv.reader((f"{line}\n" for line in lines), delimiter="\t", quotechar=quotechar))


class TaskProcessor(DataProcessor):
    """Reads the data sets of a task in `tasks`."""

    def __init__(self, task: Task, labels: Sequence[str] | None = None):
        """`labels`: for a task whose labels are collected from the training file, the labels of an earlier training."""
        self.task = task
        self._labels = list(labels) if task.labels is None and labels else task.labels

    def read(self, data_dir: str, part: str) -> list[InputExample]:
        """The examples of a part, one of `Task.tables`.

        From the training table this also collects the labels if they are not known. As in the reference, every example
        of a test set has the first label (0 for a regression), which is not used.

        Raises:
          UserError: the file is missing or empty, or has no usable row; a column or a label is missing or wrong; the
            labels are not known, or there are fewer than two.
        """
        table, training, testing = self.task.tables[part], part == "train", part.startswith("predict")
        labels = self._labels if training else self.get_labels()
        examples = list(_read_examples(data_dir, self.task, table, labels, needs_label=not testing))
        if labels is None:
            found = sorted({label for example in examples for label in labels_of(example)})
            if len(found) < 2:
                path, what = os.path.join(data_dir, table.file), repr(found[0]) if found else "of none"
                raise UserError(f"{path}: every row has the label {what}; a classifier needs two labels or more")
            self._labels = found
        return examples

    def get_train_examples(self, data_dir: str) -> list[InputExample]:
        """The training set; see `read`."""
        return self.read(data_dir, "train")

    def get_dev_examples(self, data_dir: str) -> list[InputExample]:
        """The evaluation set; see `read`."""
        return self.read(data_dir, "eval")

    def get_test_examples(self, data_dir: str) -> list[InputExample]:
        """The test set; see `read`."""
        return self.read(data_dir, "predict")

    def parts_in(self, data_dir: str, part: str) -> list[str]:
        """`part` ("eval" or "predict"), and such parts from other domains whose files exist."""
        further = {name: table for name, table in self.task.tables.items() if name.startswith(f"{part}_")}
        return [part, *(name for name, table in further.items() if files.exists(os.path.join(data_dir, table.file)))]

    def get_labels(self) -> list[str]:
        """The labels in the order of the outputs of the model; an empty list for a regression.

        Raises:
          UserError: the labels are collected from the training file, which has not been read.
        """
        if self._labels is None:
            raise UserError(
                f"the labels of the task {self.task.name} are not known: train first,"
                f" or predict with the output folder of the training, whose {LABEL_MAP_FILE} holds them"
            )
        return list(self._labels)

    def label_map(self) -> LabelMap:
        """The labels as they are saved with the checkpoint."""
        return LabelMap(self.task.name, tuple(self.get_labels()), self.task.regression, self.task.multi_label)


class ColaProcessor(TaskProcessor):
    """The task `cola`, under the reference's name."""

    def __init__(self):
        super().__init__(find_task("cola"))


class MnliProcessor(TaskProcessor):
    """The task `mnli`, under the reference's name."""

    def __init__(self):
        super().__init__(find_task("mnli"))


class MrpcProcessor(TaskProcessor):
    """The task `mrpc`, under the reference's name."""

    def __init__(self):
        super().__init__(find_task("mrpc"))


class XnliProcessor(TaskProcessor):
    """The task `xnli` in Chinese, under the reference's name."""

    def __init__(self):
        super().__init__(find_task("xnli"))


def get_processor(
    task_name: str,
    *,
    tsv: TsvLayout | None = None,
    language: str = "zh",
    label_map: LabelMap | None = None,
    flag: str = "--output_dir",
) -> TaskProcessor:
    """The processor of a task.

    Args:
      task_name: the value of `--task_name`, in upper or lower case.
      tsv: the columns of the task `tsv`.
      language: the language of XNLI; always `zh` in the reference.
      label_map: the labels that were saved with the checkpoint, or None.
      flag: the one that names the checkpoint, for the message.

    Raises:
      UserError: there is no task of this name, or the checkpoint was trained for other labels.
    """
    task = find_task(task_name, language, tsv)
    if label_map is None:
        return TaskProcessor(task)
    same_kind = (label_map.regression, label_map.multi_label) == (task.regression, task.multi_label)
    if not same_kind or task.labels not in (None, label_map.labels):
        several = label_map.multi_label != task.multi_label and label_map.task == task.name
        advice = f"{'give' if label_map.multi_label else 'leave out'} --multi_label, or " if several else ""
        raise UserError(
            f"{flag} holds a model of the task {label_map.task} ({label_map.describe()});"
            f" it does not fit the task {task.name}: {advice}give another {flag}"
        )
    return TaskProcessor(task, label_map.labels)


def _read_examples(
    data_dir: str, task: Task, table: Table, labels: Sequence[str] | None, needs_label: bool
) -> Iterator[InputExample]:
    """Yields the examples of one table; see TaskProcessor.read. `labels`: None while they are collected."""
    path = os.path.join(data_dir, table.file)
    if table.label is None and needs_label:
        raise UserError(f"the task {task.name} has no label column, which is needed to train and evaluate")
    number = 0
    rows: dict[str, list[int]] = collections.defaultdict(list)  # label -> its rows, while the labels are collected
    for index, cells in read_rows(path, table):
        if cells.get("language", table.only) != table.only:
            continue
        label = cells.get("label", labels[0] if labels else "0")
        if task.multi_label:
            label = tuple(filter(None, (part.strip() for part in label.split(task.separator))))
        else:
            label = task.other_names_of_labels.get(label, label)
        if problem := label_problem(label, labels):
            raise UserError(f"{path}, row {index + 1}: {problem}")
        example = InputExample(table.guid.format(cells.get("id", index)), cells["text_a"], cells.get("text_b"), label)
        if labels is None:
            for name in labels_of(example):
                rows[name].append(index + 1)
        number += 1
        yield example
    if not number:
        raise UserError(f"{path}: has no usable row" + (f" in the language {table.only!r}" if table.only else ""))
    for sentence in doubtful_labels(rows, number, task.separator, table.header) if labels is None else ():
        logging.warning("%s, %s", path, sentence)


def labels_of(example: InputExample) -> tuple[str, ...]:
    """The labels of an example, whether it has one or may have several."""
    return example.label if isinstance(example.label, tuple) else (example.label,)


def label_problem(label: str | tuple[str, ...], labels: Sequence[str] | None) -> str | None:
    """What is wrong with a label, or None; `labels` is that of a TaskProcessor, None while the labels are collected."""
    if isinstance(label, tuple):
        problems = (label_problem(part, labels) for part in label)
        return next(filter(None, problems), None)
    if labels is None:
        return None if label else "the label is empty (give --multi_label if a text may have no label, or several)"
    if not labels:
        return None if _is_number(label) else f"the score {label!r} is not a number"
    return None if label in labels else f"unknown label {label!r}; the known ones are {and_more(labels)}"


def _is_number(text: str) -> bool:
    try:
        return abs(float(text)) < records.LARGEST_SCORE  # no NaN either
    except ValueError:
        return False

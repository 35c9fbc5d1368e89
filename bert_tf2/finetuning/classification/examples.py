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
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence

from absl import logging

from bert_tf2.data import records
from bert_tf2.finetuning import label_checks
from bert_tf2.finetuning.classification.tasks import Table, Task, TsvLayout, find_task
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

    def get_train_examples(self, data_dir: str) -> list[InputExample]:
        """The training set. For the task `tsv` this also collects the labels if they are not known.

        Raises:
          UserError: see `_read_examples`; or there are fewer than two labels.
        """
        examples = list(_read_examples(data_dir, self.task, self.task.train, self._labels))
        if self._labels is None:
            found = sorted({label for example in examples for label in labels_of(example)})
            if len(found) < 2:
                path, what = os.path.join(data_dir, self.task.train.file), repr(found[0]) if found else "of none"
                raise UserError(f"{path}: every row has the label {what}; a classifier needs two labels or more")
            self._labels = found
        return examples

    def get_dev_examples(self, data_dir: str) -> list[InputExample]:
        """The evaluation set.

        Raises:
          UserError: see `_read_examples`; or the labels are not known.
        """
        return list(_read_examples(data_dir, self.task, self.task.dev, self.get_labels()))

    def get_test_examples(self, data_dir: str) -> list[InputExample]:
        """The test set. As in the reference every example has the first label (0 for a regression), which is not used.

        Raises:
          UserError: see `_read_examples`; or the labels are not known.
        """
        return list(_read_examples(data_dir, self.task, self.task.test, self.get_labels(), needs_label=False))

    def further_sets(self, data_dir: str, part: str) -> list[str]:
        """The names of the task's further sets whose files exist; MNLI has "mismatched". `part` is "dev" or "test"."""
        tables = {name: getattr(further, part) for name, further in self.task.further.items()}
        return [name for name, table in tables.items() if files.exists(os.path.join(data_dir, table.file))]

    def get_further_examples(self, data_dir: str, part: str, name: str) -> list[InputExample]:
        """A further evaluation set ("dev") or test set ("test").

        Raises:
          UserError: see `_read_examples`; or the labels are not known.
        """
        table = getattr(self.task.further[name], part)
        return list(_read_examples(data_dir, self.task, table, self.get_labels(), needs_label=part == "dev"))

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
    data_dir: str, task: Task, table: Table, labels: Sequence[str] | None, needs_label: bool = True
) -> Iterator[InputExample]:
    """Reads one table of a task.

    Raises:
      UserError: the file is missing (the message lists the files of the folder) or empty, or has no usable row, or a
        column is missing; a row has too many or too few columns, an unknown label, or a score that is not a number
        (rows are counted from 1 in messages).
    """
    path = os.path.join(data_dir, table.file)
    if table.label is None and needs_label:
        raise UserError(f"the task {task.name} has no label column, which is needed to train and evaluate")
    read_any = False
    rows: dict[str, list[int]] = collections.defaultdict(list)  # label -> its rows, while the labels are collected
    counts = set()
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
        if labels is None:
            found = label if task.multi_label else (label,)
            counts.add(len(found))
            for part in found:
                rows[part].append(index + 1)
        yield InputExample(table.guid.format(cells.get("id", index)), cells["text_a"], cells.get("text_b"), label)
        read_any = True
    if not read_any:
        raise UserError(f"{path}: has no usable row" + (f" in the language {table.only!r}" if table.only else ""))
    for sentence in _doubts(rows, counts, task, table):
        logging.warning("%s, %s", path, sentence)


def _doubts(rows: Mapping[str, Sequence[int]], counts: Collection[int], task: Task, table: Table) -> Iterator[str]:
    """Yields a sentence for each mistake that collected labels suggest. `counts`: the numbers of labels of the rows."""
    yield from label_checks.spelled_alike(rows)
    if not table.header:
        yield from label_checks.header_as_row(rows)
    doubts = [*label_checks.not_separated(rows, task.separator)]
    yield from doubts
    if task.multi_label and counts == {1} and not doubts:
        yield (
            f"every row has exactly one label: if labels are not separated by {task.separator!r} there, give"
            " --label_separator; if a text has one label, leave out --multi_label"
        )


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


def read_rows(path: str, table: Table) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields (index of the line from 0, `text_a` etc. -> cell) for each row below the header.

    Cells are separated by tabs, quotation marks have no special meaning, and a byte order mark is removed. The
    reference silently reads the wrong cells of a row with an extra tab. Here all rows must have the same number of
    columns; if `Table.any_width` is set, a warning reports the rows that have another number. The header is checked
    only if columns are looked up by name, because some files have a single word there.
    """
    lines = enumerate(line.split("\t") for line in files.read_lines(path, drop_bom=True))
    header = next(lines, (0, None))[1] if table.header else None
    allowed, numbers, broken, blank, widths = None, {}, [], [], _Widths()
    for index, cells in lines:
        if allowed is None:
            numbers, allowed = _find_columns(path, table, header, len(cells))
        if len(cells) in allowed:
            widths.add(len(cells), index + 1)
            if not cells[numbers["text_a"]].strip():
                blank.append(index + 1)
            yield index, {name: cells[number] for name, number in numbers.items()}
        elif table.skip_broken_rows:
            broken.append(index + 1)
        else:
            raise UserError(f"{path}, row {index + 1}: has {_columns(len(cells))} where {allowed.start} are expected")
    if allowed is None:
        raise UserError(f"{path}: has no row but the header" if header else f"{path}: is empty")
    if broken:
        logging.warning("%s: left out %d rows of a wrong width, the first is row %d", path, len(broken), broken[0])
    if blank:
        what = "%s: column %d has no text in row %s; fill it in, or leave the row out"
        logging.warning(what, path, numbers["text_a"] + 1, and_more(blank, 3))
    widths.warn(path)


class _Widths:
    """Counts how many columns the rows of a table have."""

    def __init__(self):
        self._rows: collections.Counter[int] = collections.Counter()
        self._first: dict[int, int] = {}

    def add(self, width: int, row: int) -> None:
        self._rows[width] += 1
        self._first.setdefault(width, row)

    def warn(self, path: str) -> None:
        """Warns if they differ: an extra cell at the end is harmless, but one in the middle shifts the rest."""
        if len(self._rows) < 2:
            return
        (usual, _), *_ = self._rows.most_common()
        row, width = min((row, width) for width, row in self._first.items() if width != usual)
        logging.warning(
            "%s: %d of %d rows do not have %d columns, the first is row %d with %d; cells are taken by the number of"
            " their column, so make sure that no TAB inside a text has moved them",
            path, self._rows.total() - self._rows[usual], self._rows.total(), usual, row, width,
        )  # fmt: skip


def _find_columns(path: str, table: Table, header: list[str] | None, width: int) -> tuple[dict[str, int], range]:
    """The columns of a table: ({`text_a` etc.: index from 0}, the numbers of columns that a row may have).

    Args:
      header: the cells of the header, or None.
      width: the number of columns of the first row.
    """
    wanted = {name: getattr(table, name) for name in ("text_a", "text_b", "label", "id", "language")}
    wanted = {name: column for name, column in wanted.items() if column is not None}
    if any(isinstance(column, str) for column in wanted.values()):
        width = len(header)
    numbers = {}
    for name, column in wanted.items():
        if isinstance(column, str) and column not in header:
            raise UserError(f"{path}: has no column {column!r}; its header is {and_more(header)}")
        if isinstance(column, str) and header.count(column) > 1:
            places = " and ".join(str(number) for number, cell in enumerate(header, 1) if cell == column)
            raise UserError(
                f"{path}, row 1: columns {places} are both called {column!r}; rename all but one, or give the number"
                " of the column"
            )
        numbers[name] = header.index(column) if isinstance(column, str) else column
        if numbers[name] >= width:
            row = 1 if header is None else 2
            column = f"column {numbers[name] + 1}"
            raise UserError(f"{path}, row {row}: has {_columns(width)}, but {name} is to come from {column}")
    _check_distinct(path, {name: number % width for name, number in numbers.items()})
    if table.any_width:
        return numbers, range(max(numbers.values()) + 1, sys.maxsize)
    return numbers, range(width, width + 1)


def _check_distinct(path: str, numbers: dict[str, int]) -> None:
    """Raises UserError if one column has two roles: a text that contains the label would make the task trivial."""
    used: dict[int, str] = {}
    for name in ("text_a", "text_b", "label", "id"):
        number = numbers.get(name)
        other = used.setdefault(number, name) if number is not None else name
        if other != name and (name != "id" or other == "label"):  # a row may be named by its text
            raise UserError(
                f"{path}: column {number + 1} would be {other} and {name} at once; give each a column of its own"
            )


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"

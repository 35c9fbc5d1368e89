"""The table of classification tasks: for each task its files, their columns, its labels and its measures.

A new task is one more entry here: no other module (examples, features, answers, scores) names a task. The four
tasks of the reference take their columns by number, as the reference does. The others take them by the names in the
header of the official GLUE files (Wang et al., 2018), which also detects the files of another task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from bert_tf2.support.errors import UserError

Column = int | str
"""A column of a table: its index from 0 (negative: from the end), or its name in the header."""


@dataclasses.dataclass(frozen=True)
class Table:
    """One file of a task.

    Attributes:
      file: its name inside the data folder.
      guid: the names of the examples; `{}` stands for the cell of column `id`, or for the index of the line from 0 if
        there is no such column.
      text_a, text_b, label, id: the columns to read; None if the table does not have the column, or it is not used.
      header: whether the first line is a header.
      language, only: read only the rows whose column `language` is `only` (XNLI has 15 languages in one file).
      skip_broken_rows: skip rows with too many or too few columns, with one warning, instead of raising an error.
      any_width: accept rows with more columns than are read, with one warning if the rows differ. For the tables of the
        reference, which indexes the cells from the left and never counts them.
      submission: for the test set of a GLUE task, the name of the file that gluebenchmark.com accepts.
    """

    file: str
    guid: str
    text_a: Column
    text_b: Column | None = None
    label: Column | None = None
    id: Column | None = None
    header: bool = True
    language: Column | None = None
    only: str = ""
    skip_broken_rows: bool = False
    any_width: bool = False
    submission: str | None = None


@dataclasses.dataclass(frozen=True)
class FurtherSet:
    """A second evaluation set and a second test set of a task, from another domain than the training set."""

    dev: Table
    test: Table


@dataclasses.dataclass(frozen=True)
class Task:
    """A classification or regression task.

    Attributes:
      name: the value of `--task_name`, in lower case.
      train, dev, test: the tables. A test table has no label column, since labels are not used for prediction.
      labels: in the order of the outputs of the classifier; None if they are collected from the training file. An empty
        tuple means regression: the label is a number.
      measures: the scores (see `scores`) that belong to the task, the main one first.
      other_names_of_labels: spelling in the files -> label.
      further: name -> tables that are evaluated and predicted in addition, if their files exist.
      separator: what separates the labels of a cell if a text may have several of them, or none; else None.
    """

    name: str
    train: Table
    dev: Table
    test: Table
    labels: tuple[str, ...] | None
    measures: tuple[str, ...] = ("accuracy",)
    other_names_of_labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    further: Mapping[str, FurtherSet] = dataclasses.field(default_factory=dict)
    separator: str | None = None

    @property
    def multi_label(self) -> bool:
        return self.separator is not None

    @property
    def regression(self) -> bool:
        return self.labels == ()

    @property
    def main_measure(self) -> str:
        """The measure by which checkpoints are compared; for every measure higher is better."""
        return self.measures[0]


_BINARY = ("0", "1")
_INFERENCE = ("contradiction", "entailment", "neutral")
_ENTAILED = ("entailment", "not_entailment")


def _glue(
    name: str,
    labels: tuple[str, ...],
    text_a: str,
    text_b: str | None = None,
    *,
    label: str = "label",
    train_id: str | None = None,
    test_id: str = "index",
    measures: tuple[str, ...] = ("accuracy",),
    skip_broken_rows: bool = False,
) -> Task:
    """A task in the common GLUE layout: train.tsv and dev.tsv with the same header, test.tsv without labels."""
    train = Table("train.tsv", "train-{}", text_a, text_b, label, train_id, skip_broken_rows=skip_broken_rows)
    dev = dataclasses.replace(train, file="dev.tsv", guid="dev-{}")
    test = Table("test.tsv", "test-{}", text_a, text_b, id=test_id, submission=f"{name.upper()}.tsv")
    return Task(name, train, dev, test, labels, measures)


def _cola() -> Task:
    train = Table("train.tsv", "train-{}", text_a=3, label=1, header=False, any_width=True)
    dev = dataclasses.replace(train, file="dev.tsv", guid="dev-{}")
    test = Table("test.tsv", "test-{}", text_a=1, any_width=True, submission="CoLA.tsv")
    return Task("cola", train, dev, test, _BINARY, ("matthews_correlation", "accuracy"))


def _mnli() -> Task:
    # The label is in the last column, whose index differs between the files, so all rows must have as many columns.
    train = Table("train.tsv", "train-{}", text_a=8, text_b=9, label=-1, id=0)
    dev = dataclasses.replace(train, file="dev_matched.tsv", guid="dev_matched-{}")
    test = dataclasses.replace(train, file="test_matched.tsv", guid="test-{}", label=None, any_width=True)
    mismatched = FurtherSet(
        dev=dataclasses.replace(dev, file="dev_mismatched.tsv", guid="dev_mismatched-{}"),
        test=dataclasses.replace(test, file="test_mismatched.tsv", guid="test_mismatched-{}", submission="MNLI-mm.tsv"),
    )
    test = dataclasses.replace(test, submission="MNLI-m.tsv")
    return Task("mnli", train, dev, test, _INFERENCE, further={"mismatched": mismatched})


def _mrpc() -> Task:
    train = Table("train.tsv", "train-{}", text_a=3, text_b=4, label=0, any_width=True)
    dev = dataclasses.replace(train, file="dev.tsv", guid="dev-{}")
    test = dataclasses.replace(train, file="test.tsv", guid="test-{}", label=None, submission="MRPC.tsv")
    return Task("mrpc", train, dev, test, _BINARY, ("f1", "accuracy"))


def _xnli(language: str) -> Task:
    """XNLI (Conneau et al., 2018). The reference does not read a test set; here it is xnli.test.tsv."""
    train = Table(f"multinli/multinli.train.{language}.tsv", "train-{}", text_a=0, text_b=1, label=2, any_width=True)
    dev = Table("xnli.dev.tsv", "dev-{}", text_a=6, text_b=7, label=1, language=0, only=language, any_width=True)
    test = dataclasses.replace(dev, file="xnli.test.tsv", guid="test-{}", label=None)
    return Task("xnli", train, dev, test, _INFERENCE, other_names_of_labels={"contradictory": "contradiction"})


TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        _cola(),
        _mnli(),
        _mrpc(),
        _xnli("zh"),
        _glue("sst-2", _BINARY, "sentence"),
        # One release of QQP has questions that contain a line break, which splits a row into two broken rows.
        _glue(
            "qqp",
            _BINARY,
            "question1",
            "question2",
            label="is_duplicate",
            train_id="id",
            test_id="id",
            measures=("f1", "accuracy"),
            skip_broken_rows=True,
        ),
        _glue("qnli", _ENTAILED, "question", "sentence", train_id="index"),
        _glue("rte", _ENTAILED, "sentence1", "sentence2", train_id="index"),
        _glue("wnli", _BINARY, "sentence1", "sentence2", train_id="index"),
        _glue("sts-b", (), "sentence1", "sentence2", label="score", train_id="index", measures=("spearman", "pearson")),
    )
}

_OTHER_NAMES = {"sst2": "sst-2", "stsb": "sts-b"}


@dataclasses.dataclass(frozen=True)
class TsvLayout:
    """The columns of user-defined tables (task `tsv`): train.tsv, dev.tsv and test.tsv.

    A column is given by its name in the header or by its number, counted from 1. `label` is not needed for prediction.
    Examples are named by their cell in column `id`; without this column they are named `train-1` and so on, by the
    index of the line from 0, as in the reference. With `separator` a cell may hold several labels, or none.
    """

    text_a: str
    text_b: str | None = None
    label: str | None = None
    id: str | None = None
    header: bool = True
    separator: str | None = None

    def task(self) -> Task:
        """The task that reads these tables; its labels are the labels of the training file, sorted.

        Raises:
          UserError: a column is 0, or a column is given by a name and the tables have no header.
        """
        columns = {name: self._column(name) for name in ("text_a", "text_b", "label", "id")}

        def table(part: str, **changes: None) -> Table:
            guid = "{}" if self.id else part + "-{}"
            return Table(f"{part}.tsv", guid, header=self.header, **{**columns, **changes})

        measures = ("accuracy",) if self.separator is None else ("micro_f1", "macro_f1", "exact_match")
        tables = (table("train"), table("dev"), table("test", label=None))
        return Task("tsv", *tables, labels=None, measures=measures, separator=self.separator)

    def _column(self, name: str) -> Column | None:
        value = getattr(self, name)
        if value is None or value == "":
            return None
        if not str(value).isdecimal():
            if not self.header:
                raise UserError(f"the column {name} of the tsv task is {value!r}: without a header, give its number")
            return value
        if int(value) == 0:
            raise UserError(f"the column {name} of the tsv task is 0: columns are counted from 1")
        return int(value) - 1


def find_task(task_name: str, language: str = "zh", tsv: TsvLayout | None = None) -> Task:
    """The task of this name, in upper or lower case.

    Args:
      task_name: one of TASKS, or `tsv`.
      language: the language of XNLI; the reference supports only Chinese.
      tsv: the columns of the task `tsv`.

    Raises:
      UserError: no such task, or `tsv` without its columns.
    """
    name = _OTHER_NAMES.get(task_name.lower(), task_name.lower())
    if name == "tsv":
        if tsv is None or tsv.text_a in (None, ""):
            raise UserError("the task tsv needs to know which column holds the text (text_a), by number or name")
        return tsv.task()
    if name not in TASKS:
        raise UserError(f"there is no task {task_name!r}; the known ones are {', '.join([*TASKS, 'tsv'])}")
    return _xnli(language) if name == "xnli" else TASKS[name]

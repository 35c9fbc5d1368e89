"""The table of classification tasks: for each task its files, their columns, its labels and its measures.

A new task is one more entry here, or a processor that `examples.register` adds: no other module names a task. The four
tasks of the reference take their columns by number, as the reference does. The others take them by the names in the
header of the official GLUE files (Wang et al., 2018), which also detects the files of another task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from bert_tf2.finetuning.tables import Table, TsvLayout
from bert_tf2.support.errors import UserError


@dataclasses.dataclass(frozen=True)
class Task:
    """A classification or regression task."""

    name: str  # the value of `--task_name`, in lower case
    # those of the parts "train", "eval" and "predict", and perhaps of sets from another domain, "eval_mismatched" and
    # "predict_mismatched", which are used if their files exist. A test table has no label column
    tables: Mapping[str, Table]
    # in the order of the outputs; None if they are collected from the training file; empty for a regression
    labels: tuple[str, ...] | None
    measures: tuple[str, ...] = ("accuracy",)  # the scores (see `scores`) that belong to the task, the main one first
    other_names_of_labels: Mapping[str, str] = dataclasses.field(default_factory=dict)  # spelling in the files -> label
    # what separates the labels of a cell if a text may have several of them, or none; else None
    separator: str | None = None
    # makes the DataProcessor that reads its examples instead of tables, if `examples.register` gave one
    processor: Callable[[], Any] | None = None

    @property
    def multi_label(self) -> bool:
        return self.separator is not None

    @property
    def regression(self) -> bool:
        return self.labels == ()

    @property
    def pairs(self) -> bool | None:
        """Whether its examples are pairs of texts; None if only they can tell."""
        return None if self.processor else self.tables["train"].text_b is not None

    @property
    def main_measure(self) -> str:
        """The measure by which checkpoints are compared; for every measure higher is better."""
        return self.measures[0]


SCORES = (0.0, 5.0)
"""The lowest and the highest score of STS-B, the one regression."""

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
    test = Table("test.tsv", "test-{}", text_a, text_b, id=test_id)
    return Task(name, {"train": train, "eval": dev, "predict": test}, labels, measures)


def _cola() -> Task:
    train = Table("train.tsv", "train-{}", text_a=3, label=1, header=False, any_width=True)
    dev = dataclasses.replace(train, file="dev.tsv", guid="dev-{}")
    test = Table("test.tsv", "test-{}", text_a=1, any_width=True)
    return Task("cola", {"train": train, "eval": dev, "predict": test}, _BINARY, ("matthews_correlation", "accuracy"))


def _mnli() -> Task:
    # The label is in the last column, whose index differs between the files, so all rows must have as many columns.
    train = Table("train.tsv", "train-{}", text_a=8, text_b=9, label=-1, id=0)
    dev = dataclasses.replace(train, file="dev_matched.tsv", guid="dev_matched-{}")
    test = dataclasses.replace(train, file="test_matched.tsv", guid="test-{}", label=None, any_width=True)
    tables = {
        "train": train,
        "eval": dev,
        "predict": test,
        "eval_mismatched": dataclasses.replace(dev, file="dev_mismatched.tsv", guid="dev_mismatched-{}"),
        "predict_mismatched": dataclasses.replace(test, file="test_mismatched.tsv", guid="test_mismatched-{}"),
    }
    return Task("mnli", tables, _INFERENCE)


def _mrpc() -> Task:
    train = Table("train.tsv", "train-{}", text_a=3, text_b=4, label=0, any_width=True)
    dev = dataclasses.replace(train, file="dev.tsv", guid="dev-{}")
    test = dataclasses.replace(train, file="test.tsv", guid="test-{}", label=None)
    return Task("mrpc", {"train": train, "eval": dev, "predict": test}, _BINARY, ("f1", "accuracy"))


def _xnli(language: str) -> Task:
    """XNLI (Conneau et al., 2018). The reference does not read a test set; here it is xnli.test.tsv."""
    train = Table(f"multinli/multinli.train.{language}.tsv", "train-{}", text_a=0, text_b=1, label=2, any_width=True)
    dev = Table("xnli.dev.tsv", "dev-{}", text_a=6, text_b=7, label=1, language=0, only=language, any_width=True)
    test = dataclasses.replace(dev, file="xnli.test.tsv", guid="test-{}", label=None)
    tables = {"train": train, "eval": dev, "predict": test}
    return Task("xnli", tables, _INFERENCE, other_names_of_labels={"contradictory": "contradiction"})


_OF_QQP = {"label": "is_duplicate", "train_id": "id", "test_id": "id", "measures": ("f1", "accuracy")}

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _cola(),
        _mnli(),
        _mrpc(),
        _xnli("zh"),
        _glue("sst-2", _BINARY, "sentence"),
        # One release of QQP has questions that contain a line break, which splits a row into two broken rows.
        _glue("qqp", _BINARY, "question1", "question2", **_OF_QQP, skip_broken_rows=True),
        _glue("qnli", _ENTAILED, "question", "sentence", train_id="index"),
        _glue("rte", _ENTAILED, "sentence1", "sentence2", train_id="index"),
        _glue("wnli", _BINARY, "sentence1", "sentence2", train_id="index"),
        _glue("sts-b", (), "sentence1", "sentence2", label="score", train_id="index", measures=("spearman", "pearson")),
    )
}

_OTHER_NAMES = {"sst2": "sst-2", "stsb": "sts-b"}


def find_task(task_name: str, language: str = "zh", tsv: TsvLayout | None = None) -> Task:
    """The task of this name, in upper or lower case.

    Args:
      task_name: one of TASKS, or `tsv`.
      language: the language of XNLI; the reference supports only Chinese.
      tsv: the columns of the task `tsv`.
    """
    name = _OTHER_NAMES.get(task_name.lower(), task_name.lower())
    if name == "tsv":
        if tsv is None or tsv.text_a in (None, ""):
            raise UserError("the task tsv needs to know which column holds the text (text_a), by number or name")
        tables = {"train": tsv.table("train"), "eval": tsv.table("dev"), "predict": tsv.table("test")}
        measures = ("accuracy",) if tsv.separator is None else ("micro_f1", "macro_f1", "exact_match")
        return Task("tsv", tables, None, measures, separator=tsv.separator)
    if name not in TASKS:
        raise UserError(f"there is no task {task_name!r}; the known ones are {', '.join([*TASKS, 'tsv'])}")
    return _xnli(language) if name == "xnli" else TASKS[name]

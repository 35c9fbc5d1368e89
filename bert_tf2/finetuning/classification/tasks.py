"""The table of classification tasks: for each task its files, their columns, its labels and its measures.

A new task is one more entry here, or a processor that `examples.register` adds: no other module names a task. The four
tasks of the reference take their columns by number, as the reference does. The others take them by the names in the
header of the official GLUE files (Wang et al., 2018), which also detects the files of another task.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any

from bert_tf2.finetuning.tables import Table, TsvLayout
from bert_tf2.support.settings import WrongSetting

_OF_CLASSES, _OF_SEVERAL = ("accuracy",), ("micro_f1", "macro_f1", "exact_match")
_OF_REGRESSION = ("spearman", "pearson")
# multi_label -> the measures that a task of labels may have besides the usual
OTHER_MEASURES = {False: ("f1", "matthews_correlation", "exact_match"), True: ("f1", "accuracy")}


@dataclasses.dataclass(frozen=True)
class Task:
    """A classification or regression task."""

    name: str  # the value of `--task_name`, in lower case
    # the tables of the parts "train", "eval" and "predict"; the table of "predict" has no label column
    tables: Mapping[str, Table]
    # in the order of the outputs; None if they are collected from the training file; empty for a regression
    labels: tuple[str, ...] | None
    measures: tuple[str, ...] = _OF_CLASSES  # names of scores of results.compute_metrics, the main score first
    other_names_of_labels: Mapping[str, str] = dataclasses.field(default_factory=dict)  # spelling in the files -> label
    # the separator between the labels of a cell; None if a text has exactly one label
    separator: str | None = None
    # the DataProcessor that reads the examples; None if they are read from `tables` (see `examples.register`)
    processor: Any = None

    @property
    def multi_label(self) -> bool:
        return self.separator is not None

    @property
    def regression(self) -> bool:
        return self.labels == ()

    @property
    def pairs(self) -> bool | None:
        """Whether its examples are pairs of texts; None if only the examples show whether they are pairs."""
        return None if self.processor is not None else self.tables["train"].text_b is not None

    def label_in(self, cells: Mapping[str, str], unused: str) -> str | tuple[str, ...]:
        """The label in a row, or `unused` if the table has no labels."""
        label = cells.get("label", unused)
        if self.separator is not None:
            return tuple(filter(None, (name.strip() for name in label.split(self.separator))))
        return self.other_names_of_labels.get(label, label)

    def remedy(self, part: str) -> str:
        """The remedy for a table that cannot be the task's table of this part; "" if flags name its columns."""
        if self.name not in TASKS:
            return ""
        table = self.tables[part]
        places = []
        for role in ("label", "text_a", "text_b"):
            if (column := getattr(table, role)) is not None:
                place = column + 1 if isinstance(column, int) else repr(column)
                places.append(f"{role} from {'the last column' if column == -1 else f'column {place}'}")
        return (
            f"is it the table of another task? {self.name} reads {', '.join(places)}"
            f"{'' if table.header else ', without a header'}; give the --task_name of this table, or --task_name=tsv,"
            " which takes labels and columns of your own"
        )

    @property
    def main_measure(self) -> str:
        """The measure by which checkpoints are compared; for every measure higher is better."""
        return self.measures[0]


SCORES = (0.0, 5.0)  # the lowest and the highest of STS-B

_BINARY = ("0", "1")
_INFERENCE = ("contradiction", "entailment", "neutral")
_ENTAILED = ("entailment", "not_entailment")


def _tables(train: Table, dev: dict[str, Any] | None = None, test: dict[str, Any] | None = None) -> dict[str, Table]:
    """The tables of a task; `dev`: the changes from `train` to the eval table, `test`: from there to predict."""
    dev_table = dataclasses.replace(train, **{"file": "dev.tsv", "guid": "dev-{}", **(dev or {})})
    test_table = dataclasses.replace(
        dev_table, **{"file": "test.tsv", "guid": "test-{}", "label": None, **(test or {})}
    )
    return {"train": train, "eval": dev_table, "predict": test_table}


def _glue(
    name: str,
    labels: tuple[str, ...],
    *texts: str,
    label: str = "label",
    train_id: str | None = "index",
    test_id: str = "index",
    measures: tuple[str, ...] = _OF_CLASSES,
    skip_broken_rows: bool = False,
) -> Task:
    """A task in the common GLUE layout: train.tsv and dev.tsv with the same header, test.tsv without labels."""
    of_text = dict(zip(("text_a", "text_b"), texts, strict=False))
    train = Table("train.tsv", "train-{}", **of_text, label=label, id=train_id, skip_broken_rows=skip_broken_rows)
    return Task(name, _tables(train, test={"id": test_id, "skip_broken_rows": False}), labels, measures)


_COLA = Table("train.tsv", "train-{}", text_a=3, label=1, header=False, any_width=True)
# The label is in the last column, whose index differs between the files, so all rows must have as many columns.
_MNLI = Table("train.tsv", "train-{}", text_a=8, text_b=9, label=-1, id=0)
_MRPC = Table("train.tsv", "train-{}", text_a=3, text_b=4, label=0, any_width=True)
# In Chinese (Conneau et al., 2018). The reference does not read a test set; here it is xnli.test.tsv.
_XNLI = Table("multinli/multinli.train.zh.tsv", "train-{}", text_a=0, text_b=1, label=2, any_width=True)
_XNLI_DEV = {"file": "xnli.dev.tsv", "text_a": 6, "text_b": 7, "label": 1, "language": 0, "only": "zh"}
_MNLI_DEV = {"file": "dev_matched.tsv", "guid": "dev_matched-{}"}
_OF_QQP = {"label": "is_duplicate", "train_id": "id", "test_id": "id", "measures": ("f1", "accuracy")}

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("cola", _tables(_COLA, test={"text_a": 1, "header": True}), _BINARY, ("matthews_correlation", "accuracy")),
        Task("mnli", _tables(_MNLI, _MNLI_DEV, {"file": "test_matched.tsv", "any_width": True}), _INFERENCE),
        Task("mrpc", _tables(_MRPC), _BINARY, ("f1", "accuracy")),
        Task(
            "xnli",
            _tables(_XNLI, _XNLI_DEV, {"file": "xnli.test.tsv"}),
            _INFERENCE,
            other_names_of_labels={"contradictory": "contradiction"},
        ),
        _glue("sst-2", _BINARY, "sentence", train_id=None),
        # One release of QQP has questions that contain a line break, which splits a row into two broken rows.
        _glue("qqp", _BINARY, "question1", "question2", **_OF_QQP, skip_broken_rows=True),
        _glue("qnli", _ENTAILED, "question", "sentence"),
        _glue("rte", _ENTAILED, "sentence1", "sentence2"),
        _glue("wnli", _BINARY, "sentence1", "sentence2"),
        _glue("sts-b", (), "sentence1", "sentence2", label="score", measures=_OF_REGRESSION),
    )
}

_OTHER_NAMES = {"sst2": "sst-2", "stsb": "sts-b"}
# The tasks that `examples.register` added. They are made late, because their labels may depend on flags.
REGISTERED: dict[str, Callable[[], Task]] = {}


def usual_measures(multi_label: bool, regression: bool) -> tuple[str, ...]:
    """The measures of a task that names none."""
    return _OF_REGRESSION if regression else _OF_SEVERAL if multi_label else _OF_CLASSES


def find_task(task_name: str, tsv: TsvLayout | None = None) -> Task:
    """The task of this name, in upper or lower case; `tsv` has the columns of the task `tsv`."""
    name = _OTHER_NAMES.get(task_name.lower(), task_name.lower())
    if name == "tsv":
        if tsv is None or tsv.text_a in (None, ""):
            raise WrongSetting(
                "--task_name=tsv needs --text_a_column, the column of the text: its name in the header, or its number"
            )
        tables = {"train": tsv.table("train"), "eval": tsv.table("dev"), "predict": tsv.table("test")}
        measures = usual_measures(tsv.separator is not None, tsv.regression)
        return Task("tsv", tables, () if tsv.regression else None, measures, separator=tsv.separator)
    if name in REGISTERED:
        return REGISTERED[name]()
    if name not in TASKS:
        known = [*TASKS, *REGISTERED, "tsv"]
        near = "".join(f"; did you mean {each}?" for each in difflib.get_close_matches(name, known, n=1))
        raise WrongSetting(
            f"--task_name: there is no task {task_name!r}{near}; the known tasks are {', '.join(known)}; give tsv for a"
            " table of your own, or register your own DataProcessor (docs/migrating.md)"
        )
    return TASKS[name]

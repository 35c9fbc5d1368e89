"""Classification: processors read the tables of a task as examples.

An empty list of labels means regression: the label is a number and the model has one output.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf2 import tokenization
from bert_tf2.data import records
from bert_tf2.finetuning.classification.tasks import (
    OTHER_MEASURES,
    REGISTERED,
    SCORES,
    TASKS,
    Task,
    find_task,
    usual_measures,
)
from bert_tf2.finetuning.tables import TsvLayout, as_number, read_rows, shortened, warn_of_amounts, warn_of_similar
from bert_tf2.support import errors, files
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.weights.task_file import LABEL_MAP_FILE, LabelMap


@dataclasses.dataclass
class InputExample:
    """One row of a task: its name, one or two texts, and its label (a tuple of labels if it may have several)."""

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
        """The cells of all rows of a table; an empty line has none. Quotation marks are letters without `quotechar`."""
        if quotechar is None:
            return [line.split("\t") if line else [] for line in files.read_lines(input_file)]
        text = files.read_text(input_file).replace("\r", "")
        return list(csv.reader(io.StringIO(text, newline="\n"), delimiter="\t", quotechar=quotechar))


class TaskProcessor(DataProcessor):
    """Reads the data sets of a task in `tasks`; a subclass may name its own."""

    task_name: str
    initial_labels: Sequence[str] = ()  # have the order of the collected labels, if they are the same

    def __init_subclass__(cls) -> None:
        ignored = [name for name in ("_create_examples", "_read_tsv") if name in vars(cls)]
        readers = [f"get_{part}_examples" for part in ("train", "dev", "test")]
        if ignored and all(getattr(cls, name) is getattr(TaskProcessor, name) for name in readers):
            what = f"{cls.__name__}.{ignored[0]} would not be called"
            raise UserError(f"{what}; derive {cls.__name__} from DataProcessor, with get_train_examples and the like")

    def __init__(self, task: Task | None = None, labels: Sequence[str] | None = None):
        """`labels`: for a task whose labels are collected from the training file, the labels of an earlier training."""
        self.task = task or find_task(self.task_name)
        self._labels = list(labels) if self.task.labels is None and labels else self.task.labels

    def read(self, data_dir: str, part: str) -> list[InputExample]:
        """The examples of a part; from the training table, also collects the labels if they are not known.

        As in the reference, every example of a test set has the first label (0 for a regression), which is not used.
        """
        task, table = self.task, self.task.tables[part]
        path = os.path.join(data_dir, table.file)
        if table.label is None and part != "predict":
            raise UserError(f"the task {task.name} has no label column, which is needed to train and evaluate")
        # Labels that training collects are not known yet; a subclass may override `get_labels`.
        labels = None if part == "train" and self._labels is None else self.get_labels()
        examples: dict[int, InputExample] = {}  # by the row
        rows: dict[str, int] = {}  # label -> its first row, while the labels are collected
        unused, remedy = labels[0] if labels else "0", task.remedy(part)
        table_rows = read_rows(path, table, remedy)
        for index, cells in table_rows:
            if cells.get("language", table.only) != table.only:
                continue
            label = task.label_in(cells, unused)
            if problem := label_problem(label, labels):
                second = task.label_in(next(table_rows, (1, {}))[1], unused) if index == 0 else label
                if not label_problem(second, labels):  # only row 1 is wrong
                    remedy = "if row 1 is a header, " + ("delete it" if remedy else "leave out --noheader")
                raise UserError(f"{path}, row {index + 1}: {problem}{remedy and f'; {remedy}'}")
            guid = table.guid.format(cells.get("id", index))
            example = examples[index + 1] = InputExample(guid, cells["text_a"], cells.get("text_b"), label)
            for name in labels_of(example) if labels is None else ():
                rows.setdefault(name, index + 1)
        if not examples:
            raise UserError(f"{path}: has no usable row" + (f" in the language {table.only!r}" if table.only else ""))
        if labels is None:
            if len(rows) < 2:
                what = f"the label {next(iter(rows))!r}" if rows else "no label"
                raise UserError(f"{path}: every row has {what}; a classifier needs two labels or more")
            warn_of_similar(path, rows)
            warn_of_amounts(path, rows, len(examples), "give --regression")
            found, initial = sorted(rows), [*self.initial_labels]
            self._labels = initial if sorted(initial) == found else found
        _warn_of_texts(path, examples, self.get_labels(), table.header)
        if task.regression and task.name in TASKS:
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
                f" predict with the output folder of the training, whose {LABEL_MAP_FILE} holds them, or write this"
                ' file beside the weights, as {"task": "tsv", "labels": ["no", "yes"], "regression": false}'
            )
        return list(self._labels)

    def label_map(self) -> LabelMap:
        return LabelMap(self.task.name, tuple(self.get_labels()), self.task.regression, self.task.multi_label)


# The processors of the reference, under their names there.
ColaProcessor, MnliProcessor, MrpcProcessor, XnliProcessor = (
    type(f"{name.title()}Processor", (TaskProcessor,), {"task_name": name, "__doc__": f"The task `{name}`."})
    for name in ("cola", "mnli", "mrpc", "xnli")
)


def _ask(processor: Any, name: str, *args: str) -> Iterable:
    """The list that a method of a user's processor returns; `name`: "METHOD of the task TASK".

    An exception that the method raises keeps its traceback, which ends in the user's code.
    """
    method = getattr(processor, name.partition(" ")[0], None)
    try:
        found = method(*args) if method else NotImplemented
    except NotImplementedError:
        found = NotImplemented
    if found is NotImplemented:
        raise UserError(f"there is no {name}, which this call needs")
    if isinstance(found, str | bytes) or not isinstance(found, Iterable):
        raise UserError(f"{name} returned {found!r:.60}; a list is needed")
    return found


class _Registered(TaskProcessor):
    """The processor of a task that `register` added; takes the examples from the user's processor."""

    def read(self, data_dir: str, part: str) -> list[InputExample]:
        method = {"train": "get_train_examples", "eval": "get_dev_examples", "predict": "get_test_examples"}[part]
        labels, name = self.get_labels(), f"{method} of the task {self.task.name}"
        found = _ask(self.task.processor, name, data_dir)
        unused = () if self.task.multi_label else labels[0] if labels else "0"  # the label of a test set
        examples = []
        for number, example in enumerate(found, 1):
            if not all(hasattr(example, part) for part in InputExample.__annotations__):
                raise UserError(f"{name}, example {number}: {example!r:.60} is not an InputExample")
            texts = texts_of(example, f"{name}, example {number}")
            label = unused if part == "predict" else self._label(name, number, example.label)
            if problem := label_problem(label, labels):
                raise UserError(f"{name}, example {number}: {problem}")
            examples.append(InputExample(str(example.guid), *texts, label))
        if not examples:
            raise UserError(f"{name} returned no example")
        return examples

    def _label(self, name: str, number: int, given: Any) -> str | tuple[str, ...]:
        """The label of an example in this module's form."""
        given = tokenization.convert_to_unicode(given) if isinstance(given, bytes) else given
        given = given.tolist() if hasattr(given, "tolist") else given  # an array may be a single number
        is_list = not isinstance(given, str) and isinstance(given, Iterable)
        if is_list and not self.task.multi_label:
            needed = "a number is needed" if self.task.regression else "give register(..., multi_label=True)"
            raise UserError(f"{name}, example {number}: the label is a list; {needed}")
        if not self.task.multi_label:
            return str(given)
        labels, found = self.get_labels(), [*given] if is_list else [given]
        if len(found) == len(labels) and all(each in (0, 1, "0", "1") for each in found):
            return tuple(label for label, has in zip(labels, found, strict=True) if int(has))
        return tuple(map(str, found))


def register(
    task_name: str,
    processor: type[DataProcessor] | DataProcessor,
    measures: Sequence[str] | None = None,
    multi_label: bool = False,
    regression: bool = False,
) -> None:
    """Adds a task to run_classifier.py in this process: `--task_name` may then be `task_name`.

        run_classifier.register("reviews", ReviewsProcessor)
        commands.run("run_classifier")                                # the script, with all its flags

    Args:
      task_name: its name, in upper or lower case.
      processor: has the methods of DataProcessor, as in a fork of the reference. A class is called without
        arguments, when the script has read its flags, which may be `absl.flags.FLAGS` of a fork, too.
      measures: the names of its scores (see `results.compute_metrics`); --eval_steps compares the first score.
      multi_label: a label of an example is a list: of labels, or of a 0 or a 1 for each label of `get_labels`.
      regression: a label is a number, and `get_labels` is not used.
    """
    name = task_name.lower()
    if name == "tsv" or name in TASKS:
        raise UserError(f"the name of the task {task_name!r} is taken; give the processor another name")
    if multi_label and regression:
        raise UserError(f"the task {task_name!r}: give multi_label or regression, not both")
    usual = usual_measures(multi_label, regression)
    scores, known = tuple(measures or usual), usual if regression else (*usual, *OTHER_MEASURES[multi_label])
    if unknown := [measure for measure in scores if measure not in known]:
        raise UserError(f"the task {task_name!r} has no measure {unknown[0]!r}; its measures are {and_more(known)}")

    def task() -> Task:
        # As in the reference, `get_labels` is called first, and the same object reads the examples.
        made = processor() if callable(processor) else processor
        given = () if regression else _ask(made, f"get_labels of the task {task_name}")
        labels = tuple(map(str, given))
        if not regression and (len({*labels}) < 2 or len({*labels}) < len(labels)):
            what = f"the labels of the task {task_name!r} are {list(labels)}"
            raise UserError(f"{what}; give two or more, each once, or regression=True if a label is a number")
        if isinstance(given, set | frozenset):  # the order of its texts is another in each process
            raise UserError(f"the labels of the task {task_name!r} are a set, which has no order; give a list")
        return Task(name, {}, labels, scores, separator="," if multi_label else None, processor=made)

    REGISTERED[name] = task


def get_processor(
    task_name: str, *, tsv: TsvLayout | None = None, label_map: LabelMap | None = None, flag: str = "--output_dir"
) -> TaskProcessor:
    """The processor of a task; `tsv`: the columns of its tables; `label_map`: the labels of the weights of `flag`."""
    task = find_task(task_name, tsv)
    kind = TaskProcessor if task.processor is None else _Registered
    if label_map is None:
        return kind(task)
    same_kind = (label_map.regression, label_map.multi_label) == (task.regression, task.multi_label)
    if not same_kind or task.labels not in (None, label_map.labels):
        kinds = ("multi_label", "regression") if label_map.task == task.name == "tsv" else ()
        others = [kind for kind in kinds if getattr(label_map, kind) != getattr(task, kind)]
        advice = "".join(f"{'give' if getattr(label_map, kind) else 'leave out'} --{kind}, or " for kind in others)
        now = LabelMap(task.name, tuple(task.labels or ()), task.regression, task.multi_label)
        kind_now = f" ({now.describe()})" if task.labels is not None else ""
        raise UserError(
            f"{flag} holds a model of the task {label_map.task} ({label_map.describe()});"
            f" it does not fit the task {task.name}{kind_now}: {advice}give another {flag}"
        )
    return kind(task, label_map.labels)


def _is_quoted(text: str | None) -> bool:
    return bool(text) and '""' in text[1:-1] and re.fullmatch(r'"(?:[^"]|"")*"', text) is not None


def _warn_of_texts(path: str, examples: Mapping[int, InputExample], labels: Sequence[str], has_header: bool) -> None:
    """Warns of texts that are quoted as in CSV, and of a table whose texts are all numbers or labels."""
    quoted = [row for row, each in examples.items() if any(map(_is_quoted, (each.text_a, each.text_b)))]
    if len(examples) > 1 and all(
        len(it.text_a) > 1 and it.text_a[0] == it.text_a[-1] == '"' for it in examples.values()
    ):
        quoted = [*examples]
    if quoted:
        what = (
            "%s: texts of %d rows are quoted as in CSV, the first in row %d; here the quotation marks are part of the"
            " text, so write the table without them (pandas: quoting=csv.QUOTE_NONE)"
        )
        logging.warning(what, path, len(quoted), quoted[0])
    for name in ("text_a", "text_b"):
        texts = [getattr(example, name) for example in examples.values()]
        texts = texts if has_header else texts[1:] or texts  # the first may come from a header
        if all(text in labels or as_number(text or "") is not None for text in texts):
            what = "%s: every %s is a number or a label, the first is %r; compare its columns with the task's columns"
            return logging.warning(what, path, name, texts[0])


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


def texts_of(example: InputExample, where: str) -> tuple[str, str | None]:
    """The texts of an example, which may be bytes there; `where` names the example in a UserError for other objects."""
    given = [example.text_a] if example.text_b is None else [example.text_a, example.text_b]
    with errors.reading(where, tokenization.NotTextError):
        text_a, text_b, *_ = *map(tokenization.convert_to_unicode, given), None
    return text_a, text_b


def labels_of(example: InputExample) -> tuple[str, ...]:
    """The labels of an example as a tuple, even if the example has a single label."""
    return example.label if isinstance(example.label, tuple) else (example.label,)


def label_problem(label: str | tuple[str, ...], labels: Sequence[str] | None) -> str | None:
    """Describes the error in a label; None if the label is right.

    `labels`: the labels of the TaskProcessor; None while they are collected.
    """
    if isinstance(label, tuple):
        problems = (label_problem(part, labels) for part in label)
        return next(filter(None, problems), None)
    if labels is None:
        empty = "the label is empty (give --multi_label if a text may have no label, or several)"
        return None if label.strip() else empty
    if labels and label in labels:
        return None
    if labels and str(label) in map(str, labels):
        kinds = f"is of type {type(label).__name__}, the known labels are of type {type(labels[0]).__name__}"
        return f"the label {label!r} {kinds}; give both in one type"
    if labels:
        return f"unknown label {label!r}; the known labels are {and_more([shortened(str(it), 40) for it in labels])}"
    score = as_number(label)
    if score is None or score != score:
        return f"the score {label!r} is not a number"
    most = records.LARGEST_SCORE
    return None if abs(score) < most else f"the score {label!r} is not between {-most:g} and {most:g}"


def balanced_weights(examples: Sequence[InputExample], label_map: LabelMap) -> tuple[float, ...]:
    """The weights of heads.ClassifierModel.class_weights with which every class has the same total weight.

    If a text may have several labels, the texts with a label have the same total weight as the texts without it.
    """
    labels, size = label_map.labels, len(examples)
    counts = collections.Counter(label for example in examples for label in labels_of(example))
    if label_map.multi_label:
        return tuple(max(1, size - counts[label]) / max(1, counts[label]) for label in labels)
    # A class without examples does not affect the loss, regardless of its weight.
    return tuple(size / (len(labels) * max(1, counts[label])) for label in labels)

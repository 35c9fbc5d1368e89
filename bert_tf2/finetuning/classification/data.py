"""Sentence and sentence-pair classification: tables in, features and records out, answers written.

The flow: get_processor -> get_train_examples and its kin -> file_based_convert_examples_to_features; after the model,
write_test_results and write_predictions. A label list that is empty means regression throughout: the label is a number
and the model has one output. The paper's section 4.1 and appendix A.4 describe the fine-tuning that this feeds; files,
numbers and names are those of run_classifier.py of google-research/bert.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import os
import sys
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from absl import logging

from bert_tf2 import records, tokenization
from bert_tf2.finetuning.classification.tasks import Table, Task, TsvLayout, find_task
from bert_tf2.support import console, files, progress
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.weights.labels import LABEL_MAP_FILE, LabelMap


@dataclasses.dataclass
class InputExample:
    """One row of a task: its name, one text or two, and its label as the file spells it."""

    guid: str
    text_a: str
    text_b: str | None = None
    label: str | None = None


class PaddingInputExample:
    """Stands for no example: fills the last batch where a device needs batches of one size (a TPU does)."""


@dataclasses.dataclass
class InputFeatures:
    """What the model reads of one example.

    Attributes:
      input_ids, input_mask, segment_ids: max_seq_length numbers each.
      label_id: the label's index, or the score of a regression.
      is_real_example: False for a PaddingInputExample.
    """

    input_ids: list[int]
    input_mask: list[int]
    segment_ids: list[int]
    label_id: int | float
    is_real_example: bool = True


# Reading tables


class DataProcessor:
    """What reads the data sets of a task: a base class for one's own, as in the reference."""

    def get_train_examples(self, data_dir: str) -> list[InputExample]:
        """The training set."""
        raise NotImplementedError

    def get_dev_examples(self, data_dir: str) -> list[InputExample]:
        """The evaluation set."""
        raise NotImplementedError

    def get_test_examples(self, data_dir: str) -> list[InputExample]:
        """The set to predict."""
        raise NotImplementedError

    def get_labels(self) -> list[str]:
        """The labels, in the order of the model's outputs."""
        raise NotImplementedError

    @classmethod
    def _read_tsv(cls, input_file: str, quotechar: str | None = None) -> list[list[str]]:
        """The cells of all rows of a table. Quotation marks are letters like any other, unless `quotechar` is given.

        Raises:
          UserError: the file is missing or is not UTF-8.
        """
        lines = files.read_lines(input_file)
        if quotechar is None:
            return [line.split("\t") for line in lines]
        return list(csv.reader((f"{line}\n" for line in lines), delimiter="\t", quotechar=quotechar))


class TaskProcessor(DataProcessor):
    """Reads the data sets of a task of classification_tasks."""

    def __init__(self, task: Task, labels: Sequence[str] | None = None):
        """`labels`: for a task that has its labels from the training file, those found when it was trained."""
        self.task = task
        self._labels = list(labels) if task.labels is None and labels else task.labels

    def get_train_examples(self, data_dir: str) -> list[InputExample]:
        """The training set; for the task `tsv` without known labels, this also finds them.

        Raises:
          UserError: see `_read_examples`; fewer than two labels found.
        """
        examples = list(_read_examples(data_dir, self.task, self.task.train, self._labels))
        if self._labels is None:
            found = sorted({example.label for example in examples})
            if len(found) < 2:
                path = os.path.join(data_dir, self.task.train.file)
                raise UserError(f"{path}: every row has the label {found[0]!r}; a classifier needs two labels or more")
            self._labels = found
        return examples

    def get_dev_examples(self, data_dir: str) -> list[InputExample]:
        """The evaluation set.

        Raises:
          UserError: see `_read_examples`; the labels are not known yet.
        """
        return list(_read_examples(data_dir, self.task, self.task.dev, self.get_labels()))

    def get_test_examples(self, data_dir: str) -> list[InputExample]:
        """The set to predict. As in the reference every example has the first label (a regression: 0), unread.

        Raises:
          UserError: see `_read_examples`; the labels are not known yet.
        """
        return list(_read_examples(data_dir, self.task, self.task.test, self.get_labels()))

    def get_labels(self) -> list[str]:
        """The labels in the order of the model's outputs; an empty list for a regression.

        Raises:
          UserError: the task has its labels from the training file, and none has been read or handed over.
        """
        if self._labels is None:
            raise UserError(
                f"the labels of the task {self.task.name} are not known: train first,"
                f" or predict with the output folder of the training, whose {LABEL_MAP_FILE} holds them"
            )
        return list(self._labels)

    def label_map(self) -> LabelMap:
        """What `save_label_map` should keep with the checkpoint."""
        return LabelMap(self.task.name, tuple(self.get_labels()), self.task.regression)


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
    task_name: str, *, tsv: TsvLayout | None = None, language: str = "zh", label_map: LabelMap | None = None
) -> TaskProcessor:
    """The processor of a task.

    Args:
      task_name: as `--task_name`; upper or lower case.
      tsv: the columns of the task `tsv`.
      language: of XNLI; the reference has `zh` fixed in its source.
      label_map: what the folder of the checkpoint holds, if anything (`load_label_map`).

    Raises:
      UserError: no such task, or the checkpoint was trained for other labels.
    """
    task = find_task(task_name, language, tsv)
    if label_map is None:
        return TaskProcessor(task)
    if label_map.regression != task.regression or task.labels not in (None, label_map.labels):
        raise UserError(
            f"the output folder holds a model of the task {label_map.task} ({label_map.describe()});"
            f" it does not fit the task {task.name}: use another --output_dir"
        )
    return TaskProcessor(task, label_map.labels)


def _read_examples(data_dir: str, task: Task, table: Table, labels: Sequence[str] | None) -> Iterator[InputExample]:
    """Reads one table of a task.

    Raises:
      UserError: the file is missing (lists what is there), is empty, has no row for us or lacks a column; a row has too
        many or too few columns, an unknown label, or a score that is not a number (rows are counted from 1).
    """
    path = os.path.join(data_dir, table.file)
    if table.label is None and table is not task.test:
        raise UserError(f"the task {task.name} has no label column, which is needed to train and evaluate")
    read_any = False
    for index, cells in _read_rows(path, table):
        if cells.get("language", table.only) != table.only:
            continue
        label = cells.get("label", labels[0] if labels else "0")
        label = task.other_names_of_labels.get(label, label)
        if problem := _label_problem(label, labels):
            raise UserError(f"{path}, row {index + 1}: {problem}")
        yield InputExample(table.guid.format(cells.get("id", index)), cells["text_a"], cells.get("text_b"), label)
        read_any = True
    if not read_any:
        raise UserError(f"{path}: has no usable row" + (f" in the language {table.only!r}" if table.only else ""))


def _label_problem(label: str, labels: Sequence[str] | None) -> str | None:
    """What is wrong with a label, if anything; `labels` as in TaskProcessor, None while they are being found."""
    if labels is None:
        return None if label else "the label is empty"
    if not labels:
        return None if _is_number(label) else f"the score {label!r} is not a number"
    return None if label in labels else f"unknown label {label!r}; the known ones are {and_more(labels)}"


def _is_number(text: str) -> bool:
    try:
        return abs(float(text)) < records.LARGEST_SCORE  # no NaN either
    except ValueError:
        return False


def _read_rows(path: str, table: Table) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields (line number from 0, `text_a` etc. -> cell) for each row below the header.

    Cells are what stands between two TABs, quotation marks being letters like any other; a byte order mark goes. Unlike
    in the reference, which silently takes the wrong cells of a row with a TAB too many, all rows must have the same
    number of columns, or where that is not asked for (`Table.any_width`) a warning tells of those that have not. A
    header need only fit where columns are looked up by name, for people also put a single word there.
    """
    lines = enumerate(line.split("\t") for line in files.read_lines(path, drop_bom=True))
    header = next(lines, (0, None))[1] if table.header else None
    allowed, numbers, broken, widths = None, {}, [], _Widths()
    for index, cells in lines:
        if allowed is None:
            numbers, allowed = _find_columns(path, table, header, len(cells))
        if len(cells) in allowed:
            widths.add(len(cells), index + 1)
            yield index, {name: cells[number] for name, number in numbers.items()}
        elif table.skip_broken_rows:
            broken.append(index + 1)
        else:
            raise UserError(f"{path}, row {index + 1}: has {_columns(len(cells))} where {allowed.start} are expected")
    if allowed is None:
        raise UserError(f"{path}: has no row but the header" if header else f"{path}: is empty")
    if broken:
        logging.warning("%s: left out %d rows of a wrong width, the first is row %d", path, len(broken), broken[0])
    widths.warn(path)


class _Widths:
    """How many columns the rows of a table have."""

    def __init__(self):
        self._rows: collections.Counter[int] = collections.Counter()
        self._first: dict[int, int] = {}

    def add(self, width: int, row: int) -> None:
        self._rows[width] += 1
        self._first.setdefault(width, row)

    def warn(self, path: str) -> None:
        """One line where they differ: a cell too many at the end does no harm, in the middle it moves the rest."""
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
    """Where the columns of a table are: ({`text_a` etc.: number from 0}, how many columns its rows may have).

    Args:
      header: the cells of the header, None without one.
      width: how many columns the first row has.
    """
    wanted = {name: getattr(table, name) for name in ("text_a", "text_b", "label", "id", "language")}
    wanted = {name: column for name, column in wanted.items() if column is not None}
    if any(isinstance(column, str) for column in wanted.values()):
        width = len(header)
    numbers = {}
    for name, column in wanted.items():
        if isinstance(column, str) and column not in header:
            raise UserError(f"{path}: has no column {column!r}; its header is {and_more(header)}")
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
    """Raises UserError where one column would be two things at once: a label in the text gives itself away."""
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


# Examples to features to records


def truncate_seq_pair(tokens_a: list[str], tokens_b: list[str], max_length: int) -> None:
    """Shortens two token lists, in place, until together they have `max_length` tokens at most.

    The longer one loses its end first, and of two equally long ones the second: the result of the reference's
    `_truncate_seq_pair`, computed at once instead of token by token.
    """
    if len(tokens_a) + len(tokens_b) <= max_length:
        return
    keep_b = min(len(tokens_b), max(max_length // 2, max_length - len(tokens_a)))
    del tokens_b[keep_b:]
    del tokens_a[max_length - keep_b :]


def convert_single_example(
    ex_index: int,
    example: InputExample | PaddingInputExample,
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
    log_level: int = logging.INFO,
) -> InputFeatures:
    """Makes the features of one example: `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, then padding with 0.

    A second text without any token, or one of which truncation leaves nothing, counts as none, as in the reference.

    Args:
      ex_index: example 0 is logged in words, at `log_level`; 0 to 4 as numbers too, at the level DEBUG.
      label_list: the labels in order; empty: the label is a number.

    Raises:
      UserError: `max_seq_length` below 3, or a label that is not in the list or not a number.
    """
    if max_seq_length < 3:
        raise UserError(f"--max_seq_length is {max_seq_length}: [CLS], [SEP] and [SEP] alone need 3")
    if isinstance(example, PaddingInputExample):
        zeros = [0] * max_seq_length
        return InputFeatures(zeros, [*zeros], [*zeros], label_id=0, is_real_example=False)
    if problem := _label_problem(example.label, label_list):
        raise UserError(f"example {example.guid}: {problem}")
    tokens, first_length = _join(example, max_seq_length, tokenizer)
    padding = [0] * (max_seq_length - len(tokens))
    features = InputFeatures(
        input_ids=tokenizer.convert_tokens_to_ids(tokens) + padding,
        input_mask=[1] * len(tokens) + padding,
        segment_ids=[0] * first_length + [1] * (len(tokens) - first_length) + padding,
        label_id=label_list.index(example.label) if label_list else float(example.label),
    )
    if ex_index < 5:
        _log_example(ex_index, example, tokens, features, log_level)
    return features


def _join(example: InputExample, max_seq_length: int, tokenizer: tokenization.FullTokenizer) -> tuple[list[str], int]:
    """The tokens of an example without padding, and how many of them belong to the first text ([CLS] included)."""
    tokens_a = tokenizer.tokenize(example.text_a)
    tokens_b = tokenizer.tokenize(example.text_b) if example.text_b else []
    if tokens_b:
        truncate_seq_pair(tokens_a, tokens_b, max_seq_length - 3)
    else:
        del tokens_a[max_seq_length - 2 :]
    first = ["[CLS]", *tokens_a, "[SEP]"]
    return ([*first, *tokens_b, "[SEP]"] if tokens_b else first), len(first)


def _log_example(
    ex_index: int, example: InputExample, tokens: Sequence[str], features: InputFeatures, log_level: int
) -> None:
    """The first example in words; with --verbose_logging several as the model gets them."""
    printable = " ".join(map(tokenization.printable_text, tokens))
    if ex_index == 0:
        rows = {"id": example.guid, "tokens": printable, "label": example.label}
        logging.log(log_level, "%s", console.table("The first example:", rows))
    logging.debug("*** Example ***")
    logging.debug("guid: %s", example.guid)
    logging.debug("tokens: %s", printable)
    for name in ("input_ids", "input_mask", "segment_ids"):
        logging.debug("%s: %s", name, " ".join(map(str, getattr(features, name))))
    logging.debug("label: %s (id = %s)", example.label, features.label_id)


def convert_examples_to_features(
    examples: Sequence[InputExample | PaddingInputExample],
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
    log_level: int = logging.INFO,
) -> list[InputFeatures]:
    """The features of each example, in order; shows how far it is.

    Raises:
      UserError: as convert_single_example.
    """
    return list(_convert_examples(examples, label_list, max_seq_length, tokenizer, log_level))


def _convert_examples(
    examples: Sequence[InputExample | PaddingInputExample],
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
    log_level: int,
) -> Iterator[InputFeatures]:
    """The same, one at a time."""
    for index, example in enumerate(progress.track(examples, "Writing features", unit="examples")):
        yield convert_single_example(index, example, label_list, max_seq_length, tokenizer, log_level)


def record_kind(label_list: Sequence[str]) -> records.RecordKind:
    """The kind of record that holds features made with this label list."""
    return records.CLASSIFICATION if label_list else records.REGRESSION


def as_record(features: InputFeatures) -> dict[str, Sequence[float]]:
    """Features as `records.write_records` takes them."""
    return {
        "input_ids": features.input_ids,
        "input_mask": features.input_mask,
        "segment_ids": features.segment_ids,
        "label_ids": [features.label_id],
        "is_real_example": [int(features.is_real_example)],
    }


def file_based_convert_examples_to_features(
    examples: Sequence[InputExample | PaddingInputExample],
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
    output_file: str,
    log_level: int = logging.INFO,
) -> int:
    """Writes the features of all examples to a TFRecord file, complete or not at all; returns how many.

    Raises:
      UserError: as convert_single_example.
    """
    features = _convert_examples(examples, label_list, max_seq_length, tokenizer, log_level)
    return records.write_records(output_file, record_kind(label_list), map(as_record, features))


# Answers


def write_test_results(path: str, probabilities: Iterable[Sequence[float]]) -> None:
    """Writes test_results.tsv as the reference does: no header, a line an example, a column a class.

    Args:
      probabilities: [n, classes], in the order of the examples; a regression: [n, 1] scores.
    """
    rows = ("\t".join(str(np.float32(value)) for value in row) for row in probabilities)
    _write_lines(path, rows)


def write_predictions(
    path: str, ids: Iterable[str], label_list: Sequence[str], probabilities: Iterable[Sequence[float]]
) -> None:
    """Writes predictions.tsv: `id`, the most probable `label` and its `probability`, under a header that says so.

    Args:
      ids: the names of the examples (`InputExample.guid`).
      label_list: as for the features; empty: `label` is the predicted score, and there is no probability.
      probabilities: [n, classes]; a regression: [n, 1] scores.

    Raises:
      ValueError: not as many ids as probabilities.
    """

    def rows() -> Iterator[str]:
        yield "id\tlabel\tprobability" if label_list else "id\tlabel"
        for name, row in zip(ids, probabilities, strict=True):
            best = int(np.argmax(row))
            value = str(np.float32(row[best]))
            yield f"{name}\t{label_list[best]}\t{value}" if label_list else f"{name}\t{value}"

    _write_lines(path, rows())


def _write_lines(path: str, lines: Iterable[str]) -> None:
    with files.complete_or_absent(path) as (beside,), files.open_binary(beside, "wb") as stream:
        for line in lines:
            stream.write(f"{line}\n".encode())

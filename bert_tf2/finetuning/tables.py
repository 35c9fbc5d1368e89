"""Tables of texts, with columns that are separated by tabs: how they are described and read.

At the end, labels of a table or of another training file that are probably not what its author meant.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

from absl import logging

from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more

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

    def table(self, part: str) -> Table:
        """The table `part`.tsv with these columns; `test` has no labels.

        Raises:
          UserError: a column is 0, or a column is given by a name and the tables have no header.
        """
        columns = {name: self._column(name) for name in ("text_a", "text_b", "label", "id")}
        if part == "test":
            columns["label"] = None
        return Table(f"{part}.tsv", "{}" if self.id else part + "-{}", header=self.header, **columns)

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


def read_rows(path: str, table: Table) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields (index of the line from 0, `text_a` etc. -> cell) for each row below the header.

    Cells are separated by tabs, quotation marks have no special meaning, and a byte order mark is removed. The
    reference silently reads the wrong cells of a row with an extra tab. Here all rows must have the same number of
    columns; if `Table.any_width` is set, a warning reports the rows that have another number. The header is checked
    only if columns are looked up by name, because some files have a single word there.

    Raises:
      UserError: the file is missing, is not UTF-8, or has no row; a column is missing or has two roles; or a row has
        another number of columns (rows are counted from 1 in messages).
    """
    lines = enumerate(line.split("\t") for line in files.read_lines(path, drop_bom=True))
    header = next(lines, (0, None))[1] if table.header else None
    allowed, numbers, broken, blank = None, {}, [], []
    widths: collections.Counter[int] = collections.Counter()  # the number of columns -> the number of rows
    first_of_width: dict[int, int] = {}
    for index, cells in lines:
        if allowed is None:
            numbers, allowed = _find_columns(path, table, header, len(cells))
        if len(cells) in allowed:
            widths[len(cells)] += 1
            first_of_width.setdefault(len(cells), index + 1)
            if not cells[numbers["text_a"]].strip():
                blank.append(index + 1)
            yield index, {name: cells[number] for name, number in numbers.items()}
        elif table.skip_broken_rows:
            broken.append(index + 1)
        else:
            raise UserError(
                f"{path}, row {index + 1}: has {num_columns(len(cells))} where {allowed.start} are expected"
            )
    if allowed is None:
        raise UserError(f"{path}: has no row but the header" if header else f"{path}: is empty")
    if broken:
        logging.warning("%s: left out %d rows of a wrong width, the first is row %d", path, len(broken), broken[0])
    if blank:
        what = "%s: column %d has no text in row %s; fill it in, or leave the row out"
        logging.warning(what, path, numbers["text_a"] + 1, and_more(blank, 3))
    if len(widths) > 1:  # an extra cell at the end is harmless, but one in the middle shifts the rest
        usual = widths.most_common(1)[0][0]
        row, width = min((row, width) for width, row in first_of_width.items() if width != usual)
        logging.warning(
            "%s: %d of %d rows do not have %d columns, the first is row %d with %d; cells are taken by the number of"
            " their column, so make sure that no TAB inside a text has moved them",
            path, widths.total() - widths[usual], widths.total(), usual, row, width,
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
            raise UserError(f"{path}, row {row}: has {num_columns(width)}, but {name} is to come from {column}")
    used: dict[int, str] = {}
    for name in ("text_a", "text_b", "label", "id"):  # a text that contains the label would make the task trivial
        if name in numbers:
            other = used.setdefault(numbers[name] % width, name)
            if other != name and (name != "id" or other == "label"):  # a row may be named by its text
                raise UserError(
                    f"{path}: column {numbers[name] % width + 1} would be {other} and {name} at once; give each a"
                    " column of its own"
                )
    return numbers, range(max(numbers.values()) + 1, sys.maxsize) if table.any_width else range(width, width + 1)


def num_columns(count: int) -> str:
    """The number as text, for messages."""
    return "1 column" if count == 1 else f"{count} columns"


_SEPARATORS = (",", ";", "|")  # of labels in a cell


def doubtful_labels(
    rows: Mapping[str, Sequence[int]], num_examples: int, separator: str | None, has_header: bool
) -> Iterator[str]:
    """Yields a sentence for a warning for each probable mistake in the labels of a table.

    Args:
      rows: label -> the numbers of its rows, from 1.
      num_examples: the number of rows with examples.
      separator: what separates the labels in a cell; None if a cell has one label.
      has_header: whether the first row is read as a header.
    """
    yield from spelled_alike(rows)
    first = [label for label in rows if rows[label][0] == 1]
    if not has_header and first and len(rows) > 2 and all(len(rows[label]) == 1 for label in first):
        yield f"row 1: no other row has the label {first[0]!r}; if this row is a header, leave out --noheader"
    for mark in _SEPARATORS:
        parts = {label: [part.strip() for part in label.split(mark)] for label in rows}
        uses = collections.Counter(part for found in parts.values() for part in {*found})
        label = next((label for label in rows if len(parts[label]) > 1 and min(map(uses.get, parts[label])) > 1), None)
        if label is not None:
            flags = f"--label_separator='{mark}'" if separator else f"--multi_label --label_separator='{mark}'"
            yield (
                f"row {rows[label][0]}: {label!r} is one label here, although other rows have its parts; if a text may"
                f" have several labels, give {flags}"
            )
            return
    labeled = [row for found in rows.values() for row in found]
    if separator and len(labeled) == len({*labeled}) == num_examples:
        yield (
            f"every row has exactly one label: if labels are not separated by {separator!r} there, give"
            " --label_separator; if a text has one label, leave out --multi_label"
        )


def spelled_alike(rows: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yields a sentence if two labels differ only in case or blanks."""
    forms: dict[str, str] = {}
    for label in rows:
        form = " ".join(unicodedata.normalize("NFKC", label).casefold().split())
        other = forms.setdefault(form, label)
        if other != label:
            yield (
                f"row {rows[label][0]}: the label {label!r} and {other!r} of row {rows[other][0]} are two classes, and"
                " differ only in case or blanks; write them alike if they mean the same"
            )
            return

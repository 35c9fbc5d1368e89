"""Describes and reads tables of texts, whose columns are separated by tabs.

The end of the module has the log messages that all tasks share: labels that are spelled alike, and tables of scores.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence

from absl import logging

from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.support.settings import WrongSetting

_NO_TAB = ", without a TAB, which separates columns"

Column = int | str  # its index from 0 (negative: from the end), or its name in the header


@dataclasses.dataclass(frozen=True)
class Table:
    """One file of a task."""

    file: str  # its name inside the data folder
    guid: str  # the names of the examples; `{}` is the cell of column `id`, or else the index of the line from 0
    # text_a, text_b, label, id: the columns to read; None for a column that is missing or not used
    text_a: Column
    text_b: Column | None = None
    label: Column | None = None
    id: Column | None = None
    header: bool = True  # whether the first line is a header
    # language, only: read only the rows whose column `language` is `only` (XNLI has 15 languages in one file)
    language: Column | None = None
    only: str = ""
    skip_broken_rows: bool = False  # whether rows of a wrong width are left out, with one warning
    # accept rows with more columns than are read, as the reference does; one warning if they differ
    any_width: bool = False


@dataclasses.dataclass(frozen=True)
class TsvLayout:
    """The columns of user-defined tables (task `tsv`): train.tsv, dev.tsv and test.tsv.

    A column is given by its name in the header or by its number, counted from 1. `label` is not needed for prediction.
    Without `id`, examples are named `train-1` and so on, by the index of the line from 0, as in the reference. With
    `separator` a cell may hold several labels, or none; with `regression` it holds a number.
    """

    text_a: str
    text_b: str | None = None
    label: str | None = None
    id: str | None = None
    header: bool = True
    separator: str | None = None
    regression: bool = False

    def table(self, part: str) -> Table:
        """The table `part`.tsv with these columns; `test` has no labels."""
        if self.separator and set("\t\n\r") & set(self.separator):
            raise WrongSetting(f"--label_separator={self.separator!r}: ends a cell, so it cannot separate two labels")
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
                raise WrongSetting(f"--{name}_column={value}: without a header, give the column's number")
            return value
        if int(value) == 0:
            raise WrongSetting(f"--{name}_column=0: columns are counted from 1")
        return int(value) - 1


def check_columns(path: str, table: Table, remedy: str = "") -> None:
    """Raises UserError if the header or the first row lacks a column. Reads no more rows, and warns of nothing."""
    next(read_rows(path, table, remedy, warns=False))


def read_rows(path: str, table: Table, remedy: str = "", warns: bool = True) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields (index of the line from 0, `text_a` etc. -> cell) for each row below the header.

    Quotation marks have no special meaning, and a byte order mark is removed. The reference silently reads the wrong
    cells of a row with an extra tab; here all rows must have as many columns, unless `Table` says otherwise.

    `remedy`: for a table that lacks a column; "" if flags name the columns.
    """
    lines = enumerate(line.split("\t") for line in files.read_lines(path, drop_bom=True))
    header = next(lines, (0, None))[1] if table.header else None
    allowed, numbers, broken = None, {}, []
    widths: collections.Counter[int] = collections.Counter()
    first_rows: dict[int, int] = {}  # width -> the first row with it
    for index, cells in lines:
        if allowed is None:
            numbers, allowed = _find_columns(path, table, header, len(cells), remedy)
            if warns:
                _warn_of_header(path, table, header or (), numbers)
        if len(cells) in allowed:
            widths[len(cells)] += 1
            first_rows.setdefault(len(cells), index + 1)
            yield index, {name: cells[number] for name, number in numbers.items()}
        elif table.skip_broken_rows:
            broken.append(index + 1)
        else:
            has = f"has {num_columns(len(cells))} where {allowed.start} are expected"
            raise UserError(f"{path}, row {index + 1}: {has if any(cells) else 'is blank; delete this line'}")
    if allowed is None:
        raise UserError(
            f"{path}: has no row but the header (rows end with LF or CR LF)" if header else f"{path}: is empty"
        )
    if broken:
        logging.warning("%s: left out %d rows of a wrong width, the first is row %d", path, len(broken), broken[0])
    if len(widths) > 1:  # an extra cell at the end is harmless, but one in the middle shifts the rest
        usual, count = widths.most_common(1)[0]
        width, row = next((width, row) for width, row in first_rows.items() if width != usual)
        logging.warning(
            "%s: %d of %d rows do not have %d columns, the first is row %d with %d; cells are taken by the number of"
            " their column, so make sure that no TAB inside a text has moved them",
            path, widths.total() - count, widths.total(), usual, row, width,
        )  # fmt: skip


def as_number(cell: str) -> float | None:
    """The number in a cell. None if there is no number, for 1_0 (10 in Python), and for digits of other scripts."""
    try:
        return float(cell) if str(cell).isascii() and "_" not in str(cell) else None
    except ValueError:
        return None


def _find_columns(
    path: str, table: Table, header: list[str] | None, width: int, remedy: str
) -> tuple[dict[str, int], range]:
    """({`text_a` etc.: index from 0}, the numbers of columns that a row may have); `width` of the first row."""
    roles = ("text_a", "text_b", "label", "id", "language")
    wanted = {name: column for name in roles if (column := getattr(table, name)) is not None}
    if any(isinstance(column, str) for column in wanted.values()):
        width = len(header)
    numbers: dict[str, int] = {}
    for name, column in wanted.items():
        cure = f"; {remedy or f'correct --{name}_column'}"
        if isinstance(column, str):
            if column not in header:
                has_text = any(name.count(" ") > 3 for name in header)
                hint = "; if row 1 is no header, give --noheader, and columns by number" if has_text else ""
                hint = _NO_TAB if len(header) == 1 else hint or cure
                shown = and_more([repr(name) for name in header])
                raise UserError(f"{path}: has no column {column!r}; its header is {shown}{hint}")
            places = [str(number) for number, name in enumerate(header, start=1) if name == column]
            if len(places) > 1:
                raise UserError(
                    f"{path}: columns {' and '.join(places)} are named {column!r}; give the column's number"
                )
            column = int(places[0]) - 1
        if column >= width:
            where = f"{path}, row {1 if header is None else 2}"
            hint = _NO_TAB if width == 1 else cure
            raise UserError(f"{where}: has {num_columns(width)}, but {name} is to come from column {column + 1}{hint}")
        numbers[name] = column
    return numbers, range(max(numbers.values()) + 1, sys.maxsize) if table.any_width else range(width, width + 1)


def _warn_of_header(path: str, table: Table, header: Sequence[str], numbers: Mapping[str, int]) -> None:
    """Warns of columns that are given by number, if another column has this number as its name, or if row 1 is a text.

    `numbers`: `text_a` etc. -> the index of its column.
    """
    by_number = {name: column for name, column in numbers.items() if isinstance(getattr(table, name), int)}
    for name, column in by_number.items():
        if column == getattr(table, name) and (text := str(column + 1)) in header and header[column] != text:
            what = "%s: %s is taken from column %s, named %r; column %d has the name %r: give its number if it is meant"
            logging.warning(what, path, name, text, header[column], header.index(text) + 1, text)
    texts = {by_number[name] for name in ("text_a", "text_b") if name in by_number}
    for number, text in enumerate(header):
        if number in texts and text.count(" ") > 3:
            logging.warning("%s: row 1 is read as the header, so its text %r is no example", path, shortened(text, 60))


def num_columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def warn_of_similar(path: str, first_rows: Mapping[str, int]) -> None:
    """Warns of the first two labels of a file that differ only in case or blanks; `first_rows`: label -> its row."""
    forms: dict[str, str] = {}
    for label, row in first_rows.items():
        form = " ".join(unicodedata.normalize("NFKC", label).casefold().split())
        other = forms.setdefault(form, label)
        if other != label:
            what = (
                "%s, row %d: the label %r and %r of row %d are two classes, and differ only in case or blanks; write"
                " them alike if they mean the same"
            )
            logging.warning(what, path, row, label, other, first_rows[other])
            return


def warn_of_amounts(where: str, labels: Collection[str], count: int, cure: str) -> None:
    """Warns if the labels of `count` texts are numbers that look like amounts: fractions, or mostly distinct."""
    numbers = [*map(as_number, labels)]
    if None in numbers:
        return
    has_fractions = any(not number.is_integer() for number in numbers)
    if has_fractions or (len(numbers) > 2 and 2 * len(numbers) > count):
        logging.warning(
            "%s: its %d labels are numbers (%s), and each is a class for itself; if they are amounts, %s",
            where, len(numbers), and_more(sorted(labels, key=float), 3), cure,
        )  # fmt: skip


def shortened(text: str, length: int) -> str:
    """The text, cut to `length` characters with three dots if it is longer."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def score_table(heading: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    """A table for the log: the numbers of each row, under the names of the numbers in the first row."""
    columns = [*next(iter(rows.values()))]
    texts = {
        name: [f"{row[column]:.4f}" if isinstance(row[column], float) else str(row[column]) for column in columns]
        for name, row in rows.items()
    }
    first = max(map(len, texts))
    lines = [heading]
    for name, cells in {"": columns, **texts}.items():
        padded = (f"{cell:>{max(len(column), 6)}}" for cell, column in zip(cells, columns, strict=True))
        lines.append("  ".join([f"  {name:<{first}}", *padded]))
    return "\n".join(lines)

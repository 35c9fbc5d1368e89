"""Labels of a training file that are probably not what its author meant: sentences for warnings."""

from __future__ import annotations

import collections
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

_SEPARATORS = (",", ";", "|")


def spelled_alike(rows: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yields a sentence if two labels differ only in case or blanks. `rows`: label -> its rows, from 1."""
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


def not_separated(rows: Mapping[str, Sequence[int]], separator: str | None) -> Iterator[str]:
    """Yields a sentence if a label consists of others. `separator`: of the labels in a cell, None if there is one."""
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


def header_as_row(rows: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yields a sentence if the labels of row 1 of a table without a header are in no other row, as a header's are."""
    first = [label for label in rows if rows[label][0] == 1]
    if first and len(rows) > 2 and all(len(rows[label]) == 1 for label in first):
        yield f"row 1: no other row has the label {first[0]!r}; if this row is a header, leave out --noheader"

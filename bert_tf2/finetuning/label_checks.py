"""Labels of a training file that are probably not what its author meant: sentences for warnings.

`rows` is always label -> the numbers of its rows, from 1.
"""

from __future__ import annotations

import collections
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

_SEPARATORS = (",", ";", "|")


def doubts(
    rows: Mapping[str, Sequence[int]], num_examples: int, separator: str | None, has_header: bool
) -> Iterator[str]:
    """Yields a sentence for each probable mistake in the labels of a table.

    Args:
      rows: see above.
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

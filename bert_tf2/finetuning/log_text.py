"""What the tasks show in the log: an example as the model reads it, and tables of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from absl import logging

from bert_tf2.support import console

_WIDEST = 20  # characters of a cell


def shortened(text: str, length: int) -> str:
    """The beginning of a text that is longer than `length` characters, with three dots."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def log_example(
    title: str | None, words: Mapping[str, object], values: Mapping[str, object], level: int = logging.INFO
) -> None:
    """Logs an example as the model reads it.

    Args:
      title: that of the first example, which is also logged in `words` at `level`; None for the others.
      words: name -> text.
      values: name -> a text or a list, which are logged at level DEBUG (--verbose_logging).
    """
    if title is not None:
        logging.log(level, "%s", console.table(title, words))
    logging.debug("*** Example ***")
    for name, value in values.items():
        logging.debug("%s: %s", name, " ".join(map(str, value)) if isinstance(value, list) else value)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Formats a table: the first column is left-aligned, the others are right-aligned."""
    rows = [[shortened(cell, _WIDEST) for cell in row] for row in rows]
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        f"  {name:<{first}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, others, strict=True))
        for name, *cells in rows
    )

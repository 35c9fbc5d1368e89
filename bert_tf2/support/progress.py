"""Progress of long work: tqdm's line on a terminal, otherwise a log line every ten seconds."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

from absl import logging
from tqdm.std import tqdm

T = TypeVar("T")

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_DRAWINGS = 0.1


def on_terminal() -> bool:
    """Whether standard error, None if it is closed, is a terminal."""
    return bool(sys.stderr and sys.stderr.isatty()) and os.environ.get("TERM") != "dumb"


class Progress(tqdm):
    """The progress of one piece of work ("Evaluating"): the part of `total`, if known, that is done, and a note."""

    monitor_interval = 0  # no thread

    def __init__(
        self, what: str, total: float | None = None, unit: str = "", *, done: float = 0,
        contents: tuple[float, str] | None = None, note: str = "", logs_ends: bool = False,
    ):  # fmt: skip
        """`contents`: the number of items in a unit and their name, for the speed (examples/s); None for units.

        `done`: the work of an earlier run; `logs_ends`: whether short work is logged, too, at its first and last step.
        """
        self._is_first, self._logs_ends, self._contents = True, logs_ends, contents or (1, unit)
        self._drawn, self._left_out = on_terminal(), 0.0
        # Work in other threads is a part of the work that the main thread shows.
        hides = threading.current_thread() is not threading.main_thread() or (self._drawn and not logging.level_info())
        of = " of {total:,.0f}" if total else ""
        super().__init__(
            desc=what, total=total, unit=f" {unit}", initial=done, postfix=note or None, disable=hides, leave=False,
            dynamic_ncols=True, miniters=0, unit_scale=True,
            bar_format=f"{{desc}}: {{n:,.0f}}{of}{{unit}}{{postfix}}{{speed}}",
            mininterval=_SECONDS_BETWEEN_DRAWINGS if self._drawn else _SECONDS_BETWEEN_LINES,
            file=sys.stderr if self._drawn else io.StringIO(),
        )  # fmt: skip

    @property
    def format_dict(self) -> dict[str, Any]:
        found, (count, name) = super().format_dict, self._contents
        rate = found["rate"] or (found["n"] - self.initial) / (found["elapsed"] or 1.0)
        left = f", {self.format_interval((self.total - self.n) / rate)} left" if rate and self.total else ""
        return {**found, "speed": f", {self.format_sizeof(rate * count)} {name}/s{left}" if rate else ""}

    def advance(self, count: float = 1, note: str = "") -> None:
        """Adds the work since the last call; `note` stays until it is replaced."""
        if self.disable:
            return
        self.set_postfix_str(note or self.postfix or "", refresh=False)
        if not self._is_first:
            self.update(count)
            return
        self._is_first = False
        self.initial = self.last_print_n = self.n = self.n + count
        self.leave_out(self._time() - self.start_t)  # the first step builds a graph, so it does not count for the speed
        if self._logs_ends:
            self.refresh()

    def leave_out(self, seconds: float) -> None:
        """Excludes seconds of other work, for example of saving a checkpoint, from the speed."""
        if not self.disable:
            self.start_t += seconds
            self.last_print_t += seconds
            self._left_out += seconds

    def display(self, msg: str | None = None, pos: int | None = None) -> bool | None:
        if self._drawn:
            return super().display(msg, pos)
        if msg is None and not self._is_first:
            logging.info("%s", self)

    def close(self, complete: bool = False) -> None:
        """Removes the line; if the work is complete and was long, logs its whole duration."""
        took = 0.0 if getattr(self, "disable", True) else self._time() - self.start_t + self._left_out
        super().close()
        if complete and (self._logs_ends or took >= _SECONDS_BETWEEN_LINES):
            done = f"{self.n:,.0f}{self.unit}{f', {self.postfix}' if self.postfix else ''}"
            logging.info("%s: %s, took %s", self.desc, done, self.format_interval(took))

    def __exit__(self, kind, error, traceback) -> None:
        self.close(complete=kind is None)


Progress.set_lock(threading.RLock())  # processes of this package have no lines of their own


def track(
    items: Iterable[T], what: str, total: float | None = None, unit: str = "items", size=lambda item: 1
) -> Iterator[T]:
    """Yields the items and shows the number of yielded units, of `total`; `size` returns the units of an item.

    `total` None is the number of items, if known.
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    with Progress(what, total, unit) as progress:
        for item in items:
            yield item
            progress.advance(size(item))


def hidden():
    """A context for other output, in which the lines on the terminal are hidden."""
    return Progress.external_write_mode(file=sys.stderr)


def close_all() -> None:
    """Removes all lines, when the work has failed."""
    for line in [*getattr(Progress, "_instances", ())]:
        line.close()

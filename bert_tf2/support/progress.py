"""Progress of long work: one line that is redrawn on a terminal, otherwise a log line every ten seconds.

    for line in progress.track(lines, "Reading", total=count, unit="lines"):
        ...

    with progress.Progress("Evaluating", total=872, unit="examples") as evaluation:
        for batch in batches:
            evaluation.advance(len(batch))

One line is shown at a time: nested work replaces the line of the outer work until it is done. Other output to the
terminal goes through `hidden`, so that it does not mix with the line.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from absl import logging

T = TypeVar("T")

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_DRAWINGS = 0.1
_MOST_MARKS = 1000
_clock = time.monotonic


def duration(seconds: float) -> str:
    """Formats a time span: "42 s", "3 min 20 s", "5 h 02 min"."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def on_terminal() -> bool:
    """Whether the log is shown on a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class Progress:
    """The progress of one piece of work. A context manager; `close` does the same."""

    def __init__(
        self,
        what: str,
        total: float | None = None,
        unit: str = "",
        *,
        done: float = 0,
        contents: tuple[float, str] | None = None,
        note: str = "",
        tell_ends: bool = False,
    ):
        """Shows the line.

        Args:
          what: the work, e.g. "Evaluating".
          total: the total amount of work, if known.
          unit: the name of the units, e.g. "examples".
          done: the amount that an earlier run has already done.
          contents: how many items a unit contains and their name, to show the speed in items; defaults to units.
          note: text shown with the progress, until `advance` gets another one.
          tell_ends: whether to log a line after the first and after the last step even if the work is short.
        """
        self._what, self._total, self._unit = what, total, unit
        self._contents = contents or (1, unit)
        self._tell_ends = tell_ends
        self._done, self._note = done, note
        self._started = self._line_at = self._look_at = _clock()
        self._away = 0.0  # seconds spent on other work
        self._first = done
        self._marks = [(0.0, done)]  # seconds and what was done then
        # Only the main thread writes to the terminal; work in other threads is part of something that it shows.
        in_main_thread = threading.current_thread() is threading.main_thread()
        self._drawn = on_terminal() and logging.level_info() and in_main_thread
        if in_main_thread:
            _shown.append(self)
        self._draw()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        self.close(complete=kind is None)

    def advance(self, count: float = 1, note: str = "") -> None:
        """Adds the work since the last call; `note` is shown with the progress until it is replaced."""
        first = self._done == self._first
        self._done += count
        self._note = note or self._note
        now = _clock()
        if not first and now < self._look_at:
            return
        self._look_at = now + _SECONDS_BETWEEN_DRAWINGS
        self._marks.append((now - self._started - self._away, self._done))
        if len(self._marks) > _MOST_MARKS:
            self._marks = self._marks[::2]
        self._draw()
        if now - self._line_at >= _SECONDS_BETWEEN_LINES or (first and self._tell_ends):
            self._line_at = now
            if not self._drawn:
                logging.info("%s: %s", self._what, self._text())

    def leave_out(self, seconds: float) -> None:
        """Excludes seconds from the speed that were spent on other work, for example on a checkpoint."""
        self._away += seconds

    def per_second(self) -> float | None:
        """Units per second over the later half of the work; None while unknown.

        The first steps of a model include building its graph, and a second batch shape may build another one. So no
        rate is known before the third mark, and no later rate includes the first two.
        """
        if len(self._marks) < 4:
            return None
        (first, before), (last, done) = self._marks[len(self._marks) // 2], self._marks[-1]
        return (done - before) / (last - first) if last > first and done > before else None

    def close(self, complete: bool = True) -> None:
        """Removes the line from a terminal; logs how long the work took, if it was long."""
        if self not in _shown:
            return
        _shown.remove(self)
        if self._drawn:
            _write("")
        seconds = _clock() - self._started - self._away
        if complete and self._done > self._first and (self._tell_ends or seconds >= _SECONDS_BETWEEN_LINES):
            logging.info("%s: %s, took %s", self._what, ", ".join(self._facts()), duration(seconds))

    def _facts(self) -> list[str]:
        amount = f"{self._done:,.0f} of {self._total:,.0f}" if self._total else f"{self._done:,.0f}"
        facts = [f"{amount} {self._unit}", self._note]
        if (rate := self.per_second()) is not None:
            items, name = self._contents
            rate *= items
            speed = f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 1 else f"{rate:.2g}"
            facts.append(f"{speed} {name}/s")
        return [fact for fact in facts if fact]

    def _text(self) -> str:
        facts, rate = self._facts(), self.per_second()
        if rate is not None and self._total and self._done < self._total:
            facts.append(f"{duration((self._total - self._done) / rate)} left")
        return ", ".join(facts)

    def _draw(self) -> None:
        if not self._drawn or _shown[-1] is not self:
            return
        text, width = f"{self._what}: {self._text()}", shutil.get_terminal_size().columns - 1
        if self._total:
            share = min(self._done / self._total, 1.0)
            bar = max(width - len(text) - len(" 100% ||"), 0)
            text = f"{text} {share:4.0%} |{'#' * round(share * bar):<{bar}}|"
        _write(text[:width])


_shown: list[Progress] = []  # innermost last; only this one is shown on the terminal


def _write(text: str) -> None:
    """Writes the line on the terminal in place of the one that is there; the rest of it is erased."""
    sys.stderr.write(f"\r{text}\x1b[K" if text else "\r\x1b[K")
    sys.stderr.flush()


def track(
    items: Iterable[T], what: str, total: float | None = None, unit: str = "items", size=lambda item: 1
) -> Iterator[T]:
    """Yields the items and shows how many there were.

    Args:
      what, total, unit: see Progress; `total` defaults to the number of items, if they have a length.
      size: returns the number of units of an item.
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    with Progress(what, total, unit) as progress:
        for item in items:
            yield item
            progress.advance(size(item))


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Removes the line from the terminal while other output is written."""
    if _shown and _shown[-1]._drawn:
        _write("")
    yield
    if _shown:
        _shown[-1]._draw()


def close_all() -> None:
    """Removes all lines, when the work has failed."""
    while _shown:
        _shown[-1].close(complete=False)

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


class _Rate:
    """The speed of work, measured over its later half.

    The first steps of a model include building its graph, and a second batch shape may build another one. So no rate
    is known before the third mark, and no later rate includes the first two.
    """

    def __init__(self, done: float):
        self._marks = [(0.0, done)]

    def mark(self, seconds: float, done: float) -> None:
        self._marks.append((seconds, done))
        if len(self._marks) > _MOST_MARKS:
            self._marks = self._marks[::2]

    def per_second(self) -> float | None:
        """The rate; None while it is unknown."""
        if len(self._marks) < 4:
            return None
        (first, before), (last, done) = self._marks[len(self._marks) // 2], self._marks[-1]
        return (done - before) / (last - first) if last > first and done > before else None


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
        self._rate = _Rate(done)
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
        self._rate.mark(now - self._started - self._away, self._done)
        self._draw()
        if now - self._line_at >= _SECONDS_BETWEEN_LINES or (first and self._tell_ends):
            self._line_at = now
            self._log()

    def leave_out(self, seconds: float) -> None:
        """Excludes seconds from the speed that were spent on other work, for example on a checkpoint."""
        self._away += seconds

    def per_second(self) -> float | None:
        """Units per second; None while unknown."""
        return self._rate.per_second()

    def close(self, complete: bool = True) -> None:
        """Removes the line from a terminal; logs how long the work took, if it was long."""
        if self not in _shown:
            return
        _shown.remove(self)
        if not _shown:
            _line.close()
        seconds = _clock() - self._started - self._away
        if complete and self._done > self._first and (self._tell_ends or seconds >= _SECONDS_BETWEEN_LINES):
            logging.info("%s: %s, took %s", self._what, ", ".join(self._facts()), duration(seconds))

    def _facts(self) -> list[str]:
        facts = [_amount(self._done, self._total, self._unit), self._note]
        if (rate := self.per_second()) is not None:
            amount, name = self._contents
            facts.append(f"{_number(rate * amount)} {name}/s")
        return [fact for fact in facts if fact]

    def _text(self) -> str:
        facts, rate = self._facts(), self.per_second()
        if rate is not None and self._total and self._done < self._total:
            facts.append(f"{duration((self._total - self._done) / rate)} left")
        return ", ".join(facts)

    def _log(self) -> None:
        if not self._drawn:
            logging.info("%s: %s", self._what, self._text())

    def _draw(self) -> None:
        if self._drawn and _shown[-1] is self:
            share = min(self._done / self._total, 1.0) if self._total else None
            _line.draw(f"{self._what}: {self._text()}", share)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _amount(done: float, total: float | None, unit: str) -> str:
    return f"{done:,.0f} of {total:,.0f} {unit}" if total else f"{done:,.0f} {unit}"


_shown: list[Progress] = []  # innermost last; only this one is shown on the terminal


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
    _line.clear()
    yield
    if _shown:
        _shown[-1]._draw()


def close_all() -> None:
    """Removes all lines, when the work has failed."""
    while _shown:
        _shown[-1].close(complete=False)


class _Line:
    """The line on the terminal that is redrawn in place."""

    def __init__(self):
        self._bar = None

    def draw(self, text: str, share: float | None) -> None:
        """Draws the line; `share` is the fraction of the work that is done, or None if unknown."""
        if self._bar is None:
            from tqdm import tqdm  # imported here because only terminals need it

            tqdm.monitor_interval = 0  # no thread: the line is redrawn when the progress changes
            tqdm.set_lock(threading.RLock())
            self._bar = tqdm(total=1, file=sys.stderr, leave=False, dynamic_ncols=True, bar_format="", delay=1e9)
        text = text.replace("{", "{{").replace("}", "}}")
        self._bar.n = share or 0
        self._bar.bar_format = text if share is None else f"{text} {{percentage:3.0f}}% |{{bar}}|"
        self._bar.refresh()

    def clear(self) -> None:
        """Clears the line until it is drawn again."""
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        """Clears the line and closes the bar."""
        if self._bar is not None:
            self._bar.clear()
            self._bar.close()
            self._bar = None


_line = _Line()

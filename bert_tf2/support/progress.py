"""How far long work has come: one line that renews itself on a terminal, a line on the log every ten seconds elsewhere.

    for line in progress.track(lines, "Reading", total=count, unit="lines"):
        ...

    with progress.Progress("Evaluating", total=872, unit="examples") as evaluation:
        for batch in batches:
            evaluation.advance(len(batch))

One line is shown at a time: work within other work takes its place until it is done. What is written to the terminal
meanwhile goes through `hidden`, so that it does not get into that line.
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
    """A time span as a person would say it: "42 s", "3 min 20 s", "5 h 02 min"."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def on_terminal() -> bool:
    """Whether what is logged appears on a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class _Rate:
    """The speed of work, measured over its later half.

    The first steps of a model include the making of its graph, and a second shape of batches may make another one. So
    nothing is known before the third mark, and from then on no rate contains the first two.
    """

    def __init__(self, done: float):
        self._marks = [(0.0, done)]

    def mark(self, seconds: float, done: float) -> None:
        self._marks.append((seconds, done))
        if len(self._marks) > _MOST_MARKS:
            self._marks = self._marks[::2]

    def per_second(self) -> float | None:
        """None as long as it is not known."""
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
          total: how much there is to do, where that is known.
          unit: what is counted, e.g. "examples".
          done: how much of it has been done already, by an earlier call.
          contents: what to state the speed in, if not in units: how many there are in a unit, and their name.
          note: shown beside, until `advance` is given another one.
          tell_ends: whether the log gets a line after the first step and after the last one, however short the work is.
        """
        self._what, self._total, self._unit = what, total, unit
        self._contents = contents or (1, unit)
        self._tell_ends = tell_ends
        self._done, self._note = done, note
        self._started = self._line_at = self._look_at = _clock()
        self._away = 0.0  # seconds that were not spent on this work
        self._first = done
        self._rate = _Rate(done)
        self._drawn = on_terminal() and logging.level_info()
        _shown.append(self)
        self._draw()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        self.close(complete=kind is None)

    def advance(self, count: float = 1, note: str = "") -> None:
        """Adds what was done since the last call; `note` is shown beside, until there is another one."""
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
        """Leaves seconds that went by out of the speed: they were spent on something else, such as a checkpoint."""
        self._away += seconds

    def per_second(self) -> float | None:
        """Units per second; None as long as it is not known."""
        return self._rate.per_second()

    def close(self, complete: bool = True) -> None:
        """Removes the line from a terminal; tells on the log how long the work took, if it was long."""
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


_shown: list[Progress] = []  # innermost last; only that one is on the terminal


def track(
    items: Iterable[T], what: str, total: float | None = None, unit: str = "items", size=lambda item: 1
) -> Iterator[T]:
    """Passes items on and shows how many there were.

    Args:
      what, total, unit: see Progress; `total` is counted where the items have a length and `size` is not given.
      size: how many units an item is.
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    with Progress(what, total, unit) as progress:
        for item in items:
            yield item
            progress.advance(size(item))


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Takes the line off the terminal while something else is written there."""
    _line.clear()
    yield
    if _shown:
        _shown[-1]._draw()


def close_all() -> None:
    """Removes the line for good: what it told of has failed."""
    while _shown:
        _shown[-1].close(complete=False)


class _Line:
    """The line on the terminal that is drawn again in its place."""

    def __init__(self):
        self._bar = None

    def draw(self, text: str, share: float | None) -> None:
        """`share` of the work is done; None where that is not known."""
        if self._bar is None:
            from tqdm import tqdm  # late: only terminals need it

            tqdm.monitor_interval = 0  # no thread: this line is drawn when there is something new
            tqdm.set_lock(threading.RLock())
            self._bar = tqdm(total=1, file=sys.stderr, leave=False, dynamic_ncols=True, bar_format="", delay=1e9)
        text = text.replace("{", "{{").replace("}", "}}")
        self._bar.n = share or 0
        self._bar.bar_format = text if share is None else f"{text} {{percentage:3.0f}}% |{{bar}}|"
        self._bar.refresh()

    def clear(self) -> None:
        """Empties the line until it is drawn the next time."""
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        """Empties the line for good."""
        if self._bar is not None:
            self._bar.clear()
            self._bar.close()
            self._bar = None


_line = _Line()

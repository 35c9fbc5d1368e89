"""Progress of long work: tqdm's line on a terminal, otherwise a log line every ten seconds.

for line in progress.track(lines, "Reading", total=count, unit="lines"):
    ...
"""

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


def duration(seconds: float) -> str:
    """Formats a time span: "42 s", "3 min 20 s", "5 h 02 min"."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def on_terminal() -> bool:
    """Whether the log is shown on a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class Progress(tqdm):
    """The progress of one piece of work. A context manager; `close` does the same."""

    monitor_interval = 0  # no thread

    def __init__(
        self, what: str, total: float | None = None, unit: str = "", *, done: float = 0,
        contents: tuple[float, str] | None = None, note: str = "", tell_ends: bool = False,
    ):  # fmt: skip
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
        self._contents, self._note, self._tell_ends = contents or (1, unit), note, tell_ends
        self._drawn = on_terminal()
        # Work in other threads is part of something that the main thread shows.
        hides = threading.current_thread() is not threading.main_thread() or (self._drawn and not logging.level_info())
        seconds = _SECONDS_BETWEEN_DRAWINGS if self._drawn else _SECONDS_BETWEEN_LINES
        super().__init__(
            desc=what, total=total, unit=unit, initial=done, disable=hides, leave=False, dynamic_ncols=True, miniters=0,
            mininterval=seconds, file=sys.stderr if self._drawn else io.StringIO(),
            bar_format="{desc}: {text}" + (" {percentage:3.0f}% |{bar}|" if total else ""),
        )  # fmt: skip

    def advance(self, count: float = 1, note: str = "") -> None:
        """Adds the work since the last call; `note` is shown with the progress until it is replaced."""
        self._note = note or self._note
        if self.disable or self.n > self.initial:
            self.update(count)
            return
        self.n = self.last_print_n = self.n + count  # a first step includes building its graph: not part of the speed
        began, self.last_print_t = self.last_print_t, self._time()
        if self._tell_ends or self.last_print_t - began >= self.mininterval:
            self.refresh()

    def leave_out(self, seconds: float) -> None:
        """Excludes seconds from the speed that were spent on other work, for example on a checkpoint."""
        if not self.disable:
            self.start_t += seconds
            self.last_print_t += seconds

    def display(self, msg: str | None = None, pos: int | None = None) -> bool | None:
        if self._drawn:
            return super().display(msg, pos)
        if msg is None and self.n > self.initial:
            logging.info("%s: %s", self.desc, self.format_dict["text"])

    def close(self, complete: bool = False) -> None:
        """Removes the line from a terminal; if the work is complete and was long, logs how long it took."""
        tells = complete and not self.disable and self.n > self.initial
        took = self._time() - self.start_t if tells else 0.0
        super().close()
        if tells and (self._tell_ends or took >= _SECONDS_BETWEEN_LINES):
            logging.info("%s: %s, took %s", self.desc, ", ".join(self._facts()[0]), duration(took))

    def __exit__(self, kind, error, traceback) -> None:
        self.close(complete=kind is None)

    @property
    def format_dict(self) -> dict[str, Any]:
        facts, rate = self._facts()
        if rate and self.total and self.n < self.total:
            facts.append(f"{duration((self.total - self.n) / rate)} left")
        return {**super().format_dict, "text": ", ".join(facts)}

    def _facts(self) -> tuple[list[str], float | None]:
        """What is done, the note and the speed; the units per second, None while unknown."""
        facts = [f"{self.n:,.0f}{f' of {self.total:,.0f}' if self.total else ''} {self.unit}", self._note]
        count, seconds = self._ema_dn(), self._ema_dt()
        if not seconds and self.n > self.initial:
            count, seconds = self.n - self.last_print_n, self._time() - self.last_print_t
        rate = count / seconds if seconds else None
        if rate:
            speed = rate * self._contents[0]
            shown = f"{speed:,.0f}" if speed >= 100 else f"{speed:.1f}" if speed >= 1 else f"{speed:.2g}"
            facts.append(f"{shown} {self._contents[1]}/s")
        return [*filter(None, facts)], rate


Progress.set_lock(threading.RLock())  # processes of this package have no lines of their own


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


def hidden():
    """A context in which other output is written, without the lines on the terminal."""
    return Progress.external_write_mode(file=sys.stderr)


def close_all() -> None:
    """Removes all lines, when the work has failed."""
    for line in [*getattr(Progress, "_instances", ())]:
        line.close()

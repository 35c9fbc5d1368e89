"""A script as a process: its standard streams, and the signals that stop it.

    begin()            the first thing that a script does: a signal ends it at once, in one line
    end_on_signals()   once the work begins: the same, after partial files have been removed

Only scripts call these. Importing this package changes no signal handler, and this module imports nothing that takes
time.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Callable

STANDARD_OUTPUT = "standard output"
"""The name of the file in the exceptions of standard output."""

_WORDS = {"SIGINT": "interrupted", "SIGTERM": "stopped by SIGTERM", "SIGHUP": "stopped, the terminal was closed"}
_STOPPING = {getattr(signal, name): words for name, words in _WORDS.items() if hasattr(signal, name)}

# Ctrl-C in a shell and `timeout` send the same signal twice within milliseconds. That is one request, not two.
_SECONDS_OF_ONE_REQUEST = 1.0


class Stopped(KeyboardInterrupt):
    """A signal told this process to stop.

    Attributes:
      number: the signal's.
      status: the exit status that shells and schedulers expect, 128 + number.
    """

    def __init__(self, number: int, message: str = ""):
        super().__init__(message or _STOPPING.get(number, "interrupted"))
        self.number = number
        self.status = 128 + number


class StopRequest:
    """Tells the first signal from a later one, where a request to stop may come as several signals.

    Attributes:
      stopped: the first signal; None where there was none.
    """

    def __init__(self):
        self.stopped: Stopped | None = None
        self._at = 0.0

    def is_new(self, number: int) -> bool | None:
        """Takes in a signal: True for the first one, None for one that belongs to it, False for one that insists."""
        if self.stopped is None:
            self.stopped, self._at = Stopped(number), time.monotonic()
            return True
        return None if time.monotonic() - self._at < _SECONDS_OF_ONE_REQUEST else False


def handle_signals(handler: Callable | signal.Handlers) -> dict[int, object]:
    """Sets a handler for the signals that stop a process; returns the handlers before, for `restore_signals`.

    A signal that is ignored stays ignored: `nohup` and `command &` rely on that. Only the main thread may set handlers;
    elsewhere nothing changes.
    """
    before: dict[int, object] = {}
    for number in _STOPPING:
        try:
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
        except ValueError:
            return before
    return before


def restore_signals(before: dict[int, object]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)


def begin() -> None:
    """Answers signals at once from here on, and opens the standard streams that the caller has closed.

    Without these streams the next file that is opened would become standard output.
    """
    handle_signals(lambda number, frame: leave(128 + number, _STOPPING[number]))
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, this one
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    given = sys.stdout
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_StandardOutput(1, "wb", closefd=False)),
        encoding=given.encoding if given else "utf-8",
        errors=given.errors if given else "strict",
        line_buffering=given is not None and given.line_buffering,
    )


class _StandardOutput(io.FileIO):
    """Standard output, whose errors say that they are its. After one, Python drops what could not be written."""

    def write(self, data) -> int | None:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = STANDARD_OUTPUT
            raise


def leave(status: int, message: str) -> None:
    """Ends the process now: nothing is unwound, nothing flushed."""
    try:
        os.write(2, f"{script_name()}: error: {message}\n".encode())
    finally:
        os._exit(status)


def script_name() -> str:
    return os.path.basename(sys.argv[0])


def end_on_signals(tidy: Callable[[], None]) -> None:
    """Lets a signal end the process from here on: first `tidy`, then one line, and the exit status 128 + number.

    Nothing is raised. An exception that a signal handler raises can be lost: Python drops it in a destructor,
    TensorFlow prints it where one of its functions calls back, and the script would go on to its end.

    Args:
      tidy: removes partial files and the like. It runs at any place of the program, so it must not wait for anything.
    """

    def end(number: int, frame) -> None:
        handle_signals(signal.SIG_IGN)  # `timeout` and Ctrl-C in a shell send several
        with contextlib.suppress(Exception):
            tidy()
        leave(128 + number, _STOPPING[number])

    handle_signals(end)


def flush_streams() -> OSError | None:
    """Writes what is left in the buffers of the standard streams; the error of standard output if it has one.

    What cannot be written is dropped, or Python would complain at its end.
    """
    problem = None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError) as error:  # a ValueError: somebody has closed it
            if stream is sys.stdout and isinstance(error, OSError):
                problem = error
            _discard(stream)
    return problem


def _discard(stream) -> None:
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)

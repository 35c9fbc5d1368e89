"""Standard streams and signals of a script.

    begin()            called first in a script: a signal ends it at once, with one line
    end_on_signals()   called before the work: the same, after partial files have been removed

Only scripts call these functions: importing this package changes no signal handler. This module imports only fast
modules.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

STANDARD_OUTPUT = "standard output"
"""The file name in exceptions of standard output."""

_WORDS = {"SIGINT": "interrupted", "SIGTERM": "stopped by SIGTERM", "SIGHUP": "stopped, the terminal was closed"}
_STOPPING = {getattr(signal, name): words for name, words in _WORDS.items() if hasattr(signal, name)}

SECONDS_TO_END = 5.0
"""How long a process may take to end that was asked to."""


class Stopped(KeyboardInterrupt):
    """A signal requested that this process stop.

    Attributes:
      number: the number of the signal.
      status: the exit status that shells and schedulers expect, 128 + number.
    """

    def __init__(self, number: int, message: str = ""):
        super().__init__(message or _STOPPING.get(number, "interrupted"))
        self.number = number
        self.status = 128 + number


def handle_signals(handler: Callable | signal.Handlers) -> dict[int, object]:
    """Sets a handler for the signals that stop a process; returns the previous handlers for `restore_signals`.

    A signal that is ignored stays ignored, because `nohup` and `command &` rely on it. Only the main thread can set
    handlers; in other threads nothing changes.
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


is_script = False
"""Whether this process is that of a script, which may change what belongs to all of it. A library call may not."""


def begin() -> None:
    """Ends the process at once on a signal from here on, and opens the standard streams that the caller has closed.

    Without these streams, the next file that is opened would become standard output. Standard output is UTF-8, as every
    file of this project is, in any locale.
    """
    global is_script
    is_script = True
    handle_signals(lambda number, frame: leave(128 + number, _STOPPING[number]))
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # what is opened gets the lowest free number, which is this one
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # for names of files that are not UTF-8


def show(text: str) -> None:
    """Prints a text at once, since a reader may be waiting for it; an error has the name STANDARD_OUTPUT."""
    try:
        print(text, flush=True)
    except OSError as error:
        error.filename = STANDARD_OUTPUT
        raise


@contextlib.contextmanager
def told_at_once(handler: Callable[[int], None]) -> Iterator[None]:
    """Calls `handler`, in a thread, with the number of each signal that has a handler of Python.

    Python's own handlers run when a call of TensorFlow returns, which may never happen. Only in the main thread.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def watch() -> None:
        while number := os.read(reading, 1):
            handler(number[0])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)
        thread.join()
        os.close(reading)


def leave(status: int, message: str) -> None:
    """Ends the process without unwinding the stack or flushing streams."""
    try:
        os.write(sys.stderr.fileno(), f"{script_name()}: error: {message}\n".encode(errors="backslashreplace"))
    finally:
        os._exit(status)


def script_name() -> str:
    return os.path.basename(sys.argv[0])


def end_on_signals(tidy: Callable[[], None]) -> None:
    """On a signal from here on, ends children, calls `tidy`, prints one line, and exits with status 128 + number.

    The handler raises nothing, because an exception from a signal handler can be lost: Python drops it in a destructor,
    TensorFlow prints it in a callback, and the script would continue to its end.

    Args:
      tidy: removes partial files. It can run at any point of the program, so it must not wait for anything.
    """

    def end(number: int, frame) -> None:
        handle_signals(signal.SIG_IGN)  # `timeout` and Ctrl-C in a shell send several
        with contextlib.suppress(Exception):
            if multiprocessing := sys.modules.get("multiprocessing"):
                end_processes(multiprocessing.active_children())
        with contextlib.suppress(Exception):
            tidy()
        leave(128 + number, _STOPPING[number])

    handle_signals(end)


def end_processes(processes: Sequence[BaseProcess]) -> None:
    """Ends processes of multiprocessing: asks them to, waits for a while, and kills those that are left."""
    for child in processes:
        child.terminate()
    for child in processes:
        child.join(SECONDS_TO_END)
        if child.is_alive():
            child.kill()
            child.join()


def flush_output() -> OSError | None:
    """Flushes standard output; returns its error. What cannot be written is dropped: Python would fail at exit."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:  # ValueError: the stream is closed
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), sys.stdout.fileno())
        if isinstance(error, OSError):
            error.filename = STANDARD_OUTPUT
            return error
    return None

"""Signals and standard output of a script. Only scripts call `begin`: importing this package changes no handler.

This module imports only fast modules.
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

_WORDS = {"SIGINT": "interrupted", "SIGTERM": "stopped by SIGTERM", "SIGHUP": "stopped, the terminal was closed"}
_STOPPING = {getattr(signal, name): words for name, words in _WORDS.items() if hasattr(signal, name)}

SECONDS_TO_END = 5.0
"""How long a process may take to end that was asked to."""

is_script = False
"""Whether this process is that of a script, which may change what belongs to all of it. A library call may not."""

tidying: list[Callable[[], None]] = []
"""What removes partial files when a signal ends a script. It can run at any point, so it must not wait for anything."""


class Stopped(KeyboardInterrupt):
    """A signal requested that this process stop; `status` is what shells and schedulers expect then, 128 + number."""

    def __init__(self, number: int, message: str):
        super().__init__(message)
        self.status = 128 + number


def begin() -> None:
    """From here on, a signal ends children, tidies up, prints one line and exits with status 128 + number.

    Its handler raises nothing, because such an exception can be lost: Python drops it in a destructor, TensorFlow
    prints it in a callback, and the script would go on. Standard output is UTF-8 in any locale, as every file is.
    """
    global is_script
    is_script = True
    handle_signals(_end)
    with contextlib.suppress(AttributeError):  # it is closed, or not that of a process
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # for names of files that are not UTF-8


def _end(number: int, frame: object) -> None:
    handle_signals(signal.SIG_IGN)  # `timeout` and Ctrl-C in a shell send several
    for tidy in (_end_children, *tidying):
        with contextlib.suppress(Exception):
            tidy()
    leave(128 + number, _STOPPING[number])


def _end_children() -> None:
    if multiprocessing := sys.modules.get("multiprocessing"):
        end_processes(multiprocessing.active_children())


def handle_signals(handler: Callable | signal.Handlers) -> dict[int, object]:
    """Sets a handler for the signals that stop a process; returns the previous handlers for `restore_signals`.

    A signal that is ignored stays ignored, because `nohup` and `command &` rely on it. Only the main thread can set
    handlers; in other threads nothing changes.
    """
    before: dict[int, object] = {}
    for number in _STOPPING if threading.current_thread() is threading.main_thread() else ():
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, handler)
    return before


def restore_signals(before: dict[int, object]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)


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
        print(end="", flush=True)
    except OSError as error:
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), sys.stdout.fileno())
        return error
    return None

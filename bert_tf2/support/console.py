"""The log of a script: its format, its tables, and its end: a summary, or one line for an error that is not a bug.

The log is written to standard error; results that can be piped are written to standard output.
"""

from __future__ import annotations

import contextlib
import logging as python_logging
import os
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import NoReturn

from absl import logging

from bert_tf2.support import errors, outputs, process
from bert_tf2.support.errors import UserError

_LONGEST_ROW = 600


def set_up_log() -> None:
    """Sets the format of the log, before anything is logged."""
    handler = logging.get_absl_handler().python_handler
    handler.setFormatter(_Formatter())
    # Other libraries log only warnings and errors.
    handler.addFilter(lambda record: record.name == "absl" or record.levelno >= python_logging.WARNING)
    emit = handler.emit

    def emit_beside_progress(record: python_logging.LogRecord) -> None:
        shown = _progress()
        with shown.hidden() if shown else contextlib.nullcontext():
            emit(record)

    handler.emit = emit_beside_progress


def _progress() -> ModuleType | None:
    """The module `progress` if it was imported, or None. It is not imported here, because its import takes 20 ms."""
    return sys.modules.get("bert_tf2.support.progress")


def _remove_lines() -> None:
    if shown := _progress():
        shown.close_all()


class _Formatter(python_logging.Formatter):
    """The time, the level of warnings and errors, the message."""

    def format(self, record: python_logging.LogRecord) -> str:
        level = f"{record.levelname}: " if record.levelno >= python_logging.WARNING else ""
        return f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {level}{super().format(record)}"


def table(title: str, rows: Mapping[str, object]) -> str:
    """Formats a title, and rows of a name and a text; a very long text is cut."""
    column = max(map(len, rows), default=0)
    shown = {name: textwrap.shorten(str(text), _LONGEST_ROW, placeholder=" ...") for name, text in rows.items()}
    return "\n".join([title, *(f"  {name:<{column}}  {text}" for name, text in shown.items())])


def summary(written: Sequence[str], figures: Mapping[str, float] | None = None) -> None:
    """Logs the results of a run: the files that it wrote, under the names that the user gave, and its main figures."""
    names_in: dict[str, list[str]] = {}
    for folder, name in map(os.path.split, written):
        names_in.setdefault(folder, []).append(name)
    places = [
        f"{', '.join(names)} in {folder}" if folder and names[1:] else os.path.join(folder, ", ".join(names))
        for folder, names in names_in.items()
    ]
    rows = {"wrote": "; ".join(places)} if places else {}
    if figures:
        rows["results"] = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
    logging.info("%s", table("Done.", rows))


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Reports errors that are not bugs in one line: a user's mistake, a signal, a full disk, lack of memory.

    The exit status is the `status` of a UserError, 1 for errors of the machine, 130 after Ctrl-C, 143 after SIGTERM. It
    is not an error if the reader of standard output, for example `head`, stops reading. Every other exception is a bug
    and propagates. With --verbosity=1, the traceback of a one-line error is logged.
    """
    process.tidying[:] = [_remove_lines, outputs.remove_partial]
    process.begin()
    try:
        yield
    except BaseException as error:  # scripts that succeed end with SystemExit
        try:
            print(end="", flush=True)  # now, because an error at Python's exit could not be handled
        except OSError as lost:
            error = lost if isinstance(error, SystemExit) else error
            with open(os.devnull, "wb") as null:
                os.dup2(null.fileno(), sys.stdout.fileno())
        if isinstance(error, UserError):
            status, line = error.status, str(error)
        elif isinstance(error, KeyboardInterrupt):
            status, line = getattr(error, "status", 130), str(error) or "interrupted"
        elif isinstance(error, BrokenPipeError):
            sys.exit(0)
        elif line := errors.explain(error):
            status = 1
        else:
            raise
        logging.debug("The error:", exc_info=True)
        fail(status, line)


def fail(status: int, message: str) -> NoReturn:
    """Ends the script with one line on standard error."""
    with contextlib.suppress(OSError):  # for example, the terminal is closed
        _remove_lines()
        line = "\\n".join(message.splitlines())  # the name of a file may contain a line end
        print(f"{process.script_name()}: error: {line}", file=sys.stderr, flush=True)
    sys.exit(status)

"""The log of a script: its format, tables in it, and its end: a summary, or one line for an error that is not a bug.

The log is written to standard error; results that can be piped are written to standard output.
"""

from __future__ import annotations

import contextlib
import logging as python_logging
import os
import shutil
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

from absl import logging

from bert_tf2.support import environment, process, progress
from bert_tf2.support.errors import UserError

_YELLOW, _RED = "1;33", "1;31"
_WIDTH_OF_FILES = 120
_BEGAN = time.monotonic()


def set_up_log() -> None:
    """Sets the format of the log. Scripts call this before they log anything."""
    handler = logging.get_absl_handler().python_handler
    handler.setFormatter(_Formatter())
    # Other libraries log only warnings and errors.
    handler.addFilter(lambda record: record.name == "absl" or record.levelno >= python_logging.WARNING)
    emit = handler.emit

    def emit_beside_progress(record: python_logging.LogRecord) -> None:
        with progress.hidden():
            emit(record)

    handler.emit = emit_beside_progress
    warnings.formatwarning = _one_line
    python_logging.captureWarnings(True)


class _Formatter(python_logging.Formatter):
    """The time, the level of warnings and errors, the message."""

    def format(self, record: python_logging.LogRecord) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = super().format(record)
        if record.levelno >= python_logging.ERROR:
            return f"{moment} {loud('ERROR:', _RED)} {text}"
        if record.levelno >= python_logging.WARNING:
            return f"{moment} {loud('WARNING:', _YELLOW)} {text}"
        return f"{moment} {text}"


def _one_line(message, category, filename, lineno, line=None) -> str:
    """Formats a warning of Python's `warnings`."""
    return f"{' '.join(str(message).split())} ({category.__name__}, {os.path.basename(filename)} line {lineno})"


def loud(text: str, color: str = _RED) -> str:
    """Colors text on a terminal; NO_COLOR disables this (https://no-color.org)."""
    if not progress.on_terminal() or os.environ.get("NO_COLOR"):
        return text
    return f"\033[{color}m{text}\033[0m"


def _width() -> int:
    return min(shutil.get_terminal_size().columns, _WIDTH_OF_FILES) - 1 if progress.on_terminal() else _WIDTH_OF_FILES


def table(title: str, rows: Mapping[str, object], most_lines: int = 6) -> str:
    """Formats a title and rows of a name and a wrapped text; text beyond `most_lines` lines is omitted."""
    column = max(map(len, rows), default=0) + 4
    lines = [title]
    for name, text in rows.items():
        wrapped = textwrap.wrap(
            str(text), max(_width() - column, 20), max_lines=most_lines, placeholder=" ...",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        first, *rest = wrapped or [""]
        lines += [f"  {name:<{column - 2}}{first}", *(" " * column + line for line in rest)]
    return "\n".join(lines)


def summary(written: Sequence[str], figures: Mapping[str, float] | None = None) -> None:
    """Logs the results of a run.

    Args:
      written: the files and folders that it wrote, under the names that the user gave.
      figures: the main results.
    """
    rows = {"wrote": ", ".join(written)} if written else {}
    if figures:
        rows["results"] = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
    took = f" in {progress.duration(time.monotonic() - _BEGAN)}" if process.is_script else ""
    logging.info("%s", table(f"Done{took}.", rows))


@contextlib.contextmanager
def in_one_line(
    memory_settings: Callable[[], Iterable[str]] = tuple, tidy: Callable[[], object] = tuple
) -> Iterator[None]:
    """Reports errors that are not bugs in one line: a user's mistake, a signal, a full disk, lack of memory.

    The exit status is the `status` of a UserError, 1 for errors of the machine, 130 after Ctrl-C, 143 after SIGTERM. If
    the reader of standard output stops reading, for example `head`, this is no error. Every other exception is a bug
    and propagates. With --verbosity=1, the traceback of a one-line error is logged.

    `memory_settings` returns the flags that determine how much memory is needed, with their values; `tidy` is called
    after a signal, see process.end_on_signals.
    """
    process.end_on_signals(tidy)
    try:
        yield
    except BaseException as error:  # scripts that succeed end with SystemExit
        lost = process.flush_output()  # now, because an error at Python's exit could not be handled
        if isinstance(error, SystemExit) and lost is None:
            raise
        status, line = _answer(lost if isinstance(error, SystemExit) else error, memory_settings)
        if line is None:
            raise
        logging.debug("The error:", exc_info=True)
        if line:
            fail(status, line)


def fail(status: int, message: str) -> NoReturn:
    """Ends the script with one line on standard error."""
    with contextlib.suppress(OSError):  # for example, the terminal is closed
        progress.close_all()
        line = "\\n".join(message.splitlines())  # the name of a file may contain a line end
        print(f"{process.script_name()}: {loud('error:')} {line}", file=sys.stderr, flush=True)
    sys.exit(status)


def _answer(error: BaseException, memory_settings: Callable[[], Iterable[str]]) -> tuple[int, str | None]:
    """Returns the exit status and the line; None if the exception is a bug, "" if there is nothing to report."""
    if isinstance(error, UserError):
        return error.status, str(error)
    if isinstance(error, KeyboardInterrupt):
        return getattr(error, "status", 130), str(error) or "interrupted"
    if isinstance(error, BrokenPipeError):
        return 0, ""
    if environment.is_out_of_memory(error):
        return 1, environment.out_of_memory(error, memory_settings())
    if isinstance(error, OSError) and error.filename == process.STANDARD_OUTPUT:
        return 1, f"{error.filename}: {error.strerror}; not all of the output is written"
    return 1, environment.explain(error)

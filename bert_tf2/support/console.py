"""The log of a script: its format, tables in it, and the summary at the end.

The log is written to standard error; results that can be piped are written to standard output.
"""

from __future__ import annotations

import dataclasses
import logging as python_logging
import os
import shlex
import shutil
import sys
import textwrap
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence

from absl import logging

from bert_tf2.support import help_screen, progress

_YELLOW, _RED = "1;33", "1;31"
_WIDTH_OF_FILES = 120
_started: float | None = None


def set_up_log() -> None:
    """Sets the format of the log. Scripts call this before they log anything."""
    global _started
    _started = time.monotonic()
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


def python() -> str:
    """The interpreter that runs this, as one types it here."""
    for name in ("python", "python3"):
        if _is_ours(name) and os.path.samefile(shutil.which(name), sys.executable):
            return name
    return _typed(sys.executable or "python")


def command(script: str, /, *arguments: str, folder: str | None = None, **flags) -> str:
    """A command line that runs a script as it is printed, here and with this interpreter.

    Args:
      script: its name.
      arguments: what follows it.
      folder: where it may lie; defaults to the folder of the script that is running. If it does not, the command is the
        one of the installed package.
      flags: a flag whose value is None is left out.
    """
    path = os.path.join(os.path.dirname(sys.argv[0]) if folder is None else folder, script)
    if os.path.exists(path):
        start = f"{python()} {_typed(path)}"
    else:
        start = f"{'bert_tf2' if _is_ours('bert_tf2') else f'{python()} -m bert_tf2'} {script.removesuffix('.py')}"
    parts = [start, *map(shlex.quote, arguments)]
    for name, value in flags.items():
        if value is True:
            parts.append(f"--{name}")
        elif value is not None:
            parts.append(f"--{name}={shlex.quote(str(value))}")
    return " ".join(parts)


def _is_ours(name: str) -> bool:
    """Whether a program on PATH is of the environment that runs this."""
    found = shutil.which(name)
    return bool(found) and os.path.samefile(os.path.dirname(found), os.path.dirname(sys.executable) or ".")


def _typed(path: str) -> str:
    near = os.path.relpath(path)
    return shlex.quote(os.path.abspath(path) if near.startswith(os.pardir) else near)


def changed(options, *, without: Iterable[str] = ()) -> dict[str, object]:
    """The fields of an options object that differ from their defaults, as flags."""
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    return {name: value for name, value in values.items() if name not in without and value != defaults[name]}


def summary(
    written: Sequence[str], figures: Mapping[str, float] | None = None, next_command: str | None = None
) -> None:
    """Logs the results of a run.

    Args:
      written: the files and folders that it wrote, under the names that the user gave.
      figures: the main results.
      next_command: a command to continue with.
    """
    rows = {"wrote": ", ".join(written)} if written else {}
    if figures:
        rows["results"] = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
    took = f" in {progress.duration(time.monotonic() - _started)}" if _started is not None else ""
    text = table(f"Done{took}.", rows)
    if next_command:
        broken = help_screen.break_command(next_command, _width() - 4).replace("\n", "\n    ")
        text += f"\n  next\n    {broken}"
    logging.info("%s", text)

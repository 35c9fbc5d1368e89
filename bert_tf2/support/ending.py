"""The end of a script: every error that is not a bug is reported in one line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

from absl import logging

from bert_tf2.support import console, environment, process, progress
from bert_tf2.support.errors import UserError


@contextlib.contextmanager
def in_one_line(
    memory_settings: Callable[[], Iterable[str]] = tuple, tidy: Callable[[], object] = tuple
) -> Iterator[None]:
    """Reports errors that are not bugs in one line: a user's mistake, a signal, a full disk, lack of memory.

    The exit status is the `status` of a UserError, 1 for errors of the machine, 130 after Ctrl-C, 143 after SIGTERM. If
    the reader of standard output stops reading, for example `head`, this is no error. Every other exception is a bug
    and propagates. With --verbosity=1, the traceback of a one-line error is logged.

    Args:
      memory_settings: the flags that determine how much memory is needed, with their values.
      tidy: called after a signal; see process.end_on_signals.
    """
    process.end_on_signals(tidy)
    try:
        try:
            yield
        except SystemExit:  # scripts that succeed also end with it
            lost = process.flush_streams()  # now, because an error at Python's exit could not be handled
            if lost is None:
                raise
            raise lost from None
    except SystemExit:
        raise
    except BaseException as error:
        process.flush_streams()
        status, line = _answer(error, memory_settings)
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
        print(f"{process.script_name()}: {console.loud('error:')} {line}", file=sys.stderr, flush=True)
    sys.exit(status)


def _answer(error: BaseException, memory_settings: Callable[[], Iterable[str]]) -> tuple[int, str | None]:
    """Returns the exit status and the line; None if the exception is a bug, "" if there is nothing to report.

    Args:
      error: the exception.
      memory_settings: see in_one_line.
    """
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

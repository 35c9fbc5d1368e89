"""How a script ends: whatever is not a bug of ours, in one line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from absl import logging

from bert_tf2.support import environment, process
from bert_tf2.support.errors import UserError


@contextlib.contextmanager
def in_one_line(
    fail: Callable[[int, str], None], memory_settings: Callable[[], Iterable[str]], tidy: Callable[[], None]
) -> Iterator[None]:
    """Turns what ends a script into one line: a user's mistake, a signal, a full disk, memory that is used up.

    The exit status is 1 for a mistake and for what the machine refuses, 130 after Ctrl-C, 143 after SIGTERM. A reader
    of standard output who has seen enough, `head` say, is no error. Every other exception is a bug and passes; the
    traceback of what is reported in one line is logged with --verbosity=1.

    Args:
      fail: called with an exit status and the line; does not return.
      memory_settings: the flags that decide how much memory is needed, with their values.
      tidy: what a signal leaves to do; see process.end_on_signals.
    """
    process.end_on_signals(tidy)
    try:
        try:
            yield
        except SystemExit:  # how a script ends that succeeds, too
            lost = process.flush_streams()  # now, not at Python's end, where nobody can answer for it
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


def _answer(error: BaseException, memory_settings: Callable[[], Iterable[str]]) -> tuple[int, str | None]:
    """Exit status and line; None where the exception is a bug, "" where there is nothing to say.

    Args:
      error: the exception.
      memory_settings: see in_one_line.
    """
    if isinstance(error, UserError):
        return 1, str(error)
    if isinstance(error, KeyboardInterrupt):
        return getattr(error, "status", 130), str(error) or "interrupted"
    if isinstance(error, BrokenPipeError):
        return 0, ""
    if environment.is_out_of_memory(error):
        return 1, environment.out_of_memory(error, memory_settings())
    if isinstance(error, OSError) and error.filename == process.STANDARD_OUTPUT:
        return 1, f"{error.filename}: {error.strerror}; not all of the output is written"
    return 1, environment.explain(error)

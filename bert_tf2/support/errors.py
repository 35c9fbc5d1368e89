"""UserError, for errors that the user can fix; and errors of the operating system in one sentence.

TensorFlow and HDF5 raise their own exceptions for full disks, read-only folders and lack of memory. This module treats
them alike.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


class UserError(Exception):
    """The user's input is wrong, and the user can fix it.

    The message is the single line that a script prints before it exits with `status`. It names the fault, its
    file and row (or flag), and the remedy. Scripts show no traceback for it; every other exception is a bug
    and keeps its traceback.

    These reasons for a UserError are not repeated in every docstring:

    | code that | raises a UserError if |
    |-|-|
    | takes settings or arguments | a value is out of range, contradicts another, or does not fit the model or files |
    | reads a file | the file is missing, damaged, of another kind, has content that is not allowed, or has changed |
    | opens weights | variables are missing, have other shapes or values that are not finite, or do not fit the files |
    | writes a file | the file cannot be written, or would replace an input or a file of another run |
    | uses a device, worker or library | it is missing, cannot be reached, was started differently, or has ended |

    Attributes:
      status: the exit status of the script; 2 for a wrong command line.
    """

    status = 1

    # Keras appends the arguments of the call to the message of an exception from a layer, and tf.function appends the
    # source lines. With these attributes, Keras and tf.function leave the exception unchanged.
    _keras_call_info_injected = True
    ag_pass_through = True


def and_more(items: Sequence[object], most: int = 20, separator: str = ", ") -> str:
    """Formats items for a message: the first `most` of them, and the number of the others."""
    shown = separator.join(str(item) for item in items[:most])
    return f"{shown}{separator.rstrip(' ,')} and {len(items) - most} more" if len(items) > most else shown


@contextlib.contextmanager
def filtered(keep: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """A context in which `keep` decides which records of this thread are logged; other threads log as before."""
    from absl.logging import get_absl_logger  # late, as in `xla_flags`

    logger, this = get_absl_logger(), threading.get_ident()

    def decide(record: logging.LogRecord) -> bool:
        return record.thread != this or keep(record)

    logger.addFilter(decide)
    try:
        yield
    finally:
        logger.removeFilter(decide)


_FLAG = re.compile(r"(?<![\w-])--(?=[a-z])")
_COMMAND = re.compile(r"\.py |dask worker |$")


@contextlib.contextmanager
def naming_arguments() -> Iterator[None]:
    """A context, or decorator, for a call from Python: messages name `alpha`, as it was given, and not `--alpha`.

    This concerns UserErrors and this thread's log. The flags of a command that a message names, such as
    convert_checkpoint.py, keep their dashes.
    """

    def named(message: str) -> str:
        place = _COMMAND.search(message).start()
        return _FLAG.sub("", message[:place]) + message[place:]

    def rename(record: logging.LogRecord) -> bool:
        record.msg, record.args = named(record.getMessage()), ()
        return True

    try:
        with filtered(rename):
            yield
    except UserError as error:
        error.args = (named(str(error)),)
        raise


# Errors of the operating system

ADVICE = {
    errno.ENOSPC: "make room on this disk, or write to another disk",
    errno.EDQUOT: "delete files of yours on this disk, or write to another disk",
    errno.EROFS: "write to another folder",
    errno.EEXIST: "a file has this name; give another name",
    errno.ENOTDIR: "a file is where a folder is needed; give another name",
    errno.EISDIR: "give the name of a file",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EFBIG: "raise the limit, see ulimit -f, or write to another disk",
    errno.EACCES: "change the permissions, or choose another folder",
}
_NUMBERS = {os.strerror(number): number for number in errno.errorcode}
# TensorFlow: "FILE; No space left on device"; HDF5: "error message = 'No space left on device'".
_SAID = re.compile(rf"(?:(?:^|\s)([^\s;{{}}][^;{{}}\n]*); |message = ')({'|'.join(map(re.escape, _NUMBERS))})")
_OUT_OF_MEMORY = re.compile(r"OOM when allocating|[Oo]ut of memory|bad_alloc|could not create a memory object")
DAMAGED = "is damaged, or not what its name says ({}); copy it again"
PARTIAL = re.compile(r"^\.(?P<name>.+)\.(?P<host>[^./]+)\.(?P<process>\d+)(-\d+)?\.partial$")
"""The name of a file while it is written."""


def final_name(path: str) -> str:
    """The final name of a file whose name is `path` while it is written."""
    parts = [match["name"] if (match := PARTIAL.match(part)) else part for part in path.split("/")]
    return "/".join(parts)


def _refusal(error: BaseException) -> tuple[int, str] | None:
    """The number of the operating system's error behind an exception, and the named file, "" without a name.

    None if there is no error of the operating system behind the exception.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno, final_name(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else ""
    found = _SAID.search(str(error))
    return (_NUMBERS[found[2]], final_name((found[1] or "").strip())) if found else None


def explain(error: BaseException) -> str | None:
    """Returns one sentence with the file, the system's error and advice; None if `error` is another kind of error."""
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)):
        return "out of memory; lower the batch size or --max_seq_length, or use a machine with more memory"
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":  # a name of other bytes
        return f"{error.object!r}: is not UTF-8, and TensorFlow opens no other names; rename it"
    if found := _refusal(error):
        number, name = found
        if not name and error.args == (errno.ENOENT, os.strerror(errno.ENOENT)):  # os.getcwd names no file
            return "the folder in which this program was started is not there any more; change to another folder"
        return f"{name}: {sentence(number)}" if name else sentence(number)
    # This includes errors without a number: numpy's "1000 requested and 12 written", and gzip's own errors.
    return str(error) if isinstance(error, OSError) and str(error) else None


def sentence(number: int) -> str:
    return os.strerror(number) + (f" ({ADVICE[number]})" if number in ADVICE else "")


@contextlib.contextmanager
def writing(*targets: str) -> Iterator[None]:
    """A context that makes UserErrors of the system's errors that name a target, a file in a target, or no file."""
    try:
        yield
    except Exception as error:
        number, named = _refusal(error) or (0, "")
        for target in map(final_name, targets if number else ()):
            if not named or named == target or named.startswith(f"{target}/"):
                raise UserError(f"{target}: cannot be written: {sentence(number)}") from error
        raise


@contextlib.contextmanager
def reading(path: str, *errors: type[Exception], problem: str = DAMAGED) -> Iterator[None]:
    """A context for one call of a library that reads a file. The library's `errors` become a UserError with the path.

    {} in `problem` is replaced by the library's message. Every other exception is a bug and keeps its traceback.
    """
    try:
        yield
    except errors as error:
        reason = " ".join(str(error).split())[:200].encode("unicode_escape").decode() or type(error).__name__
        what = error if isinstance(error, UserError) else problem.format(reason)
        raise UserError(f"{final_name(path)}: {what}") from error

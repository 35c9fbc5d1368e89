"""Errors of the operating system in one sentence: full disks, read-only folders, lack of memory.

TensorFlow and HDF5 raise their own exceptions for these; this module treats them alike.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator

from absl import logging

from bert_tf2.support.errors import UserError

_ADVICE = {
    errno.ENOSPC: "make room on this disk, or write to another one",
    errno.EDQUOT: "delete files of yours on this disk, or write to another one",
    errno.EROFS: "write to another folder",
    errno.EACCES: "change the permissions, or choose another folder",
}
_NUMBERS = {os.strerror(number): number for number in errno.errorcode}
# TensorFlow: "FILE; No space left on device"; HDF5: "error message = 'No space left on device'".
_SAID = re.compile(rf"(?:(?:^|\s)([^\s;{{}}][^;{{}}\n]*); |message = ')({'|'.join(map(re.escape, _NUMBERS))})")
_OUT_OF_MEMORY = re.compile(r"OOM when allocating|[Oo]ut of memory|bad_alloc|could not create a memory object")
DAMAGED = "is damaged, or not what its name says ({}); copy it again"
PARTIAL = re.compile(r"^\.(?P<name>.+)\.(?P<host>[^./]+)\.(?P<process>\d+)\.partial$")
"""The name of a file while it is written."""


def is_remote(path: str) -> bool:
    return "://" in path


def final_name(path: str) -> str:
    """The final name of a file whose name is `path` while it is written."""
    parts = [match["name"] if (match := PARTIAL.match(part)) else part for part in path.split("/")]
    return "/".join(parts)


def _refusal(error: BaseException) -> tuple[int, str] | None:
    """The number of the operating system's error behind an exception, and the file that it names ("" for none)."""
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
        return f"{name}: {_sentence(number)}" if name else _sentence(number)
    # Also what the operating system did not number: numpy's "1000 requested and 12 written", gzip's own.
    return str(error) if isinstance(error, OSError) and str(error) else None


def _sentence(number: int) -> str:
    return os.strerror(number) + (f" ({_ADVICE[number]})" if number in _ADVICE else "")


@contextlib.contextmanager
def writing(*targets: str) -> Iterator[None]:
    """Within it, an error of the system that names no file, or one of these or one in them, becomes a UserError."""
    try:
        yield
    except Exception as error:
        number, named = _refusal(error) or (0, "")
        for target in map(final_name, targets if number else ()):
            if not named or named == target or named.startswith(f"{target}/"):
                raise UserError(f"{target}: cannot be written: {_sentence(number)}") from error
        raise


@contextlib.contextmanager
def reading(path: str, *errors: type[Exception], problem: str = DAMAGED) -> Iterator[None]:
    """Around one call of a library that reads a file: its own `errors` become a UserError that names the file.

    {} in `problem` stands for the library's message. Every other exception is a bug, and keeps its traceback.
    """
    try:
        yield
    except errors as error:
        reason = " ".join(str(error).split())[:200].encode("unicode_escape").decode() or type(error).__name__
        what = error if isinstance(error, UserError) else problem.format(reason)
        raise UserError(f"{final_name(path)}: {what}") from error


def human(number_of_bytes: float) -> str:
    """Formats a number of bytes: "512 B", "1.3 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if number_of_bytes < 999.5:
            return f"{number_of_bytes:.{0 if number_of_bytes >= 10 or unit == 'B' else 1}f} {unit}"
        number_of_bytes /= 1000
    return f"{number_of_bytes:.1f} TB"


def _nearest_folder(path: str) -> str:
    """A local path if it exists, otherwise its nearest parent folder that exists."""
    folder = os.path.abspath(path)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return folder


def check_writable(folder: str, what: str) -> None:
    """Raises UserError, whose message begins with `what`, unless files can be created in a folder or its parents."""
    if is_remote(folder):
        return  # a check would load TensorFlow; writing the first file reports the error
    try:
        with contextlib.suppress(FileNotFoundError):
            os.lstat(folder)  # the name is too long, for example
        with tempfile.TemporaryFile(dir=_nearest_folder(folder)) as probe:
            probe.write(bytes(4096))
            probe.flush()
    except OSError as error:
        raise UserError(f"{what}: cannot be written: {_sentence(error.errno or 0)}") from error


def check_space(path: str, least: int, what: str, wanted: int = 0) -> None:
    """Raises UserError unless `least` bytes are free on the disk of a local path, for `what`; warns of `wanted`."""
    if is_remote(path):
        return
    free = shutil.disk_usage(_nearest_folder(path)).free
    if free < least:
        raise UserError(f"{path}: {what} need {human(least)}, but {human(free)} are free; {_ADVICE[errno.ENOSPC]}")
    if free < wanted:
        logging.warning("%s: %s will need %s, but %s are free on this disk", path, what, human(wanted), human(free))

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
from collections.abc import Iterable, Iterator

from absl import logging

from bert_tf2.support.errors import UserError

# Error number -> advice. {free} is replaced by the free space.
_ADVICE = {
    errno.ENOSPC: "{free}; make room on this disk, or write to another one",
    errno.EDQUOT: "delete files of yours on this disk, or write to another one",
    errno.EROFS: "write to another folder",
    errno.EACCES: "change the permissions, or choose another folder",
    errno.EPERM: "change the permissions, or choose another folder",
    errno.EIO: "the disk or the connection to it fails; the system's log may say more",
    errno.EMFILE: "raise the limit (ulimit -n), or use fewer files",
}
_NUMBERS = {os.strerror(number): number for number in (*_ADVICE, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)}
_SENTENCES = "|".join(map(re.escape, _NUMBERS))
_IN_TENSORFLOW = re.compile(rf"(?:^|\s)([^\s;][^;\n]*); ({_SENTENCES})")
_IN_HDF5 = re.compile(r"(?:filename = '([^']*)'.*?)?errno = (\d+)", re.DOTALL)
_IN_NUMPY = re.compile(r"\d+ requested and \d+ written")
_OUT_OF_MEMORY = re.compile(r"OOM when allocating|[Oo]ut of memory|bad_alloc|could not create a memory object")
_NOT_MAPPED = re.compile("failed to map segment|[Cc]annot allocate memory")
PARTIAL = re.compile(r"^\.(?P<name>.+)\.(?P<host>[^./]+)\.(?P<process>\d+)\.partial$")
"""The name of a file while it is written."""


def is_remote(path: str) -> bool:
    return "://" in path


def final_name(path: str) -> str:
    """The final name of a file whose name is `path` while it is written."""
    parts = [match[1] if (match := PARTIAL.match(part)) else part for part in path.split("/")]
    return "/".join(parts)


def refusal(error: BaseException) -> tuple[int, str] | None:
    """The number of the operating system's error behind an exception, and the file that it names ("" for none)."""
    text = str(error)
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno, os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    if _is_of(error, "tensorflow", "OpError") and (found := _IN_TENSORFLOW.search(re.sub(r"\{\{.*?\}\}", "", text))):
        return _NUMBERS[found[2]], found[1].strip()
    if isinstance(error, OSError | RuntimeError) and (found := _IN_HDF5.search(text)):
        return int(found[2]), found[1] or ""
    if isinstance(error, OSError) and _IN_NUMPY.search(text):  # numpy.save does not say why
        return errno.ENOSPC, ""
    return None


def _is_of(error: BaseException, library: str, name: str) -> bool:
    """Whether an exception has a class of a library, without importing the library."""
    return any(kind.__name__ == name and kind.__module__.startswith(library) for kind in type(error).__mro__)


def explain(error: BaseException) -> str | None:
    """Returns one sentence with the file, the system's error and advice; None if `error` is another kind of error."""
    if isinstance(error, ImportError) and _NOT_MAPPED.search(str(error)):
        return f"{error}: there is too little memory to load this library; raise the limit (ulimit -v) or free memory"
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":  # a name of other bytes
        return f"{error.object!r}: is not UTF-8, and TensorFlow opens no other names; rename it"
    found = refusal(error)
    if found is None:
        return None
    name = final_name(found[1])
    return f"{name}: {_sentence(found[0], name)}" if name else _sentence(found[0], "")


def _sentence(number: int, name: str) -> str:
    advice = _ADVICE.get(number, "").replace("{free}", _free(name))
    return f"{os.strerror(number)} ({advice})" if advice else os.strerror(number)


def explain_writing(error: BaseException, targets: Iterable[str], beside: Iterable[str]) -> str | None:
    """Like `explain`, for an exception while files with the final names `targets` are written under others.

    Returns None also if the exception names another file, for example one that was being read.
    """
    found, targets = refusal(error), [*targets]
    if found is None:
        return None
    number, named = found
    if not named:
        what = f"{targets[0]} and {len(targets) - 1} more" if len(targets) > 1 else targets[0]
    else:
        names = [*zip(targets, targets, strict=True), *zip(beside, targets, strict=True)]
        what = next((target for name, target in names if named == name or named.startswith(f"{name}/")), "")
    return f"{what}: cannot be written: {_sentence(number, targets[0])}" if what else None


def cannot_make(folder: str, error: OSError) -> str:
    """Returns one sentence about a folder that cannot be created."""
    return f"cannot make the folder {final_name(folder)}: {_sentence(error.errno or 0, folder)}"


@contextlib.contextmanager
def reading(path: str, problem: str = "is damaged, or not what its name says ({}); copy it again") -> Iterator[None]:
    """Within it, whatever a library raises becomes a UserError that names the file; {} stands for what it says."""
    try:
        yield
    except Exception as error:
        name = final_name(path)
        if isinstance(error, UserError) and name in str(error):
            raise
        reason = " ".join(str(error).split())[:200].encode("unicode_escape").decode() or type(error).__name__
        raise UserError(f"{name}: {error if isinstance(error, UserError) else problem.format(reason)}") from error


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    return _is_of(error, "tensorflow", "OpError") and bool(_OUT_OF_MEMORY.search(str(error)))


def out_of_memory(error: BaseException, settings: Iterable[str]) -> str:
    """One sentence about lack of memory; `settings`: the flags that decide on it, with values ("--batch_size=32")."""
    shape = re.search(r"shape\s*[\[(]([\d, ]+)[\])]", str(error))
    what = f" for an array of {' x '.join(re.findall(r'[0-9]+', shape[1]))} numbers" if shape else ""
    lower = ", ".join(settings)
    return f"out of memory{what}; " + (f"lower {lower}" if lower else "use a machine with more memory")


def human(number_of_bytes: float) -> str:
    """Formats a number of bytes: "512 B", "1.3 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if number_of_bytes < 999.5:
            return f"{number_of_bytes:.{0 if number_of_bytes >= 10 or unit == 'B' else 1}f} {unit}"
        number_of_bytes /= 1000
    return f"{number_of_bytes:.1f} TB"


def nearest_folder(path: str) -> str:
    """A local path if it exists, otherwise its nearest parent folder that exists."""
    folder = os.path.abspath(path)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return folder


def free_bytes(path: str) -> int | None:
    """Returns the free space on the disk of a local path, which need not exist; None if it is unknown."""
    try:
        return shutil.disk_usage(nearest_folder(path)).free
    except OSError:
        return None


def _free(path: str) -> str:
    free = None if not path or is_remote(path) else free_bytes(path)
    return "the disk is full" if free is None else f"{human(free)} are free"


def check_writable(folder: str, what: str) -> None:
    """Raises UserError, whose message begins with `what`, unless files can be created in a folder or its parents."""
    if is_remote(folder):
        return  # a check would load TensorFlow; writing the first file reports the error
    place = nearest_folder(folder)
    if not os.path.isdir(place):
        raise UserError(f"{what}: cannot be written: cannot make the folder {folder}: {place} is a file")
    try:
        with contextlib.suppress(FileNotFoundError):
            os.lstat(folder)  # the name is too long, for example
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(bytes(4096))
            probe.flush()
    except OSError as error:
        raise UserError(f"{what}: cannot be written: {_sentence(error.errno or 0, place)}") from error


def check_space(path: str, least: int, what: str, wanted: int = 0) -> None:
    """Raises UserError unless `least` bytes are free on the disk of a local path.

    Args:
      path: a file or folder.
      least: the bytes without which the work cannot finish, or not start.
      what: their purpose, for the message.
      wanted: the bytes needed in the end, if more than `least`; a warning is logged if they are not free.
    """
    free = None if is_remote(path) else free_bytes(path)
    if free is None:
        return
    if free < least:
        raise UserError(
            f"{final_name(path)}: {what} need {human(least)}, but {human(free)} are free on this disk; make room, or"
            " write to another one"
        )
    if free < wanted:
        logging.warning("%s: %s will need %s, but %s are free on this disk", path, what, human(wanted), human(free))

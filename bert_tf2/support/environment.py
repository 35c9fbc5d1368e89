"""What the operating system refuses, in one sentence: full disks, read-only folders, memory that is used up.

TensorFlow and HDF5 have exceptions of their own for these; here they are all the same.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterable

from absl import logging

from bert_tf2.support.errors import UserError

# What to do about an error, by its number. {free} is replaced.
_ADVICE = {
    errno.ENOSPC: "{free}; make room on this disk, or write to another one",
    errno.EDQUOT: "delete files of yours on this disk, or write to another one",
    errno.EFBIG: "a file may not be larger on this disk, or by the shell's limit (ulimit -f)",
    errno.EROFS: "write to another folder",
    errno.EACCES: "change the permissions, or choose another folder",
    errno.EPERM: "change the permissions, or choose another folder",
    errno.EIO: "the disk or the connection to it fails; the system's log may say more",
    errno.EMFILE: "raise the limit (ulimit -n), or use fewer files",
    errno.ENFILE: "the whole machine has too many open files",
    errno.ESTALE: "the connection to the disk was lost",
}
_NUMBERS = {os.strerror(number): number for number in (*_ADVICE, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)}
_SENTENCES = "|".join(map(re.escape, _NUMBERS))
_IN_TENSORFLOW = re.compile(rf"(?:^|\s)([^\s;][^;\n]*); ({_SENTENCES})")
_IN_HDF5 = re.compile(r"(?:filename = '([^']*)'.*?)?errno = (\d+)", re.DOTALL)
_IN_NUMPY = re.compile(r"\d+ requested and \d+ written")
_OUT_OF_MEMORY = re.compile(r"OOM when allocating|[Oo]ut of memory|bad_alloc|could not create a memory object")
_NOT_MAPPED = re.compile("failed to map segment|[Cc]annot allocate memory")
_PARTIAL = re.compile(r"^\.(.+)\.[^./]+\.\d+\.partial$")


def is_remote(path: str) -> bool:
    return "://" in path


def final_name(path: str) -> str:
    """The name that a file will get, where `path` is the one that it has while it is written."""
    parts = [match[1] if (match := _PARTIAL.match(part)) else part for part in path.split("/")]
    return "/".join(parts)


def refusal(error: BaseException) -> tuple[int, str] | None:
    """The number of the operating system's error behind an exception, and the file that it names ("" for none).

    None where `error` is no refusal of the operating system.
    """
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
    """Whether an exception is of a class of a library, which need not be loaded to find that out."""
    return any(kind.__name__ == name and kind.__module__.startswith(library) for kind in type(error).__mro__)


def explain(error: BaseException, path: str = "") -> str | None:
    """One sentence: the file, what the operating system says, and what to do; None where `error` is something else.

    Args:
      error: any exception.
      path: the file, where the exception does not name it. Otherwise the name that counts is the exception's.
    """
    if isinstance(error, ImportError) and _NOT_MAPPED.search(str(error)):
        return f"{error}: there is too little memory to load this library; raise the limit (ulimit -v) or free memory"
    found = refusal(error)
    if found is None:
        return None
    name = final_name(found[1] or path)
    sentence = _sentence(found[0], name)
    return f"{name}: {sentence}" if name else sentence


def _sentence(number: int, name: str) -> str:
    advice = _ADVICE.get(number, "").replace("{free}", _free(name))
    return f"{os.strerror(number)} ({advice})" if advice else os.strerror(number)


def explain_writing(error: BaseException, targets: Iterable[str], beside: Iterable[str]) -> str | None:
    """As `explain`, for an exception while files are written.

    Args:
      error: the exception.
      targets: the files, by the names that they will get.
      beside: by the names that they have while they are written.

    Returns:
      None also where the exception is about another file, one that was being read.
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
    """One sentence on a folder that cannot be made."""
    return f"cannot make the folder {final_name(folder)}: {_sentence(error.errno or 0, folder)}"


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    return _is_of(error, "tensorflow", "OpError") and bool(_OUT_OF_MEMORY.search(str(error)))


def out_of_memory(error: BaseException, settings: Iterable[str]) -> str:
    """One sentence on memory that is used up.

    Args:
      error: the exception.
      settings: the flags that decide how much is needed, with their values ("--train_batch_size=32").
    """
    shape = re.search(r"shape\s*[\[(]([\d, ]+)[\])]", str(error))
    what = f" for an array of {' x '.join(re.findall(r'[0-9]+', shape[1]))} numbers" if shape else ""
    lower = ", ".join(settings)
    return f"out of memory{what}; " + (f"lower {lower}" if lower else "use a machine with more memory")


def human(number_of_bytes: float) -> str:
    """A number of bytes as a person would say it: "512 B", "1.3 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if number_of_bytes < 999.5:
            return f"{number_of_bytes:.{0 if number_of_bytes >= 10 or unit == 'B' else 1}f} {unit}"
        number_of_bytes /= 1000
    return f"{number_of_bytes:.1f} TB"


def nearest_folder(path: str) -> str:
    """The folder that is there already, of those that lead to a local path (or the path itself)."""
    folder = os.path.abspath(path)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return folder


def free_bytes(path: str) -> int | None:
    """What can still be written on the disk that a local path is, or would be, on; None where nobody knows."""
    try:
        return shutil.disk_usage(nearest_folder(path)).free
    except OSError:
        return None


def _free(path: str) -> str:
    free = None if not path or is_remote(path) else free_bytes(path)
    return f"{human(free)} are free" if free is not None else "the disk is full"


def check_writable(folder: str, what: str) -> None:
    """Tries whether files can be made in a local folder, or in the one that is there of those that lead to it.

    Args:
      folder: where files will be written.
      what: how the message begins, "--output_dir=out" say.

    Raises:
      UserError: they cannot, and why.
    """
    if is_remote(folder):
        return  # that would load TensorFlow; the first file that is written will tell
    place = nearest_folder(folder)
    if not os.path.isdir(place):
        raise UserError(f"{what}: cannot be written: cannot make the folder {folder}: {place} is a file")
    try:
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(bytes(4096))
            probe.flush()
    except OSError as error:
        raise UserError(f"{what}: cannot be written: {_sentence(error.errno or 0, place)}") from error


def check_space(path: str, least: int, what: str, wanted: int = 0) -> None:
    """Compares what is going to be written with what is free on the disk.

    Args:
      path: a file or folder on that disk; nothing is known of remote ones.
      least: the bytes without which the work cannot end, or not begin.
      what: what they are for.
      wanted: the bytes that will be needed in the end, if they are more; a warning where they are not there.

    Raises:
      UserError: fewer than `least` bytes are free.
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

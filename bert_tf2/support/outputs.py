"""Checks of the files that a script writes: that they replace no input and have room; and names of incomplete files.

An incomplete file is called `.NAME.HOST.PID.partial`, or `.NAME.HOST.PID-THREAD.partial` in a thread. A killed process
leaves such files; the next process that writes to the folder removes them (`remove_leftovers`).
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import functools
import glob
import itertools
import os
import pathlib
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from absl import logging

from bert_tf2.support.errors import ADVICE, PARTIAL, UserError, sentence
from bert_tf2.support.settings import Options, settings_of


def is_remote(path: str) -> bool:
    return "://" in path


class Output(NamedTuple):
    """A flag and its value: a file, or a folder with patterns of the files that are written into the folder."""

    flag: str
    value: str
    names: Sequence[str] | None = None

    def files(self) -> list[str]:
        """The existing files of the folder that would be replaced; or the single file, which need not exist."""
        if self.names is None:
            return [self.value]
        there = [] if is_remote(self.value) or not os.path.isdir(self.value) else os.listdir(self.value)
        return [os.path.join(self.value, name) for name in there if any(fnmatch.fnmatch(name, p) for p in self.names)]


def check_files(options: Options) -> None:
    """Calls `check` for the files that settings name as inputs and outputs."""
    given = {name: stated for name, (stated, _, _) in settings_of(type(options)).items() if getattr(options, name)}
    written = {name: stated.writes for name, stated in given.items() if stated.writes is not None or stated.writes_file}
    check(
        {name: getattr(options, name) for name, stated in given.items() if stated.reads},
        [Output(name, getattr(options, name), names) for name, names in written.items()],
    )


def check(inputs: Mapping[str, str], outputs: Iterable[Output]) -> None:
    """Raises UserError if an output is also an input or another output, or cannot be written.

    `inputs`: flag -> a file, or a list of names and globs.
    """
    taken = {
        identity(path): f"also read from (--{flag}={inputs[flag]})" for flag in inputs for path in _read(inputs[flag])
    }
    for output in outputs:
        what, is_file = f"--{output.flag}={output.value}", output.names is None
        if not output.value:
            raise UserError(f"--{output.flag}: a name is empty; give names separated by single commas")
        if is_file and not is_remote(output.value) and os.path.isdir(output.value):
            raise UserError(f"{what}: is a folder, a file is needed")
        for name in output.files():
            if found := taken.get(identity(name)):
                inside = "" if is_file else f": {os.path.basename(name)} in this folder"
                raise UserError(f"{what}{inside}: is {found}; give another name")
        taken[identity(output.value)] = "named twice"
        if not is_file or not is_device(output.value):
            check_writable(os.path.dirname(output.value) or "." if is_file else output.value, what)


def _read(value: str) -> set[str]:
    names = {value, *(part.strip() for part in value.split(","))} - {""}
    found = itertools.chain.from_iterable([name] if is_remote(name) else glob.glob(name) or [name] for name in names)
    return {name for name in found if is_remote(name) or os.path.isfile(name)}


def identity(name: str) -> object:
    """Returns the same value for all names of a file, including hard links; for a missing file, its resolved path."""
    if is_remote(name) or not os.path.exists(name):
        return name if is_remote(name) else os.path.realpath(name)
    found = os.stat(name)
    return found.st_dev, found.st_ino


def is_device(path: str) -> bool:
    """Whether a path is a device or a pipe, for example /dev/null. /dev/stdout counts even if it is a file."""
    if is_remote(path) or not os.path.exists(path) or os.path.isdir(path):
        return False
    return not os.path.isfile(path) or os.path.realpath(path) == os.path.realpath("/dev/stdout")


# Disks


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
    """Raises UserError, whose message begins with `what`, if no file can be created in a folder or its parents."""
    if is_remote(folder):
        return  # a check would load TensorFlow; writing the first file reports the error
    try:
        with contextlib.suppress(FileNotFoundError):
            os.lstat(folder)  # fails for example if the name is too long
        with tempfile.TemporaryFile(dir=_nearest_folder(folder)) as probe:
            probe.write(bytes(4096))
            probe.flush()
    except OSError as error:
        raise UserError(f"{what}: cannot be written: {sentence(error.errno or 0)}") from error


def check_space(path: str, least: int, what: str, wanted: int = 0) -> None:
    """Raises UserError if fewer than `least` bytes are free on the disk of a local path; warns if fewer than `wanted`.

    `what`: the files that need the space, for messages.
    """
    if is_remote(path):
        return
    free = shutil.disk_usage(_nearest_folder(path)).free
    if free < least:
        raise UserError(f"{path}: {what} need {human(least)}, but {human(free)} are free; {ADVICE[errno.ENOSPC]}")
    if free < wanted:
        logging.warning("%s: %s will need %s, but %s are free on this disk", path, what, human(wanted), human(free))


# Partial files

_HOST = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:32] or "host"
# The handler of a signal gets no arguments; it removes these paths, and the new folders without files.
begun: set[str] = set()
_new_folders: set[str] = set()


def name_beside(path: str) -> str:
    """Returns the name of a file or folder until it is complete. The name of a device or a pipe is unchanged."""
    if is_device(path):
        return path
    thread = threading.current_thread()
    writer = f"{os.getpid()}" if thread is threading.main_thread() else f"{os.getpid()}-{thread.native_id}"
    beside = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{_HOST}.{writer}.partial")
    if not is_remote(beside):
        begun.add(os.path.abspath(beside))
    return beside


def remove_partial() -> None:
    """Removes the partial files of this process, and its new folders without files, when a signal ends it."""
    for path in [*begun]:  # a copy, because another thread may begin a file
        discard(path)
    _remove_empty([*_new_folders])


@contextlib.contextmanager
def removed_if_empty(path: str) -> Iterator[None]:
    """A context in which a folder is made; after an exception or a signal, new folders without files are removed."""
    here = pathlib.Path(os.path.abspath(path))
    new = [str(folder) for folder in (here, *here.parents) if not os.path.lexists(folder)]
    _new_folders.update(new)
    try:
        yield
    except BaseException:
        _remove_empty(new)
        raise
    finally:
        _new_folders.difference_update(new)


def _remove_empty(folders: Iterable[str]) -> None:
    for folder in sorted(folders, reverse=True):  # before its parents
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def discard(path: str) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def remove_leftovers(folder: str) -> None:
    """Removes and logs partial files of this machine's ended processes in a local folder, once per process."""
    if not is_remote(folder) and os.path.isdir(folder or "."):
        _remove_leftovers(folder or ".", os.getpid())


@functools.cache
def _remove_leftovers(folder: str, here: int) -> None:
    for match in filter(None, map(PARTIAL.match, sorted(os.listdir(folder)))):
        path = os.path.normpath(os.path.join(folder, match[0]))
        if match["host"] == _HOST and not _may_be_written(path, int(match["process"])):
            discard(path)
            logging.warning("Removed %s, a partial %s that a killed process left", path, match["name"])


def _may_be_written(path: str, process: int) -> bool:
    """Whether there is a process of this number. It may run another program; the file stays all the same."""
    if process == os.getpid():  # in a container, the next process often has the number of the last process
        return os.path.abspath(path) in begun
    try:
        os.kill(process, 0)
    except OSError as error:  # the process may exist and belong to another user
        return not isinstance(error, ProcessLookupError)
    return True

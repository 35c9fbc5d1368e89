"""Protects inputs from being overwritten, and names and removes partial files.

An output that is also an input would destroy the user's data. `check` finds the conflict before the work. Files are
compared by identity, which covers symbolic links, hard links and `./x`.

An incomplete file is called `.NAME.HOST.PID.partial`. A killed process leaves these files; the next process that writes
to the folder removes them (`remove_leftovers`).
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import glob
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from absl import logging

from bert_tf2.support import environment
from bert_tf2.support.environment import is_remote
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import Options, settings_of

_OF_CHECKPOINT = (".index", ".data-*")
_OF_WEIGHTS = (*("*" + end for end in _OF_CHECKPOINT), "*.keras", "*.h5", "*.safetensors", "*.bin")


class Input(NamedTuple):
    """A flag, with its dashes, and its value: a list of names and globs, or weights: a prefix, a file or a folder."""

    flag: str
    value: str
    weights: bool = False

    def files(self) -> set[str]:
        """Returns the local files, and the names of remote ones."""
        names = {self.value, *(part.strip() for part in self.value.split(","))} - {""}
        found = {name for name in names if is_remote(name)}
        for name in names - found:
            found |= {name} if os.path.exists(name) else {*glob.glob(name)}
        if self.weights and not is_remote(self.value):
            found |= {path for end in _OF_CHECKPOINT for path in glob.glob(glob.escape(self.value) + end)}
            found |= {path for end in _OF_WEIGHTS for path in glob.glob(os.path.join(glob.escape(self.value), end))}
        return {name for name in found if not os.path.isdir(name)}


class Output(NamedTuple):
    """A flag, with its dashes, and its value: a file, or a folder.

    Attributes:
      names: patterns of the files that are written to the folder; None if `value` is a file.
    """

    flag: str
    value: str
    names: Sequence[str] | None = None

    def files(self) -> list[str]:
        """Returns the existing files of the folder that would be replaced; or the file, which need not exist."""
        if self.names is None:
            return [self.value]
        there = [] if is_remote(self.value) or not os.path.isdir(self.value) else os.listdir(self.value)
        return [os.path.join(self.value, name) for name in there if any(fnmatch.fnmatch(name, p) for p in self.names)]


def check_files(options: Options) -> None:
    """`check`, for the files that settings name as inputs and outputs."""
    given = {name: stated for name, (stated, _, _) in settings_of(type(options)).items() if getattr(options, name)}
    read = {name: stated.reads for name, stated in given.items() if stated.reads}
    written = {name: stated.writes for name, stated in given.items() if stated.writes is not None or stated.writes_file}
    check(
        [Input(f"--{name}", getattr(options, name), weights=kind == "weights") for name, kind in read.items()],
        [Output(f"--{name}", getattr(options, name), names) for name, names in written.items()],
    )


def check(inputs: Iterable[Input], outputs: Iterable[Output]) -> None:
    """Checks inputs and outputs before the work starts."""
    taken = {identity(name): f"also read from ({each.flag}={each.value})" for each in inputs for name in each.files()}
    for output in outputs:
        what, is_file = f"{output.flag}={output.value}", output.names is None
        if not output.value:
            raise UserError(f"{output.flag}: a name is empty; give names separated by single commas")
        if is_file and not is_remote(output.value) and os.path.isdir(output.value):
            raise UserError(f"{what}: is a folder, a file is needed")
        for name in output.files():
            if found := taken.get(identity(name)):
                inside = "" if is_file else f": {os.path.basename(name)} in this folder"
                raise UserError(
                    f"{what}{inside}: is {found}; give {'it a name of its own' if is_file else 'another folder'}"
                )
        taken[identity(output.value)] = "named twice"
        if not is_file or not _is_device(output.value):
            environment.check_writable(os.path.dirname(output.value) or "." if is_file else output.value, what)


def identity(name: str) -> object:
    """Returns the same value for all names of a file, including hard links; a path that does not exist is resolved."""
    if is_remote(name):
        return name
    try:
        found = os.stat(name)
    except OSError:
        return os.path.realpath(name)
    return found.st_dev, found.st_ino


def _is_device(path: str) -> bool:
    """Whether a path is neither a file nor a folder: /dev/null, a named pipe. So is /dev/stdout, even of a file."""
    if is_remote(path) or not os.path.exists(path) or os.path.isdir(path):
        return False
    return not os.path.isfile(path) or os.path.realpath(path) == os.path.realpath("/dev/stdout")


_HOST = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:32] or "host"
_begun: set[str] = set()  # what a signal's handler, which gets no arguments, removes


def name_beside(path: str) -> str:
    """Returns the name of a file or folder until it is complete. A device or a pipe is written to directly."""
    if _is_device(path):
        return path
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f".{name}.{_HOST}.{os.getpid()}.partial")
    if not is_remote(beside):
        _begun.add(os.path.abspath(beside))
    return beside


def temporary_folder(prefix: str) -> str:
    """Creates a folder on the temporary disk, for parts of files elsewhere; a signal's handler removes it."""
    folder = tempfile.mkdtemp(prefix=prefix)
    _begun.add(folder)
    return folder


def remove_partial() -> None:
    """Removes the partial files of this process, when a signal ends it."""
    for path in [*_begun]:  # another thread may begin one
        with contextlib.suppress(OSError):
            _remove(path)


def _remove(path: str) -> None:
    shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def remove_leftovers(folder: str) -> None:
    """Removes and logs partial files of dead processes of this machine in a local folder, once per process."""
    if not is_remote(folder) and os.path.isdir(folder or "."):
        _remove_leftovers(folder or ".", os.getpid())


@functools.cache
def _remove_leftovers(folder: str, here: int) -> None:
    for match in filter(None, map(environment.PARTIAL.match, sorted(os.listdir(folder)))):
        path = os.path.normpath(os.path.join(folder, match[0]))
        if match["host"] == _HOST and not _may_be_written(path, int(match["process"])):
            with contextlib.suppress(OSError):
                _remove(path)
                logging.warning("Removed %s, a partial %s that a killed process left", path, match["name"])


def _may_be_written(path: str, process: int) -> bool:
    """Whether there is a process of this number, be it that of another program: then the file stays for now."""
    if process == os.getpid():  # in a container, the next process often has the number of the last one
        return os.path.abspath(path) in _begun
    try:
        os.kill(process, 0)
    except OSError as error:  # it may exist and belong to another user
        return not isinstance(error, ProcessLookupError)
    return True

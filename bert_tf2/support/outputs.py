"""Protects inputs from being overwritten, and names and removes partial files.

An output that is also an input would destroy the user's data. Files are compared by identity, which covers symbolic
links, hard links and `./x`. `check` finds the conflict before the work. Conflicts that it cannot foresee are found
before a file gets its final name: within `protecting`, no written file replaces an input with other content.

An incomplete file is called `.NAME.HOST.PID.partial`. A killed process leaves these files; the next process that writes
to the folder removes them (`remove_leftovers`).
"""

from __future__ import annotations

import contextlib
import filecmp
import fnmatch
import glob
import os
import re
import shutil
import socket
import stat
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from absl import logging

from bert_tf2.support import environment
from bert_tf2.support.environment import is_remote
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import Options, applies, settings_of

_OF_CHECKPOINT = (".index", ".data-*")
_OF_WEIGHTS = (*("*" + end for end in _OF_CHECKPOINT), "*.keras", "*.h5", "*.safetensors", "*.bin")


class Input(NamedTuple):
    """The value of a flag for input: a file, a list of names and globs, or weights (a prefix, a file or a folder).

    Attributes:
      flag: its name, with the dashes.
      value: what it names.
      weights: whether these are weights.
      once: whether the files are read once, so that they may be pipes.
    """

    flag: str
    value: str
    weights: bool = False
    once: bool = False

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
    """The value of a flag for output.

    Attributes:
      flag: its name, with the dashes.
      value: a file, or a folder.
      names: patterns of the files that are written to the folder; None if `value` is a file.
    """

    flag: str
    value: str
    names: Sequence[str] | None = None

    def files(self) -> list[str]:
        """Returns the existing files of the folder that would be replaced; or the file, which need not exist."""
        if self.names is None:
            return [self.value]
        if is_remote(self.value) or not os.path.isdir(self.value):
            return []
        there = os.listdir(self.value)
        return [os.path.join(self.value, name) for name in there if any(fnmatch.fnmatch(name, p) for p in self.names)]


def of(options: Options) -> tuple[list[Input], list[Output]]:
    """The files that settings name as inputs and outputs."""
    inputs, written = [], []
    for name, (stated, _, _) in settings_of(type(options)).items():
        if value := getattr(options, name):
            if stated.reads:
                once = not applies(options, stated.rereads)
                inputs.append(Input(f"--{name}", value, weights=stated.reads == "weights", once=once))
            if stated.writes is not None:
                written.append(Output(f"--{name}", value, stated.writes))
            elif stated.writes_file:
                written.append(Output(f"--{name}", value))
    return inputs, written


_protected: dict[object, str] = {}


def check(inputs: Iterable[Input], outputs: Iterable[Output]) -> None:
    """Checks inputs and outputs before the work starts.

    Raises:
      UserError: an input that is read more than once is a pipe; an output is an input or another output, is a folder
        where a file is needed or has no name, or its folder cannot be written to.
    """
    inputs = [*inputs]
    for each in inputs:
        if pipe := next(filter(_is_pipe, () if each.once or not each.value else each.files()), None):
            what = f"{each.flag}={each.value}" + (f" ({pipe})" if pipe != each.value else "")
            raise UserError(
                f"{what}: is a pipe, which can be read only once, and is needed more than once; copy it to a file"
            )
    read = _by_identity(inputs)
    written: set[object] = set()
    for output in outputs:
        what = f"{output.flag}={output.value}"
        if not output.value:
            raise UserError(f"{output.flag}: a name is empty; give names separated by single commas")
        if output.names is None and not is_remote(output.value) and os.path.isdir(output.value):
            raise UserError(f"{what}: is a folder, a file is needed")
        for name in output.files():
            if identity(name) in read:
                inside = "" if output.names is None else f": {os.path.basename(name)} in this folder"
                advice = "give it a name of its own" if output.names is None else "give another folder"
                raise UserError(f"{what}{inside}: is also read from ({read[identity(name)]}); {advice}")
        if identity(output.value) in written:
            raise UserError(f"{what}: is named twice; give it a name of its own")
        written.add(identity(output.value))
        if _is_pipe(output.value) and not output.value.startswith(("/dev/", "/proc/")):
            logging.warning("%s: is a named pipe, which is written once a program reads it", what)
        if output.names is not None or not _is_device(output.value):
            target = follow(output.value)
            folder = target if output.names is not None else follow(os.path.dirname(target)) or "."
            environment.check_writable(folder, what)


def _by_identity(inputs: Iterable[Input]) -> dict[object, str]:
    """Returns the flag with its value for the identity of each input file."""
    return {identity(name): f"{each.flag}={each.value}" for each in inputs if each.value for name in each.files()}


@contextlib.contextmanager
def protecting(inputs: Iterable[Input]) -> Iterator[None]:
    """Within this context, files.complete_or_absent does not replace any of these inputs with other content."""
    global _protected
    before = _protected
    _protected = {**before, **_by_identity(inputs)}
    try:
        yield
    finally:
        _protected = before


def identity(name: str) -> object:
    """Returns the same value for all names of a file, including hard links; a path that does not exist is resolved."""
    if is_remote(name):
        return name
    try:
        found = os.stat(name)
    except OSError:
        return os.path.realpath(name)
    return found.st_dev, found.st_ino


def follow(path: str) -> str:
    """Returns where a file or folder is written: where a symbolic link leads, which need not exist; or `path` itself.

    Raises:
      UserError: the link leads back to itself.
    """
    if is_remote(path) or not os.path.islink(path) or _is_device(path):
        return path
    target = os.path.realpath(path)
    if os.path.islink(target):
        raise UserError(f"{path}: is a symbolic link that leads back to itself; remove it, or give another name")
    return target


def refuse_inputs(beside: Sequence[str], paths: Sequence[str]) -> None:
    """Raises UserError if renaming files to `paths` would replace an input with other content."""
    for source, target in zip(beside, paths, strict=True):
        flag = None if is_remote(target) else _protected.get(identity(target))
        if flag and source != target and not filecmp.cmp(source, target, shallow=False):
            raise UserError(f"{target}: is also read from ({flag}), so it is not written; choose another output")


def _is_pipe(path: str) -> bool:
    """Whether what is read from a path is gone afterwards; of a process substitution and a piped /dev/stdin too."""
    if is_remote(path):
        return False
    with contextlib.suppress(OSError):
        mode = os.stat(path).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
    return False


def _is_device(path: str) -> bool:
    """Whether a path is neither a file nor a folder: /dev/null, a named pipe. So is /dev/stdout, even of a file."""
    if is_remote(path) or not os.path.exists(path) or os.path.isdir(path):
        return False
    with contextlib.suppress(OSError):  # a stream of this process may be closed
        return not os.path.isfile(path) or any(os.path.samestat(os.stat(path), os.fstat(stream)) for stream in (1, 2))
    return False


_HOST = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:32] or "host"


def name_beside(path: str) -> str:
    """Returns the name of a file or folder until it is complete. A device or a pipe is written to directly."""
    return path if _is_device(path) else _begin(path, f"{_HOST}.{os.getpid()}.partial")


def _begin(path: str, end: str) -> str:
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f".{name}.{end}")
    if not is_remote(beside):
        _begun.add(os.path.abspath(beside))
    return beside


UNIQUE_END = ".unique.partial"


def unique_beside(path: str) -> str:
    """Like name_beside, for processes on machines that cannot tell each other's apart; nobody else gets this name.

    Only whoever knows that all these processes have ended can remove what they left.
    """
    return _begin(path, uuid.uuid4().hex + UNIQUE_END)


def temporary_folder(prefix: str) -> str:
    """Creates a folder on the temporary disk, for parts of files elsewhere; a signal's handler removes it."""
    folder = tempfile.mkdtemp(prefix=prefix)
    _begun.add(folder)
    return folder


_begun: set[str] = set()


def remove_partial() -> None:
    """Removes the partial files of this process, when a signal ends it."""
    for path in [*_begun]:  # another thread may begin one
        with contextlib.suppress(OSError):
            _remove(path)


def _remove(path: str) -> None:
    shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


_looked_at: set[tuple[int, str]] = set()


def remove_leftovers(folder: str) -> None:
    """Removes and logs partial files of dead processes of this machine in a local folder, once per process."""
    here = os.getpid(), os.path.realpath(folder or ".")
    if is_remote(folder) or here in _looked_at:
        return
    _looked_at.add(here)
    for name in sorted(os.listdir(folder or ".")) if os.path.isdir(folder or ".") else ():
        match = environment.PARTIAL.match(name)
        path = os.path.join(folder, name)
        if match and match["host"] == _HOST and not _may_be_written(path, int(match["process"])):
            try:
                _remove(path)
            except OSError as error:
                logging.warning("%s: left by a process that was killed, and cannot be removed: %s", path, error)
            else:
                logging.warning("Removed %s, a partial %s that a killed process left", path, match["name"])


def _may_be_written(path: str, process: int) -> bool:
    """Whether there is a process of this number, be it that of another program: then the file stays for now."""
    if process == os.getpid():  # in a container, the next process often has the number of the last one
        return os.path.abspath(path) in _begun
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it exists and belongs to another user
    return True

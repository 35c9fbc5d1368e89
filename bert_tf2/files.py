"""Reading and writing files the way every script here does it.

Local paths go through Python; anything with a scheme (`gs://...`, `hdfs://...`) goes through `tf.io.gfile`, which is
imported only then, so that a script on local files can report a bad flag or a missing file before TensorFlow loads.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable, Iterator

from bert_tf2 import environment, outputs
from bert_tf2.environment import is_remote as is_remote
from bert_tf2.errors import UserError
from bert_tf2.quiet import load_tensorflow


def _gfile():
    return load_tensorflow().io.gfile  # late: 3 seconds that a local run should not pay here


@contextlib.contextmanager
def _answering(path: str) -> Iterator[None]:
    """Turns the exceptions of a remote file system, such as that there is none of this name, into a UserError."""
    try:
        yield
    except load_tensorflow().errors.OpError as error:
        reason = " ".join(str(error.message).split())
        raise UserError(f"{path}: cannot be reached: {reason}") from error


def exists(path: str) -> bool:
    """Raises UserError where a remote file system does not answer."""
    if not is_remote(path):
        return os.path.exists(path)
    with _answering(path):
        return _gfile().exists(path)


def is_directory(path: str) -> bool:
    """Raises UserError where a remote file system does not answer."""
    if not is_remote(path):
        return os.path.isdir(path)
    with _answering(path):
        return _gfile().isdir(path)


def size(path: str) -> int:
    """The bytes of a file."""
    return _gfile().stat(path).length if is_remote(path) else os.path.getsize(path)


def list_directory(path: str) -> list[str]:
    """The names in a folder, sorted; an empty list where there is no such folder."""
    if not is_directory(path):
        return []
    return sorted(_gfile().listdir(path) if is_remote(path) else os.listdir(path))


def make_directory(path: str) -> None:
    """Makes a folder and its parents; one that is there already is fine.

    Raises:
      UserError: a file is in the way, or the place cannot be written.
    """
    if not path:
        return
    if is_remote(path):
        with _answering(path):
            return _gfile().makedirs(path)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UserError(environment.cannot_make(path, error)) from error


def remove(path: str) -> None:
    _gfile().remove(path) if is_remote(path) else os.remove(path)


def rename(source: str, target: str) -> None:
    """Puts `source` in the place of `target` in one step, as far as the file system can."""
    _gfile().rename(source, target, overwrite=True) if is_remote(path=source) else os.replace(source, target)


def open_binary(path: str, mode: str = "rb"):
    """Opens a file for bytes.

    Raises:
      UserError: the file is not there or may not be opened.
    """
    try:
        if is_remote(path):
            if "r" in mode and not exists(path):
                raise UserError(f"{path}: no such file")
            return _gfile().GFile(path, mode)
        return open(path, mode)
    except FileNotFoundError as error:
        path = environment.final_name(path)
        raise UserError(f"{path}: no such file{_hint(path)}") from error
    except OSError as error:
        line = environment.explain_writing(error, [path], [path]) if "r" not in mode else environment.explain(error)
        raise UserError(line or f"{path}: {error}") from error


def _hint(path: str) -> str:
    """What is there instead: a missing file is most often a name with a typing error."""
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        return f" (there is no folder {folder} either)"
    names = [name for name in list_directory(folder) if not name.startswith(".")]
    if not names:
        return f" ({folder} is empty)"
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f" ({folder} holds: {shown})"


def read_text(path: str) -> str:
    """A whole UTF-8 file, line ends untouched.

    Raises:
      UserError: the file is missing, or is not UTF-8 (names the line).
    """
    with open_binary(path) as stream:
        data = stream.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, data.count(b"\n", 0, error.start) + 1, error) from error


def read_lines(path: str) -> Iterator[str]:
    """Yields the lines of a UTF-8 text, split as the reference splits them, without their line end.

    A line ends at LF only (not at U+2028, form feed and the like), and every CR is dropped wherever it stands: that
    is how TensorFlow 1's GFile reads a line. The file is streamed, so it may be larger than memory.

    Raises:
      UserError: the file is missing, or a line is not UTF-8 (names file and line).
    """
    with open_binary(path) as stream:
        yield from decode_lines(stream, path)


def count_lines(path: str) -> int | None:
    """How many lines read_lines will yield, where that is cheap to know: for files on a disk. Otherwise None."""
    if is_remote(path) or not os.path.isfile(path):
        return None
    count, block = 0, b""
    with open_binary(path) as stream:
        while found := stream.read(1 << 20):
            block = found
            count += block.count(b"\n")
    return count + (not block.endswith(b"\n") if block else 0)


def decode_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """`read_lines` for what is open already, such as standard input; `name` stands for it in errors."""
    for number, line in enumerate(stream, 1):
        try:
            text = line.decode("utf-8").replace("\r", "")
        except UnicodeDecodeError as error:
            raise _not_utf8(name, number, error) from error
        if text:  # nothing is left where a file ends in a CR without LF: not a line to the reference
            yield text.removesuffix("\n")


def _not_utf8(path: str, line: int, error: UnicodeDecodeError) -> UserError:
    byte = error.object[error.start]
    return UserError(
        f"{path}, line {line}: not UTF-8 text (byte 0x{byte:02x}); convert it first, for example with"
        f" iconv -f LATIN1 -t UTF-8"
    )


def match_files(names: str, unmatched: list[str] | None = None) -> list[str]:
    """The files that a comma-separated list of names and globs stands for.

    The order is that of the list; the matches of one glob come sorted (the reference takes them as the operating system
    lists them). A file named twice is there twice, as in the reference.

    Args:
      names: the list.
      unmatched: where given, a name that matches nothing is left out and what is wrong with it is appended here.

    Raises:
      UserError: a name or a glob matches nothing (the reference drops it silently) and `unmatched` is not given, or no
        name at all matches, or one is a folder.
    """
    found: list[str] = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        if exists(name):
            matches = [name]
        else:
            matches = sorted(_gfile().glob(name) if is_remote(name) else glob.glob(name))
        if not matches:
            what = "no file matches this pattern" if any(c in name for c in "*?[") else "no such file" + _hint(name)
            if unmatched is None:
                raise UserError(f"{name}: {what}")
            unmatched.append(f"{name}: {what}")
        directories = [match for match in matches if is_directory(match)]
        if directories:
            raise UserError(f"{directories[0]}: is a folder, a file is needed (try {directories[0].rstrip('/')}/*)")
        found += matches
    if not found:
        raise UserError(unmatched[0] if unmatched else f"no file is named in {names!r}")
    return found


@contextlib.contextmanager
def complete_or_absent(*paths: str) -> Iterator[list[str]]:
    """Lets a caller write files that appear under their names only when all of them are complete.

    Yields one name beside each of `paths`; write to those. On a normal exit they are renamed to `paths`, on an
    exception they are removed and whatever stood under `paths` before is untouched. What processes that were killed
    left in these folders is removed.

    Example:
      with complete_or_absent("out/predictions.json") as (beside,):
          with open(beside, "w") as stream: ...

    Raises:
      UserError: one of `paths` is a folder or an input of this script, or its folder cannot be made, or the files
        cannot be written: no space is left, say. Other exceptions of the caller pass.
    """
    for path in paths:
        if is_directory(path):
            raise UserError(f"{path}: is a folder; name a file to write")
        make_directory(os.path.dirname(path))
        outputs.remove_leftovers(os.path.dirname(path))
    beside = [outputs.name_beside(path) for path in paths]
    partial = [name for name, path in zip(beside, paths, strict=True) if name != path]
    try:
        yield beside
        outputs.refuse_inputs(beside, paths)
        for source, target in zip(beside, paths, strict=True):
            if source in partial:
                rename(source, target)
    except Exception as error:
        line = environment.explain_writing(error, paths, beside)
        if line is None:
            raise
        raise UserError(line) from error
    finally:
        for name in partial:
            with contextlib.suppress(Exception):  # already renamed, or never made
                remove(name)


def write_text(path: str, text: str) -> None:
    """Writes a UTF-8 file, complete or not at all."""
    with complete_or_absent(path) as (beside,), open_binary(beside, "wb") as stream:
        stream.write(text.encode("utf-8"))

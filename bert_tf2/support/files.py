"""Reading and writing files.

Local paths go through Python; anything with a scheme (`gs://...`) goes through `tf.io.gfile`, which is imported only
then, so that a script on local files can report a bad flag or a missing file before TensorFlow loads.
"""

from __future__ import annotations

import codecs
import contextlib
import glob
import io
import itertools
import json
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

from absl import logging

from bert_tf2.support import environment, file_kinds, json_text, outputs, remote_files
from bert_tf2.support.environment import is_remote as is_remote
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.support.remote_files import gfile


def exists(path: str) -> bool:
    """Raises UserError where a remote file system does not answer."""
    return gfile("exists", path) if is_remote(path) else os.path.exists(path)


def is_directory(path: str) -> bool:
    """Raises UserError where a remote file system does not answer."""
    return gfile("isdir", path) if is_remote(path) else os.path.isdir(path)


def companion(folder: str, name: str) -> str | None:
    """The path of a file that may lie beside others, in `folder`; None if it does not."""
    path = os.path.join(folder, name)
    if not exists(path):
        return None
    if not (is_remote(path) or os.path.isfile(path) or os.path.isdir(path)):
        raise UserError(f"{path}: is a pipe or a device, where a file is expected; remove it")
    return path


def size(path: str) -> int:
    """The bytes of a file."""
    return gfile("stat", path).length if is_remote(path) else os.path.getsize(path)


def modified(path: str) -> float | None:
    """When a file was changed, in seconds since 1970; None where a remote file system does not say."""
    if is_remote(path):
        return (gfile("stat", path).mtime_nsec or 0) / 1e9 or None
    return os.stat(path).st_mtime


def list_directory(path: str) -> list[str]:
    """The names in a folder, sorted; an empty list if it does not exist."""
    if not is_directory(path):
        return []
    return sorted(gfile("listdir", path) if is_remote(path) else os.listdir(path))


def make_directory(path: str) -> None:
    """Creates a folder and its parents unless it exists."""
    if not path:
        return
    if is_remote(path):
        return gfile("makedirs", path)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {environment.explain(error)}") from error


def remove(path: str) -> None:
    gfile("remove", path) if is_remote(path) else os.remove(path)


def rename(source: str, target: str) -> None:
    """Replaces `target` by `source`, atomically if the file system supports it."""
    gfile("rename", source, target, overwrite=True) if is_remote(source) else os.replace(source, target)


def _flush(paths: Iterable[str]) -> None:
    """Writes files, or the names in folders, from the system's memory to the disk; a remote service does so itself."""
    for path in itertools.filterfalse(is_remote, paths):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError:
            if not os.path.isdir(path):  # some file systems cannot do it for folders
                raise
        finally:
            os.close(descriptor)


def open_binary(path: str, mode: str = "rb"):
    """Opens a binary file."""
    try:
        if is_remote(path):
            if "r" in mode and not exists(path):
                raise UserError(f"{path}: no such file")
            return remote_files.open_binary(path, mode)
        if mode == "rb":
            return io.BufferedReader(_Read(path), 1 << 16)
        with environment.writing(path):
            return open(path, mode, 1 << 16)
    except FileNotFoundError as error:
        path = environment.final_name(path)
        raise UserError(f"{path}: no such file{_hint(path)}") from error
    except OSError as error:
        raise UserError(environment.explain(error)) from error


class _Read(io.FileIO):
    """A file to read, whose name stands in errors amid reading, as that of a file to open does."""

    def readinto(self, buffer) -> int | None:
        with self._named():
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with self._named():
            return super().readall()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = self.name
            raise


def check_there(path: str) -> None:
    """Raises UserError for a file that does not exist."""
    if not exists(path):
        raise UserError(f"{path}: no such file{_hint(path)}")


def _hint(path: str) -> str:
    """Lists the names in the folder, because a missing file is usually a typing error."""
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        return f" (there is no folder {folder} either)"
    names = [name for name in list_directory(folder) if not name.startswith(".")]
    return f" ({folder} holds: {and_more(names, 8)})" if names else f" ({folder} is empty)"


def expect_kind(path: str, wanted: str) -> None:
    """Raises UserError for a binary file that is evidently of another kind; see file_kinds.mismatch."""
    with open_binary(path) as stream:
        head = stream.read(file_kinds.HEAD_BYTES)
    if problem := file_kinds.mismatch(head, path, wanted):
        raise UserError(f"{path}: {problem}")


def read_text(path: str, *, drop_bom: bool = False) -> str:
    """Reads a whole UTF-8 file, on request without a byte order mark, U+FEFF; line ends are not changed."""
    with open_binary(path) as stream:
        data = stream.read()
    _refuse_other_kinds(data, path)
    try:
        return data.removeprefix(codecs.BOM_UTF8 if drop_bom else b"").decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, data.count(b"\n", 0, error.start) + 1, error) from error


def read_lines(path: str, *, drop_bom: bool = False) -> Iterator[str]:
    """Yields the lines of a UTF-8 file without line ends, split as in the reference.

    A line ends at LF only (not at U+2028 or a form feed), and every CR is dropped, as in TensorFlow 1's GFile. The file
    is streamed, so it may be larger than memory. `drop_bom` removes a byte order mark, U+FEFF. Running text keeps it:
    the tokenizer drops it, and in the reference a line of only U+FEFF is not blank.
    """
    with open_binary(path) as stream:
        yield from decode_lines(stream, path, drop_bom=drop_bom)


def count_lines(path: str) -> int | None:
    """The number of lines that read_lines will yield, for files on a local disk. Otherwise None."""
    if is_remote(path) or not os.path.isfile(path):
        return None
    with open_binary(path) as stream:
        return sum(1 for _ in stream)


def decode_lines(stream: Iterable[bytes], name: str, *, drop_bom: bool = False, first: int = 1) -> Iterator[str]:
    """`read_lines` for an open stream, such as standard input, for errors with its name and its first line's number."""
    if isinstance(stream, io.BufferedReader):  # check the kind before reading a line, which may not end
        _refuse_other_kinds(stream.peek(file_kinds.HEAD_BYTES), name)
    for number, line in enumerate(stream, first):
        if number == 1:
            _refuse_other_kinds(line, name)
            line = line.removeprefix(codecs.BOM_UTF8) if drop_bom else line
        try:
            text = line.decode("utf-8").replace("\r", "")
        except UnicodeDecodeError as error:
            raise _not_utf8(name, number, error) from error
        if text:  # empty if a file ends in a CR without LF: not a line in the reference
            yield text.removesuffix("\n")


def _refuse_other_kinds(head: bytes, path: str) -> None:
    if problem := file_kinds.recognize(head, path, "text in UTF-8", pages=False):
        raise UserError(f"{path}: {problem}")


def _not_utf8(path: str, line: int, error: UnicodeDecodeError) -> UserError:
    name, byte = shlex.quote(path), error.object[error.start]
    return UserError(
        f"{path}, line {line}: not UTF-8 text (byte 0x{byte:02x}); correct this place if the rest is UTF-8, or convert"
        f" it from its encoding, here that of Western texts: iconv -f CP1252 -t UTF-8 {name} > {name}.utf8"
    )


def read_json(path: str, kind: type | None = dict) -> Any:
    """Parses a JSON file whose content must be of a kind, dict or list; None for any."""
    return json_text.parse(read_text(path, drop_bom=True), path, kind)


def write_json(path: str, content: Any, *, durable: bool = False) -> None:
    """Writes an indented UTF-8 JSON file like complete_or_absent."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n", durable=durable)


def match_files(names: str, *, skip_unmatched: bool = False) -> list[str]:
    """The files that match a comma-separated list of names and globs.

    The order is that of the list; the matches of a glob are sorted (in the reference they have the order of the file
    system). A file that is named twice occurs twice, as in the reference. With `skip_unmatched`, a name that matches
    nothing is left out with a warning, as long as another one does.
    """
    found: list[str] = []
    problems: list[str] = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        if exists(name):
            matches = [name]
        else:
            matches = sorted(gfile("glob", name) if is_remote(name) else glob.glob(name))
        if not matches:
            what = "no file matches this pattern" if any(c in name for c in "*?[") else "no such file" + _hint(name)
            problems.append(f"{name}: {what}")
        if directories := [match for match in matches if is_directory(match)]:
            raise UserError(f"{directories[0]}: is a folder, a file is needed (try {directories[0].rstrip('/')}/*)")
        found += matches
    if not found or (problems and not skip_unmatched):
        raise UserError(next(iter(problems), f"no file is named in {names!r}"))
    for problem in problems:
        logging.warning("left out %s", problem)
    return found


@contextlib.contextmanager
def complete_or_absent(*paths: str, durable: bool = False) -> Iterator[list[str]]:
    """A context manager for writing files that appear under their names only when all of them are complete.

    Yields a temporary name next to each of `paths`; write to those. On a normal exit they are renamed to `paths`; on an
    exception they are removed, and existing files at `paths` are unchanged. Temporary files of killed processes in
    these folders are removed. `durable`: the files survive a power failure once this is done, and are complete whenever
    they are there.
    """
    for path in paths:
        if is_directory(path):
            raise UserError(f"{path}: is a folder; name a file to write")
        make_directory(os.path.dirname(path))
        outputs.remove_leftovers(os.path.dirname(path))
    beside = [outputs.name_beside(path) for path in paths]
    partial = [name for name, path in zip(beside, paths, strict=True) if name != path]
    try:
        with environment.writing(*paths):
            yield beside
            if durable:
                _flush(partial)
            for source, target in zip(beside, paths, strict=True):
                if source in partial:
                    rename(source, target)
                    if durable:
                        _flush([os.path.dirname(target) or "."])
    finally:
        for name in partial:
            with contextlib.suppress(Exception):  # already renamed, or never created
                remove(name)


def is_utf8(text: str) -> bool:
    """Whether a text can be encoded in UTF-8: a text from JSON may contain a lone surrogate."""
    return text.encode("utf-8", "ignore").decode("utf-8") == text


def copy(source: str, path: str) -> None:
    """Copies a file like complete_or_absent."""
    with open_binary(source) as read, complete_or_absent(path) as (beside,), open_binary(beside, "wb") as written:
        shutil.copyfileobj(read, written)


def write_text(path: str, text: str, *, durable: bool = False) -> None:
    """Writes a UTF-8 file like complete_or_absent; also raises UserError if the text is not UTF-8."""
    if not is_utf8(text):
        raise UserError(f"{path}: cannot be written in UTF-8, the text holds half a character (of a pair of \\u...)")
    with complete_or_absent(path, durable=durable) as (beside,), open_binary(beside, "wb") as stream:
        stream.write(text.encode("utf-8"))

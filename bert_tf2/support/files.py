"""Reading and writing files, which may be compressed.

Python opens local paths; `remote` opens paths with a scheme (`gs://...`).
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import glob
import gzip
import io
import itertools
import json
import lzma
import os
import re
import shlex
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from absl import logging

from bert_tf2.support import containers, errors, outputs, remote
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.support.file_kinds import ARCHIVES, HEAD_BYTES, mismatch, recognize
from bert_tf2.support.outputs import is_remote as is_remote


def exists(path: str) -> bool:
    return remote.call("exists", path) if is_remote(path) else os.path.exists(path)


def is_directory(path: str) -> bool:
    return remote.call("isdir", path) if is_remote(path) else os.path.isdir(path)


def folder_of(path: str) -> str:
    """A path itself if it is a folder, otherwise the folder of the file, or of the files with this prefix."""
    return path if is_directory(path) else os.path.dirname(path)


def companion(folder: str, name: str) -> str | None:
    """The path of a file that may be beside others, in `folder`; None if the file does not exist.

    Raises UserError for a pipe, to which perhaps nobody writes, and for a link to a missing file.
    """
    path = os.path.join(folder, name)
    if not exists(path):
        if link := dangling(path):
            raise UserError(f"{path}: {link}")
        return None
    if not (is_remote(path) or os.path.isfile(path) or os.path.isdir(path)):
        raise UserError(f"{path}: is a pipe or a device, where a file is expected; remove it")
    return path


def size(path: str) -> int:
    return remote.call("stat", path).length if is_remote(path) else os.path.getsize(path)


def modified(path: str) -> float | None:
    """The time of the last change of a file, in seconds since 1970; None if a remote file system does not state it."""
    return (remote.call("stat", path).mtime_nsec or 0) / 1e9 or None if is_remote(path) else os.stat(path).st_mtime


def list_directory(path: str) -> list[str]:
    """The names in a folder, sorted; an empty list if it does not exist."""
    if not is_directory(path):
        return []
    return sorted(remote.call("listdir", path) if is_remote(path) else os.listdir(path))


def make_directory(path: str) -> None:
    """Creates a folder and its parents unless it exists."""
    try:
        if is_remote(path):
            remote.call("makedirs", path)
        elif path:
            os.makedirs(path, exist_ok=True)
    except OSError as error:
        link = dangling(path)
        raise UserError(f"{path}: {link}" if link else f"cannot make the folder {errors.explain(error)}") from error


@contextlib.contextmanager
def made_directory(path: str) -> Iterator[None]:
    """A context with a folder, see make_directory and outputs.removed_if_empty."""
    with outputs.removed_if_empty(path):
        make_directory(path)
        yield


def remove(path: str) -> None:
    remote.call("remove", path) if is_remote(path) else os.remove(path)


def _discard(path: str) -> None:
    """Removes a file, or a folder with its content; it may not be there."""
    with contextlib.suppress(Exception):
        remote.call("rmtree" if is_directory(path) else "remove", path) if is_remote(path) else outputs.discard(path)


def _flush(paths: Iterable[str]) -> None:
    """Writes local files, or the names in folders, from the system's memory to the disk."""
    for path in itertools.filterfalse(is_remote, paths):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError:
            if not os.path.isdir(path):  # some file systems cannot sync folders
                raise
        finally:
            os.close(descriptor)


def open_binary(path: str, mode: str = "rb"):
    try:
        if is_remote(path):
            return remote.open_file(path, mode)
        if mode == "rb":
            return io.BufferedReader(_Local(path), 1 << 16)
        with errors.writing(path):
            return io.BufferedWriter(_Local(path, mode), 1 << 16)
    except FileNotFoundError as error:
        path = errors.final_name(path)
        raise UserError(f"{path}: {missing(path)}") from error
    except OSError as error:
        raise UserError(errors.explain(error)) from error


class _Local(io.FileIO):
    """A local file, whose name is in errors of reading and writing, too, and not only in errors of opening."""

    read, readall = io.RawIOBase.read, io.RawIOBase.readall  # both call readinto

    def readinto(self, buffer) -> int | None:
        return self._ask(super().readinto, buffer)

    def write(self, content) -> int | None:
        return self._ask(super().write, content)

    def _ask(self, method: Callable, given: Any) -> int | None:
        try:
            return method(given)
        except OSError as error:
            error.filename = self.name
            raise


def check_there(path: str) -> None:
    """Raises UserError for a file that does not exist."""
    if not exists(path):
        raise UserError(f"{path}: {missing(path)}")


def missing(path: str) -> str:
    """The reason why a missing file cannot be opened, with the names in its folder, because most names are mistyped."""
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder) or folder == "/":
        kind = "a file" if os.path.isfile(folder) else "the root" if folder == "/" else "no folder"
        unset = "; is a variable, such as $BERT_BASE_DIR, not set?" if os.path.dirname(folder) == "/" else ""
        return f"no such file ({folder} is {kind}{unset})"
    names = [name for name in list_directory(folder) if not name.startswith(".")]
    return dangling(path) or f"no such file ({folder} {f'holds: {and_more(names, 8)}' if names else 'is empty'})"


def dangling(path: str) -> str:
    """The message about a link to a missing file; "" for anything else."""
    if is_remote(path) or not os.path.islink(path) or os.path.exists(path):
        return ""
    return (
        f"is a link to {os.readlink(path)}, which is not there; copy the folder with the files that its links lead to"
        " (cp -rL), or remove the link"
    )


# Compressed files: recognized by their content. `tfrecords` compresses files whose name ends in GZIP_ENDING.

GZIP_ENDING = ".gz"
_OPENERS = {"gzip": lambda stream: gzip.GzipFile(fileobj=stream, mode="rb"), "bzip2": bz2.BZ2File, "xz": lzma.LZMAFile}


def is_packed(stream: BinaryIO) -> bool:
    """Whether a stream of `open_unpacked` unpacks an archive."""
    return isinstance(getattr(stream, "raw", None), gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile)


def is_archive(path: str) -> bool:
    """Whether a file of records, local or remote, is an archive."""
    with open_unpacked(path) as stream:
        return is_packed(stream)


@contextlib.contextmanager
def open_unpacked(path: str, *, of_text: bool = False) -> Iterator[BinaryIO]:
    """Opens a file, local or remote, whose content may be compressed, as a stream of the content.

    `of_text`: whether archives of bzip2 and xz are read, too. TensorFlow's reader of records knows only gzip.
    """
    with open_binary(path) as packed:
        begin = packed.peek(HEAD_BYTES)  # a pipe cannot be rewound
        program = next((name for name in _OPENERS if re.match(ARCHIVES[name], begin)), "")
        if program not in (_OPENERS if of_text else ("gzip",)):
            yield packed
            return
        try:
            # BufferedReader reads lines faster than the archives' classes, whose readline is a Python function.
            with io.BufferedReader(_OPENERS[program](packed), 1 << 16) as stream:
                yield stream
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # an error of the operating system: errors of the libraries have no number
            problem = f"the {program} archive is damaged or incomplete ({error}); test it: {program} -t"
            raise UserError(f"{path}: {problem}") from error


def expect_kind(path: str, wanted: str) -> None:
    """Raises UserError for a file of weights that is evidently of another kind; see `mismatch`."""
    with open_binary(path) as stream:
        head = stream.read(HEAD_BYTES)
    if problem := mismatch(head, path, wanted, weights=True):
        raise UserError(f"{path}: {problem}")


def read_text(path: str, *, drop_bom: bool = False) -> str:
    """Reads a whole UTF-8 file; `drop_bom` removes a byte order mark, U+FEFF. Line ends are not changed."""
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
    """The number of lines that read_lines will yield; None if the file is not on a local disk."""
    if is_remote(path) or not os.path.isfile(path):
        return None
    with open_binary(path) as stream:
        return sum(1 for _ in stream)


def decode_lines(stream: Iterable[bytes], name: str, *, drop_bom: bool = False) -> Iterator[str]:
    """`read_lines` for an open stream, such as standard input; `name` is its name in messages."""
    if isinstance(stream, io.BufferedReader):  # check the kind before reading a line, which may not end
        _refuse_other_kinds(stream.peek(HEAD_BYTES), name)
    for number, line in enumerate(stream, 1):
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
    if problem := recognize(head, path, "text in UTF-8", text=True):
        raise UserError(f"{path}: {problem}")


def _not_utf8(path: str, line: int, error: UnicodeDecodeError) -> UserError:
    name, byte = shlex.quote(path), error.object[error.start]
    if b"\0" in error.object[:HEAD_BYTES]:  # in no other encoding, either, but UTF-16 and UTF-32
        return UserError(f"{path}, line {line}: is binary data, not text; give the file with the text")
    # Western texts have single letters above ASCII, and others have words of them.
    is_western = error.object[error.start + 1 : error.start + 2] < b"\x80"
    encoding, texts = (
        ("CP1252", "Western") if is_western else ("GB18030", "Chinese (CP932: Japanese, CP1251: Cyrillic)")
    )
    return UserError(
        f"{path}, line {line}: not UTF-8 text (byte 0x{byte:02x}); correct this place if the rest is UTF-8, or convert"
        f" it from its encoding, here for {texts} texts: iconv -f {encoding} -t UTF-8 {name} > {name}.utf8"
    )


def read_json(path: str, kind: type | None = dict, flag: str = "") -> Any:
    """Parses a JSON file of a kind, dict or list; None allows any kind. `flag`: the flag that names such files."""
    return parse_json(read_text(path, drop_bom=True), path, kind, flag)


def parse_json(text: str, name: str, kind: type | None = dict, flag: str = "") -> Any:
    """Parses a JSON text, which is called `name` in messages."""
    if not text.strip():
        raise UserError(f"{name}: the file is empty; a JSON file is needed")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        if page := recognize(text[:HEAD_BYTES].encode("utf-8", "replace"), name, "JSON"):
            raise UserError(f"{name}: {page}") from error
        cure = f"is it the right file{flag and f' for {flag}'}?"
        if error.lineno > 1 or text.lstrip().startswith("{"):
            cure = "one value is needed, not JSON lines" if error.msg == "Extra data" else "is the file complete?"
        where = f"{name}, line {error.lineno}, column {error.colno}"
        raise UserError(f"{where}: not valid JSON ({error.msg}); {cure}") from error
    except (RecursionError, ValueError) as error:  # Python limits the number of digits of an integer
        raise UserError(f"{name}: is nested too deep, or has too long a number; is it the right file?") from error
    if kind is not None and not isinstance(content, kind):
        wanted = "an object {...}" if kind is dict else "a list [...]"
        raise UserError(f"{name}: {wanted} is needed in this JSON file, not {text.strip():.20}")
    return content


def write_json(path: str, content: Any, *, durable: bool = False) -> None:
    """Writes an indented UTF-8 JSON file with complete_or_absent."""
    write_text(path, json_text(content), durable=durable)


def json_text(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def match_files(names: str, *, skip_unmatched: bool = False) -> list[str]:
    """The files that match a comma-separated list of names and globs.

    The files have the order of the list, a file that is named twice occurs twice, and a glob's matches are sorted. With
    `skip_unmatched`, a name that matches nothing is left out with a warning, as long as another name matches.
    """
    found: list[str] = []
    problems: list[str] = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        if exists(name):
            matches = [name]
        else:
            # [^...] excludes characters in TensorFlow and shells; in Python it would be a set with "^".
            matches = sorted(remote.call("glob", name) if is_remote(name) else glob.glob(name.replace("[^", "[!")))
        if not matches:
            what = "no file matches this pattern" if any(c in name for c in "*?[") else missing(name)
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

    Yields a temporary name next to each of `paths`; write to these names. After an exception, files at `paths` are as
    before. Temporary files of killed processes in these folders are removed. `durable`: after the context, the files
    survive a power failure, and they are never incomplete.
    """
    with contextlib.ExitStack() as opened:
        for path in paths:
            if is_directory(path):
                raise UserError(f"{path}: is a folder; name a file to write")
            opened.enter_context(made_directory(os.path.dirname(path)))
            outputs.remove_leftovers(os.path.dirname(path))
        beside = [outputs.name_beside(path) for path in paths]
        partial = {name: path for name, path in zip(beside, paths, strict=True) if name != path}
        for name in partial:
            opened.callback(_discard, name)
        with errors.writing(*paths):
            yield beside
            if durable:
                _flush(partial)
            for source, target in partial.items():  # atomic if the file system supports it
                if is_remote(source):
                    remote.call("rename", source, target, overwrite=True)
                else:
                    os.replace(source, target)
                if durable:
                    _flush([os.path.dirname(target) or "."])


@contextlib.contextmanager
def folder_beside(path: str) -> Iterator[str]:
    """A context with a new folder for files that are not complete; the folder is removed unless it was renamed.

    The new folder is beside `path`. The parent folders of `path` are created, and folders of killed processes beside
    `path` are removed.
    """
    with made_directory(os.path.dirname(path)), contextlib.ExitStack() as opened:
        outputs.remove_leftovers(os.path.dirname(path))
        beside = outputs.name_beside(path)
        opened.callback(_discard, beside)
        make_directory(beside)
        yield beside


def write_text(path: str, text: str, *, durable: bool = False) -> None:
    """Writes a UTF-8 file with complete_or_absent; also raises UserError if the text cannot be encoded in UTF-8."""
    if not containers.is_utf8(text):
        raise UserError(f"{path}: cannot be written in UTF-8, the text holds half a character (of a pair of \\u...)")
    with complete_or_absent(path, durable=durable) as (beside,), open_binary(beside, "wb") as stream:
        stream.write(text.encode("utf-8"))

"""Compressed files: reading one as if it were not compressed, and writing one with gzip, to the same bytes every time.

An archive is recognized by its content, whatever its name; what is written is one if its name ends in .gz. Text may be
compressed by gzip, bzip2 or xz; records by gzip only, because TensorFlow's reader knows no other of the three.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from bert_tf2.support import files
from bert_tf2.support.errors import UserError

ENDING = ".gz"
# Records of 128 tokens: level 1 leaves 31 % at 90 MB/s, level 6 29 % at 50 MB/s, level 9 29 % at 20 MB/s.
_LEVEL = 1
_OPENERS = {"gzip": lambda stream: gzip.GzipFile(fileobj=stream, mode="rb"), "bzip2": bz2.BZ2File, "xz": lzma.LZMAFile}
_UNPACKED = gzip.GzipFile, bz2.BZ2File, lzma.LZMAFile


def is_packed(stream: BinaryIO) -> bool:
    """Whether a stream of `open_unpacked` is that of an archive."""
    return isinstance(getattr(stream, "raw", None), _UNPACKED)


def is_archive(path: str) -> bool:
    """Whether a file of records, local or remote, is an archive."""
    with open_unpacked(path) as stream:
        return is_packed(stream)


@contextlib.contextmanager
def open_unpacked(path: str, *, of_text: bool = False) -> Iterator[BinaryIO]:
    """Opens a file, local or remote, whose content may be compressed, as a stream of what is in it.

    Args:
      path: the file.
      of_text: whether bzip2 and xz count, too.
    """
    with files.open_binary(path) as packed:
        if hasattr(packed, "peek"):  # a pipe cannot go back
            begin = packed.peek(files.MAGIC_BYTES)
        else:
            begin = packed.read(files.MAGIC_BYTES)
            packed.seek(0)
        program = next((name for name in _OPENERS if re.match(files.ARCHIVES[name].pattern, begin)), "")
        if program not in (_OPENERS if of_text else ("gzip",)):
            yield packed
            return
        try:
            # Reads lines faster than the classes themselves, whose readline is a Python function.
            with io.BufferedReader(_OPENERS[program](packed), 1 << 16) as stream:
                yield stream
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the operating system; the libraries number none of theirs
            raise UserError(
                f"{path}: the {program} archive is damaged or incomplete ({error}); test it: {program} -t"
            ) from error


@contextlib.contextmanager
def open_writing(path: str, *, packed: bool) -> Iterator[BinaryIO]:
    """Opens a file for writing; if `packed`, what is written is compressed.

    Equal content gives equal bytes, because the archive holds neither a name nor a time. Another version of the library
    zlib may compress to other bytes.
    """
    with files.open_binary(path, "wb") as stream:
        if not packed:
            yield stream
            return
        with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=stream, mtime=0) as packing:
            yield packing

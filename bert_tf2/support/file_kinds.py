"""Recognizes files of another kind than wanted by their first bytes: wrong files that users often give.

The messages "not UTF-8" and "corrupted" would be true, but would not help.
"""

from __future__ import annotations

import codecs
import contextlib
import re
import shlex

HEAD_BYTES = 4096
"""The bytes from the beginning of a file by which its kind is recognized."""

# The program that makes an archive -> the beginning of the archive, as a regular expression.
ARCHIVES = {
    "gzip": rb"\x1f\x8b\x08",  # not in a text in UTF-8; in records only if the first record has 559,903 bytes
    "bzip2": rb"BZh[1-9](1AY&SY|\x17rE8P\x90)",
    "xz": rb"\xfd7zXZ\x00",
    "zstd": rb"\x28\xb5\x2f\xfd",
}

_UNTAR = "unpack it first: tar -xf {path}"
_PAGE = rb"(\xef\xbb\xbf)?\s*<(!DOCTYPE html|html|head|\?xml)\b"
# The beginning of a file, as a regular expression -> the kind, and the remedy with {path} in place of the name.
_KINDS = {
    rb"\xff\xfe|\xfe\xff": ("text in UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8 {path} > {path}.utf8"),
    rb"([\t -~]\0){8}": ("text in UTF-16", "convert it first: iconv -f UTF-16LE -t UTF-8 {path} > {path}.utf8"),
    **{
        begin: (f"a {program} archive", f"unpack it first: {program} -dc < {{path}} > {{path}}.unpacked")
        for program, begin in ARCHIVES.items()
    },
    rb"version https://git-lfs": ("a pointer of Git LFS and not the file itself", "fetch the file: git lfs pull"),
    _PAGE: ("an HTML page, perhaps the answer of a server instead of the file", "download the file itself"),
}
# The same for kinds that a file of weights may have, and a file of text or records may not.
_KINDS_NOT_OF_WEIGHTS = {
    rb"PK\x03\x04": ("a zip archive", "unpack it first: unzip {path}"),
    rb"7z\xbc\xaf\x27\x1c": ("a 7-Zip archive", "unpack it first: 7z x {path}"),
    rb"(?s:.{257})ustar(  )?\x00": ("a tar archive", _UNTAR),
    rb"PAR1\x15|ARROW1\x00\x00": ("a table of Parquet or Arrow", "write its text into a file in UTF-8"),
}


def recognize(head: bytes, path: str, wanted: str, *, text: bool = False, weights: bool = False) -> str | None:
    """Returns a phrase with the kind that a file evidently has instead of `wanted`, and a remedy; None if unknown.

    `text`: whether any text is wanted, so that HTML is accepted. `weights`: whether archives of several files are.
    """
    for pattern, (what, remedy) in (_KINDS if weights else _KINDS | _KINDS_NOT_OF_WEIGHTS).items():
        if re.match(pattern, head, re.IGNORECASE) and not (text and pattern == _PAGE):
            if "-dc" in remedy and re.search(r"\.(tar\.\w+|tgz)$", path):
                remedy = _UNTAR
            return f"is {what}, not {wanted}; {remedy.format(path=shlex.quote(path))}"
    return None


def mismatch(head: bytes, path: str, wanted: str, of_text: str = "give another file", **accepts: bool) -> str | None:
    """The same if a binary file is wanted, so that text is wrong, too; `of_text`: the remedy for text."""
    problem = recognize(head, path, wanted, **accepts)
    if not problem and head and b"\0" not in head:
        with contextlib.suppress(UnicodeDecodeError):
            codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut off
            return f"is text, not {wanted}; {of_text}"
    return problem

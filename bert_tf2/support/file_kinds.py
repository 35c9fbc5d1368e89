"""Recognizes the likely wrong files by their first bytes, for error messages that name the right remedy.

A gzip archive passed as a vocabulary is "not UTF-8", and as a TFRecord file "corrupted". Both are true but do not help.
"""

from __future__ import annotations

import codecs
import re
import shlex

HEAD_BYTES = 4096
"""The number of bytes from the beginning of a file that these functions need, or fewer if it is shorter."""

_PAGE = rb"(\xef\xbb\xbf)?\s*<(!DOCTYPE html|html|head|\?xml)\b"
# How a file begins, as a regular expression -> what it is, and what to do; {path} stands for its name.
_KINDS = {
    rb"\xff\xfe|\xfe\xff": ("text in UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8 {path} > {path}.utf8"),
    rb"\x1f\x8b\x08": ("a gzip archive", "unpack it first: gunzip -c < {path} > {path}.unpacked"),
    rb"version https://git-lfs": ("a pointer of Git LFS and not the file itself", "fetch that: git lfs pull"),
    _PAGE: ("an HTML page, perhaps the answer of a server instead of the file", "download the file itself"),
}


def recognize(head: bytes, path: str, wanted: str, *, pages: bool = True) -> str | None:
    """What a file evidently is instead of what is `wanted`, and what to do; None for anything unknown.

    `pages`: whether HTML counts, which may be intended in a corpus.
    """
    for pattern, (what, remedy) in _KINDS.items():
        if re.match(pattern, head, re.IGNORECASE) and (pages or pattern != _PAGE):
            return f"is {what}, not {wanted}; {remedy.format(path=shlex.quote(path))}"
    return None


def mismatch(head: bytes, path: str, wanted: str, of_text: str = "give another file") -> str | None:
    """The same for a binary file, whose reader would call a text damaged; `of_text`: what to do with one."""
    is_text = head and b"\0" not in head and _is_utf8(head)
    return recognize(head, path, wanted) or (f"is text, not {wanted}; {of_text}" if is_text else None)


def _is_utf8(head: bytes) -> bool:
    """Whether the beginning of a file is UTF-8, the last character of which may be cut off."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True

"""Recognizes the likely wrong files by their first bytes, for error messages that name the right remedy.

A gzip archive passed as a vocabulary is "not UTF-8", and as a TFRecord file "corrupted". Both are true but do not help.
Names do not count, because wrong names are one of the causes.
"""

from __future__ import annotations

import codecs
import re
import shlex
import struct
from typing import NamedTuple

import google_crc32c

HEAD_BYTES = 4096
"""The number of bytes from the beginning of a file that `recognize` needs."""


class Kind(NamedTuple):
    """A kind of file: a short name, a phrase with an article, and what to do, with {path} for the file's name."""

    name: str
    what: str
    remedy: str = "give another file"

    def sentence(self, wanted: str) -> str:
        """Part of a message: "is a gzip archive, not UTF-8 text; unpack it first: gunzip -c < x > x.unpacked"."""
        return f"is {self.what}, not {wanted}; {self.remedy}"


# How a file begins, as a regular expression -> its kind. No text in UTF-8 has one of these beginnings by accident.
_BEGINNINGS = {
    rb"\xff\xfe|\xfe\xff": Kind(
        "UTF-16", "text in UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8 {path} > {path}.utf8"
    ),
    rb"\x1f\x8b\x08": Kind("gzip", "a gzip archive", "unpack it first: gunzip -c < {path} > {path}.unpacked"),
    rb"PK\x03\x04": Kind("zip", "a zip archive (.zip, .docx, .xlsx, .npz)", "unpack it first: unzip {path}"),
    rb"BZh[1-9]1AY&SY|\xfd7zXZ\0|\x28\xb5\x2f\xfd|.{257}ustar": Kind("archive", "an archive", "unpack it first"),
    rb"%PDF-": Kind("PDF", "a PDF document", "take the text out of it first: pdftotext {path}"),
    rb"\x89HDF\r\n": Kind("HDF5", "an HDF5 file (.h5)"),
    rb"version https://git-lfs": Kind(
        "Git LFS", "a pointer of Git LFS and not the file itself", "fetch that: git lfs pull"
    ),
    rb"\0{16,}\Z": Kind("zeros", "a file of zeros, as an interrupted copy leaves one", "copy it again"),
}
_PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*<(!DOCTYPE html|html|head|\?xml)\b", re.IGNORECASE)
_HTML = Kind("HTML", "an HTML page, perhaps the answer of a server instead of the file", "download the file itself")


def recognize(head: bytes, path: str) -> Kind | None:
    """Returns the kind of a file; None for text in an 8-bit encoding, and for anything unknown.

    Args:
      head: its first HEAD_BYTES bytes, or fewer.
      path: its name, for the commands in `remedy`.
    """
    kind = next((kind for pattern, kind in _BEGINNINGS.items() if re.match(pattern, head, re.DOTALL)), None)
    if kind is None and _is_tfrecord(head):
        return Kind("TFRecord", "a TFRecord file")
    return kind and kind._replace(remedy=kind.remedy.format(path=shlex.quote(path)))


def recognize_page(head: bytes, path: str) -> Kind | None:
    """Like `recognize`, but also recognizes HTML, which may be intended in a corpus but not elsewhere."""
    return _HTML if _PAGE.match(head) else recognize(head, path)


def mismatch(head: bytes, path: str, wanted: str, *kinds: str, of_text: str = "give another file") -> str | None:
    """What is wrong with a binary file that evidently holds something else, which its reader would report as damage.

    Args:
      head: its first HEAD_BYTES bytes, or fewer.
      path: its name.
      wanted: the expected content, for the message.
      kinds: the accepted names of Kind, and "text".
      of_text: what to do with a text.
    """
    if kind := recognize_page(head, path):
        return None if kind.name in kinds else kind.sentence(wanted)
    return f"is text, not {wanted}; {of_text}" if head and "text" not in kinds and is_text(head) else None


def _is_tfrecord(head: bytes) -> bool:
    """Whether the length at the beginning of a record matches its checksum."""
    checksum = google_crc32c.value(head[:8])
    masked = ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return head[8:12] == struct.pack("<I", masked)


def is_text(head: bytes) -> bool:
    """Whether the beginning of a file is text in UTF-8, the last character of which may be cut off."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return b"\0" not in head and _is_mostly_printable(head)  # the length of a header, before its JSON, has zeros


def _is_mostly_printable(data: bytes) -> bool:
    return sum(byte < 0x20 and byte not in b"\t\n\r\f" for byte in data) <= len(data) * 0.02


def advice_on_encoding(sample: bytes, path: str) -> str:
    """Returns what to do with a file that has these bytes, which are not UTF-8."""
    if not _is_mostly_printable(sample):
        return "it is a binary file of a kind unknown here; give a text file"
    name = shlex.quote(path)
    return (
        f"correct this place if the rest is UTF-8; convert Western text with: iconv -f CP1252 -t UTF-8 {name} >"
        f" {name}.utf8; other text with its own encoding after -f (GB18030, SHIFT-JIS, KOI8-R, ...)"
    )

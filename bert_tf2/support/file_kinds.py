"""Recognizes kinds of files by their first bytes, for error messages that name the right remedy.

A gzip archive passed as a vocabulary is "not UTF-8", and as a TFRecord file "corrupted". Both are true but do not help.
`recognise` returns what the file is and which command converts it. It ignores the name, because wrong names are one of
the causes.
"""

from __future__ import annotations

import codecs
import re
import shlex
import struct
from collections.abc import Callable
from typing import NamedTuple

import google_crc32c

HEAD_BYTES = 4096
"""The number of bytes from the beginning of a file that `recognise` needs."""

_CONVERT = "convert it first: iconv -f {encoding} -t UTF-8 {path} > {path}.utf8"


class Kind(NamedTuple):
    """A kind of file.

    Attributes:
      name: a short name for comparisons: "gzip", "UTF-16", "TFRecord".
      what: a phrase with an article for messages: "a gzip archive".
      remedy: what to do; "" if the only remedy is another file.
    """

    name: str
    what: str
    remedy: str = ""

    def sentence(self, wanted: str) -> str:
        """Part of a message: "is a gzip archive, not UTF-8 text; unpack it first: gunzip -k x.gz"."""
        return f"is {self.what}, not {wanted}; {self.remedy or 'give another file'}"


def _unpack(command: str, ending: str) -> str:
    """A remedy that unpacks beside the archive if its name has this ending, otherwise to a file with another name."""
    return f"unpack it first: {command}|{ending}"


# First bytes -> kind. No text in UTF-8 has one of these beginnings by accident.
_BEGINNINGS: tuple[tuple[bytes, Kind], ...] = (
    (b"\xff\xfe\0\0", Kind("UTF-32", "text in UTF-32", _CONVERT)),
    (b"\0\0\xfe\xff", Kind("UTF-32", "text in UTF-32", _CONVERT)),
    (b"\xff\xfe", Kind("UTF-16", "text in UTF-16", _CONVERT)),
    (b"\xfe\xff", Kind("UTF-16", "text in UTF-16", _CONVERT)),
    (b"\x1f\x8b\x08", Kind("gzip", "a gzip archive", _unpack("gunzip", ".gz"))),
    (b"\xfd7zXZ\0", Kind("xz", "an xz archive", _unpack("unxz", ".xz"))),
    (b"\x28\xb5\x2f\xfd", Kind("zstd", "a zstd archive", _unpack("unzstd", ".zst"))),
    (b"\x04\x22\x4d\x18", Kind("lz4", "an lz4 archive", _unpack("unlz4", ".lz4"))),
    (b"PK\x03\x04", Kind("zip", "a zip archive (.zip, .docx, .xlsx, .npz)", "unpack it first: unzip {path}")),
    (b"7z\xbc\xaf\x27\x1c", Kind("7z", "a 7z archive", "unpack it first: 7z x {path}")),
    (b"Rar!\x1a\x07", Kind("rar", "a RAR archive", "unpack it first: unrar x {path}")),
    (b"\x89PNG\r\n", Kind("PNG", "a PNG picture")),
    (b"\xff\xd8\xff", Kind("JPEG", "a JPEG picture")),
    (b"%PDF-", Kind("PDF", "a PDF document", "take the text out of it first: pdftotext {path}")),
    (b"{\\rtf1", Kind("RTF", "an RTF document", "save it as plain text in UTF-8")),
    (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        Kind("Office", "a document of Word or a sheet of Excel", "save it as plain text in UTF-8"),
    ),
    (b"SQLite format 3\0", Kind("SQLite", "an SQLite database", "write its table to a text file first")),
    (b"PAR1\x15", Kind("Parquet", "a Parquet table", "write it to a text file first: pandas.read_parquet")),
    (b"ARROW1\0\0", Kind("Arrow", "an Arrow table", "write it to a text file first: pandas.read_feather")),
    (b"\x89HDF\r\n", Kind("HDF5", "an HDF5 file (.h5)")),
    (b"\x93NUMPY", Kind("numpy", "an array of numpy (.npy)")),
    (b"\x7fELF", Kind("ELF", "a program or a library")),
    (
        b"version https://git-lfs.github.com/spec/",
        Kind("Git LFS", "a pointer of Git LFS and not the file itself", "fetch that: git lfs pull"),
    ),
)

_HTML = Kind("HTML", "an HTML page, perhaps the answer of a server instead of the file", "download the file itself")
_TAR = Kind("tar", "a tar archive", "unpack it first: tar xf {path}")
_BZIP2 = Kind("bzip2", "a bzip2 archive", _unpack("bunzip2", ".bz2"))
_PICKLE = Kind("pickle", "a pickle of Python")
_TFRECORD = Kind("TFRecord", "a TFRecord file")
_SAFETENSORS = Kind("safetensors", "a safetensors file of weights")
_ZEROS = Kind("zeros", "a file of zeros, as an interrupted copy leaves one", "copy it again")
_UTF16_WITHOUT_MARK = Kind("UTF-16", "text in UTF-16 without a byte order mark", _CONVERT)
_BINARY = "a binary file of a kind unknown here"


def recognise(head: bytes, path: str) -> Kind | None:
    """Returns the kind of a file; None for text in UTF-8 or another 8-bit encoding, and for anything unknown.

    Args:
      head: its first HEAD_BYTES bytes, or fewer.
      path: its name, for the commands in `remedy`.
    """
    for beginning, kind in _BEGINNINGS:
        if head.startswith(beginning):
            return _for_path(kind, head, path)
    for kind, is_it in _TESTS:
        if is_it(head):
            return _for_path(kind, head, path)
    return None


def recognise_page(head: bytes, path: str) -> Kind | None:
    """Like `recognise`, but also recognizes HTML, which may be intended in a corpus but not elsewhere."""
    is_page = re.match(rb"(\xef\xbb\xbf)?\s*<(!DOCTYPE html|html|head|\?xml)\b", head, re.IGNORECASE)
    return _HTML if is_page else recognise(head, path)


def _is_zeros(head: bytes) -> bool:
    return len(head) >= 16 and not head.strip(b"\0")


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def _is_bzip2(head: bytes) -> bool:
    return bool(re.match(rb"BZh[1-9]1AY&SY", head))


def _is_pickle(head: bytes) -> bool:
    """PROTO of protocols 2 to 5, followed by an instruction that a pickle begins with."""
    return len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5 and head[2:3] in b"\x95}]()cX\x8a\x8cCKMJGN"


def _is_tfrecord(head: bytes) -> bool:
    """Whether the length at the beginning of a record matches its checksum."""
    if len(head) < 12:
        return False
    checksum = google_crc32c.value(head[:8])
    masked = ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return struct.unpack("<I", head[8:12])[0] == masked


def _is_safetensors(head: bytes) -> bool:
    """The length of a header, followed by its first brace."""
    return head[6:8] == b"\0\0" and head[8:10] == b'{"'


def _is_utf16_without_mark(head: bytes) -> bool:
    """Whether nearly every second byte of a text is 0: the upper or the lower bytes of ASCII letters."""
    pairs = len(head) // 2
    if pairs < 4:
        return False
    zeros = sorted(head[place : 2 * pairs : 2].count(0) for place in (0, 1))
    return zeros[0] <= pairs * 0.05 and zeros[1] >= pairs * 0.5 and _is_mostly_printable(head.replace(b"\0", b""))


def _is_mostly_printable(data: bytes) -> bool:
    control = sum(byte < 0x20 and byte not in b"\t\n\r\f" for byte in data)
    return control <= len(data) * 0.02


_TESTS: tuple[tuple[Kind, Callable[[bytes], bool]], ...] = (
    (_ZEROS, _is_zeros),
    (_TAR, _is_tar),
    (_BZIP2, _is_bzip2),
    (_TFRECORD, _is_tfrecord),
    (_SAFETENSORS, _is_safetensors),
    (_PICKLE, _is_pickle),
    (_UTF16_WITHOUT_MARK, _is_utf16_without_mark),
)


def _for_path(kind: Kind, head: bytes, path: str) -> Kind:
    """Returns the kind with the file's name in its remedy."""
    name, remedy = shlex.quote(path), kind.remedy
    if kind is _UTF16_WITHOUT_MARK:  # iconv would use the machine's byte order
        encoding = "UTF-16LE" if head[1:2] == b"\0" else "UTF-16BE"
        return kind._replace(remedy=remedy.format(encoding=encoding, path=name))
    if "|" in remedy:
        command, ending = remedy.split("|")
        inside = path.endswith(ending) and "://" not in path
        remedy = f"{command} -k {name}" if inside else f"{command} -c < {name} > {name}.unpacked"
        return kind._replace(remedy=remedy)
    return kind._replace(remedy=remedy.format(encoding=kind.name, path=name))


def is_text(head: bytes) -> bool:
    """Whether the beginning of a file is text in UTF-8."""
    try:
        # The last character may be cut off.
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return _is_mostly_printable(head)


def advice_on_encoding(sample: bytes, head: bytes, path: str) -> str:
    """Returns what to do with text that is not UTF-8.

    Args:
      sample: the bytes around the first invalid one.
      head: the beginning of the file.
      path: its name.
    """
    if not _is_mostly_printable(head + sample):
        return f"it is {_BINARY}; give a text file"
    name = shlex.quote(path)
    if is_text(head) and max(head, default=0) >= 0x80:
        return "what is before it is UTF-8, so this place is damaged: correct it, or copy the file again"
    beyond = [byte for byte in sample if byte >= 0x80]
    # Western text has single accented letters; in other encodings, bytes of this range form sequences.
    if len(beyond) * 4 <= len(sample) and not re.search(rb"[\x80-\xff]{3}", sample):
        encoding = "CP1252" if any(byte < 0xA0 for byte in beyond) else "LATIN1"
        likely = "Windows-1252" if encoding == "CP1252" else "Latin-1"
        return f"it looks like {likely}: iconv -f {encoding} -t UTF-8 {name} > {name}.utf8"
    return (
        "it is text in another encoding (GB18030, Shift-JIS, KOI8-R, ...): find out which, then"
        f" iconv -f ENCODING -t UTF-8 {name} > {name}.utf8"
    )

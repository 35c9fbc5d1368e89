"""Sentences and ends of documents of a corpus, for all formats of its files.

This module defines the meaning of a line, for all readers of a corpus and for cutting a corpus into shards:

    format   a line is            a document ends
    lines    a sentence           at a blank line
    text     a paragraph          at a blank line
    jsonl    a JSON object with   at the end of its line
             a text in a field

Paragraphs are split into sentences by the library sentencex. After that, a sentence is the same as a line of `lines`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator

from absl import logging

from bert_tf2.pretraining.options import CorpusOptions
from bert_tf2.support import files, progress
from bert_tf2.support.errors import UserError, and_more

_LIBRARY = "sentencex"


@dataclasses.dataclass(frozen=True)
class Source:
    """A file of text that is cut into pieces."""

    name: str  # the name that the user gave
    place: str  # the file with its text; differs from `name` if `name` is compressed
    size: int  # the bytes of `place`


@dataclasses.dataclass(frozen=True)
class Piece:
    """Bytes `start` to `stop - 1` of the text of a file, which are whole lines."""

    source: Source
    start: int
    stop: int

    def __str__(self) -> str:
        return self.source.name

    def lines(self) -> Iterator[bytes]:
        """The lines, each with its line end, which is added to the last line of a file if it is missing."""
        with files.open_binary(self.source.place) as stream:
            stream.seek(self.start)
            left = self.stop - self.start
            while left > 0 and (line := stream.readline()):
                left -= len(line)
                if line.endswith(b"\n"):
                    yield line
                elif line.strip(b"\r"):
                    yield line + b"\n"


def read(texts: Iterable[str | Piece], options: CorpusOptions) -> Iterator[str]:
    """Yields the sentences of texts, without white space around them; "" at each end of a document.

    As in the reference, the end of a file does not end a document. (A line of `jsonl` does.)

    Args:
      texts: files of text in UTF-8, which gzip, bzip2 or xz may have compressed, or pieces of files. In errors and
        warnings, the lines of a piece count from its start.
      options: input_format, language and text_field are used.
    """
    decode = _decoder(options)
    for text in texts:
        name = str(text)
        if isinstance(text, Piece):
            lines = files.decode_lines(text.lines(), name)
            yield from decode(_watched(lines, name, options.input_format), name)
            continue
        with files.open_unpacked(text, of_text=True) as stream:
            # Counting the lines of an archive would take as long as reading it.
            total = None if files.is_packed(stream) else files.count_lines(text)
            lines = progress.track(files.decode_lines(stream, text), f"Reading {text}", total, "lines")
            yield from decode(_watched(lines, name, options.input_format), name)


_LONG = 10_000_000


def _watched(lines: Iterable[str], name: str, input_format: str) -> Iterator[str]:
    """Warns of lines that take much memory."""
    for number, line in enumerate(lines, 1):
        if len(line) >= _LONG:
            lost = " as one sentence, most of which no example holds, and" if input_format == "lines" else ""
            logging.warning(
                "%s, line %d: has %s characters, which are read%s with many times as much memory; break it into lines",
                name, number, f"{len(line):,}", lost,
            )  # fmt: skip
        yield line


def _decoder(options: CorpusOptions) -> Callable[[Iterable[str], str], Iterator[str]]:
    """A function (lines of a file, its name) -> sentences and ""."""
    if options.input_format == "lines":
        return lambda lines, name: map(str.strip, lines)
    split = _splitter(options.language)
    if options.input_format == "jsonl":
        return functools.partial(_of_json, split=split, field=options.text_field)
    return lambda lines, name: itertools.chain.from_iterable(
        split(paragraph) if (paragraph := line.strip()) else [""] for line in lines
    )


def ends_document(line: bytes, input_format: str) -> bool:
    """Whether a document ends with this line of a file, which has its line end.

    A line of only CRs without a line end is not a line, because files.read_lines drops it.
    """
    text = line.replace(b"\r", b"")
    return bool(text) and (input_format == "jsonl" or not text.decode("utf-8", "replace").strip())


def splitter_version(options: CorpusOptions) -> str | None:
    """The library that decides where sentences end, with its version; None if every line is a sentence."""
    if options.input_format == "lines":
        return None
    _load()
    return f"{_LIBRARY} {importlib.metadata.version(_LIBRARY)}"


def _load():
    try:
        import sentencex  # an extra
    except ImportError as error:
        raise UserError(
            "--input_format=text and jsonl need the library sentencex, which cannot be imported"
            f" ({' '.join(str(error).split())}): pip install sentencex"
        ) from error
    return sentencex


_WHITE = re.compile(r"\s")


def _splitter(language: str) -> Callable[[str], list[str]]:
    """A function that splits a paragraph into sentences without white space around them."""
    segment = _load().segment

    def split(paragraph: str) -> list[str]:
        # The library fails at some white space outside of ASCII (1.0.32: "J.\u2028K."), so it gets blanks instead. It
        # does not move characters, so the sentences are cut out of the paragraph itself.
        plain = paragraph if paragraph.isascii() else _WHITE.sub(" ", paragraph)
        sentences, start = [], 0
        for length in map(len, segment(language, plain)):
            if sentence := paragraph[start : start + length].strip():
                sentences.append(sentence)
            start += length
        return sentences

    return split


_LINE_ENDS = re.compile(r"[\r\n]+")


def _of_json(lines: Iterable[str], name: str, *, split: Callable[[str], list[str]], field: str) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if content := line.removeprefix("\ufeff").strip():
            for paragraph in _LINE_ENDS.split(_field_of(content, field, f"{name}, line {number}")):
                yield from split(paragraph)
            yield ""


def _field_of(content: str, field: str, where: str) -> str:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        place = f" (column {error.colno}: {error.msg})" if isinstance(error, json.JSONDecodeError) else f" ({error})"
        raise UserError(f"{where}: is not valid JSON{place}; --input_format=jsonl needs one object a line") from error
    if not isinstance(found, dict):
        raise UserError(f"{where}: is no JSON object; --input_format=jsonl needs one a line")
    text = found.get(field)
    if not isinstance(text, str):
        held = " ".join(and_more(sorted(found), 8).split())[:200] or "none"
        raise UserError(f"{where}: has no text in a field {field!r} (its fields: {held}); see --text_field")
    if not files.is_utf8(text):  # half of a pair of \u...: no file of lines can hold it
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text

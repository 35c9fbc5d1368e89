"""A corpus: text files as sentences, and sentences as tokens.

This module defines the meaning of a line, for all readers of a corpus and for cutting a corpus into shards:

    format   a line is            a document ends
    lines    a sentence           at a blank line
    text     a paragraph          at a blank line
    jsonl    a JSON object with   at the end of its line
             a text in a field

Paragraphs are split into sentences by the library sentencex. After that, a sentence is the same as a line of `lines`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping

from absl import logging

from bert_tf2 import tokenization
from bert_tf2.pretraining.options import CorpusOptions, PretrainingDataOptions
from bert_tf2.support import files, progress
from bert_tf2.support.containers import is_utf8
from bert_tf2.support.errors import UserError, and_more

_LIBRARY = "sentencex"
_LONG = 10_000_000  # the characters of a line that get a warning
_WHITE = re.compile(r"\s")
_LINE_ENDS = re.compile(r"[\r\n]+")
_SPACES = re.compile(r"[\t\n\r \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]+")
"""The characters that the tokenizer treats as spaces. They always end a word: no rule looks across spaces."""


# Text files as sentences


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


def sentences(texts: Iterable[str | Piece], options: CorpusOptions) -> Iterator[str]:
    """Yields the sentences of texts, without white space around them; "" at each end of a document.

    As in the reference, the end of a file does not end a document. (A line of `jsonl` does.)

    Args:
      texts: files of text in UTF-8, which gzip, bzip2 or xz may have compressed, or pieces of files. In errors and
        warnings, the lines of a piece count from its start.
      options: input_format, language and text_field are used.
    """
    form, field = options.input_format, options.text_field
    split = None if form == "lines" else _splitter(options.language)
    for text in texts:
        with _lines(text) as lines:
            for number, line in enumerate(lines, 1):
                if len(line) >= _LONG:
                    lost = " as one sentence, most of which no example holds, and" if form == "lines" else ""
                    logging.warning(
                        "%s, line %d: has %s characters, which are read%s with many times as much memory; break it"
                        " into lines", text, number, f"{len(line):,}", lost,
                    )  # fmt: skip
                if form == "lines":
                    yield line.strip()
                elif form == "text":
                    yield from split(content) if (content := line.strip()) else [""]
                elif content := line.removeprefix("\ufeff").strip():
                    for paragraph in _LINE_ENDS.split(_field_of(content, field, f"{text}, line {number}")):
                        yield from split(paragraph)
                    yield ""


@contextlib.contextmanager
def _lines(text: str | Piece) -> Iterator[Iterable[str]]:
    if isinstance(text, Piece):
        yield files.decode_lines(text.lines(), str(text))
        return
    with files.open_unpacked(text, of_text=True) as stream:
        # Counting the lines of an archive would take as long as reading it.
        total = None if files.is_packed(stream) else files.count_lines(text)
        yield progress.track(files.decode_lines(stream, text), f"Reading {text}", total, "lines")


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
    _splitter(options.language)  # raises an error if the library is missing
    return f"{_LIBRARY} {importlib.metadata.version(_LIBRARY)}"


def _splitter(language: str) -> Callable[[str], list[str]]:
    """A function that splits a paragraph into sentences without white space around them."""
    try:
        import sentencex  # an extra
    except ImportError as error:
        raise UserError(
            "--input_format=text and jsonl need the library sentencex, which cannot be imported"
            f" ({' '.join(str(error).split())}): pip install sentencex"
        ) from error

    def split(paragraph: str) -> list[str]:
        # The library fails at some white space outside of ASCII (1.0.32: "J.\u2028K."), so it gets blanks instead. It
        # does not move characters, so the sentences are cut out of the paragraph itself.
        plain = paragraph if paragraph.isascii() else _WHITE.sub(" ", paragraph)
        found, start = [], 0
        for length in map(len, sentencex.segment(language, plain)):
            if sentence := paragraph[start : start + length].strip():
                found.append(sentence)
            start += length
        return found

    return split


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
    if not is_utf8(text):  # half of a pair of \u...: no file of lines can hold it
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


# Sentences as tokens

CONTINUES, BEGINS, NEVER = range(3)
"""The kinds of tokens for masking: a later token of a word, the first token of a word, a token that is never masked."""


def kind_of(token: str) -> int:
    """BEGINS, CONTINUES or NEVER. As in the reference, only the prefix `##` shows that a token continues a word."""
    return NEVER if token in ("[CLS]", "[SEP]") else CONTINUES if token.startswith("##") else BEGINS


class Corpus:
    """Documents as ids, one after the other. An id takes four bytes, independent of the number of examples with it."""

    def __init__(self):
        self.tokens = array("i")  # the ids of all documents, N
        # N bytes, the kind of each token; empty if any token may be masked and there are no whole words. With the word
        # boundaries "spaces", a token continues a word unless it is the first token between two spaces.
        self.kinds: bytes | bytearray = bytearray()
        self.bounds = array("q", [0])  # sentence i is `tokens[bounds[i]:bounds[i + 1]]`
        self.documents: list[tuple[int, int]] = []  # (first, last + 1) sentence of each document

    def add_sentence(self, ids: bytes, kinds: bytes) -> None:
        """Adds a sentence: ids, int32, and their kinds or b"". As in the reference, empty sentences are ignored."""
        if ids:
            self.tokens.frombytes(ids)
            self.kinds += kinds
            self.bounds.append(len(self.tokens))

    def end_document(self) -> tuple[int, int]:
        """Ends the last document, which is ignored if it has no sentences; returns (first, last + 1) sentence."""
        document = self.documents[-1][1] if self.documents else 0, len(self.bounds) - 1
        if document[0] < document[1]:
            self.documents.append(document)
        return document


def read(
    texts: Iterable[str | Piece], tokenizer: tokenization.FullTokenizer, options: PretrainingDataOptions
) -> Corpus:
    """Reads texts (see `sentences`). The text between two spaces is tokenized independently, and its ids are kept.

    Raises NotInVocabularyError if the vocabulary lacks [UNK], and a word needs it.
    """
    found = read_with(texts, options, _ids_of_words(tokenizer).__getitem__, lambda text: text.split(" "))
    if options.do_whole_word_mask:
        set_kinds(found, tokenizer.vocab)
    return found


def read_with(
    texts: Iterable[str | Piece],
    options: PretrainingDataOptions,
    ids_of: Callable[[str], bytes],
    split: Callable[[str], list[str]] = lambda text: [text],
) -> Corpus:
    """Reads texts with any tokenizer.

    Args:
      ids_of: returns the ids of a text, as the bytes of int32.
      split: divides a sentence into the texts that are tokenized; with the word boundaries "spaces", these are words.
    """
    found, at_spaces = Corpus(), options.word_boundaries == "spaces"
    split = _SPACES.split if at_spaces else split
    for text in sentences(texts, options):
        if not text:
            found.end_document()
            continue
        words = [*map(ids_of, split(text))]
        kinds = b""
        if at_spaces:
            kinds = b"".join(b"\1".ljust(len(word) // found.tokens.itemsize, b"\0") for word in words if word)
        found.add_sentence(b"".join(words), kinds)
    found.end_document()
    return found


def set_kinds(corpus: Corpus, vocabulary: Mapping[str, int]) -> None:
    """Sets the kinds of all tokens; words between spaces, which `read_with` has found, stay."""
    import numpy as np  # late: to read sentences alone takes no numpy

    table = np.zeros(max(vocabulary.values(), default=0) + 1, np.uint8)
    for token, number in vocabulary.items():
        table[number] = kind_of(token)
    kinds = table[np.asarray(corpus.tokens)]
    if corpus.kinds:
        kinds = np.where(kinds == NEVER, kinds, np.frombuffer(corpus.kinds, np.uint8))
    corpus.kinds = kinds.tobytes()


@functools.lru_cache(maxsize=1)  # a worker process has one tokenizer and many shards with the same words
def _ids_of_words(tokenizer: tokenization.FullTokenizer) -> tokenization.Remembered:
    def ids_of(word: str) -> bytes:
        return array("i", tokenizer.convert_tokens_to_ids(tokenizer.tokenize(word))).tobytes()

    return tokenization.Remembered(ids_of, 1 << 17)

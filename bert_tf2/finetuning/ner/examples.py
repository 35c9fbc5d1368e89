"""Sentences for token classification (named entities): files of one word per line, in CoNLL columns.

The reference has no such task. Columns are counted from 0 and lines from 1.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from bert_tf2.finetuning.tables import num_columns
from bert_tf2.support import files
from bert_tf2.support.errors import UserError

OUTSIDE = "O"
TAG = re.compile(r"O|[BIES]-\S+")

BLANKS = " \t"  # not str.split's: real corpora have words that are or contain a no-break space or U+2028
_DOCUMENT_MARK = "-DOCSTART-"


@dataclasses.dataclass(frozen=True)
class NerSentence:
    """One sentence of a CoNLL file.

    Attributes:
      words: the words.
      tags: one tag for each word, or None if the file has no tags.
      rows: the line number of each word, for messages and for writing predictions.
      document: the number of `-DOCSTART-` lines before the sentence.
      file: the name of the file, for messages.
    """

    words: list[str]
    tags: list[str] | None = None
    rows: list[int] = dataclasses.field(default_factory=list)
    document: int = 0
    file: str = ""


@dataclasses.dataclass(frozen=True)
class _Row:
    """A line split into columns; a blank line has none."""

    number: int
    columns: list[str]


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The columns that every line of a word must have; `model_row` is the line that defines them."""

    file: str
    model_row: _Row
    word_column: int
    tag_column: int | None

    @property
    def width(self) -> int:
        return len(self.model_row.columns)

    def has_tag(self, row: _Row) -> bool:
        """Whether a line with the right number of columns has a tag, if tags are read."""
        return self.tag_column is None or TAG.fullmatch(row.columns[self.tag_column]) is not None

    def is_comment(self, row: _Row) -> bool:
        """Whether a line before a sentence is a comment; `#` and hashtags may also be words."""
        if len(row.columns) != self.width:
            return row.columns[0].startswith("#")
        return row.columns[0] == "#" and not self.has_tag(row)


def read_conll(
    input_file: str, word_column: int = 0, tag_column: int = -1, has_labels: bool | None = None
) -> list[NerSentence]:
    """Reads a file of one word per line, with columns separated by tabs (if the line has a tab) or spaces.

    A blank line ends a sentence and a `-DOCSTART-` line starts a document; a file without these is one document. A line
    before a sentence is a comment if it starts with `#` and has another number of columns than the words, or if its
    first column is `#` and it does not end with a tag: `# id 7` is a comment, but `#nlp O` and `# O` are words.

    Args:
      input_file: a UTF-8 file, local or remote.
      word_column: the column of the words, from 0; negative numbers count from the end. (Messages count from 1, like
        the flags of run_ner.py.)
      tag_column: the column of the tags, in the same way.
      has_labels: whether to read tags. None reads them unless the file has a single column.

    Raises:
      UserError: the file is missing, is not UTF-8 or has no words, or only their numbers; a line has another number of
        columns than the first word, an empty word, or a tag that is not O or B-, I-, E- or S- with a type; or a column
        does not exist.
    """
    rows = list(itertools.starmap(parse_row, enumerate(files.read_lines(input_file, drop_bom=True), 1)))
    layout = _layout(input_file, rows, word_column, tag_column, has_labels)
    groups = list(_sentence_rows(rows, layout)) if layout else []
    if not groups:  # no lines but comments and marks
        raise UserError(f"{input_file}: there is no word in this file; give one word a line, with its tag behind it")
    sentences = [_sentence(layout, document, group) for document, group in groups]
    if any(len(sentence.words) > 1 for sentence in sentences) and all(map(_is_numbered, sentences)):
        raise UserError(
            f"{input_file}: column {layout.word_column + 1} holds the numbers of the words and not the words; give the"
            f" column of the words, perhaps --word_column={layout.word_column + 2}"
        )
    return sentences


def _is_numbered(sentence: NerSentence) -> bool:
    """Whether the words are consecutive numbers; in CoNLL-U, rows like 2-3 and 2.1 may stand between."""
    words = [word for word in sentence.words if not re.fullmatch(r"\d+[-.]\d+", word)]
    if not words or not all(re.fullmatch(r"\d{1,9}", word) for word in words):
        return False
    return [*map(int, words)] == [*range(int(words[0]), int(words[0]) + len(words))]


def labels_of(sentences: Iterable[NerSentence]) -> list[str]:
    """The labels of a training set: O, even if it does not occur, and the other tags, sorted."""
    tags = {tag for sentence in sentences for tag in sentence.tags or ()}
    return [OUTSIDE, *sorted(tags - {OUTSIDE})]


def parse_row(number: int, line: str) -> _Row:
    line = line.rstrip(BLANKS)
    return _Row(number, line.split("\t") if "\t" in line else [part for part in line.split(" ") if part])


def starts_document(row: _Row) -> bool:
    return bool(row.columns) and row.columns[0].startswith(_DOCUMENT_MARK)


def _layout(
    input_file: str, rows: Sequence[_Row], word_column: int, tag_column: int, has_labels: bool | None
) -> _Layout | None:
    """The columns of the first line that does not start with `#`, or of the first line if all start with it."""
    candidates = [row for row in rows if row.columns and not starts_document(row)]
    if not candidates:
        return None
    row = next((row for row in candidates if not row.columns[0].startswith("#")), candidates[0])
    where, width = f"{input_file}, line {row.number}", len(row.columns)
    if has_labels is None:
        has_labels = width > 1
    for column in (word_column, tag_column) if has_labels else (word_column,):
        if not -width <= column < width:
            raise UserError(
                f"{where}: there is no column {column + 1 if column >= 0 else column} among {num_columns(width)} (the"
                f" first is 1, the last is {width} or -1)"
            )
    word, tag = word_column % width, tag_column % width
    if has_labels and tag == word:
        raise UserError(
            f"{where}: column {word + 1} would be word and tag at once; the file needs a column of tags beside the"
            " words"
        )
    return _Layout(input_file, row, word, tag if has_labels else None)


def _sentence_rows(rows: Iterable[_Row], layout: _Layout) -> Iterator[tuple[int, list[_Row]]]:
    """Yields (number of the document, lines of the words) for each sentence."""
    document = 0
    group: list[_Row] = []
    for row in rows:
        if not row.columns or starts_document(row):
            if group:
                yield document, group
            group = []
            document += starts_document(row)
        elif group or not layout.is_comment(row):
            group.append(row)
    if group:
        yield document, group


def _sentence(layout: _Layout, document: int, rows: Sequence[_Row]) -> NerSentence:
    for row in rows:
        where = f"{layout.file}, line {row.number}"
        if len(row.columns) != layout.width:
            raise UserError(
                f"{where}: {num_columns(len(row.columns))}, but line {layout.model_row.number} has {layout.width};"
                f" give every word the same columns and put a blank line between sentences"
            )
        if not row.columns[layout.word_column]:
            raise UserError(f"{where}: no word in column {layout.word_column + 1}")
        if not layout.has_tag(row):
            raise UserError(
                f"{where}: {row.columns[layout.tag_column]!r} in column {layout.tag_column + 1} is not a tag;"
                f" a tag is O, or B-, I-, E- or S- and a type, for example B-PER"
            )
    return NerSentence(
        words=[row.columns[layout.word_column] for row in rows],
        tags=None if layout.tag_column is None else [row.columns[layout.tag_column] for row in rows],
        rows=[row.number for row in rows],
        document=document,
        file=layout.file,
    )

"""Sentences for token classification (named entities): files of one word per line, in CoNLL columns, read and written.

At the end, entities and their scores. The reference has no such task. Columns are counted from 0 and lines from 1.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from bert_tf2.finetuning.tables import num_columns
from bert_tf2.support import files
from bert_tf2.support.errors import UserError

OUTSIDE = "O"
TAG = re.compile(r"O|[BIES]-\S+")

_BLANKS = " \t"  # not str.split's: real corpora have words that are or contain a no-break space or U+2028
_DOCUMENT_MARK = "-DOCSTART-"


@dataclasses.dataclass(frozen=True)
class NerSentence:
    """One sentence of a CoNLL file."""

    words: list[str]  # the words
    tags: list[str] | None = None  # one tag for each word, or None if the file has no tags
    # the line number of each word, for messages and for writing predictions
    rows: list[int] = dataclasses.field(default_factory=list)
    document: int = 0  # the number of `-DOCSTART-` lines before the sentence
    file: str = ""  # the name of the file, for messages


class _Layout(NamedTuple):
    """The columns that every line of a word must have; `line` is the number of the line that defines them."""

    file: str
    line: int
    width: int
    word: int
    tag: int | None

    def has_tag(self, columns: Sequence[str]) -> bool:
        """Whether a line with the right number of columns has a tag, if tags are read."""
        return self.tag is None or TAG.fullmatch(columns[self.tag]) is not None

    def is_comment(self, columns: Sequence[str]) -> bool:
        """Whether a line before a sentence is a comment; `#` and hashtags may also be words."""
        if len(columns) != self.width:
            return columns[0].startswith("#")
        return columns[0] == "#" and not self.has_tag(columns)

    def check(self, line: int, columns: Sequence[str]) -> None:
        """Raises UserError if a line within a sentence is not a word with its columns."""
        where = f"{self.file}, line {line}"
        if len(columns) != self.width:
            raise UserError(
                f"{where}: {num_columns(len(columns))}, but line {self.line} has {self.width}; give every word the"
                " same columns and put a blank line between sentences"
            )
        if not columns[self.word]:
            raise UserError(f"{where}: no word in column {self.word + 1}")
        if not self.has_tag(columns):
            raise UserError(
                f"{where}: {columns[self.tag]!r} in column {self.tag + 1} is not a tag; a tag is O, or B-, I-, E- or"
                " S- and a type, for example B-PER"
            )


def read_conll(
    input_file: str, word_column: int = 0, tag_column: int = -1, has_labels: bool | None = None
) -> list[NerSentence]:
    """Reads a file of one word per line, with columns separated by tabs (if a line has a tab) or spaces.

    A blank line ends a sentence and a `-DOCSTART-` line starts a document. A line before a sentence is a comment if it
    starts with `#` and has another number of columns than the words, or if its first column is `#` and it does not end
    with a tag: `# id 7` is a comment, but `#nlp O` and `# O` are words.

    Args:
      input_file: a UTF-8 file, local or remote.
      word_column, tag_column: from 0; negative numbers count from the end. (Messages count from 1, like the flags.)
      has_labels: whether to read tags. None reads them unless the file has a single column.
    """
    lines = [*files.read_lines(input_file, drop_bom=True)]
    rows = [*map(_columns, lines)]
    layout = _layout(input_file, rows, word_column, tag_column, has_labels)
    sentences: list[NerSentence] = []
    document = 0
    group: dict[int, list[str]] = {}  # line -> columns, of the words of a sentence
    for line, columns in enumerate([*rows, []] if layout else [], 1):
        if not columns or _starts_document(columns):
            if group:
                words = [row[layout.word] for row in group.values()]
                tags = None if layout.tag is None else [row[layout.tag] for row in group.values()]
                sentences.append(NerSentence(words, tags, [*group], document, input_file))
            group = {}
            document += _starts_document(columns)
        elif group or not layout.is_comment(columns):
            layout.check(line, columns)
            if (tabs := _has_tabs(lines[line - 1])) != _has_tabs(lines[layout.line - 1]):
                ours, theirs = ("tabs", "spaces") if tabs else ("spaces", "tabs")
                raise UserError(
                    f"{input_file}, line {line}: {ours} separate its columns, and {theirs} those of line {layout.line};"
                    " use one of them throughout, or words and tags are mixed up"
                )
            group[line] = columns
    if not sentences:  # no lines but comments and marks
        raise UserError(f"{input_file}: there is no word in this file; give one word a line, with its tag behind it")
    words = [word for sentence in sentences for word in sentence.words]
    if len(words) > 1 and not any(re.search(r"[^\d.-]", word) for word in words):
        raise UserError(
            f"{input_file}: column {layout.word + 1} holds the numbers of the words and not the words; give the column"
            f" of the words, perhaps --word_column={layout.word + 2}"
        )
    return sentences


def tags_of(sentences: Iterable[NerSentence]) -> list[str]:
    """The labels of a training set: O, even if it does not occur, and the other tags, sorted."""
    tags = {tag for sentence in sentences for tag in sentence.tags or ()}
    return [OUTSIDE, *sorted(tags - {OUTSIDE})]


def _has_tabs(line: str) -> bool:
    return "\t" in line.rstrip(_BLANKS)


def _columns(line: str) -> list[str]:
    """The columns of a line; a blank line has none."""
    line = line.rstrip(_BLANKS)
    return line.split("\t") if _has_tabs(line) else [part for part in line.split(" ") if part]


def _starts_document(columns: Sequence[str]) -> bool:
    return bool(columns) and columns[0].startswith(_DOCUMENT_MARK)


def _layout(
    input_file: str, rows: Sequence[list[str]], word_column: int, tag_column: int, has_labels: bool | None
) -> _Layout | None:
    """The columns of the first line that does not start with `#`, or of the first line if all start with it."""
    candidates = [line for line, row in enumerate(rows, 1) if row and not _starts_document(row)]
    if not candidates:
        return None
    line = next((line for line in candidates if not rows[line - 1][0].startswith("#")), candidates[0])
    where, width = f"{input_file}, line {line}", len(rows[line - 1])
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
    return _Layout(input_file, line, width, word, tag if has_labels else None)


def write_predictions(
    input_file: str, output_file: str, sentences: Sequence[NerSentence], tags: Sequence[Sequence[str]]
) -> None:
    """Writes a copy of the input with the predicted tag as an additional last column; complete or not at all.

    A `-DOCSTART-` line with as many columns as the words gets an O, because `conlleval` wants equally many everywhere.

    Args:
      input_file: the file from which `read_conll` read `sentences`; `output_file` may be the same.
      tags: one list for each sentence, with one tag for each word.
    """
    text = files.read_text(input_file)
    lines = text.split("\n")
    read = text.removeprefix("\ufeff").replace("\r", "").split("\n")  # as read_conll reads them
    rows = dict(enumerate(map(_columns, read), 1))
    added: dict[int, str] = {}
    for sentence, predicted in zip(sentences, tags, strict=True):
        added.update(zip(sentence.rows, predicted, strict=True))
    widths = {len(rows[line]) for line in added}
    added.update({n: OUTSIDE for n, row in rows.items() if _starts_document(row) and len(row) in widths})
    written = (_with_column(line, added[n]) if n in added else line for n, line in enumerate(lines, 1))
    files.write_text(output_file, "\n".join(written))


def _with_column(line: str, tag: str) -> str:
    content = line.rstrip(_BLANKS + "\r")
    separator = "\t" if "\t" in content else " "
    return f"{content}{separator}{tag}" + ("\r" if line.endswith("\r") else "")


class Entity(NamedTuple):
    """An entity: its type, and the indexes of its first and its last word."""

    type: str
    first: int
    last: int


@functools.lru_cache(maxsize=1024)
def split_tag(tag: str) -> tuple[str, str]:
    """The letter and the type of a tag: ("B", "PER"), or ("O", ""); a label that is no tag is the type of an I."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    return (tag[0], tag[2:]) if TAG.fullmatch(tag) else ("I", tag)


def begins(tag: str, before: str = OUTSIDE) -> bool:
    """Whether an entity begins at a word with `tag`; `before` is the tag of the word before it.

    That is at a tag other than O if it is B or S, as in IOB2 and IOBES; or the tag before it is O, so that I alone is
    an entity, as in IOB1; or that is E or S, or has another type. Predicted tags are often not well-formed.
    """
    (letter, kind), (letter_before, kind_before) = split_tag(tag), split_tag(before)
    return letter != "O" and (letter in "BS" or letter_before in "OES" or kind != kind_before)


def entities(tags: Iterable[str]) -> list[Entity]:
    """The entities of one sentence, in order; each ends before O, before the next one, or with the sentence."""
    found: list[Entity] = []
    before = OUTSIDE
    for index, tag in enumerate(tags):
        if begins(tag, before):
            found.append(Entity(split_tag(tag)[1], index, index))
        elif tag != OUTSIDE:
            found[-1] = found[-1]._replace(last=index)
        before = tag
    return found


def score(true_tags: Sequence[Sequence[str]], predicted_tags: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Precision, recall and F1 of entities, as `conlleval` counts them (but in fractions of 1), from tags of sentences.

    Returns:
      A dictionary for JSON: `precision`, `recall`, `f1`, `true_entities`, `predicted_entities`, `correct_entities`,
      the same under `types` for each type, and over words `accuracy` and `words`.
    """
    # by type; the names are in the order of the arguments of _measures
    counts = {name: collections.Counter() for name in ("true", "predicted", "correct")}
    words = right = 0
    for true, predicted in zip(true_tags, predicted_tags, strict=True):
        right += sum(a == b for a, b in zip(true, predicted, strict=True))
        words += len(true)
        true_entities, predicted_entities = set(entities(true)), set(entities(predicted))
        counts["true"].update(entity.type for entity in true_entities)
        counts["predicted"].update(entity.type for entity in predicted_entities)
        counts["correct"].update(entity.type for entity in true_entities & predicted_entities)
    types = sorted(counts["true"] | counts["predicted"])
    return {
        **_measures(*(counter.total() for counter in counts.values())),
        "accuracy": _ratio(right, words),
        "words": words,
        "types": {name: _measures(*(counter[name] for counter in counts.values())) for name in types},
    }


def _measures(true: int, predicted: int, correct: int) -> dict[str, float]:
    return {
        "precision": _ratio(correct, predicted),
        "recall": _ratio(correct, true),
        "f1": _ratio(2 * correct, true + predicted),
        "true_entities": true,
        "predicted_entities": predicted,
        "correct_entities": correct,
    }


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0

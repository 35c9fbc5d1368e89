"""Sentences for token classification: files of one word per line, in CoNLL columns, read and written.

Tags are entity tags (O, B-PER, ...) or plain tags, such as parts of speech; see `is_plain`. The end of the module has
entities and scores. The reference has no such task. Columns are counted from 0 and lines from 1.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from bert_tf2.finetuning.tables import num_columns
from bert_tf2.support import files
from bert_tf2.support.errors import UserError

OUTSIDE = "O"
# The letters of other schemes -> the letters of BIOES: BILOU has L(ast) and U(nit), BMES M(iddle), BMEWO W(hole).
_SAME_LETTER = {"L": "E", "U": "S", "M": "I", "W": "S"}
TAG = re.compile(r"O|[BIESLUMW]-\S+")
# B, I and O alone, as in the files of BioBERT; BMES alone, for words of Chinese. Such entities have the type `_`.
_LETTERS, _NO_TYPE = frozenset("BIESLUMW"), "_"
# Entity tags in another spelling: B_PER, b-per, PER-B.
_MISSPELT = re.compile(r"[BIESLUMWbieslumw][-_.:/|]\S*|\S+[-_/][BIESLU]")
_TAKEN = (
    "a tag of an entity is O, or B-, I-, E- or S- (also L-, U-, M- or W-) and a type, for example B-PER; plain tags,"
    " such as NOUN, are taken where no word has a tag of an entity"
)

_BLANKS = " \t"  # not str.split's: real corpora have words that are or contain a no-break space or U+2028
_MARK = "-DOCSTART-"
_CONLLU_COLUMNS = 10  # number, word, lemma, part of speech, ...


@dataclasses.dataclass(frozen=True)
class NerSentence:
    """One sentence of a CoNLL file."""

    words: list[str]  # the words
    tags: list[str] | None = None  # one tag for each word, or None if the file has no tags
    # the line number of each word, for messages and for writing predictions
    rows: list[int] = dataclasses.field(default_factory=list)
    document: int = 0  # the number of `-DOCSTART-` lines before the sentence
    file: str = ""  # the name of the file, for messages


def read_conll(
    input_file: str, word_column: int = 0, tag_column: int = -1, has_labels: bool | None = None
) -> list[NerSentence]:
    """Reads a file of one word per line, with columns separated by tabs (if its first word has a tab) or spaces.

    A blank line ends a sentence and a `-DOCSTART-` line starts a document. A line before a sentence that starts with
    `#` is a comment if it has another number of columns than the words, or if its first column is `#` and no other word
    has its tag: `# id 7` is a comment, but `#nlp O` and `# O` are words. In CoNLL-U, the lines `1-2` (words that are
    written as one) and `8.1` (a word that was left out) are not read.

    Args:
      input_file: a UTF-8 file, local or remote.
      word_column, tag_column: from 0; negative numbers count from the end. (Messages count from 1, like the flags.)
      has_labels: whether to read tags. None reads them unless the file has a single column.

    Raises:
      UserError: names the line that lacks a column, a word or a tag; or the file, if there is no word in the file.
    """
    rows, first = _rows(files.read_lines(input_file, drop_bom=True))
    width = len(rows[first]) if rows else 0
    word, tag = _places(f"{input_file}, line {first + 1}", width, word_column, tag_column, has_labels)
    words = [row for row in rows if len(row) == width and not row[0].startswith(("#", _MARK))]
    sure = set() if tag is None else {row[tag] for row in words}
    sentences: list[NerSentence] = []
    document = 0
    group: dict[int, list[str]] = {}  # line -> columns, of the words of a sentence
    for line, columns in enumerate([*rows, []], 1):
        if not columns or _starts_document(columns):
            if group:
                tags = None if tag is None else [row[tag] for row in group.values()]
                words = [row[word] for row in group.values()]
                sentences.append(NerSentence(words, tags, [*group], document, input_file))
            group = {}
            document += _starts_document(columns)
        else:
            if len(columns) == width:
                is_comment = columns[0] == "#" and tag is not None and columns[tag] not in sure
            else:
                is_comment = columns[0].startswith("#")
            is_range = word > 0 and width == _CONLLU_COLUMNS and re.fullmatch(r"\d+[-.]\d+", columns[0])
            if is_range or (is_comment and not group):
                continue
            if len(columns) != width:
                raise UserError(
                    f"{input_file}, line {line}: {num_columns(len(columns))}, but line {first + 1} has {width}; give"
                    " every word the same columns, all between tabs or all between blanks; blank lines end sentences"
                )
            if not columns[word]:
                raise UserError(f"{input_file}, line {line}: no word in column {word + 1}")
            group[line] = columns
    words = [each for sentence in sentences for each in sentence.words]
    if not words:  # no lines but comments and marks
        raise UserError(f"{input_file}: there is no word in this file; give one word a line, with its tag behind it")
    if len(words) > 1 and not any(re.search(r"[^\d.-]", each) for each in words):
        raise UserError(
            f"{input_file}: column {word + 1} holds the numbers of the words and not the words; give the column of the"
            f" words, perhaps --word_column={word + 2}"
        )
    _check_tags(sentences, tag, sure)
    return sentences


def _rows(lines: Iterable[str]) -> tuple[list[list[str]], int]:
    """The columns of each line ([] for a blank line), and the index of the line whose columns the words must have.

    That line is the first line that does not start with `#`, or the first line if all lines start with `#`.
    """
    lines = [line.rstrip(_BLANKS) for line in lines]
    candidates = [index for index, line in enumerate(lines) if line and not line.startswith(_MARK)]
    if not candidates:
        return [], 0
    first = next((index for index in candidates if not lines[index].startswith("#")), candidates[0])
    if "\t" in lines[first]:
        return [line.split("\t") if line else [] for line in lines], first
    return [re.findall(f"[^{_BLANKS}]+", line) for line in lines], first


def _places(
    where: str, width: int, word_column: int, tag_column: int, has_labels: bool | None
) -> tuple[int, int | None]:
    """The columns of the words and of the tags, from 0; None where tags are not read. `where` is a line of `width`."""
    if not width:
        return 0, None
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
            f"{where}: column {word + 1} would be word and tag at once; the file needs a column of tags behind a"
            " blank or tab"
        )
    return word, tag if has_labels else None


def _check_tags(sentences: Sequence[NerSentence], column: int | None, sure: Collection[str]) -> None:
    """Raises UserError for the first tag that is empty, or is no entity tag although the tags `sure` are not plain."""
    plain = is_plain(sure) or _are_letters(sure)
    tags = {tag for sentence in sentences for tag in sentence.tags or ()}
    bad = {tag for tag in tags if not tag or not (plain or TAG.fullmatch(tag))}
    for sentence in sentences if bad else ():
        for row, tag in zip(sentence.rows, sentence.tags, strict=True):
            if tag in bad:
                raise UserError(f"{sentence.file}, line {row}: {tag!r} in column {column + 1} is not a tag; {_TAKEN}")


def tags_of(sentences: Iterable[NerSentence]) -> list[str]:
    """The labels of a training set: O (for entity tags even if O does not occur), then the other tags, sorted."""
    tags = {tag for sentence in sentences for tag in sentence.tags or ()}
    first = [] if is_plain(tags) and OUTSIDE not in tags else [OUTSIDE]
    return [*first, *sorted(tags - {OUTSIDE})]


def is_plain(tags: Iterable[str]) -> bool:
    """Whether the tags of a file, or the labels of a model, are not entity tags, but parts of speech and the like.

    Misspelt entity tags are not plain, because a model would be trained and scored on a wrong meaning.
    """
    tags = {*tags}
    if _are_letters(tags):
        return False
    others, has_outside = tags - {OUTSIDE}, not tags.isdisjoint("Oo")
    of_entities = {tag for tag in others if TAG.fullmatch(tag)}
    if of_entities:
        return of_entities < others and not has_outside and not any(tag.startswith("B-") for tag in of_entities)
    misspelt = [tag for tag in others if _MISSPELT.fullmatch(tag)]
    return bool(others) and not (misspelt and has_outside) and not any(re.fullmatch(r"[BIES]-", tag) for tag in others)


def _are_letters(tags: Iterable[str]) -> bool:
    """Whether these are tags of entities without a type."""
    return "B" in tags and {*tags} <= _LETTERS | {OUTSIDE}


def _starts_document(columns: Sequence[str]) -> bool:
    return bool(columns) and columns[0].startswith(_MARK)


def write_predictions(
    input_file: str, output_file: str, sentences: Sequence[NerSentence], tags: Sequence[Sequence[str]]
) -> None:
    """Writes a copy of the input with the predicted tag as an additional last column; complete or not at all.

    A `-DOCSTART-` line with as many columns as the words gets an O, because `conlleval` needs the same number of
    columns in all lines.

    Args:
      input_file: the file from which `read_conll` read `sentences`; `output_file` may be the same.
      tags: one list for each sentence, with one tag for each word.
    """
    text = files.read_text(input_file)
    lines = text.split("\n")
    read = text.removeprefix("\ufeff").replace("\r", "").split("\n")  # as read_conll reads them
    rows = dict(enumerate(_rows(read)[0], 1))
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
    """The letter, one of BIOES, and the type of a tag: ("B", "PER"), or ("O", ""); a plain tag is the type of an I."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    tag = f"{tag}-{_NO_TYPE}" if tag in _LETTERS else tag
    return (_SAME_LETTER.get(tag[0], tag[0]), tag[2:]) if TAG.fullmatch(tag) else ("I", tag)


def begins(tag: str, before: str = OUTSIDE) -> bool:
    """Whether an entity begins at a word with `tag`; `before` is the tag of the word before it.

    An entity begins at a tag other than O if
      - the tag is B or S, as in IOB2 and IOBES, or
      - the tag before it is O, so that I alone is an entity, as in IOB1, or
      - the tag before it is E or S, or has another type.
    Predicted tags are often not well-formed.
    """
    (letter, kind), (letter_before, kind_before) = split_tag(tag), split_tag(before)
    return letter != "O" and (letter in "BS" or letter_before in "OES" or kind != kind_before)


def entities(tags: Iterable[str]) -> list[Entity]:
    """The entities of one sentence, in order; an entity ends before O, before the next entity, or with the sentence."""
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
    return _score(true_tags, predicted_tags, ("types", "entities"), lambda tags: {(e.type, e) for e in entities(tags)})


def score_plain(true_tags: Sequence[Sequence[str]], predicted_tags: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Precision, recall and F1 of words by plain tag; the overall scores leave out the tag O.

    Returns:
      The dictionary of `score` with `words` in place of `entities`: `true_words`, ..., and `tags` in place of `types`.
    """

    def words(tags: Sequence[str]) -> set[tuple[str, int]]:
        return {(tag, index) for index, tag in enumerate(tags)}

    return _score(true_tags, predicted_tags, ("tags", "words"), words, outside=OUTSIDE)


def _score(
    true_tags: Sequence[Sequence[str]],
    predicted_tags: Sequence[Sequence[str]],
    names: tuple[str, str],
    found_in: Callable[[Sequence[str]], set[tuple[str, Any]]],
    outside: str | None = None,
) -> dict[str, Any]:
    """See `score`; `found_in`: tags of a sentence -> {(kind, place)}; the overall scores leave out `outside`."""
    each, what = names
    # by kind; the names are in the order of the arguments of _measures
    counts = {name: collections.Counter() for name in ("true", "predicted", "correct")}
    words = right = 0
    for true, predicted in zip(true_tags, predicted_tags, strict=True):
        right += sum(a == b for a, b in zip(true, predicted, strict=True))
        words += len(true)
        of_true, of_predicted = found_in(true), found_in(predicted)
        counts["true"].update(kind for kind, _ in of_true)
        counts["predicted"].update(kind for kind, _ in of_predicted)
        counts["correct"].update(kind for kind, _ in of_true & of_predicted)
    kinds = sorted(counts["true"] | counts["predicted"])
    return {
        **_measures(*(counter.total() - counter[outside] for counter in counts.values()), what),
        "accuracy": _ratio(right, words),
        "words": words,
        each: {name: _measures(*(counter[name] for counter in counts.values()), what) for name in kinds},
    }


def _measures(true: int, predicted: int, correct: int, what: str) -> dict[str, float]:
    return {
        "precision": _ratio(correct, predicted),
        "recall": _ratio(correct, true),
        "f1": _ratio(2 * correct, true + predicted),
        f"true_{what}": true,
        f"predicted_{what}": predicted,
        f"correct_{what}": correct,
    }


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0

"""Token classification (named entities): CoNLL columns in, windows for the model, tags out.

The reference has no such task; the design follows section 5.3 of the paper. The first piece of a word carries the
word's label and gives its prediction, there is no CRF, and the model may see as much of the document as fits.

Letters: C = max_seq_length - 2, the pieces that fit between [CLS] and [SEP]. Words are counted from 0, lines from 1.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from bert_tf2.support import files
from bert_tf2.support.errors import UserError

if TYPE_CHECKING:
    from bert_tf2 import tokenization

IGNORED_LABEL_ID = -1  # positions that neither loss nor scores look at
OUTSIDE = "O"

_DOCUMENT_MARK = "-DOCSTART-"
_BLANKS = " \t"  # not str.split's: a no-break space or U+2028 may be, or be in, a word of real corpora
TAG = re.compile(r"O|[BIES]-\S+")


@dataclasses.dataclass(frozen=True)
class NerSentence:
    """One sentence of a CoNLL file, already cut into words.

    Attributes:
      words: the words.
      tags: one tag for each word, as the file has them; None where the file has none.
      rows: the line of each word in the file, for messages and for writing predictions back.
      document: how many `-DOCSTART-` lines came before it.
      file: where it was read, for messages.
    """

    words: list[str]
    tags: list[str] | None = None
    rows: list[int] = dataclasses.field(default_factory=list)
    document: int = 0
    file: str = ""


@dataclasses.dataclass(frozen=True)
class InputFeatures:
    """One window over a sentence; `as_record` gives it the shape the model takes.

    Attributes:
      input_ids: [CLS], the pieces, [SEP]; not padded.
      label_ids: as long as `input_ids`; IGNORED_LABEL_ID everywhere but at the positions of `answers`.
      max_seq_length: the length `as_record` pads to.
      sentence: the index of the sentence that the window belongs to.
      answers: (word of that sentence, position of its first piece in `input_ids`) for the words whose label and whose
        prediction belong to this window. Over all windows each word is there exactly once.
    """

    input_ids: list[int]
    label_ids: list[int]
    max_seq_length: int
    sentence: int
    answers: list[tuple[int, int]]


# Reading


@dataclasses.dataclass(frozen=True)
class _Row:
    """A line cut into columns; none where the line is blank."""

    number: int
    columns: list[str]


@dataclasses.dataclass(frozen=True)
class _Layout:
    """What every word's line of a file must look like; `model_row` is the line this was learnt from."""

    file: str
    model_row: _Row
    word_column: int
    tag_column: int | None

    @property
    def width(self) -> int:
        return len(self.model_row.columns)

    def has_tag(self, row: _Row) -> bool:
        """Whether a line of the right width has a tag where one is needed."""
        return self.tag_column is None or TAG.fullmatch(row.columns[self.tag_column]) is not None

    def is_comment(self, row: _Row) -> bool:
        """Whether a line before a sentence is a comment; the sign itself and hashtags may be words too."""
        if len(row.columns) != self.width:
            return row.columns[0].startswith("#")
        return row.columns[0] == "#" and not self.has_tag(row)


def read_conll(
    input_file: str, word_column: int = 0, tag_column: int = -1, has_labels: bool | None = None
) -> list[NerSentence]:
    """Reads a file of one word a line, columns separated by tabs (where a line has one) or else by spaces.

    Blank lines end sentences and `-DOCSTART-` lines begin documents; a file without the latter is one document. A line
    before a sentence is a comment when it begins with `#` and has another number of columns than the words, or is `#`
    and something that ends in no tag: `# id 7` is one, but `#nlp O` and `# O` are words.

    Args:
      input_file: a UTF-8 file, local or remote.
      word_column: the words' column, from 0; negative numbers count from the end. (Messages count from 1, as the
        flags of run_ner.py do.)
      tag_column: the tags' column, in the same way.
      has_labels: whether there are tags to read; None reads them unless the file has a single column.

    Raises:
      UserError: the file is missing, is not UTF-8 or has no words; a line has another number of columns than the first,
        an empty word, or a tag that is not O or B-, I-, E- or S- and a type; a column asked for is not there.
    """
    rows = list(_rows(input_file))
    layout = _layout(input_file, rows, word_column, tag_column, has_labels)
    sentences = [_sentence(layout, document, group) for document, group in _sentence_rows(rows, layout)]
    if not sentences:  # comments only
        raise _no_words(input_file)
    return sentences


def labels_of(sentences: Iterable[NerSentence]) -> list[str]:
    """The label list of a training set: O, whether used or not, then the other tags in sorted order."""
    tags = {tag for sentence in sentences for tag in sentence.tags or ()}
    return [OUTSIDE, *sorted(tags - {OUTSIDE})]


def _rows(input_file: str) -> Iterator[_Row]:
    return itertools.starmap(_row, enumerate(files.read_lines(input_file, drop_bom=True), 1))


def _row(number: int, line: str) -> _Row:
    line = line.rstrip(_BLANKS)
    return _Row(number, line.split("\t") if "\t" in line else [part for part in line.split(" ") if part])


def _starts_document(row: _Row) -> bool:
    return bool(row.columns) and row.columns[0].startswith(_DOCUMENT_MARK)


def _layout(
    input_file: str, rows: Sequence[_Row], word_column: int, tag_column: int, has_labels: bool | None
) -> _Layout:
    """Takes the shape from the first line that must be a word's; from the first that may be, where none must."""
    candidates = [row for row in rows if row.columns and not _starts_document(row)]
    if not candidates:
        raise _no_words(input_file)
    row = next((row for row in candidates if not row.columns[0].startswith("#")), candidates[0])
    word = _column_index(input_file, row, word_column)
    if has_labels is False or (has_labels is None and len(row.columns) == 1):
        return _Layout(input_file, row, word, None)
    tag = _column_index(input_file, row, tag_column)
    if tag == word:
        raise UserError(
            f"{input_file}, line {row.number}: column {word + 1} would be word and tag at once;"
            f" the file needs a column of tags beside the words"
        )
    return _Layout(input_file, row, word, tag)


def _no_words(input_file: str) -> UserError:
    return UserError(f"{input_file}: there is no word in this file; give one word a line, with its tag behind it")


def _column_index(input_file: str, row: _Row, column: int) -> int:
    width = len(row.columns)
    if not -width <= column < width:
        raise UserError(
            f"{input_file}, line {row.number}: there is no column {column + 1 if column >= 0 else column} among"
            f" {_counted(width)} (the first is 1, the last is {width} or -1)"
        )
    return column % width


def _counted(width: int) -> str:
    return "1 column" if width == 1 else f"{width} columns"


def _sentence_rows(rows: Iterable[_Row], layout: _Layout) -> Iterator[tuple[int, list[_Row]]]:
    """Yields (document, lines of the words) for each sentence."""
    document = 0
    group: list[_Row] = []
    for row in rows:
        if not row.columns or _starts_document(row):
            if group:
                yield document, group
            group = []
            document += _starts_document(row)
        elif group or not layout.is_comment(row):
            group.append(row)
    if group:
        yield document, group


def _sentence(layout: _Layout, document: int, rows: Sequence[_Row]) -> NerSentence:
    for row in rows:
        _check_row(layout, row)
    return NerSentence(
        words=[row.columns[layout.word_column] for row in rows],
        tags=None if layout.tag_column is None else [row.columns[layout.tag_column] for row in rows],
        rows=[row.number for row in rows],
        document=document,
        file=layout.file,
    )


def _check_row(layout: _Layout, row: _Row) -> None:
    where = f"{layout.file}, line {row.number}"
    if len(row.columns) != layout.width:
        raise UserError(
            f"{where}: {_counted(len(row.columns))}, but line {layout.model_row.number} has {layout.width};"
            f" give every word the same columns and put a blank line between sentences"
        )
    if not row.columns[layout.word_column]:
        raise UserError(f"{where}: no word in column {layout.word_column + 1}")
    if not layout.has_tag(row):
        raise UserError(
            f"{where}: {row.columns[layout.tag_column]!r} in column {layout.tag_column + 1} is not a tag;"
            f" a tag is O, or B-, I-, E- or S- and a type, for example B-PER"
        )


# Features


def convert_sentences_to_features(
    sentences: Sequence[NerSentence],
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
    doc_stride: int | None = None,
    document_context: bool = False,
) -> list[InputFeatures]:
    """Makes the windows of all sentences, in their order.

    A sentence of at most C pieces is one window. A longer one gets windows that overlap and never cut a word; each word
    belongs to the one in which it has the most context on its poorer side, and carries its label only there: it is
    learnt once, in the very surroundings in which it is predicted. A single word of more than C pieces keeps its
    first C. A word without any piece (a control character, say) becomes [UNK], since it too must get a tag.

    Args:
      sentences: what `read_conll` gives.
      label_list: the labels of the training set, by id.
      max_seq_length: pieces in a window, with [CLS] and [SEP].
      tokenizer: cuts a word into pieces.
      doc_stride: pieces by which a window starts after the one before it; half of C where None, which leaves every
        word about a quarter of C on both sides (less only where the text itself ends, or beside very long words).
      document_context: fill windows with the words around the sentence in its document, half on each side or more on
        one where the other has no more ("the maximal document context provided by the data"); they carry no labels.
        A sentence that needs several windows gets as many neighbouring pieces as two windows share.

    Raises:
      UserError: a tag is not in `label_list`; there is no room for words; doc_stride would leave words out.
    """
    capacity = max_seq_length - 2
    stride = _checked_stride(capacity, max(1, capacity // 2) if doc_stride is None else doc_stride)
    label_map = {label: index for index, label in enumerate(label_list)}
    features: list[InputFeatures] = []
    for document in _documents(sentences):
        text = _Text.of([word for index in document for word in sentences[index].words], tokenizer, capacity)
        start = 0
        for index in document:
            own = range(start, start + len(sentences[index].words))
            reach = range(len(text.pieces)) if document_context else own
            labels = _label_ids(sentences[index], label_map)
            for window, answered in _windows(text.offsets, own, reach, capacity, stride):
                answers = [(word - start, text.position(word, window)) for word in answered]
                features.append(_features(text.ids(window), labels, max_seq_length, index, answers))
            start = own.stop
    return features


def as_record(features: InputFeatures) -> dict[str, list[int]]:
    """The row of a `records.TOKEN_TAGGING` record: four lists of max_seq_length numbers."""
    padding = features.max_seq_length - len(features.input_ids)
    return {
        "input_ids": features.input_ids + [0] * padding,
        "input_mask": [1] * len(features.input_ids) + [0] * padding,
        "segment_ids": [0] * features.max_seq_length,
        "label_ids": features.label_ids + [IGNORED_LABEL_ID] * padding,
    }


def assemble_tags(
    sentences: Sequence[NerSentence],
    features: Sequence[InputFeatures],
    predicted_label_ids: Iterable[Sequence[int]],
    label_list: Sequence[str],
) -> list[list[str]]:
    """Puts the windows' predictions together again: one tag for each word, in the order of the file.

    Args:
      sentences: the sentences that `features` were made from.
      features: all of their windows.
      predicted_label_ids: for each window, in the same order, the best label of each position ([max_seq_length], or
        as long as the window's `input_ids`).
      label_list: the labels, by id.

    Raises:
      ValueError: not as many predictions as windows, or windows of other sentences.
    """
    tags: list[dict[int, str]] = [{} for _ in sentences]
    for window, label_ids in zip(features, predicted_label_ids, strict=True):
        for word, position in window.answers:
            tags[window.sentence][word] = label_list[int(label_ids[position])]
    for index, (sentence, found) in enumerate(zip(sentences, tags, strict=True)):
        if len(found) != len(sentence.words):
            raise ValueError(f"sentence {index}: {len(sentence.words)} words, but the windows answer for {len(found)}")
    return [[found[word] for word in range(len(found))] for found in tags]


@dataclasses.dataclass(frozen=True)
class _Text:
    """The words of a document as piece ids; `offsets[w]` counts the pieces before word w, and strictly rises."""

    pieces: list[list[int]]
    offsets: list[int]
    first_id: int
    last_id: int

    @classmethod
    def of(cls, words: Iterable[str], tokenizer: tokenization.FullTokenizer, capacity: int) -> _Text:
        convert = tokenizer.convert_tokens_to_ids
        pieces = [convert((tokenizer.tokenize(word) or ["[UNK]"])[:capacity]) for word in words]
        offsets = list(itertools.accumulate(map(len, pieces), initial=0))
        return cls(pieces, offsets, *convert(["[CLS]", "[SEP]"]))

    def ids(self, window: range) -> list[int]:
        return [self.first_id, *itertools.chain.from_iterable(self.pieces[window.start : window.stop]), self.last_id]

    def position(self, word: int, window: range) -> int:
        """Where the word's first piece stands in `ids(window)`."""
        return 1 + self.offsets[word] - self.offsets[window.start]


def _checked_stride(capacity: int, stride: int) -> int:
    if capacity < 1:
        raise UserError(f"max_seq_length is {capacity + 2}; it must be at least 3 to hold [CLS], one piece and [SEP]")
    if not 1 <= stride <= capacity:
        raise UserError(
            f"doc_stride is {stride}; it must be between 1 and {capacity}, the pieces that fit a window of"
            f" max_seq_length {capacity + 2}, or words between two windows would be left out"
        )
    return stride


def _documents(sentences: Sequence[NerSentence]) -> Iterator[list[int]]:
    """Yields the sentence indexes of each document."""
    keys = ((sentence.file, sentence.document) for sentence in sentences)
    for _, group in itertools.groupby(enumerate(keys), key=lambda pair: pair[1]):
        yield [index for index, _ in group]


def _label_ids(sentence: NerSentence, label_map: Mapping[str, int]) -> list[int]:
    """The label id of each word; IGNORED_LABEL_ID for all where the sentence has no tags."""
    if sentence.tags is None:
        return [IGNORED_LABEL_ID] * len(sentence.words)
    for number, tag in enumerate(sentence.tags):
        if tag not in label_map:
            where = f"{sentence.file}, line {sentence.rows[number]}" if sentence.rows else f"word {number}"
            raise UserError(
                f"{where}: tag {tag!r} was not seen in training (known: {', '.join(label_map)});"
                f" correct it, or train on data that has it"
            )
    return [label_map[tag] for tag in sentence.tags]


def _features(
    input_ids: list[int], labels: Sequence[int], max_seq_length: int, sentence: int, answers: list[tuple[int, int]]
) -> InputFeatures:
    label_ids = [IGNORED_LABEL_ID] * len(input_ids)
    for word, position in answers:
        label_ids[position] = labels[word]
    return InputFeatures(input_ids, label_ids, max_seq_length, sentence, answers)


def _windows(
    offsets: Sequence[int], own: range, reach: range, capacity: int, stride: int
) -> list[tuple[range, list[int]]]:
    """Covers a sentence with windows.

    Args:
      offsets: pieces before each word, and after the last.
      own: the words of the sentence.
      reach: the words that windows may show, `own` among them.
      capacity: C.
      stride: pieces from the start of a window to that of the next.

    Returns:
      (words of a window, those of `own` that it answers for); a window that answers for none is left out.
    """
    length = offsets[own.stop] - offsets[own.start]
    spare = capacity - length if length <= capacity else capacity - stride
    windows = list(_slide(offsets, _widen(offsets, own, reach, spare), capacity, stride))
    answered: list[list[int]] = [[] for _ in windows]
    for word, window in sorted(_most_context(offsets, own, windows).items()):
        answered[window].append(word)
    return [(window, words) for window, words in zip(windows, answered, strict=True) if words]


def _widen(offsets: Sequence[int], own: range, reach: range, spare: int) -> range:
    """Adds whole words of `reach` around `own`, `spare` pieces at the most."""
    left = max(spare // 2, spare - (offsets[reach.stop] - offsets[own.stop]))
    start = bisect.bisect_left(offsets, offsets[own.start] - left, reach.start, own.start)
    right = spare - (offsets[own.start] - offsets[start])
    stop = bisect.bisect_right(offsets, offsets[own.stop] + right, own.stop, reach.stop + 1) - 1
    return range(start, stop)


def _slide(offsets: Sequence[int], words: range, capacity: int, stride: int) -> Iterator[range]:
    """Yields overlapping windows of whole words, each as full as they allow; the last reaches back to be full too."""
    start = words.start
    while True:
        stop = bisect.bisect_right(offsets, offsets[start] + capacity, start, words.stop + 1) - 1
        if stop == words.stop:
            yield range(bisect.bisect_left(offsets, offsets[stop] - capacity, words.start, start), stop)
            return
        yield range(start, stop)
        # at most `stop`: beside a long word the stride may point past a window that could not take the word in
        start = bisect.bisect_left(offsets, offsets[start] + stride, start + 1, stop)


def _most_context(offsets: Sequence[int], own: range, windows: Sequence[range]) -> dict[int, int]:
    """Word -> the window that shows most on the word's poorer side, then most in all, then the first.

    The reference's SQuAD code decides by the same idea which window an answer may come from.
    """
    best: dict[int, tuple[tuple[int, int], int]] = {}
    for number, window in enumerate(windows):
        for word in range(max(own.start, window.start), min(own.stop, window.stop)):
            left = offsets[word] - offsets[window.start]
            right = offsets[window.stop] - offsets[word + 1]
            context = (min(left, right), left + right)
            if word not in best or context > best[word][0]:
                best[word] = (context, number)
    return {word: number for word, (_, number) in best.items()}


# Answers


def write_predictions(
    input_file: str, output_file: str, sentences: Sequence[NerSentence], tags: Sequence[Sequence[str]]
) -> None:
    """Writes the input again with the predicted tag as one more column, complete or not at all.

    Comments, blank lines, line ends and the columns' separators stay. A `-DOCSTART-` line with the words' columns gets
    an O, so that every line of columns is equally wide, which `conlleval` insists on.

    Args:
      input_file: the file that `sentences` were read from.
      output_file: may be the same file.
      sentences: what `read_conll` gave for `input_file`.
      tags: one list for each sentence, one tag for each word.

    Raises:
      UserError: `input_file` is no longer there, or has other words now; the output cannot be written.
      ValueError: `tags` has another shape than `sentences`.
    """
    text = files.read_text(input_file)
    lines = text.split("\n")
    read = text.removeprefix("\ufeff").replace("\r", "").split("\n")  # as read_conll sees them
    rows = list(itertools.starmap(_row, enumerate(read, 1)))
    added: dict[int, str] = {}
    for sentence, predicted in zip(sentences, tags, strict=True):
        for word, number, tag in zip(sentence.words, sentence.rows, predicted, strict=True):
            if number > len(rows) or word not in rows[number - 1].columns:
                raise UserError(f"{input_file}, line {number}: the word {word!r} is gone; read the file again")
            added[number] = tag
    widths = {len(rows[number - 1].columns) for number in added}
    added.update({row.number: OUTSIDE for row in rows if _starts_document(row) and len(row.columns) in widths})
    written = (_with_column(line, added[n]) if n in added else line for n, line in enumerate(lines, 1))
    files.write_text(output_file, "\n".join(written))


def _with_column(line: str, tag: str) -> str:
    content = line.rstrip(_BLANKS + "\r")
    separator = "\t" if "\t" in content else " "
    return f"{content}{separator}{tag}" + ("\r" if line.endswith("\r") else "")

"""Features for token classification: sentences as windows for the model.

The design follows section 5.3 of the paper. The first piece of a word carries the label of the word and gives its
prediction, there is no CRF, and the model may see as much of the document as fits.

Letters: C = max_seq_length - 2, the pieces that fit between [CLS] and [SEP]. Words are counted from 0.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from bert_tf2.finetuning.ner.examples import NerSentence
from bert_tf2.support.errors import UserError

if TYPE_CHECKING:
    from bert_tf2 import tokenization

IGNORED_LABEL_ID = -1  # the label of positions that the loss and the scores ignore


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

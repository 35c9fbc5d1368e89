"""Features for token classification: turns sentences into windows for the model, and its answers into tags of words.

The design follows section 5.3 of the paper. The first piece of a word carries the label of the word and gives its
prediction, there is no CRF, and the model may see as much of the document as fits.

Letters: C = max_seq_length - 2, the pieces that fit between [CLS] and [SEP]. Words are counted from 0.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

from bert_tf2 import tokenization
from bert_tf2.finetuning.ner.examples import NerSentence
from bert_tf2.support.errors import UserError

IGNORED_LABEL_ID = -1  # the label of positions that the loss and the scores ignore


@dataclasses.dataclass(frozen=True)
class InputFeatures:
    """One window of a sentence; `as_record` pads it for the model."""

    input_ids: list[int]  # [CLS], the pieces, [SEP]; not padded
    label_ids: list[int]  # as long as `input_ids`; IGNORED_LABEL_ID except at the positions of `answers`
    max_seq_length: int  # the length to which `as_record` pads
    sentence: int  # the index of the sentence of the window
    # (word of the sentence, position of its first piece in `input_ids`) for the words that are labeled and predicted in
    # this window. Each word of a sentence is in exactly one window
    answers: list[tuple[int, int]]


def convert_sentences_to_features(
    sentences: Sequence[NerSentence],
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
    doc_stride: int | None = None,
    document_context: bool = False,
) -> list[InputFeatures]:
    """Creates the windows of all sentences, in order.

    A sentence of more than C pieces has overlapping windows of whole words. Each word is labeled only in the window
    where it has the most context on its shorter side, so that it is trained once, in the same context in which it is
    predicted. A word of more than C pieces keeps its first C pieces; a word without pieces becomes [UNK].

    `doc_stride` is the number of pieces between the starts of two windows, half of C if None. `document_context` fills
    windows with the words around the sentence in its document, without labels (the paper's "maximal document context").
    """
    capacity = max_seq_length - 2
    stride = max(1, capacity // 2) if doc_stride is None else doc_stride
    if not 1 <= stride <= capacity:
        raise UserError(
            f"doc_stride (in Python, stride) is {stride}; it must be 1 to {capacity}, the pieces that fit a window of"
            f" max_seq_length {max_seq_length}, or words between two windows would be left out"
        )
    features: list[InputFeatures] = []
    documents = [(sentence.file, sentence.document) for sentence in sentences]
    for _, group in itertools.groupby(range(len(sentences)), key=documents.__getitem__):
        document = list(group)
        text = _Text([word for index in document for word in sentences[index].words], tokenizer, capacity)
        start = 0
        for index in document:
            own = range(start, start + len(sentences[index].words))
            reach = range(len(text.pieces)) if document_context else own
            labels = tag_ids(sentences[index], label_list)
            for window, answered in _windows(text.offsets, own, reach, capacity, stride):
                answers = [(word - start, text.position(word, window)) for word in answered]
                input_ids = text.ids(window)
                label_ids = [IGNORED_LABEL_ID] * len(input_ids)
                for word, position in answers:
                    label_ids[position] = labels[word]
                features.append(InputFeatures(input_ids, label_ids, max_seq_length, index, answers))
            start = own.stop
    return features


def as_record(features: InputFeatures) -> dict[str, list[int]]:
    """A row for `records.TOKEN_TAGGING`: four lists of max_seq_length numbers."""
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
    """One tag for each word; `predicted_label_ids` has for each window of `features` the label id of each position."""
    tags: list[dict[int, str]] = [{} for _ in sentences]
    for window, label_ids in zip(features, predicted_label_ids, strict=True):
        for word, position in window.answers:
            tags[window.sentence][word] = label_list[int(label_ids[position])]
    return [[found[word] for word in range(len(found))] for found in tags]


class _Text:
    """The words of a document as ids of pieces; `offsets[w]` is the number of pieces before word w."""

    def __init__(self, words: Iterable[str], tokenizer: tokenization.FullTokenizer, capacity: int):
        convert = tokenizer.convert_tokens_to_ids
        self.pieces = [convert((tokenizer.tokenize(word) or ["[UNK]"])[:capacity]) for word in words]
        self.offsets = list(itertools.accumulate(map(len, self.pieces), initial=0))
        self._first_id, self._last_id = convert(["[CLS]", "[SEP]"])

    def ids(self, window: range) -> list[int]:
        return [self._first_id, *itertools.chain(*self.pieces[window.start : window.stop]), self._last_id]

    def position(self, word: int, window: range) -> int:
        return 1 + self.offsets[word] - self.offsets[window.start]


def tag_ids(sentence: NerSentence, label_list: Sequence[str]) -> list[int]:
    """The label id of each word; IGNORED_LABEL_ID for all words if the sentence has no tags."""
    if sentence.tags is None:
        return [IGNORED_LABEL_ID] * len(sentence.words)
    for number, tag in enumerate(sentence.tags):
        if tag not in label_list:
            where = f"{sentence.file}, line {sentence.rows[number]}" if sentence.rows else f"word {number}"
            raise UserError(
                f"{where}: tag {tag!r} was not seen in training (known: {', '.join(label_list)});"
                f" correct it, or train on data that has it"
            )
    return [*map(label_list.index, sentence.tags)]


def _windows(
    offsets: Sequence[int], own: range, reach: range, capacity: int, stride: int
) -> list[tuple[range, list[int]]]:
    """(the words of the window, the words that it labels) for each window that labels a word.

    `own`: the words of the sentence; `reach`: the words that windows may contain; `offsets`: `offsets` of `_Text`.
    """
    length = offsets[own.stop] - offsets[own.start]
    spare = capacity - length if length <= capacity else capacity - stride
    windows = list(_slide(offsets, _widen(offsets, own, reach, spare), capacity, stride))
    best: dict[int, tuple[tuple[int, int], int]] = {}  # word -> its context in the best window, and that window
    for number, window in enumerate(windows):
        for word in range(max(own.start, window.start), min(own.stop, window.stop)):
            left = offsets[word] - offsets[window.start]
            right = offsets[window.stop] - offsets[word + 1]
            context = (min(left, right), left + right)  # the shorter side decides, as in the reference for SQuAD
            if word not in best or context > best[word][0]:
                best[word] = (context, number)
    answered: list[list[int]] = [[] for _ in windows]
    for word, (_, number) in sorted(best.items()):
        answered[number].append(word)
    return [(window, words) for window, words in zip(windows, answered, strict=True) if words]


def _widen(offsets: Sequence[int], own: range, reach: range, spare: int) -> range:
    """Returns `own` and whole words of `reach` around it, which have at most `spare` pieces."""
    left = max(spare // 2, spare - (offsets[reach.stop] - offsets[own.stop]))
    start = bisect.bisect_left(offsets, offsets[own.start] - left, reach.start, own.start)
    right = spare - (offsets[own.start] - offsets[start])
    stop = bisect.bisect_right(offsets, offsets[own.stop] + right, own.stop, reach.stop + 1) - 1
    return range(start, stop)


def _slide(offsets: Sequence[int], words: range, capacity: int, stride: int) -> Iterator[range]:
    """Yields overlapping windows of whole words, as long as possible; the last window starts earlier to be full."""
    start = words.start
    while True:
        stop = bisect.bisect_right(offsets, offsets[start] + capacity, start, words.stop + 1) - 1
        if stop == words.stop:
            yield range(bisect.bisect_left(offsets, offsets[stop] - capacity, words.start, start), stop)
            return
        yield range(start, stop)
        # At most `stop`, because the stride may point past the window next to a long word that did not fit.
        start = bisect.bisect_left(offsets, offsets[start] + stride, start + 1, stop)

"""Documents of plain text as tokens.

A document is one list of tokens with the ends of its sentences, and a segment of it is a pair of positions. Examples
refer to segments instead of copying tokens, so that a corpus that is used `dupe_factor` times is in memory once.
"""

from __future__ import annotations

import bisect
import dataclasses
import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from bert_tf2.pretraining import sentences, whole_sentences
from bert_tf2.pretraining.options import PretrainingDataOptions

SPACES = re.compile(r"[\t\n\r \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]+")
"""What the tokenizer takes for spaces, which always end a word: no rule of it looks across them."""


class Tokenizer(Protocol):
    """The part of `tokenization.FullTokenizer` that is used here."""

    vocab: dict[str, int]

    def tokenize(self, text: str) -> list[str]: ...

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]: ...


class Document:
    """The tokens of a document in one list, and the position at which each sentence ends.

    Attributes:
      tokens: the tokens.
      continues: for each token 1 if it continues a word, otherwise 0; None if its beginning, `##`, tells this.
    """

    __slots__ = ("_bounds", "continues", "tokens")

    def __init__(self, sentences: Iterable[Sequence[str]] = ()):
        self.tokens: list[str] = []
        self.continues: bytearray | None = None
        self._bounds = array("q", [0])  # sentence i is tokens[_bounds[i]:_bounds[i + 1]]
        for sentence in sentences:
            self.append(sentence)

    def append(self, sentence: Sequence[str]) -> None:
        """Adds a sentence. A sentence without tokens is ignored."""
        if sentence:
            # Equal tokens share one str object, which takes 8 bytes per token instead of about 60.
            self.tokens.extend(map(sys.intern, sentence))
            self._bounds.append(len(self.tokens))

    def append_words(self, words: Iterable[Sequence[str]]) -> None:
        """Adds a sentence of words, each of which is its tokens. All sentences of a document are added in this way."""
        if self.continues is None:
            self.continues = bytearray()
        sentence: list[str] = []
        for word in words:
            sentence += word
            if word:
                self.continues += b"\0" + b"\1" * (len(word) - 1)
        self.append(sentence)

    def __len__(self) -> int:
        """The number of sentences."""
        return len(self._bounds) - 1

    def stop_for(self, first: int, num_tokens: int) -> int:
        """The smallest `stop` such that sentences `first` to `stop - 1` have `num_tokens` tokens, or `len(self)`."""
        return min(len(self), bisect.bisect_left(self._bounds, self._bounds[first] + num_tokens, first + 1))

    def segment(self, first: int, stop: int) -> Segment:
        """Sentences `first` to `stop - 1`."""
        return Segment(self, self._bounds[first], self._bounds[stop])

    def spans(self, num_tokens: int) -> Iterator[Segment]:
        """Yields the whole document in segments; see whole_sentences.spans."""
        for start, stop in whole_sentences.spans(self._bounds, 0, len(self), num_tokens):
            yield Segment(self, start, stop)


@dataclasses.dataclass
class Segment:
    """Consecutive tokens of a document: `document.tokens[start:stop]`."""

    __slots__ = ("document", "start", "stop")

    document: Document
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def tokens(self) -> list[str]:
        return self.document.tokens[self.start : self.stop]

    @property
    def continues(self) -> bytes | None:
        """Like Document.continues; the first token of a segment begins a word, even if the segment was cut there."""
        known = self.document.continues
        return None if known is None else b"\0" + known[self.start + 1 : self.stop]

    def pop(self, index: int = -1) -> None:
        """Removes the last token, or the first one if `index` is 0."""
        if index:
            self.stop -= 1
        else:
            self.start += 1


def read_documents(
    input_files: Iterable[str], tokenizer: Tokenizer, options: PretrainingDataOptions | None = None
) -> Iterator[Document]:
    """Yields the documents of text files.

    As in the reference, the end of a file does not end a document, and a line without tokens (for example a control
    character) is neither a sentence nor a blank line.

    Args:
      input_files: text files.
      tokenizer: makes the tokens of a sentence.
      options: the format of the files; a sentence a line and a blank line between documents if not given.

    Raises:
      UserError: see `sentences.read`.
    """
    document = Document()
    options = options or PretrainingDataOptions()
    for text in sentences.read(input_files, options):
        if text:
            if options.word_boundaries == "spaces":
                document.append_words(map(tokenizer.tokenize, SPACES.split(text)))
            else:
                document.append(tokenizer.tokenize(text))
        elif document:
            yield document
            document = Document()
    if document:
        yield document

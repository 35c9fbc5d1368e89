"""A corpus as tokens. An id takes four bytes, independent of the number of examples that refer to it."""

from __future__ import annotations

import functools
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from bert_tf2 import tokenization
from bert_tf2.pretraining import masking, sentences
from bert_tf2.pretraining.options import PretrainingDataOptions

SPACES = re.compile(r"[\t\n\r \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]+")
"""The characters that the tokenizer treats as spaces. They always end a word: no rule looks across spaces."""


class Tokenizer(Protocol):
    """The used part of `tokenization.FullTokenizer`."""

    vocab: dict[str, int]

    def tokenize(self, text: str) -> list[str]: ...

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]: ...


class Corpus:
    """The documents of text files, one after the other."""

    def __init__(self, tokens: array | list[str]):
        self.tokens: array | list[str] | np.ndarray = tokens  # the tokens of all documents, N ids (int32) or strings
        # N bytes, the kind of each token for masking, see `masking.BEGINS`; empty for ids without whole words. With the
        # word boundaries "spaces", a token continues a word unless it is the first token between two spaces
        self.kinds: bytes | bytearray = bytearray()
        self.bounds = array("q", [0])  # sentence i is `tokens[bounds[i]:bounds[i + 1]]`
        self.documents: list[tuple[int, int]] = []  # (first, last + 1) sentence of each document
        self._extend = tokens.frombytes if isinstance(tokens, array) else tokens.extend

    def add_sentence(self, tokens: bytes | Sequence[str], kinds: bytes = b"") -> None:
        """Adds a sentence of strings, or of the bytes of ids. As in the reference, empty sentences are ignored."""
        if tokens:
            self._extend(tokens)
            self.kinds += kinds
            self.bounds.append(len(self.tokens))

    def end_document(self) -> tuple[int, int]:
        """Ends the last document, which is ignored if it has no sentences; returns (first, last + 1) sentence."""
        document = self.documents[-1][1] if self.documents else 0, len(self.bounds) - 1
        if document[0] < document[1]:
            self.documents.append(document)
        return document


def read(
    texts: Iterable[str | sentences.Piece],
    tokenizer: tokenization.FullTokenizer,
    options: PretrainingDataOptions | None = None,
) -> Corpus:
    """Reads texts (see sentences.read) as ids. The text between two spaces is tokenized independently.

    Raises NotInVocabularyError if the vocabulary lacks [UNK], and a word needs it.
    """
    options = options or PretrainingDataOptions()
    corpus, ids_of = Corpus(array("i")), _ids_of_words(tokenizer).__getitem__

    def add(text: str) -> None:
        corpus.add_sentence(b"".join(map(ids_of, text.split(" "))))

    def add_words(text: str) -> None:
        words = [*map(ids_of, SPACES.split(text))]
        corpus.add_sentence(b"".join(words), _kinds_at_spaces([len(word) // _ID_SIZE for word in words]))

    at_spaces = options.word_boundaries == "spaces"
    _read(texts, options, corpus, add_words if at_spaces else add)
    corpus.tokens = np.frombuffer(corpus.tokens, np.int32) if corpus.tokens else np.zeros(0, np.int32)
    if options.do_whole_word_mask and not at_spaces:
        kinds = np.zeros(max(tokenizer.vocab.values(), default=0) + 1, np.uint8)
        for token, number in tokenizer.vocab.items():
            kinds[number] = masking.kind_of(token)
        corpus.kinds = kinds[corpus.tokens].tobytes()
    return corpus


def read_strings(input_files: Iterable[str], tokenizer: Tokenizer, options: PretrainingDataOptions) -> Corpus:
    """Like `read`, with any tokenizer; the tokens are strings."""
    corpus = Corpus([])

    def add(text: str) -> None:
        tokens = tokenizer.tokenize(text)
        corpus.add_sentence([*map(sys.intern, tokens)], bytes(map(masking.kind_of, tokens)))

    def add_words(text: str) -> None:
        words = [*map(tokenizer.tokenize, SPACES.split(text))]
        tokens = [sys.intern(token) for word in words for token in word]
        kinds = zip(tokens, _kinds_at_spaces([*map(len, words)]), strict=True)
        never = masking.NEVER
        corpus.add_sentence(tokens, bytes(never if masking.kind_of(token) == never else kind for token, kind in kinds))

    _read(input_files, options, corpus, add_words if options.word_boundaries == "spaces" else add)
    return corpus


def _read(
    texts: Iterable[str | sentences.Piece],
    options: PretrainingDataOptions,
    corpus: Corpus,
    add: Callable[[str], None],
) -> None:
    for text in sentences.read(texts, options):
        if text:
            add(text)
        else:
            corpus.end_document()
    corpus.end_document()


def _kinds_at_spaces(lengths: Sequence[int]) -> bytes:
    return b"".join(b"\1" + b"\0" * (length - 1) for length in lengths if length)


_ID_SIZE = array("i").itemsize
_MOST_WORDS = 1 << 17


@functools.lru_cache(maxsize=1)  # a worker process has one tokenizer and many shards with the same words
def _ids_of_words(tokenizer: tokenization.FullTokenizer) -> tokenization.Remembered:
    def ids_of(word: str) -> bytes:
        return array("i", tokenizer.convert_tokens_to_ids(tokenizer.tokenize(word))).tobytes()

    return tokenization.Remembered(ids_of, _MOST_WORDS)

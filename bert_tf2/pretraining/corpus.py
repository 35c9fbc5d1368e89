"""A corpus as ids: four bytes for each token, whatever the number of examples that refer to it."""

from __future__ import annotations

import dataclasses
import functools
from array import array
from collections.abc import Callable, Iterable

import numpy as np

from bert_tf2 import tokenization
from bert_tf2.pretraining import sentences
from bert_tf2.pretraining.documents import SPACES
from bert_tf2.pretraining.options import PretrainingDataOptions


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The documents of text files, one after the other.

    Attributes:
      ids: int32 [N], the tokens of all documents.
      continues: N bytes, 1 where a token continues a word: where its entry of the vocabulary begins with `##`, or with
        the word boundaries "spaces", where it is not the first token between two spaces.
      bounds: sentence i is `ids[bounds[i]:bounds[i + 1]]`.
      documents: the first sentence of each document and the one after its last.
    """

    ids: np.ndarray
    continues: bytes
    bounds: array
    documents: list[tuple[int, int]]


_ID_SIZE = array("i").itemsize


class _Words(dict):
    """The ids of each word as bytes, computed once. Emptied when full, and long words are not kept."""

    _MOST, _LONGEST = 1 << 17, 64

    def __init__(self, compute: Callable[[str], bytes]):
        super().__init__()
        self._compute = compute

    def __missing__(self, word: str) -> bytes:
        ids = self._compute(word)
        if len(word) <= self._LONGEST:
            if len(self) >= self._MOST:
                self.clear()
            self[word] = ids
        return ids


@functools.lru_cache(maxsize=1)  # a worker process has one tokenizer and many shards with the same words
def _words_of(tokenizer: tokenization.FullTokenizer) -> _Words:
    return _Words(lambda word: array("i", tokenizer.convert_tokens_to_ids(tokenizer.tokenize(word))).tobytes())


def read(
    input_files: Iterable[str], tokenizer: tokenization.FullTokenizer, options: PretrainingDataOptions | None = None
) -> Corpus:
    """Reads text files: the documents of `documents.read_documents`, in the same order.

    What is between two spaces is tokenized on its own, because a space always ends a word: no rule of the tokenizer
    looks across it.

    Args:
      input_files: text files.
      tokenizer: a FullTokenizer with the rules of this project (see `FullTokenizer.has_own_rules`).
      options: the format of the files; a sentence a line if not given.

    Raises:
      UserError: see `sentences.read`.
      NotInVocabularyError: the vocabulary lacks [UNK], and a word needs it.
    """
    words = _words_of(tokenizer)
    ids, bounds, documents, first = array("i"), array("q", [0]), [], 0
    options = options or PretrainingDataOptions()
    at_spaces = _WordsAtSpaces() if options.word_boundaries == "spaces" else None
    for text in sentences.read(input_files, options):
        if text:
            if at_spaces is None:
                sentence = b"".join(map(words.__getitem__, text.split(" ")))
            else:
                sentence = at_spaces.joined(map(words.__getitem__, SPACES.split(text)))
            if sentence:
                ids.frombytes(sentence)
                bounds.append(len(ids))
        elif len(bounds) - 1 > first:
            documents.append((first, len(bounds) - 1))
            first = len(bounds) - 1
    if len(bounds) - 1 > first:
        documents.append((first, len(bounds) - 1))
    tokens = np.frombuffer(ids, np.int32) if ids else np.zeros(0, np.int32)
    continues = _continues(tokenizer)[tokens].tobytes() if at_spaces is None else bytes(at_spaces.continues)
    return Corpus(tokens, continues, bounds, documents)


class _WordsAtSpaces:
    """Joins words to sentences, and notes where words begin.

    Attributes:
      continues: see Corpus.
    """

    def __init__(self) -> None:
        self.continues = bytearray()

    def joined(self, words: Iterable[bytes]) -> bytes:
        """Joins the ids of the words of a sentence."""
        present = [word for word in words if word]
        for word in present:
            self.continues += b"\0" + b"\1" * (len(word) // _ID_SIZE - 1)
        return b"".join(present)


def _continues(tokenizer: tokenization.FullTokenizer) -> np.ndarray:
    """uint8, by id. The ids of repeated entries, which no text has, are 0."""
    table = np.zeros(max(tokenizer.vocab.values(), default=0) + 1, np.uint8)
    table[[index for token, index in tokenizer.vocab.items() if token.startswith("##")]] = 1
    return table

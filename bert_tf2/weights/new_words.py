"""Adds entries to the vocabulary of a trained model, for words that it would split into pieces.

A new entry needs a row in the word embeddings and a bias in the masked-LM head, and a row in its table of output
weights if it has one of its own. These start as the mean over the pieces that represented the word before, so that the
model initially reads the word about as before, and pretraining on the new text continues from there.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_tf2 import tokenization
from bert_tf2.config import BertConfig
from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.vocabulary import check_never_split
from bert_tf2.weights import names
from bert_tf2.weights.base import Weights

_UNUSED = re.compile(r"\[unused\d+\]")
_UNKNOWN = "[UNK]"
_LONGEST_WORD = tokenization.WordpieceTokenizer(vocab=()).max_input_chars_per_word
_ROWS_OF_WORDS = tuple(row.reference for row in names.known(0) if row.shape.startswith("V"))


@dataclasses.dataclass(frozen=True)
class Extension:
    """The changes that new words make to a vocabulary."""

    vocabulary: list[str]  # all entries, including the new ones
    pieces: Mapping[int, list[int]]  # id of each new entry -> the ids of its pieces in the old vocabulary
    words: list[str]  # all words, those that were entries already too

    def describe(self, old_size: int) -> str:
        """Returns a one-sentence summary for the user."""
        appended = len(self.vocabulary) - old_size
        return (
            f"Vocabulary: {len(self.pieces)} new entries, {len(self.pieces) - appended} of them in [unused] places,"
            f" {appended} at the end; {len(self.words) - len(self.pieces)} were there already"
        )


def extend(
    vocabulary: Sequence[str], new_words_file: str, basic: tokenization.BasicTokenizer, kept: bool = False
) -> Extension:
    """Plans new entries: first in place of `[unused...]` entries, then at the end.

    Args:
      new_words_file: one word per line, as the tokenizer splits text; the prefix `##` marks the continuation of a word.
      basic: splits text into words as the model was trained.
      kept: whether the words are tokens that are never split.
    """
    ids = {token.strip(): index for index, token in enumerate(vocabulary)}  # strip blanks like tokenization.load_vocab
    if _UNKNOWN not in ids:
        raise UserError(f"the vocabulary has no {_UNKNOWN}, so it is not BERT's; give that of the model (--vocab_file)")
    wanted: dict[str, int] = {}
    for number, line in enumerate(files.read_lines(new_words_file, drop_bom=True), 1):
        if word := line.strip():
            wanted.setdefault(word, number)
    if not wanted:
        raise UserError(f"{new_words_file}: holds no word; one a line is needed")
    unused = (index for index, token in enumerate(vocabulary) if _UNUSED.fullmatch(token.strip()))
    free = iter([index for index in unused if vocabulary[index].strip() not in {*wanted, *basic.never_split}])
    split = _splitter(ids)
    entries, pieces = list(vocabulary), {}
    for word, number in wanted.items():
        where = f"{new_words_file}, line {number}"
        if kept:
            check_never_split([word], where)
        if word in ids:
            continue
        if not kept:
            _check_word(word, basic, where)
        index = next(free, len(entries))
        entries[index : index + 1] = [word]
        words = basic.tokenize(word) if kept else [word]
        pieces[index] = [ids[piece] for part in words or [_UNKNOWN] for piece in split(part)]
    return Extension(entries, pieces, [*wanted])


def _splitter(ids: Mapping[str, int]) -> Callable[[str], list[str]]:
    """Returns a function that splits a word into pieces; after `##`, into pieces that continue a word."""
    continuing = {entry for entry in ids if entry.startswith("##")}
    whole = tokenization.WordpieceTokenizer(vocab=ids, unk_token=_UNKNOWN)
    tail = tokenization.WordpieceTokenizer(
        vocab=continuing | {entry.removeprefix("##") for entry in continuing}, unk_token=_UNKNOWN
    )

    def split(word: str) -> list[str]:
        if not word.startswith("##"):
            return whole.tokenize(word)
        first, *rest = tail.tokenize(word.removeprefix("##"))
        return [first if first == _UNKNOWN else f"##{first}", *rest]

    return split


def _check_word(word: str, tokenizer: tokenization.BasicTokenizer, where: str) -> None:
    text = word.removeprefix("##")
    words = tokenizer.tokenize(text)
    if words != [text]:
        raise UserError(
            f"{where}: {word!r} would never be found, because text is split into {' '.join(words) or 'nothing'!r}"
            " before words are looked up; give each part a line of its own, or leave the line out (the file of"
            " --never_split has what is to stay whole)"
        )
    if len(text) > _LONGEST_WORD:
        raise UserError(
            f"{where}: a word of {len(text)} characters would never be found, because one of more than {_LONGEST_WORD}"
            f" becomes {_UNKNOWN} before words are looked up; leave the line out"
        )


class LongerTables(Weights):
    """Weights of which some tables have more rows. The new rows of slots are 0, since the optimizer has no history."""

    def __init__(self, source: Weights, tables: tuple[str, ...], config: BertConfig, size: int):
        """`config` is the configuration with `size`, the new number of rows of the `tables`, reference names."""
        super().__init__(source.path)
        self.kind, self.remarks, self.dtypes, self.config = source.kind, source.remarks, source.dtypes, config
        self.do_lower_case = source.do_lower_case
        self._source, self._tables = source, tables
        self.shapes = {
            name: [size, *shape[1:]] if name.startswith(tables) else shape for name, shape in source.shapes.items()
        }

    @property
    def folder(self) -> str:
        return self._source.folder

    def vocabulary(self) -> list[str] | None:
        return self._source.vocabulary()

    def labels(self):
        return self._source.labels()

    def get(self, name: str) -> np.ndarray:
        old = self._source.get(name)
        if not name.startswith(self._tables):
            return old
        new = np.zeros(self.shapes[name], old.dtype)
        new[: len(old)] = old
        self._fill(new, np.zeros_like(old) if names.is_optimizer_state(name) else old)
        return new

    def _fill(self, new: np.ndarray, old: np.ndarray) -> None:
        """Sets the new rows of a table from the old ones, which are 0 for a slot."""
        raise NotImplementedError


class ExtendedWeights(LongerTables):
    """Weights with rows for new entries."""

    def __init__(self, source: Weights, config: BertConfig, extension: Extension):
        """`config` is that of `source`; the attribute `config` has the new size."""
        # A table may have more rows than the vocabulary has entries; new entries use these first.
        size = max(config.vocab_size, len(extension.vocabulary))
        super().__init__(source, _ROWS_OF_WORDS, dataclasses.replace(config, vocab_size=size), size)
        self._extension = extension

    def vocabulary(self) -> list[str]:
        return self._extension.vocabulary

    def _fill(self, new: np.ndarray, old: np.ndarray) -> None:
        for index, pieces in self._extension.pieces.items():
            new[index] = old[pieces].mean(axis=0)


class MorePositions(LongerTables):
    """Weights with a row for each of more positions: copies of the first ones, over and over, as in Longformer.

    (Beltagy, Peters and Cohan, 2020, section 5: a start from which a training learns soon, better than random rows.)
    """

    def __init__(self, source: Weights, config: BertConfig, positions: int):
        longer = dataclasses.replace(config, max_position_embeddings=positions)
        super().__init__(source, (names.POSITIONS.reference,), longer, positions)

    def _fill(self, new: np.ndarray, old: np.ndarray) -> None:
        new[len(old) :] = np.resize(old, new.shape)[len(old) :]

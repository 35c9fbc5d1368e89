"""Adds entries to the vocabulary of a trained model, for words that it would split into pieces, or rows for positions.

The row and the bias of a new entry start as the mean over the pieces that represented the word before, so that the
model initially reads the word about as before.
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
from bert_tf2.weights import names
from bert_tf2.weights.base import Weights
from bert_tf2.weights.text_rules import check_never_split

_UNUSED = re.compile(r"\[unused\d+\]")
_UNKNOWN = "[UNK]"
_ROWS_OF_WORDS = tuple(row.reference for row in names.known(0) if row.shape.startswith("V"))


@dataclasses.dataclass(frozen=True)
class Extension:
    """The changes that new words make to a vocabulary."""

    vocabulary: list[str]  # all entries, including the new entries
    pieces: Mapping[int, list[int]]  # id of each new entry -> the ids of its pieces in the old vocabulary
    words: list[str]  # all words of the file, including words that were entries already

    def describe(self, old_size: int) -> str:
        appended = len(self.vocabulary) - old_size
        return (
            f"Vocabulary: {len(self.pieces)} new entries, {len(self.pieces) - appended} of them in [unused] places,"
            f" {appended} at the end; {len(self.words) - len(self.pieces)} were there already"
        )


def extend(
    vocabulary: Sequence[str], new_words_file: str, basic: tokenization.BasicTokenizer, kept: bool = False
) -> Extension:
    """Plans new entries: first in place of `[unused...]` entries, then at the end.

    The file has one word per line, in the form in which `basic` returns words; if `kept`, tokens that are never split.
    Raises UserError for a word that would never be found.
    """
    ids = {token.strip(): index for index, token in enumerate(vocabulary)}  # strip blanks like tokenization.load_vocab
    if _UNKNOWN not in ids:
        raise UserError(f"the vocabulary has no {_UNKNOWN}, so it is not BERT's; give the model's own (--vocab_file)")
    lines = enumerate(files.read_lines(new_words_file, drop_bom=True), 1)
    wanted = {line.strip(): f"{new_words_file}, line {number}" for number, line in lines if line.strip()}
    if not wanted:
        raise UserError(f"{new_words_file}: holds no word; write one word per line")
    unused = (index for index, token in enumerate(vocabulary) if _UNUSED.fullmatch(token.strip()))
    free = iter([index for index in unused if vocabulary[index].strip() not in {*wanted, *basic.never_split}])
    wordpiece = tokenization.WordpieceTokenizer(vocab=ids, unk_token=_UNKNOWN)
    entries, pieces = list(vocabulary), {}
    for word, where in wanted.items():
        words = basic.tokenize(word)
        if kept:
            check_never_split([word], where)
        elif word not in ids and (words != [word] or len(word) > wordpiece.max_input_chars_per_word):
            raise UserError(
                f"{where}: {word!r} would never be found, because text is split into {' '.join(words) or 'nothing'!r}"
                f" before words are looked up, and a word of more than {wordpiece.max_input_chars_per_word} characters"
                f" is {_UNKNOWN}; give each part a line of its own, or the word in the file of --never_split"
            )
        if word not in ids:
            index = next(free, len(entries))
            entries[index : index + 1] = [word]
            pieces[index] = [ids[piece] for part in words or [_UNKNOWN] for piece in wordpiece.tokenize(part)]
    return Extension(entries, pieces, [*wanted])


class LongerTables(Weights):
    """Weights whose tables `tables` are extended to `size` rows, as in `config`; fill(new, old) sets the new rows."""

    def __init__(self, source: Weights, tables: tuple[str, ...], config: BertConfig, size: int, fill: Callable):
        super().__init__(source.path)
        self.config, self._source, self._tables, self._fill = config, source, tables, fill
        self.dtypes = source.dtypes
        self.shapes = {
            name: [size, *shape[1:]] if name.startswith(tables) else shape for name, shape in source.shapes.items()
        }

    def get(self, name: str) -> np.ndarray:
        old = self._source.get(name)
        if not name.startswith(self._tables):
            return old
        new = np.zeros(self.shapes[name], old.dtype)
        new[: len(old)] = old
        # The new rows of slots are 0, because the optimizer has no history of these rows.
        self._fill(new, np.zeros_like(old) if names.is_optimizer_state(name) else old)
        return new


def with_new_words(source: Weights, config: BertConfig, extension: Extension) -> LongerTables:
    """Weights with rows for new entries; `config`: of `source`. Rows of the table without an entry are used first."""

    def fill(new: np.ndarray, old: np.ndarray) -> None:
        for index, pieces in extension.pieces.items():
            new[index] = old[pieces].mean(axis=0)

    size = max(config.vocab_size, len(extension.vocabulary))
    return LongerTables(source, _ROWS_OF_WORDS, dataclasses.replace(config, vocab_size=size), size, fill)


def with_more_positions(source: Weights, config: BertConfig, count: int) -> LongerTables:
    """Weights with `count` positions: the old positions, repeated, as in Longformer (2020, section 5)."""

    def fill(new: np.ndarray, old: np.ndarray) -> None:
        new[len(old) :] = np.resize(old, new.shape)[len(old) :]

    longer = dataclasses.replace(config, max_position_embeddings=count)
    return LongerTables(source, (names.POSITIONS.reference,), longer, count, fill)

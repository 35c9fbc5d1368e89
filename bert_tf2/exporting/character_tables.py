"""The tables that `graph_tokenization` puts into a graph: the mapping of each character, and the vocabulary.

`tokenization` is applied to every character to build the tables, so it remains the only definition of its rules.
"""

from __future__ import annotations

import functools
import itertools
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf2 import tokenization
from bert_tf2.support.errors import UserError

PAGE = 256  # code points; a table stores equal pages only once
# The pages after Unicode are internal: a code point for each token that is kept whole, and the filler at the end.
KEPT = 0x110000
CODES = KEPT + 64 * PAGE
FILLER = CODES - 1

# A letter in the table: the lowest bit is 1 for a separate word, then 8 bits of combining class, then the code point.
ALONE = 1
CLASS_SHIFT, CLASS_MASK = 1, 0xFF
LETTER_SHIFT = 9
BLANK = ALONE  # no letter, and separate
NOTHING, MARK = -1, -2  # no letter; a MARK belongs to the character before it

# The effect of a code point on adjacent code points: three bits, and its combining class above them.
# CASED: a sigma after it is a final sigma; TRANSPARENT: ignored before a sigma; STARTER: marks do not move across it.
CASED, TRANSPARENT, STARTER = 1, 2, 4
CONTEXT_SHIFT = 3

# (bytes in UTF-8, first code point, last code point)
_WIDTHS = ((2, 0x80, 0x7FF), (3, 0x800, 0xD7FF), (4, 0x10000, 0x10FFFF))
_LONGEST_ENTRY = 256  # the limit of the FastWordpieceTokenizer, in bytes


class Table:
    """An array [CODES, ...] for lookup by code point in a graph."""

    def __init__(self, rows: np.ndarray):
        pages = rows.reshape(-1, PAGE, *rows.shape[1:])
        distinct: dict[bytes, int] = {}
        starts = [PAGE * distinct.setdefault(page.tobytes(), len(distinct)) for page in pages]
        _, firsts = np.unique(starts, return_index=True)
        self._starts = tf.constant(starts, tf.int32)
        self._rows = tf.constant(pages[firsts].reshape(-1, *rows.shape[1:]), tf.int32)

    def __call__(self, codes: tf.Tensor) -> tf.Tensor:
        page, within = tf.bitwise.right_shift(codes, 8), codes & (PAGE - 1)
        return tf.gather(self._rows, tf.gather(self._starts, page) + within)


class Characters(NamedTuple):
    """The tokenizer's treatment of each single character."""

    becomes: Mapping[int, str]  # characters that the tokenizer replaces -> replacement; "" if removed, " " for a blank
    alone: np.ndarray  # bool [CODES], whether the result is a separate word
    context: np.ndarray  # int32 [CODES], the effect on adjacent characters (bits), and the combining class


@functools.lru_cache
def describe_characters(do_lower_case: bool, strip_accents: bool, tokenize_chinese_chars: bool) -> Characters:
    """Applies the tokenizer to every character, or to a whole page at once if it treats the characters alike."""
    tokenizer = tokenization.BasicTokenizer(do_lower_case, (), strip_accents, tokenize_chinese_chars)
    becomes: dict[int, str] = {}
    alone = np.zeros(CODES, bool)
    context = np.full(CODES, STARTER, np.int32)
    for first in range(0, KEPT, PAGE):
        page = [*map(chr, range(first, first + PAGE))]
        if all(unicodedata.category(char) in ("Cn", "Co", "Cs") for char in page):
            page = [page[0], page[-1]]  # not characters: they do not change, or all count as Chinese
        if tokenizer.tokenize("".join(page)) == page:
            alone[first : first + PAGE] = True
        elif len(page) == PAGE:
            for code, char in enumerate(page, first):
                result = " ".join(tokenizer.tokenize(f"a{char}a"))[1:-1]
                alone[code] = len(result) > 1 and result[0] == " "
                stripped = result.strip(" ") or result
                if stripped != char or stripped == " ":
                    becomes[code] = stripped
                if do_lower_case or strip_accents:
                    context[code] = _describe_context(char, stripped, tokenizer)
    return Characters(becomes, alone, context)


def _describe_context(char: str, result: str, tokenizer: tokenization.BasicTokenizer) -> int:
    if tokenizer.tokenize(f"{char}Σ")[-1].endswith("ς"):
        bits = CASED
    elif tokenizer.tokenize(f"A{char}Σ")[-1].endswith("ς"):
        bits = TRANSPARENT
    else:
        bits = 0
    decomposed = unicodedata.normalize("NFD", char.lower() if tokenizer.do_lower_case else char)
    is_removed = not result and unicodedata.category(char) != "Mn"  # removed before decomposition
    if not is_removed and any(unicodedata.combining(part) == 0 for part in decomposed):
        bits |= STARTER
    return bits | unicodedata.combining(char) << CONTEXT_SHIFT


UNKNOWN_ENTRY = "[UNK]"  # differs from the spelling of any entry, because the alphabet has no ASCII letters


class Alphabet:
    """The letters that words are written in, and the vocabulary spelled with these letters.

    Attributes:
      letters: character -> code point of its letter.
      kept: the code points of the letters for the tokens that are kept whole.
      unknown: the code point of the letter for all other characters.
      entries: spelling -> id.
      width: the number of bytes of a letter.
      longest_word: the maximum number of letters of a word.
    """

    def __init__(self, tokenizer: tokenization.FullTokenizer, kept: Sequence[str], alone: np.ndarray):
        wordpiece = tokenizer.wordpiece_tokenizer
        self.longest_word = wordpiece.max_input_chars_per_word
        usable = [entry for entry in tokenizer.vocab if _can_match(entry, alone, self.longest_word)]
        characters = sorted({char for entry in usable for char in entry.removeprefix("##")})
        count = 1 + len(kept) + len(characters)
        self.width, first = next((width, first) for width, first, last in _WIDTHS if count <= last + 1 - first)
        codes = itertools.count(first)
        self.unknown = next(codes)
        self.kept = [next(codes) for _ in kept]
        self.letters = dict(zip(characters, codes, strict=False))
        longest = _LONGEST_ENTRY // self.width
        for entry in usable:
            if len(text := entry.removeprefix("##")) > longest:
                raise UserError(
                    f"the vocabulary's entry {entry[:20]}... has {len(text)} characters, but a graph that takes text"
                    f" can hold {longest} at most; shorten the entry, or do not use such a graph"
                )
        spelling = str.maketrans(self.letters)
        self.entries = {UNKNOWN_ENTRY: tokenizer.convert_tokens_to_ids([wordpiece.unk_token])[0]}
        for entry in usable:
            text = entry.removeprefix("##")
            self.entries[entry[: -len(text)] + text.translate(spelling)] = tokenizer.vocab[entry]
        self.entries |= zip(map(chr, self.kept), tokenizer.convert_tokens_to_ids(kept), strict=True)


def _can_match(entry: str, alone: np.ndarray, longest: int) -> bool:
    """Whether a word can contain this piece; False for several characters of which one is a separate word."""
    text = entry.removeprefix("##")
    return 0 < len(text) <= longest and (len(entry) == 1 or not any(alone[ord(char)] for char in text))


def letters_table(characters: Characters, alphabet: Alphabet) -> np.ndarray:
    """The letters with their bits that replace each code point, padded with NOTHING: int32 [CODES, n]."""
    letter = np.full(CODES, alphabet.unknown, np.int32)
    letter[[*map(ord, alphabet.letters)]] = [*alphabet.letters.values()]
    classes = characters.context >> CONTEXT_SHIFT
    packed = letter << LETTER_SHIFT | classes << CLASS_SHIFT  # for characters that are not replaced
    table = np.full((CODES, max(map(len, characters.becomes.values()))), NOTHING, np.int32)
    table[:, 0] = packed | characters.alone * ALONE
    for code, result in characters.becomes.items():
        table[code] = NOTHING
        if result == " ":
            table[code, 0] = BLANK
        elif result:
            table[code, : len(result)] = packed[[*map(ord, result)]] | characters.alone[code] * ALONE
        elif unicodedata.category(chr(code)) == "Mn":
            table[code, 0] = MARK
    table[KEPT:] = NOTHING
    table[KEPT : KEPT + len(alphabet.kept), 0] = np.array(alphabet.kept, np.int32) << LETTER_SHIFT | ALONE
    table[FILLER, 0] = MARK
    return table

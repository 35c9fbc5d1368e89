"""From text to words to word pieces to ids, as in BERT's training (paper section 3, "Input/Output Representations").

A vocabulary of 30,000 entries has to cover every word, so a rare word is split into several entries: "embeddings" is
not in the vocabulary, but "em", "##bed", "##ding" and "##s" are. The prefix `##` marks a piece that continues a word.
Tokenization has three steps. With `do_lower_case` and the vocabulary of the uncased models, the line

    "The Café's\\tembeddings, 北京!"

becomes

1. words, by `BasicTokenizer`:  the | cafe | ' | s | embeddings | , | 北 | 京 | !
   Control characters are removed and all whitespace becomes spaces. Each Chinese character is a word, because Chinese
   does not separate words by spaces. Then the text is lower-cased, accents are removed and punctuation is separated.
2. pieces, by `WordpieceTokenizer`:  the | cafe | ' | s | em | ##bed | ##ding | ##s | , | 北 | 京 | !
   Each word is split from left to right, greedily by the longest entry that matches. If none matches, the whole word
   becomes `[UNK]`.
3. ids, by `convert_tokens_to_ids`: the line number, counted from 0, of each piece in the vocabulary file.

`FullTokenizer` does steps 1 and 2. The results equal google-research/bert's for every code point. They are computed
differently: text has few distinct characters and words, so each result is cached (see `Remembered`).
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf2.config import LARGEST_SIZE
from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import check_type

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The names of the folders in which the reference's models were released, by the case of the vocabulary.
_LOWER_CASED_MODELS = (
    "uncased_L-12_H-768_A-12",
    "uncased_L-24_H-1024_A-16",
    "multilingual_L-12_H-768_A-12",
    "chinese_L-12_H-768_A-12",
)
_CASED_MODELS = ("cased_L-12_H-768_A-12", "cased_L-24_H-1024_A-16", "multi_cased_L-12_H-768_A-12")

# The blocks of Chinese characters. Kana and Hangul, written in words, are not among them.
_CHINESE = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b73f"
    "\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f]"
)


class NotTextError(UserError, ValueError):
    """An object is not a text, such as NaN of pandas; also a ValueError, which the reference raises."""


class NotInVocabularyError(UserError, KeyError):
    """A token or an id is not in the vocabulary; also a KeyError, which the reference raises."""

    __str__ = Exception.__str__  # KeyError would quote the message


class Remembered(dict):
    """A cache: `remembered[key]` is `compute(key)`.

    After `limit` results the cache is cleared: frequent words return within a page of text, and look-ups need no
    bookkeeping. A key longer than _LONGEST is never cached, because words of that length rarely repeat.
    """

    _LONGEST = 64

    def __init__(self, compute: Callable[[Any], Any], limit: int = 1 << 15):
        super().__init__()
        self._compute, self._limit = compute, limit

    def __missing__(self, key: Hashable) -> Any:
        answer = self._compute(key)
        if isinstance(key, int) or len(key) <= self._LONGEST:
            if len(self) >= self._limit:
                self.clear()
            self[key] = answer
        return answer

    def __reduce__(self):
        # A pickled tokenizer carries its rules, not its cache.
        return type(self), (self._compute, self._limit)


def _is_whitespace(char: str) -> bool:
    """Space, tab, line ends, and Unicode's space separators."""
    return char in "\t\n\r" or unicodedata.category(char) == "Zs"


def _is_control(char: str) -> bool:
    """Unicode's control and format characters, except for those that are whitespace here."""
    return not _is_whitespace(char) and unicodedata.category(char) in ("Cc", "Cf")


def _is_punctuation(char: str) -> bool:
    """Unicode's punctuation, and all printable ASCII except letters, digits and space ("$", "+", "^" are symbols)."""
    return ("!" <= char <= "~" and not char.isalnum()) or unicodedata.category(char).startswith("P")


def _clean(code: int) -> str:
    """Maps a code point of raw text to nothing, a space or itself."""
    char = chr(code)
    if _is_whitespace(char):
        return " "
    return "" if char == "\ufffd" or _is_control(char) else char  # U+0000 is a control character


# A table for str.translate, which looks up each code point.
_CLEAN = Remembered(_clean)


class BasicTokenizer:
    """Text -> words: cleans, separates Chinese characters and punctuation; optionally lower-cases, removes accents.

    Its steps are methods, as in the reference, and a subclass may override them. The words of each part between blanks
    are cached, so the settings must not be changed after construction.

    Args:
      do_lower_case: whether words are lower-cased.
      never_split: tokens that stay whole wherever a text has them in exactly this spelling, the longest first; the
        texts before and after a token are split like separate texts.
      strip_accents: whether accents are removed; None, as in the reference, if `do_lower_case`.
      tokenize_chinese_chars: whether each Chinese character is a word.
    """

    def __init__(
        self,
        do_lower_case: bool = True,
        never_split: Iterable[str] = (),
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool = True,
    ):
        self.do_lower_case = do_lower_case
        self.never_split = tuple(never_split)
        self.strip_accents = do_lower_case if strip_accents is None else strip_accents
        self.tokenize_chinese_chars = tokenize_chinese_chars
        longest_first = sorted(map(re.escape, self.never_split), key=len, reverse=True)
        self._kept = re.compile(f"({'|'.join(longest_first)})") if longest_first else None
        self._words = Remembered(self._split_word)
        self._chinese_apart = Remembered(self._set_chinese_apart)

    def tokenize(self, text: str | bytes) -> list[str]:
        """The words of a text, in order (the reference's `BasicTokenizer.tokenize`).

        The parts between blanks of the cleaned text are processed independently: no later step depends on text across a
        blank. Lower-casing depends on neighbors (a capital sigma becomes another letter at the end of a word) but only
        within the same word, and accents belong to the letter before them.
        """
        if self._kept:
            parts = enumerate(self._kept.split(convert_to_unicode(text)))  # every second part is one of `never_split`
            return [word for number, part in parts for word in ([part] if number % 2 else self._tokenize(part))]
        return self._tokenize(convert_to_unicode(text))

    def _tokenize(self, text: str) -> list[str]:
        words: list[str] = []
        for word in self._tokenize_chinese_chars(self._clean_text(text)).split():
            words += self._words[word]
        return words

    def _split_word(self, word: str) -> list[str]:
        """The words in the text between two blanks: Café's -> cafe, ', s."""
        if self.do_lower_case:
            word = word.lower()
        if self.strip_accents:
            word = self._run_strip_accents(word)
        return " ".join(self._run_split_on_punc(word)).split()

    def _clean_text(self, text: str) -> str:
        """Replaces all whitespace by spaces; removes control characters and U+FFFD."""
        if text.isascii() and text.isprintable():  # for speed: most texts have nothing to replace
            return text
        return text.translate(_CLEAN)

    def _tokenize_chinese_chars(self, text: str) -> str:
        """The text with spaces around each character for which `_is_chinese_char` is true."""
        if text.isascii() and not self._has_chinese_in_ascii:
            return text
        return text.translate(self._chinese_apart)

    @functools.cached_property
    def _has_chinese_in_ascii(self) -> bool:  # true only by the rule of a subclass
        return any(map(self._is_chinese_char, range(128)))

    def _set_chinese_apart(self, code: int) -> str:
        return f" {chr(code)} " if self.tokenize_chinese_chars and self._is_chinese_char(code) else chr(code)

    def _is_chinese_char(self, cp: int) -> bool:
        """Whether a code point is in one of the blocks of Chinese characters."""
        return _CHINESE.match(chr(cp)) is not None

    def _run_strip_accents(self, text: str) -> str:
        """The text in decomposed form (NFD), without its nonspacing marks."""
        if text.isascii():
            return text
        return "".join([char for char in unicodedata.normalize("NFD", text) if unicodedata.category(char) != "Mn"])

    def _run_split_on_punc(self, text: str) -> list[str]:
        """The parts of a word: each punctuation mark, and the text between punctuation marks."""
        if text.isalnum():  # for speed: most words
            return [text]
        parts: list[str] = []
        for is_mark, run in itertools.groupby(text, _is_punctuation):
            characters = [*run]
            parts += characters if is_mark else ["".join(characters)]
        return parts


class WordpieceTokenizer:
    """Words -> pieces, longest match first.

    The pieces of words are cached, so the vocabulary and the settings must not be changed after construction.

    Args:
      vocab: the entries; a piece that continues a word has the prefix `##`.
      unk_token: replaces a word that cannot be split into entries, or is longer than `max_input_chars_per_word`.
    """

    def __init__(self, vocab: Iterable[str], unk_token: str = "[UNK]", max_input_chars_per_word: int = 200):
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        self._longest_entry = max(map(len, vocab), default=0)
        self._pieces = Remembered(self._split_word)

    def tokenize(self, text: str | bytes) -> list[str]:
        """The pieces of all words of a text in which blanks separate the words: "unaffable" -> un, ##aff, ##able."""
        pieces: list[str] = []
        for word in convert_to_unicode(text).split():
            pieces += self._pieces[word]
        return pieces

    def _split_word(self, word: str) -> list[str]:
        if len(word) > self.max_input_chars_per_word:
            return [self.unk_token]
        pieces: list[str] = []
        start = 0
        while start < len(word):
            piece = self._longest_piece(word, start)
            if piece is None:
                return [self.unk_token]
            pieces.append(piece)
            start += len(piece) - len("##") * (start > 0)
        return pieces

    def _longest_piece(self, word: str, start: int) -> str | None:
        """The longest entry with which `word` continues at `start`, None if there is no such entry."""
        mark = "##" if start else ""
        for end in range(min(len(word), start + self._longest_entry), start, -1):
            piece = mark + word[start:end]
            if piece in self.vocab:
                return piece
        return None


class FullTokenizer:
    """Text -> pieces -> ids, with one vocabulary file; the `rules` are the other settings of BasicTokenizer.

    `do_lower_case` must match the vocabulary: true for the uncased and Chinese models, false for the cased models.

    Raises UserError if the file is missing or is not UTF-8, or lacks one of the tokens that are never split.
    """

    def __init__(
        self,
        vocab_file: str | bytes | os.PathLike[str],
        do_lower_case: bool = True,
        *,
        entries: Sequence[str] | None = None,
        **rules: Any,
    ):
        """`entries`: the content of `vocab_file`, if it was read already or is part of another file."""
        entries = read_entries(vocab_file) if entries is None else entries
        self.entries = [entry.strip() for entry in entries]  # including repeated entries
        self.vocab = load_vocab(vocab_file, self.entries)
        self.inv_vocab = {index: token for token, index in self.vocab.items()}
        self.basic_tokenizer = BasicTokenizer(do_lower_case=do_lower_case, **rules)
        self.wordpiece_tokenizer = WordpieceTokenizer(vocab=self.vocab)
        if lacking := [token for token in self.never_split if token not in self.vocab]:
            raise UserError(
                f"{vocab_file}: lacks {lacking[0]!r}, which is among the tokens that are never split; give a"
                " vocabulary with this token (convert_checkpoint.py makes one: --never_split, or --to=tf1)"
            )

    def tokenize(self, text: str | bytes) -> list[str]:
        """The pieces of a text, without [CLS] and [SEP]; a "[MASK]" in the text is split like any other text."""
        words = self.basic_tokenizer.tokenize(text)
        if type(self.wordpiece_tokenizer) is WordpieceTokenizer:
            return self.wordpiece_tokenizer.tokenize(" ".join(words))
        # A replaced WordpieceTokenizer expects a single word.
        return [piece for word in words for piece in self.wordpiece_tokenizer.tokenize(word)]

    @property
    def never_split(self) -> tuple[str, ...]:
        """The tokens that stay whole in a text; see BasicTokenizer."""
        return self.basic_tokenizer.never_split

    @property
    def rules(self) -> dict[str, Any]:
        """The `rules` of the constructor that differ from the reference's tokenizer."""
        basic = self.basic_tokenizer
        found: dict[str, Any] = {"never_split": [*basic.never_split]} if basic.never_split else {}
        if basic.strip_accents != basic.do_lower_case:
            found["strip_accents"] = basic.strip_accents
        if not basic.tokenize_chinese_chars:
            found["tokenize_chinese_chars"] = False
        return found

    @property
    def has_own_rules(self) -> bool:
        """Whether a subclass or another object takes part in tokenization."""
        parts = (self, self.basic_tokenizer, self.wordpiece_tokenizer)
        return tuple(map(type, parts)) != (FullTokenizer, BasicTokenizer, WordpieceTokenizer)

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """See the function of this name."""
        return convert_tokens_to_ids(self.vocab, tokens)

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """See the function of this name."""
        return convert_ids_to_tokens(self.inv_vocab, ids)


def read_entries(vocab_file: str | bytes | os.PathLike[str]) -> list[str]:
    """The unchanged lines of a vocabulary, without a byte order mark at the beginning.

    Raises UserError if the file cannot be read as text, or has more entries than any model.
    """
    vocab_file = os.fsdecode(vocab_file) if isinstance(vocab_file, bytes) else vocab_file  # of a SavedModel's asset
    check_type("vocab_file", vocab_file, os.PathLike)
    lines = files.read_lines(os.fspath(vocab_file), drop_bom=True)
    entries = list(itertools.islice(lines, LARGEST_SIZE + 1))
    if len(entries) > LARGEST_SIZE:
        raise UserError(f"{vocab_file}: more than {LARGEST_SIZE} entries, which no model has; is it the right file?")
    return entries


def load_vocab(vocab_file: str | bytes | os.PathLike[str], entries: Sequence[str] | None = None) -> dict[str, int]:
    """Reads a vocabulary: one entry per line, stripped of blanks; its id is its line number, counted from 0.

    As in the reference, an empty line is an entry, and the last of several equal entries wins, with a warning.
    """
    vocab: dict[str, int] = {}
    repeated: list[tuple[str, int, int]] = []
    for index, line in enumerate(read_entries(vocab_file) if entries is None else entries):
        token = line.strip()
        if token in vocab:
            repeated.append((token, vocab[token], index))
        vocab[token] = index
    if repeated:
        token, earlier, later = repeated[0]
        logging.warning(
            "%s: entries that repeat an earlier one, whose id no text will get: %d; the first is %r on lines %d and %d",
            vocab_file, len(repeated), token, earlier + 1, later + 1,
        )  # fmt: skip
    return vocab


def convert_by_vocab(vocab: Mapping[Any, Any], items: Iterable[Any]) -> list[Any]:
    """Looks up each item; raises NotInVocabularyError for an item that is not in `vocab`."""
    try:
        return [vocab[item] for item in items]
    except KeyError as error:
        raise NotInVocabularyError(
            f"{error.args[0]!r} is not in the vocabulary of {len(vocab)} entries; was the text tokenized with this"
            f" vocabulary?"
        ) from error


def convert_tokens_to_ids(vocab: Mapping[str, int], tokens: Iterable[str]) -> list[int]:
    """The id of each token; raises NotInVocabularyError for a token without an id."""
    return convert_by_vocab(vocab, tokens)


def convert_ids_to_tokens(inv_vocab: Mapping[int, str], ids: Iterable[int]) -> list[str]:
    """The token of each id; raises NotInVocabularyError for an id without a token."""
    return convert_by_vocab(inv_vocab, ids)


def convert_to_unicode(text: str | bytes) -> str:
    """Converts text to str. Invalid UTF-8 in bytes is left out. Raises NotTextError for anything but str and bytes."""
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    raise NotTextError(f"{text!r:.60} is not a text; give str, and leave out rows without a text")


# In Python 3 both functions are the same; the reference has two functions because of Python 2.
printable_text = convert_to_unicode


def whitespace_tokenize(text: str) -> list[str]:
    """The words of a text, split at any whitespace by str.split."""
    return text.split()


def validate_case_matches_checkpoint(do_lower_case: bool, init_checkpoint: str | None) -> None:
    """Raises UserError if a folder has the name of one of the reference's releases for text in the other case.

    A checkpoint itself does not contain this information. Any other path passes.
    """
    found = re.search(r"([A-Za-z0-9_-]+)/bert_model\.ckpt", init_checkpoint or "")
    model = found.group(1) if found else ""
    for models, kind, wanted in ((_LOWER_CASED_MODELS, "lower-cased", True), (_CASED_MODELS, "cased", False)):
        if model in models and bool(do_lower_case) != wanted:
            raise UserError(
                f"--do_lower_case={bool(do_lower_case)} does not fit --init_checkpoint={init_checkpoint}: {model} was"
                f" trained on {kind} text; give --do_lower_case={wanted}, or rename the folder if it is another model"
            )

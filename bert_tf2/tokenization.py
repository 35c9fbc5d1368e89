"""From text to words to word pieces to ids, the way BERT was trained (paper section 3, "Input/Output Representations").

A model with a vocabulary of 30,000 entries must read every word there is. So a rare word is spelt with several of them:
"embeddings" is not in the vocabulary, but "em", "##bed", "##ding" and "##s" are. The mark `##` means that the piece
goes on with the word instead of beginning one. Three steps lead there; with `do_lower_case` and the vocabulary of the
uncased models the line

    "The Café's\\tembeddings, 北京!"

becomes

1. words, by `BasicTokenizer`:  the | cafe | ' | s | embeddings | , | 北 | 京 | !
   Control characters go and every kind of blank becomes a space. Each Chinese character is a word of its own, because
   Chinese puts no blanks between words. Then come lower case, no accents, and each punctuation mark by itself.
2. pieces, by `WordpieceTokenizer`:  the | cafe | ' | s | em | ##bed | ##ding | ##s | , | 北 | 京 | !
   Each word is read from left to right, always taking the longest entry that fits. Where none fits the whole word
   becomes `[UNK]`.
3. ids, by `convert_tokens_to_ids`: the line number, counted from 0, of each piece in the vocabulary file.

`FullTokenizer` does steps 1 and 2. The answers are those of google-research/bert on every code point; they are reached
another way, because text holds few distinct characters and few distinct words: what a character or a word becomes is
worked out once and remembered (see `_Remembered`).
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf2.config import check_vocab_size
from bert_tf2.support import files
from bert_tf2.support.errors import UserError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Entries that no text produces: [CLS], and <S> of the Chinese vocabulary, which is uncased.
_SPECIAL = re.compile(r"\[.+\]|<.+>")

# The names of the folders in which the reference's models were released, by what their vocabulary holds.
_LOWER_CASED_MODELS = (
    "uncased_L-12_H-768_A-12",
    "uncased_L-24_H-1024_A-16",
    "multilingual_L-12_H-768_A-12",
    "chinese_L-12_H-768_A-12",
)
_CASED_MODELS = ("cased_L-12_H-768_A-12", "cased_L-24_H-1024_A-16", "multi_cased_L-12_H-768_A-12")

# First and last code point of the blocks of Chinese characters (also used as Kanji and Hanja). Kana and Hangul are not
# among them: they are written in words of several characters.
_CJK_BLOCKS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


class NotInVocabularyError(UserError, KeyError):
    """A token or an id that the vocabulary does not have; a KeyError too, which is what the reference raises."""

    __str__ = Exception.__str__  # KeyError would put the sentence in quotes


class _Remembered(dict):
    """The answers of `compute`, each worked out once: `remembered[key]` is `compute(key)`.

    Memory is bounded in two ways. After `limit` answers it forgets them all and starts again: the frequent words are
    back within a page of text, and a look-up needs no bookkeeping, as it would to forget only the oldest. The default
    holds the words of a long book. And a key longer than `longest` is never kept: words of that length hardly come
    twice.
    """

    def __init__(self, compute: Callable[[Any], Any], limit: int = 1 << 15, longest: int = 64):
        super().__init__()
        self._compute, self._limit, self._longest = compute, limit, longest

    def __missing__(self, key: Hashable) -> Any:
        answer = self._compute(key)
        if isinstance(key, int) or len(key) <= self._longest:
            if len(self) >= self._limit:
                self.clear()
            self[key] = answer
        return answer

    def __reduce__(self):
        # A tokenizer sent to another process or saved takes its rules along, not its memory.
        return type(self), (self._compute, self._limit, self._longest)


def _is_chinese(code: int) -> bool:
    return any(first <= code <= last for first, last in _CJK_BLOCKS)


def _is_whitespace(char: str) -> bool:
    """Space, tab, line ends, and what Unicode calls a space separator."""
    return char in "\t\n\r" or unicodedata.category(char) == "Zs"


def _is_control(char: str) -> bool:
    """Unicode's control and format characters, except for those that are whitespace here."""
    return not _is_whitespace(char) and unicodedata.category(char) in ("Cc", "Cf")


def _is_punctuation(char: str) -> bool:
    """Unicode's punctuation, and all printable ASCII that is no letter, digit or space ("$", "+", "^" are symbols)."""
    return ("!" <= char <= "~" and not char.isalnum()) or unicodedata.category(char).startswith("P")


def _clean(code: int) -> str:
    """What a code point of raw text becomes: nothing, a space, itself."""
    char = chr(code)
    if _is_whitespace(char):
        return " "
    return "" if char == "\ufffd" or _is_control(char) else char  # U+0000 is a control character


def _clean_and_set_chinese_apart(code: int) -> str:
    """The same, and a Chinese character becomes a word of its own."""
    return f" {chr(code)} " if _is_chinese(code) else _clean(code)


def _set_apart(code: int) -> str:
    """A code point of a cased word: punctuation gets spaces around it."""
    char = chr(code)
    return f" {char} " if _is_punctuation(char) else char


def _set_apart_without_accents(code: int) -> str:
    """A code point of a lower-cased, decomposed word: accents (nonspacing marks) go as well."""
    return "" if unicodedata.category(chr(code)) == "Mn" else _set_apart(code)


# Tables for str.translate, which asks a mapping for each code point. They are shared by all tokenizers.
_CLEAN = _Remembered(_clean_and_set_chinese_apart)
_SET_APART = _Remembered(_set_apart)
_SET_APART_WITHOUT_ACCENTS = _Remembered(_set_apart_without_accents)


class BasicTokenizer:
    """Text -> words: cleans, separates Chinese characters and punctuation, lowers case and drops accents if wanted.

    It remembers what it did with a word, so `do_lower_case` is for the constructor only.

    A subclass may override the steps that the reference has as methods: `_clean_text`, `_tokenize_chinese_chars`,
    `_is_chinese_char`, `_run_strip_accents`, `_run_split_on_punc`. Texts then go through these methods one by one,
    which is several times slower, and nothing is remembered.
    """

    _STEPS = ("_clean_text", "_tokenize_chinese_chars", "_is_chinese_char", "_run_strip_accents", "_run_split_on_punc")
    _has_own_steps = False

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        cls._has_own_steps = any(getattr(cls, name) is not getattr(BasicTokenizer, name) for name in cls._STEPS)

    def __init__(self, do_lower_case: bool = True):
        self.do_lower_case = do_lower_case
        self._words = _Remembered(self._split_word)

    def tokenize(self, text: str | bytes) -> list[str]:
        """The words of a text, in order (the reference's `BasicTokenizer.tokenize`).

        What stands between two blanks of the cleaned text can be treated, and remembered, by itself: no later step
        looks across a blank. Lower-casing looks at neighbours (a capital sigma at the end of a word becomes another
        letter than within it) but only at those in the same word, and accents belong to the letter before them.
        """
        if self._has_own_steps:
            return self._tokenize_by_steps(convert_to_unicode(text))
        words: list[str] = []
        for word in convert_to_unicode(text).translate(_CLEAN).split():
            words += self._words[word]
        return words

    def _split_word(self, word: str) -> list[str]:
        """The words in what stands between two blanks: Café's -> cafe, ', s."""
        if not self.do_lower_case:
            return word.translate(_SET_APART).split()
        return unicodedata.normalize("NFD", word.lower()).translate(_SET_APART_WITHOUT_ACCENTS).split()

    # What follows is for subclasses: the same rules, one step after the other.

    def _tokenize_by_steps(self, text: str) -> list[str]:
        words: list[str] = []
        for word in self._tokenize_chinese_chars(self._clean_text(text)).split():
            if self.do_lower_case:
                word = self._run_strip_accents(word.lower())
            words += self._run_split_on_punc(word)
        return " ".join(words).split()

    def _clean_text(self, text: str) -> str:
        """Every kind of whitespace as a space; without control characters and U+FFFD."""
        return "".join([_clean(ord(char)) for char in text])

    def _tokenize_chinese_chars(self, text: str) -> str:
        """The text with spaces around each character for which `_is_chinese_char` is true."""
        return "".join([f" {char} " if self._is_chinese_char(ord(char)) else char for char in text])

    def _is_chinese_char(self, cp: int) -> bool:
        """Whether a code point is in one of the blocks of Chinese characters."""
        return _is_chinese(cp)

    def _run_strip_accents(self, text: str) -> str:
        """The text in decomposed form (NFD), without its nonspacing marks."""
        return "".join([char for char in unicodedata.normalize("NFD", text) if unicodedata.category(char) != "Mn"])

    def _run_split_on_punc(self, text: str) -> list[str]:
        """A word in parts: each punctuation mark, and what stands between two of them."""
        parts: list[str] = []
        for is_mark, run in itertools.groupby(text, _is_punctuation):
            characters = [*run]
            parts += characters if is_mark else ["".join(characters)]
        return parts


class WordpieceTokenizer:
    """Words -> pieces, by the longest entry first.

    It remembers the pieces of a word, so the vocabulary and the settings are not to be changed after construction.

    Args:
      vocab: the entries; a piece that continues a word is in there with `##` before it.
      unk_token: what a word becomes that cannot be spelt, or is longer than `max_input_chars_per_word`.
    """

    def __init__(self, vocab: Iterable[str], unk_token: str = "[UNK]", max_input_chars_per_word: int = 200):
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        self._longest_entry = max(map(len, vocab), default=0)
        self._pieces = _Remembered(self._split_word)

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
        """The longest entry that `word` continues with at `start`, or None."""
        mark = "##" if start else ""
        for end in range(min(len(word), start + self._longest_entry), start, -1):
            piece = mark + word[start:end]
            if piece in self.vocab:
                return piece
        return None


class FullTokenizer:
    """Text -> pieces -> ids, with one vocabulary file.

    `do_lower_case` must be what the vocabulary was made with: true for the uncased and Chinese models, false for the
    cased ones.

    Raises:
      UserError: the file is missing or is not UTF-8.
    """

    def __init__(self, vocab_file: str, do_lower_case: bool = True):
        self.vocab = load_vocab(vocab_file)
        self.inv_vocab = {index: token for token, index in self.vocab.items()}
        self.basic_tokenizer = BasicTokenizer(do_lower_case=do_lower_case)
        self.wordpiece_tokenizer = WordpieceTokenizer(vocab=self.vocab)

    def tokenize(self, text: str | bytes) -> list[str]:
        """The pieces of a text, without [CLS] and [SEP]; a "[MASK]" in the text is taken apart like any other text."""
        words = self.basic_tokenizer.tokenize(text)
        if type(self.wordpiece_tokenizer) is WordpieceTokenizer:
            return self.wordpiece_tokenizer.tokenize(" ".join(words))
        return [piece for word in words for piece in self.wordpiece_tokenizer.tokenize(word)]  # as another one expects

    @property
    def has_own_rules(self) -> bool:
        """Whether a subclass or another object has a part in what a text becomes."""
        parts = (self, self.basic_tokenizer, self.wordpiece_tokenizer)
        return tuple(map(type, parts)) != (FullTokenizer, BasicTokenizer, WordpieceTokenizer)

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """See the function of this name."""
        return convert_tokens_to_ids(self.vocab, tokens)

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """See the function of this name."""
        return convert_ids_to_tokens(self.inv_vocab, ids)


def read_entries(vocab_file: str) -> list[str]:
    """The lines of a vocabulary as they stand there, without a byte order mark at the beginning.

    Raises:
      UserError: the file is missing, or a line is not UTF-8 (names the line).
    """
    return list(files.read_lines(vocab_file, drop_bom=True))


def load_vocab(vocab_file: str) -> dict[str, int]:
    """Reads a vocabulary: one entry a line, blanks around it stripped; its id is its line number, counted from 0.

    As in the reference an empty line is an entry, and where an entry comes twice the later line wins. Here one warning
    tells of that, since no text can then produce the earlier ids.

    Raises:
      UserError: the file is missing, or a line is not UTF-8 (names the line).
    """
    vocab: dict[str, int] = {}
    repeated: list[tuple[str, int, int]] = []
    for index, line in enumerate(read_entries(vocab_file)):
        token = line.strip()
        if token in vocab:
            repeated.append((token, vocab[token], index))
        vocab[token] = index
    if repeated:
        token, earlier, later = repeated[0]
        logging.warning(
            "%s: %d entries repeat an earlier one, whose id no text will get; the first is %r on lines %d and %d",
            vocab_file, len(repeated), token, earlier + 1, later + 1,
        )  # fmt: skip
    return vocab


def check_special_tokens(vocab: Mapping[str, int], vocab_file: str, tokens: Sequence[str] = SPECIAL_TOKENS) -> None:
    """Makes sure that a vocabulary can be used by a script that needs these tokens.

    `load_vocab` lets such a vocabulary pass, as the reference does, where the first missing token is a KeyError later.

    Args:
      vocab: entry -> id, as load_vocab gives it.
      vocab_file: where they were read, for messages.
      tokens: the tokens that are needed.

    Raises:
      UserError: some are missing (names them all, and the line that should perhaps be one of them).
    """
    missing = [token for token in tokens if token not in vocab]
    if not missing:
        return
    if not any(vocab):
        raise UserError(f"{vocab_file}: holds no entries; give the vocab.txt that lies with the model's weights")
    raise UserError(
        f"{vocab_file}: has no {', '.join(missing)}, so it is not the vocabulary of a BERT model{_look_alike(vocab)};"
        " give the vocab.txt that lies with the model's weights (entries must not be added to it: each line is a row"
        " of the weights), and for a model of your own one that build_vocab.py made"
    )


def _look_alike(vocab: Mapping[str, int]) -> str:
    """The entry that shows what else the file may be."""
    first = next(iter(vocab))
    if first[:1] == "{":
        return " but JSON, a tokenizer.json perhaps"
    for entry, index in vocab.items():
        word = re.match(r"\W+(pad|unk|cls|sep|mask)\b", entry, re.IGNORECASE)
        if word and entry not in SPECIAL_TOKENS:
            return f" (line {index + 1} is {entry[:20]!r}, not {f'[{word[1].upper()}]'!r})"
    return "" if first in SPECIAL_TOKENS else f" (line {vocab[first] + 1} is {first[:20]!r})"


def unreachable_in_lower_case(vocab: Iterable[str]) -> list[str]:
    """The entries that no lower-cased text gives, because they have capitals or accents.

    A vocabulary that was learned from lower-cased text has none. Special tokens such as [CLS] do not count.
    """
    return [
        entry
        for entry in vocab
        if not (entry.isascii() and entry == entry.lower())  # for speed: most entries
        and entry != _without_accents(entry.lower())
        and not _SPECIAL.fullmatch(entry)
    ]


def _without_accents(text: str) -> str:
    return "".join(char for char in unicodedata.normalize("NFD", text) if unicodedata.category(char) != "Mn")


def is_cased(vocab: Collection[str]) -> bool:
    """Whether a vocabulary is that of a cased model, as far as it shows that.

    A few entries prove nothing: someone may have added words to the vocabulary of an uncased model.
    """
    return len(unreachable_in_lower_case(vocab)) > len(vocab) / 1000


def check_case_of_vocabulary(vocab: Mapping[str, int], vocab_file: str, do_lower_case: bool | None) -> None:
    """Warns where text would be lower-cased, or not, otherwise than the text that the vocabulary was learned from.

    Args:
      do_lower_case: None if the user did not say it, which stands for True. Who says True is not warned.
    """
    if do_lower_case is None and (found := unreachable_in_lower_case(vocab)):
        logging.warning(
            "%s: %d of %d entries have capitals or accents (such as %r, line %d), and lower-cased text never gives"
            " them. If the model is cased, give --do_lower_case=False; --do_lower_case=True confirms the default",
            vocab_file, len(found), len(vocab), found[0], vocab[found[0]] + 1,
        )  # fmt: skip
    elif do_lower_case is False and not any(_has_capitals(entry) for entry in vocab):
        logging.warning(
            "%s: no entry has a capital letter, so with --do_lower_case=False every word that has one becomes [UNK]."
            " If the model is uncased, leave the flag out",
            vocab_file,
        )


def _has_capitals(entry: str) -> bool:
    return entry != entry.lower() and not _SPECIAL.fullmatch(entry)


def load_tokenizer(vocab_file: str, do_lower_case: bool, vocab_size: int | None = None) -> FullTokenizer:
    """The tokenizer, once it is clear that vocabulary and model belong together.

    Args:
      vocab_size: how many embeddings the model has; None where there is no model yet.

    Raises:
      UserError: the vocabulary is missing, lacks a special token, or has more entries than the model has embeddings.
    """
    tokenizer = FullTokenizer(vocab_file=vocab_file, do_lower_case=do_lower_case)
    check_special_tokens(tokenizer.vocab, vocab_file)
    entries = max(tokenizer.vocab.values()) + 1
    if vocab_size is not None:
        check_vocab_size(vocab_file, entries, vocab_size)
    if vocab_size is not None and vocab_size - entries >= _MOST_ROUNDED_UP + entries // 100:
        logging.warning(
            "%s: only %d entries, but the model has vocab_size %d; make sure that the file is complete and the model's"
            " own, since words that are not in it become [UNK]",
            vocab_file, entries, vocab_size,
        )  # fmt: skip
    return tokenizer


_MOST_ROUNDED_UP = 128  # by how much people round vocab_size up, for the sake of a device


def convert_by_vocab(vocab: Mapping[Any, Any], items: Iterable[Any]) -> list[Any]:
    """Looks up each item.

    Raises:
      NotInVocabularyError: an item is not there.
    """
    try:
        return [vocab[item] for item in items]
    except KeyError as error:
        raise NotInVocabularyError(
            f"{error.args[0]!r} is not in the vocabulary of {len(vocab)} entries; is this the vocabulary that the text"
            f" was tokenized with?"
        ) from error


def convert_tokens_to_ids(vocab: Mapping[str, int], tokens: Iterable[str]) -> list[int]:
    """The id of each token; raises NotInVocabularyError for a token that has none."""
    return convert_by_vocab(vocab, tokens)


def convert_ids_to_tokens(inv_vocab: Mapping[int, str], ids: Iterable[int]) -> list[str]:
    """The token of each id; raises NotInVocabularyError for an id that has none."""
    return convert_by_vocab(inv_vocab, ids)


def convert_to_unicode(text: str | bytes) -> str:
    """Text as str; bytes are taken as UTF-8 and what is not valid there is left out.

    Raises:
      ValueError: it is neither str nor bytes.
    """
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    raise ValueError(f"text must be str or bytes, not {type(text).__name__}")


# In Python 3 what can be printed is what str holds; the reference kept two functions for Python 2.
printable_text = convert_to_unicode


def whitespace_tokenize(text: str) -> list[str]:
    """The words of a text between blanks of any kind, as Python's str.split knows them."""
    return text.split()


def validate_case_matches_checkpoint(do_lower_case: bool, init_checkpoint: str | None) -> None:
    """Stops a cased model from being used with lower-cased text, and the other way round.

    Nothing in a checkpoint says which it is, so this goes by the folder names of the reference's releases, as the
    reference does; any other path passes.

    Raises:
      UserError: the flag does not fit the model.
    """
    found = re.search(r"([A-Za-z0-9_-]+)/bert_model\.ckpt", init_checkpoint or "")
    model = found.group(1) if found else ""
    for models, kind, wanted in ((_LOWER_CASED_MODELS, "lower-cased", True), (_CASED_MODELS, "cased", False)):
        if model in models and bool(do_lower_case) != wanted:
            raise UserError(
                f"--do_lower_case={bool(do_lower_case)} does not fit --init_checkpoint={init_checkpoint}: {model} was"
                f" trained on {kind} text; give --do_lower_case={wanted}, or rename the folder if it is another model"
            )

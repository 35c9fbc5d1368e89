"""Checks of a vocabulary. The reference takes any; a wrong one, or the wrong case, costs accuracy without an error."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence

from absl import logging

from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import SPECIAL_TOKENS

_MANY_UNKNOWN = 0.3  # a language or script that the vocabulary was not made for; with its own, it is less than 0.01
# Entries that no text produces: [CLS], and <S> of the Chinese vocabulary, which is uncased.
_SPECIAL = re.compile(r"\[.+\]|<.+>")


def check_special_tokens(vocab: Mapping[str, int], vocab_file: str, tokens: Sequence[str] = SPECIAL_TOKENS) -> None:
    """Raises UserError if a vocabulary lacks tokens that a script needs; in the reference, a KeyError comes later."""
    missing = [token for token in tokens if token not in vocab]
    if missing and not any(vocab):
        raise UserError(f"{vocab_file}: holds no entries; give the vocab.txt that lies with the model's weights")
    if missing:
        raise UserError(
            f"{vocab_file}: has no {', '.join(missing)}, so it is not the vocabulary of a BERT model"
            f"{_look_alike(vocab)}; give the vocab.txt that lies with the model's weights (entries must not be added to"
            " it: each line is a row of the weights), and for a model of your own one that build_vocab.py made"
        )


def _look_alike(vocab: Mapping[str, int]) -> str:
    """The entry that shows what else the file may be."""
    first = next(iter(vocab))
    if re.fullmatch(r".*\t-?\d[\d.e-]*", first):
        return " but SentencePiece's, whose lines have scores"
    for entry, index in vocab.items():
        word = re.match(r"\W+(pad|unk|cls|sep|mask)\b", entry, re.IGNORECASE)
        if word and entry not in SPECIAL_TOKENS:
            return f" (line {index + 1} is {entry[:20]!r}, not {f'[{word[1].upper()}]'!r})"
    return "" if first in SPECIAL_TOKENS else f" (line {vocab[first] + 1} is {first[:20]!r})"


def unreachable_in_lower_case(vocab: Iterable[str]) -> list[str]:
    """The entries with capitals or accents, which no lower-cased text gives; no special tokens."""
    return [
        entry
        for entry in vocab
        if not (entry.isascii() and entry == entry.lower())  # for speed: most entries
        and entry != "".join(c for c in unicodedata.normalize("NFD", entry.lower()) if unicodedata.category(c) != "Mn")
        and not _SPECIAL.fullmatch(entry)
    ]


def is_cased(vocab: Collection[str]) -> bool:
    """Whether a vocabulary seems that of a cased model. A few cased entries may be words that were added later."""
    return len(unreachable_in_lower_case(vocab)) > len(vocab) / 1000


def check_case_of_vocabulary(vocab: Mapping[str, int], vocab_file: str, do_lower_case: bool | None) -> None:
    """Warns if the case of the vocabulary contradicts `do_lower_case`; None stands for True, which is not explicit."""
    if do_lower_case is None and (found := unreachable_in_lower_case(vocab)):
        logging.warning(
            "%s: %d of %d entries have capitals or accents (such as %r, line %d), and lower-cased text never gives"
            " them. If the model is cased, give --do_lower_case=False; --do_lower_case=True confirms the default",
            vocab_file, len(found), len(vocab), found[0], vocab[found[0]] + 1,
        )  # fmt: skip
    elif do_lower_case is False and all(entry == entry.lower() or _SPECIAL.fullmatch(entry) for entry in vocab):
        logging.warning(
            "%s: no entry has a capital letter, so with --do_lower_case=False every word that has one becomes [UNK]."
            " If the model is uncased, leave the flag out",
            vocab_file,
        )


def check_unknown(name: str, unknown: int, tokens: int) -> None:
    """Warns if many of a text's `tokens`, without [CLS] and [SEP], are [UNK]: a model learns nothing from it."""
    if unknown > _MANY_UNKNOWN * tokens:
        logging.warning(
            "%s: %.0f%% of its %d tokens are [UNK], words that the vocabulary lacks; give one for this language and"
            " script, with the model that belongs to it (for a model of your own, build_vocab.py makes one)",
            name, 100 * unknown / tokens, tokens,
        )  # fmt: skip


def check_never_split(tokens: Iterable[str], name: str) -> None:
    """Raises UserError, which begins with `name`, if a token cannot be one that is never split."""
    for token in tokens:
        if token.split() != [token]:
            raise UserError(f"{name}: {token!r} cannot be kept whole, because blanks separate words; write it without")
        if token in SPECIAL_TOKENS:
            raise UserError(f"{name}: {token} in a text is none of BERT's own, and cannot be kept whole; leave it out")

"""Checks that a vocabulary fits the model and the flags.

The reference accepts any vocabulary; the wrong one, or the wrong case, then costs accuracy without an error.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf2.config import check_vocab_size
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import SPECIAL_TOKENS, FullTokenizer

_MOST_ROUNDED_UP = 128  # by how much vocab_size is commonly rounded up, for the efficiency of a device
_MANY_UNKNOWN = 0.3  # a language or script that the vocabulary was not made for; with its own, it is less than 0.01
# Entries that no text produces: [CLS], and <S> of the Chinese vocabulary, which is uncased.
_SPECIAL = re.compile(r"\[.+\]|<.+>")


def check_special_tokens(vocab: Mapping[str, int], vocab_file: str, tokens: Sequence[str] = SPECIAL_TOKENS) -> None:
    """Checks that a vocabulary has the tokens that a script needs.

    `load_vocab` does not check this; in the reference the first missing token raises a KeyError later.
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
    if re.fullmatch(r".*\t-?\d[\d.e-]*", first):
        return " but SentencePiece's, whose lines have scores"
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

    A few cased entries are not enough: words may have been added to the vocabulary of an uncased model.
    """
    return len(unreachable_in_lower_case(vocab)) > len(vocab) / 1000


def check_case_of_vocabulary(vocab: Mapping[str, int], vocab_file: str, do_lower_case: bool | None) -> None:
    """Warns if the case of the vocabulary contradicts `do_lower_case`; None stands for True, which is not explicit."""
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


def load_tokenizer(vocab_file: str, do_lower_case: bool, vocab_size: int | None = None, **rules: Any) -> FullTokenizer:
    """Loads the tokenizer and checks that it fits a model of `vocab_size` entries; `rules` are FullTokenizer's."""
    check_never_split(rules.get("never_split", ()), vocab_file)
    tokenizer = FullTokenizer(vocab_file, do_lower_case, **rules)
    check_special_tokens(tokenizer.vocab, vocab_file)
    if tokenizer.vocab["[PAD]"] != 0:
        logging.warning(
            "%s: [PAD] is on line %d, but padding has the id 0, as in the reference: that of %r here. It is masked",
            vocab_file, tokenizer.vocab["[PAD]"] + 1, tokenizer.inv_vocab.get(0),
        )  # fmt: skip
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

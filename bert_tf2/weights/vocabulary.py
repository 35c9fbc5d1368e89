"""The vocabulary and the tokenizer of weights, checked against what lies beside them.

The reference takes any vocabulary and either case; wrong ones cost accuracy without an error.
"""

from __future__ import annotations

import os
import re
import tempfile
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence

from absl import logging

from bert_tf2 import tokenization
from bert_tf2.config import BertConfig, check_vocab_size
from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import SPECIAL_TOKENS
from bert_tf2.weights.base import Weights
from bert_tf2.weights.text_rules import Stated, stated_in

_MANY_UNKNOWN = 0.3  # a language or script that the vocabulary was not made for; with its own, it is less than 0.01
_MOST_ROUNDED_UP = 128  # by how much vocab_size is commonly rounded up, for the efficiency of a device
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
    if re.fullmatch(r".*\t-?\d[\d.e-]*", next(iter(vocab))):
        return " but SentencePiece's, whose lines have scores"
    for entry, index in vocab.items():
        word = re.match(r"\W+(pad|unk|cls|sep|mask)\b", entry, re.IGNORECASE)
        if word and entry not in SPECIAL_TOKENS:
            return f" (line {index + 1} is {entry[:20]!r}, not {f'[{word[1].upper()}]'!r})"
    return ""


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


def _check_case(vocab: Mapping[str, int], vocab_file: str, do_lower_case: bool | None) -> None:
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


def stated_text(source: Weights | None, vocab_file: str | None = None) -> Stated:
    """What files beside the weights and the vocabulary say about text: the case is the weights', the rules are its."""
    theirs = source.text if source else None
    is_beside = vocab_file is None or (source and os.path.dirname(vocab_file) == source.folder)
    ours = theirs if is_beside else stated_in(os.path.dirname(vocab_file))
    cases = [(found.path, found.do_lower_case) for found in (theirs, ours) if found]
    case = next(((path, lower) for path, lower in cases if lower is not None), ("", None))
    rules = ours or theirs
    return Stated(*case, dict(rules.rules), rules.remark) if rules else Stated(*case, {})


def find_case(vocab_file: str, source: Weights | None = None) -> tuple[bool, bool]:
    """Whether to lower-case text if nobody said, and whether files state it; else it is what the entries look like."""
    lower = stated_text(source, vocab_file).do_lower_case
    return (not is_cased(entries_of(vocab_file)), False) if lower is None else (lower, True)


def load_tokenizer(
    vocab_file: str,
    do_lower_case: bool | None,
    vocab_size: int | None = None,
    source: Weights | None = None,
    init_checkpoint: str | None = None,
) -> tokenization.FullTokenizer:
    """Creates the tokenizer after checking that its ids are those that the model was trained with.

    `do_lower_case`: None, if it was not given, means True. `vocab_size`: the model's, if there is one.
    `init_checkpoint`: the flag's value, for the reference's check of its release names.
    """
    lower = do_lower_case is not False
    for path in {init_checkpoint, source.path if source else None}:
        tokenization.validate_case_matches_checkpoint(lower, path)
    stated = stated_text(source, vocab_file)
    if stated.do_lower_case not in (None, lower):
        if do_lower_case is None:
            raise UserError(
                f"{stated.path}: says do_lower_case false, but text is lower-cased by default; give"
                " --do_lower_case=False (or --do_lower_case=True, to lower-case it all the same)"
            )
        said = str(stated.do_lower_case).lower()
        logging.warning("%s: says do_lower_case %s; --do_lower_case=%s counts", stated.path, said, lower)
    if stated.remark:
        logging.warning("%s", stated.remark)
    check_never_split(stated.rules.get("never_split", ()), vocab_file)
    tokenizer = tokenization.FullTokenizer(vocab_file, lower, **stated.rules)
    check_special_tokens(tokenizer.vocab, vocab_file)
    if tokenizer.vocab["[PAD]"] != 0:
        logging.warning(
            "%s: [PAD] is on line %d, but padding has the id 0, as in the reference: that of %r here. It is masked",
            vocab_file, tokenizer.vocab["[PAD]"] + 1, tokenizer.inv_vocab.get(0),
        )  # fmt: skip
    if vocab_size is not None:
        entries = max(tokenizer.vocab.values()) + 1
        check_vocab_size(vocab_file, entries, vocab_size)
        if vocab_size - entries >= _MOST_ROUNDED_UP + entries // 100:
            logging.warning(
                "%s: only %d entries, but the model has vocab_size %d; make sure that the file is complete and the"
                " model's own, since words that are not in it become [UNK]",
                vocab_file, entries, vocab_size,
            )  # fmt: skip
    if stated.do_lower_case is None:
        _check_case(tokenizer.vocab, vocab_file, do_lower_case)
    if source:
        check_vocabulary(source, vocab_file, tokenizer.entries)
    return tokenizer


def check_vocabulary(source: Weights, vocab_file: str, ours: Sequence[str] | None = None) -> None:
    """Compares a vocabulary, whose entries are `ours`, with the one beside the weights, if there is one.

    Entries may be appended, be missing at the end, or replace [unused] ones, as happens when words are added.
    """
    try:
        if source.vocabulary_file() == vocab_file:
            return
        theirs = [entry.strip() for entry in source.vocabulary() or ()]
    except UserError as error:  # the user gave another file, which cannot be compared
        logging.warning("%s", error)
        return
    different = [
        (number, there, here)
        for number, (there, here) in enumerate(zip(theirs, ours or entries_of(vocab_file), strict=False), 1)
        if there != here and not there.startswith("[unused") and not here.startswith("[unused")
    ]
    if different:
        number, there, here = different[0]
        raise UserError(
            f"{vocab_file}: is not the vocabulary that lies with the weights {source.path}: {len(different)} entries"
            f" differ, the first on line {number}, {here!r} here and {there!r} there; give that vocabulary as"
            " --vocab_file, or remove it from there if it does not belong to them"
        )


def entries_of(vocab_file: str) -> list[str]:
    """Reads the entries like tokenization.load_vocab, including repeated ones."""
    return [entry.strip() for entry in tokenization.read_entries(vocab_file)]


def find_tokenizer(
    source: Weights, config: BertConfig, vocab_file: str | os.PathLike[str] | None, do_lower_case: bool | None
) -> tokenization.FullTokenizer:
    """The tokenizer of weights; raises UserError as `load`."""
    path = source.vocabulary_file() if vocab_file is None else os.fspath(vocab_file)
    with tempfile.TemporaryDirectory() as folder:
        if path is None:  # it is in another file, for example Hugging Face's tokenizer.json
            entries = source.vocabulary()
            if entries is None:
                raise UserError(
                    f"{source.path}: no vocabulary is found beside the weights (vocab.txt); give its path as vocab_file"
                )
            path = os.path.join(folder, "vocab.txt")
            files.write_text(path, "".join(f"{entry}\n" for entry in entries))
        if do_lower_case is None:
            do_lower_case, _ = find_case(path, source)
        return load_tokenizer(path, do_lower_case, config.vocab_size, source)

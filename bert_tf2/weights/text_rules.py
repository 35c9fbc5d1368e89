"""The rules by which text is split for a model: the files beside its weights, its vocabulary, and its tokenizer.

This project's tokenization.json states the rules, or a Hugging Face folder's tokenizer_config.json, tokenizer.json and
added_tokens.json. Such a folder may have the vocabulary of a BERT and a tokenizer that gives other tokens: settings
that `tokenization` has are used, and anything else is refused. The reference accepts any vocabulary and either case; a
wrong choice costs accuracy without an error.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import logging

from bert_tf2 import tokenization
from bert_tf2.config import BertConfig, check_vocab_size
from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.tokenization import SPECIAL_TOKENS

if TYPE_CHECKING:
    from bert_tf2.weights.base import Weights

TOKENIZATION_FILE = "tokenization.json"
VOCABULARY_FILE = "vocab.txt"

# The classes of transformers with BERT's rules, and classes whose rules are in tokenizer.json.
_CLASSES = re.compile(
    r"((Bert|DistilBert|Electra|MobileBert|ConvBert|SqueezeBert|PreTrained)Tokenizer(Fast)?|TokenizersBackend)"
)
# The parts of a tokenizer.json, with the values that `tokenization` supports.
_PARTS = {
    "normalizer": {"type": "BertNormalizer", "clean_text": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "model": {"type": "WordPiece", "continuing_subword_prefix": "##", "unk_token": "[UNK]"},
}
_NAMES = ("tokenizer_config.json", "tokenizer.json", "added_tokens.json", "special_tokens_map.json")
_NUMBER = re.compile(r"[0-9]{1,9}")
_ROLES = {f"{token.strip('[]').lower()}_token": token for token in SPECIAL_TOKENS}
_MANY_UNKNOWN = 0.3  # a text of another language or script than the vocabulary's; its own has less than 0.01
_MOST_ROUNDED_UP = 128  # the most by which vocab_size is commonly rounded up, for the efficiency of a device
# Entries that no text produces: [CLS], and <S> of the Chinese vocabulary, which is uncased.
_SPECIAL = re.compile(r"\[.+\]|<.+>")


class Stated(NamedTuple):
    """The statements of a folder's files about splitting text."""

    path: str  # the file that states the case, or else the first of the files
    do_lower_case: bool | None  # None if no file states the case
    rules: dict[str, Any]  # of FullTokenizer
    remark: str = ""  # a message for the user about rules that are not the same here


def record_of(do_lower_case: bool | None, rules: Mapping[str, Any]) -> str:
    """Returns the text of a tokenization.json; `rules`: see FullTokenizer. `do_lower_case` None is not written."""
    return files.json_text({**({} if do_lower_case is None else {"do_lower_case": do_lower_case}), **rules})


def _read_record(path: str) -> Stated:
    content = files.read_json(path)
    stated = {name: content.get(name) for name in ("never_split", "strip_accents", "tokenize_chinese_chars")}
    rules = {name: value for name, value in stated.items() if value is not None}
    lower, kept = content.get("do_lower_case"), rules.get("never_split", [])
    flags = [lower, *(value for name, value in rules.items() if name != "never_split")]
    is_right = all(isinstance(flag, bool | None) for flag in flags) and isinstance(kept, list)
    if not is_right or not all(isinstance(token, str) for token in kept):
        raise UserError(
            f"{path}: do_lower_case, strip_accents and tokenize_chinese_chars must be true or false, never_split a list"
            " of strings; correct the file, or remove it"
        )
    return Stated(path, lower, rules)


def stated_in(folder: str) -> Stated | None:
    """Returns the statements of this project's files in a folder, or else of transformers' files; None if none exist.

    If tokenization.json does not state the case, its rules are added to the statements of transformers' files.
    """
    path = files.companion(folder, TOKENIZATION_FILE)
    record = _read_record(path) if path else None
    if record and record.do_lower_case is not None:
        return record
    theirs = in_huggingface(folder)
    return theirs._replace(rules={**theirs.rules, **record.rules}) if record and theirs else record or theirs


class _Files:
    """The content of a folder's files, {} for missing files."""

    def __init__(self, folder: str):
        found = [files.companion(folder, name) for name in (*_NAMES, "config.json")]
        *self.paths, model = found
        self.config, self.whole, self.added, self.special, self.model = (
            files.read_json(path) if path else {} for path in found
        )
        self.paths = [*filter(None, [*self.paths, model if "tokenizer_class" in self.model else None])]
        self.states_case = "do_lower_case" in self.config

    def tokens(self) -> dict[str, dict[str, Any]]:
        """Returns the added tokens: content -> `id`, `normalized` and `single_word`, as far as files state them."""
        decoder = _as(dict, self.config.get("added_tokens_decoder"))
        rows = [row for row in _as(list, self.whole.get("added_tokens")) if isinstance(row, dict)]
        rows += [{**_as(dict, row), "id": int(index)} for index, row in decoder.items() if _NUMBER.fullmatch(index)]
        rows += [{"content": token, "id": index, "normalized": True} for token, index in self.added.items()]
        for name in ("additional_special_tokens", "extra_special_tokens", "never_split"):
            several = self.config.get(name)
            several = several.values() if isinstance(several, dict) else _as(list, several)
            rows += [{"content": _content(token)} for token in several]
        found: dict[str, dict[str, Any]] = {}
        for row in rows:
            if isinstance(content := row.get("content"), str):
                found[content] = {**row, **found.get(content, {})}
        return found

    def foreign(self) -> Iterator[str]:
        """Yields a phrase for each rule that `tokenization` does not have."""
        for content in (self.config, self.model):
            name = content.get("tokenizer_class")
            if isinstance(name, str) and not _CLASSES.fullmatch(name):
                yield f"tokenizer_class is {name}"
        if self.config.get("do_basic_tokenize") is False:
            yield "do_basic_tokenize is false"
        for part, wanted in _PARTS.items():
            parts = _as(dict, self.whole.get(part))
            for key, value in wanted.items() if part in self.whole else ():
                if (found := parts.get(key, value if parts else None)) != value:
                    yield f"{part} has {key} {found!r}, not {value!r}"
        for role, token in _ROLES.items():
            if (name := _content(self.config.get(role) or self.special.get(role))) not in (None, token):
                yield f"{role} is {name!r}, not {token!r}"


def in_huggingface(folder: str) -> Stated | None:
    """Returns the statements of transformers' files in a folder about splitting text; None if there are no such files.

    Raises UserError if the tokenizer has rules that `tokenization` does not have.
    """
    there = _Files(folder)
    if not there.paths:
        return None
    if problems := [*dict.fromkeys(there.foreign())]:
        raise UserError(
            f"{there.paths[0]}: its tokenizer is not BERT's ({and_more(problems, 3, '; ')}), so text would become other"
            " tokens here than in transformers; with such a tokenizer, the weights can be used in transformers only"
        )
    settings = there.config  # a value in this file counts before other files' values
    if not there.states_case:
        names = {"lowercase": "do_lower_case", "handle_chinese_chars": "tokenize_chinese_chars"}
        normalizer = _as(dict, there.whole.get("normalizer")).items()
        settings = {**{names.get(name, name): value for name, value in normalizer}, **settings}
    stated = {name: value for name, value in settings.items() if isinstance(value, bool)}
    lower = stated.get("do_lower_case")
    path = os.path.join(folder, _NAMES[not there.states_case]) if "do_lower_case" in settings else there.paths[0]
    added = {token: row for token, row in there.tokens().items() if token not in SPECIAL_TOKENS}
    rules: dict[str, Any] = {"never_split": sorted(added)} if added else {}
    if stated.get("strip_accents", lower) != lower:
        rules["strip_accents"] = stated["strip_accents"]
    if stated.get("tokenize_chinese_chars") is False:
        rules["tokenize_chinese_chars"] = False
    others = [t for t, row in added.items() if row.get("single_word") or (row.get("normalized") and lower is not False)]
    how = "are found in lower-cased text in transformers, or as whole words only; here, exactly as they are written"
    entries = _as(dict, _as(dict, there.whole.get("model")).get("vocab"))
    if lower is not False and entries and not others:  # here, words are made of added tokens, too
        others = [token for token in added if token not in entries and token.isalnum() and token == token.lower()]
        how = "are found in text with capitals, too; in transformers, only as they are written"
    return Stated(path, lower, rules, f"{path}: the added tokens {and_more(others, 5)} {how}." if others else "")


def vocabulary(folder: str) -> list[str] | None:
    """Returns the entries of a folder's vocabulary, with the added tokens, in the order of their ids.

    None if there is no vocabulary. Raises UserError if the ids are not 0, 1, 2, ...
    """
    there = _Files(folder)
    path = files.companion(folder, VOCABULARY_FILE)
    if path:
        by_id = dict(enumerate(tokenization.read_entries(path)))
        count = len(by_id)
    elif path := files.companion(folder, "tokenizer.json"):
        model = _as(dict, there.whole.get("model"))
        entries = model.get("vocab")
        if model.get("type") not in ("WordPiece", None) or not isinstance(entries, dict):
            raise UserError(f"{path}: is not a tokenizer with the WordPiece vocabulary that BERT has; give a vocab.txt")
        by_id, count = {index: entry for entry, index in entries.items() if isinstance(index, int)}, len(entries)
    else:
        return None
    for token, row in there.tokens().items():
        if isinstance(index := row.get("id"), int):
            count += index not in by_id
            if by_id.setdefault(index, token).strip() != token.strip():
                raise UserError(f"{path}: entry {index} is {by_id[index]!r}, and {token!r} in another file beside it")
    if len(by_id) != count or {*by_id} != {*range(count)}:
        raise UserError(f"{path}: the ids of its {count} entries are not 0, 1, 2, ...; give a vocab.txt")
    return [by_id[index] for index in range(count)]


def _as(kind: type, value: object) -> Any:
    """Returns a value of a file; if it is of another kind, an empty value of this kind."""
    return value if isinstance(value, kind) else kind()


def _content(token: object) -> str | None:
    """Returns the text of a token, which a file may state together with settings; None if there is no text."""
    token = token.get("content") if isinstance(token, Mapping) else token
    return token if isinstance(token, str) else None


# The vocabulary


def check_special_tokens(vocab: Mapping[str, int], vocab_file: str, tokens: Sequence[str] = SPECIAL_TOKENS) -> None:
    """Raises UserError if a vocabulary lacks tokens that a script needs. The reference fails later with a KeyError."""
    if missing := [token for token in tokens if token not in vocab]:
        what = f"has no {', '.join(missing)}, so it is not the vocabulary of a BERT model"
        raise UserError(
            f"{vocab_file}: {what if any(vocab) else 'holds no entries'}; give the vocab.txt beside the model's weights"
            " (entries must not be added to it: each line is a row of the weights), or for a model of your own a"
            " vocabulary that build_vocab.py made"
        )


def unreachable_in_lower_case(vocab: Iterable[str]) -> list[str]:
    """The entries with capitals or accents, which no lower-cased text gives, without special tokens."""
    return [
        entry
        for entry in vocab
        if not (entry.isascii() and entry == entry.lower())  # for speed: most entries
        and entry != "".join(c for c in unicodedata.normalize("NFD", entry.lower()) if unicodedata.category(c) != "Mn")
        and not _SPECIAL.fullmatch(entry)
    ]


def is_cased(vocab: Collection[str]) -> bool:
    """Whether a vocabulary seems to be a cased model's. A few cased entries may be words that were added later."""
    return len(unreachable_in_lower_case(vocab)) > len(vocab) / 1000


def _check_case(vocab: Mapping[str, int], vocab_file: str, do_lower_case: bool | None) -> None:
    """Warns if the case of the vocabulary contradicts `do_lower_case`; None means True by default."""
    if do_lower_case is None and (found := unreachable_in_lower_case(vocab)):
        logging.warning(
            "%s: %d of %d entries have capitals or accents (such as %r, line %d), and lower-cased text never gives"
            " them. If the model is cased, give --do_lower_case=False; --do_lower_case=True confirms the default",
            vocab_file, len(found), len(vocab), found[0], vocab[found[0]] + 1,
        )  # fmt: skip
    elif do_lower_case is False and all(entry == entry.lower() or _SPECIAL.fullmatch(entry) for entry in vocab):
        logging.warning(
            "%s: no entry has a capital letter, so with do_lower_case=False every word that has one becomes [UNK]."
            " If the model is uncased, leave do_lower_case out",
            vocab_file,
        )


def check_unknown(name: str, unknown: int, tokens: int) -> None:
    """Warns if many of a text's `tokens`, without [CLS] and [SEP], are [UNK]: a model learns nothing from the text."""
    if unknown > _MANY_UNKNOWN * tokens:
        logging.warning(
            "%s: %.0f%% of its %d tokens are [UNK], words that the vocabulary lacks; give a vocabulary for this"
            " language and script, and its model (for a model of your own, build_vocab.py makes a vocabulary)",
            name, 100 * unknown / tokens, tokens,
        )  # fmt: skip


def check_unknown_ids(name: str, ids: Sequence[int], tokenizer: tokenization.FullTokenizer) -> None:
    """`check_unknown` for the ids of rows without padding, in a list or an array."""
    count = ids.count if isinstance(ids, list) else lambda one: int((ids == one).sum())
    unknown, cls, sep = map(count, tokenizer.convert_tokens_to_ids(["[UNK]", "[CLS]", "[SEP]"]))
    check_unknown(name, unknown, len(ids) - cls - sep)


def check_never_split(tokens: Iterable[str], name: str) -> None:
    """Raises UserError, which begins with `name`, if a token cannot be kept whole."""
    for token in tokens:
        if token.split() != [token]:
            raise UserError(f"{name}: {token!r} cannot be kept whole, because blanks separate words; write it without")
        if token in SPECIAL_TOKENS:
            raise UserError(f"{name}: {token} is one of BERT's special tokens; remove it from this list")


def stated_text(source: Weights | None, vocab_file: str | None = None) -> Stated:
    """The statements of the files beside the weights and beside the vocabulary.

    The case is taken from the weights' files first, the other rules from the vocabulary's files first.
    """
    theirs = source.text if source else None
    is_beside = vocab_file is None or (source and os.path.dirname(vocab_file) == source.folder)
    ours = theirs if is_beside else stated_in(os.path.dirname(vocab_file))
    cases = [(found.path, found.do_lower_case) for found in (theirs, ours) if found]
    case = next(((path, lower) for path, lower in cases if lower is not None), ("", None))
    rules = ours or theirs
    return Stated(*case, dict(rules.rules), rules.remark) if rules else Stated(*case, {})


def find_case(
    vocab_file: str, source: Weights | None = None, entries: Sequence[str] | None = None
) -> tuple[bool, bool]:
    """Returns whether to lower-case text, and whether files state this. Without a statement, the entries decide."""
    lower = stated_text(source, vocab_file).do_lower_case
    return (not is_cased(entries or entries_of(vocab_file)), False) if lower is None else (lower, True)


def load_tokenizer(
    vocab_file: str,
    do_lower_case: bool | None,
    vocab_size: int | None = None,
    source: Weights | None = None,
    init_checkpoint: str | None = None,
    entries: Sequence[str] | None = None,
) -> tokenization.FullTokenizer:
    """Creates the tokenizer, after checking that the model was trained with the same ids and case.

    `do_lower_case` None means True. `init_checkpoint`: the flag's value, for the reference's check of its releases.
    `entries`: see FullTokenizer. Raises UserError if a check fails, and warns of doubtful settings.
    """
    lower = do_lower_case is not False
    for path in {init_checkpoint, source.path if source else None}:
        tokenization.validate_case_matches_checkpoint(lower, path)
    stated = stated_text(source, vocab_file)
    if stated.do_lower_case not in (None, lower):
        if do_lower_case is None:
            raise UserError(
                f"{stated.path}: says do_lower_case false, but text is lower-cased by default; give"
                " --do_lower_case=False (or --do_lower_case=True, to lower-case text all the same)"
            )
        case = str(stated.do_lower_case).lower()
        logging.warning("%s: says do_lower_case %s; --do_lower_case=%s is used instead", stated.path, case, lower)
    if stated.remark:
        logging.warning("%s", stated.remark)
    check_never_split(stated.rules.get("never_split", ()), vocab_file)
    tokenizer = tokenization.FullTokenizer(vocab_file, lower, entries=entries, **stated.rules)
    check_special_tokens(tokenizer.vocab, vocab_file)
    if tokenizer.vocab["[PAD]"] != 0:
        logging.warning(
            "%s: [PAD] is on line %d, but padding has the id 0, as in the reference: the id of %r here. It is masked",
            vocab_file, tokenizer.vocab["[PAD]"] + 1, tokenizer.inv_vocab.get(0),
        )  # fmt: skip
    if vocab_size is not None:
        count = max(tokenizer.vocab.values()) + 1
        check_vocab_size(vocab_file, count, vocab_size)
        if vocab_size - count >= _MOST_ROUNDED_UP + count // 100:
            logging.warning(
                "%s: only %d entries, but the model has vocab_size %d; make sure that the file is complete and the"
                " model's own, because words that are not in it become [UNK]",
                vocab_file, count, vocab_size,
            )  # fmt: skip
    if stated.do_lower_case is None:
        _check_case(tokenizer.vocab, vocab_file, do_lower_case)
    if source:
        check_vocabulary(source, vocab_file, tokenizer.entries)
    return tokenizer


def check_vocabulary(source: Weights, vocab_file: str, ours: Sequence[str]) -> None:
    """Raises UserError if a vocabulary, whose entries are `ours`, differs from the vocabulary beside the weights.

    Entries may be appended, be missing at the end (a warning), or replace [unused] entries, as happens when words are
    added.
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
        for number, (there, here) in enumerate(zip(theirs, ours, strict=False), 1)
        if there != here and not there.startswith("[unused") and not here.startswith("[unused")
    ]
    if different:
        number, there, here = different[0]
        raise UserError(
            f"{vocab_file}: is not the vocabulary beside the weights {source.path}: {len(different)} entries differ,"
            f" the first on line {number}, {here!r} here and {there!r} there; give the vocabulary beside the weights as"
            " --vocab_file, or remove it from there if it does not belong to the weights"
        )
    if lost := [entry for entry in theirs[len(ours) :] if not entry.startswith("[unused")]:
        what = "%s: lacks the last %d entries of the vocabulary beside the weights, from %r; is the file complete?"
        logging.warning(what, vocab_file, len(lost), lost[0])


def entries_of(vocab_file: str) -> list[str]:
    """Reads the entries like tokenization.load_vocab, including repeated entries."""
    return [entry.strip() for entry in tokenization.read_entries(vocab_file)]


def find_tokenizer(
    source: Weights, config: BertConfig, vocab_file: str | os.PathLike[str] | None, do_lower_case: bool | None
) -> tokenization.FullTokenizer:
    """Returns the tokenizer of weights. Raises UserError if there is no vocabulary, or one that does not fit."""
    path, entries = source.vocabulary_file() if vocab_file is None else os.fspath(vocab_file), None
    if path is None:
        if (entries := source.vocabulary()) is None:
            raise UserError(
                f"{source.path}: no vocabulary is found beside the weights (vocab.txt); copy it there, or give its path"
                " as --vocab_file"
            )
        path = os.path.join(source.folder, "tokenizer.json")  # of Hugging Face, which has all entries or some
        entries = [entry.strip() for entry in entries]
    if do_lower_case is None:
        do_lower_case, _ = find_case(path, source, entries)
    return load_tokenizer(path, do_lower_case, config.vocab_size, source, entries=entries)

"""How files beside weights or a vocabulary say that text is split.

This project's tokenization.json says it, or a Hugging Face folder's tokenizer_config.json, tokenizer.json and
added_tokens.json. Such a folder may have the vocabulary of a BERT and a tokenizer that gives other tokens: settings of
`tokenization` are taken over, and anything else is refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from bert_tf2 import tokenization
from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more

TOKENIZATION_FILE = "tokenization.json"
VOCABULARY_FILE = "vocab.txt"

# The classes of transformers with BERT's rules, and those whose rules are what tokenizer.json says.
_CLASSES = re.compile(
    r"((Bert|DistilBert|Electra|MobileBert|ConvBert|SqueezeBert|PreTrained)Tokenizer(Fast)?|TokenizersBackend)"
)
# The parts of a tokenizer.json that `tokenization` has, in one way.
_PARTS = {
    "normalizer": {"type": "BertNormalizer", "clean_text": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "model": {"type": "WordPiece", "continuing_subword_prefix": "##", "unk_token": "[UNK]"},
}
_NAMES = ("tokenizer_config.json", "tokenizer.json", "added_tokens.json", "special_tokens_map.json")
_NUMBER = re.compile(r"[0-9]{1,9}")
_ROLES = {f"{token.strip('[]').lower()}_token": token for token in tokenization.SPECIAL_TOKENS}


class Stated(NamedTuple):
    """What the files of a folder say."""

    path: str  # the file that states the case, or else the first of them
    do_lower_case: bool | None  # None if no file states it
    rules: dict[str, Any]  # of FullTokenizer
    remark: str = ""  # what is not the same here, for the user


def record_of(do_lower_case: bool | None, rules: Mapping[str, Any]) -> str:
    """Returns the text of a tokenization.json; `rules` are FullTokenizer's, and None is a case that nobody stated."""
    content = {**({} if do_lower_case is None else {"do_lower_case": do_lower_case}), **rules}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _read_record(path: str) -> Stated:
    content = files.read_json(path)
    said = {name: content.get(name) for name in ("never_split", "strip_accents", "tokenize_chinese_chars")}
    rules = {name: value for name, value in said.items() if value is not None}
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
    """Returns what the files of this project in a folder say about how text is split, or else those of transformers."""
    path = files.companion(folder, TOKENIZATION_FILE)
    record = _read_record(path) if path else None
    if record and record.do_lower_case is not None:
        return record
    theirs = in_huggingface(folder)
    return theirs._replace(rules={**theirs.rules, **record.rules}) if record and theirs else record or theirs


class _Files:
    """The content of a folder's files, {} for those that are not there."""

    def __init__(self, folder: str):
        found = [files.companion(folder, name) for name in (*_NAMES, "config.json")]
        *self.paths, model = found
        self.config, self.whole, self.added, self.special, self.model = (
            files.read_json(path) if path else {} for path in found
        )
        self.paths = [*filter(None, [*self.paths, model if "tokenizer_class" in self.model else None])]
        self.states_case = "do_lower_case" in self.config

    def tokens(self) -> dict[str, dict[str, Any]]:
        """Returns the added tokens: content -> `id`, `normalized` and `single_word`, as far as they are stated."""
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
            said = _as(dict, self.whole.get(part))
            for key, value in wanted.items() if part in self.whole else ():
                if (found := said.get(key, value if said else None)) != value:
                    yield f"{part} has {key} {found!r}, not {value!r}"
        for role, token in _ROLES.items():
            if (name := _content(self.config.get(role) or self.special.get(role))) not in (None, token):
                yield f"{role} is {name!r}, not {token!r}"


def in_huggingface(folder: str) -> Stated | None:
    """Returns what the files of transformers in a folder say about how text is split; None if there are none."""
    there = _Files(folder)
    if not there.paths:
        return None
    if problems := [*dict.fromkeys(there.foreign())]:
        raise UserError(
            f"{there.paths[0]}: its tokenizer is not BERT's ({and_more(problems, 3, '; ')}), so that text would become"
            " other tokens here than there; with such a tokenizer, the weights can be used in transformers only"
        )
    settings = there.config  # what it says counts where it says anything
    if not there.states_case:
        names = {"lowercase": "do_lower_case", "handle_chinese_chars": "tokenize_chinese_chars"}
        normalizer = _as(dict, there.whole.get("normalizer")).items()
        settings = {**{names.get(name, name): value for name, value in normalizer}, **settings}
    stated = {name: value for name, value in settings.items() if isinstance(value, bool)}
    lower = stated.get("do_lower_case")
    path = os.path.join(folder, _NAMES[not there.states_case]) if "do_lower_case" in settings else there.paths[0]
    added = {token: row for token, row in there.tokens().items() if token not in tokenization.SPECIAL_TOKENS}
    rules: dict[str, Any] = {"never_split": sorted(added)} if added else {}
    if stated.get("strip_accents", lower) != lower:
        rules["strip_accents"] = stated["strip_accents"]
    if stated.get("tokenize_chinese_chars") is False:
        rules["tokenize_chinese_chars"] = False
    others = [t for t, row in added.items() if row.get("single_word") or (row.get("normalized") and lower is not False)]
    how = "are found in lower-cased text there, or as whole words only; here, exactly as they are written"
    return Stated(path, lower, rules, f"{path}: the added tokens {and_more(others, 5)} {how}." if others else "")


def vocabulary(folder: str) -> list[str] | None:
    """Returns the entries of a folder's vocabulary, with the added tokens, by their ids; None if there is none."""
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
    """Returns a value of a file; an empty one if it is of another kind."""
    return value if isinstance(value, kind) else kind()


def _content(token: object) -> str | None:
    """Returns the text of a token, which may be stated with its settings."""
    token = token.get("content") if isinstance(token, Mapping) else token
    return token if isinstance(token, str) else None

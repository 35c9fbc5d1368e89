"""Sentences with `[MASK]`: splits them into segments and tokens, checks them, and fills the blanks with words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from bert_tf2 import tokenization
from bert_tf2.config import BertConfig
from bert_tf2.support.errors import UserError

MASK = "[MASK]"
SEGMENT_SEPARATOR = " ||| "


def split_segments(text: str) -> list[str]:
    """Splits a text into one or two segments, at the last separator, as the reference does."""
    first, separator, second = text.rpartition(SEGMENT_SEPARATOR)
    return [first, second] if separator else [text]


def tokenize(segment: str, tokenizer: tokenization.FullTokenizer) -> list[str]:
    """The pieces of a segment; [MASK] is kept whole, since the tokenizer would split it."""
    first, *others = segment.split(MASK)
    tokens = tokenizer.tokenize(first)
    for part in others:
        tokens += [MASK, *tokenizer.tokenize(part)]
    return tokens


def check_blanks(text: str, where: str) -> None:
    """Raises UserError if there is no `[MASK]`, or a `[mask]` is not in capitals."""
    check_spelling(text, where)
    if MASK not in text:
        raise UserError(f"{where}: holds no {MASK}; write {MASK} where a word is to be found")


def check_spelling(text: str, where: str) -> None:
    """Raises UserError if a `[mask]` is not in capitals."""
    # As text, "[mask]" would become three tokens, which is rarely intended ("[ mask ]" gives the same tokens).
    for found in re.findall(r"\[mask\]", text, re.IGNORECASE):
        if found != MASK:
            raise UserError(f"{where} holds {found}; a blank is written {MASK}, in capitals")


def check_fits(num_tokens: int, num_segments: int, config: BertConfig, max_seq_length: int, where: str) -> None:
    """Raises UserError if the model cannot read `num_tokens` tokens or `num_segments` segments."""
    positions = config.max_position_embeddings
    if num_tokens > min(max_seq_length, positions):
        if max_seq_length < positions:
            limit = f"--max_seq_length is {max_seq_length}; raise it (this model reads at most {positions})"
        else:
            limit = f"this model reads at most {positions} (max_position_embeddings); shorten the sentence"
        raise UserError(f"{where} has {num_tokens} tokens with [CLS] and [SEP]; {limit} or split it")
    if num_segments > config.type_vocab_size:
        raise UserError(f"{where} has two segments, but the model knows one (type_vocab_size 1); leave out the |||")


def fill(text: str, words: Iterable[str]) -> str:
    """Replaces every `[MASK]` of the text by a word; a `##` piece joins the word before it."""
    remaining = iter(words)
    return SEGMENT_SEPARATOR.join(_fill_segment(segment, remaining) for segment in split_segments(text))


def _fill_segment(segment: str, words: Iterator[str]) -> str:
    filled, *others = segment.split(MASK)
    for part in others:
        word = next(words)
        filled = filled.rstrip() + word.removeprefix("##") if word.startswith("##") else filled + word
        filled += part
    return filled

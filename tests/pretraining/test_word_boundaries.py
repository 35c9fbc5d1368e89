"""--word_boundaries=spaces: what a word is for whole-word masking."""

from __future__ import annotations

import sys

import pytest
from pretraining_text import VOCABULARY

from bert_tf2 import tokenization
from bert_tf2.pretraining import PretrainingDataOptions, examples, masking
from bert_tf2.pretraining import corpus as corpora
from bert_tf2.pretraining.corpus import SPACES
from bert_tf2.tokenization import FullTokenizer

CHINESE = "\u6211\u5011\u559c\u6b61\u8b80\u66f8"


@pytest.fixture
def chinese(tmp_path):
    (tmp_path / "chinese.txt").write_text("\n".join([*VOCABULARY, *CHINESE]) + "\n", encoding="utf-8")
    return FullTokenizer(str(tmp_path / "chinese.txt"))


PIECES = PretrainingDataOptions(do_whole_word_mask=True)
AT_SPACES = PretrainingDataOptions(do_whole_word_mask=True, word_boundaries="spaces")


def test_spaces_are_what_the_tokenizer_takes_for_them():
    for code in range(sys.maxunicode + 1):
        assert bool(SPACES.fullmatch(chr(code))) == tokenization._is_whitespace(chr(code)), hex(code)


def words_of(text, tokenizer, tmp_path):
    """The words of a document of one line, each as its tokens joined."""
    (tmp_path / "text").write_text(text, encoding="utf-8")
    text = corpora.read_strings([str(tmp_path / "text")], tokenizer, AT_SPACES)
    found: list[list[str]] = []
    for token, kind in zip(text.tokens, text.kinds, strict=True):
        found.append([token]) if kind == masking.BEGINS else found[-1].append(token)
    return ["".join(word) for word in found]


def test_what_stands_between_two_spaces_is_a_word(tmp_path, chinese):
    we, like, read, book = CHINESE[:2], CHINESE[2:4], CHINESE[4], CHINESE[5]
    assert words_of(f"{we} {like}\u3000{read}\t{book}abc.  a", chinese, tmp_path) == [
        we, like, read, f"{book}a##b##c.", "a",
    ]  # fmt: skip


def test_a_word_without_tokens_is_none(tmp_path, chinese):
    assert words_of("ab \x00 c", chinese, tmp_path) == ["a##b", "c"]


@pytest.mark.parametrize(("boundaries", "kind"), [("pieces", masking.CONTINUES), ("spaces", masking.BEGINS)])
def test_a_segment_that_was_cut_inside_a_word_begins_one(monkeypatch, tmp_path, tokenizer, boundaries, kind):
    """With pieces, as in the reference, B's first ones belong to the last word of A."""
    (tmp_path / "text").write_text("ab cd.\nefg h\n")
    options = PretrainingDataOptions(do_whole_word_mask=True, word_boundaries=boundaries)
    seen = []
    monkeypatch.setattr(masking, "choose", lambda count, kinds, *_: seen.append([*kinds]) or [])
    text = corpora.read_strings([str(tmp_path / "text")], tokenizer, options)
    maker = examples.ExampleMaker(text, ["[MASK]"], VOCABULARY, options, None)
    monkeypatch.setattr(masking, "draw_replacements", lambda *_: [])
    maker._make(0, 5, 6, 3, True)  # a ##b c ##d . | ##f ##g h
    assert seen == [[1, 0, 1, 0, boundaries == "pieces", kind, 0, 1]]


def test_spaces_change_no_token(tmp_path, tokenizer, corpus):
    for read in (corpora.read, corpora.read_strings):
        one, other = (read([corpus], tokenizer, options) for options in (PIECES, AT_SPACES))
        assert [*one.tokens] == [*other.tokens] and one.kinds == other.kinds
        assert (one.bounds, one.documents) == (other.bounds, other.documents)

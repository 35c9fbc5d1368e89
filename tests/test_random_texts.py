"""Random texts and code points: the tokenizers give what a plain statement of the rules does.

The rules are those of google-research/bert, written down once more in benchmarks/tokenization.py, one after the other
and without a cache. exporting/test_graph_tokenization.py compares the tokenizer of a graph with the one in Python.
"""

from __future__ import annotations

import pathlib
import random
import string
import sys
import unicodedata

import pytest
from mutations import lengths

from bert_tf2 import tokenization

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "benchmarks"))
from tokenization import pieces_by_the_rules, words_by_the_rules

CODES = 0x110000


def having(*categories: str) -> list[int]:
    return [code for code in range(CODES) if unicodedata.category(chr(code)).startswith(categories)]


LETTERS = [*map(ord, string.ascii_letters)]
CHINESE = (0x3400, 0x4DC0, 0x4E00, 0xA000, 0xF900, 0xFB00, 0x20000, 0x2A6E0, 0x2A700, 0x2CEB0, 0x2F800, 0x2FA20)
CHANGING = (
    "Σ\u03c3ς\u0391ΌİI\u0131ßﬀǅÅé"
    "\u1e9b\u0345\u03d2\u212b\u2126\u1fef\u037e\u2260한각\u1112\u1161\u11a8กำ\u0e4d\u3099かガｶ"
)
SOURCES = (
    *(LETTERS, LETTERS, LETTERS, LETTERS, [*map(ord, " \t\n\r\x0b\xa0")], [*map(ord, CHANGING)]),
    *(having("M"), having("Cc", "Cf", "Z"), having("P", "S")),
    [*map(ord, "👩👨👧🏽🏿🙂❤🏳🇩🇪1#*\u200d\ufe0f\ufe0e\u20e3\U000e0067\U000e007f")],
    [block + place for block in CHINESE for place in range(-2, 3)],
    *(range(0x80), range(0x800), range(0x10000), range(0x10000, 0x40000), range(CODES)),  # halves of characters, too
)


def random_text(draw: random.Random) -> str:
    """Parts of few characters of one kind; some have a word around the lengths at which something could change."""
    parts = [draw.choices(draw.choice(SOURCES), k=draw.randint(1, 6)) for _ in range(draw.randint(1, 9))]
    if draw.random() < 0.03:
        few = draw.choice(("ab", "aé", "a\u0301", "aΣ", string.ascii_letters))
        parts.append([*map(ord, draw.choices(few, k=draw.choice((100, 101, 199, 200, 201, draw.randint(64, 600)))))])
    draw.shuffle(parts)
    return "".join("".join(map(chr, part)) + draw.choice(("", "", " ")) for part in parts)


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory) -> str:
    """Single letters, and parts of words as they are after the first steps, cased and uncased."""
    draw, found = random.Random(0), {*string.ascii_letters, *(f"##{letter}" for letter in string.ascii_letters)}
    for _ in range(3000):
        text = random_text(draw)
        for word in (*words_by_the_rules(text, True), *words_by_the_rules(text, False)):
            start, length = draw.randrange(len(word)), draw.randint(1, 5)
            found |= {word[:length], f"##{word[start : start + length]}", f"##{draw.choice(word)}"}
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    entries = [*tokenization.SPECIAL_TOKENS, *sorted(found)]
    path.write_bytes("".join(f"{entry}\n" for entry in entries).encode("utf-8", "ignore"))
    return str(path)


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def tokenizer(request, vocab_file) -> tokenization.FullTokenizer:
    return tokenization.FullTokenizer(vocab_file, do_lower_case=request.param)


def check(tokenizer: tokenization.FullTokenizer, text: str) -> None:
    words = words_by_the_rules(text, tokenizer.basic_tokenizer.do_lower_case)
    pieces = [*pieces_by_the_rules(words, tokenizer.vocab)]
    assert tokenizer.basic_tokenizer.tokenize(text) == words, ascii(text)
    assert tokenizer.wordpiece_tokenizer.tokenize(" ".join(words)) == pieces, ascii(text)
    assert tokenizer.tokenize(text) == pieces, ascii(text)


@lengths(3000, 200_000)
def test_random_texts(tokenizer, examples):
    draw = random.Random(examples)
    for _ in range(examples):
        check(tokenizer, random_text(draw))


@lengths(3000, CODES)
def test_code_points_alone_and_between_letters(tokenizer, examples):
    for code in [*range(0x600), *range(0x600, CODES, CODES // examples)]:
        for form in ("x", "axb", "Ax Σxx"):
            check(tokenizer, form.replace("x", chr(code)))


def test_other_rules_are_noticed(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer.wordpiece_tokenizer, "max_input_chars_per_word", 100)
    with pytest.raises(AssertionError):
        check(tokenizer, "a" * 150)

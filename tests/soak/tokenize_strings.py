"""Tokenizes random strings and every code point, and compares with a plain statement of the rules.

    PYTHONPATH=tests python tests/soak/tokenize_strings.py --strings=1000000

The rules are those of google-research/bert, written down once more in benchmarks/tokenization.py, one after the other
and without a cache. All ways through the package must agree with them, for cased and for uncased text: BasicTokenizer,
its methods for subclasses, WordpieceTokenizer, FullTokenizer, and the tokenizer in the graph of a SavedModel. Prints
how far it is, then the number of comparisons, and exits with 1 at the first difference, which it shows.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import pathlib
import random
import sys
import tempfile
import unicodedata
from collections.abc import Iterable

from bert_tf2 import tokenization

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))
from tokenization import pieces_by_the_rules, words_by_the_rules

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CHUNK = 10_000  # strings, of one seed
CODES = 0x110000

# The strings.

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MARKS = [chr(code) for code in range(CODES) if unicodedata.category(chr(code)).startswith("M")]
_CONTROLS = [chr(code) for code in range(CODES) if unicodedata.category(chr(code)) in ("Cc", "Cf", "Zs", "Zl", "Zp")]
_PUNCTUATION = [chr(code) for code in range(CODES) if unicodedata.category(chr(code))[0] in "PS"]
_CHINESE = (range(0x3400, 0x4E00), range(0x4E00, 0xA000), range(0xF900, 0xFB00), range(0x20000, 0x2FA20))
_EMOJI = "👩👨👧🏽🏿🙂❤🏳🇩🇪1#*\u200d\ufe0f\ufe0e\u20e3\U000e0067\U000e007f"
_CHANGING = (
    "Σ\u03c3ς\u0391ΌİI\u0131ßﬀǅÅé"
    "\u1e9b\u0345\u03d2\u212b\u2126\u1fef\u037e\u2260한각\u1112\u1161\u11a8กำ\u0e4d\u3099かガｶ"
)
_PLANES = (range(0x80), range(0x800), range(0x10000), range(0x10000, 0x20000), range(0x20000, 0x40000), range(CODES))


def _is_surrogate(code: int) -> bool:
    return 0xD800 <= code < 0xE000


def _anywhere(draw: random.Random) -> str:
    codes = (draw.choice(draw.choice(_PLANES)) for _ in range(draw.randint(1, 6)))
    return "".join(chr(code) for code in codes if not _is_surrogate(code))


def _word(draw: random.Random) -> str:
    return "".join(draw.choices(_LETTERS, k=draw.randint(1, 9)))


def _accented(draw: random.Random) -> str:
    return draw.choice(_LETTERS) + "".join(draw.choices(_MARKS, k=draw.randint(1, 4))) + draw.choice(_LETTERS)


def _mixed(source: str | list[str], most: int):
    return lambda draw: "".join(draw.choices(source, k=draw.randint(1, most)))


def _chinese(draw: random.Random) -> str:
    """Also the code points next to a block."""
    block = draw.choice(_CHINESE)
    return "".join(chr(draw.randint(block[0] - 1, block[-1] + 1)) for _ in range(draw.randint(1, 4)))


def _long(draw: random.Random) -> str:
    """A word around the lengths at which something could change, of few letters, so that it may have pieces."""
    length = draw.choice((64, 65, 100, 101, 199, 200, 201, draw.randint(90, 210), draw.randint(200, 600)))
    return "".join(draw.choices(draw.choice(("ab", "aé", "a\u0301", "aΣ", _LETTERS)), k=length))


_PARTS = (
    *(_word, _word, _word, _accented, _chinese, _anywhere, _anywhere),
    *(_mixed(_CONTROLS, 3), _mixed(_PUNCTUATION, 3), _mixed(_EMOJI, 5), _mixed(_CHANGING, 4)),
    _mixed(" \t\n\r\x0b\xa0", 3),
)  # fmt: skip
_SURROGATES = "\ud800\udbff\udc00\udfff"


def random_string(draw: random.Random) -> str:
    parts = [part(draw) + draw.choice(("", "", " ")) for part in draw.choices(_PARTS, k=draw.randint(1, 9))]
    if draw.random() < 0.03:
        parts.append(_long(draw))
    if draw.random() < 0.01:
        parts.append(draw.choice(_SURROGATES))  # half a character, which no UTF-8 text has, but a str may have
    draw.shuffle(parts)
    return "".join(parts)


def vocabulary(draw: random.Random) -> list[str]:
    """Single characters, and parts of words as they are after the first steps, cased and uncased."""
    found = {*"ab", "##a", "##b", *_LETTERS, *(f"##{letter}" for letter in _LETTERS)}
    for _ in range(3000):
        text = random_string(draw)
        for word in (*words_by_the_rules(text, True), *words_by_the_rules(text, False)):
            start, length = draw.randrange(len(word)), draw.randint(1, 5)
            found |= {word[:length], f"##{word[start : start + length]}", f"##{draw.choice(word)}"}
    return [*SPECIAL, *sorted(entry for entry in found if not any(_is_surrogate(ord(char)) for char in entry))]


# The comparison.


class Sides:
    """The tokenizers of the package, for one vocabulary and one case."""

    def __init__(self, vocab_file: str, lower: bool, graph: bool = False):
        self.lower = lower
        self.full = tokenization.FullTokenizer(vocab_file, do_lower_case=lower)
        self.pieces = tokenization.WordpieceTokenizer(self.full.vocab)
        self.graph = _graph(self.full) if graph else None

    def compare(self, text: str) -> list[str]:
        """Compares everything in Python; returns the pieces."""
        words = words_by_the_rules(text, self.lower)
        pieces = [*pieces_by_the_rules(words, self.full.vocab)]
        self._expect("BasicTokenizer", text, self.full.basic_tokenizer.tokenize(text), words)
        self._expect("WordpieceTokenizer", text, self.pieces.tokenize(" ".join(words)), pieces)
        self._expect("FullTokenizer", text, self.full.tokenize(text), pieces)
        return pieces

    def compare_graph(self, texts: list[str], pieces: list[list[str]]) -> None:
        ids = self.graph([text.encode() for text in texts])
        for text, found, expected in zip(texts, ids, pieces, strict=True):
            self._expect("graph", text, self.full.convert_ids_to_tokens(found), expected)

    def _expect(self, what: str, text: str, found: list[str], expected: list[str]) -> None:
        if found != expected:
            case = "uncased" if self.lower else "cased"
            raise AssertionError(f"{what}, {case}, {text!r}: {found} instead of {expected}")


def _graph(tokenizer: tokenization.FullTokenizer):
    import tensorflow as tf

    from bert_tf2.exporting.graph_tokenization import GraphTokenizer

    made = GraphTokenizer(tokenizer)
    tokenize = tf.function(made.tokenize, input_signature=[tf.TensorSpec([None], tf.string)])
    return lambda texts: tokenize(tf.constant(texts, tf.string)).ids.to_list()


def compare_strings(sides: Iterable[Sides], seed: int, count: int) -> int:
    """Compares random strings; returns the number of comparisons."""
    draw = random.Random(seed)
    texts = [random_string(draw) for _ in range(count)]
    return sum(_compare_all(side, texts) for side in sides)


def compare_codes(sides: Iterable[Sides], codes: Iterable[int]) -> int:
    """Compares code points alone and between letters."""
    texts = [form.replace("x", chr(code)) for code in codes for form in ("x", "axb", "Ax Σxx")]
    return sum(_compare_all(side, texts) for side in sides)


def _compare_all(side: Sides, texts: list[str]) -> int:
    pieces = [side.compare(text) for text in texts]
    if side.graph is None:
        return 4 * len(texts)
    whole = [number for number, text in enumerate(texts) if not any(_is_surrogate(ord(char)) for char in text)]
    for first in range(0, len(whole), 500):
        numbers = whole[first : first + 500]
        side.compare_graph([texts[number] for number in numbers], [pieces[number] for number in numbers])
    return 4 * len(texts) + len(whole)


def write_vocabulary(folder: pathlib.Path) -> str:
    path = folder / "vocab.txt"
    path.write_text("".join(f"{entry}\n" for entry in vocabulary(random.Random(0))), encoding="utf-8", newline="")
    return str(path)


@functools.cache
def _sides(vocab_file: str) -> list[Sides]:
    return [Sides(vocab_file, lower, graph=True) for lower in (True, False)]


def _work(task: tuple[str, int, int]) -> tuple[int, str]:
    """A chunk of strings, or with a count of 0 of code points; the number of comparisons, or a difference."""
    vocab_file, number, count = task
    try:
        if count:
            return compare_strings(_sides(vocab_file), number, count), ""
        return compare_codes(_sides(vocab_file), range(number * CHUNK, min((number + 1) * CHUNK, CODES))), ""
    except AssertionError as difference:
        return 0, str(difference)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strings", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    done = codes = compared = 0
    with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        vocab_file = write_vocabulary(pathlib.Path(folder))
        tasks = [(vocab_file, number, 0) for number in range(-(-CODES // CHUNK))]
        sizes = [min(CHUNK, options.strings - first) for first in range(0, options.strings, CHUNK)]
        tasks += [(vocab_file, options.seed * 1_000_000 + number, size) for number, size in enumerate(sizes)]
        for index, (comparisons, difference) in enumerate(pool.imap(_work, tasks), 1):
            if difference:
                sys.exit(difference)
            _, number, count = tasks[index - 1]
            done, compared = done + count, compared + comparisons
            codes = codes if count else min((number + 1) * CHUNK, CODES)
            if index % 10 == 0:
                print(f"{codes:,} code points, {done:,} strings: no difference", flush=True)
    print(f"{codes:,} code points and {done:,} strings in {compared:,} comparisons: no difference")


if __name__ == "__main__":
    main()

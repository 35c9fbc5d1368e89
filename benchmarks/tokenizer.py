"""Measures the tokenizer in lines per second, compared with the reference's algorithm on the same text.

    python benchmarks/tokenizer.py --input_file=corpus.txt --vocab_file=vocab.txt

The other side is a separate implementation of google-research/bert's algorithm, character by character and without
caches. Both must give the same pieces for the whole input, or the benchmark stops. Our tokenizer
starts each round with an empty cache.
"""

from __future__ import annotations

import statistics
import time
import unicodedata
from collections.abc import Collection, Iterable, Iterator

import machine

from bert_tf2 import tokenization
from bert_tf2.support import files, flags
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import DATA, TO_DO, Options, options, setting


@options
class BenchmarkOptions(Options):
    """Measures the tokenizer in lines per second, compared with the reference's algorithm on the same text."""

    input_file: str = setting("Text, one sentence a line; commas and globs.", machine.CORPUS, group=DATA)
    vocab_file: str = setting("The vocabulary.", machine.VOCAB, group=DATA)
    do_lower_case: bool = setting("Whether the vocabulary is of lower-cased text.", True, group=DATA)
    rounds: int = setting("How often each side is timed; the median counts.", 3, group=TO_DO, low=1)


# The rules of google-research/bert, one after the other. Each character is classified independently as a blank,
# dropped, Chinese or punctuation. tests/test_tokenization.py also compares with these functions.


def is_blank(char: str) -> bool:
    return char in "\t\n\r" or unicodedata.category(char) == "Zs"


def is_dropped(char: str) -> bool:
    return not is_blank(char) and (char in "\0\ufffd" or unicodedata.category(char) in ("Cc", "Cf"))


def is_chinese(char: str) -> bool:
    """The eight blocks of ideographs; neither kana nor Hangul."""
    return (
        "\u3400" <= char <= "\u4dbf" or "\u4e00" <= char <= "\u9fff" or "\uf900" <= char <= "\ufaff"
        or "\U00020000" <= char <= "\U0002a6df" or "\U0002a700" <= char <= "\U0002b73f"
        or "\U0002b740" <= char <= "\U0002b81f" or "\U0002b820" <= char <= "\U0002ceaf"
        or "\U0002f800" <= char <= "\U0002fa1f"
    )  # fmt: skip


def is_punctuation(char: str) -> bool:
    return char in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~" or unicodedata.category(char).startswith("P")


def words_by_the_rules(text: str, lower: bool) -> list[str]:
    text = "".join(" " if is_blank(char) else char for char in text if not is_dropped(char))
    text = "".join(f" {char} " if is_chinese(char) else char for char in text)
    words = []
    for word in text.split():
        if lower:
            word = unicodedata.normalize("NFD", word.lower())
            word = "".join(char for char in word if unicodedata.category(char) != "Mn")
        words.append("".join(f" {char} " if is_punctuation(char) else char for char in word))
    return " ".join(words).split()


def pieces_by_the_rules(words: Iterable[str], entries: Collection[str], longest: int = 200) -> Iterator[str]:
    for word in words:
        pieces, rest = [], word if len(word) <= longest else ""
        while rest:
            mark = "##" if pieces else ""
            end = next((end for end in range(len(rest), 0, -1) if mark + rest[:end] in entries), 0)
            pieces, rest = ([*pieces, mark + rest[:end]], rest[end:]) if end else ([], "")
        yield from pieces or ["[UNK]"]


def main(options: BenchmarkOptions) -> None:
    lines = [line for name in files.match_files(options.input_file) for line in files.read_lines(name)]
    if not lines:
        raise UserError(f"--input_file={options.input_file}: no line to tokenize")
    vocab, lower = tokenization.load_vocab(options.vocab_file), options.do_lower_case
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(options.rounds):
        fresh = tokenization.FullTokenizer(options.vocab_file, lower)
        ways = (lambda text: [*pieces_by_the_rules(words_by_the_rules(text, lower), vocab)], fresh.tokenize)
        expected, got = [], []
        for tokenize, pieces, seconds in zip(ways, (expected, got), times, strict=True):
            started = time.perf_counter()
            pieces += map(tokenize, lines)
            seconds.append(time.perf_counter() - started)
        if got != expected:
            raise AssertionError("the two tokenizers do not agree")
    rules, ours = map(statistics.median, times)
    print(machine.describe())
    print(f"{len(lines)} lines, {sum(map(len, got))} pieces, median of {options.rounds} rounds")
    print(f"reference's algorithm, character by character: {len(lines) / rules:10.0f} lines/s")
    print(f"bert_tf2.tokenization:                         {len(lines) / ours:10.0f} lines/s")
    print(f"ratio: {rules / ours:.1f}")


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

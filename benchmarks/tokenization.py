"""Measures the tokenizer in lines per second, compared with the reference's algorithm on the same text.

    python benchmarks/tokenization.py --input_file=corpus.txt --vocab_file=vocab.txt

The other side is a separate implementation of google-research/bert's algorithm, character by character and without
caches (`naive_tokenize`). Both must give the same pieces for the whole input, or the benchmark stops. Our tokenizer
starts each round with an empty cache.
"""

from __future__ import annotations

import statistics
import time
import unicodedata
from collections.abc import Callable

import machine
from absl import flags as absl_flags

from bert_tf2 import tokenization
from bert_tf2.support import files, flags
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import DATA, TO_DO, Options, options, setting

FLAGS = absl_flags.FLAGS


@options
class BenchmarkOptions(Options):
    """Measures the tokenizer in lines per second, compared with the reference's algorithm on the same text."""

    input_file: str = setting("Text, one sentence a line; commas and globs.", machine.CORPUS, group=DATA)
    vocab_file: str = setting("The vocabulary.", machine.VOCAB, group=DATA)
    do_lower_case: bool = setting("Whether the vocabulary is of lower-cased text.", True, group=DATA)
    rounds: int = setting("How often each side is timed; the median counts.", 3, group=TO_DO, low=1)


def _is_blank(char: str) -> bool:
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def _is_dropped(char: str) -> bool:
    if char in "\t\n\r":
        return False
    return char == "\ufffd" or unicodedata.category(char) in ("Cc", "Cf")


def _is_mark(char: str) -> bool:
    code = ord(char)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(char)[0] == "P"


def _is_han(char: str) -> bool:
    code = ord(char)
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0x20000 <= code <= 0x2A6DF
        or 0x2A700 <= code <= 0x2B73F
        or 0x2B740 <= code <= 0x2B81F
        or 0x2B820 <= code <= 0x2CEAF
        or 0xF900 <= code <= 0xFAFF
        or 0x2F800 <= code <= 0x2FA1F
    )


def _clean(text: str) -> str:
    kept = []
    for char in text:
        if not _is_dropped(char):
            kept.append(" " if _is_blank(char) else char)
    return "".join(kept)


def _space_out_han(text: str) -> str:
    spaced = []
    for char in text:
        spaced.append(f" {char} " if _is_han(char) else char)
    return "".join(spaced)


def _without_accents(word: str) -> str:
    return "".join([c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn"])


def _split_at_marks(word: str) -> list[str]:
    parts: list[list[str]] = []
    glue = False  # whether the next character belongs to the last part
    for char in word:
        mark = _is_mark(char)
        if glue and not mark:
            parts[-1].append(char)
        else:
            parts.append([char])
        glue = not mark
    return ["".join(part) for part in parts]


def naive_words(text: str, do_lower_case: bool) -> list[str]:
    """Text -> words; every step processes every character."""
    parts: list[str] = []
    for word in _space_out_han(_clean(text)).split():
        parts += _split_at_marks(_without_accents(word.lower()) if do_lower_case else word)
    return " ".join(parts).split()


def naive_pieces(word: str, vocab: dict[str, int]) -> list[str]:
    """Word -> pieces: tries every end from the last one down."""
    characters, pieces, start = list(word), [], 0
    if len(characters) > 200:
        return ["[UNK]"]
    while start < len(characters):
        for end in range(len(characters), start, -1):
            piece = ("##" if start else "") + "".join(characters[start:end])
            if piece in vocab:
                break
        else:
            return ["[UNK]"]
        pieces.append(piece)
        start = end
    return pieces


def naive_tokenize(text: str, vocab: dict[str, int], do_lower_case: bool) -> list[str]:
    """Text -> pieces."""
    return [piece for word in naive_words(text, do_lower_case) for piece in naive_pieces(word, vocab)]


def _time(tokenize: Callable[[str], list[str]], lines: list[str]) -> tuple[float, list[list[str]]]:
    started = time.perf_counter()
    pieces = [tokenize(line) for line in lines]
    return time.perf_counter() - started, pieces


def main(_: BenchmarkOptions) -> None:
    lines = [line for name in files.match_files(FLAGS.input_file) for line in files.read_lines(name)]
    if not lines:
        raise UserError(f"--input_file={FLAGS.input_file}: no line to tokenize")
    vocab = tokenization.load_vocab(FLAGS.vocab_file)
    naive_times, our_times = [], []
    for _ in range(FLAGS.rounds):
        seconds, expected = _time(lambda text: naive_tokenize(text, vocab, FLAGS.do_lower_case), lines)
        naive_times.append(seconds)
        tokenizer = tokenization.FullTokenizer(FLAGS.vocab_file, FLAGS.do_lower_case)
        seconds, got = _time(tokenizer.tokenize, lines)
        our_times.append(seconds)
        if got != expected:
            raise AssertionError("the two tokenizers do not agree")
    naive, ours = statistics.median(naive_times), statistics.median(our_times)
    print(machine.describe())
    print(f"{len(lines)} lines, {sum(map(len, got))} pieces, median of {FLAGS.rounds} rounds")
    print(f"reference's algorithm, character by character: {len(lines) / naive:10.0f} lines/s")
    print(f"bert_tf2.tokenization:                         {len(lines) / ours:10.0f} lines/s")
    print(f"ratio: {naive / ours:.1f}")


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

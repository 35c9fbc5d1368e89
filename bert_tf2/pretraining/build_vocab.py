"""Learns a WordPiece vocabulary from a text, to pretrain on another language or domain.

tensorflow-text's `wordpiece_tokenizer_learner_lib` finds the same entries in many times the time: words at least
as frequent as a threshold, and as frequent ends of words, where an end begins after a piece. The module looks for the
threshold at which the vocabulary is just full, and orders the entries as in the released vocabularies: `[PAD]`,
unused entries, `[UNK]`, `[CLS]`, `[SEP]`, `[MASK]`, characters, then pieces from frequent to rare.
"""

from __future__ import annotations

import collections
import itertools
import math
import os
from collections.abc import Container, Iterable, Mapping

from absl import logging

from bert_tf2 import tokenization
from bert_tf2.pretraining import corpus
from bert_tf2.pretraining.options import BuildVocabOptions
from bert_tf2.support import console, files
from bert_tf2.support.errors import UserError
from bert_tf2.weights import sources

# The search for the threshold ends when at most this fraction of the pieces exceeds the room; the rarest pieces are
# then dropped.
_SLACK = 0.05
_ROUNDS = 3  # each round splits all words with the entries of the round before
_MOST_WORDS = 1_000_000  # only the most frequent words, because all their ends are in memory
_LONGEST_PIECE = 50  # characters; longer words are ignored


def run(options: BuildVocabOptions) -> list[str]:
    """Learns a vocabulary from files and writes it; returns its entries.

    Raises UserError if it would replace the vocabulary of weights: other scripts read the file of this flag.
    """
    path = options.vocab_file
    if files.exists(path) and any(map(sources.WEIGHTS.fullmatch, files.list_directory(os.path.dirname(path) or "."))):
        raise UserError(f"{path}: is the vocabulary of the weights beside it; --vocab_file names the file to write")
    texts = corpus.sentences(files.match_files(options.input_file), options)
    entries = build_vocab(
        texts, options.vocab_size, options.do_lower_case, num_unused=options.num_unused, min_count=options.min_count
    )
    files.write_text(path, "".join(f"{entry}\n" for entry in entries))
    console.summary([f"{path} ({len(entries):,} entries)"])
    return entries


def build_vocab(
    texts: Iterable[str],
    vocab_size: int = BuildVocabOptions.vocab_size,
    do_lower_case: bool = BuildVocabOptions.do_lower_case,
    num_unused: int = BuildVocabOptions.num_unused,
    min_count: int = BuildVocabOptions.min_count,
) -> list[str]:
    """Learns a vocabulary; the same texts and arguments give the same entries in every run.

    Every character of the texts becomes an entry; if there is no room for all, the rarest are dropped with a warning.
    See BuildVocabOptions for the arguments. With the default `num_unused`, [UNK] gets id 100, [CLS] 101, [SEP] 102 and
    [MASK] 103, as in the reference's models.
    """
    reserved = reserved_entries(num_unused)
    if vocab_size <= len(reserved):
        raise UserError(
            f"--vocab_size={vocab_size} leaves no room for words beside the {len(reserved)} special and unused entries;"
            f" raise it or lower --num_unused={num_unused}"
        )
    counts = count_words(texts, do_lower_case)
    if not counts:
        raise UserError("the input has no words to learn a vocabulary from; look at --input_file")
    characters = _character_entries(counts, vocab_size - len(reserved))
    room = vocab_size - len(reserved) - len(characters)
    pieces = _learn_pieces(counts, room, min_count) if room else []
    return reserved + characters + pieces


def reserved_entries(num_unused: int) -> list[str]:
    return ["[PAD]", *(f"[unused{i}]" for i in range(num_unused)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def count_words(texts: Iterable[str], do_lower_case: bool = True) -> collections.Counter[str]:
    """Counts the words, as BasicTokenizer passes them to WordpieceTokenizer."""
    tokenizer = tokenization.BasicTokenizer(do_lower_case)
    return collections.Counter(itertools.chain.from_iterable(map(tokenizer.tokenize, texts)))


def _character_entries(word_counts: collections.Counter[str], room: int) -> list[str]:
    """The sorted characters of the words, then `##` and each character that can continue a word; at most `room`."""
    counts: collections.Counter[str] = collections.Counter()
    for word, count in word_counts.items():
        for char in word:
            counts[char] += count
    # Punctuation and Chinese characters are words of one character, so an entry with `##` would be wasted.
    inside = {char for word in word_counts if len(word) > 1 for char in word}
    kept: list[str] = []
    for char in sorted(counts, key=lambda char: (-counts[char], char)):
        room -= 2 if char in inside else 1
        if room < 0:
            logging.warning(
                "the vocabulary has no room for the %d rarest of %d characters; words with them become [UNK]",
                len(counts) - len(kept), len(counts),
            )  # fmt: skip
            break
        kept.append(char)
    return sorted(kept) + ["##" + char for char in sorted(inside.intersection(kept))]


def _learn_pieces(word_counts: collections.Counter[str], room: int, min_count: int) -> list[str]:
    """At most `room` entries of more than one character, the most frequent first.

    The number of pieces above a frequency threshold is roughly proportional to 1 / threshold, so the search bisects the
    ratio of its bounds.
    """
    words = {word: count for word, count in word_counts.most_common(_MOST_WORDS) if len(word) <= _LONGEST_PIECE}
    ends: collections.Counter[str] = collections.Counter()
    for word, count in words.items():
        for start in range(1, len(word)):
            ends[word[start:]] += count

    def learn(threshold: int) -> list[str]:
        frequent = {word: count for word, count in words.items() if count >= threshold}
        continuing = {end: count for end, count in ends.items() if count >= threshold}
        for _ in range(_ROUNDS):
            found = _count_ends(words, frequent, continuing)
            continuing = {end: count for end, count in found.items() if count >= threshold}
        counts = {word: count for word, count in frequent.items() if len(word) > 1}
        counts |= {"##" + end: count for end, count in continuing.items() if len(end) > 1}
        pieces = sorted(counts, key=lambda piece: (-counts[piece], piece))
        logging.info("Search of a limit: %d pieces occur at least %d times, %d fit", len(pieces), threshold, room)
        return pieces

    low, high = min_count, word_counts.total()
    pieces = learn(low)
    while len(pieces) > room * (1 + _SLACK) and low < high:
        middle = max(low + 1, math.isqrt(low * high))
        tried = learn(middle)
        if len(tried) >= room:
            low, pieces = middle, tried
        else:
            high = middle - 1
    return pieces[:room]


def _count_ends(words: Mapping[str, int], first: Container[str], continuing: Container[str]) -> dict[str, int]:
    """How often each end of a word begins where a piece begins, if words are split into the longest entries.

    `first`, `continuing`: the entries at the start of a word and after it, besides single characters. An end that
    several words share is split once: longer ends come first, and hand their count to the rest after their first piece.
    """
    found: dict[str, int] = {}
    waiting = [collections.Counter() for _ in range(_LONGEST_PIECE)]  # by length
    for word, count in words.items():
        rest = word[_length_of_longest(word, first) :]
        waiting[len(rest)][rest] += count
    for length in range(_LONGEST_PIECE - 1, 0, -1):
        found |= waiting[length]
        for end, count in waiting[length].items():
            rest = end[_length_of_longest(end, continuing) :]
            waiting[len(rest)][rest] += count
    return found


def _length_of_longest(text: str, entries: Container[str]) -> int:
    """The length of the longest entry with which the text begins; 1 if there is no entry."""
    length = len(text)
    while length > 1 and text[:length] not in entries:
        length -= 1
    return length

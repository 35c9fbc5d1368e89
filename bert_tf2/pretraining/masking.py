"""Masking: which tokens of a pretraining example are predicted, and what replaces them.

The order in which random numbers are drawn is part of the interface, see `pretraining.examples`.
"""

from __future__ import annotations

import random
from collections.abc import MutableSequence, Sequence
from typing import NamedTuple

from bert_tf2.pretraining.options import PretrainingDataOptions


class MaskedLmInstance(NamedTuple):
    """A position that is predicted: its index, the original token, and the token that replaces it."""

    index: int
    label: str
    replacement: str


def choose_predictions(
    tokens: Sequence[str],
    vocab_words: Sequence[str],
    options: PretrainingDataOptions,
    rng: random.Random,
    continues: Sequence[int] | None = None,
) -> list[MaskedLmInstance]:
    """Chooses the positions of an example to predict and their replacements, sorted by position.

    Words are taken in random order until there are enough positions. A word that would give too many is skipped, so
    with `do_whole_word_mask` there may be fewer positions than requested, or none.

    Args:
      tokens: [CLS] A [SEP] B [SEP], or [CLS] A [SEP]; not modified.
      vocab_words: the words from which random replacements are drawn.
      options: the number of positions, and whether the pieces of a word are masked together.
      rng: the random number generator.
      continues: for each token whether it continues a word; None for those that begin with `##`.
    """
    units = _maskable_units(tokens, options.do_whole_word_mask, continues)
    shuffle(units, rng)
    num_to_predict = options.num_to_predict(len(tokens))
    masked: list[MaskedLmInstance] = []
    for unit in units:
        if len(masked) >= num_to_predict:
            break
        if len(masked) + len(unit) <= num_to_predict:
            for index in unit:
                label = tokens[index]
                masked.append(MaskedLmInstance(index, label, _replacement(label, vocab_words, rng)))
    masked.sort()
    return masked


def _maskable_units(
    tokens: Sequence[str], whole_words: bool, continues: Sequence[int] | None = None
) -> list[tuple[int, ...]]:
    """The groups of positions that are masked together: single positions, or the pieces of each word.

    As in the reference, only the prefix `##` shows that a piece continues a word, unless `continues` does. If B starts
    inside a word because it was truncated, its first pieces belong to the last word of A, and each Chinese character is
    a word.
    """
    if continues is None:
        continues = [token.startswith("##") for token in tokens]
    maskable = [index for index, token in enumerate(tokens) if token not in {"[CLS]", "[SEP]"}]
    if not whole_words:
        return list(zip(maskable))  # each index as a tuple of one
    units: list[tuple[int, ...]] = []
    for index in maskable:
        if units and continues[index]:
            units[-1] += (index,)
        else:
            units.append((index,))
    return units


def _replacement(token: str, vocab_words: Sequence[str], rng: random.Random) -> str:
    """80 % [MASK], 10 % the token itself, 10 % a random entry of the vocabulary ([PAD] and "##s" included)."""
    if rng.random() < 0.8:
        return "[MASK]"
    if rng.random() < 0.5:
        return token
    return vocab_words[rng.randint(0, len(vocab_words) - 1)]


def shuffle(items: MutableSequence, rng: random.Random) -> None:
    """Equivalent of `rng.shuffle(items)`: draws the same numbers, with the same result, about twice as fast.

    Most random numbers are used to shuffle the positions of each example, and `random.Random.shuffle` calls a Python
    function for each item. This is its algorithm in one loop: each item, from the last to the second, is swapped with
    an item at or before it, whose index is drawn with as many bits as it needs, and drawn again if it is too large.
    """
    getrandbits = rng.getrandbits
    last = len(items) - 1
    while last > 0:
        bits = (last + 1).bit_length()
        first = max(1, (1 << (bits - 1)) - 1)  # the smallest index with this number of bits
        for index in range(last, first - 1, -1):
            other = getrandbits(bits)
            while other > index:
                other = getrandbits(bits)
            items[index], items[other] = items[other], items[index]
        last = first - 1


def create_masked_lm_predictions(
    tokens: Sequence[str],
    masked_lm_prob: float,
    max_predictions_per_seq: int,
    vocab_words: Sequence[str],
    rng: random.Random,
    do_whole_word_mask: bool = False,
) -> tuple[list[str], list[int], list[str]]:
    """Masks an example like `choose_predictions`; returns the masked tokens, the positions and the original tokens."""
    options = PretrainingDataOptions(
        max_predictions_per_seq=max_predictions_per_seq,
        masked_lm_prob=masked_lm_prob,
        do_whole_word_mask=do_whole_word_mask,
    )
    masked = choose_predictions(tokens, vocab_words, options, rng)
    output_tokens = list(tokens)
    for choice in masked:
        output_tokens[choice.index] = choice.replacement
    return output_tokens, [choice.index for choice in masked], [choice.label for choice in masked]

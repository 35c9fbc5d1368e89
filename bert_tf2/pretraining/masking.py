"""Masking: which tokens of a pretraining example are predicted, and what replaces them.

The order in which random numbers are drawn is part of the interface, see `pretraining.examples`.
"""

from __future__ import annotations

import random
from collections.abc import MutableSequence, Sequence
from typing import NamedTuple

from bert_tf2.pretraining.data_options import PretrainingDataOptions


class MaskedLmInstance(NamedTuple):
    """One position that the model is asked about: what stood there, and what stands there now."""

    index: int
    label: str
    replacement: str


def choose_predictions(
    tokens: Sequence[str], vocab_words: Sequence[str], options: PretrainingDataOptions, rng: random.Random
) -> list[MaskedLmInstance]:
    """Chooses the positions of an example to be predicted and what to put there, in rising order of position.

    Words are taken in random order until there are enough positions; a word that would give too many is passed over, so
    with `do_whole_word_mask` there may be fewer positions than wanted, down to none.

    Args:
      tokens: [CLS] A [SEP] B [SEP]; not changed.
      vocab_words: the words to draw random ones from.
      options: says how many positions, and whether to keep words together.
      rng: the random numbers.
    """
    units = _maskable_units(tokens, options.do_whole_word_mask)
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


def _maskable_units(tokens: Sequence[str], whole_words: bool) -> list[tuple[int, ...]]:
    """The positions that are masked together: each by itself, or those of a word's pieces.

    Words are told by the `##` of their later pieces alone, as in the reference. So a B that was cut within a word
    starts with pieces that count as part of A's last word, and each Chinese character is a word.
    """
    maskable = [index for index, token in enumerate(tokens) if token not in {"[CLS]", "[SEP]"}]
    if not whole_words:
        return list(zip(maskable))  # each index as a tuple of one
    units: list[tuple[int, ...]] = []
    for index in maskable:
        if units and tokens[index].startswith("##"):
            units[-1] += (index,)
        else:
            units.append((index,))
    return units


def _replacement(token: str, vocab_words: Sequence[str], rng: random.Random) -> str:
    """80 % [MASK], 10 % the token itself, 10 % a random word (which may be any entry, [PAD] and "##s" included)."""
    if rng.random() < 0.8:
        return "[MASK]"
    if rng.random() < 0.5:
        return token
    return vocab_words[rng.randint(0, len(vocab_words) - 1)]


def shuffle(items: MutableSequence, rng: random.Random) -> None:
    """`rng.shuffle(items)`: the same draws and the same result, about twice as fast.

    Shuffling the positions of each example is where most random numbers go, and `random.Random.shuffle` calls a Python
    function for each item. This is its algorithm in one loop: swap each item, from the last on, with one at or before
    it, whose index is drawn with just the bits that it needs, and drawn again where it is too large.
    """
    getrandbits = rng.getrandbits
    last = len(items) - 1
    while last > 0:
        bits = (last + 1).bit_length()
        first = max(1, (1 << (bits - 1)) - 1)  # down to here an index takes as many bits
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
    """Masks an example, see `choose_predictions`: the tokens as they are now, the positions, and what stood there."""
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

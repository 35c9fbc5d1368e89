"""The rule of masking (paper, section 3.1): the tokens of an example to predict, and their replacements.

* Any token may be masked except [CLS] and [SEP].
* 15 % of the tokens are masked ([CLS] and [SEP] are counted), at least one and at most `max_predictions_per_seq`
  (`num_to_predict`).
* Tokens are taken in random order. With whole words, words are taken in random order until there are enough tokens; a
  word that would give too many tokens is skipped, so there may be fewer tokens, or no tokens.
* 80 % of the tokens are replaced by [MASK], 10 % by a random entry of the vocabulary ([PAD] and `##s` included), 10 %
  do not change. The replacement is drawn for each token, also with whole words, unless `whole_word_draw` is "word".
* An example lists the tokens in the order of their positions.

`examples` masks with these functions. `dynamic_masking` does the same for tensors, with other random numbers.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import MutableSequence, Sequence
from typing import TypeVar

from bert_tf2.pretraining.draws import Draws
from bert_tf2.pretraining.options import PretrainingDataOptions, PretrainingOptions

MASKED, KEPT, RANDOM = 0.8, 0.1, 0.1  # the shares of the tokens to predict
_KEPT_OF_REST = KEPT / (KEPT + RANDOM)
CONTINUES, BEGINS, NEVER = range(3)
"""The kinds of tokens for masking: a later token of a word, the first token of a word, a token that is never masked."""
SAME = -1
"""Among replacements, means the token itself."""

Token = TypeVar("Token", int, str)


def kind_of(token: str) -> int:
    """BEGINS, CONTINUES or NEVER. As in the reference, only the prefix `##` shows that a token continues a word."""
    return NEVER if token in ("[CLS]", "[SEP]") else CONTINUES if token.startswith("##") else BEGINS


def num_to_predict(num_tokens: int, options: PretrainingDataOptions | PretrainingOptions) -> int:
    """The number of tokens to predict among `num_tokens`, which include the delimiters."""
    return min(options.max_predictions_per_seq, max(1, round(num_tokens * options.masked_lm_prob)))


def choose(count: int, kinds: bytes, wanted: int, whole_words: bool, draws: Draws) -> Sequence[int]:
    """The indexes of at most `wanted` tokens to predict, in the order in which their replacements are drawn.

    Args:
      kinds: BEGINS, CONTINUES or NEVER for each token. Empty if any token may be masked and there are no whole words.
      whole_words: whether the tokens of a word are masked together. The first token always begins a word.
    """
    if NEVER in kinds:
        indexes = [index for index, kind in enumerate(kinds) if kind != NEVER]
        kinds = bytes(kinds[index] for index in indexes)
        return [indexes[index] for index in choose(len(indexes), kinds, wanted, whole_words, draws)]
    return _choose_words(kinds, wanted, draws) if whole_words else draws.shuffled(count, min(wanted, count))


def _choose_words(kinds: bytes, wanted: int, draws: Draws) -> list[int]:
    starts = [0, *itertools.compress(range(1, len(kinds)), kinds[1:]), len(kinds)]
    chosen: list[int] = []
    for word in draws.shuffled(len(starts) - 1):
        if len(chosen) >= wanted:
            break
        start, end = starts[word], starts[word + 1]
        if len(chosen) + end - start <= wanted:
            chosen.extend(range(start, end))
    return chosen


def draw_replacements(
    count: int, mask: MutableSequence[Token], words: Sequence[Token], draws: Draws
) -> MutableSequence[Token]:
    """Draws the replacement of each of `count` tokens: [MASK], SAME, or one of `words`.

    `mask` is an array or a list with only [MASK]; the result has the same type.
    """
    replacements = mask * count
    place = draws.count_below(MASKED, count)
    while place < count:
        replacements[place] = SAME if draws.random() < _KEPT_OF_REST else words[draws.randint(0, len(words) - 1)]
        place += 1
        if place < count:
            place += draws.count_below(MASKED, count - place)
    return replacements


def draw_replacements_of_words(
    chosen: Sequence[int], kinds: bytes, mask: MutableSequence[Token], words: Sequence[Token], draws: Draws
) -> MutableSequence[Token]:
    """Like `draw_replacements` for whole words: all tokens of a word become [MASK], SAME, or random tokens of `words`.

    `chosen`: the result of `choose` for `kinds`.
    """
    replacements = mask * len(chosen)
    first = next((index for index, kind in enumerate(kinds) if kind != NEVER), 0)
    is_masked = is_same = False
    for place, index in enumerate(chosen):
        if index == first or kinds[index] == BEGINS:
            is_masked = draws.random() < MASKED
            is_same = not is_masked and draws.random() < _KEPT_OF_REST
        if not is_masked:
            replacements[place] = SAME if is_same else words[draws.randint(0, len(words) - 1)]
    return replacements


def create_masked_lm_predictions(
    tokens: Sequence[str],
    masked_lm_prob: float,
    max_predictions_per_seq: int,
    vocab_words: Sequence[str],
    rng: random.Random,
    do_whole_word_mask: bool = False,
) -> tuple[list[str], list[int], list[str]]:
    """Masks an example; the reference's function of the same name, in which the last argument is a flag.

    Args:
      tokens: [CLS] A [SEP] B [SEP], or [CLS] A [SEP]; not modified.
      masked_lm_prob, max_predictions_per_seq, do_whole_word_mask: see PretrainingDataOptions.
      vocab_words: the words from which random replacements are drawn.

    Returns:
      The masked tokens; the positions to predict, sorted; and the original tokens at these positions.
    """
    options = PretrainingDataOptions(max_predictions_per_seq=max_predictions_per_seq, masked_lm_prob=masked_lm_prob)
    draws, output = Draws(rng), list(tokens)
    kinds = bytes(map(kind_of, tokens))
    positions = choose(len(kinds), kinds, num_to_predict(len(tokens), options), do_whole_word_mask, draws)
    replacements = draw_replacements(len(positions), ["[MASK]"], vocab_words, draws)
    for position, replacement in zip(positions, replacements, strict=True):
        if replacement != SAME:
            output[position] = replacement
    positions = sorted(positions)
    return output, positions, [tokens[position] for position in positions]

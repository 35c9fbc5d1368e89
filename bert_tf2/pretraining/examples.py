"""Examples for pretraining (paper, section 3.1): masked pairs of segments of plain text.

An example consists of two segments of documents,

    [CLS]  segment A  [SEP]  segment B  [SEP]

for two tasks:

* Next sentence prediction: does B follow A in the document? In half of the examples B is from a random document
  (`is_random_next`, label 1). Both segments consist of whole sentences, so that the model cannot use the position at
  which a sentence was cut.
* Masked language model: about 15 % of the tokens are hidden or replaced, or stay; which tokens were there? The others
  are the context from which they are predicted.

Without next sentence prediction (`objective` "mlm"), an example is one segment, [CLS] A [SEP].

Every document is used `dupe_factor` times, with other pairs and masks each time.

The same files, options and seed give the same examples as google-research/bert's create_pretraining_data.py, in the
same order: **the order in which random numbers are drawn is part of the interface**, so no draw may be moved, added or
removed. An `Example` has no tokens, only the indexes of tokens in a corpus. The draws depend only on lengths, and with
whole words also on the places where words begin.
"""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, MutableSequence, Sequence
from typing import NamedTuple

from bert_tf2.data.rows import Token
from bert_tf2.pretraining.corpus import BEGINS, NEVER, Corpus
from bert_tf2.pretraining.options import PretrainingDataOptions, PretrainingOptions
from bert_tf2.support import progress

MASKED, KEPT, RANDOM = 0.8, 0.1, 0.1  # the shares of the tokens to predict
SAME = -1
"""Among replacements, means the token itself."""


class Example(NamedTuple):
    """An example as numbers."""

    # start_a, start_b: the index of the first token of segments A and B in the corpus
    start_a: int
    # length_a, length_b: the numbers of their tokens; 0 for B if the example is no pair
    length_a: int
    start_b: int
    length_b: int
    is_random_next: bool  # whether B is from a random place
    # the indexes of the tokens to predict, from the first token of A, without the delimiters, in the order of drawing
    masked: Sequence[int] = ()
    replacements: Sequence[int | str] = ()  # the replacement of each masked token, see `draw_replacements`


# Pairs


class ExampleMaker:
    """Draws the examples of a corpus."""

    def __init__(
        self,
        corpus: Corpus,
        mask_token: int | str,
        vocab_words: Sequence[int] | Sequence[str],
        options: PretrainingDataOptions,
        rng: random.Random,
    ):
        """Creates a maker. `mask_token`, `vocab_words`: see `draw_replacements`; `rng` draws as random.Random does."""
        self._corpus, self._bounds, self._options, self._rng = corpus, corpus.bounds, options, rng
        self._mask_token, self._vocab_words = mask_token, vocab_words
        self._max_num_tokens = options.max_seq_length - options.num_delimiters

    def make_all(self) -> Iterator[Example]:
        """Makes the examples of all documents. The documents are shuffled first, as in the reference."""
        documents = [*self._corpus.documents]
        shuffle(self._rng, documents)
        numbers = (number for _ in range(self._options.dupe_factor) for number in range(len(documents)))
        total = self._options.dupe_factor * len(documents)
        for number in progress.track(numbers, "Making examples", total, "documents"):
            yield from self.make_document(documents, number)

    def make_document(self, documents: Sequence[tuple[int, int]], number: int) -> Iterator[Example]:
        """Makes the examples of a document. `documents`: the (first, last + 1) sentence of each document.

        Examples should have the maximum length (paper, appendix A.2), because padding is wasted computation, and
        sometimes be shorter, because texts in fine-tuning are also short.
        """
        rng, bounds = self._rng, self._bounds
        first, last = documents[number]
        length = self._max_num_tokens
        if rng.random() < self._options.short_seq_prob:
            length = rng.randint(2, length)
        if self._options.objective == "mlm":
            for start, stop in spans(bounds, first, last, length):
                yield self._make(start, stop - start)
            return
        while first < last:
            start_a = bounds[first]
            stop = bisect_left(bounds, start_a + length, first + 1, last)
            middle = first + (rng.randint(1, stop - first - 1) if stop - first > 1 else 1)
            length_a = bounds[middle] - start_a
            # A single sentence (the last sentence, or a long sentence) has no continuation.
            is_random_next = middle == stop or rng.random() < 0.5
            if is_random_next:
                start_b, length_b = self._random_segment(documents, number, length - length_a)
            else:
                start_b, length_b = bounds[middle], bounds[stop] - bounds[middle]
            yield self._make(start_a, length_a, start_b, length_b, is_random_next)
            # If B is from a random place, the sentences that would have been B are used for the next example.
            first = middle if is_random_next else stop

    def _random_segment(self, documents: Sequence[tuple[int, int]], own: int, num_tokens: int) -> tuple[int, int]:
        """Sentences from a random place: at least one, until they have `num_tokens` tokens or the document ends.

        In a corpus of few documents, they may be from document `own`, even its true continuation, as in the reference.
        """
        for _ in range(10):
            number = self._rng.randint(0, len(documents) - 1)
            if number != own:
                break
        first, last = documents[number]
        first += self._rng.randint(0, last - first - 1)
        start = self._bounds[first]
        return start, self._bounds[bisect_left(self._bounds, start + num_tokens, first + 1, last)] - start

    def _make(
        self, start_a: int, length_a: int, start_b: int = 0, length_b: int = 0, is_random_next: bool = False
    ) -> Example:
        """Truncates a pair, and masks it unless masks are drawn in training."""
        options, rng = self._options, self._rng
        num_tokens = length_a + length_b
        if num_tokens > self._max_num_tokens:
            front_a, length_a, front_b, length_b = truncate(length_a, length_b, self._max_num_tokens, rng)
            start_a, start_b, num_tokens = start_a + front_a, start_b + front_b, self._max_num_tokens
        if options.dynamic_masking:
            return Example(start_a, length_a, start_b, length_b, is_random_next)
        kinds = b""
        if self._corpus.kinds:
            kinds = bytearray(self._corpus.kinds[start_a : start_a + length_a])
            kinds += self._corpus.kinds[start_b : start_b + length_b]
            if options.word_boundaries == "spaces" and length_b and kinds[length_a] != NEVER:
                kinds[length_a] = BEGINS  # B was cut inside a word
        wanted = num_to_predict(num_tokens + options.num_delimiters, options)
        masked = choose(num_tokens, kinds, wanted, options.do_whole_word_mask, rng)
        of_words = kinds if options.whole_word_draw == "word" else b""
        replacements = draw_replacements(masked, self._mask_token, self._vocab_words, rng, of_words)
        return Example(start_a, length_a, start_b, length_b, is_random_next, masked, replacements)


def truncate(length_a: int, length_b: int, max_num_tokens: int, rng: random.Random) -> tuple[int, int, int, int]:
    """Removes tokens one by one from the longer segment (B if both are equal), at random from its start or its end.

    So examples neither always start nor always end at the boundary of a sentence. Returns the number of tokens removed
    from the start of A, the number of remaining tokens of A, and the same for B.
    """
    front_a = front_b = 0
    for _ in range(length_a + length_b - max_num_tokens):
        if length_a > length_b:
            length_a -= 1
            front_a += rng.random() < 0.5
        else:
            length_b -= 1
            front_b += rng.random() < 0.5
    return front_a, length_a, front_b, length_b


def spans(bounds: Sequence[int], first: int, last: int, num_tokens: int) -> Iterator[tuple[int, int]]:
    """Divides consecutive sentences into spans of at most `num_tokens` tokens. Every token is in one of them.

    A span ends at the end of the last sentence that fits. Only a sentence that does not fit into its own span is cut:
    it fills spans, and its rest begins a span, which the next sentences may fill.

    Sentence i has the tokens `bounds[i]` to `bounds[i + 1] - 1`; the sentences are `first` to `last - 1`. Yields
    (first, last + 1) token of each span.
    """
    start, end = bounds[first], bounds[last]
    while start < end:
        first = bisect_right(bounds, start + num_tokens, first, last + 1) - 1
        stop = bounds[first] if bounds[first] > start else start + num_tokens
        yield start, stop
        start = stop


# Masks (paper, section 3.1)
#
# * Any token may be masked except [CLS] and [SEP].
# * 15 % of the tokens are masked ([CLS] and [SEP] are counted), at least one and at most `max_predictions_per_seq`.
# * Tokens are taken in random order. With whole words, words are taken in random order until there are enough tokens; a
#   word that would give too many tokens is skipped, so there may be fewer tokens, or no tokens.
# * 80 % of the tokens are replaced by [MASK], 10 % by a random entry of the vocabulary ([PAD] and `##s` included), 10 %
#   do not change. The replacement is drawn for each token, also with whole words, unless `whole_word_draw` is "word".
#   With [MASK] alone, which fine-tuning never has, the model would need no good vector for visible tokens. A token that
#   does not change needs one, because it is predicted too. Random tokens keep the model from copying what it sees.
#
# `dynamic_masking` does the same for tensors, with other random numbers.


def num_to_predict(num_tokens: int, options: PretrainingDataOptions | PretrainingOptions) -> int:
    """The number of tokens to predict among `num_tokens`, which include the delimiters."""
    return min(options.max_predictions_per_seq, max(1, round(num_tokens * options.masked_lm_prob)))


def choose(count: int, kinds: bytes | bytearray, wanted: int, whole_words: bool, rng: random.Random) -> list[int]:
    """The indexes of at most `wanted` tokens to predict, in the order in which their replacements are drawn.

    Args:
      kinds: BEGINS, CONTINUES or NEVER for each token. Empty if any token may be masked and there are no whole words.
      whole_words: whether the tokens of a word are masked together. The first token always begins a word.
    """
    indexes = [*range(count)]
    if NEVER in kinds:
        indexes = [index for index, kind in enumerate(kinds) if kind != NEVER]
        kinds = bytes(kinds[index] for index in indexes)
    if not whole_words:
        shuffle(rng, indexes)
        return indexes[:wanted]
    starts = [0, *itertools.compress(range(1, len(kinds)), kinds[1:]), len(kinds)]
    words, chosen = [*range(len(starts) - 1)], []
    shuffle(rng, words)
    for word in words:
        if len(chosen) >= wanted:
            break
        start, end = starts[word], starts[word + 1]
        if len(chosen) + end - start <= wanted:
            chosen += indexes[start:end]
    return chosen


def draw_replacements(
    chosen: Sequence[int],
    mask_token: Token,
    vocab_words: Sequence[Token],
    rng: random.Random,
    kinds: bytes | bytearray = b"",
) -> list[Token]:
    """Draws the replacement of each of the `chosen` tokens: `mask_token`, SAME, or one of `vocab_words`.

    `kinds`: as for `choose`, to draw once for all tokens of a word whether they are masked, stay or become random
    tokens; empty to draw for each token.
    """
    found, draw, last = [], rng.random, len(vocab_words) - 1
    first = next((index for index, kind in enumerate(kinds) if kind != NEVER), 0)
    is_masked = is_same = False
    for index in chosen:
        if not kinds or kinds[index] == BEGINS or index == first:
            is_masked = draw() < MASKED
            is_same = not is_masked and draw() < KEPT / (KEPT + RANDOM)
        found.append(mask_token if is_masked else SAME if is_same else vocab_words[rng.randint(0, last)])
    return found


# Random order


def shuffle(rng: random.Random, items: MutableSequence) -> None:
    """`rng.shuffle(items)` by the same draws, without two calls of Python for each draw.

    Swaps each item, from the last to the second, with an item at or before it. A draw has as many bits as the number
    of these items needs, and is repeated while its number is too large.
    """
    if type(rng) is not random.Random:  # another class may shuffle in another way
        rng.shuffle(items)
        return
    draw, last = rng.getrandbits, len(items) - 1
    while last > 0:
        bits = (last + 1).bit_length()
        first = max(1, (1 << (bits - 1)) - 1)  # the smallest index with this number of bits
        for index in range(last, first - 1, -1):
            while (other := draw(bits)) > index:
                pass
            items[index], items[other] = items[other], items[index]
        last = first - 1

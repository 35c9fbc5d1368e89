"""Examples for pretraining (paper, section 3.1): masked pairs of segments of plain text.

An example consists of two segments of documents,

    [CLS]  segment A  [SEP]  segment B  [SEP]

for two tasks:

* Next sentence prediction: does B follow A in the document? In half of the examples B is from a random document
  (`is_random_next`, label 1). Both segments consist of whole sentences, so that the model cannot use the position at
  which a sentence was cut.
* Masked language model: which tokens were at about 15 % of the positions? See `masking`. [MASK] never occurs in
  fine-tuning, so the model must learn to represent every token, masked or not.

Without next sentence prediction (`objective` "mlm"), an example is one segment, [CLS] A [SEP].

Every document is used `dupe_factor` times, with other pairs and masks each time.

The same files, options and seed give the same examples as google-research/bert's create_pretraining_data.py, in the
same order: **the order in which random numbers are drawn is part of the interface**, so no draw may be moved, added or
removed. An example is numbers that refer to a corpus. The draws depend only on lengths, and with whole words also on
the places where words begin.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, MutableSequence, Sequence
from typing import NamedTuple

from bert_tf2.pretraining import masking
from bert_tf2.pretraining.corpus import Corpus
from bert_tf2.pretraining.draws import Draws
from bert_tf2.pretraining.options import PretrainingDataOptions
from bert_tf2.support import progress


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
    replacements: Sequence[masking.Token] = ()  # the replacement of each masked token, see `masking.draw_replacements`


class ExampleMaker:
    """Draws the examples of a corpus."""

    def __init__(
        self,
        corpus: Corpus,
        mask: MutableSequence[masking.Token],
        words: Sequence[masking.Token],
        options: PretrainingDataOptions,
        draws: Draws,
    ):
        """Creates a maker. `mask`, `words`: see `masking.draw_replacements`."""
        self._corpus, self._bounds, self._options, self._draws = corpus, corpus.bounds, options, draws
        self._mask, self._words = mask, words
        self._max_num_tokens = options.max_seq_length - options.num_delimiters
        self._segments_begin_words = options.word_boundaries == "spaces"
        self._wanted: dict[int, int] = {}

    def make_all(self) -> Iterator[Example]:
        """Makes the examples of all documents. The documents are shuffled first, as in the reference."""
        documents = [self._corpus.documents[number] for number in self._draws.shuffled(len(self._corpus.documents))]
        numbers = (number for _ in range(self._options.dupe_factor) for number in range(len(documents)))
        total = self._options.dupe_factor * len(documents)
        for number in progress.track(numbers, "Making examples", total, "documents"):
            yield from self.make_document(documents, number)

    def make_document(self, documents: Sequence[tuple[int, int]], number: int) -> Iterator[Example]:
        """Makes the examples of a document. `documents`: the (first, last + 1) sentence of each document.

        Examples should have the maximum length (paper, appendix A.2), because padding is wasted computation, and
        sometimes be shorter, because texts in fine-tuning are also short.
        """
        draws, bounds = self._draws, self._bounds
        first, last = documents[number]
        length = self._max_num_tokens
        if draws.random() < self._options.short_seq_prob:
            length = draws.randint(2, length)
        if self._options.objective == "mlm":
            for start, stop in spans(bounds, first, last, length):
                yield self._make(start, stop - start)
            return
        while first < last:
            start_a = bounds[first]
            stop = bisect_left(bounds, start_a + length, first + 1, last)
            middle = first + (draws.randint(1, stop - first - 1) if stop - first > 1 else 1)
            length_a = bounds[middle] - start_a
            # A single sentence (the last sentence, or a long sentence) has no continuation.
            is_random_next = middle == stop or draws.random() < 0.5
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
            number = self._draws.randint(0, len(documents) - 1)
            if number != own:
                break
        first, last = documents[number]
        first += self._draws.randint(0, last - first - 1)
        start = self._bounds[first]
        return start, self._bounds[bisect_left(self._bounds, start + num_tokens, first + 1, last)] - start

    def _make(
        self, start_a: int, length_a: int, start_b: int = 0, length_b: int = 0, is_random_next: bool = False
    ) -> Example:
        """Truncates a pair, and masks it unless masks are drawn in training."""
        num_tokens = length_a + length_b
        if num_tokens > self._max_num_tokens:
            front_a, length_a, front_b, length_b = truncate(length_a, length_b, self._max_num_tokens, self._draws)
            start_a, start_b, num_tokens = start_a + front_a, start_b + front_b, self._max_num_tokens
        if self._options.dynamic_masking:
            return Example(start_a, length_a, start_b, length_b, is_random_next)
        kinds = b""
        if self._corpus.kinds:
            of_b = self._corpus.kinds[start_b : start_b + length_b]
            if self._segments_begin_words and of_b[:1] == bytes([masking.CONTINUES]):  # B was cut inside a word
                of_b = bytes([masking.BEGINS]) + of_b[1:]
            kinds = self._corpus.kinds[start_a : start_a + length_a] + of_b
        wanted = self._wanted.get(num_tokens)
        if wanted is None:
            wanted = self._wanted[num_tokens] = masking.num_to_predict(
                num_tokens + self._options.num_delimiters, self._options
            )
        masked = masking.choose(num_tokens, kinds, wanted, self._options.do_whole_word_mask, self._draws)
        drawn = self._mask, self._words, self._draws
        if self._options.whole_word_draw == "word":
            replacements = masking.draw_replacements_of_words(masked, kinds, *drawn)
        else:
            replacements = masking.draw_replacements(len(masked), *drawn)
        return Example(start_a, length_a, start_b, length_b, is_random_next, masked, replacements)


def truncate(length_a: int, length_b: int, max_num_tokens: int, draws: Draws) -> tuple[int, int, int, int]:
    """Removes tokens one by one from the longer segment (B if both are equal), at random from its start or its end.

    So examples neither always start nor always end at the boundary of a sentence. Returns the number of tokens removed
    from the start of A, the number of remaining tokens of A, and the same for B.
    """
    front_a = front_b = 0
    for at_end in draws.coin_flips(max(0, length_a + length_b - max_num_tokens)):
        if length_a > length_b:
            length_a -= 1
            front_a += not at_end
        else:
            length_b -= 1
            front_b += not at_end
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

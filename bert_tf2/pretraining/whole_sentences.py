"""Examples without next-sentence pairs: whole consecutive sentences of one document."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence


def spans(bounds: Sequence[int], first: int, last: int, num_tokens: int) -> Iterator[tuple[int, int]]:
    """Divides consecutive sentences into spans of at most `num_tokens` tokens. Every token is in one of them.

    A span ends where a sentence ends, the last one that has room. Only a sentence that does not fit into a span of its
    own is cut: it fills spans, and its rest begins one, which the next sentences may fill.

    Args:
      bounds: sentence i has the tokens `bounds[i]` to `bounds[i + 1] - 1`, at least one.
      first, last: the first sentence and the one after the last.
      num_tokens: at least 1.

    Yields:
      The first token of a span, and the one after its last.
    """
    start, end = bounds[first], bounds[last]
    while start < end:
        first = bisect_right(bounds, start + num_tokens, first, last + 1) - 1
        stop = bounds[first] if bounds[first] > start else start + num_tokens
        yield start, stop
        start = stop

"""The numbers of a `random.Random`, drawn many at a time.

Making examples takes some 200 random numbers for each, one after the other, and a call of `random.Random` for every
number takes most of the time. The generator, a Mersenne twister, produces words of 32 bits, and every method of
`random.Random` is a simple function of the next words. Here numpy produces the words, and functions of C look for the
next one that matters.

The numbers are exactly those that the same calls of the `random.Random` would return; see each method.
"""

from __future__ import annotations

import functools
import random
from array import array
from collections.abc import Sequence

import numpy as np

_BLOCK = 1 << 16  # words
_SMALL = 8  # bits that fit into bytes, whose slices are fast
_KEPT = -1
_LARGE = 1 << 17  # items of which a list would take nine times the memory of an array


class Draws:
    """The numbers that a `random.Random` would return next. It is read once, and does not advance."""

    def __init__(self, rng: random.Random):
        _, (*key, place), _ = rng.getstate()
        self._generator = np.random.MT19937()
        self._generator.state = {
            "bit_generator": "MT19937",
            "state": {"key": np.array(key, np.uint32), "pos": place},
        }
        self._words = np.zeros(0, np.uint32)
        self._place = 0
        self._refill(_BLOCK)

    def _refill(self, least: int) -> None:
        """Makes at least `least` words available."""
        fresh = self._generator.random_raw(max(_BLOCK, least)).astype(np.uint32)
        self._words = words = np.concatenate([self._words[self._place :], fresh])
        self._place = 0
        self._end = len(words) - 1  # a number of `random` needs two words
        self._integers = memoryview(words)
        top = (words >> 24).astype(np.uint8)
        self._top = [(top >> (_SMALL - bits)).tobytes() for bits in range(_SMALL + 1)]  # [bits]: getrandbits(bits)
        self._upper = self._top[1]  # whether random() >= 0.5: only the first bit matters
        self._rare = self._is_at_least(0.8).tobytes()

    def _is_at_least(self, limit: float) -> np.ndarray:
        """For each word, whether `random()` would be at least `limit` if it started there.

        It has 27 bits of a word and 26 of the next one, so the next one matters only where the first ones are equal.
        """
        high, low = divmod(int(limit * 2**53), 2**26)
        first = self._words >> 5
        answer = first > high
        for equal in np.flatnonzero(first[:-1] == high):
            answer[equal] = int(self._words[equal + 1]) >> 6 >= low
        return answer

    def _need(self, count: int) -> int:
        """The place of the next word, from which `count` words and one more are available."""
        if self._place + count > self._end:
            self._refill(count + 1)
        return self._place

    def random(self) -> float:
        """`rng.random()`"""
        place = self._need(2)
        self._place = place + 2
        return ((self._integers[place] >> 5) * 67108864 + (self._integers[place + 1] >> 6)) / 9007199254740992

    def below(self, count: int) -> int:
        """`rng.randint(0, count - 1)`: as many bits as `count` has, drawn again while they are too large."""
        bits = count.bit_length()
        while True:
            place = self._need(1)
            self._place = place + 1
            number = self._top[bits][place] if bits <= _SMALL else self._integers[place] >> (32 - bits)
            if number < count:
                return number

    def halves(self, count: int) -> bytes:
        """For each of `count` calls of `rng.random()`, one byte: 0 below 0.5, otherwise 1."""
        place = self._need(2 * count)
        self._place = place + 2 * count
        return self._upper[place : place + 2 * count : 2]

    def replacements(self, count: int, mask: int, words: Sequence[int]) -> array:
        """What replaces each of `count` tokens: `mask`, -1 for the token itself, or one of `words`.

        For each: `rng.random() < 0.8` is `mask`; then `rng.random() < 0.5` is -1; then `rng.randint` chooses a word.
        """
        chosen = array("i", (mask,)) * count
        done = 0
        while done < count:
            place = self._need(2 * (count - done) + 2)
            masks = self._rare[place : place + 2 * (count - done) : 2].find(1)
            if masks < 0:
                self._place = place + 2 * (count - done)
                break
            done += masks
            place += 2 * masks + 2
            self._place = place + 2
            chosen[done] = words[self.below(len(words))] if self._upper[place] else _KEPT
            done += 1
        return chosen

    def shuffled(self, count: int, wanted: int | None = None) -> Sequence[int]:
        """The first `wanted` items of `list(range(count))` after `rng.shuffle`, all of them by default.

        Each item, from the last to the second, is swapped with an item at or before it. An item that has been swapped
        is not looked at again, so where it is not wanted, only its partner is stored.
        """
        items = list(range(count)) if count < _LARGE else array("i", range(count))
        wanted = count if wanted is None else wanted
        stretches, probable = _stretches(count, wanted)
        place = self._need(probable)
        for bits, index, first, ahead in stretches:
            while index >= first:  # once, unless unusually many draws were too large
                if place + ahead > self._end:
                    self._place = place
                    place = self._need(ahead)
                if bits <= _SMALL:
                    values = self._top[bits][place : place + ahead]
                else:
                    values = (self._words[place : place + ahead] >> (32 - bits)).tolist()
                source = iter(values)
                if index >= wanted:
                    for other in source:
                        if other <= index:
                            items[other] = items[index]
                            index -= 1
                            if index < first:
                                break
                else:
                    for other in source:
                        if other <= index:
                            items[index], items[other] = items[other], items[index]
                            index -= 1
                            if index < first:
                                break
                place += ahead - source.__length_hint__()  # the values that were not looked at
        self._place = place
        return items[:wanted]


@functools.lru_cache(maxsize=4096)
def _stretches(count: int, wanted: int) -> tuple[list[tuple[int, int, int, int]], int]:
    """The indexes of a shuffle, from the last to the second, as stretches that are treated in the same way.

    Returns:
      For each stretch: the bits of its draws, its first and last index, and how many draws will probably do; and the
      sum of these.
    """
    found = []
    index = count - 1
    while index > 0:
        bits = (index + 1).bit_length()
        last = max(1, (1 << (bits - 1)) - 1)  # the smallest index with this number of bits
        if index >= wanted:
            last = max(last, wanted)
        found.append((bits, index, last, 2 * (index - last) + 16))
        index = last - 1
    return found, sum(ahead for *_, ahead in found)

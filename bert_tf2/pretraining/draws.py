"""Random numbers for examples: from any `random.Random`, and the same numbers many at a time.

`Draws` defines the draws, with the methods of a `random.Random`. `BufferedDraws` returns the same numbers several times
faster: an example takes some 200 numbers, one after the other, and calls of `random.Random` would take most of the
time. The generator, a Mersenne twister, produces words of 32 bits, and every method of `random.Random` is a simple
function of the next words. In BufferedDraws, numpy produces the words, and C functions search for the next relevant
word.
"""

from __future__ import annotations

import functools
import random
from array import array
from collections.abc import Sequence

import numpy as np

_SMALL = 8  # the number of bits that fit into bytes, whose slices are fast
_SHORT = list(range(1 << 10))  # copying a part of this list takes a third of the time of making a list


class Draws:
    """The numbers of a generator, which may be any object with the methods `random`, `randint` and `shuffle`."""

    def __init__(self, rng: random.Random):
        self._rng = rng

    def random(self) -> float:
        """A number from 0 to 1, without 1."""
        return self._rng.random()

    def randint(self, low: int, high: int) -> int:
        """One of the integers from `low` to `high`, both included."""
        return self._rng.randint(low, high)

    def coin_flips(self, count: int) -> bytes:
        """The results of `count` calls of `random` as bytes: 0 below 0.5, otherwise 1."""
        return bytes(self.random() >= 0.5 for _ in range(count))

    def count_below(self, limit: float, most: int) -> int:
        """Calls `random`, at most `most` times, until a number is >= `limit`; returns the count of lower numbers."""
        return next((count for count in range(most) if self.random() >= limit), most)

    def shuffled(self, count: int, wanted: int | None = None) -> Sequence[int]:
        """The first `wanted` items of the shuffled `list(range(count))`, all of them by default."""
        items = list(range(count))
        self._rng.shuffle(items)
        return items[:wanted]


class BufferedDraws(Draws):
    """The numbers that a `random.Random` would return next. Reads its state once, without advancing it."""

    def __init__(self, rng: random.Random, block: int = 1 << 16):
        """`block`: the minimum number of words that are made at a time."""
        self._block = block
        _, (*key, place), _ = rng.getstate()
        self._generator = np.random.MT19937()
        self._generator.state = {"bit_generator": "MT19937", "state": {"key": np.array(key, np.uint32), "pos": place}}
        self._words = np.zeros(0, np.uint32)
        self._place = 0
        self._refill(block)

    def _refill(self, minimum: int) -> None:
        """Makes at least `minimum` words available."""
        fresh = self._generator.random_raw(max(self._block, minimum)).astype(np.uint32)
        self._words = words = np.concatenate([self._words[self._place :], fresh])
        self._place = 0
        self._end = len(words) - 1  # a number of `random` needs two words
        self._integers = memoryview(words)
        top = (words >> 24).astype(np.uint8)
        self._top = [(top >> (_SMALL - bits)).tobytes() for bits in range(_SMALL + 1)]  # [bits]: getrandbits(bits)
        self._upper = self._top[1]  # whether random() >= 0.5: only the first bit matters
        self._at_least: dict[float, bytes] = {}  # limit -> see _is_at_least

    def _is_at_least(self, limit: float) -> np.ndarray:
        """Whether `random()` would be at least `limit` if it started at a word, for each word.

        `random()` has 27 bits of a word and 26 bits of the next word, so the next word matters only if the first 27
        bits equal the bits of `limit`.
        """
        high, low = divmod(int(limit * 2**53), 2**26)
        first = self._words >> 5
        answer = first > high
        for equal in np.flatnonzero(first[:-1] == high):
            answer[equal] = int(self._words[equal + 1]) >> 6 >= low
        return answer

    def _need(self, count: int) -> int:
        """Makes `count` + 1 words available; returns the place of the next word."""
        if self._place + count > self._end:
            self._refill(count + 1)
        return self._place

    def random(self) -> float:
        place = self._place
        if place + 2 > self._end:
            place = self._need(2)
        self._place = place + 2
        return ((self._integers[place] >> 5) * 67108864 + (self._integers[place + 1] >> 6)) / 9007199254740992

    def randint(self, low: int, high: int) -> int:
        """Takes as many bits as the number of integers needs; draws again while the result is too large."""
        count = high - low + 1
        bits = count.bit_length()
        while True:
            place = self._place
            if place >= self._end:
                place = self._need(1)
            self._place = place + 1
            number = self._top[bits][place] if bits <= _SMALL else self._integers[place] >> (32 - bits)
            if number < count:
                return low + number

    def coin_flips(self, count: int) -> bytes:
        place = self._need(2 * count)
        self._place = end = place + 2 * count
        return self._upper[place:end:2]

    def count_below(self, limit: float, most: int) -> int:
        place = self._place
        if place + 2 * most > self._end:
            place = self._need(2 * most)
        at_least = self._at_least.get(limit)
        if at_least is None:
            at_least = self._at_least[limit] = self._is_at_least(limit).tobytes()
        count = at_least[place : place + 2 * most : 2].find(1)
        if count < 0:
            self._place = place + 2 * most
            return most
        self._place = place + 2 * count + 2
        return count

    def shuffled(self, count: int, wanted: int | None = None) -> Sequence[int]:
        """Swaps each item, from the last to the second, with an item at or before it.

        A swapped item is not used again, so if the item is not wanted, only its partner is stored.
        """
        items = _SHORT[:count] if count <= len(_SHORT) else array("i", range(count))
        wanted = count if wanted is None else wanted
        stretches, probable = _stretches(count)
        place = self._need(probable)
        for bits, index, first, ahead in stretches:
            while index >= first:  # a single iteration, unless unusually many draws were too large
                if place + ahead > self._end:
                    self._place = place
                    place = self._need(ahead)
                if bits <= _SMALL:
                    values = self._top[bits][place : place + ahead]
                else:
                    values = (self._words[place : place + ahead] >> (32 - bits)).tolist()
                source = iter(values)
                if first >= wanted:
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
                place += ahead - source.__length_hint__()  # minus the values that were not used
        self._place = place
        return items[:wanted]


@functools.lru_cache(maxsize=4096)
def _stretches(count: int) -> tuple[list[tuple[int, int, int, int]], int]:
    """The indexes of a shuffle, from the last to the second, as stretches that are treated in the same way.

    Returns (the bits of its draws, first index, last index, the number of draws that will probably suffice) for each
    stretch, and the sum of these numbers of draws.
    """
    found = []
    index = count - 1
    while index > 0:
        bits = (index + 1).bit_length()
        last = max(1, (1 << (bits - 1)) - 1)  # the smallest index with this number of bits
        found.append((bits, index, last, 2 * (index - last) + 16))
        index = last - 1
    return found, sum(ahead for *_, ahead in found)

"""The random numbers of `Draws` are those of random.Random."""

from __future__ import annotations

import random

import pytest

from bert_tf2.pretraining import draws
from bert_tf2.pretraining.draws import Draws

WORDS = range(1000, 1000 + 30522)


def _replacements(rng, count):
    found = []
    for _ in range(count):
        if rng.random() < 0.8:
            found.append(7)
        elif rng.random() < 0.5:
            found.append(-1)
        else:
            found.append(WORDS[rng.randint(0, len(WORDS) - 1)])
    return found


def _shuffled(rng, count, wanted=None):
    items = list(range(count))
    rng.shuffle(items)
    return items[:wanted]


def check_one(rng, ours, choose):
    what = choose.choice(["random", "below", "halves", "replacements", "shuffled"])
    if what == "random":
        assert ours.random() == rng.random()
    elif what == "below":
        count = choose.choice([1, 2, 3, 255, 256, 257, 30522, 2**31 + 1])
        assert ours.below(count) == rng.randint(0, count - 1)
    elif what == "halves":
        count = choose.randint(0, 90)
        assert list(ours.halves(count)) == [int(rng.random() >= 0.5) for _ in range(count)]
    elif what == "replacements":
        count = choose.randint(0, 80)
        assert ours.replacements(count, 7, WORDS).tolist() == _replacements(rng, count)
    else:
        count, wanted = choose.choice([0, 1, 2, 3, 125, 254, 255, 256, 600]), choose.choice([None, 0, 1, 20, 77, 1000])
        assert ours.shuffled(count, wanted) == _shuffled(rng, count, wanted)


@pytest.mark.parametrize("block", [64, 1000, 1 << 16])
@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_of_draws(seed, block, monkeypatch):
    """With small blocks every kind of draw meets their ends."""
    monkeypatch.setattr(draws, "_BLOCK", block)
    rng, choose = random.Random(seed), random.Random(-seed)
    for _ in range(seed * 333):
        rng.random()  # another place in the state
    ours = Draws(rng)
    for _ in range(600):
        check_one(rng, ours, choose)


def test_a_shuffle_with_unusually_many_draws(monkeypatch):
    stretches = draws._stretches

    def too_few(count, wanted):
        return [(bits, index, first, 1) for bits, index, first, _ in stretches(count, wanted)[0]], 1

    monkeypatch.setattr(draws, "_stretches", too_few)
    monkeypatch.setattr(draws, "_BLOCK", 64)
    rng = random.Random(5)
    ours = Draws(rng)
    for count in (2, 125, 300):
        assert ours.shuffled(count, 19) == _shuffled(rng, count, 19)


def test_a_long_shuffle():
    rng = random.Random(1)
    assert Draws(rng).shuffled(100_000) == _shuffled(rng, 100_000)


def test_a_limit_whose_first_bits_are_met():
    """A number that equals the limit in its first 27 bits is compared by the other 26."""
    rng = random.Random(1)
    ours = Draws(rng)
    high, low = divmod(int(0.8 * 2**53), 2**26)
    ours._words[:] = high << 5
    for second, expected in ((low, True), (low - 1, False)):
        ours._words[1] = second << 6
        assert bool(ours._is_at_least(0.8)[0]) is expected is ((high << 26) + second >= 0.8 * 2**53)

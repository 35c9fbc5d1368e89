"""The random numbers of `BufferedDraws` are those of `Draws`."""

from __future__ import annotations

import random

import pytest

from bert_tf2.pretraining import draws
from bert_tf2.pretraining.draws import BufferedDraws, Draws


def any_draw(choose):
    """A method and its arguments."""
    name = choose.choice(["random", "randint", "coin_flips", "count_below", "shuffled"])
    arguments = {
        "random": (),
        "randint": (choose.randint(-3, 3), 3 + choose.choice([0, 1, 2, 252, 253, 254, 30522, 2**31 + 1])),
        "coin_flips": (choose.randint(0, 90),),
        "count_below": (choose.choice([0.8, 0.97, 0.1]), choose.randint(0, 80)),
        "shuffled": (choose.choice([0, 1, 2, 3, 125, 254, 255, 256, 600]), choose.choice([None, 0, 1, 20, 77, 1000])),
    }
    return name, arguments[name]


def results(ours, count, choose):
    found = []
    for name, arguments in (any_draw(choose) for _ in range(count)):
        found.append((name, getattr(ours, name)(*arguments)))
    return [(name, [*result] if name == "shuffled" else result) for name, result in found]


def test_draws_are_the_methods_of_the_generator():
    rng, ours = random.Random(3), Draws(random.Random(3))
    assert ours.random() == rng.random()
    assert ours.randint(2, 99) == rng.randint(2, 99)
    assert [*ours.coin_flips(50)] == [rng.random() >= 0.5 for _ in range(50)]
    assert ours.count_below(0.0, 0) == 0 and ours.count_below(1.0, 5) == 5 == len([rng.random() for _ in range(5)])
    numbers = [rng.random() for _ in range(9)]
    limit = max(numbers[:4])
    assert ours.count_below(limit, 9) == numbers.index(limit)  # and no number behind it is drawn
    assert [ours.random() for _ in range(8 - numbers.index(limit))] == numbers[numbers.index(limit) + 1 :]
    items = [*range(70)]
    rng.shuffle(items)
    assert ours.shuffled(70, 20) == items[:20]


@pytest.mark.parametrize("block", [64, 1000, 1 << 16])
@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_of_draws(seed, block, monkeypatch):
    """With small blocks every kind of draw meets their ends."""
    monkeypatch.setattr(draws, "_BLOCK", block)
    rng, choose = random.Random(seed), random.Random(-seed)
    for _ in range(seed * 333):
        rng.random()  # another place in the state
    ours = results(BufferedDraws(rng), 600, choose)
    assert ours == results(Draws(rng), 600, random.Random(-seed))


def test_a_shuffle_with_unusually_many_draws(monkeypatch):
    stretches = draws._stretches

    def too_few(count):
        return [(bits, index, first, 1) for bits, index, first, _ in stretches(count)[0]], 1

    monkeypatch.setattr(draws, "_stretches", too_few)
    monkeypatch.setattr(draws, "_BLOCK", 64)
    ours, theirs = BufferedDraws(random.Random(5)), Draws(random.Random(5))
    for count in (2, 125, 300):
        assert ours.shuffled(count, 19) == theirs.shuffled(count, 19)


def test_a_long_shuffle():
    assert [*BufferedDraws(random.Random(1)).shuffled(100_000)] == Draws(random.Random(1)).shuffled(100_000)


def test_a_limit_whose_first_bits_are_met():
    """A number that equals the limit in its first 27 bits is compared by the other 26."""
    rng = random.Random(1)
    ours = BufferedDraws(rng)
    high, low = divmod(int(0.8 * 2**53), 2**26)
    ours._words[:] = high << 5
    for second, expected in ((low, True), (low - 1, False)):
        ours._words[1] = second << 6
        assert bool(ours._is_at_least(0.8)[0]) is expected is ((high << 26) + second >= 0.8 * 2**53)

"""Masking: the choice of positions, and their replacements."""

from __future__ import annotations

import random

import pytest
from pretraining_text import VOCABULARY, Script

from bert_tf2 import pretraining
from bert_tf2.pretraining import PretrainingDataOptions, masking


def masked(tokens, rng, probability=0.15, most=20, whole_words=False):
    """(position, label, replacement) of each prediction."""
    before = list(tokens)
    output, positions, labels = pretraining.create_masked_lm_predictions(
        tokens, probability, most, VOCABULARY, rng, whole_words
    )
    assert tokens == before and len(output) == len(tokens)
    assert all(output[place] == tokens[place] for place in range(len(tokens)) if place not in positions)
    return [(place, label, output[place]) for place, label in zip(positions, labels, strict=True)]


def test_masking_by_hand():
    tokens = ["[CLS]", "a", "b", "c", "[SEP]", "d", "e", "[SEP]"]
    rng = Script(randoms=[0.79, 0.8, 0.49, 0.8, 0.5], integers=[7])
    assert masked(tokens, rng, 0.9, 3) == [(1, "a", "[MASK]"), (2, "b", "b"), (3, "c", VOCABULARY[7])]
    assert rng.used_up


@pytest.mark.parametrize(
    ("num_tokens", "probability", "limit", "wanted"),
    [(128, 0.15, 20, 19), (128, 0.3, 20, 20), (5, 0.0, 20, 1), (5, 0.15, 20, 1), (10, 0.25, 20, 2), (14, 0.25, 20, 4)],
)
def test_number_of_predictions(num_tokens, probability, limit, wanted):
    options = PretrainingDataOptions(masked_lm_prob=probability, max_predictions_per_seq=limit)
    assert masking.num_to_predict(num_tokens, options) == wanted  # 2.5 and 3.5 are rounded to even


def test_whole_words_are_masked_together_or_not_at_all():
    tokens = ["[CLS]", "a", "##b", "##c", "d", "e", "##f", "[SEP]", "g", "h", "##i", "##j", "k", "[SEP]"]
    words = [{1, 2, 3}, {4}, {5, 6}, {8}, {9, 10, 11}, {12}]
    rng, seen = random.Random(1), set()
    for _ in range(300):
        positions = {index for index, *_ in masked(tokens, rng, 0.35, whole_words=True)}
        assert len(positions) == 5  # round(14 * 0.35); words of one piece fill what a longer one would overfill
        assert all(word <= positions or not word & positions for word in words)
        seen |= positions
    assert seen == set().union(*words)


@pytest.mark.parametrize("whole_words", [False, True])
def test_pieces_at_the_start_of_b_belong_to_the_last_word_of_a(whole_words):
    tokens, rng = ["[CLS]", "##a", "b", "[SEP]", "##c", "d", "[SEP]"], random.Random(1)
    found = {tuple(index for index, *_ in masked(tokens, rng, 0.3, whole_words=whole_words)) for _ in range(200)}
    together = {(2, 4), (1, 5)} if whole_words else {(a, b) for a in (1, 2, 4, 5) for b in (2, 4, 5) if a < b}
    assert found == together  # words (1), (2, 4), (5); two tokens are wanted


def test_nothing_to_mask():
    assert masked(["[CLS]", "[SEP]"], Script()) == masked(["[CLS]", "[SEP]"], Script(), whole_words=True) == []

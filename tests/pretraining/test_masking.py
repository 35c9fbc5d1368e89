"""Masking: shuffling, the choice of positions, and their replacements."""

from __future__ import annotations

import collections
import random

import pytest
from pretraining_text import VOCABULARY, Script, document

from bert_tf2 import pretraining
from bert_tf2.pretraining import PretrainingDataOptions, masking


@pytest.mark.parametrize("num_items", [0, 1, 2, 3, 4, 7, 8, 9, 127, 128, 129, 1000])
def test_shuffle_is_pythons_and_leaves_the_generator_where_python_does(num_items):
    ours, pythons = list(range(num_items)), list(range(num_items))
    our_rng, python_rng = random.Random(num_items), random.Random(num_items)
    for _ in range(5):
        pretraining.shuffle(ours, our_rng)
        python_rng.shuffle(pythons)
    assert ours == pythons
    assert our_rng.random() == python_rng.random()


def test_masking_by_hand(in_order):
    tokens = ["[CLS]", "a", "b", "c", "[SEP]", "d", "e", "[SEP]"]
    options = PretrainingDataOptions(max_predictions_per_seq=3, masked_lm_prob=0.9)
    rng = Script(randoms=[0.79, 0.8, 0.49, 0.8, 0.5], integers=[7])
    masked = pretraining.choose_predictions(tokens, VOCABULARY, options, rng)
    assert rng.used_up
    assert masked == [(1, "a", "[MASK]"), (2, "b", "b"), (3, "c", VOCABULARY[7])]
    assert tokens == ["[CLS]", "a", "b", "c", "[SEP]", "d", "e", "[SEP]"]


@pytest.mark.parametrize(
    ("num_tokens", "probability", "limit", "wanted"),
    [(128, 0.15, 20, 19), (128, 0.3, 20, 20), (5, 0.0, 20, 1), (5, 0.15, 20, 1), (10, 0.25, 20, 2), (14, 0.25, 20, 4)],
)
def test_number_of_predictions(num_tokens, probability, limit, wanted):
    options = PretrainingDataOptions(masked_lm_prob=probability, max_predictions_per_seq=limit)
    assert options.num_to_predict(num_tokens) == wanted  # 2.5 and 3.5 are rounded to even


def test_80_10_10_and_never_a_delimiter():
    tokens = ["[CLS]", *"abcdefghij" * 5, "[SEP]", *"klmnopqrst" * 5, "[SEP]"]
    options = PretrainingDataOptions(max_predictions_per_seq=30, masked_lm_prob=0.15)
    rng = random.Random(3)
    kinds, places = collections.Counter(), collections.Counter()
    for _ in range(2000):
        masked = pretraining.choose_predictions(tokens, VOCABULARY, options, rng)
        indexes = [choice.index for choice in masked]
        assert len(masked) == 15 and indexes == sorted(set(indexes))
        assert all(choice.label == tokens[choice.index] for choice in masked)
        places.update(indexes)
        kinds.update({"[MASK]": "mask", choice.label: "kept"}.get(choice.replacement, "random") for choice in masked)
    assert kinds["mask"] / kinds.total() == pytest.approx(0.8, abs=0.01)
    assert kinds["kept"] / kinds.total() == pytest.approx(0.1, abs=0.01)
    assert kinds["random"] / kinds.total() == pytest.approx(0.1, abs=0.01)
    assert set(places) == set(range(len(tokens))) - {0, 51, 102}
    assert max(places.values()) < 1.3 * min(places.values())


def test_whole_words_are_masked_together_or_not_at_all():
    tokens = ["[CLS]", "a", "##b", "##c", "d", "e", "##f", "[SEP]", "g", "h", "##i", "##j", "k", "[SEP]"]
    words = [{1, 2, 3}, {4}, {5, 6}, {8}, {9, 10, 11}, {12}]
    options = PretrainingDataOptions(do_whole_word_mask=True, masked_lm_prob=0.35)
    rng, seen = random.Random(1), set()
    for _ in range(300):
        masked = pretraining.choose_predictions(tokens, VOCABULARY, options, rng)
        positions = {choice.index for choice in masked}
        assert len(positions) == 5  # round(14 * 0.35); words of one piece fill what a longer one would overfill
        assert all(word <= positions or not word & positions for word in words)
        seen |= positions
    assert seen == set().union(*words)


def test_pieces_at_the_start_of_b_belong_to_the_last_word_of_a(in_order):
    tokens = ["[CLS]", "##a", "b", "[SEP]", "##c", "d", "[SEP]"]
    assert masking._maskable_units(tokens, whole_words=True) == [(1,), (2, 4), (5,)]
    assert masking._maskable_units(tokens, whole_words=False) == [(1,), (2,), (4,), (5,)]


def test_no_word_short_enough_gives_no_prediction():
    tokens = ["[CLS]", "a", "##b", "[SEP]", "c", "##d", "[SEP]"]
    documents = [document("a ##b", "c ##d")]
    options = PretrainingDataOptions(do_whole_word_mask=True, max_predictions_per_seq=1, short_seq_prob=0.0)
    assert pretraining.choose_predictions(tokens, VOCABULARY, options, random.Random(1)) == []
    (instance, *_) = pretraining.instances_of_document(documents, 0, VOCABULARY, options, random.Random(1))
    assert instance.masked_lm_positions == () and instance.masked_lm_labels == []


def test_masked_tokens_positions_and_labels():
    tokens = ["[CLS]", *"abcdefgh", "[SEP]"]
    masked = pretraining.choose_predictions(
        tokens, VOCABULARY, PretrainingDataOptions(masked_lm_prob=0.5), random.Random(1)
    )
    output, positions, labels = pretraining.create_masked_lm_predictions(tokens, 0.5, 20, VOCABULARY, random.Random(1))
    assert list(zip(positions, labels, (output[place] for place in positions), strict=True)) == masked
    assert len(masked) == 5 and tokens == ["[CLS]", *"abcdefgh", "[SEP]"] != output

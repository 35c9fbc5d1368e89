"""Pairs of segments: by hand, truncated, random ones, and the functions of the reference."""

from __future__ import annotations

import collections
import random

from pretraining_text import LETTERS, VOCABULARY, Script, document, sentences_of

from bert_tf2 import pretraining
from bert_tf2.pretraining import PretrainingDataOptions
from bert_tf2.pretraining.documents import Document


def test_pairs_by_hand(in_order):
    documents = [document("a b", "c d", "e f", "g h"), document("i j", "k l", "m n")]
    options = PretrainingDataOptions(max_seq_length=9, max_predictions_per_seq=1, short_seq_prob=0.1)
    mask = 0.0  # one draw below 0.8 for the single prediction
    rng = Script(
        randoms=[
            0.5,  # not a short document: 6 tokens are aimed at
            *(0.4, mask),  # a b | c d e f: B is a random one, c d e f goes back
            *(0.7, mask),  # c d | e f g h: B is the real one
        ],
        integers=[1, 0, 0, 1, 1, 1],
        # A is one sentence; documents 0, 0 (the own one: drawn again) and 1; from its sentence 1; A is one sentence
    )
    first, second = pretraining.instances_of_document(documents, 0, VOCABULARY, options, rng)
    assert rng.used_up
    assert first.tokens == ["[CLS]", "[MASK]", "b", "[SEP]", "k", "l", "m", "n", "[SEP]"]
    assert first.segment_ids == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert (first.is_random_next, first.masked_lm_positions, first.masked_lm_labels) == (True, (1,), ["a"])
    assert second.tokens == ["[CLS]", "[MASK]", "d", "[SEP]", "e", "f", "g", "h", "[SEP]"]
    assert (second.is_random_next, second.masked_lm_labels) == (False, ["c"])


def test_a_single_sentence_gets_a_random_continuation_without_a_coin(in_order):
    documents = [document("a b c"), document("d", "e")]
    options = PretrainingDataOptions(max_seq_length=16, max_predictions_per_seq=1)
    rng = Script(randoms=[0.5, 0.0], integers=[1, 1])  # no short document, [MASK]; document 1 from sentence 1
    (instance,) = pretraining.instances_of_document(documents, 0, VOCABULARY, options, rng)
    assert rng.used_up
    assert instance.is_random_next
    assert instance.tokens == ["[CLS]", "[MASK]", "b", "c", "[SEP]", "e", "[SEP]"]


def test_a_short_document_aims_at_the_length_drawn(in_order):
    documents = [document(*"abcdefgh"), document(*"ij")]
    options = PretrainingDataOptions(max_seq_length=128, max_predictions_per_seq=1)
    # Short (0.05 < 0.1), of 4 tokens; then twice: A is two sentences, and B (0.9) follows it.
    rng = Script(randoms=[0.05, *[0.9, 0.0] * 2], integers=[4, 2, 2])
    instances = pretraining.instances_of_document(documents, 0, VOCABULARY, options, rng)
    lengths = [len(instance.tokens) for instance in instances]
    assert rng.used_up
    assert lengths == [4 + 3, 4 + 3]


def test_truncation_shortens_the_longer_segment_at_the_end_that_the_coin_says():
    a, b = document("a b c d e").segment(0, 1), document("f g h").segment(0, 1)
    rng = Script(randoms=[0.1, 0.6, 0.2, 0.9])
    pretraining.truncate_seq_pair(a, b, 4, rng)
    # A is longer: a goes, e goes; now both have 3, so B: f goes; then A again: d goes.
    assert rng.used_up
    assert (a.tokens, b.tokens) == (["b", "c"], ["g", "h"])


def test_half_of_the_pairs_are_random_and_labelled_so():
    marks = [f"{x}{y}" for x in LETTERS for y in LETTERS]
    documents = [Document([[mark, str(number)] for number in range(40)]) for mark in marks[:60]]
    options = PretrainingDataOptions(max_seq_length=17, max_predictions_per_seq=1, short_seq_prob=0.0)
    rng = random.Random(5)
    labels = collections.Counter()
    for number in range(len(documents)):
        for instance in pretraining.instances_of_document(documents, number, VOCABULARY, options, rng):
            a, b = instance.segment_a, instance.segment_b
            assert instance.is_random_next == (a.document is not b.document)
            assert instance.is_random_next or a.stop == b.start
            assert len(a) >= 1 and len(b) >= 1 and len(a) + len(b) + 3 <= 17
            labels[instance.is_random_next] += 1
    assert 0.45 < labels[True] / labels.total() < 0.56  # the last sentence of a document is always random


def test_the_reference_s_functions_take_its_arguments(tokenizer, corpus):
    options = PretrainingDataOptions(
        max_seq_length=32,
        max_predictions_per_seq=5,
        dupe_factor=2,
        masked_lm_prob=0.2,
        short_seq_prob=0.3,
        do_whole_word_mask=True,
    )
    wanted = pretraining.make_instances([corpus], tokenizer, options, random.Random(3))
    found = pretraining.create_training_instances([corpus], tokenizer, 32, 2, 0.3, 0.2, 5, random.Random(3), True)
    assert len(found) > 10
    for name in ("tokens", "segment_ids", "masked_lm_positions", "masked_lm_labels", "is_random_next"):
        assert [getattr(instance, name) for instance in found] == [getattr(instance, name) for instance in wanted]


def test_documents_may_be_lists_of_lists(tokenizer, corpus):
    documents = list(pretraining.read_documents([corpus], tokenizer))
    lists = [[sentence.split() for sentence in sentences_of(document)] for document in documents]
    options = PretrainingDataOptions(max_seq_length=32, max_predictions_per_seq=5)
    wanted = list(pretraining.instances_of_document(documents, 2, VOCABULARY, options, random.Random(4)))
    for given in (documents, lists):
        found = pretraining.create_instances_from_document(given, 2, 32, 0.1, 0.15, 5, VOCABULARY, random.Random(4))
        assert [instance.tokens for instance in found] == [instance.tokens for instance in wanted]
    tokens_a, tokens_b = list("abcde"), list("fgh")
    pretraining.truncate_seq_pair(tokens_a, tokens_b, 4, Script(randoms=[0.1, 0.6, 0.2, 0.9]))
    assert (tokens_a, tokens_b) == (["b", "c"], ["g", "h"])

"""Pairs of segments: by hand, truncated, random ones; the functions of the reference."""

from __future__ import annotations

import random

from pretraining_text import CORPUS, VOCABULARY, Script, document

from bert_tf2 import pretraining
from bert_tf2.pretraining import PretrainingDataOptions


def instances_of(documents, number, rng, **settings):
    settings = {"max_seq_length": 128, "max_predictions_per_seq": 1, "short_seq_prob": 0.1, **settings}
    return pretraining.create_instances_from_document(
        documents, number, masked_lm_prob=0.15, vocab_words=VOCABULARY, rng=rng, **settings
    )


def test_pairs_by_hand():
    documents = [document("a b", "c d", "e f", "g h"), document("i j", "k l", "m n")]
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
    first, second = instances_of(documents, 0, rng, max_seq_length=9)
    assert rng.used_up
    assert first.tokens == ["[CLS]", "[MASK]", "b", "[SEP]", "k", "l", "m", "n", "[SEP]"]
    assert first.segment_ids == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert (first.is_random_next, first.masked_lm_positions, first.masked_lm_labels) == (True, [1], ["a"])
    assert second.tokens == ["[CLS]", "[MASK]", "d", "[SEP]", "e", "f", "g", "h", "[SEP]"]
    assert (second.is_random_next, second.masked_lm_labels) == (False, ["c"])


def test_truncation_shortens_the_longer_segment_at_the_end_that_the_coin_says():
    a, b = list("abcde"), list("fgh")
    rng = Script(randoms=[0.1, 0.6, 0.2, 0.9])
    pretraining.truncate_seq_pair(a, b, 4, rng)
    # A is longer: a goes, e goes; now both have 3, so B: f goes; then A again: d goes.
    assert rng.used_up
    assert (a, b) == (["b", "c"], ["g", "h"])
    pretraining.truncate_seq_pair(a, b, 9, rng)
    assert (a, b) == (["b", "c"], ["g", "h"])


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


class Counted(list):
    """Documents that say how often one was asked for."""

    asked = 0

    def __getitem__(self, number):
        self.asked += 1
        return super().__getitem__(number)


def test_instances_of_all_documents_are_those_of_the_files(tokenizer, corpus):
    """The reference's way: a generator that advances, a call for each document. Only needed documents are copied."""
    documents = [[tokenizer.tokenize(line) for line in part.splitlines()] for part in CORPUS.split("\n\n")]
    options = PretrainingDataOptions(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=2)
    wanted = pretraining.make_instances([corpus], tokenizer, options, random.Random(4))
    rng, found = random.Random(4), []
    rng.shuffle(documents)
    for _ in range(2):
        for number in range(len(documents)):
            given = Counted([*documents])
            found += pretraining.create_instances_from_document(given, number, 32, 0.1, 0.15, 5, VOCABULARY, rng)
            assert 1 <= given.asked <= len(documents)
    rng.shuffle(found)
    assert [instance.tokens for instance in found] == [instance.tokens for instance in wanted]


def test_a_tokenizer_of_one_s_own(tmp_path):
    """Its delimiters in the text are never masked, and it sees whole sentences."""

    class Own:
        def __init__(self):
            self.vocab = {"[MASK]": 0, "x": 1}

        def tokenize(self, text):
            assert text in ("a [SEP] b", "[CLS] c")
            return text.split()

    (tmp_path / "text").write_text("a [SEP] b\n[CLS] c\n" * 9)
    options = PretrainingDataOptions(max_seq_length=16, masked_lm_prob=1.0, dupe_factor=3)
    for instance in pretraining.make_instances([str(tmp_path / "text")], Own(), options, random.Random(1)):
        delimiters = [place for place, token in enumerate(instance.tokens) if token in ("[CLS]", "[SEP]")]
        assert len(delimiters) > 3
        assert instance.masked_lm_positions == [n for n in range(len(instance.tokens)) if n not in delimiters]

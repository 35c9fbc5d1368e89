"""Masks that are drawn in training: the rule, number by number, and what the numbers depend on."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from pretraining_text import VOCABULARY, rows_of
from unmasked_data import LENGTH, PREDICTIONS, make, write

from bert_tf2.data import record_order, records
from bert_tf2.pretraining import dynamic_masking
from bert_tf2.pretraining.options import PretrainingDataOptions

VOCAB = {token: number for number, token in enumerate(VOCABULARY)}
CLS, SEP, MASK = (VOCAB[token] for token in ("[CLS]", "[SEP]", "[MASK]"))
SIZES = {"max_predictions_per_seq": PREDICTIONS, "vocab_size": len(VOCAB), "type_vocab_size": 2}
SIZES |= {"max_seq_length": LENGTH}


def masked(paths, kind=records.UNMASKED, vocabulary=VOCAB, seeds=(1, 0), take=None, order=None, **options):
    """The rows that training reads, as one batch."""
    options = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS, **options}
    masker = dynamic_masking.Masker(vocabulary, PretrainingDataOptions(**options), seeds)
    batches = record_order.read_records(paths, kind, SIZES, 7, transform=masker, **(order or {}))
    found = [*(batches if take is None else batches.unbatch().take(take).batch(7)).as_numpy_iterator()]
    return {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}


# The rule, number by number, written again with Python's integers

WORD = (1 << 64) - 1


def mix(number):
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        number = (number ^ number >> shift) * factor & WORD
    return number ^ number >> 31


def drawn(key, purpose, place):
    return mix((key + (place + 1 + (purpose << 32)) * 0x9E3779B97F4A7C15) & WORD)


def by_hand(row, seeds, epoch, file, number, probability, whole_words) -> dict[str, list]:
    """The features of a row after masking."""
    key, ids, length = 0, [*row["input_ids"]], len(row["input_ids"])
    for part in (*seeds, epoch, file, number):
        key = mix(((key ^ part) + 0x9E3779B97F4A7C15) & WORD)
    ends = np.cumsum(row["segment_lengths"]) - 1
    maskable = [place for place in range(1, length) if place not in ends]
    wanted = min(PREDICTIONS, max(1, round(length * probability)))
    words, places = [], []
    for place in maskable:
        continues = words and whole_words and VOCABULARY[ids[place]].startswith("##")
        words[-1].append(place) if continues else words.append([place])
    for word in sorted(range(len(words)), key=lambda number: drawn(key, 0, number), reverse=True):
        places += words[word] if len(places) + len(words[word]) <= wanted else []
    places.sort()
    for place in places:
        how = drawn(key, 1, place) / 2**64
        ids[place] = MASK if how < 0.8 else ids[place] if how < 0.9 else drawn(key, 2, place) % len(VOCABULARY)
    padding, free = [0] * (LENGTH - length), [0] * (PREDICTIONS - len(places))
    first, second = row["segment_lengths"]
    return {
        "input_ids": ids + padding,
        "input_mask": [1] * length + padding,
        "segment_ids": [0] * first + [1] * second + padding,
        "masked_lm_positions": places + free,
        "masked_lm_ids": [row["input_ids"][place] for place in places] + free,
        "masked_lm_weights": [1.0] * len(places) + [0.0] * len(free),
        "next_sentence_labels": row["next_sentence_labels"][0],
    }


@pytest.mark.parametrize(
    ("probability", "order", "whole_words"),
    [(1.0, {}, False), (0.15, {"shuffle_seed": 3}, False), (0.15, {}, True)],
    ids=str,
)
def test_masks_number_by_number(tmp_path, probability, order, whole_words):
    """They depend on seeds, epoch, file and record alone; an evaluation, which does not shuffle, repeats them."""
    paths = [make(tmp_path, name, 12, seed) for seed, name in enumerate("ba")]
    rows = [(file, number, row) for file, path in enumerate(sorted(paths)) for number, row in enumerate(rows_of(path))]
    count, seeds = len(rows), (12345, 70)
    order = {"repeat": True, "drop_remainder": True, **order}
    how = {"masked_lm_prob": probability, "do_whole_word_mask": whole_words}
    found = masked(paths, seeds=seeds, take=2 * count, order=order, **how)
    for epoch in range(2):
        of_epoch = zip(*(values[epoch * count :][:count].tolist() for values in found.values()), strict=True)
        of_epoch = Counter(repr(dict(zip(found, values, strict=True))) for values in of_epoch)
        key = epoch if "shuffle_seed" in order else 0
        expected = [by_hand(row, seeds, key, file, number, probability, whole_words) for file, number, row in rows]
        assert of_epoch == Counter(repr({name: row[name] for name in found}) for row in expected)
    features = records.PRETRAINING.features
    kinds = {name: "int32" if feature.dtype == "int64" else "float32" for name, feature in features.items()}
    assert {name: str(values.dtype) for name, values in found.items()} == kinds


def test_one_segment_more_predictions_than_tokens_and_repeated_entries(tmp_path):
    """Entries of a vocabulary are drawn once, as in the reference, whose words are the keys of the vocabulary."""
    path = write(tmp_path / "x", [{"input_ids": [CLS, 6, 6, SEP], "segment_lengths": [4]}] * 300)
    how = {"max_seq_length": 8, "max_predictions_per_seq": 10, "masked_lm_prob": 1.0}
    found = masked([path], kind=records.UNMASKED_WORDS, vocabulary={"[MASK]": 4, "a": 9}, **how)
    assert found["masked_lm_positions"].tolist() == [[1, 2] + [0] * 8] * 300
    assert found["masked_lm_ids"].tolist() == [[6, 6] + [0] * 8] * 300
    assert not found["segment_ids"].any() and "next_sentence_labels" not in found
    assert {*found["input_ids"][:, 1:3].ravel().tolist()} == {4, 6, 9}

"""Masks that are drawn in training: the rule, number by number; what they depend on."""

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
SIZES = {
    "max_seq_length": LENGTH,
    "max_predictions_per_seq": PREDICTIONS,
    "vocab_size": len(VOCAB),
    "type_vocab_size": 2,
}


def dataset(paths, batch_size=7, kind=records.UNMASKED, vocabulary=VOCAB, seeds=(1, 0), order=None, **options):
    options = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS, **options}
    masker = dynamic_masking.Masker(vocabulary, PretrainingDataOptions(**options), seeds)
    return record_order.read_records(paths, kind, SIZES, batch_size, transform=masker, **(order or {}))


def joined(batches) -> dict[str, np.ndarray]:
    found = [*batches.as_numpy_iterator()]
    return {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}


def masks(batches) -> list[tuple[tuple, tuple]]:
    """The ids of each row before and after masking."""
    found = joined(batches)
    after = found["input_ids"]
    before = after.copy()
    row, column = np.nonzero(found["masked_lm_weights"])
    before[row, found["masked_lm_positions"][row, column]] = found["masked_lm_ids"][row, column]
    return [*zip(map(tuple, before.tolist()), map(tuple, after.tolist()), strict=True)]


# The rule, number by number, written again with Python's integers

WORD = (1 << 64) - 1


def mix(number):
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        number = (number ^ number >> shift) * factor & WORD
    return number ^ number >> 31


def drawn(key, purpose, place):
    return mix((key + (place + 1 + (purpose << 32)) * 0x9E3779B97F4A7C15) & WORD)


def by_hand(row, seeds, epoch, file, number, probability):
    """position -> (label, replacement) of a row."""
    key = 0
    for part in (*seeds, epoch, file, number):
        key = mix(((key ^ part) + 0x9E3779B97F4A7C15) & WORD)
    ends = np.cumsum(row["segment_lengths"]) - 1
    maskable = [place for place in range(1, len(row["input_ids"])) if place not in ends]
    wanted = min(PREDICTIONS, max(1, round(len(row["input_ids"]) * probability)))
    order = sorted(range(len(maskable)), key=lambda number: drawn(key, 0, number), reverse=True)
    found = {}
    for place in sorted(maskable[number] for number in order[:wanted]):
        label, how = row["input_ids"][place], drawn(key, 1, place) / 2**64
        other = drawn(key, 2, place) % len(VOCABULARY)
        found[place] = (label, MASK if how < 0.8 else label if how < 0.9 else other)
    return found


@pytest.mark.parametrize("probability", [0.15, 0.0, 1.0])
def test_masks_number_by_number(tmp_path, probability):
    path = make(tmp_path)
    found = joined(dataset([path], seeds=(12345, 70), masked_lm_prob=probability))
    for number, row in enumerate(rows_of(path)):
        chosen = by_hand(row, (12345, 70), 0, 0, number, probability)
        ids, count = [*row["input_ids"]], len(chosen)
        for place, (_, replacement) in chosen.items():
            ids[place] = replacement
        padding, free = [0] * (LENGTH - len(ids)), [0] * (PREDICTIONS - count)
        first, second = row["segment_lengths"]
        assert {name: values[number].tolist() for name, values in found.items()} == {
            "input_ids": ids + padding,
            "input_mask": [1] * len(ids) + padding,
            "segment_ids": [0] * first + [1] * second + padding,
            "masked_lm_positions": [*chosen, *free],
            "masked_lm_ids": [label for label, _ in chosen.values()] + free,
            "masked_lm_weights": [1.0] * count + [0.0] * len(free),
            "next_sentence_labels": row["next_sentence_labels"][0],
        }


def test_batches_are_those_of_records_with_masks(tmp_path):
    static = make(tmp_path, "static", dynamic_masking=False)
    with_masks = record_order.read_records([static], records.PRETRAINING, SIZES, 4, drop_remainder=True)
    assert dataset([make(tmp_path)], 4, order={"drop_remainder": True}).element_spec == with_masks.element_spec


def test_one_segment_more_predictions_than_tokens_and_repeated_entries(tmp_path):
    """Entries of a vocabulary are drawn once, as in the reference, whose words are the keys of the vocabulary."""
    path = write(tmp_path / "x", [{"input_ids": [CLS, 6, 6, SEP], "segment_lengths": [4]}] * 300)
    how = {"max_seq_length": 8, "max_predictions_per_seq": 10, "masked_lm_prob": 1.0}
    found = joined(dataset([path], kind=records.UNMASKED_WORDS, vocabulary={"[MASK]": 4, "a": 9}, **how))
    assert found["masked_lm_positions"].tolist() == [[1, 2] + [0] * 8] * 300
    assert found["masked_lm_ids"].tolist() == [[6, 6] + [0] * 8] * 300
    assert not found["segment_ids"].any() and "next_sentence_labels" not in found
    assert {*found["input_ids"][:, 1:3].ravel().tolist()} == {4, 6, 9}


def test_masks_depend_on_seeds_and_epoch_alone(tmp_path):
    """Neither on batches nor on the order; without shuffling, as in an evaluation, they are the same in every pass."""
    paths = [make(tmp_path, name, 15, seed) for seed, name in enumerate("cab")]
    one = masks(dataset(paths, 1))
    first, count = Counter(one), len(one)
    assert first == Counter(masks(dataset(paths[::-1], 7)))
    assert first == Counter(masks(dataset(paths, 16, order={"shuffle_seed": 3})))
    for seeds in ((2, 0), (1, 1)):
        assert first != Counter(masks(dataset(paths, 16, seeds=seeds)))
    again = masks(dataset(paths, 1, order={"repeat": True}).take(2 * count))
    assert again == one * 2
    twice = masks(dataset(paths, 1, order={"repeat": True, "shuffle_seed": 1}).take(2 * count))
    other = dict(twice[count:])
    assert other.keys() == {*dict(twice[:count])} == {before for before, _ in one}
    assert sum(other[before] != after for before, after in twice[:count]) > 0.9 * count

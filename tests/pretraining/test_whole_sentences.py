"""--objective=mlm: which sentences an example has, what the records hold, how much is masked."""

from __future__ import annotations

import itertools
import random

import pytest

from bert_tf2 import pretraining
from bert_tf2.pretraining import PretrainingDataOptions, examples


def spans(lengths, num_tokens):
    bounds = [0, *itertools.accumulate(lengths)]
    return [*examples.spans(bounds, 0, len(lengths), num_tokens)]


@pytest.mark.parametrize(
    ("lengths", "num_tokens", "expected"),
    [
        ([3, 3, 3], 6, [(0, 6), (6, 9)]),
        ([3, 3, 3], 5, [(0, 3), (3, 6), (6, 9)]),
        ([9], 9, [(0, 9)]),
        ([2, 7, 2], 3, [(0, 2), (2, 5), (5, 8), (8, 11)]),  # the rest of the long one, and the next sentence
        ([2, 6, 3], 3, [(0, 2), (2, 5), (5, 8), (8, 11)]),
        ([1], 1, [(0, 1)]),
        ([], 4, []),
    ],
)
def test_where_examples_begin_and_end(lengths, num_tokens, expected):
    assert spans(lengths, num_tokens) == expected


def test_no_token_is_lost_and_only_long_sentences_are_cut():
    rng = random.Random(1)
    for _ in range(300):
        lengths = rng.choices(range(1, 30), k=rng.randint(1, 40))
        num_tokens = rng.randint(1, 40)
        found, bounds = spans(lengths, num_tokens), [0, *itertools.accumulate(lengths)]
        assert [token for span in found for token in range(*span)] == [*range(sum(lengths))]
        for (start, stop), following in itertools.zip_longest(found, found[1:]):
            assert 0 < stop - start <= num_tokens
            inside = next(i for i in range(len(lengths)) if bounds[i] < stop <= bounds[i + 1])
            if stop != bounds[inside + 1]:  # within a sentence, which is longer than what it could have
                assert stop - start == num_tokens and bounds[inside] <= start
            elif following:
                assert bounds[inside + 2] - start > num_tokens  # the next one has no room


def test_an_example_by_hand(tmp_path, tokenizer):
    path = tmp_path / "text.txt"
    path.write_text("a b c d\ne f\ng h i\nj k l m n o p q r\n")
    options = PretrainingDataOptions(
        max_seq_length=8, max_predictions_per_seq=1, short_seq_prob=0.0, masked_lm_prob=0.0, objective="mlm",
        dupe_factor=1,
    )  # fmt: skip
    made = pretraining.make_instances([str(path)], tokenizer, options, random.Random(3))
    texts = []
    for instance in made:
        tokens = instance.tokens
        ((position,), (label,)) = instance.masked_lm_positions, instance.masked_lm_labels
        tokens[position] = label
        texts.append(" ".join(tokens))
        assert instance.is_random_next is None
        assert instance.segment_ids == [0] * len(tokens)
    assert sorted(texts) == [
        "[CLS] a b c d e f [SEP]",
        "[CLS] g h i [SEP]",
        "[CLS] j k l m n o [SEP]",
        "[CLS] p q r [SEP]",
    ]

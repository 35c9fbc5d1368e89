"""Rows of different lengths: batches of like length, results in order, the same on two replicas as on one."""

import numpy as np
import pytest
import tensorflow as tf
import toy_data
from small_models import randomize

from bert_tf2 import modeling
from bert_tf2.finetuning import extract_features
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.training import forward
from bert_tf2.training.devices import build_model, create_strategy

# Of the rows of a batch, a number that two replicas cannot share equally, and a single row at the end.
TEXTS = ["the film was good", "ann", "where is bob now with a book in paris ?", "the book", "play playing"]
TEXTS = [*TEXTS, "rome is good . the film is awful and bob lives in oslo", "a"]


def test_batches_have_rows_of_like_length_and_results_keep_the_order():
    rows = [7, 1, 9, 2, 8, 3, 5, 5, 4]
    batches = []

    def compute(batch):
        batches.append(batch)
        return [10 * row for row in batch]

    found = list(forward.in_order(iter(rows), lambda row: row, compute, 2, most_tokens=20))
    assert found == [(row, 10 * row) for row in rows]
    # The first window ends with the second batch: 7 + 1 + 9 + 2 is less than 20, and three batches make 30.
    assert batches == [[1, 2], [3, 7], [8, 9], [4, 5], [5]]


def test_nothing_is_read_ahead_of_a_window_and_an_error_comes_after_the_rows_before_it():
    taken = []

    def rows():
        for row in range(1, 6):
            taken.append(row)
            yield row
        raise UserError("row 6 is wrong")

    found = forward.in_order(rows(), lambda row: row, lambda batch: batch, 2, most_tokens=0)
    assert next(found) == (1, 1) and taken == [1, 2]
    whole = forward.in_order(rows(), lambda row: row, lambda batch: batch, 9, most_tokens=99)
    for rest, expected in ((found, [2, 3, 4, 5]), (whole, [1, 2, 3, 4, 5])):
        answered = []
        with pytest.raises(UserError, match="row 6"):
            for row, _ in rest:
                answered.append(row)
        assert answered == expected


def test_data_that_cannot_be_read_are_explained_and_a_failure_of_the_model_is_not():
    def failing(dataset):
        with forward.explained(lambda: UserError("record 1 is wrong")):
            return [*dataset]

    texts = tf.data.Dataset.from_tensors("x").map(tf.strings.to_number)
    with pytest.raises(UserError, match="record 1"):
        failing(texts)
    with pytest.raises(tf.errors.InvalidArgumentError), forward.explained(lambda: pytest.fail("searched")):
        tf.gather(tf.zeros([3]), [5])
    with pytest.raises(tf.errors.InvalidArgumentError), forward.explained(lambda: None):
        list(texts)


def test_features_on_two_replicas_are_those_of_one(two, tmp_path):
    toy_data.write_model(tmp_path)
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"))
    settings = {"pooling": "none", "layers": [0, -1], "max_seq_length": 32, "batch_size": 3}
    found = []
    for strategy in (create_strategy(), two):
        model = build_model(strategy, lambda: modeling.BertModel(toy_data.config()), 1)
        randomize(model)
        found.append(extract_features.embed(model, tokenizer, TEXTS, **settings))
    assert [len(states) for states in found[0]] == [len(tokenizer.tokenize(text)) + 2 for text in TEXTS]
    for of_one, of_two in zip(*found, strict=True):
        np.testing.assert_allclose(of_one, of_two, atol=2e-6)

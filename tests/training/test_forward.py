"""Forward passes: batches of like length, results in order, the same on two replicas, and compiled by XLA."""

import numpy as np
import pytest
import tensorflow as tf
import toy_data
from executed_graphs import executed
from small_models import MAKERS, batch_for, randomize, tiny_config
from small_trainings import ONE
from substitute_kernels import attend_on_cpu

from bert_tf2 import modeling
from bert_tf2.fast.encoder import Plan, accelerate
from bert_tf2.inference import extract_features
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.training import forward, programs
from bert_tf2.training.devices import build_model, create_strategy
from bert_tf2.training.options import Program

# Of the rows of a batch, a number that two replicas cannot share equally, and a single row at the end.
TEXTS = ["the film was good", "ann", "where is bob now with a book in paris ?", "the book", "play playing", "is", "a"]


def test_batches_have_rows_of_like_length_and_results_keep_the_order():
    rows, batches = [7, 1, 9, 2, 8, 3, 5, 5, 4], []

    def compute(batch):
        batches.append(batch)
        return [10 * row for row in batch]

    found = list(forward.in_order(iter(rows), lambda row: row, compute, 2, most_tokens=20))
    assert found == [10 * row for row in rows]
    # The first window ends with the second batch: 7 + 1 + 9 + 2 is less than 20, and three batches make 30.
    assert batches == [[1, 2], [3, 7], [8, 9], [4, 5], [5]]


@pytest.mark.parametrize(("batch_size", "most_tokens", "read"), [(2, 0, 2), (9, 99, 5)])
def test_nothing_is_read_ahead_of_a_window_and_an_error_comes_after_the_rows_before_it(batch_size, most_tokens, read):
    taken, answered = [], []

    def rows():
        for row in range(1, 6):
            taken.append(row)
            yield row
        raise UserError("row 6 is wrong")

    with pytest.raises(UserError, match="row 6"):
        for row in forward.in_order(rows(), lambda row: row, lambda batch: batch, batch_size, most_tokens):
            assert answered or len(taken) == read
            answered.append(row)
    assert answered == [1, 2, 3, 4, 5]


def test_data_that_cannot_be_read_are_explained_and_a_failure_of_the_model_is_not():
    texts = tf.data.Dataset.from_tensors("x").map(tf.strings.to_number)
    with pytest.raises(UserError, match="record 1"), forward.explained(lambda: UserError("record 1 is wrong")):
        list(texts)
    with pytest.raises(tf.errors.InvalidArgumentError), forward.explained(lambda: pytest.fail("searched")):
        tf.gather(tf.zeros([3]), [5])
    with pytest.raises(tf.errors.InvalidArgumentError), forward.explained(lambda: None):
        list(texts)


def test_features_on_two_replicas_are_those_of_one(two, tmp_path):
    toy_data.write_model(tmp_path)
    tokenizer, found = FullTokenizer(str(tmp_path / "vocab.txt")), []
    for strategy in (create_strategy(), two):
        model = build_model(strategy, lambda: modeling.BertModel(toy_data.config(num_hidden_layers=1)), 1)
        randomize(model)
        settings = {"pooling": "none", "layers": [0, -1], "max_seq_length": 32, "batch_size": 3}
        found.append(extract_features.embed(model, tokenizer, TEXTS, **settings))
    assert [len(states) for states in found[0]] == [len(tokenizer.tokenize(text)) + 2 for text in TEXTS]
    for of_one, of_two in zip(*found, strict=True):
        np.testing.assert_allclose(of_one, of_two, atol=2e-6)


def test_batches_of_a_program_have_few_sizes_and_begin_with_their_rows():
    filling, shapes = programs.Filling(4, 100), []
    for length in range(5, 101):
        batch = {"input_ids": np.full([3, length], 7), "masked_lm_positions": np.full([3, length // 5], 2)}
        filled = filling.fill(batch)
        shapes.append([values.shape for values in filled.values()])
        for name, values in batch.items():
            width = values.shape[1]
            np.testing.assert_array_equal(filled[name][:3, :width], values)
            assert (filled[name][3, :width] == values[2]).all() and not filled[name][:, width:].any()
    of_ids, of_positions = (set(found) for found in zip(*shapes, strict=True))
    assert of_ids == {(4, 32), (4, 64), (4, 96), (4, 100)}
    assert of_positions == {(4, 1), (4, 8), (4, 16), (4, 24)}


@pytest.mark.compiled
@pytest.mark.parametrize(("kind", "replicas"), [pytest.param("pretraining", 2, marks=pytest.mark.slow), ("span", 1)])
def test_compiled_batches_have_the_answers_of_plain_ones(kind, replicas, two):
    """On one device, without XLA; also a last, smaller batch."""
    rows = {name: np.concatenate([values, values[:1]]) for name, values in batch_for(kind).items()}
    data, found = tf.data.Dataset.from_tensor_slices(rows).batch(2), []
    for strategy, is_compiled in ((ONE, False), (ONE if replicas == 1 else two, True)):
        model = build_model(strategy, lambda: MAKERS[kind](tiny_config()), 1)
        randomize(model)
        runner, answers = forward.Runner(model, strategy), []
        nodes = executed(lambda: answers.extend(runner.run(data, 2, Program(is_compiled))))  # noqa: B023
        assert any(node.attr["_XlaMustCompile"].b for node in nodes) == is_compiled
        found.append({name: np.concatenate([batch[name] for batch in answers]) for name in answers[0]})
    plain, compiled = found
    assert plain.keys() == compiled.keys() and {len(values) for values in compiled.values()} == {5}
    for name, values in plain.items():
        np.testing.assert_allclose(values, compiled[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("kind", ["pretraining", "span"])
def test_packed_batches_have_the_answers_of_padded_ones(kind):
    """Also a last, smaller batch; in programs of XLA with a substitute for the kernel of attention."""
    model, shapes = MAKERS[kind](tiny_config(num_hidden_layers=2, num_attention_heads=1)), []
    randomize(model)
    rows = {name: values[[0, 5, 1, 4, 2, 3]] for name, values in batch_for(kind, 6).items()}  # a long one, a short one
    data, found = tf.data.Dataset.from_tensor_slices(rows).batch(4), []
    for attention, program in (
        (None, Program()),
        (lambda query, *others: shapes.append(query.shape) or attend_on_cpu(query, *others),
         Program(is_compiled=True, packs=True)),
    ):  # fmt: skip
        answers = [*forward.Runner(accelerate(model, Plan(attention=attention)), ONE).run(data, 4, program)]
        found.append({name: np.concatenate([batch[name] for batch in answers]) for name in answers[0]})
    padded, packed = found
    assert padded.keys() == packed.keys() and {shape[0] for shape in shapes} == {3}
    for name, values in padded.items():
        at = padded["input_mask"] > 0 if values.shape == padded["input_mask"].shape else ...
        np.testing.assert_allclose(packed[name][at], values[at], rtol=1e-4, atol=1e-5, err_msg=name)

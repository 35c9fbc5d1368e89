"""The average of the values with dropout, its explicit gradient, and what is kept for it."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from executed_graphs import executed

from bert_tf2 import layers, shared_graph
from bert_tf2.attention_dropout import average_with_dropout

pytestmark = pytest.mark.compiled
SEED = tf.constant([3, 4])
RATE = 0.2
SHAPE = [2, 3, 10, 8]  # B, N, F = T, H; F and H differ, so that a sum over the wrong axis would not fit


def inputs(dtype):
    """Scores, of which the last two are those of padding, values, and what comes from above."""
    rng = np.random.default_rng(7)
    scores = rng.normal(size=[2, 3, 10, 10]) + np.where(np.arange(10) < 8, 0.0, layers.MASKED_SCORE)
    value, upstream = (tf.cast(rng.normal(size=SHAPE), dtype) for _ in range(2))
    return tf.constant(scores, tf.float32), value, upstream


def average(scores, value, seed=SEED):
    return average_with_dropout(scores, value, RATE, layers.DropoutSeeds(seed))


def by_hand(scores, value):
    """In float64, for automatic differentiation."""
    factor = layers.dropout(tf.ones(tf.shape(scores)), RATE, layers.DropoutSeeds(SEED))
    return tf.matmul(tf.nn.softmax(scores) * tf.cast(factor, tf.float64), value)


def with_gradients(function, scores, value, upstream):
    with tf.GradientTape() as tape:
        tape.watch([scores, value])
        average = function(scores, value)
    return average, *tape.gradient(average, [scores, value], upstream)


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16], ids=lambda dtype: dtype.name)
def test_it_is_the_average_with_dropout_and_so_is_its_gradient(dtype, in_graph):
    scores, value, upstream = inputs(dtype)
    exact = with_gradients(by_hand, *(tf.cast(x, tf.float64) for x in (scores, value, upstream)))
    compute = functools.partial(with_gradients, average)
    if in_graph:  # of unknown sizes
        specs = [tf.TensorSpec([None] * 4, x.dtype) for x in (scores, value, upstream)]
        compute = tf.function(lambda *tensors: with_gradients(average, *tensors), specs, autograph=False)
    found = compute(scores, value, upstream)
    tolerance = {tf.float32: 2e-6, tf.bfloat16: 0.02, tf.float16: 0.003}[dtype]
    for one, other, kind in zip(found, exact, (dtype, tf.float32, dtype), strict=True):
        assert one.dtype == kind
        np.testing.assert_allclose(tf.cast(one, tf.float64), other, atol=tolerance * np.abs(other).max())


def test_five_bytes_of_each_score_are_kept():
    """Where forward and backward pass are separate functions, as in trainings on CPUs."""
    scores, value, _ = inputs(tf.bfloat16)

    @tf.function(autograph=False)
    def sizes_of_kept(value, scores):
        def function(value, scores, seed):  # the values first: the function takes the result to be of their size
            return average(scores, value, seed)

        tensors = [value, scores, tf.identity(SEED)]
        kept = shared_graph._forward_and_backward(function, tensors, 2)[0](tensors)[1]
        return [tf.constant(f"{x.dtype.name} {x.shape.num_elements()}") for x in kept if x.shape.rank == 4]

    of_scores, of_values = scores.shape.num_elements(), value.shape.num_elements()
    expected = [f"bfloat16 {of_values}"] * 2 + [f"bool {of_scores}", f"float32 {of_scores}"]
    assert sorted(size.numpy().decode() for size in sizes_of_kept(value, scores)) == expected


def test_tensorflow_does_not_merge_the_weights_of_both_passes():
    """Within one graph, it would compute them once, and keep them: what is executed has both."""
    step = tf.function(lambda *tensors: with_gradients(average, *tensors), autograph=False)
    nodes = executed(lambda: step(*inputs(tf.float32)))
    of_masks = [node for node in nodes if node.op == "Cast" and node.attr["SrcT"].type == tf.bool.as_datatype_enum]
    assert len(of_masks) == 2

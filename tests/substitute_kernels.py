"""A substitute for the kernels of cuDNN, for machines without a GPU."""

import functools

import tensorflow as tf

from bert_tf2.fast import fused_attention


def reference(name, operands, configuration, results):
    """The two operations of cuDNN as its documentation defines them, in float32."""
    query, key, value, *others = (tf.cast(operand, tf.float32) for operand in operands)
    scores = tf.matmul(query, key, transpose_b=True) + others[0 if name == fused_attention.FORWARD else 2]
    if name == fused_attention.FORWARD:
        sums = tf.reduce_logsumexp(scores, axis=-1)
        found = [tf.matmul(tf.exp(scores - sums[..., tf.newaxis]), value), sums]
    else:
        sums, upstream, _, context = others
        weights = tf.exp(scores - sums[..., tf.newaxis])
        of_weights = tf.matmul(upstream, value, transpose_b=True)
        of_scores = weights * (of_weights - tf.reduce_sum(upstream * context, -1, keepdims=True))
        found = [tf.matmul(of_scores, key), tf.matmul(of_scores, query, transpose_a=True)]
        found.append(tf.matmul(weights, upstream, transpose_a=True))
    found.append(tf.zeros([0], tf.uint8))
    assert [tuple(one.shape) for one in found] == [tuple(one.shape) for one in results]
    return [tf.cast(one, result.dtype) for one, result in zip(found, results, strict=True)]


attend_on_cpu = functools.partial(fused_attention.attend, call=reference)

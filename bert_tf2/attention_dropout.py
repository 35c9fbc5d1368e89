"""The last step of attention in a training: softmax, dropout, and the average of the values, with an explicit gradient.

The scores are the largest tensors of a block for long texts: F numbers for each token and head. Automatic
differentiation would keep three tensors of this size for the backward pass.
"""

from __future__ import annotations

import tensorflow as tf

from bert_tf2.layers import DropoutSeeds, dropout_mask


def average_with_dropout(scores: tf.Tensor, value: tf.Tensor, rate: float, seeds: DropoutSeeds) -> tf.Tensor:
    """dropout(softmax(scores)) @ value.

    The gradient keeps 5 bytes of each score, the probability and whether it is dropped, instead of 12 (10 in bfloat16
    and float16). What the gradient of softmax sums over each row of scores is summed over the H numbers of the result,
    as in Dao et al., "FlashAttention" (2022), appendix B.2.

    Args:
      scores: float32 [B, N, F, T], with those of the mask.
      value: [B, N, T, H].
      rate: of the dropout, more than 0.
      seeds: for the dropout.

    Returns:
      [B, N, F, H] of the dtype of `value`.
    """
    mask, scale = dropout_mask(tf.shape(scores), rate, seeds)

    @tf.custom_gradient
    def compute(scores, value):
        # One scaled tensor serves both passes.
        scaled = tf.nn.softmax(scores) * scale
        weights = tf.cast(scaled * tf.cast(mask, tf.float32), value.dtype)
        context = tf.matmul(weights, value)

        def gradient(upstream):
            # The sum over T of (what comes from above for a weight) * (the weight), for each position and head.
            products = tf.cast(upstream, tf.float32) * tf.cast(context, tf.float32)
            along = tf.reduce_sum(products, axis=-1, keepdims=True)  # [B, N, F, 1]
            with tf.control_dependencies([upstream]):
                # Not before: TensorFlow would see that the forward pass computes the same, and keep its results. (XLA
                # ignores this, and decides by itself.)
                kept = tf.cast(mask, tf.float32)
            of_weights = tf.matmul(upstream, value, transpose_b=True)  # [B, N, F, T]
            of_scores = scaled * (tf.cast(of_weights, tf.float32) * kept - along / scale)
            again = tf.cast(scaled * kept, value.dtype)
            return of_scores, tf.matmul(again, upstream, transpose_a=True)

        return context, gradient

    return compute(scores, value)

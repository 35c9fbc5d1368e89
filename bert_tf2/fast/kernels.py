"""The operations of a block with explicit gradients, which keep less for the backward pass and move less memory.

Each is the function of the same meaning in `layers` or `modeling`, which `tests/fast` compares. Automatic
differentiation would keep five more tensors of the widest shape [B, F, I] for gelu, six more of the states' size for
each normalization, and three of the attention scores' size, which for long texts are the largest tensors of a block.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from bert_tf2 import layers, modeling
from bert_tf2.fast.compiled import compiled_with_xla
from bert_tf2.layers import GELU_CUBIC, GELU_SCALE, at_least_float32, dropout_bits, dropout_mask


def dense(layer: layers.Dense) -> Callable[[tf.Tensor], tf.Tensor]:
    """The layer, with `gelu` of this module if that is its activation."""
    if type(layer) is not layers.Dense or layer.activation is not layers.gelu:
        return layer
    return lambda x: gelu(layer.linear(x))


@tf.custom_gradient
def gelu(x: tf.Tensor) -> tf.Tensor:
    """layers.gelu."""
    return _gelu(x), lambda upstream: _gelu_gradient(x, upstream)


_gelu = compiled_with_xla(layers.gelu)


@compiled_with_xla
def _gelu_gradient(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    wide = at_least_float32(x)
    square = wide * wide
    tanh = tf.tanh(GELU_SCALE * wide * (1.0 + GELU_CUBIC * square))
    slope = GELU_SCALE * (1.0 + 3.0 * GELU_CUBIC * square)
    slope = 0.5 * (1.0 + tanh + wide * (1.0 - tanh * tanh) * slope)
    return tf.cast(at_least_float32(upstream) * slope, x.dtype)


def norm(layer: layers.LayerNorm) -> Callable[[tf.Tensor], tf.Tensor]:
    """layers.LayerNorm.call: [..., D] -> [..., D]."""
    if type(layer) is not layers.LayerNorm:
        return layer

    def call(x: tf.Tensor) -> tf.Tensor:
        return _normalized(layer, x, None, None, None)

    return call


def add_and_norm(layer: layers.AddAndNorm) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """layers.AddAndNorm.call: [..., D], [..., D] -> [..., D]."""
    if type(layer) is not layers.AddAndNorm:
        return layer

    def call(states: tf.Tensor, branch: tf.Tensor) -> tf.Tensor:
        return _normalized(layer, states, branch, dropout_bits(branch, layer.rate), layer.rate)

    return call


def _normalized(
    layer: layers.LayerNorm, x: tf.Tensor, branch: tf.Tensor | None, bits: tf.Tensor | None, rate: float | None
) -> tf.Tensor:
    """LayerNorm of x + dropout(branch); see `_forward`.

    The gradient keeps the inputs, the random bits and two numbers for each state, and computes the rest again.
    """
    inputs = [x, *([] if branch is None else [branch])]

    @tf.custom_gradient
    def compute(gamma, beta, *inputs):
        x, branch = (*inputs, None)[:2]
        y, mean, inverse = _forward(x, branch, bits, gamma, beta, rate, layer.epsilon)

        def gradient(upstream):
            of_sum, of_branch, of_gamma, of_beta = _backward(upstream, x, branch, bits, gamma, mean, inverse, rate)
            return of_gamma, of_beta, *(of_sum, of_branch)[: len(inputs)]

        return y, gradient

    # As tensors: tf.custom_gradient refuses variables that several replicas have.
    return compute(tf.convert_to_tensor(layer.gamma.value), tf.convert_to_tensor(layer.beta.value), *inputs)


def _sum_of(x: tf.Tensor, branch: tf.Tensor | None, bits: tf.Tensor | None, rate: float | None) -> tf.Tensor:
    """x + dropout(branch), float32."""
    wide = tf.cast(x, tf.float32)
    if branch is None:
        return wide
    added = tf.cast(branch, tf.float32)
    return wide + (added if bits is None else added * _factor(bits, rate))


def _factor(bits: tf.Tensor, rate: float) -> tf.Tensor:
    """What dropout multiplies each value by, float32: 0, or the inverse of the share that is kept."""
    mask, scale = dropout_mask(bits, rate)
    return tf.cast(mask, tf.float32) * scale


@compiled_with_xla
def _forward(
    x: tf.Tensor,
    branch: tf.Tensor | None,
    bits: tf.Tensor | None,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    rate: float | None,
    epsilon: float,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """LayerNorm of x + dropout(branch).

    Args:
      x, branch: [..., D]; the branch may be None.
      bits: uint16 [..., D], the random numbers of the dropout; None for no dropout.
      gamma, beta: float32 [D].
      rate: of the dropout.
      epsilon: added to the variance.

    Returns:
      The normalized states [..., D], their means and the inverses of their deviations, float32 [..., 1].
    """
    wide = _sum_of(x, branch, bits, rate)
    mean = tf.reduce_mean(wide, axis=-1, keepdims=True)
    centered = wide - mean
    inverse = tf.math.rsqrt(tf.reduce_mean(centered * centered, axis=-1, keepdims=True) + epsilon)
    return tf.cast(centered * inverse * gamma + beta, x.dtype), mean, inverse


@compiled_with_xla
def _backward(
    upstream: tf.Tensor,
    x: tf.Tensor,
    branch: tf.Tensor | None,
    bits: tf.Tensor | None,
    gamma: tf.Tensor,
    mean: tf.Tensor,
    inverse: tf.Tensor,
    rate: float | None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """The gradients of `_forward` with respect to x, branch, gamma and beta.

    With n the normalized states before gamma and beta, and g = upstream * gamma, that of the sum is
    (g - mean(g) - n * mean(g * n)) / deviation: what would shift or stretch the states is removed by the norm.
    """
    normal = (_sum_of(x, branch, bits, rate) - mean) * inverse
    upstream = tf.cast(upstream, tf.float32)
    g = upstream * gamma
    along = tf.reduce_mean(g * normal, axis=-1, keepdims=True)
    of_sum = (g - tf.reduce_mean(g, axis=-1, keepdims=True) - normal * along) * inverse
    of_branch = of_sum if bits is None else of_sum * _factor(bits, rate)
    axes = list(range(len(x.shape) - 1))
    of_gamma, of_beta = tf.reduce_sum(upstream * normal, axes), tf.reduce_sum(upstream, axes)
    return tf.cast(of_sum, x.dtype), tf.cast(of_branch, x.dtype), of_gamma, of_beta


def average_values(scores: tf.Tensor, value: tf.Tensor, rate: float) -> tf.Tensor:
    """modeling.average_values: float32 [B, N, F, T], [B, N, T, H] -> [B, N, F, H].

    With dropout, the gradient keeps 5 bytes of each score, the probability and whether it is dropped, instead of 12 (10
    in bfloat16 and float16). What the gradient of softmax sums over each row of scores is summed over the H numbers of
    the result, as in Dao et al., "FlashAttention" (2022), appendix B.2.
    """
    bits = dropout_bits(scores, rate)
    if bits is None:
        return modeling.average_values(scores, value, rate)
    mask, scale = dropout_mask(bits, rate)

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

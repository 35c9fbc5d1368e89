"""The operations of a block with explicit gradients, which keep less for the backward pass and move less memory.

Each computes the same as a function in `layers` or `modeling`; `tests/fast` compares the two. Automatic
differentiation would keep five more tensors of the widest shape [B, F, I] for gelu, six more of the states' size for
each normalization, and three of the attention scores' size, which for long texts are the largest tensors of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_optimization_barrier

from bert_tf2 import dropout, layers, modeling, placement
from bert_tf2.dropout import current_streams, dropout_numbers
from bert_tf2.fast import fused_attention
from bert_tf2.fast.compiled import compiled_with_xla
from bert_tf2.layers import GELU_CUBIC, GELU_SCALE, at_least_float32

_kept = compiled_with_xla(dropout.dropout_mask)
# The loop that reads a product next adds the bias, and XLA sums the gradient of the bias. As a part of a bfloat16
# product, the bias takes half as long as the product itself (TensorFlow 2.21 on a CPU with AMX).
_sum_of_rows = compiled_with_xla(layers.sum_of_rows)


def _is_plain(layer: keras.layers.Layer, activation: Callable) -> bool:
    return type(layer) is layers.Dense and layer.activation is activation


def query_key_value(attention: modeling.SelfAttention, states: tf.Tensor) -> Sequence[tf.Tensor]:
    """SelfAttention.query_key_value: [..., D] -> three of [..., D]; or, in narrow types, all side by side: [..., 3 D].

    A wide product comes nearer to the rate of the machine. In float32, the time to put the kernels side by side is
    longer than the time gained; on a TPU, the parts of the wide result have to be moved once more.
    """
    parts, scales = (attention.query, attention.key, attention.value), (attention.query_scale, 1.0, 1.0)
    if not _pays_side_by_side(attention, states):
        return attention.query_key_value(states)
    return [_side_by_side(parts, scales, states)]


def key_value(attention: modeling.SelfAttention, states: tf.Tensor) -> Sequence[tf.Tensor]:
    """The last two results of `query_key_value`: [..., D] -> two of [..., D]."""
    if not _pays_side_by_side(attention, states):
        return attention.key(states), attention.value(states)
    return tf.split(_side_by_side((attention.key, attention.value), (1.0, 1.0), states), 2, axis=-1)


def _pays_side_by_side(attention: modeling.SelfAttention, states: tf.Tensor) -> bool:
    parts = (attention.query, attention.key, attention.value)
    is_plain = type(attention) is modeling.SelfAttention and all(_is_plain(part, tf.identity) for part in parts)
    return is_plain and states.dtype.size <= 2 and placement.built_for() != "TPU"


def _side_by_side(parts: Sequence[layers.Dense], scales: Sequence[float], states: tf.Tensor) -> tf.Tensor:
    """The outputs of several layers, each with a factor, for the same states: [..., D] -> [..., len(parts) D]."""
    kernel = tf.concat([tf.cast(x.kernel.value * by, states.dtype) for x, by in zip(parts, scales, strict=True)], 1)
    bias = tf.concat([x.bias.value * by for x, by in zip(parts, scales, strict=True)], 0)
    return _add_bias(layers.product(states, kernel), bias)


@tf.custom_gradient
def _add_bias(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """[..., D], [D] -> [..., D]."""
    return _biased(x, bias), lambda upstream: (upstream, _sum_of_rows(upstream))


@compiled_with_xla
def _biased(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.cast(at_least_float32(x) + bias, x.dtype)


def dense(layer: layers.Dense) -> Callable[[tf.Tensor], tf.Tensor]:
    """The layer as a function; a plain layer with gelu is computed by this module's `biased_gelu`."""
    if not _is_plain(layer, layers.gelu):
        return layer
    return lambda x: biased_gelu(layer.product(x), tf.convert_to_tensor(layer.bias.value))


@tf.custom_gradient
def biased_gelu(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """layers.gelu of x + bias: [..., I], float32 [I] -> [..., I]."""

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        of_x = _gelu_gradient(x, bias, upstream)
        return of_x, _sum_of_rows(of_x)

    return _biased_gelu(x, bias), gradient


@compiled_with_xla
def _biased_gelu(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.cast(layers.gelu(at_least_float32(x) + bias), x.dtype)


@compiled_with_xla
def _gelu_gradient(x: tf.Tensor, bias: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    wide = at_least_float32(x) + bias
    square = wide * wide
    tanh = tf.tanh(GELU_SCALE * wide * (1.0 + GELU_CUBIC * square))
    slope = GELU_SCALE * (1.0 + 3.0 * GELU_CUBIC * square)
    slope = 0.5 * (1.0 + tanh + wide * (1.0 - tanh * tanh) * slope)
    return tf.cast(at_least_float32(upstream) * slope, x.dtype)


def norm(layer: layers.LayerNorm) -> Callable[[tf.Tensor], tf.Tensor]:
    """layers.LayerNorm.call: [..., D] -> [..., D]."""
    if type(layer) is not layers.LayerNorm:
        return layer
    return lambda x: _normalized(layer, [x])


def add_and_norm(
    dense: layers.Dense, norm: layers.AddAndNorm
) -> tuple[Callable[[tf.Tensor], tf.Tensor], Callable[[tf.Tensor, tf.Tensor], tf.Tensor]]:
    """A layer and the AddAndNorm behind it as functions: the first leaves out its bias, which the second adds."""
    if not _is_plain(dense, tf.identity) or type(norm) is not layers.AddAndNorm:
        return dense, norm

    def call(states: tf.Tensor, branch: tf.Tensor) -> tf.Tensor:
        inputs = [states, branch, tf.convert_to_tensor(dense.bias.value)]
        numbers = dropout_numbers(branch, norm.rate)
        if numbers is not None and _saves_bytes(states):
            return _normalized(norm, [_added(inputs, numbers, norm.rate)])
        return _normalized(norm, inputs, numbers, norm.rate)

    return dense.product, call


def _saves_bytes(x: tf.Tensor) -> bool:
    """Whether XLA compiles a training step in 16 bits for a GPU now. Such a step is as fast as the GPU's memory."""
    return x.dtype.size == 2 and current_streams() is not None and placement.in_program_for_gpu()


def _normalized(
    layer: layers.LayerNorm, inputs: Sequence[tf.Tensor], numbers: tf.Tensor | None = None, rate: float | None = None
) -> tf.Tensor:
    """LayerNorm of the sum of `inputs`; see `_forward`.

    The gradient keeps the inputs, the random numbers and two numbers for each state, and computes the rest again.
    """

    @tf.custom_gradient
    def compute(gamma, beta, *inputs):
        y, mean, inverse = _forward(inputs, numbers, gamma, beta, rate, layer.epsilon, _saves_bytes(inputs[0]))

        def gradient(upstream):
            of_norm, of_inputs = _backward(upstream, inputs, numbers, gamma, mean, inverse, rate)
            return *of_norm, *of_inputs

        return y, gradient

    # The variables are passed as tensors, because tf.custom_gradient refuses variables that several replicas have.
    return compute(tf.convert_to_tensor(layer.gamma.value), tf.convert_to_tensor(layer.beta.value), *inputs)


def _sum_of(inputs: Sequence[tf.Tensor], numbers: tf.Tensor | None, rate: float | None) -> tf.Tensor:
    """x, or x + dropout(branch + bias), float32."""
    x, *added = inputs
    wide = tf.cast(x, tf.float32)
    if not added:
        return wide
    branch, bias = added
    summed = tf.cast(branch, tf.float32) + bias
    return wide + (summed if numbers is None else summed * dropout.dropout_factor(numbers, rate, branch))


def _added(inputs: Sequence[tf.Tensor], numbers: tf.Tensor | None, rate: float | None) -> tf.Tensor:
    """x + dropout(branch + bias), rounded to the dtype of x: [..., D].

    If the sum was not kept, three kernels of a GPU's program would compute it again, from x, the branch and the mask.
    """

    @tf.custom_gradient
    def compute(*inputs):
        summed = tf.cast(_sum_of(inputs, numbers, rate), inputs[0].dtype)
        return summed, lambda of_sum: _gradients_of_added(of_sum, numbers, rate)

    return compute(*inputs)


def _gradients_of_added(of_sum: tf.Tensor, numbers: tf.Tensor | None, rate: float | None) -> list[tf.Tensor]:
    """The gradients of x + dropout(branch + bias) with respect to x, branch and bias, in the dtype of x."""
    of_branch = of_sum
    if numbers is not None:  # rounded as in layers.AddAndNorm
        factor = dropout.dropout_factor(numbers, rate, of_sum)
        of_branch = tf.cast(tf.cast(of_sum, tf.float32) * factor, of_sum.dtype)
    return [of_sum, of_branch, layers.sum_of_rows(of_branch)]


@compiled_with_xla
def _forward(
    inputs: Sequence[tf.Tensor],
    numbers: tf.Tensor | None,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    rate: float | None,
    epsilon: float,
    saves_bytes: bool,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """LayerNorm of x, or of x + dropout(branch + bias): [..., D], and means and inverse deviations, float32 [..., 1].

    `inputs` are x [..., D], or x, branch [..., D] and bias [D]. `numbers` are from dropout.dropout_numbers, None if
    there is no dropout.
    """
    wide = _sum_of(inputs, numbers, rate)
    mean, inverse = (_statistics_in_one_pass if saves_bytes else _statistics)(wide, epsilon)
    return tf.cast((wide - mean) * inverse * gamma + beta, inputs[0].dtype), mean, inverse


def _statistics(wide: tf.Tensor, epsilon: float) -> tuple[tf.Tensor, tf.Tensor]:
    """The means and inverse deviations over D: float32 [..., D] -> two of float32 [..., 1]."""
    mean = tf.reduce_mean(wide, axis=-1, keepdims=True)
    return mean, tf.math.rsqrt(tf.reduce_mean(tf.square(wide - mean), axis=-1, keepdims=True) + epsilon)


def _statistics_in_one_pass(wide: tf.Tensor, epsilon: float) -> tuple[tf.Tensor, tf.Tensor]:
    """The same, computed once: XLA would compute them in each kernel that reads them, and in two passes.

    The kernels of the gradients of gamma and beta cannot do so without writing their summands to memory. The
    difference of float32 squares loses fewer bits than the inputs lost when they were rounded to 16.
    """
    mean = tf.reduce_mean(wide, axis=-1, keepdims=True)
    variance = tf.maximum(tf.reduce_mean(tf.square(wide), axis=-1, keepdims=True) - tf.square(mean), 0.0)
    return xla_optimization_barrier([mean, tf.math.rsqrt(variance + epsilon)])


@compiled_with_xla
def _backward(
    upstream: tf.Tensor,
    inputs: Sequence[tf.Tensor],
    numbers: tf.Tensor | None,
    gamma: tf.Tensor,
    mean: tf.Tensor,
    inverse: tf.Tensor,
    rate: float | None,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """The gradients of `_forward` with respect to gamma and beta, and to the inputs.

    With n the normalized states before gamma and beta, and g = upstream * gamma, the gradient with respect to the sum
    is (g - mean(g) - n * mean(g * n)) / deviation, because the norm removes each shift and stretch of the states.
    """
    normal = (_sum_of(inputs, numbers, rate) - mean) * inverse
    upstream = tf.cast(upstream, tf.float32)
    g = upstream * gamma
    along = tf.reduce_mean(g * normal, axis=-1, keepdims=True)
    of_sum = (g - tf.reduce_mean(g, axis=-1, keepdims=True) - normal * along) * inverse
    of_gamma = upstream * normal
    if inputs[0].dtype == tf.bfloat16 and placement.in_program_for_gpu():
        # XLA may write these summands to memory before it adds them up. float16 would be too narrow for them.
        of_gamma = tf.cast(of_gamma, tf.bfloat16)
    of_norm = [layers.sum_of_rows(of_gamma), layers.sum_of_rows(upstream)]
    of_x = tf.cast(of_sum, inputs[0].dtype)
    return of_norm, [of_x] if len(inputs) == 1 else _gradients_of_added(of_x, numbers, rate)


def attend(
    query: tf.Tensor,
    key: tf.Tensor,
    mask_scores: tf.Tensor,
    value: tf.Tensor,
    rate: float | None,
    fused: Callable[..., tf.Tensor] | None = None,
) -> tf.Tensor:
    """modeling.average_values of modeling.attention_scores.

    With dropout, the gradient keeps 5 bytes of each score, the probability and whether it is dropped, instead of 12 (10
    in bfloat16 and float16). The gradient of softmax needs a sum over each row of scores; it is computed as a sum over
    the H numbers of the result, as in Dao et al., "FlashAttention" (2022), appendix B.2.

    `fused`: fused_attention.attend, or a function like it, which is used where it is possible.

    [B, N, F, H], [B, N, T, H], [B, 1, 1, T] or [B, 1, F, T], [B, N, T, H] -> [B, N, F, H].
    """
    if current_streams() is None or not rate:
        if fused and fused_attention.takes(query, key):
            return fused(query, key, mask_scores, value)
        return modeling.average_values(modeling.attention_scores(query, key, mask_scores), value, rate)

    @tf.custom_gradient
    def compute(query, key, value):
        products = tf.matmul(query, key, transpose_b=True)  # [B, N, F, T]
        mask, scale = _kept(dropout_numbers(products, rate), rate, products), dropout.dropout_scale(rate)
        probabilities = tf.nn.softmax(_masked(products, mask_scores))
        context = tf.matmul(_dropped(probabilities, mask, scale, value), value)

        def gradient(upstream):
            # The sum over T of (the gradient of a weight) * (the weight), for each position and head.
            pairs = tf.cast(upstream, tf.float32) * tf.cast(context, tf.float32)
            along = tf.reduce_sum(pairs, axis=-1, keepdims=True)  # [B, N, F, 1]
            of_weights = tf.matmul(upstream, value, transpose_b=True)  # [B, N, F, T]
            of_products = _gradient_of_products(probabilities, mask, scale, of_weights, along)
            with tf.control_dependencies([upstream]):
                # Not before `upstream`: TensorFlow would see that the forward pass computes the same, and keep that.
                weights = _dropped(probabilities, mask, scale, value)
            return (
                tf.matmul(of_products, key),
                tf.matmul(of_products, query, transpose_a=True),
                tf.matmul(weights, upstream, transpose_a=True),
            )

        return context, gradient

    return compute(query, key, value)


# TensorFlow computes softmax itself, because its oneDNN is faster.
@compiled_with_xla
def _masked(products: tf.Tensor, mask_scores: tf.Tensor) -> tf.Tensor:
    """[B, N, F, T], [B, 1, 1, T] or [B, 1, F, T] -> float32 [B, N, F, T]."""
    return tf.cast(products, tf.float32) + tf.cast(mask_scores, tf.float32)


@compiled_with_xla
def _dropped(probabilities: tf.Tensor, mask: tf.Tensor, scale: float, like: tf.Tensor) -> tf.Tensor:
    """The weights of the values: [B, N, F, T], in the dtype of `like`."""
    return tf.cast(tf.where(mask, probabilities * scale, 0.0), like.dtype)


@compiled_with_xla
def _gradient_of_products(
    probabilities: tf.Tensor, mask: tf.Tensor, scale: float, of_weights: tf.Tensor, along: tf.Tensor
) -> tf.Tensor:
    """The gradient through dropout and softmax: [B, N, F, T], in the dtype of `of_weights`."""
    kept = tf.where(mask, tf.cast(of_weights, tf.float32), 0.0)
    return tf.cast(probabilities * scale * (kept - along / scale), of_weights.dtype)

"""The building blocks of `modeling` and `heads`: activation functions, dropout, Dense, LayerNorm, OutputLayer.

The constructors create the variables, so that a checkpoint can be loaded before the first call. Shapes are those of the
reference: kernels are 2-D, [inputs, outputs]. D is hidden_size, L the number of labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from bert_tf2 import fusion, shapes
from bert_tf2.config import LAYER_NORM_EPSILON
from bert_tf2.support.quiet import check_backend

check_backend()

# Added to the attention scores of padding positions: e^-10000 is 0 in float32. It is finite, so that a row of padding
# only gives finite values instead of NaN.
MASKED_SCORE = -10000.0

_GELU_SCALE = math.sqrt(2.0 / math.pi)
_GELU_CUBIC = 0.044715


@tf.custom_gradient
def gelu(x: tf.Tensor) -> tf.Tensor:
    """Gaussian Error Linear Unit (Hendrycks & Gimpel, 2016), tanh approximation, any shape.

    x * P(Z <= x) for a standard normal Z. The released models were trained with this approximation, not with the exact
    form that uses erf; the two differ by up to 5e-4. The gradient is explicit, because automatic differentiation would
    keep five more tensors of the widest shape in the model for the backward pass. Narrower dtypes are computed in
    float32.
    """
    return _gelu(x), lambda upstream: _gelu_gradient(x, upstream)


def _wide(x: tf.Tensor) -> tf.Tensor:
    """At least float32."""
    return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)


@fusion.chain
def _gelu(x: tf.Tensor) -> tf.Tensor:
    wide = _wide(x)
    half = 0.5 * (1.0 + tf.tanh(_GELU_SCALE * wide * (1.0 + _GELU_CUBIC * wide * wide)))
    return tf.cast(wide * half, x.dtype)


@fusion.chain
def _gelu_gradient(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    wide = _wide(x)
    square = wide * wide
    tanh = tf.tanh(_GELU_SCALE * wide * (1.0 + _GELU_CUBIC * square))
    slope = _GELU_SCALE * (1.0 + 3.0 * _GELU_CUBIC * square)
    slope = 0.5 * (1.0 + tanh + wide * (1.0 - tanh * tanh) * slope)
    return tf.cast(_wide(upstream) * slope, x.dtype)


def gelu_erf(x: tf.Tensor) -> tf.Tensor:
    """The same function without the approximation, as used by models that were trained in PyTorch."""
    return tf.nn.gelu(x, approximate=False)


def get_activation(activation_string: str | Any) -> Callable[[tf.Tensor], tf.Tensor] | Any:
    """Returns the function of a config's `hidden_act`, one of config.ACTIVATIONS; case-insensitive.

    An argument that is not a string, for example a function, is returned unchanged.

    Raises:
      ValueError: there is no function of this name.
    """
    if not isinstance(activation_string, str):
        return activation_string
    functions = {"gelu": gelu, "gelu_erf": gelu_erf, "relu": tf.nn.relu, "tanh": tf.tanh, "linear": tf.identity}
    if activation_string.lower() not in functions:
        raise ValueError(f"no activation function {activation_string!r}; there are {', '.join(functions)}")
    return functions[activation_string.lower()]


def create_initializer(initializer_range: float = 0.02) -> keras.initializers.Initializer:
    """A truncated normal distribution with this deviation: values beyond two deviations are drawn again."""
    return keras.initializers.TruncatedNormal(stddev=initializer_range)


# One algorithm for all devices and for XLA, so that a step draws the same numbers wherever it runs.
_ALGORITHM = "philox"


def fold_in(seed: tf.Tensor, number: tf.Tensor | int) -> tf.Tensor:
    """A new seed, int32 [2], for each number: independent random numbers for each step, replica and dropout."""
    return tf.random.experimental.stateless_fold_in(seed, number, alg=_ALGORITHM)


class DropoutSeeds:
    """Makes one random seed for each dropout of a model, derived from the seed of the step.

    The masks of a step depend only on the seed of that step and are the same in every run, so an interrupted training
    resumes exactly.

    Attributes:
      seed: int32 [2].
      number: of the last seed.
      made: how many this object has made.
    """

    def __init__(self, seed: tf.Tensor | None = None, number: tf.Tensor | int = 0):
        """Continues behind the seed of this number, int32 [] as a tensor. Without `seed`, TensorFlow draws one."""
        self.seed = tf.random.uniform([2], maxval=tf.int32.max, dtype=tf.int32) if seed is None else seed
        self.number = number
        self.made = 0

    def __call__(self) -> tf.Tensor:
        self.skip(1)
        return fold_in(self.seed, self.number)

    def skip(self, count: int) -> None:
        """Makes that many seeds without returning them."""
        self.number = self.number + count
        self.made += count


_LEVELS = 1 << 16


def dropout(x: tf.Tensor, rate: float | None, seeds: DropoutSeeds | None) -> tf.Tensor:
    """Sets a share `rate` of the values to 0 and scales the others by 1 / (1 - rate); any shape.

    Returns `x` if `seeds` is None (no training), or if the rate is 0 or None.

    Each value has 16 random bits for every dtype, so the rate is a multiple of 1 / 65536, and the scale is that of the
    rounded rate. TensorFlow draws bfloat16 numbers of 7 bits instead: for a rate of 0.1 it drops 10.15 % and scales
    by 1.109, which makes the mean 0.3 % too small at each of 25 places.
    """
    if seeds is None or not rate:
        return x
    # In float32: rounded to bfloat16, the scale itself would be 0.15 % too small.
    return tf.cast(tf.cast(x, tf.float32) * _kept(_random_bits(tf.shape(x), seeds()), rate), x.dtype)


def _random_bits(shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """uint16 numbers of this shape."""
    size = tf.reduce_prod(shape)
    words = tf.random.stateless_uniform([(size + 1) // 2], seed, None, None, tf.uint32, alg=_ALGORITHM)
    return tf.reshape(tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:size], shape)


def _kept(bits: tf.Tensor, rate: float) -> tf.Tensor:
    """The factor of each value, float32: 0, or the inverse of the share that is kept."""
    mask, scale = _mask(bits, rate)
    return tf.cast(mask, tf.float32) * scale


def _mask(bits: tf.Tensor, rate: float) -> tuple[tf.Tensor, float]:
    """Which values are kept, bool, and what they are multiplied by."""
    dropped = min(round(rate * _LEVELS), _LEVELS - 1)
    return bits >= tf.constant(dropped, tf.uint16), _LEVELS / (_LEVELS - dropped)


def dropout_mask(shape: tf.Tensor, rate: float, seeds: DropoutSeeds) -> tuple[tf.Tensor, float]:
    """The parts of `dropout`: which values are kept, bool of this shape, and what they are multiplied by."""
    return _mask(_random_bits(shape, seeds()), rate)


def class_scores(states: tf.Tensor, weights: tf.Tensor | tf.Variable) -> tf.Tensor:
    """The product of the output layers, in float32 for every dtype of the states.

    Near 8, bfloat16 numbers are 0.06 apart: rounded logits would tie answers and blur losses. The gradients have the
    precision of the states, because they are sums over many words or examples.

    Args:
      states: [M, D].
      weights: float32 [L, D].

    Returns:
      float32 [M, L], states @ weights^T.
    """
    # As a tensor: tf.custom_gradient refuses variables that several replicas have.
    return _class_scores(states, tf.convert_to_tensor(weights))


@tf.custom_gradient
def _class_scores(states: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        upstream = tf.cast(upstream, states.dtype)
        of_states = tf.matmul(upstream, tf.cast(weights, states.dtype))
        return of_states, tf.cast(tf.matmul(upstream, states, transpose_a=True), weights.dtype)

    return tf.matmul(tf.cast(states, tf.float32), tf.cast(weights, tf.float32), transpose_b=True), gradient


class Dense(keras.layers.Layer):
    """y = activation(x @ kernel + bias), over the last axis, like keras.layers.Dense."""

    def __init__(self, inputs: int, outputs: int, initializer_range: float, activation: str = "linear", **kwargs):
        super().__init__(**kwargs)
        self.kernel = self.add_weight(
            shape=[inputs, outputs], initializer=create_initializer(initializer_range), name="kernel"
        )
        self.bias = self.add_weight(shape=[outputs], initializer="zeros", name="bias")
        self.activation = get_activation(activation)
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(x, [-1, self.kernel.shape[0]])  # one large 2-D product is faster than a batch of small ones
        y = self.activation(tf.nn.bias_add(tf.matmul(rows, self.kernel), self.bias))
        return tf.reshape(y, [*shapes.get_shape_list(x)[:-1], self.kernel.shape[1]])


class LayerNorm(keras.layers.Layer):
    """Normalises every hidden state to mean 0 and variance 1, then applies gamma and beta (Ba et al., 2016).

    [..., D] -> [..., D]. The statistics are computed in float32 for every dtype.
    """

    def __init__(self, width: int, epsilon: float = LAYER_NORM_EPSILON, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon
        self.gamma = self.add_weight(shape=[width], initializer="ones", autocast=False, name="gamma")
        self.beta = self.add_weight(shape=[width], initializer="zeros", autocast=False, name="beta")
        self.built = True

    def call(
        self,
        x: tf.Tensor,
        branch: tf.Tensor | None = None,
        rate: float | None = None,
        seeds: DropoutSeeds | None = None,
    ) -> tf.Tensor:
        """Normalises `x`, or `x + dropout(branch, rate, seeds)` if there is a `branch` of the same shape."""
        bits = None
        if branch is not None and seeds is not None and rate:
            bits = _random_bits(tf.shape(branch), seeds())
        gamma, beta = tf.convert_to_tensor(self.gamma.value), tf.convert_to_tensor(self.beta.value)
        if branch is None:
            return _normalize(x, gamma, beta, self.epsilon)
        return _add_and_normalize(x, branch, gamma, beta, bits, rate, self.epsilon)


def _normalize(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """LayerNorm of the last axis; see `_forward` for the arguments."""

    @tf.custom_gradient
    def compute(x, gamma, beta):
        y, mean, inverse = _forward(x, None, None, gamma, beta, None, epsilon)

        def gradient(upstream):
            of_x, _, of_gamma, of_beta = _backward(upstream, x, None, None, gamma, mean, inverse, None)
            return of_x, of_gamma, of_beta

        return y, gradient

    return compute(x, gamma, beta)


def _add_and_normalize(
    x: tf.Tensor,
    branch: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    bits: tf.Tensor | None,
    rate: float | None,
    epsilon: float,
) -> tf.Tensor:
    """LayerNorm of x + dropout(branch); see `_forward` for the arguments.

    The gradient is explicit: it keeps the inputs, the random bits and two numbers for each state, and computes the rest
    again. Automatic differentiation would keep six more tensors of the size of the states.
    """

    @tf.custom_gradient
    def compute(x, branch, gamma, beta):
        y, mean, inverse = _forward(x, branch, bits, gamma, beta, rate, epsilon)
        return y, lambda upstream: _backward(upstream, x, branch, bits, gamma, mean, inverse, rate)

    return compute(x, branch, gamma, beta)


def _sum_of(x: tf.Tensor, branch: tf.Tensor | None, bits: tf.Tensor | None, rate: float | None) -> tf.Tensor:
    """x + dropout(branch), float32."""
    wide = tf.cast(x, tf.float32)
    if branch is None:
        return wide
    added = tf.cast(branch, tf.float32)
    return wide + (added if bits is None else added * _kept(bits, rate))


@fusion.chain
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
      bits: uint16 [..., D], what dropout drops; None for no dropout.
      gamma, beta: float32 [D].
      rate: of the dropout.
      epsilon: added to the variance.

    Returns:
      The normalised states [..., D], their means and the inverses of their deviations, float32 [..., 1].
    """
    wide = _sum_of(x, branch, bits, rate)
    mean = tf.reduce_mean(wide, axis=-1, keepdims=True)
    centred = wide - mean
    inverse = tf.math.rsqrt(tf.reduce_mean(centred * centred, axis=-1, keepdims=True) + epsilon)
    return tf.cast(centred * inverse * gamma + beta, x.dtype), mean, inverse


@fusion.chain
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

    With n the normalised states before gamma and beta, and g = upstream * gamma, that of the sum is
    (g - mean(g) - n * mean(g * n)) / deviation: what would shift or stretch the states is removed by the norm.
    """
    normal = (_sum_of(x, branch, bits, rate) - mean) * inverse
    upstream = tf.cast(upstream, tf.float32)
    g = upstream * gamma
    along = tf.reduce_mean(g * normal, axis=-1, keepdims=True)
    of_sum = (g - tf.reduce_mean(g, axis=-1, keepdims=True) - normal * along) * inverse
    of_branch = of_sum if bits is None else of_sum * _kept(bits, rate)
    axes = list(range(len(x.shape) - 1))
    of_gamma, of_beta = tf.reduce_sum(upstream * normal, axes), tf.reduce_sum(upstream, axes)
    return tf.cast(of_sum, x.dtype), tf.cast(of_branch, x.dtype), of_gamma, of_beta


class OutputLayer(keras.layers.Layer):
    """Scores L classes: x @ output_weights^T + output_bias, in float32.

    The variables have the reference's shapes, [L, D] and [L].
    """

    def __init__(self, num_labels: int, width: int, initializer_range: float, **kwargs):
        super().__init__(**kwargs)
        initializer = create_initializer(initializer_range)
        self.output_weights = self.add_weight(
            shape=[num_labels, width], initializer=initializer, autocast=False, name="output_weights"
        )
        self.output_bias = self.add_weight(shape=[num_labels], initializer="zeros", autocast=False, name="output_bias")
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """[..., D] -> float32 [..., L]. Raises shapes.ShapeError for another width."""
        shapes.Contract(D=self.output_weights.shape[1]).check("...D", x=x)
        rows = tf.reshape(x, [-1, self.output_weights.shape[1]])
        logits = class_scores(rows, self.output_weights.value) + self.output_bias
        return tf.reshape(logits, [*shapes.get_shape_list(x)[:-1], self.output_weights.shape[0]])

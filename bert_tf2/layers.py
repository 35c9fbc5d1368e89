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

from bert_tf2 import shapes
from bert_tf2.config import LAYER_NORM_EPSILON

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"bert_tf2 needs Keras on TensorFlow, but Keras runs on {keras.backend.backend()}: set KERAS_BACKEND=tensorflow"
    )

_GELU_SCALE = math.sqrt(2.0 / math.pi)
_GELU_CUBIC = 0.044715


@tf.custom_gradient
def gelu(x: tf.Tensor) -> tf.Tensor:
    """Gaussian Error Linear Unit (Hendrycks & Gimpel, 2016), tanh approximation, any shape.

    x * P(Z <= x) for a standard normal Z. The released models were trained with this approximation, not with the exact
    form that uses erf; the two differ by up to 5e-4. The gradient is explicit, because automatic differentiation would
    keep five more tensors of the widest shape in the model for the backward pass.
    """
    half = 0.5 * (1.0 + tf.tanh(_GELU_SCALE * x * (1.0 + _GELU_CUBIC * x * x)))

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        square = x * x
        tanh = tf.tanh(_GELU_SCALE * x * (1.0 + _GELU_CUBIC * square))
        slope = _GELU_SCALE * (1.0 + 3.0 * _GELU_CUBIC * square)
        return upstream * 0.5 * (1.0 + tanh + x * (1.0 - tanh * tanh) * slope)

    return x * half, gradient


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
    """

    def __init__(self, seed: tf.Tensor | None = None):
        """`seed` is an int32 [2] tensor; None draws one from TensorFlow's global generator."""
        self._seed = tf.random.uniform([2], maxval=tf.int32.max, dtype=tf.int32) if seed is None else seed
        self._given = 0

    def __call__(self) -> tf.Tensor:
        self._given += 1
        return fold_in(self._seed, self._given)


_BITS_OF_RATE = 16


def dropout(x: tf.Tensor, rate: float | None, seeds: DropoutSeeds | None) -> tf.Tensor:
    """Sets a share `rate` of the values to 0 and scales the others by 1 / (1 - rate); any shape.

    Returns `x` if `seeds` is None (no training), or if the rate is 0 or None.

    Each value has 16 random bits for every dtype, so the rate is a multiple of 1 / 65536, and the scale is that of the
    rounded rate. TensorFlow draws bfloat16 numbers of 7 bits instead: for a rate of 0.1 it drops 10.15 % and scales
    by 1.109, which makes the mean 0.3 % too small at each of 25 places.
    """
    if seeds is None or not rate:
        return x
    levels = 1 << _BITS_OF_RATE
    dropped = min(round(rate * levels), levels - 1)
    size = tf.size(x)
    words = tf.random.stateless_uniform([(size + 1) // 2], seeds(), None, None, tf.uint32, alg=_ALGORITHM)
    bits = tf.reshape(tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:size], tf.shape(x))
    keep = tf.cast(bits >= tf.constant(dropped, tf.uint16), tf.float32) * (levels / (levels - dropped))
    # In float32: rounded to bfloat16, the scale itself would be 0.15 % too small.
    return tf.cast(tf.cast(x, tf.float32) * keep, x.dtype)


@tf.custom_gradient
def class_scores(states: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """The product of the output layers, in float32 for every dtype of the states.

    Near 8, bfloat16 numbers are 0.06 apart: rounded logits would tie answers and blur losses. The gradients have the
    precision of the states, because they are sums over many words or examples.

    Args:
      states: [M, D].
      weights: float32 [L, D].

    Returns:
      float32 [M, L], states @ weights^T.
    """

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

    def call(self, x: tf.Tensor) -> tf.Tensor:
        wide = tf.cast(x, tf.float32)
        mean, variance = tf.nn.moments(wide, axes=[-1], keepdims=True)
        normal = tf.nn.batch_normalization(wide, mean, variance, self.beta, self.gamma, self.epsilon)
        return tf.cast(normal, x.dtype)


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

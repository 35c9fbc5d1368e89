"""The building blocks of `modeling` and `heads`: activation functions, Dense, LayerNorm, OutputLayer.

The constructors create the variables, so that a checkpoint can be loaded before the first call. Variables have the
reference's shapes: kernels are 2-D, [inputs, outputs]. D is hidden_size, L the number of labels, M a number of states.

In models of narrower dtypes, variables stay float32 and each layer casts the factors of its products; statistics are
float32.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf2 import shapes
from bert_tf2.config import LAYER_NORM_EPSILON
from bert_tf2.dropout import dropout
from bert_tf2.support.process import check_backend

check_backend()

# Added to the attention scores of padding positions: e^-10000 is 0 in float32. The score is finite, so that a row of
# only padding gives finite values instead of NaN.
MASKED_SCORE = -10000.0

GELU_SCALE = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Gaussian Error Linear Unit (Hendrycks & Gimpel, 2016), tanh approximation, any shape.

    x * P(Z <= x) for a standard normal Z. The released models were trained with this approximation, not with the exact
    form that uses erf; the two differ by up to 5e-4. Inputs of narrower dtypes are computed in float32.
    """
    wide = at_least_float32(x)
    probability = 0.5 * (1.0 + tf.tanh(GELU_SCALE * wide * (1.0 + GELU_CUBIC * wide * wide)))
    return tf.cast(wide * probability, x.dtype)


def at_least_float32(x: tf.Tensor) -> tf.Tensor:
    return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)


def gelu_erf(x: tf.Tensor) -> tf.Tensor:
    """The exact gelu, which models that were trained in PyTorch use."""
    return tf.nn.gelu(x, approximate=False)


def get_activation(activation_string: str | Any) -> Callable[[tf.Tensor], tf.Tensor] | Any:
    """Returns the function of a config's `hidden_act`, one of config.ACTIVATIONS in upper or lower case.

    Returns an argument that is not a string unchanged. Raises ValueError if there is no function of this name.
    """
    if not isinstance(activation_string, str):
        return activation_string
    functions = {"gelu": gelu, "gelu_erf": gelu_erf, "relu": tf.nn.relu, "tanh": tf.tanh, "linear": tf.identity}
    if activation_string.lower() not in functions:
        raise ValueError(f"no activation function {activation_string!r}; there are {', '.join(functions)}")
    return functions[activation_string.lower()]


_OF_THREAD = threading.local()  # TensorFlow builds the graph of each replica in a thread of its own


def create_initializer(initializer_range: float = 0.02) -> keras.initializers.Initializer:
    """A truncated normal distribution with this deviation: values beyond two deviations are drawn again."""
    own = getattr(_OF_THREAD, "initial", None)
    return keras.initializers.TruncatedNormal(stddev=initializer_range, seed=own and own.randint(1, 10**9))


@contextlib.contextmanager
def initial_weights_from(seed: int) -> Iterator[None]:
    """A context in which new variables get the weights of this seed. No generator of the process changes."""
    _OF_THREAD.initial = random.Random(seed)
    try:
        yield
    finally:
        _OF_THREAD.initial = None


def sinusoidal_positions(num_positions: int, width: int) -> np.ndarray:
    """The positions of "Attention Is All You Need" (Vaswani et al., 2017, section 3.5), one row for each.

    BERT learns a table of positions. By `position_embedding_type`, a configuration may let it start from this table.

        row[p, 2 i]     = sin(p / 10000^(2 i / width))
        row[p, 2 i + 1] = cos(p / 10000^(2 i / width))

    The dot product of two rows depends only on the distance of their positions, because it is a sum of
    cos((p - q) / 10000^(2 i / width)). The row k positions further is the same row, rotated in each pair of columns by
    an angle that depends on k alone. If the width is odd, the last column is a sine without its cosine.

    Returns float32 [num_positions, width], each number from -1 to 1.
    """
    column = np.arange(width)
    rate = 10000.0 ** (-(column - column % 2) / width)  # 2 i is the column of the sine
    angle = np.arange(num_positions)[:, np.newaxis] * rate  # [num_positions, width]
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle)).astype(np.float32)


def class_scores(states: tf.Tensor, weights: tf.Tensor | tf.Variable) -> tf.Tensor:
    """The product of the output layers, states @ weights^T: [M, D], float32 [L, D] -> float32 [M, L] for every dtype.

    Near 8, bfloat16 numbers are 0.06 apart: rounded logits would tie answers and blur losses. The gradients have the
    precision of the states, because they are sums over many words or examples.
    """
    # Passed as a tensor, because tf.custom_gradient refuses variables that several replicas have.
    return _class_scores(states, tf.convert_to_tensor(weights))


@tf.custom_gradient
def _class_scores(states: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        upstream = tf.cast(upstream, states.dtype)
        of_states = tf.matmul(upstream, tf.cast(weights, states.dtype))
        return of_states, tf.cast(tf.matmul(upstream, states, transpose_a=True), weights.dtype)

    return tf.matmul(tf.cast(states, tf.float32), tf.cast(weights, tf.float32), transpose_b=True), gradient


def sum_of_rows(x: tf.Tensor) -> tf.Tensor:
    """[..., D] -> [D], added up in float32 for narrower dtypes: the gradient of a vector that was added to each row."""
    return tf.reduce_sum(at_least_float32(x), axis=list(range(len(x.shape) - 1)))


def _add_bias(rows: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """[..., D], float32 [D] -> [..., D]; the gradient of the bias is a sum in float32 for every dtype of the rows."""
    if rows.dtype not in (tf.bfloat16, tf.float16):
        return tf.nn.bias_add(rows, tf.cast(bias, rows.dtype))

    # TensorFlow 2.21's own gradient on CPUs adds in the type of the rows. Such a sum stops growing once a summand is
    # less than half of the sum's last digit: in bfloat16, 1 + 1 + 1 + ... ends at 256.
    @tf.custom_gradient
    def compute(rows, bias):
        added = tf.nn.bias_add(rows, tf.cast(bias, rows.dtype))
        return added, lambda upstream: (upstream, sum_of_rows(upstream))

    return compute(rows, bias)


class Dense(keras.layers.Layer):
    """y = activation(x @ kernel + bias), over the last axis, like keras.layers.Dense."""

    def __init__(self, inputs: int, outputs: int, initializer_range: float, activation: str = "linear", **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True  # positions of padding are the same in inputs and outputs
        self.kernel = self.add_weight(
            shape=[inputs, outputs], initializer=create_initializer(initializer_range), autocast=False, name="kernel"
        )
        self.bias = self.add_weight(shape=[outputs], initializer="zeros", autocast=False, name="bias")
        self.activation = get_activation(activation)
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.activation(self.linear(x))

    def linear(self, x: tf.Tensor) -> tf.Tensor:
        # Passed as a tensor, because tf.custom_gradient refuses variables that several replicas have.
        return _add_bias(self.product(x), tf.convert_to_tensor(self.bias.value))

    def product(self, x: tf.Tensor) -> tf.Tensor:
        return product(x, tf.cast(self.kernel.value, x.dtype))


def product(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """[..., inputs] @ [inputs, outputs], as one large 2-D product, which is faster than a batch of small products."""
    rows = tf.matmul(tf.reshape(x, [-1, kernel.shape[0]]), kernel)
    return tf.reshape(rows, [*shapes.get_shape_list(x)[:-1], kernel.shape[1]])


def normalize(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Layer normalization of float32 or float64 [..., D]: mean 0 and variance 1 over D, then a scale and a shift."""
    centered = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
    return centered * tf.math.rsqrt(variance + epsilon) * tf.cast(gamma, x.dtype) + tf.cast(beta, x.dtype)


class LayerNorm(keras.layers.Layer):
    """Normalizes every hidden state to mean 0 and variance 1, then applies gamma and beta (Ba et al., 2016).

    [..., D] -> [..., D]. The statistics are computed in float32 for every dtype.
    """

    def __init__(self, width: int, epsilon: float = LAYER_NORM_EPSILON, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True  # positions of padding are the same in inputs and outputs
        self.epsilon = epsilon
        self.gamma = self.add_weight(shape=[width], initializer="ones", autocast=False, name="gamma")
        self.beta = self.add_weight(shape=[width], initializer="zeros", autocast=False, name="beta")
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.cast(normalize(at_least_float32(x), self.gamma.value, self.beta.value, self.epsilon), x.dtype)


class AddAndNorm(LayerNorm):
    """LayerNorm of the sum of hidden states and a layer's output for these states, with dropout on this output.

    The box "Add & Norm" in figure 1 of Vaswani et al. (2017).
    """

    def __init__(self, width: int, epsilon: float = LAYER_NORM_EPSILON, rate: float = 0.0, **kwargs):
        super().__init__(width, epsilon, **kwargs)
        self.rate = rate

    def call(self, states: tf.Tensor, branch: tf.Tensor) -> tf.Tensor:
        """[..., D], [..., D] -> [..., D]."""
        added = at_least_float32(states) + at_least_float32(dropout(branch, self.rate))
        return tf.cast(normalize(added, self.gamma.value, self.beta.value, self.epsilon), states.dtype)


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

    def compute_mask(self, inputs: tf.Tensor, previous_mask: tf.Tensor | None) -> None:
        """The logits have no mask, because the losses of `heads` have weights of their own."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """[..., D] -> float32 [..., L]. Raises shapes.ShapeError for another width."""
        shapes.Contract(D=self.output_weights.shape[1]).check("...D", x=x)
        rows = tf.reshape(x, [-1, self.output_weights.shape[1]])
        logits = class_scores(rows, self.output_weights.value) + tf.cast(self.output_bias, tf.float32)
        return tf.reshape(logits, [*shapes.get_shape_list(x)[:-1], self.output_weights.shape[0]])

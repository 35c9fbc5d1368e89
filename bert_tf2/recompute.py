"""Blocks whose activations are computed again in the backward pass instead of being kept from the forward pass.

After Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016). Of such a block only its input is kept. A
second forward pass through all blocks would be a third of a step's arithmetic at most; that through two blocks in
three is two ninths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

Seeds = Callable[[], tf.Tensor]

_KEPT = 3


def kept(blocks: int) -> list[bool]:
    """Whether the activations of each block are kept from the forward pass: of one block in three.

    To keep none would leave about an eighth of the memory instead of a third, for half as much time again. The last
    block is among those that are kept: the backward pass needs its activations first.
    """
    return [(blocks - 1 - number) % _KEPT == 0 for number in range(blocks)]


def recomputed(block: keras.layers.Layer) -> Callable[..., tf.Tensor]:
    """A function like `block` that keeps only its input for the backward pass.

    It is called with the states [B, F, D], which are differentiated; with other arguments, which are not; and with
    `seeds`, a function that makes a new seed for each dropout, or None. The gradients of the trainable variables are
    those of `block` itself, because both passes drop the same values.
    """

    def call(states: tf.Tensor, *others: Any, seeds: Seeds | None = None, **more: Any) -> tf.Tensor:
        variables = list(block.trainable_variables)
        drawn: list[tf.Tensor] = []

        def run(states: tf.Tensor, values: Sequence[tf.Tensor], seeds: Seeds | None) -> tf.Tensor:
            # As tensors: tf.custom_gradient refuses variables that several replicas have.
            with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
                return block(states, *others, seeds=seeds, **more)

        @tf.custom_gradient
        def compute(states: tf.Tensor, *values: tf.Tensor):
            def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
                again = _only_after(upstream)
                with tf.control_dependencies([upstream]), tf.GradientTape() as tape:
                    inputs = [states + tf.cast(again, states.dtype), *map(tf.identity, values)]
                    tape.watch(inputs)
                    seeds_again = iter([seed + tf.cast(again, seed.dtype) for seed in drawn])
                    output = run(inputs[0], inputs[1:], seeds and seeds_again.__next__)
                return tape.gradient(output, inputs, output_gradients=upstream)

            return run(states, values, seeds and _recording(seeds, drawn)), gradient

        return compute(states, *(tf.convert_to_tensor(variable.value) for variable in variables))

    return call


def _recording(seeds: Seeds, drawn: list[tf.Tensor]) -> Seeds:
    def draw() -> tf.Tensor:
        drawn.append(seeds())
        return drawn[-1]

    return draw


def _only_after(upstream: tf.Tensor) -> tf.Tensor:
    """0, which is not known before the gradient `upstream` is.

    What depends on it can be neither computed in the forward pass nor recognized as equal to what was computed there:
    otherwise TensorFlow or XLA would compute it once and keep it. (XLA ignores control dependencies.)
    """
    first = tf.reshape(upstream, [-1])[:1]
    return tf.cast(tf.reduce_any(tf.math.is_inf(first) & tf.math.is_nan(first)), tf.int32)

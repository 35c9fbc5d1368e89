"""Blocks whose activations are computed again in the backward pass instead of being kept from the forward pass.

After Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016). Of such a block only its input is kept. A
second forward pass through all blocks would be a third of a step's arithmetic at most; that through two blocks in
three is two ninths.
"""

from __future__ import annotations

import tensorflow as tf

from bert_tf2.fast.shared_graph import Block, Values
from bert_tf2.layers import DropoutSeeds, current_seeds, dropout_from

_KEPT = 3


def keeps_activations(blocks: int) -> list[bool]:
    """Whether the activations of each block are kept: of one in three, and of the last, which are needed first.

    To keep none would leave about an eighth of the memory instead of a third, for half as much time again.
    """
    return [(blocks - 1 - number) % _KEPT == 0 for number in range(blocks)]


def recomputed(run: Block) -> Block:
    """A function like `run` that keeps only its arguments for the backward pass.

    The gradients are those of `run` itself, because both passes drop the same values.
    """

    def call(values: Values, states: tf.Tensor) -> tf.Tensor:
        seeds = current_seeds()
        before = seeds and seeds.number

        @tf.custom_gradient
        def compute(states: tf.Tensor, *values: tf.Tensor):
            def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
                again = _only_after(upstream)
                same = seeds and DropoutSeeds(seeds.seed + again, before)
                with tf.control_dependencies([upstream]), tf.GradientTape() as tape, dropout_from(same):
                    inputs = [states + tf.cast(again, states.dtype), *map(tf.identity, values)]
                    tape.watch(inputs)
                    output = run(inputs[1:], inputs[0])
                return tape.gradient(output, inputs, output_gradients=upstream)

            return run(values, states), gradient

        return compute(states, *values)

    return call


def _only_after(upstream: tf.Tensor) -> tf.Tensor:
    """0, which is not known before the gradient `upstream` is.

    What depends on it can be neither computed in the forward pass nor recognized as equal to what was computed there:
    otherwise TensorFlow or XLA would compute it once and keep it. (XLA ignores control dependencies.)
    """
    first = tf.reshape(upstream, [-1])[:1]
    return tf.cast(tf.reduce_any(tf.math.is_inf(first) & tf.math.is_nan(first)), tf.int32)

"""Blocks as functions of their variables: one graph for all blocks, and activations that are computed again.

A graph of twelve blocks has the same operations twelve times: TensorFlow builds, optimizes and places each of them
before the first step. Blocks differ only in the values of their variables. So the operations of one block can be a
function of these values, which the graph calls twelve times.

After Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016), a block can keep only its input, and compute
its activations again in the backward pass. A second forward pass through all blocks would be a third of a step's
arithmetic at most; a second pass through two blocks in three is two ninths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from bert_tf2.dropout import DropoutStreams, current_streams, dropout_from

Values = Sequence[tf.Tensor]
# (the values of a block's variables, states, the layout for attention as a structure of tensors) -> states
BlockOfLayout = Callable[[Values, tf.Tensor, tuple], tf.Tensor]
_KEPT = 3  # the activations of every third block are kept


def values_of(block: keras.layers.Layer) -> list[tf.Tensor]:
    """The variables of a block as tensors, which have gradients and which functions of several replicas can take."""
    return [tf.convert_to_tensor(variable.value) for variable in block.variables]


def with_values(run: Callable[[tf.Tensor, tuple], tf.Tensor], variables: Sequence[keras.Variable]) -> BlockOfLayout:
    """Makes `run`, a function of states and a layout, a function of the variables' values, too."""

    def call(values: Values, states: tf.Tensor, layout: tuple) -> tf.Tensor:
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return run(states, layout)

    return call


class SharedGraph:
    """A `BlockOfLayout` for blocks that differ only in their variables: functions that the graph calls for each block.

    An object belongs to one pass through a model, inside dropout.dropout_from. Dropout draws the same numbers as in
    blocks with graphs of their own.
    """

    def __init__(self, run: BlockOfLayout):
        """`run`: the function of one of the blocks."""
        self._run = run
        self._functions: dict[tuple, tuple[Callable, Callable]] = {}  # by the known shape of the states
        self._streams = 0  # the number of streams that a block begins
        self._zero: tf.Tensor | None = None

    def __call__(self, values: Values, states: tf.Tensor, layout: tuple) -> tf.Tensor:
        streams = current_streams()
        if self._zero is None:
            # TensorFlow would make a function for every constant argument, so the number of a stream must not be a
            # constant. This expression is always 0, but no optimization knows that.
            self._zero = tf.cast(streams.seed[0] == streams.seed[0] + 1, tf.int32)
        others = [*tf.nest.flatten(layout), streams.seed, streams.number + self._zero]
        if (shape := tuple(states.shape)) not in self._functions:
            function = self._graph_of(layout, len(values))
            self._functions[shape] = _forward_and_backward(function, [states, *values, *others], 1 + len(values))
        forward, backward = self._functions[shape]

        @tf.custom_gradient
        def compute(*sources):
            states, kept = forward([*sources, *others])
            return states, lambda upstream: backward(tf.convert_to_tensor(upstream), kept)

        streams.skip(self._streams)
        return compute(states, *values)

    def _graph_of(self, layout: tuple, count: int) -> Callable:
        """A function of tensors: states, `count` values of variables, a layout, a seed and the number of a stream."""

        def compute(states, *others):
            *of_layout, seed, number = others[count:]
            streams = DropoutStreams(seed, number)
            with dropout_from(streams):
                states = self._run(others[:count], states, tf.nest.pack_sequence_as(layout, of_layout))
            self._streams = streams.made
            return states

        return compute


def _shared(function: Callable) -> Callable:
    """A function in the graph. Without the attribute, TensorFlow would replace each call with the operations."""
    return tf.function(function, autograph=False, experimental_attributes={"_noinline": True})


# The results of these operations are small, and their inputs can be large.
_OF_SHAPES = {"Shape", "ShapeN", "Size", "BroadcastGradientArgs"}


def _forward_and_backward(compute: Callable, inputs: Sequence[tf.Tensor], sources: int) -> tuple[Callable, Callable]:
    """Cuts the graph of a function and its gradient in two: operations before and after the gradient is known.

    TensorFlow would cut the graph by itself, but also keep tensors whose shape alone the second part uses, and tensors
    that the second part does not use at all: a sixth more memory. `inputs` are tensors like the arguments of `compute`;
    the first `sources` of them have gradients.

    Returns (arguments -> result, tensors to keep), and (gradient of the result, kept tensors -> gradients).
    """

    def both(*tensors):
        *tensors, upstream = tensors
        output = compute(*tensors)
        return output, tf.gradients(output, tensors[:sources], upstream, unconnected_gradients="zero")

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
    whole = tf.compat.v1.wrap_function(both, [*specs, specs[0]])
    *arguments, upstream = whole.inputs
    output, gradients = whole.structured_outputs
    kept = _kept(arguments, output, gradients)
    first = whole.prune(arguments, [output, kept])
    second = whole.prune([upstream, *kept], gradients)

    def block_forward(tensors):
        return first(*tensors)

    def block_backward(upstream, tensors):
        return second(upstream, *tensors)

    return _shared(block_forward), _shared(block_backward)


def _kept(arguments: Sequence[tf.Tensor], output: tf.Tensor, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The tensors of the forward pass from which the gradients are computed."""
    before = {argument.op for argument in arguments}.union(_needed_for([output.op], lambda op: True))

    def is_before(op: tf.Operation) -> bool:
        return op in before or (op.type in _OF_SHAPES | {"Const"} and all(is_before(x.op) for x in op.inputs))

    after = _needed_for([gradient.op for gradient in gradients], lambda op: not is_before(op))
    read = {tensor.ref(): tensor for op in after for tensor in op.inputs}
    return [x for x in read.values() if is_before(x.op) and x.op.type != "Const"]


def _needed_for(ops: Sequence[tf.Operation], counts: Callable[[tf.Operation], bool]) -> dict[tf.Operation, None]:
    """These operations and those they depend on for which `counts` is true; in the order in which they are found."""
    found, ways = dict.fromkeys(ops), [*ops]
    while ways:
        for tensor in ways.pop().inputs:
            if tensor.op not in found and counts(tensor.op):
                found[tensor.op] = None
                ways.append(tensor.op)
    return found


def keeps_activations(blocks: int) -> list[bool]:
    """Whether each block keeps its activations: every third block does, counted from the last, which is needed first.

    If no block kept them, about an eighth of the memory would be needed, not a third, for half as much time again.
    """
    return [(blocks - 1 - number) % _KEPT == 0 for number in range(blocks)]


def recomputed(run: Callable[[Values, tf.Tensor], tf.Tensor]) -> Callable[[Values, tf.Tensor], tf.Tensor]:
    """A function like `run` that keeps only its arguments for the backward pass.

    The gradients are equal to the gradients of `run`, because both passes drop the same values.
    """

    def call(values: Values, states: tf.Tensor) -> tf.Tensor:
        streams = current_streams()
        before = streams and streams.number

        @tf.custom_gradient
        def compute(states: tf.Tensor, *values: tf.Tensor):
            def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
                again = _only_after(upstream)
                same = streams and DropoutStreams(streams.seed + again, before)
                with tf.control_dependencies([upstream]), tf.GradientTape() as tape, dropout_from(same):
                    inputs = [states + tf.cast(again, states.dtype), *map(tf.identity, values)]
                    tape.watch(inputs)
                    output = run(inputs[1:], inputs[0])
                return tape.gradient(output, inputs, output_gradients=upstream)

            return run(values, states), gradient

        return compute(states, *values)

    return call


def _only_after(upstream: tf.Tensor) -> tf.Tensor:
    """A 0 that is not known before the gradient `upstream` is known.

    An operation that reads this 0 can be neither computed in the forward pass nor recognized as equal to an operation
    there. Otherwise TensorFlow or XLA would compute it once and keep the result. (XLA ignores control dependencies.)
    """
    first = tf.reshape(upstream, [-1])[:1]
    return tf.cast(tf.reduce_any(tf.math.is_inf(first) & tf.math.is_nan(first)), tf.int32)

"""Chains of element-wise operations in one pass over memory, by XLA.

TensorFlow reads and writes whole tensors for each operation: on a CPU, gelu takes five times as long as its arithmetic.
XLA compiles a chain into one loop, again for every new shape, so this is done only in graphs whose shapes are fixed or
few. TensorFlow computes the large matrix products, because it is faster at them.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator

import tensorflow as tf

from bert_tf2 import layers


def compiled_with_xla(function: Callable) -> Callable:
    """Decorates a function of tensors, sequences, None or numbers: XLA compiles its operations into one if that pays.

    Outside a graph, with an unknown shape and in a TPU's program, the function itself is called. The compiled function
    has no gradient: use it inside tf.custom_gradient.
    """
    kernel = tf.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def call(*arguments):
        return kernel(*arguments) if _pays(arguments) else function(*arguments)

    return call


_OF_THREAD = threading.local()  # TensorFlow builds the graph of each replica in a thread of its own


@contextlib.contextmanager
def few_sizes(are_few: bool) -> Iterator[None]:
    """States, while a graph is built, whether its unknown sizes will have few values in the many runs of this graph."""
    before = getattr(_OF_THREAD, "few", False)
    _OF_THREAD.few = are_few
    try:
        yield
    finally:
        _OF_THREAD.few = before


def _pays(arguments: tuple) -> bool:
    if tf.executing_eagerly() or layers.built_for() == "TPU":
        return False
    tensors = [argument for argument in tf.nest.flatten(arguments) if isinstance(argument, tf.Tensor)]
    fixed = all(tensor.shape.is_fully_defined() for tensor in tensors)
    return (fixed or getattr(_OF_THREAD, "few", False)) and can_compile()


@functools.cache
def can_compile() -> bool:
    """Whether XLA can compile for the devices outside a TPU: for a CPU always, for a GPU if CUDA is complete."""
    if not tf.config.list_logical_devices("GPU"):
        return True
    try:
        with tf.init_scope(), tf.device("GPU:0"):
            float(tf.function(lambda x: x * x + 1.0, jit_compile=True)(tf.constant(2.0)))
        return True
    except tf.errors.OpError:
        return False

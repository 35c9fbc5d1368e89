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
from tensorflow.python.framework import ops

from bert_tf2 import placement


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


_NAMES = 1 << 18
_FIRST_OF_EVALUATIONS = 8 * _NAMES


def as_program(function: Callable, of_evaluation: bool = False) -> Callable:
    """Makes XLA compile a function as one program, which is called in a graph.

    TensorFlow's cache of programs finds a program by the name of its function, and this name has the number of tensors
    and functions that the process has made before. This number is raised to the next multiple of _NAMES, so that a
    process that continues a training run, for example, finds the programs of the process before. In an evaluation, the
    number is also larger than in most training runs, so that an evaluation alone finds the programs of an evaluation
    after a training.
    """
    least = _FIRST_OF_EVALUATIONS if of_evaluation else 0
    compiled = tf.function(function, jit_compile=True, autograph=False)

    def call(*arguments, **named):
        while (number := ops.uid()) % _NAMES or number < least:
            pass
        return compiled(*arguments, **named)

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
    if tf.executing_eagerly() or placement.built_for() == "TPU":
        return False
    tensors = [argument for argument in tf.nest.flatten(arguments) if isinstance(argument, tf.Tensor)]
    fixed = all(tensor.shape.is_fully_defined() for tensor in tensors)
    return (fixed or getattr(_OF_THREAD, "few", False)) and can_compile()


@functools.cache
def can_compile() -> bool:
    """Whether XLA can compile for the devices outside a TPU: for a CPU always, for a GPU if CUDA is complete and knows
    the GPU.
    """
    if not tf.config.list_logical_devices("GPU"):
        return True
    if _is_newer_than_cuda():
        return False
    try:
        with tf.init_scope(), tf.device("GPU:0"):
            float(tf.function(lambda x: x * x + 1.0, jit_compile=True)(tf.constant(2.0)))
        return True
    except tf.errors.OpError:
        return False


def capabilities() -> list[tuple[int, int]]:
    """The compute capabilities of the GPUs, as far as they are known: (9, 0) for an H100, for example."""
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return [gpu["compute_capability"] for gpu in details if "compute_capability" in gpu]


_BLACKWELL = (10, 0)  # the compute capability of the first GPUs that need _CUDA_OF_BLACKWELL
_CUDA_OF_BLACKWELL = (12, 8)


def _is_newer_than_cuda() -> bool:
    """Whether a GPU is newer than TensorFlow's CUDA; then LLVM would end the process, which no code here can prevent.

    See https://github.com/tensorflow/tensorflow/issues/111958.
    """
    newest = max(capabilities(), default=(0, 0))
    cuda = tf.sysconfig.get_build_info().get("cuda_version", "0.0")
    return newest >= _BLACKWELL and tuple(map(int, cuda.split(".")[:2])) < _CUDA_OF_BLACKWELL

"""Dropout, with the same masks on every device and in every run: all random numbers come from the seed of a step.

    fold_in:       a seed and the number of a step, replica or part -> another seed
    dropout_from:  a context in which `dropout` takes one stream of random numbers after the other from a seed
    dropout:       values -> values, some of which are 0

The functions `dropout_...` are the parts of `dropout`, for gradients that compute a mask again and do not keep it. D is
the width of a row of values, R the number of rows.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Iterator

import tensorflow as tf

from bert_tf2 import placement, shapes
from bert_tf2.support.errors import UserError

_LEVELS = 1 << 16  # of a random number that decides whether a value is dropped
_OF_THREAD = threading.local()  # TensorFlow builds the graph of each replica in a thread of its own


def dropout(x: tf.Tensor, rate: float | None) -> tf.Tensor:
    """Sets a share `rate` of the values to 0 and scales the others by 1 / (1 - rate); any shape.

    Returns `x` outside of `dropout_from` (no training), or if the rate is 0 or None.

    Each value has 16 random bits for every dtype, so the rate is rounded to a multiple of 1 / 65536, and the scale
    belongs to the rounded rate. TensorFlow draws bfloat16 numbers of 7 bits instead: with a rate of 0.1, it drops
    10.15 % and scales by 1.109, which makes the mean 0.3 % too small at each of 25 places.
    """
    numbers = dropout_numbers(x, rate)
    if numbers is None:
        return x
    # The product is in float32, because the scale rounded to bfloat16 would be 0.15 % too small.
    return tf.cast(tf.cast(x, tf.float32) * dropout_factor(numbers, rate, x), x.dtype)


@contextlib.contextmanager
def dropout_from(streams: DropoutStreams | None) -> Iterator[None]:
    """A context in which every `dropout` takes the next of these streams; None turns dropout off, as outside of it."""
    before = current_streams()
    _OF_THREAD.streams = streams
    try:
        yield
    finally:
        _OF_THREAD.streams = before


def current_streams() -> DropoutStreams | None:
    """The streams of the innermost `dropout_from`, None if dropout is off."""
    return getattr(_OF_THREAD, "streams", None)


class DropoutStreams:
    """A stream of random numbers for each dropout of a model, all from one seed, usually of the step.

    The masks of a step depend only on the seed of this step and are the same in every run, so an interrupted training
    run resumes exactly. `made` is the number of streams that this object has begun.
    """

    def __init__(self, seed: tf.Tensor | None = None, number: tf.Tensor | int = 0):
        """Begins with the stream of this number, int32 []. TensorFlow draws the seed [2] if `seed` is None."""
        self.seed = tf.random.uniform([2], maxval=tf.int32.max, dtype=tf.int32) if seed is None else seed
        self.number = number
        self.made = 0

    def bits(self, shape: list | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        self.skip(1)
        return random_bits(shape, self.seed, dtype, self.number)

    def skip(self, count: int) -> None:
        self.number = self.number + count
        self.made += count


def streams_if(training: bool, seed: tf.Tensor | None) -> DropoutStreams | None:
    """The streams of a step's seed, None without dropout. Raises UserError if `training` is a tensor of a graph."""
    if tf.is_tensor(training) and not hasattr(training, "numpy"):
        raise UserError("training: a tensor of a graph, wanted True or False; trace a graph for each of the two")
    return DropoutStreams(seed) if training else None


_FOR_SEEDS = 1 << 30  # a stream that no dropout uses


def fold_in(seed: tf.Tensor, number: tf.Tensor | int) -> tf.Tensor:
    """Returns a new seed [2] for each number: independent random numbers for each step, replica and part of a batch."""
    number = tf.convert_to_tensor(number)
    return tf.stack([random_bits([], seed, number.dtype, _FOR_SEEDS), number])


def random_bits(shape: list | tf.Tensor, seed: tf.Tensor, dtype: tf.DType, stream: tf.Tensor | int) -> tf.Tensor:
    """Draws random whole numbers from a seed, whole numbers [2], in independent streams: `stream` is 0 to 2^31 - 1.

    The algorithm is Philox (Salmon et al., 2011) on all devices and in XLA, so that a step draws the same numbers
    wherever it runs. The seed is Philox's key, and the stream the upper half of Philox's counter. This takes a sixth of
    the operations of tf.random.stateless_uniform, which first makes a key of each seed; TensorFlow's operation that
    makes keys, StatelessRandomGetKeyCounter, makes other keys of negative seeds in XLA.
    """
    key = tf.reshape(tf.bitcast(tf.cast(seed, tf.int32), tf.uint64), [1])
    # The lower half starts at 1, because XLA computes [0, stream], as a sequence, in two kernels of a GPU per dropout.
    counter = tf.cast(tf.stack([1, stream]), tf.uint64)
    how = {"key": key, "counter": counter, "alg": tf.random.Algorithm.PHILOX.value}
    return tf.raw_ops.StatelessRandomUniformFullIntV2(shape=shape, dtype=dtype, **how)


def dropout_numbers(x: tf.Tensor, rate: float | None) -> tf.Tensor | None:
    """The random numbers of `dropout`, uint32 [(R + 1) // 2, D], for R rows of D values; None if nothing is dropped."""
    streams = current_streams()
    if streams is None or not rate:
        return None
    *rows, width = shapes.get_shape_list(x) or [1]
    return streams.bits([(math.prod(rows) + 1) // 2, width], tf.uint32)


def dropout_mask(numbers: tf.Tensor, rate: float, like: tf.Tensor) -> tf.Tensor:
    """Returns bool, in the shape of `like`: True for the values of `like` that these random numbers keep.

    The first rows use the lower halves of the numbers, the other rows the upper halves. If the halves of a number were
    used side by side, a TPU would have to write and move them before it could compare them.
    """
    shape = shapes.get_shape_list(like)
    *rows, width = shape or [1]
    least = tf.constant(_levels_dropped(rate), tf.uint16)
    if placement.built_for() == "CPU":  # the same numbers as below, where a CPU's loops would take 3 % of a step longer
        halves = tf.cast(tf.bitwise.right_shift(numbers, tf.constant([[[0]], [[16]]], tf.uint32)), tf.uint16)
        mask = tf.reshape(halves, [-1, width]) >= least  # from [2, (R + 1) // 2, D]
    elif isinstance(width, int) and width % 4 == 0 and placement.in_program_for_gpu():
        mask = tf.reshape(_compared_in_bytes(numbers, least, shape), [-1, width])
    else:
        mask = tf.concat(_halves(numbers), axis=0) >= least
    return tf.reshape(mask[: math.prod(rows)], shape)  # from [R or R + 1, D]


def _halves(numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The lower and the upper 16 bits of numbers of 32 bits, uint16."""
    return tf.cast(numbers, tf.uint16), tf.cast(tf.bitwise.right_shift(numbers, tf.constant(16, tf.uint32)), tf.uint16)


def _compared_in_bytes(numbers: tf.Tensor, least: tf.Tensor, shape: list) -> tf.Tensor:
    """Which lower and which upper halves of the numbers for this shape are at least `least`: bool [2, ..., D / 4, 4].

    Philox draws four numbers at once, in XLA as four arrays. Together, they have eight halves. The eight comparisons
    are the bits of a byte, so that XLA for GPUs writes this byte to memory, and not the 16 bytes of the four numbers.
    The kernels that use a mask take the bits out of the bytes. Triton's kernels of XLA can do so if dimensions are
    divided and not joined, and have `and`, but no shift.
    """
    four = tf.reshape(numbers, [-1, 4])
    of_each = [_halves(four[:, column : column + 1]) for column in range(4)]
    comparisons = [half >= least for halves in zip(*of_each, strict=True) for half in halves]
    bits = [tf.bitwise.left_shift(tf.cast(kept, tf.int8), place) for place, kept in enumerate(comparisons)]
    divides = len(shape) > 1 and isinstance(shape[0], int) and shape[0] % 2 == 0
    rows = [shape[0] // 2, *shape[1:-1]] if divides else [-1]
    bytes_ = tf.reshape(functools.reduce(tf.bitwise.bitwise_or, bits), [*rows, shape[-1] // 4, 1])
    places = tf.reshape(tf.constant([[1, 2, 4, 8], [16, 32, 64, 128]]), [2, *[1] * (len(rows) + 1), 4])
    return tf.not_equal(tf.bitwise.bitwise_and(tf.cast(bytes_, tf.int32), places), 0)


def dropout_scale(rate: float) -> float:
    """The factor by which `dropout` multiplies the values that it keeps."""
    return _LEVELS / (_LEVELS - _levels_dropped(rate))


def dropout_factor(numbers: tf.Tensor, rate: float, like: tf.Tensor) -> tf.Tensor:
    """The factor by which `dropout` multiplies each value of `like`, float32: 0 or `dropout_scale`."""
    return tf.cast(dropout_mask(numbers, rate, like), tf.float32) * dropout_scale(rate)


def _levels_dropped(rate: float) -> int:
    return min(round(rate * _LEVELS), _LEVELS - 1)

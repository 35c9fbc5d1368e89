"""Reads `x`, with the labels and weights of its rows: counts them, divides them, and makes batches of tf.data."""

from __future__ import annotations

import contextlib
import itertools
import logging as python_logging
import random
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_tf2.api import targets
from bert_tf2.support import containers
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.support.process import check_process
from bert_tf2.support.settings import check_type


def has_ids(x: Any) -> bool:
    """Whether `x` has the arrays of `Bert.tokenize` in place of texts."""
    return isinstance(x, Mapping) and "input_ids" in x


def has_batches(x: Any) -> bool:
    """Whether `x` is a dataset, a PyDataset, or a generator or another iterator: its elements are batches."""
    return isinstance(x, tf.data.Dataset | keras.utils.PyDataset) or hasattr(x, "__next__")


def first_batches(x: Any, steps: int | None) -> Iterator[Any]:
    """The first `steps` batches of a dataset, a PyDataset, or a generator; None for all batches."""
    if isinstance(x, keras.utils.PyDataset):
        x = map(x.__getitem__, range(steps if x.num_batches is None else x.num_batches))
    return itertools.islice(x, steps)


def every_row(
    x: Any, read: Callable[[Any], list], steps: int | None = None, parts: Callable[[Any], tuple] = containers.parts_of
) -> list:
    """The rows that `read` finds in x, or in x of each of the first `steps` batches.

    `parts`: converts a batch to x and the parts after it.
    """
    given = [parts(batch)[0] for batch in first_batches(x, steps)] if has_batches(x) else [x]
    given = [[part] if getattr(part, "shape", None) == () else part for part in given]
    return [row for part in given for row in read(part)]


class Rows(NamedTuple):
    """The rows of a call, as a reader has checked them; None for parts that are not given."""

    x: list | Mapping[str, np.ndarray]  # an entry for each text, pair or sentence; or the arrays of `Bert.tokenize`
    y: Any = None
    weights: np.ndarray | None = None

    @property
    def count(self) -> int:
        return len(next(iter(self.x.values())) if isinstance(self.x, Mapping) else self.x)

    def counted(self) -> Rows:
        """The rows themselves. Raises UserError if the parts differ in their number of rows."""
        for name, part in (("y", self.y), ("sample_weight", self.weights)):
            check_count(name, part, self.count)
        return self

    def divided(self, share: float) -> tuple[Rows, Rows]:
        """The rows for the training, and the last rows, for the validation, as in Keras."""
        first = int(self.count * (1.0 - share))
        if not 0 < first < self.count:
            problem = f"no text of {self.count} remains for training or for validation"
            raise UserError(f"validation_split={share}: {problem}; give a share of the rows, such as 0.25")

        def cut(part: Any, chosen: slice) -> Any:
            if isinstance(part, Mapping):
                return {name: values[chosen] for name, values in part.items()}
            return None if part is None else part[chosen]

        chosen = (slice(first), slice(first, None))
        learned, held_out = (Rows(*(cut(part, place) for part in self)) for place in chosen)
        return learned, held_out


def check_count(name: str, part: Any, count: int) -> None:
    """Raises UserError if `part`, the argument `name`, is there and has not one row for each of `count` texts."""
    if part is not None and len(part) != count:
        raise UserError(f"{name}: {len(part)} rows for {count} texts; each needs one")


def check_end(x: Any, steps: int | None, name: str) -> None:
    """Raises UserError if `steps`, the argument `name`, is wrong, or None for batches without an end; or in a fork."""
    check_process()
    check_type(name, steps, int, low=1, optional=True)
    endless = isinstance(x, keras.utils.PyDataset) and x.num_batches is None
    if isinstance(x, tf.data.Dataset):
        endless = x.cardinality() == tf.data.INFINITE_CARDINALITY
    if endless and steps is None:
        raise UserError(f"x: is an endless dataset; give {name}=N, the number of batches to read")


@contextlib.contextmanager
def of_argument(name: str) -> Iterator[None]:
    """Puts `name` in front of an error in its block, which is about the parts x and y of that argument."""
    try:
        yield
    except UserError as error:
        has_name = str(error).startswith(name.split("_")[0])
        raise error if has_name else UserError(f"{name}: {error}") from error


def words_of(given: Any, name: str = "x") -> list[list[str]]:
    """The words (or tags) of sentences; a sentence may be a text with blanks between the words.

    `given` is a list, tuple, array, column, tensor, or a table with one column; or a single text, which is one
    sentence. "" after the words of an array is left out. Raises UserError.
    """
    found, names = targets.read(given, name)
    if names:
        raise UserError(f"{name}: a table with {and_more([*map(repr, names)], 6)}; give its column: {name}[...]")
    missing = [number for number, row in enumerate(found) if row is None]
    containers.refuse(missing, name, f"of {len(found)} sentences are missing", "leave these rows out")
    sentences, is_array = [], not isinstance(given, list | tuple)
    for number, row in enumerate(found, 1):
        if not isinstance(row, str | list | tuple):
            raise UserError(f"sentence {number}: {row!r:.60} is neither a list nor a text of words or tags")
        if is_array and len(row) == 1 and isinstance(row[0], str):
            row = row[0]  # a text of an array [N, 1]
        words = row.split() if isinstance(row, str) else [*row]
        while is_array and words and words[-1] == "":
            words.pop()
        sentences.append(words)
    return sentences


def refuse_blank(rows: list[tuple[str, ...]]) -> None:
    """Raises UserError for rows with a text without a word."""
    blank = [number for number, row in enumerate(rows) if not all(text.strip() for text in row)]
    containers.refuse(blank, "x", f"of {len(rows)} rows have an empty text", "leave these rows out")


# Batches


class Batches(NamedTuple):
    """Batches of arrays; and the first of them, because a generator yields each batch only once."""

    data: tf.data.Dataset
    first: tuple | None  # None if there are no batches


def read_batches(
    given: Any, read: Callable[[Any], tuple], shuffle: bool, most: int | None, same_length: bool = False
) -> Batches:
    """The batches of a dataset, a PyDataset, a generator or another iterator.

    Args:
      given: has batches x, (x, y) or (x, y, sample_weight).
      read: converts a batch to a tuple of arrays [rows, ...], or of tuples or dicts of such arrays.
      shuffle: whether the batches of a PyDataset come in another order each time, as in Keras.
      most: the maximum number of batches to read from a generator; None if there is no maximum.
      same_length: whether the rows of ids of all batches have the same length.
    """

    def spec_of(part: Any) -> tf.TensorSpec:
        free = isinstance(first[0], Mapping) and part.ndim == 2 and not same_length
        return tf.TensorSpec([None, None] if free else [None, *part.shape[1:]], tf.as_dtype(part.dtype))

    first = _first_of(given)
    if first is None:
        return Batches(given, None)
    first = read(first)
    spec = tf.nest.map_structure(spec_of, first)
    if isinstance(given, tf.data.Dataset):
        data = _of_dataset(given, read, spec)
    elif isinstance(given, keras.utils.PyDataset):
        data = _of_indexed(given, read, spec, shuffle)
    else:
        data = _of_generator(itertools.chain([first], map(read, given)), spec)
        data = data if most is None else data.take(most)
    return Batches(data, first)


def _first_of(given: Any) -> Any:
    """The first batch; None without batches. Raises UserError for ragged rows, and for a generator that has ended."""
    if isinstance(given, tf.data.Dataset):
        if any(not isinstance(part, tf.TensorSpec) for part in tf.nest.flatten(given.element_spec)):
            raise UserError("x: the dataset has ragged rows; make a text of each, as tf.strings.reduce_join does")
        return next(given.as_numpy_iterator(), None)
    if isinstance(given, keras.utils.PyDataset):
        return None if given.num_batches == 0 else given[0]
    if (first := next(given, None)) is None:
        raise UserError("x: the generator has no batches, or was read before; make another generator")
    return first


def _of_dataset(data: tf.data.Dataset, read: Callable[[Any], tuple], spec: Any) -> tf.data.Dataset:
    kinds = tf.nest.flatten(spec)

    @tf.autograph.experimental.do_not_convert
    def convert(*batch: Any) -> Any:
        def arrays(*parts: np.ndarray) -> list[np.ndarray]:
            return [np.asarray(part) for part in tf.nest.flatten(read(tf.nest.pack_sequence_as(batch, parts)))]

        found = tf.numpy_function(arrays, tf.nest.flatten(batch), [kind.dtype for kind in kinds])
        found = [tf.ensure_shape(part, kind.shape) for part, kind in zip(found, kinds, strict=True)]
        return tf.nest.pack_sequence_as(spec, found)

    return data.map(convert, tf.data.AUTOTUNE)


def _of_indexed(
    given: keras.utils.PyDataset, read: Callable[[Any], tuple], spec: Any, shuffle: bool
) -> tf.data.Dataset:
    count = given.num_batches

    def elements() -> Iterator[tuple]:
        if hasattr(given, "on_epoch_begin"):
            given.on_epoch_begin()
        numbers = itertools.count() if count is None else [*range(count)]
        if shuffle and count is not None:
            random.shuffle(numbers)
        yield from (read(given[number]) for number in numbers)
        given.on_epoch_end()

    data = tf.data.Dataset.from_generator(elements, output_signature=spec)
    return data if count is None else data.apply(tf.data.experimental.assert_cardinality(count))


def _of_generator(batches: Iterator[tuple], spec: Any) -> tf.data.Dataset:
    def elements() -> Iterator[tuple]:
        batch = next(batches, None)
        if batch is None:
            raise UserError("x: the generator has ended, and is read again; give one with more batches, or a list")
        yield batch
        yield from batches

    return tf.data.Dataset.from_generator(elements, output_signature=spec)


def _is_no_retracing(record: python_logging.LogRecord) -> bool:
    return "triggered tf.function retracing" not in str(record.msg)


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Converts an error of the pipeline about texts or labels, which has many lines, to a UserError with its sentence.

    In its block, TensorFlow does not warn of functions that were traced often, because each of several models (in a
    cross-validation, say) has its own functions.
    """
    logger = python_logging.getLogger("tensorflow")
    added = _is_no_retracing not in logger.filters
    if added:
        logger.addFilter(_is_no_retracing)
    try:
        yield
    except tf.errors.OpError as error:
        if found := re.search(r"^.*\b(?:User|Shape)Error: (.*)$", str(error), re.MULTILINE):
            raise UserError(found[1]) from error
        raise
    finally:
        if added:
            logger.removeFilter(_is_no_retracing)

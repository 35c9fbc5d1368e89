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

from bert_tf2.api.targets import read
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
    found, names = read(given, name)
    if names:
        raise UserError(f"{name}: a table with {and_more([*map(repr, names)], 6)}; give its column: {name}[...]")
    sentences = []
    missing = [number for number, row in enumerate(found) if row is None]
    containers.refuse(missing, name, f"of {len(found)} sentences are missing", "leave these rows out")
    for number, row in enumerate(found, 1):
        if not isinstance(row, str | list | tuple):
            raise UserError(f"sentence {number}: {row!r:.60} is neither a list nor a text of words or tags")
        is_text = (
            not isinstance(given, list | tuple) and len(row) == 1 and isinstance(row[0], str)
        )  # of an array [N, 1]
        row = row[0] if is_text else row
        sentences.append(row.split() if isinstance(row, str) else [*row])
    if not isinstance(given, list | tuple):
        for words in sentences:
            while words and isinstance(words[-1], str) and not words[-1]:
                words.pop()
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

    if isinstance(given, tf.data.Dataset):
        if any(not isinstance(part, tf.TensorSpec) for part in tf.nest.flatten(given.element_spec)):
            raise UserError("x: the dataset has ragged rows; make a text of each, as tf.strings.reduce_join does")
        element = next(given.as_numpy_iterator(), None)
        if element is None:
            return Batches(given, None)
        first = read(element)
        return Batches(_read_in_graph(given, read, tf.nest.map_structure(spec_of, first)), first)

    is_indexed = isinstance(given, keras.utils.PyDataset)
    count = given.num_batches if is_indexed else None
    if count == 0:
        raise UserError("x: is a PyDataset without batches")
    try:
        first = read(given[0] if is_indexed else next(given))
    except StopIteration:
        raise UserError("x: the generator has no batches, or was read before; make another generator") from None
    unread = iter(()) if is_indexed else itertools.chain([first], map(read, given))

    def of_generator() -> Iterator[tuple]:
        batch = next(unread, None)
        if batch is None:
            raise UserError("x: the generator has ended, and is read again; give one with more batches, or a list")
        yield batch
        yield from unread

    def of_indexed() -> Iterator[tuple]:
        if hasattr(given, "on_epoch_begin"):
            given.on_epoch_begin()
        numbers = [*range(count)] if count is not None else itertools.count()
        if shuffle and count is not None:
            random.shuffle(numbers)
        yield from (read(given[number]) for number in numbers)
        given.on_epoch_end()

    spec = tf.nest.map_structure(spec_of, first)
    data = tf.data.Dataset.from_generator(of_indexed if is_indexed else of_generator, output_signature=spec)
    if not is_indexed and most is not None:
        data = data.take(most)
    elif count is not None:
        data = data.apply(tf.data.experimental.assert_cardinality(count))
    return Batches(data, first)


def _read_in_graph(data: tf.data.Dataset, read: Callable[[Any], tuple], spec: Any) -> tf.data.Dataset:
    """The batches of a dataset, each converted by `read` to arrays of `spec`."""

    @tf.autograph.experimental.do_not_convert
    def convert(*batch: Any) -> Any:
        def flat(*parts: np.ndarray) -> list[np.ndarray]:
            return [np.asarray(part) for part in tf.nest.flatten(read(tf.nest.pack_sequence_as(batch, parts)))]

        kinds = tf.nest.flatten(spec)
        found = tf.numpy_function(flat, tf.nest.flatten(batch), [kind.dtype for kind in kinds])
        return tf.nest.pack_sequence_as(
            spec, [tf.ensure_shape(part, kind.shape) for part, kind in zip(found, kinds, strict=True)]
        )

    return data.map(convert, tf.data.AUTOTUNE)


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

"""Reads `x`, with the labels and weights of its rows: counts them, divides them, and makes batches of tf.data."""

from __future__ import annotations

import contextlib
import itertools
import logging as python_logging
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf2.api.targets import checked, read
from bert_tf2.config import BertConfig
from bert_tf2.exporting.tokenize_layer import columns
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


def first_batches(x: Any, steps: int | None) -> Any:
    """A dataset, or an iterator in place of a PyDataset or generator, with the first `steps` batches of `x`.

    `steps`: None for all batches. Other containers are returned unchanged.
    """
    if isinstance(x, tf.data.Dataset):
        return x if steps is None else x.take(steps)
    if not has_batches(x):
        return x
    if hasattr(x, "__next__"):
        return itertools.islice(x, steps)
    count = steps if x.num_batches is None else x.num_batches
    return itertools.islice(map(x.__getitem__, range(count)), steps)


def texts(x: Any, pairs: bool = True, most: int | None = None) -> list[containers.Text]:
    """The texts of any container; `most` batches of a generator or a dataset, None for all."""
    x = first_batches(x, most)
    batches = (containers.parts_of(batch)[0] for batch in x) if hasattr(x, "__next__") else [x]
    return [text for batch in batches for text in containers.texts(batch, "x", pairs)[0]]


def warn_of_labels(found: list[containers.Text], labels: Sequence[str]) -> list[containers.Text]:
    """Returns the texts; warns if the second texts of pairs are labels, for example of a table that was given whole."""
    seconds = sorted({text[1] for text in found if isinstance(text, tuple)})
    if seconds and {*seconds} <= {*labels}:
        logging.warning("x: every second text of a pair is a label (%s); give the texts alone", and_more(seconds, 6))
    return found


class Rows(NamedTuple):
    """Columns with an entry for each row, as a reader has checked them; None for parts that are not given."""

    x: Any
    y: Any = None
    weights: np.ndarray | None = None

    def counted(self) -> Rows:
        """The rows themselves. Raises UserError if the columns differ in their number."""
        check_counts(self.x, y=self.y, sample_weight=self.weights)
        return self


def checked_history(history: keras.callbacks.History) -> keras.callbacks.History:
    """Returns the result of a training; warns if a loss is not finite, because the weights are not, either."""
    losses = history.history.get("loss", ())
    if wrong := [epoch for epoch, loss in enumerate(losses, 1) if not np.isfinite(loss)]:
        what = "loss: is %s in epoch %d, so the weights are useless; make the model anew, with a lower learning rate"
        logging.warning(what, losses[wrong[0] - 1], wrong[0])
    return history


def check_counts(texts: Any, **others: Any) -> int:
    """Returns the number of texts; raises UserError for an argument with another number of rows, by its name."""
    others = {name: given for name, given in others.items() if given is not None}
    named = {"x": texts} if not isinstance(texts, tuple) else {f"x[{n}]": part for n, part in enumerate(texts)}
    named = {f"x[{name!r}]": part for name, part in texts.items()} if isinstance(texts, Mapping) else named
    count = len(next(iter(named.values())))
    for name, given in {**named, **others}.items():
        if len(given) != count:
            raise UserError(f"{name}: {len(given)} rows for {count} texts; each needs one")
    return count


def is_empty(batches: Batches) -> bool:
    """Whether there are no batches; reads the first batch if their number is not known."""
    count = int(batches.data.cardinality())
    with in_one_line():
        return not count or (count == tf.data.UNKNOWN_CARDINALITY and not any(True for _ in batches.first))


def check_given(batches: Batches, replicas: int = 1) -> None:
    """Raises UserError if there are no batches (x, y, ...), they have no y, or Keras cannot divide the first batch.

    Several replicas may have unequal parts of later batches.
    """
    element = batches.data.element_spec
    if is_empty(batches):
        raise UserError("x: has no texts")
    if not (isinstance(element, tuple) and len(element) > 1):
        raise UserError("y: is missing; give an answer for each row of x, in a batch as (x, y)")
    if replicas > 1:
        with in_one_line():
            count = len(tf.nest.flatten(next(iter(batches.first)))[0])
        if count % replicas:
            raise UserError(f"x: the first batch has {count} rows, which {replicas} devices cannot divide equally")


def check_end(x: Any, steps: int | None, name: str) -> None:
    """Raises UserError if `steps`, the argument `name`, is wrong, or None for batches without an end; or in a fork."""
    check_process()
    check_type(name, steps, int, low=1, optional=True)
    endless = isinstance(x, keras.utils.PyDataset) and x.num_batches is None
    if isinstance(x, tf.data.Dataset):
        endless = x.cardinality() == tf.data.INFINITE_CARDINALITY
    if endless and steps is None:
        raise UserError(f"x: is an endless dataset; give {name}=N, the number of batches to read")


def check_epochs(epochs: Any, callbacks: Any, first_epoch: Any, validation_freq: Any) -> None:
    """Raises UserError for wrong arguments of `fit` that Keras would use only in the middle of the training."""
    check_type("epochs", epochs, int, low=1)
    check_type("initial_epoch", first_epoch, int, low=0)
    if not isinstance(validation_freq, list | tuple | set | range):
        check_type("validation_freq", validation_freq, int, low=1)
    for callback in keras.tree.flatten(() if callbacks is None else callbacks):
        if isinstance(callback, type) or not hasattr(callback, "set_model"):
            raise UserError(
                f"callbacks: {callback!r:.60} is not a callback of Keras, such as keras.callbacks.CSVLogger(path)"
            )


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


def refuse_blank(texts: list[str]) -> None:
    """Raises UserError for texts without a word."""
    blank = [number for number, text in enumerate(texts) if not text.strip()]
    containers.refuse(blank, "x", f"of {len(texts)} texts are empty", "leave these rows out")


def divide(share: float, rows: Rows) -> tuple[Rows, Rows]:
    """Divides the rows into the first and the last, as Keras does. Raises UserError for batches."""
    if not isinstance(rows, Rows):
        raise UserError("validation_split: cannot divide a dataset; give validation_data")
    check_type("validation_split", share, float, low=0)
    count = check_counts(rows.x)
    first = int(count * (1.0 - share))
    if not 0 < first < count:
        problem = f"no text of {count} remains for training or for validation"
        raise UserError(f"validation_split={share}: {problem}; give a share of the rows, such as 0.25")

    def cut(part: Any, chosen: slice) -> Any:
        if isinstance(part, tuple):
            return tuple(column[chosen] for column in part)
        if isinstance(part, Mapping):
            return {name: column[chosen] for name, column in part.items()}
        return None if part is None else part[chosen]

    return Rows(*(cut(part, slice(first)) for part in rows)), Rows(*(cut(part, slice(first, None)) for part in rows))


# Batches of a PyDataset or a generator


class Batches(NamedTuple):
    """Batches as a dataset, and the first batch alone, because a generator yields each batch only once."""

    data: tf.data.Dataset
    first: tf.data.Dataset


def read_batches(
    given: Any, arrays: Callable[..., tuple], shuffle: bool, most: int | None, same_length: bool = False
) -> Batches:
    """The batches of a PyDataset, a generator or another iterator.

    Args:
      given: has batches x, (x, y) or (x, y, sample_weight).
      arrays: converts the parts of a batch to a tuple of arrays [rows, ...], or of tuples or dicts of such arrays.
      shuffle: whether the batches of a PyDataset come in another order each time, as in Keras.
      most: the maximum number of batches to read from a generator; None if there is no maximum.
      same_length: whether the rows of ids of all batches have the same length.
    """
    is_indexed = isinstance(given, keras.utils.PyDataset)

    def read(batch: Any) -> tuple:
        parts = containers.parts_of(batch)
        if len(parts) > 1 and isinstance(parts[0], str):
            raise UserError("x: is a single text; give batches, as in Keras: (list of texts, list of labels)")
        if len(parts) > 3:
            raise UserError(f"x: a batch has {len(parts)} parts; give (x, y) or (x, y, sample_weight)")
        return arrays(*parts)

    count = given.num_batches if is_indexed else None
    if count == 0:
        raise UserError("x: is a PyDataset without batches")
    try:
        element = given[0] if is_indexed else next(given)
    except StopIteration:
        raise UserError("x: the generator has no batches, or was read before; make another generator") from None
    example = read(element)
    unread = iter(()) if is_indexed else itertools.chain([example], map(read, given))

    def elements() -> Iterator[tuple]:
        if not is_indexed:
            first = next(unread, None)
            if first is None:
                raise UserError("x: the generator has ended, and is read again; give one with more batches, or a list")
            yield first
            yield from unread
            return
        if hasattr(given, "on_epoch_begin"):
            given.on_epoch_begin()
        numbers = [*range(count)] if count is not None else None
        if shuffle and numbers:
            random.shuffle(numbers)
        yield from (read(given[number]) for number in numbers or range(2**62))
        given.on_epoch_end()

    def spec_of(part: Any) -> tf.TensorSpec:
        free = isinstance(example[0], Mapping) and part.ndim == 2 and not same_length
        return tf.TensorSpec([None, None] if free else [None, *part.shape[1:]], tf.as_dtype(part.dtype))

    spec = tf.nest.map_structure(spec_of, example)
    data = tf.data.Dataset.from_generator(elements, output_signature=spec)
    if not is_indexed and most is not None:
        data = data.take(most)
    elif count is not None:
        data = data.apply(tf.data.experimental.assert_cardinality(count))
    return Batches(data, tf.data.Dataset.from_tensors(example))


# In graphs


def texts_in_graph(x: Any) -> tuple[tf.Tensor, ...]:
    """The columns of texts in a batch of a dataset, strings [B] each."""
    if isinstance(x, tf.RaggedTensor):
        raise UserError("x: the dataset has ragged rows; make a text of each, as tf.strings.reduce_join does")
    if isinstance(x, Mapping):
        wrong = [name for name, column in x.items() if getattr(column, "dtype", None) != tf.string]
        if wrong or len(x) > 2:
            names, first = and_more([*map(repr, x)], 6), next((name for name in x if name not in wrong), "text")
            raise UserError(
                f"x: the dataset has the columns {names}; choose the columns of texts with"
                f" data.map(lambda x, y: (x[{first!r}], y))"
            )
    return columns(x)


def refuse_blank_in_graph(column: tf.Tensor) -> tf.Tensor:
    """A column of texts; InvalidArgumentError if a text has no word."""
    lengths = tf.strings.length(tf.strings.strip(tf.reshape(column, [-1])))
    numbers = tf.range(1, tf.size(lengths) + 1)
    return checked(column, lengths > 0, "x: text ", numbers, " of a batch is empty; leave such rows out")


def ids_in_range(x: Mapping[str, tf.Tensor], config: BertConfig) -> dict[str, tf.Tensor]:
    """The features of a batch; InvalidArgumentError if an id, a mask or a segment is none that the model knows."""
    found = dict(x)
    for name, meaning, size in (
        ("input_ids", "the ids of the vocabulary", config.vocab_size),
        ("input_mask", "the values of a mask", 2),
        ("segment_ids", "the segments of the model", config.type_vocab_size),
    ):
        if name in x:
            given = tf.convert_to_tensor(x[name])
            values, after = tf.cast(given, tf.int64), f", and {meaning} are 0 to {size - 1}"
            found[name] = checked(given, (values >= 0) & (values < size), f"x: {name} has ", values, after)
    return found


def _is_no_retracing(record: python_logging.LogRecord) -> bool:
    return "triggered tf.function retracing" not in str(record.msg)


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Converts an error of a graph about texts or labels, which has many lines, to a UserError with its sentence.

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
        if found := re.search(r"assertion failed: \[(.*)\]", str(error)):
            raise UserError(found[1].replace("\\'", "'")) from error  # TensorFlow shows quotes like C
        if found := re.search(r"^.*\bUserError: (.*)$", str(error), re.MULTILINE):  # in a generator or a PyDataset
            raise UserError(found[1]) from error
        raise
    finally:
        if added:
            logger.removeFilter(_is_no_retracing)

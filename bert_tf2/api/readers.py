"""The readers of the models of texts: from texts and answers to the batches that a model learns from.

    x, y, sample_weight  ->  rows        checked; an entry for each text, pair or sentence; can be divided
                         ->  arrays      an entry for each row of a batch, such as a window of a sentence
                         ->  batches     of tf.data
                         ->  the input   of the model, y and weights: `features`, in the pipeline

A batch of a dataset, a PyDataset or a generator becomes rows and arrays in the same way, while it is read.

Each kind of model has a reader of its own, beside the model; the reader of classifiers is here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf2.api import data_warnings, targets, text_rows
from bert_tf2.api.cut_texts import CutTexts
from bert_tf2.api.text_rows import Batches, Rows, has_batches, has_ids
from bert_tf2.config import BertConfig
from bert_tf2.exporting.tokenize_layer import Tokenize, columns_of
from bert_tf2.shapes import Contract
from bert_tf2.support import containers
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import check_type
from bert_tf2.weights.task_file import LabelMap

_FEW_BATCHES = 64  # on a CPU, a generator gives them before a pipeline gives its first batch


class Reader:
    """The base of all readers. A kind has its own `rows` and `features`, and others of the first methods as needed.

    Attributes:
      needs_y: whether a training needs `y`.
    """

    needs_y = True

    def __init__(self, tokenize: Tokenize):
        self.tokenize = tokenize

    def rows(self, x: Any, y: Any = None, sample_weight: Any = None) -> Rows:
        """Reads and checks texts, answers and weights in any container without batches. Raises UserError."""
        raise NotImplementedError

    def arrays(self, rows: Rows) -> tuple:
        """The parts of a batch that are given, as arrays [rows of the batch, ...], or tuples or dicts of arrays."""
        raise NotImplementedError

    def features(self, x: Any, *others: tf.Tensor) -> tuple[tuple, tf.Tensor]:
        """Converts a batch of `arrays` to (input of the model, y, weights); also which texts are cut, bool [B] or [0].

        Runs in a graph.
        """
        raise NotImplementedError

    def parts(self, batch: Any) -> tuple:
        """x, y and sample_weight of a batch, as far as it has them."""
        parts = containers.parts_of(batch)
        if isinstance(parts[0], bytes) or (isinstance(parts[0], str) and len(parts) > 1):
            raise UserError("x: is a single text; give batches: dataset.batch(32), or (list of texts, list of labels)")
        if len(parts) > 3:
            raise UserError(f"x: a batch has {len(parts)} parts; give (x, y) or (x, y, sample_weight)")
        return parts

    def of_batch(self, batch: Any) -> tuple:
        """`arrays` for a batch of a dataset, a PyDataset or a generator."""
        return self.arrays(self.rows(*self.parts(batch)))

    def of_batches(self, x: Any, batch_size: int, shuffle: bool, most: int | None) -> Batches:
        """The batches of a dataset, a PyDataset or a generator, in the form of `arrays`; see `batches`."""
        return text_rows.read_batches(x, self.of_batch, shuffle, most)

    def of_rows(self, rows: Rows, batch_size: int, shuffle: bool) -> Batches:
        arrays = self.arrays(rows)
        count = len(tf.nest.flatten(arrays)[0])
        data = tf.data.Dataset.from_tensor_slices(arrays)
        data = (data.shuffle(count) if shuffle and count else data).batch(batch_size)
        return Batches(data, tf.nest.map_structure(lambda part: part[:batch_size], arrays) if count else None)

    def of_validation(self, given: Any) -> tuple[Any, Any, Any]:
        """x, y and sample_weight in `validation_data`: (x, y), (x, y, sample_weight) or a dataset."""
        if has_batches(given):
            return given, None, None
        if not (isinstance(given, tuple | list) and len(given) in (2, 3)):
            raise UserError("validation_data: must be (x, y), (x, y, sample_weight) or a dataset of these")
        return (*given, None)[:3]

    def warn(self, given: Any, first: tuple) -> None:
        """Warns of data from which a training learns nothing.

        `given`: the result of `read`. `first`: the first batch of the model's input, y and weights.
        """
        if isinstance(given, Rows) and given.y is not None:
            data_warnings.of_answers(given.y)
        data_warnings.of_words(first[0], self.tokenize.tokenizer)

    # The same for all kinds

    def needed(self, y: Any) -> Any:
        """Returns `y`. Raises UserError if a training needs `y` and has none."""
        if y is None and self.needs_y:
            raise UserError("y: is missing; give an answer for each row of x, in a batch as (x, y)")
        return y

    def read(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Rows; or `x` itself if it has batches, which are read on the way."""
        if not has_batches(x):
            rows = self.rows(x, y if sample_weight is None else self.needed(y), sample_weight)
            if rows.weights is not None and len(rows.weights) and not rows.weights.any():
                raise UserError("sample_weight: is 0 for all rows, so no row counts; give some rows a weight above 0")
            return rows
        if y is not None or sample_weight is not None:
            name = "sample_weight" if y is None else "y"
            raise UserError(f"{name}: x has batches, so put {name} into each batch: (x, y, sample_weight)")
        return x

    def batches(self, given: Any, batch_size: int | None, shuffle: bool = False, most: int | None = None) -> Batches:
        """The result of `read` in batches; a generator is read for `most` batches."""
        batch_size = check_type("batch_size", 32 if batch_size is None else batch_size, int, low=1)
        if isinstance(given, Rows):
            return self.of_rows(given, batch_size, shuffle)
        return self.of_batches(given, batch_size, shuffle, most)

    def pipeline(self, data: tf.data.Dataset, cut: CutTexts | None = None, trains: bool = False) -> tf.data.Dataset:
        """The input of the model for batches of `arrays`; see `mapped`. `trains`: whether a training reads it."""
        return mapped(data, self.features, cut)

    @functools.cached_property
    def _graph(self) -> Callable[..., tuple]:
        def features(arrays: tuple) -> tuple:  # one argument, because TensorFlow relaxes no varying number of them
            return self.features(*arrays)[0]

        return tf.function(features, autograph=False, reduce_retracing=True)

    def at_once(self, arrays: tuple, trains: bool = False) -> tuple:
        """The input of the model for one batch of `arrays`, without a pipeline, which takes a while to begin."""
        return self._graph(tf.nest.map_structure(tf.convert_to_tensor, arrays))

    def answered(self, given: Any, batches: Batches) -> tf.data.Dataset:
        """The same as `pipeline` for batches of `given` without a training.

        A pipeline takes a while to begin, so a few batches of rows in memory come from a generator, in one thread.
        """
        data = batches.data
        if not isinstance(given, Rows) or data.cardinality() > _FEW_BATCHES:
            return self.pipeline(data)
        found = self._graph.get_concrete_function(data.element_spec).structured_outputs
        spec = tf.nest.map_structure(lambda part: tf.TensorSpec(part.shape, part.dtype), found)

        def elements() -> Iterator[tuple]:
            yield from map(self._graph, data)

        made = tf.data.Dataset.from_generator(elements, output_signature=spec).prefetch(tf.data.AUTOTUNE)
        return made.apply(tf.data.experimental.assert_cardinality(data.cardinality()))


@tf.autograph.experimental.do_not_convert  # not needed without loops over tensors, and it takes seconds
def mapped(data: tf.data.Dataset, features: Callable[..., tuple], cut: CutTexts | None) -> tf.data.Dataset:
    """Batches, each converted by `features`, a function like Reader.features; `cut` counts the texts that are cut."""

    def element(number: tf.Tensor, arrays: tuple) -> tuple:
        found, are_cut = features(*arrays)
        return found, number, are_cut

    def counted(found: tuple, number: tf.Tensor, are_cut: tf.Tensor) -> tuple:
        if cut:
            cut.add(number, are_cut)
        return found

    return data.enumerate().map(element, tf.data.AUTOTUNE).map(counted).prefetch(tf.data.AUTOTUNE)


class TextReader(Reader):
    """Reads texts and pairs, or the arrays of `Bert.tokenize`, with labels or numbers."""

    def __init__(self, tokenize: Tokenize, config: BertConfig, label_map: LabelMap, loss: Any):
        super().__init__(tokenize)
        self._config, self._label_map = config, label_map
        self._targets = targets.Targets.of(label_map, loss)

    def rows(self, x: Any, y: Any = None, sample_weight: Any = None) -> Rows:
        x = _checked_ids(x, self._config) if has_ids(x) else containers.texts(x, "x")[0]
        y = None if y is None else self._targets.array(y)
        return Rows(x, y, targets.weights_of_rows(sample_weight)).counted()

    def read(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        given = super().read(x, y, sample_weight)
        if isinstance(given, Rows):
            data_warnings.of_pairs(given.x, self._label_map.labels)
        return given

    def arrays(self, rows: Rows) -> tuple:
        """x: a tuple of one or two columns, strings [N] each, or a dict of ids."""
        x = rows.x if has_ids(rows.x) else columns_of(rows.x)
        return tuple(part for part in (x, rows.y, rows.weights) if part is not None)

    def of_batches(self, x: Any, batch_size: int, shuffle: bool, most: int | None) -> Batches:
        def read(batch: Any) -> tuple:
            """Always two columns, because only some batches of a generator may have pairs."""
            x, *others = self.of_batch(batch)
            return (x if has_ids(x) or len(x) > 1 else (*x, np.full(len(x[0]), "", object)), *others)

        return text_rows.read_batches(x, self.of_batch if isinstance(x, tf.data.Dataset) else read, shuffle, most)

    def features(self, x: Any, *others: tf.Tensor) -> tuple[tuple, tf.Tensor]:
        found, are_cut = (x, tf.zeros([0], tf.bool)) if has_ids(x) else self.tokenize.with_cut(x)
        return (found, *others), are_cut

    def warn(self, given: Any, first: tuple) -> None:
        super().warn(given, first)
        if isinstance(given, Rows) and not has_ids(given.x):
            data_warnings.of_empty(given.x)


def _checked_ids(x: Mapping[str, Any], config: BertConfig) -> dict[str, np.ndarray]:
    """The arrays of `Bert.tokenize`, [B, F] each. Raises UserError for ids that the model does not know."""
    contract = Contract()
    for name, meaning, size in (
        ("input_ids", "the ids of the vocabulary", config.vocab_size),
        ("input_mask", "the values of a mask", 2),
        ("segment_ids", "the segments of the model", config.type_vocab_size),
    ):
        if name in x:
            contract.check("BF", **{name: x[name]})
            values = np.asarray(x[name])
            if (wrong := values[(values < 0) | (values >= size)]).size:
                raise UserError(f"x: {name} has {wrong[0]}, and {meaning} are 0 to {size - 1}")
    return {name: np.asarray(values) for name, values in x.items()}

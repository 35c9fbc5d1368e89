"""The readers of the models of texts: from texts and answers to the batches that a model learns from.

    x, y, sample_weight  ->  rows        checked; an entry for each text, pair or sentence; can be divided
                         ->  arrays      an entry for each row of a batch, such as a window of a sentence
                         ->  batches     of tf.data, of any of these containers
                         ->  the input   of the model, y and weights: `features`, in the pipeline

Each kind of model has a reader of its own, beside the model; the reader of classifiers is here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf2.api import targets, text_rows
from bert_tf2.api.text_parts import CutTexts
from bert_tf2.api.text_rows import Batches, Rows, has_batches, has_ids
from bert_tf2.config import BertConfig
from bert_tf2.data.rows import INPUTS
from bert_tf2.exporting.tokenize_layer import Tokenize, columns
from bert_tf2.shapes import Contract
from bert_tf2.support import containers
from bert_tf2.support.errors import UserError
from bert_tf2.weights import text_rules
from bert_tf2.weights.task_file import LabelMap

_FEW_BATCHES = 64  # on a CPU, a generator gives them before a pipeline gives its first batch
_SAMPLE = 256  # texts whose words are looked for in the vocabulary before a training


class Reader:
    """The base of all readers. A kind has its own `rows` and `features`, and others of the first methods as needed.

    Attributes:
      needs_y: whether a training needs `y`.
      cuts_texts: whether texts are cut to the length of a row.
    """

    needs_y = True
    cuts_texts = True

    def __init__(self, tokenize: Tokenize):
        self.tokenize = tokenize

    def rows(self, x: Any, y: Any, sample_weight: Any) -> Rows:
        """Reads and checks texts, answers and weights in any container without batches. Raises UserError."""
        raise NotImplementedError

    def arrays(self, rows: Rows) -> tuple:
        """The parts of a batch that are given, as arrays [rows of the batch, ...], or tuples or dicts of arrays."""
        return tuple(part for part in rows if part is not None)

    def of_batches(self, x: Any, batch_size: int, shuffle: bool, most: int | None) -> Batches:
        """The batches of a dataset, a PyDataset or a generator, in the form of `arrays`; see `batches`."""
        if isinstance(x, tf.data.Dataset):
            data = self.of_dataset(x)
            return Batches(data, data.take(1))
        return text_rows.read_batches(x, self.of_batch, shuffle, most)

    def of_dataset(self, data: tf.data.Dataset) -> tf.data.Dataset:
        return data

    def of_batch(self, x: Any, y: Any = None, sample_weight: Any = None) -> tuple:
        """`arrays` for a batch of a PyDataset or a generator."""
        return self.arrays(self.rows(x, y, sample_weight))

    def features(self, x: Any, *others: tf.Tensor) -> tuple[tuple, tf.Tensor]:
        """Converts a batch of `arrays` to (input of the model, y, weights); also which texts are cut, bool [B] or [0].

        Runs in a graph.
        """
        raise NotImplementedError

    def of_validation(self, given: Any) -> tuple[Any, Any, Any]:
        """x, y and sample_weight in `validation_data`: (x, y), (x, y, sample_weight) or a dataset."""
        if has_batches(given):
            return given, None, None
        if not (isinstance(given, tuple | list) and len(given) in (2, 3)):
            raise UserError("validation_data: must be (x, y), (x, y, sample_weight) or a dataset of these")
        return (*given, None)[:3]

    # The same for all kinds

    def needed(self, y: Any, x: Any = None) -> Any:
        """Returns `y`. Raises UserError if a step needs `y` and has none, or if `x` of a single step has batches."""
        if self.needs_y and has_batches(x):
            raise UserError("x: has batches; give x and y of one batch to one step, or x to `fit` or `evaluate`")
        if y is None and self.needs_y:
            raise UserError("y: is missing; give an answer for each row of x")
        return y

    def read(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Rows; or `x` itself if it has batches, which are read on the way."""
        if not has_batches(x):
            rows = self.rows(x, y, sample_weight)
            if rows.weights is not None and len(rows.weights) and not rows.weights.any():
                raise UserError("sample_weight: is 0 for all rows, so no row counts; give some rows a weight above 0")
            return rows
        if y is not None or sample_weight is not None:
            name = "sample_weight" if y is None else "y"
            raise UserError(f"{name}: x has batches, so put {name} into each batch: (x, y, sample_weight)")
        return x

    def learned(self, given: Any) -> Any:
        """Returns the result of `read` for a training; warns if all rows, or all words, have the same answer."""
        y = given.y if self.needs_y and isinstance(given, Rows) and given.y is not None else ()
        answers = [tag for tags in y for tag in tags] if len(y) and isinstance(y[0], list) else y
        if len(answers) > 1 and np.all(np.asarray(answers) == answers[0]):
            logging.warning("y: all %d answers are equal, so the model learns only to give this answer", len(answers))
        return given

    def divided(self, share: float, rows: Any) -> tuple[Rows, Rows]:
        """The rows for the training and for the validation."""
        parts = text_rows.divide(share, rows)
        self.needed(rows.y)
        return parts

    def batches(self, given: Any, batch_size: int, shuffle: bool = False, most: int | None = None) -> Batches:
        """The result of `read` in batches; a generator is read for `most` batches."""
        if isinstance(given, Rows):
            return self.of_rows(given, batch_size, shuffle)
        return self.of_batches(given, batch_size, shuffle, most)

    def of_rows(self, rows: Rows, batch_size: int, shuffle: bool) -> Batches:
        arrays = self.arrays(rows)
        count = len(tf.nest.flatten(arrays)[0])
        data = tf.data.Dataset.from_tensor_slices(arrays)
        data = (data.shuffle(count) if shuffle and count else data).batch(batch_size)
        return Batches(data, data.take(1))

    @tf.autograph.experimental.do_not_convert  # not needed without loops over tensors, and it takes seconds
    def pipeline(self, data: tf.data.Dataset, cut: CutTexts | None = None, trains: bool = False) -> tf.data.Dataset:
        """The input of the model for batches of `arrays`.

        `cut` counts the texts that are cut. `trains`: whether a training reads the batches.
        """
        if cut and not self.cuts_texts:
            cut.none_are_cut, cut = True, None

        def element(number: tf.Tensor, rows: Any) -> tuple:
            found, are_cut = self.features(*(rows if isinstance(rows, tuple) else (rows,)))
            return found, number, are_cut

        def counted(found: tuple, number: tf.Tensor, are_cut: tf.Tensor) -> tuple:
            if cut:
                cut.add(number, are_cut)
            return found

        return data.enumerate().map(element, tf.data.AUTOTUNE).map(counted).prefetch(tf.data.AUTOTUNE)

    @functools.cached_property
    def _graph(self) -> Callable[..., tuple]:
        def features(arrays: tuple) -> tuple:  # one argument, because TensorFlow relaxes no varying number of them
            return self.features(*arrays)[0]

        return tf.function(features, autograph=False, reduce_retracing=True)

    def at_once(self, data: tf.data.Dataset, trains: bool = False) -> tuple:
        """The input of the model for the first batch of `arrays`, without a pipeline, which takes a while to begin."""
        with text_rows.in_one_line():
            batch = next(iter(data))
            return self._graph(batch if isinstance(batch, tuple) else (batch,))

    def answered(self, given: Any, batches: Batches) -> tf.data.Dataset:
        """The same as `pipeline` for batches of `given` without a training.

        A pipeline takes a while to begin, so a few batches of rows in memory come from a generator, in one thread.
        """
        data, parts = batches.data, batches.data.element_spec
        if data.cardinality() == 1:  # a server gives few texts at once
            return tf.data.Dataset.from_tensors(self.at_once(data))
        if not isinstance(given, Rows) or data.cardinality() > _FEW_BATCHES:
            return self.pipeline(data)
        found = self._graph.get_concrete_function(parts if isinstance(parts, tuple) else (parts,)).structured_outputs
        spec = tf.nest.map_structure(lambda part: tf.TensorSpec(part.shape, part.dtype), found)

        def elements() -> Iterator[tuple]:
            for batch in data:
                yield self._graph(batch if isinstance(batch, tuple) else (batch,))

        made = tf.data.Dataset.from_generator(elements, output_signature=spec).prefetch(tf.data.AUTOTUNE)
        return made.apply(tf.data.experimental.assert_cardinality(data.cardinality()))


class TextReader(Reader):
    """Reads texts and pairs, or the arrays of `Bert.tokenize`, with labels or numbers."""

    def __init__(self, tokenize: Tokenize, config: BertConfig, label_map: LabelMap, loss: Any):
        super().__init__(tokenize)
        self._config, self._label_map = config, label_map
        self._targets = targets.Targets.of(label_map, loss)

    def rows(self, x: Any, y: Any = None, sample_weight: Any = None) -> Rows:
        """x: strings [N], or a tuple of two such columns, or a dict of ids."""
        if has_ids(x):
            for name in x.keys() & {*INPUTS}:
                Contract().check("BF", **{name: x[name]})
            given = {name: np.asarray(values) for name, values in x.items()}
        else:
            given = columns(text_rows.warn_of_labels(containers.texts(x, "x")[0], self._label_map.labels))
            given = given[0] if len(given) == 1 else given
        y = None if y is None else self._targets.array(y)
        return Rows(given, y, targets.weights_of_rows(sample_weight)).counted()

    def learned(self, given: Any) -> Any:
        if isinstance(given, Rows) and not has_ids(given.x):
            columns = given.x if isinstance(given.x, tuple) else (given.x,)
            empty = np.all([tf.strings.length(tf.strings.strip(column)).numpy() == 0 for column in columns], axis=0)
            if empty.any():
                logging.warning("x: %d of %d texts are empty; leave these rows out", empty.sum(), len(empty))
            first, _ = self.tokenize.with_cut([column[:_SAMPLE] for column in columns])
            ids = tf.boolean_mask(first["input_ids"], first["input_mask"] > 0).numpy()
            text_rules.check_unknown_ids("x, the first texts", ids, self.tokenize.tokenizer)
        return super().learned(given)

    def divided(self, share: float, rows: Any) -> tuple[Rows, Rows]:
        parts = super().divided(share, rows)
        targets.warn_of_sorted(*(part.y for part in parts), self._label_map.labels)
        return parts

    def of_batch(self, x: Any, y: Any = None, sample_weight: Any = None) -> tuple:
        """Always two columns, because only some batches may have pairs."""
        rows = self.rows(x, y, sample_weight)
        is_column = isinstance(rows.x, tf.Tensor)
        return self.arrays(rows._replace(x=(rows.x, tf.fill([len(rows.x)], ""))) if is_column else rows)

    def of_dataset(self, data: tf.data.Dataset) -> tf.data.Dataset:
        return targets.clear(data, self._label_map)

    def features(self, x: Any, *others: tf.Tensor) -> tuple[tuple, tf.Tensor]:
        if has_ids(x):
            x, are_cut = text_rows.ids_in_range(x, self._config), tf.zeros([0], tf.bool)
        else:
            x, are_cut = self.tokenize.with_cut(text_rows.texts_in_graph(x))
        weights = [targets.weights_in_graph(weight) for weight in others[1:]]
        return ((x, self._targets.tensor(others[0]), *weights) if others else (x,)), are_cut

"""Forward passes without training, on all replicas, with the results in the order of the rows.

    Runner:      a data set -> the outputs of the model for each batch
    in_order:    rows -> windows -> batches of like length -> results in the order of the rows
    graph_of:    a function of a model and a batch -> a graph that runs it on every replica
    on_batches:  a graph -> a function of batches; if XLA compiles the graph, of batches of few sizes

The rows of `in_order` come one by one, perhaps from someone who types them, so no row is read before its window needs
it. `data.batching` makes batches of like length of data sets, inside the pipeline.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf2.data.batching import with_packed_rows
from bert_tf2.data.records import PACKED
from bert_tf2.fast import compiled
from bert_tf2.fast.encoder import accelerated, plan_of
from bert_tf2.heads import Batch
from bert_tf2.support.errors import UserError
from bert_tf2.support.process import check_process
from bert_tf2.training.options import Program
from bert_tf2.training.programs import Filling

Row = TypeVar("Row")
Result = TypeVar("Result")

# A part of the name of every operation that takes an element from an iterator. TensorFlow's messages contain the name.
_OF_ITERATOR = "GetNext"
_PLAIN = Program()


@contextlib.contextmanager
def explained(explain: Callable[[], UserError | None]):
    """Converts a failure to read the data into an error that names the file and the record.

    An error of the model's own operations is not converted, because a search of all records could take hours.
    """
    try:
        yield
    except (
        tf.errors.InvalidArgumentError,
        tf.errors.DataLossError,
        tf.errors.OutOfRangeError,
        StopIteration,
        UnicodeDecodeError,  # TensorFlow fails to format its message about a record that is not an Example
    ) as error:
        if isinstance(error, tf.errors.InvalidArgumentError) and _OF_ITERATOR not in str(error):
            raise
        logging.info("The data cannot be read; looking for the record at fault")
        reason = explain()
        if reason is None:
            raise
        raise reason from error


class Runner:
    """Runs a model over data sets, without dropout; all data sets share one graph."""

    def __init__(self, model, strategy: tf.distribute.Strategy):
        self._strategy = strategy
        # Only the chief of several workers evaluates. Each of its devices computes the whole batch, without the others.
        self._is_chief = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self._of_all_widths = plan_of(model).attention is None  # whether one graph computes them; see fused_attention

        @tf.function(reduce_retracing=self._of_all_widths, autograph=False)
        def step(batch, is_compiled: bool):
            outputs = model.outputs
            if is_compiled:  # each replica has a program of its own, which refers to the replica's variables
                outputs = compiled.as_program(outputs, of_evaluation=True)
            found = strategy.run(lambda part: {**part, **outputs(part)}, args=(batch,))
            return {name: values for name, values in found.items() if name not in PACKED}

        self._step = step

    def run(
        self,
        dataset: tf.data.Dataset,
        batch_size: int = 0,
        program: Program = _PLAIN,
        explain: Callable[[], UserError | None] = lambda: None,
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields for every batch its features and the model's `outputs`, as arrays with a row per example, in order.

        Args:
          dataset: batches of features.
          batch_size: the rows of a batch. If XLA compiles the model, batches with fewer rows are filled up, because XLA
            would compile the model again for another shape.
          program: from programs.program_for.
          explain: finds the invalid record if the data cannot be read.
        """
        if program.is_compiled:
            message = "Compiling the model's answers with XLA, unless an earlier run has kept the programs"
            logging.log_first_n(logging.INFO, message, 1)
            dataset = dataset.map(functools.partial(_filled, size=batch_size))
        if program.packs:
            dataset = with_packed_rows(dataset)
        iterator = iter(dataset if self._is_chief else self._strategy.experimental_distribute_dataset(dataset))
        if program.is_compiled and self._of_all_widths:  # has one name in TensorFlow's cache for any first width
            self._step.get_concrete_function(iterator.element_spec, True)
        while True:
            with explained(explain):
                batch = next(iterator, None)
            if batch is None:
                return
            found = self._step(batch, program.is_compiled)
            found = {name: self._strategy.experimental_local_results(v) for name, v in found.items()}
            rows = {
                name: np.concatenate([part.numpy() for part in (parts[:1] if self._is_chief else parts)])
                for name, parts in found.items()
            }
            real = rows.pop(_IS_REAL, None)
            yield rows if real is None else {name: values[real] for name, values in rows.items()}


_IS_REAL = "is_real_row"


def _filled(batch: Batch, size: int) -> dict[str, tf.Tensor]:
    """The batch with copies of the last row up to `size` rows, and with `is_real_row`, bool [size]."""
    rows = tf.shape(next(iter(batch.values())))[0]
    numbers = tf.range(size)
    filled = {name: tf.gather(values, tf.minimum(numbers, rows - 1)) for name, values in batch.items()}
    return {**filled, _IS_REAL: numbers < rows}


def in_order(
    rows: Iterable[Row],
    length: Callable[[Row], int],
    compute: Callable[[Sequence[Row]], Iterable[Result]],
    batch_size: int,
    most_tokens: int,
) -> Iterator[Result]:
    """Computes rows in batches of like length, which have little padding; yields the result of each row, in order.

    One window of the rows is in memory. A window ends with the first full batch with which it has `most_tokens` tokens;
    `length` returns the number of tokens of a row. `compute` returns a result for each row of a batch.
    """
    if not tf.executing_eagerly():
        raise UserError(
            "texts cannot be read within tf.function, or a function of tf.data; call this outside of the function, or"
            " give the encoder the result of `tokenize`"
        )
    for window in _windows(rows, length, batch_size, most_tokens):
        order = sorted(range(len(window)), key=lambda index: length(window[index]))
        results: list[Any] = [None] * len(window)
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            found = compute([window[index] for index in chosen])
            for index, result in zip(chosen, found, strict=True):
                results[index] = result
        yield from results


def _windows(
    rows: Iterable[Row], length: Callable[[Row], int], batch_size: int, most_tokens: int
) -> Iterator[list[Row]]:
    window: list[Row] = []
    tokens = 0
    try:
        for row in rows:
            window.append(row)
            tokens += length(row)
            if tokens >= most_tokens and len(window) % batch_size == 0:  # full batches have one shape fewer for a TPU
                yield window
                window, tokens = [], 0
    except UserError:
        if window:
            yield window
        raise
    if window:
        yield window


def graph_of(function: Callable) -> Callable:
    """Decorates a function (model, *settings, batch) of a model of `heads` to be a graph for `on_batches`.

    The graphs are cached for later calls with the same model and settings, and released together with the model.
    """

    @tf.function(autograph=False)
    def graph(model, *others):
        *settings, is_compiled, parts = others

        def compute(batch: Batch) -> Any:
            return function(model, *settings, batch)

        with accelerated(model):
            return on_replicas(model.distribute_strategy, compute, is_compiled, parts)

    return graph


def on_batches(
    graph: Callable, model: keras.Model, *settings: Any, names: Sequence[str], filling: Filling | None
) -> Callable[[Mapping[str, np.ndarray]], Any]:
    """A function of batches, int [B, ...] by name, that runs a graph: (model, *settings, whether XLA compiles, parts).

    `filling`: None if XLA does not compile; then the graph is traced once, for all sizes. Results may have more rows
    than the batch, and be wider. Raises UserError in a fork; see check_process.
    """
    check_process()
    strategy = model.distribute_strategy
    if filling:
        return lambda batch: graph(model, *settings, True, in_parts(strategy, filling.fill(batch)))
    shapes = [{name: tf.TensorSpec([None, None], tf.int32) for name in names}] * strategy.num_replicas_in_sync
    traced = graph.get_concrete_function(model, *settings, False, shapes)
    return lambda batch: traced(model, *settings, False, in_parts(strategy, batch))


def on_replicas(
    strategy: tf.distribute.Strategy, function: Callable[[Batch], Any], is_compiled: bool, parts: Sequence[Batch]
) -> Any:
    """Runs a function on every replica, inside a graph: a batch for each replica -> tensors with the rows of all."""
    if is_compiled:  # each replica has a program of its own, which refers to the replica's variables
        function = compiled.as_program(function)
    if len(parts) == 1:
        batch = parts[0]
    else:
        batch = strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )
    found = strategy.run(function, args=(batch,))
    return tf.nest.map_structure(lambda value: tf.concat(strategy.experimental_local_results(value), axis=0), found)


def in_parts(strategy: tf.distribute.Strategy, batch: Mapping[str, np.ndarray]) -> list[Batch]:
    """Divides the rows of a batch among the replicas; copies of the last row, at the end, make parts of equal size."""
    replicas = strategy.num_replicas_in_sync
    parts: list[dict[str, tf.Tensor]] = [{} for _ in range(replicas)]
    for name, values in batch.items():
        full = np.concatenate([values, *[values[-1:]] * (-len(values) % replicas)])
        for part, rows in zip(parts, np.split(full, replicas), strict=True):
            part[name] = tf.constant(rows, tf.int32)
    return parts

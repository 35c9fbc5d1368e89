"""Runs a model over a data set without training it; errors of reading name the file and the record."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf2.support.errors import UserError


@contextlib.contextmanager
def explained(explain: Callable[[], UserError | None]):
    """Turns a failure to read the data into an error that names file and record."""
    try:
        yield
    except (
        tf.errors.InvalidArgumentError,
        tf.errors.DataLossError,
        tf.errors.OutOfRangeError,
        StopIteration,
        UnicodeDecodeError,  # TensorFlow fails to tell what is wrong with a record that is no Example
    ) as error:
        logging.info("The data cannot be read; looking for the record at fault")
        reason = explain()
        if reason is None:
            raise
        raise reason from error


class Runner:
    """Runs a model over data sets, without dropout. One graph serves all of them."""

    def __init__(self, model, strategy: tf.distribute.Strategy):
        self._strategy = strategy

        @tf.function(reduce_retracing=True)
        def step(batch):
            return strategy.run(lambda part: {**part, **model.outputs(part)}, args=(batch,))

        self._step = step

    def run(
        self, dataset: tf.data.Dataset, *, explain: Callable[[], UserError | None] = lambda: None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields what the model says of each batch.

        Yields:
          For every batch, in order: the batch's own features and the model's `outputs`, as arrays with a row per
          example in the order of the data, whatever the number of replicas.

        Raises:
          UserError: the data cannot be read; `explain` says why.
        """
        iterator = iter(self._strategy.experimental_distribute_dataset(dataset))
        while True:
            with explained(explain):
                batch = next(iterator, None)
            if batch is None:
                return
            yield {
                name: np.concatenate([part.numpy() for part in self._strategy.experimental_local_results(value)])
                for name, value in self._step(batch).items()
            }

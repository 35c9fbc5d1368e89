"""Runs a model over a data set without training; read errors name the file and the record."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf2.support.errors import UserError

# In the name of every operation that takes an element from an iterator, which messages contain.
_OF_ITERATOR = "GetNext"


@contextlib.contextmanager
def explained(explain: Callable[[], UserError | None]):
    """Converts a failure to read the data into an error that names the file and the record.

    An invalid argument of the model itself is none: to search all records for a reason could take hours.
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
    """Runs a model over data sets, without dropout; all of them share one graph."""

    def __init__(self, model, strategy: tf.distribute.Strategy):
        self._strategy = strategy

        @tf.function(reduce_retracing=True, autograph=False)
        def step(batch):
            return strategy.run(lambda part: {**part, **model.outputs(part)}, args=(batch,))

        self._step = step

    def run(
        self, dataset: tf.data.Dataset, *, explain: Callable[[], UserError | None] = lambda: None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the outputs of the model for each batch.

        Yields:
          For every batch, in order: the batch's own features and the model's `outputs`, as arrays with a row per
          example in the order of the data, for any number of replicas.

        Raises:
          UserError: the data cannot be read; the error of `explain`, if it returns one.
        """
        iterator = iter(self._distribute(dataset))
        while True:
            with explained(explain):
                batch = next(iterator, None)
            if batch is None:
                return
            yield {
                name: np.concatenate([part.numpy() for part in self._strategy.experimental_local_results(value)])
                for name, value in self._step(batch).items()
            }

    def _distribute(self, dataset: tf.data.Dataset):
        """The dataset for the replicas; under a strategy of several workers, for those of this process alone."""
        if not isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return self._strategy.experimental_distribute_dataset(dataset)
        devices = len(self._strategy.extended.worker_devices)
        return dataset if devices == 1 else (divided(self._strategy, batch, devices) for batch in dataset)


def divided(strategy: tf.distribute.Strategy, batch: Mapping[str, tf.Tensor], devices: int):
    """A batch of [B, ...] in parts for the devices of this process, without asking other workers; B >= 1.

    The last ones may have no rows.
    """
    rows = next(iter(batch.values())).shape[0]
    ends = [rows * number // devices for number in range(devices + 1)]

    def part(context: tf.distribute.ValueContext) -> dict[str, tf.Tensor]:
        number = context.replica_id_in_sync_group % devices
        return {name: values[ends[number] : ends[number + 1]] for name, values in batch.items()}

    return strategy.experimental_distribute_values_from_function(part)

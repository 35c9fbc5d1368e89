"""A Keras model whose long runs XLA compiles on a GPU, for few widths of batches."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from bert_tf2.training import forward
from bert_tf2.training.devices import compiles_step


class LongRuns(keras.Model):
    """The base of the models of texts; they have the attributes `model`, a model of `heads`, and `tokenize`.

    By `jit_compile="auto"`, Keras would compile each run on a GPU, again for every width of a batch.
    """

    jit_setting: Any = "auto"  # the argument `jit_compile` of `compile`, which gives Keras itself only True or False

    @contextlib.contextmanager
    def compiled_if_long(self, steps: int, *datasets: tf.data.Dataset | None) -> Iterator[list[tf.data.Dataset | None]]:
        """A context in which Keras runs a program of XLA if there are many steps; see devices.compiles_step.

        Returns the datasets, with few widths of batches if XLA compiles; None stays None. `steps`: negative if unknown.
        """
        strategy = self.distribute_strategy
        may = self.jit_setting == "auto" and not (self.run_eagerly or self.model.windows)
        may = may and strategy.num_replicas_in_sync == 1
        if not (may and compiles_step(strategy, "auto", steps, widths=forward.WIDTHS)):
            yield [*datasets]
            return
        self._switch(True)
        try:
            yield [
                data and data.map(self.with_few_widths, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
                for data in datasets
            ]
        finally:
            self._switch(False)

    def _switch(self, compiles: bool) -> None:
        self.jit_compile = compiles
        self.train_function = self.test_function = self.predict_function = None  # Keras makes them when it needs them

    @tf.autograph.experimental.do_not_convert
    def with_few_widths(self, x: dict[str, tf.Tensor], *others: tf.Tensor) -> tuple[Any, ...]:
        """A batch of `dataset`, with zeros behind ids, int [..., F], and behind the labels and weights of tokens.

        F becomes a multiple of forward.width_step, or the most tokens that the model reads.
        """
        width, longest = tf.shape(x["input_ids"])[-1], self.model.config.max_position_embeddings
        wide = functools.partial(
            widened, more=tf.minimum(-width % forward.width_step(self.tokenize.max_seq_length), longest - width)
        )
        others = map(wide, others) if self.model.labeled == "tokens" else others
        return ({name: wide(values) for name, values in x.items()}, *others)


def widened(values: tf.Tensor, more: tf.Tensor) -> tf.Tensor:
    """[..., W] -> [..., W + more], zeros at the end."""
    return tf.pad(values, [*[[0, 0]] * (values.shape.rank - 1), [0, more]])

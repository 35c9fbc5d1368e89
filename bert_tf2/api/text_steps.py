"""The steps of Keras' loops for the models of texts: how often they are traced or compiled, and a teacher's loss."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from bert_tf2.api.bert import Bert
from bert_tf2.api.text_parts import ALPHA, TEMPERATURE
from bert_tf2.api.text_rows import check_end, every_row, has_batches, in_one_line
from bert_tf2.fast.encoder import plan_of
from bert_tf2.finetuning.distillation import Teacher, check_teacher
from bert_tf2.finetuning.options import TeacherOptions
from bert_tf2.support.errors import UserError, naming_arguments
from bert_tf2.training import programs
from bert_tf2.training.keras_optimizer import AdamWeightDecay, WarmupAndDecay

# Before, Keras fetched batches within the function that it traced, and its shapes did not depend on the batch.
_FETCHES_BATCHES_OUTSIDE = tuple(map(int, keras.__version__.split(".")[:2])) >= (3, 16)


class TextSteps(keras.Model):
    """The base of `TextModel`, whose attributes it uses.

    By `jit_compile="auto"`, Keras would compile each run on a GPU, again for every width of a batch.
    """

    jit_setting: Any = "auto"  # the argument `jit_compile` of `compile`, which gives Keras itself only True or False
    _step: Callable | None = None  # of the training, where `fit` traces it itself

    @property
    def _row_length(self) -> int:
        """The most tokens that the encoder reads at once, of a text or of a window of a text."""
        return self.model.windows.length if self.model.windows else self.tokenize.max_seq_length

    @contextlib.contextmanager
    def compiled_if_long(self, steps: int, *datasets: tf.data.Dataset | None) -> Iterator[list[tf.data.Dataset | None]]:
        """A context in which Keras runs a program of XLA if there are many steps; see programs.compiles_step.

        Returns the datasets, with few widths of batches if XLA compiles; None stays None. `steps`: negative if unknown.
        """
        strategy = self.distribute_strategy
        may = self.jit_setting == "auto" and not (self.run_eagerly or self.model.windows)
        may = may and strategy.num_replicas_in_sync == 1
        if not (may and programs.compiles_step(strategy, "auto", steps, sizes=programs.SIZES)):
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

        F becomes a multiple of programs.width_step, or the most tokens that the model reads.
        """
        width, longest = tf.shape(x["input_ids"])[-1], self.model.config.max_position_embeddings
        wide = functools.partial(
            widened, more=tf.minimum(-width % programs.width_step(self.tokenize.max_seq_length), longest - width)
        )
        others = map(wide, others) if self.model.labeled == "tokens" else others
        return ({name: wide(values) for name, values in x.items()}, *others)

    def _plan(self, steps: int | None, epochs: int, callbacks: Any) -> None:
        others = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)
        if any(isinstance(callback, others) for callback in keras.tree.flatten(callbacks)):
            instead = f"compile(bert_tf2.AdamWeightDecay({self._rate:g}))"
            raise UserError(f"callbacks: the recipe has its own schedule of the rate; {instead} has none")
        if not steps:
            raise UserError(
                "x: the dataset has an unknown number of batches; give steps_per_epoch, or apply"
                " tf.data.experimental.assert_cardinality"
            )
        self._begin(WarmupAndDecay(self._rate, steps * epochs, steps * epochs // 10))
        self._is_planned = True

    def _begin(self, rate: float | WarmupAndDecay) -> None:
        """Gives the model a new optimizer with this rate."""
        with self.distribute_strategy.scope():
            super().compile(AdamWeightDecay(rate), **self._compiled_with)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        # On several devices, Keras reads a batch, makes variables by it, and begins again, which a generator cannot.
        if iterator is not None and self._distribute_strategy is not None:
            iterator, data_batch = None, self._reader.at_once(self._first)
        super()._maybe_symbolic_build(iterator, data_batch)

    def _make_variables(self, first: tuple) -> None:
        """Makes the variables of optimizer and metrics, because a training step that makes them is traced twice.

        `first`: the first batch of the model's input, y and weights.
        """
        strategy = self.distribute_strategy
        with strategy.scope():
            self.optimizer.build(self.trainable_variables)
        if strategy.num_replicas_in_sync > 1 or self.run_eagerly:
            return
        x, *others = tf.nest.map_structure(lambda part: part[:1], first)
        with in_one_line():
            self.compute_metrics(x, others[0], self(x))
            self.reset_metrics()

    @contextlib.contextmanager
    def _traced_once(self, data: tf.data.Dataset) -> Iterator[None]:
        """In its block, the training step is traced once, as a graph for batches of all sizes."""
        alone = self.distribute_strategy.num_replicas_in_sync == 1 and not self.run_eagerly
        if _FETCHES_BATCHES_OUTSIDE and alone:
            self._step = tf.function(super().train_step, input_signature=[data.element_spec], autograph=False)
        try:
            yield
        finally:
            self._step = None

    def train_step(self, data: tuple) -> dict[str, Any]:
        return super().train_step(data) if self._step is None else self._step(data)

    @contextlib.contextmanager
    def _taught(self, teacher: Bert | None, temperature: float, alpha: float) -> Iterator[None]:
        """In its block, the training also learns the answers of a teacher, if there is one."""
        if teacher is None:
            if (temperature, alpha) != (TEMPERATURE, ALPHA):
                raise UserError("temperature, alpha: have no effect without a teacher; give teacher=... as well")
            yield
            return
        if not isinstance(teacher, Bert) or self._label_map is None:
            raise UserError(
                f"teacher={teacher!r:.60}: a classifier or tagger can have bert_tf2.load(FOLDER) as teacher"
            )
        with naming_arguments():
            rules = TeacherOptions(teacher=teacher.path, temperature=temperature, alpha=alpha)
        theirs, ours = (teacher.labels, teacher.tokenizer), (self._label_map, self.tokenize.tokenizer)
        check_teacher(teacher.path, teacher.model, theirs, ours, self._row_length)
        plan = plan_of(self.model)
        self.model.teacher = Teacher(teacher.model, rules.temperature, rules.alpha, plan, self.model.windows)
        self.train_function = None  # the graph of an earlier training has no teacher
        try:
            yield
        finally:
            self.model.teacher = self.train_function = None

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> tf.Tensor:
        """As in Keras; in a training with a teacher, with the teacher's share, which has the same weights of rows."""
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        teacher = getattr(self.model, "teacher", None)
        if teacher is None or not training:
            return loss
        distance = _Distance(teacher, getattr(self._compiled_with["loss"], "reduction", "sum_over_batch_size"))
        logits = getattr(y_pred, "logits", y_pred)  # a regression has logits alone
        return teacher.alpha * distance(teacher.logits(x), logits, sample_weight) + (1.0 - teacher.alpha) * loss


class Answers:
    """A base of models, before `TextModel`, whose `predict` returns other answers than arrays of `call`."""

    answered_at_once = 32  # the rows of the model in a batch of `predict`, if none is given

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """The answers to all rows of `x`; see the class. `steps`: the number of batches to read, if `x` has batches."""
        size = self.answered_at_once if batch_size is None else batch_size
        check_end(x, steps, "steps")
        x = every_row(x, self._rows, steps, self._reader.parts) if has_batches(x) else x
        return self._answers(x, size)

    def predict_on_batch(self, x: Any) -> Any:
        """The same as `predict`."""
        return self.predict(x)


class _Distance(keras.losses.Loss):
    """The distance between a teacher's logits and a student's, with Keras' weights of rows and its mean."""

    def __init__(self, teacher: Teacher, reduction: str):
        super().__init__(name="distance", reduction=reduction)
        self._teacher = teacher

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return self._teacher.distance(y_pred, y_true)


def widened(values: tf.Tensor, more: tf.Tensor) -> tf.Tensor:
    """[..., W] -> [..., W + more], zeros at the end."""
    return tf.pad(values, [*[[0, 0]] * (values.shape.rank - 1), [0, more]])

"""The training steps of the models of texts: how often they are traced, and their loss with a teacher."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from bert_tf2.api.bert import Bert
from bert_tf2.api.long_runs import LongRuns
from bert_tf2.api.text_parts import ALPHA, TEMPERATURE
from bert_tf2.fast.encoder import Plan
from bert_tf2.finetuning.distillation import Teacher, check_teacher
from bert_tf2.finetuning.options import TeacherOptions
from bert_tf2.support.errors import UserError

# Before, Keras fetched batches within the function that it traced, and its shapes did not depend on the batch.
_FETCHES_BATCHES_OUTSIDE = tuple(map(int, keras.__version__.split(".")[:2])) >= (3, 16)


class TextSteps(LongRuns):
    """The base of `TextModel`, whose attributes it uses."""

    _step: Callable | None = None  # of the training, where `fit` traces it itself

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
        rules = TeacherOptions(teacher=teacher.path, temperature=temperature, alpha=alpha)
        theirs, ours = (teacher.labels, teacher.tokenizer), (self._label_map, self.tokenize.tokenizer)
        windows = self.model.windows
        length = windows.length if windows else self.tokenize.max_seq_length
        check_teacher(teacher.path, teacher.model, theirs, ours, length)
        plan = getattr(self.model.encoder, "plan", Plan())
        self.model.teacher = Teacher(teacher.model, rules.temperature, rules.alpha, plan, windows)
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


class _Distance(keras.losses.Loss):
    """The distance between a teacher's logits and a student's, with Keras' weights of rows and its mean."""

    def __init__(self, teacher: Teacher, reduction: str):
        super().__init__(name="distance", reduction=reduction)
        self._teacher = teacher

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return self._teacher.distance(y_pred, y_true)

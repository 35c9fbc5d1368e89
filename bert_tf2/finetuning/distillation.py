"""A trained model teaches another, usually smaller model (Hinton et al., 2015, "Distilling the Knowledge").

The student learns the labels of the data, and the answers of the teacher to the same rows. The teacher answers while
the student trains, so rows may come from anywhere, and a continuation needs no file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf
from absl import logging

from bert_tf2.fast.encoder import Plan, faster
from bert_tf2.heads import Batch
from bert_tf2.long_texts import Windows
from bert_tf2.losses import distance_to_teacher
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.training.devices import plan_for
from bert_tf2.training.options import PRECISIONS
from bert_tf2.weights import checkpoint, model_folder, sources, task_file, text_rules
from bert_tf2.weights.task_file import LabelMap

if TYPE_CHECKING:
    from bert_tf2.finetuning.task import FineTuningTask


class Teacher:
    """A classifier or tagger of `heads`, its share `alpha` of the loss, and the temperature of the softmax.

    Its student has it as the attribute `teacher`.
    """

    def __init__(self, model, temperature: float, alpha: float, plan: Plan, windows: Windows | None = None):
        """`windows`: of the student, in which the teacher reads long texts, too."""
        self._windows = windows
        self._model, self._faster = model, faster(model.bert, plan)
        self._temperature, self.alpha = temperature, alpha

    def logits(self, batch: Batch) -> tf.Tensor:
        """The answers to a batch, without dropout and gradients, float32 [B, L] or [B, F, L]."""
        before, self._model.faster = self._model.faster, self._faster
        try:
            found = self._model.of_texts(batch, self._windows) if self._windows else self._model(batch, training=False)
            return tf.stop_gradient(found)
        finally:
            self._model.faster = before

    def distance(self, logits: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
        """The loss of a student's logits, without its share; see losses.distance_to_teacher."""
        kinds = {name: getattr(self._model, name, False) for name in ("regression", "multi_label")}
        return distance_to_teacher(logits, wanted, self._temperature, **kinds)

    def mixed(self, losses: tf.Tensor, logits: tf.Tensor, batch: Batch) -> tf.Tensor:
        """The student's losses with the teacher's share: the losses of the labels, and logits [..., L] -> [...]."""
        return self.alpha * self.distance(logits, self.logits(batch)) + (1.0 - self.alpha) * losses


def check_teacher(
    path: str,
    model,
    theirs: tuple[LabelMap | None, FullTokenizer],
    ours: tuple[LabelMap, FullTokenizer],
    max_seq_length: int,
) -> None:
    """Raises UserError if a student cannot learn from the model at `path`; `theirs`, `ours`: labels and tokenizers."""
    (labels, tokenizer), (wanted, own) = theirs, ours
    kind = (wanted.labeled, wanted.regression, wanted.multi_label)
    if labels is None or model.labeled != labels.labeled:
        raise UserError(f"{path}: has no labels, so it cannot be a teacher; give the folder of a fine-tuned model")
    known = labels.labels != task_file.numbered(labels.num_labels)
    if (labels.labeled, labels.regression, labels.multi_label) != kind or labels.num_labels != wanted.num_labels:
        raise UserError(f"{path}: the teacher has {labels.describe()}, and the student {wanted.describe()}")
    if known and labels.labels != wanted.labels:
        raise UserError(
            f"{path}: the teacher has the labels {and_more(labels.labels)}, and the student {and_more(wanted.labels)};"
            " both need the same labels in the same order"
        )
    if (tokenizer.vocab, tokenizer.basic_tokenizer.do_lower_case) != (own.vocab, own.basic_tokenizer.do_lower_case):
        raise UserError(f"{path}: the teacher has another vocabulary or another do_lower_case than the student")
    if max_seq_length > (most := model.config.max_position_embeddings):
        raise UserError(f"{path}: the teacher reads at most {most} tokens, and max_seq_length is {max_seq_length}")


def teacher_of(task: FineTuningTask) -> Teacher | None:
    """The teacher of a training script, None without --teacher. Call it in the scope of the strategy."""
    options = task.options
    if not (options.do_train and options.teacher):
        return None
    source = sources.open_weights(options.teacher)
    config, labels = model_folder.find_config(source, None), task_file.label_map_of(source)
    model = checkpoint.make_model(source, config, labels, dtype=PRECISIONS[options.precision].policy)
    tokenizer = text_rules.find_tokenizer(source, config, None, None)
    ours = (task.label_map, task.tokenizer)
    check_teacher(source.path, model, (labels, tokenizer), ours, options.max_seq_length)
    checkpoint.check_trained(model, source)
    checkpoint.initialize(model, source)
    logging.info("The teacher is %s: %g of the loss", source.path, options.alpha)
    plan = plan_for(options, task.strategy, config.hidden_size, task.is_padded)
    return Teacher(model, options.temperature, options.alpha, plan, task.windows)

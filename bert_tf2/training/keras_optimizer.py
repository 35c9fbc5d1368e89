"""BERT's optimizer for Keras' `compile` and `fit`: the updates of `optimization`, which the scripts make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_tf2 import optimization


@keras.saving.register_keras_serializable(package="bert_tf2")
class WarmupAndDecay(keras.optimizers.schedules.LearningRateSchedule):
    """`optimization.learning_rate_at` as a schedule: a rise from 0 over the warm-up, then a line down to 0."""

    def __init__(self, init_lr: float, num_train_steps: int, num_warmup_steps: int):
        """Args:
        init_lr: the highest learning rate.
        num_train_steps: the number of updates; from there on, the learning rate is 0.
        num_warmup_steps: the updates of the rise; the scripts of fine-tuning take a tenth.
        """
        super().__init__()
        self._settings = {
            "init_lr": init_lr,
            "num_train_steps": num_train_steps,
            "num_warmup_steps": num_warmup_steps,
        }

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return optimization.learning_rate_at(step, **self._settings)

    def get_config(self) -> dict[str, Any]:
        return dict(self._settings)


@keras.saving.register_keras_serializable(package="bert_tf2")
class AdamWeightDecay(keras.optimizers.Optimizer):
    """`optimization.AdamWeightDecayOptimizer` with the interface of Keras; clips the gradients to a global norm of 1.

    Biases, and gamma and beta of LayerNorm, are not decayed; they are known by the paths of variables.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule,
        weight_decay_rate: float = optimization.WEIGHT_DECAY_RATE,
        exclude_from_weight_decay: Sequence[str] = ("bias", "gamma", "beta"),
        bias_correction: bool = False,
        name: str = "adam_weight_decay",
        **kwargs,
    ):
        """Args:
        learning_rate: a number, or a schedule such as `WarmupAndDecay`.
        weight_decay_rate, exclude_from_weight_decay, bias_correction: see `optimization.AdamWeightDecayOptimizer`.
        """
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self._settings = {
            "weight_decay_rate": weight_decay_rate,
            "exclude_from_weight_decay": [*exclude_from_weight_decay],
            "bias_correction": bias_correction,
        }
        self._rule = optimization.AdamWeightDecayOptimizer({}, **self._settings)
        self._scale = tf.constant(1.0)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Creates the moving averages of the gradients and of their squares."""
        if not self.built:
            super().build(variables)
            self._m, self._v = self.add_optimizer_variables(variables, ("adam_m", "adam_v"))
            rate = self._settings["weight_decay_rate"]
            self._decays = [rate * self._rule.uses_weight_decay(variable.path) for variable in variables]

    def apply(self, grads, trainable_variables=None) -> None:
        """Updates the variables once. For the norm, gradients of lookups count as `optimization.square_norm` tells."""
        present = [gradient for gradient in grads if gradient is not None]
        norm = tf.sqrt(tf.add_n([optimization.square_norm(gradient) for gradient in present]))
        self._scale = optimization.clip_scale(norm)
        dense = [gradient if gradient is None else tf.convert_to_tensor(gradient) for gradient in grads]
        super().apply(dense, trainable_variables)

    def update_step(self, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor) -> None:
        number = self._get_variable_index(variable)
        m, v = self._m[number], self._v[number]
        values = (tf.convert_to_tensor(value) for value in (variable, m, v))
        corrections = self._rule.corrections(self.iterations)
        updated = self._rule.updated(*values, gradient, self._scale, learning_rate, self._decays[number], *corrections)
        for target, value in zip((variable, m, v), updated, strict=True):
            self.assign(target, value)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._settings}

"""BERT's optimizer for Keras' `compile` and `fit`: the updates of `optimization`, which the scripts make."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_tf2 import optimization, placement
from bert_tf2.fast import compiled
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import check_type
from bert_tf2.training import layerwise


@keras.saving.register_keras_serializable(package="bert_tf2")
class WarmupAndDecay(keras.optimizers.schedules.LearningRateSchedule):
    """`optimization.learning_rate_at` as a schedule: a rise from 0 over the warm-up, then a line down to 0."""

    def __init__(self, init_lr: float, num_train_steps: int, num_warmup_steps: int):
        """Makes a schedule. Raises UserError for arguments that make no sense.

        Args:
          init_lr: the highest learning rate.
          num_train_steps: the number of updates; from there on, the learning rate is 0.
          num_warmup_steps: the updates of the rise; the fine-tuning scripts use a tenth of num_train_steps.
        """
        super().__init__()
        _check_finite("init_lr", init_lr)
        check_type("num_train_steps", num_train_steps, int, low=1)
        check_type("num_warmup_steps", num_warmup_steps, int, low=0)
        if num_warmup_steps > num_train_steps:
            raise UserError(f"num_warmup_steps={num_warmup_steps}: is more than num_train_steps={num_train_steps}")
        steps = {"num_train_steps": int(num_train_steps), "num_warmup_steps": int(num_warmup_steps)}
        self._settings = {"init_lr": float(init_lr), **steps}

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return optimization.learning_rate_at(step, **self._settings)

    def get_config(self) -> dict[str, Any]:
        return dict(self._settings)


@keras.saving.register_keras_serializable(package="bert_tf2")
class AdamWeightDecay(keras.optimizers.Optimizer):
    """`optimization.AdamWeightDecayOptimizer` with the interface of Keras; clips the gradients to a global norm of 1.

    The norm is computed for the whole update: over all replicas, and all parts with `gradient_accumulation_steps`.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule,
        weight_decay: float = optimization.WEIGHT_DECAY_RATE,
        exclude_from_weight_decay: Sequence[str] = ("bias", "gamma", "beta"),
        bias_correction: bool = False,
        layer_decay: float = 1.0,
        name: str = "adam_weight_decay",
        **kwargs,
    ):
        """Makes an optimizer for one model. Raises UserError for arguments that make no sense.

        Args:
          learning_rate: a number, or a schedule such as `WarmupAndDecay`.
          weight_decay: the share of the learning rate by which weights shrink in each step.
          exclude_from_weight_decay: regular expressions for the paths of variables that are not decayed.
          bias_correction: see `optimization.AdamWeightDecayOptimizer`; the reference has no bias correction.
          layer_decay: the factor of the learning rate from each layer of BERT to the layer below, 0.9 for example.
            Layers are recognized by the paths of variables (`embeddings/`, `layer_3/`); all others have the whole rate.
          name: of the optimizer.
          **kwargs: arguments of keras.optimizers.Optimizer, such as `gradient_accumulation_steps`.
        """
        if not callable(learning_rate):
            _check_finite("learning_rate", learning_rate)
        _check_finite("weight_decay", weight_decay)
        _check_finite("layer_decay", layer_decay)
        if layer_decay > 1.0:
            raise UserError(f"layer_decay={layer_decay}: lower layers would learn faster; give 1 or less")
        if kwargs.get("loss_scale_factor") is not None:  # Keras cannot divide the gradients of lookups
            raise UserError(
                'loss_scale_factor: not here; under the policy "mixed_float16", Keras scales the loss itself'
            )
        excluded = exclude_from_weight_decay
        excluded = [excluded] if isinstance(excluded, str) else [*excluded]
        try:
            [*map(re.compile, excluded)]
        except (re.error, TypeError) as error:
            raise UserError(f"exclude_from_weight_decay={excluded}: must be regular expressions ({error})") from error
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        rules = {"exclude_from_weight_decay": excluded, "bias_correction": bias_correction}
        self._settings = {"weight_decay": float(weight_decay), "layer_decay": float(layer_decay), **rules}
        self._rule = optimization.AdamWeightDecayOptimizer({}, float(weight_decay), **rules)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Creates the moving averages of the gradients and of their squares."""
        if not self.built:
            if self.gradient_accumulation_steps and self._distribution_strategy.num_replicas_in_sync > 1:
                raise UserError(
                    "gradient_accumulation_steps: Keras cannot accumulate on several devices; use a smaller batch"
                )
            if other := {keras.backend.standardize_dtype(variable.dtype) for variable in variables} - {"float32"}:
                raise UserError(f"a variable is {other.pop()}: small updates need float32, as under mixed_bfloat16")
            super().build(variables)
            self._m, self._v = self.add_optimizer_variables(variables, ("adam_m", "adam_v"))
            rate = self._settings["weight_decay"]
            self._decays = [
                rate if self._rule.uses_weight_decay(variable.path) and self._use_weight_decay(variable) else 0.0
                for variable in variables
            ]
            paths, decay = [variable.path for variable in variables], self._settings["layer_decay"]
            self._shares = layerwise.shares_of(paths, decay)
            if decay != 1.0:
                layerwise.log_shares(paths, self._shares)

    def _check_variables_are_known(self, variables: Sequence[keras.Variable]) -> None:
        if any(self._var_key(variable) not in self._trainable_variables_indices for variable in variables):
            raise UserError("this optimizer has the moving averages of another model; make a new one for each model")

    def _all_reduce_sum_gradients(self, grads_and_vars):
        """Clips the sum over the replicas, after Keras has added up the parts of an update.

        `optimization.square_norm` describes how gradients of lookups count in the norm.
        """
        pairs = super()._all_reduce_sum_gradients(grads_and_vars)
        square = optimization.square_norm(*[gradient for gradient, _ in pairs if gradient is not None])
        scale = optimization.clip_scale(tf.sqrt(square))
        return [
            (None if gradient is None else tf.convert_to_tensor(gradient) * tf.cast(scale, gradient.dtype), variable)
            for gradient, variable in pairs
        ]

    def _distributed_tf_update_step(self, distribution, grads_and_vars, learning_rate: tf.Tensor) -> None:
        """As in Keras; a GPU updates all variables in one program, as in a step of the scripts."""
        update = super()._distributed_tf_update_step
        in_one = distribution.num_replicas_in_sync == 1 and placement.built_for() == "GPU" and compiled.can_compile()
        if not in_one or tf.executing_eagerly():
            update(distribution, grads_and_vars, learning_rate)
            return
        gradients, variables = zip(*grads_and_vars, strict=True)

        def update_all(gradients: list[tf.Tensor], learning_rate: tf.Tensor) -> None:
            update(distribution, zip(gradients, variables, strict=True), learning_rate)

        compiled.as_program(update_all)(gradients, tf.convert_to_tensor(learning_rate))

    def update_step(self, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor) -> None:
        number = self._get_variable_index(variable)
        targets = (variable, self._m[number], self._v[number])
        if (share := self._shares[number]) != 1.0:
            learning_rate = tf.convert_to_tensor(learning_rate) * share
        how = (gradient, 1.0, learning_rate, self._decays[number], *self._rule.corrections(self.iterations))
        how = [tf.convert_to_tensor(value) for value in how]
        alone = self._distribution_strategy.num_replicas_in_sync == 1
        if alone and compiled.can_compile():
            owned = (one if isinstance(one, tf.Variable) else one.value for one in targets)  # Keras gives either
            self._rule.fused_step([one.handle for one in owned], *how)
            return
        updated = self._rule.updated(*map(tf.convert_to_tensor, targets), *how)
        for target, value in zip(targets, updated, strict=True):
            self.assign(target, value)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._settings}


def _check_finite(name: str, value: Any) -> None:
    check_type(name, value, float, finite=False)
    if not 0.0 <= value < math.inf:
        raise UserError(f"{name}={value}: must be a number from 0 on")

"""How BERT's weights are updated: the learning rate of each step, clipping, and Adam with decoupled weight decay.

Reference: optimization.py. It is not today's AdamW: there is no bias correction, so the first steps are up to three
times as long as a corrected Adam's (which is one more reason for the warmup), and the decay is multiplied by the
learning rate of the step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import tensorflow as tf

Gradient = tf.Tensor | tf.IndexedSlices

# The largest norm that the gradients of all variables together may have.
CLIP_NORM = 1.0
WEIGHT_DECAY_RATE = 0.01
EXCLUDE_FROM_WEIGHT_DECAY = ("LayerNorm", "layer_norm", "bias")


def learning_rate_at(step: tf.Tensor, init_lr: float, num_train_steps: int, num_warmup_steps: int) -> tf.Tensor:
    """The learning rate of the update that leads from `step` to `step + 1`; float32, the shape of `step`.

    During warmup it rises from 0, by init_lr / num_warmup_steps a step. After it, it lies on the line that falls from
    init_lr at step 0 to 0 at num_train_steps: the line is counted from the very first step and not from the end of
    warmup, so the rate drops a little where warmup ends. Past the end it stays 0.
    """
    done = tf.cast(step, tf.float32)
    # Times 1 / n where one would write / n: what TensorFlow 1 makes of it, and the last bit counts near the end.
    share = tf.minimum(done, float(num_train_steps)) * (1.0 / num_train_steps)
    decayed = init_lr * (1.0 - share)
    if not num_warmup_steps:
        return decayed
    return tf.where(done < num_warmup_steps, init_lr * (done * (1.0 / num_warmup_steps)), decayed)


def square_norm(gradient: Gradient) -> tf.Tensor:
    """The sum of a gradient's squares.

    A gradient that is only a lookup (IndexedSlices) counts each looked-up row by itself, also where one row was looked
    up several times: the norm that TensorFlow 1 clips by. In pretraining the word table is used as the output layer
    too, which makes its gradient dense; in fine-tuning it is such a lookup.
    """
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return 2.0 * tf.nn.l2_loss(tf.cast(values, tf.float32))


def clip_scale(global_norm: tf.Tensor, clip_norm: float = CLIP_NORM) -> tf.Tensor:
    """What to multiply gradients of this global norm with, so that the norm is at most `clip_norm`."""
    return clip_norm * tf.minimum(1.0 / global_norm, 1.0 / clip_norm)


class AdamWeightDecayOptimizer:
    """Adam (Kingma & Ba, 2015) without bias correction, with the decay added to the update (Loshchilov & Hutter, 2019).

    For every variable w with gradient g:
        m = beta_1 m + (1 - beta_1) g
        v = beta_2 v + (1 - beta_2) g^2
        w = w - learning_rate (m / (sqrt(v) + epsilon) + weight_decay_rate w)
    Adding the decay to the gradient instead, as L2 regularisation would, lets m and v scale it away.

    Attributes:
      slots: `NAME/adam_m` and `NAME/adam_v` -> variable, by the names that checkpoints use.
    """

    def __init__(
        self,
        variables: Mapping[str, tf.Variable],
        weight_decay_rate: float = WEIGHT_DECAY_RATE,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        exclude_from_weight_decay: Sequence[str] = EXCLUDE_FROM_WEIGHT_DECAY,
        bias_correction: bool = False,
    ):
        """Makes the slots, so call it in the scope of the distribution strategy.

        Args:
          variables: what to update, by full name. The name decides on weight decay.
          weight_decay_rate: see above.
          beta_1, beta_2, epsilon: see above.
          exclude_from_weight_decay: regular expressions; a variable whose full name one of them is found in is not
            decayed.
          bias_correction: whether to divide m and v by what their first steps lack. The reference does not; later
            papers found fine-tuning on small data sets steadier with it (Mosbach et al., 2021).
        """
        self._variables = dict(variables)
        self._weight_decay_rate = weight_decay_rate
        self._beta_1 = beta_1
        self._beta_2 = beta_2
        self._epsilon = epsilon
        self._exclude = tuple(exclude_from_weight_decay)
        self._bias_correction = bias_correction
        # XLA makes one pass over memory of what are fourteen operations, and memory is what this step waits for. Where
        # there is a GPU it would need parts of CUDA that an installation may lack.
        self._fused_step = tf.function(self._step, jit_compile=not tf.config.list_physical_devices("GPU"))
        self.slots = {
            f"{name}/{slot}": tf.Variable(tf.zeros_like(variable), trainable=False, name=slot)
            for name, variable in self._variables.items()
            for slot in ("adam_m", "adam_v")
        }

    def uses_weight_decay(self, name: str) -> bool:
        return bool(self._weight_decay_rate) and not any(re.search(pattern, name) for pattern in self._exclude)

    def apply_gradients(
        self,
        gradients: Mapping[str, tf.Tensor],
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        gradient_scale: tf.Tensor | float = 1.0,
    ) -> None:
        """Updates each variable once; the caller counts the steps.

        Args:
          gradients: dense, by the variable's full name.
          learning_rate: scalar.
          step: how many updates came before; used by the bias correction only.
          gradient_scale: what to multiply every gradient with, see clip_scale. Done here it costs no copy of them all.
        """
        gradient_scale = tf.convert_to_tensor(gradient_scale)
        corrections = self._corrections(step)
        for name, gradient in gradients.items():
            variable, m, v = self._variables[name], self.slots[f"{name}/adam_m"], self.slots[f"{name}/adam_v"]
            decay = self._weight_decay_rate if self.uses_weight_decay(name) else 0.0
            # As tensors: tf.function would take a variable of several replicas for any other one of the same shape.
            w, old_m, old_v = (tf.convert_to_tensor(value) for value in (variable, m, v))
            updated = self._fused_step(
                w, old_m, old_v, gradient, gradient_scale, learning_rate, tf.constant(decay), *corrections
            )
            for target, value in zip((variable, m, v), updated, strict=True):
                # Every replica updates its own copy, with the same numbers; `assign` would ask how to merge them.
                tf.raw_ops.AssignVariableOp(resource=target.handle, value=value)

    def _step(self, w, m, v, g, scale, learning_rate, decay, correction_1, correction_2):
        """The formulas of the class. TensorFlow's own fused Adam takes 1 - beta_2 in float32, which is off by 1e-5."""
        g = g * scale
        m = self._beta_1 * m + (1.0 - self._beta_1) * g
        v = self._beta_2 * v + (1.0 - self._beta_2) * tf.square(g)
        update = (m / correction_1) / (tf.sqrt(v / correction_2) + self._epsilon) + decay * w
        return w - learning_rate * update, m, v

    def _corrections(self, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The shares of their final weight that m and v have reached after this update: 1 - beta^(step + 1)."""
        if not self._bias_correction:
            return tf.constant(1.0), tf.constant(1.0)
        count = tf.cast(step + 1, tf.float32)
        return 1.0 - tf.pow(self._beta_1, count), 1.0 - tf.pow(self._beta_2, count)

"""BERT's optimizer: the learning rate of each step, clipping, and Adam with decoupled weight decay.

Reference: optimization.py. The usual AdamW corrects m and v for their start at 0, this optimizer does not. After t
steps, an update is (1 - beta_1^t) / sqrt(1 - beta_2^t) times as long as the corrected update: 3.2 times at the first
step, 6.6 times at the twelfth, 1.3 times at the thousandth. The warmup compensates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_tf2 import placement
from bert_tf2.support import lazy

__getattr__ = lazy.unknown(__name__)

Gradient = tf.Tensor | tf.IndexedSlices

# The maximum global norm of the gradients.
CLIP_NORM = 1.0
WEIGHT_DECAY_RATE = 0.01
EXCLUDE_FROM_WEIGHT_DECAY = ("LayerNorm", "layer_norm", "bias")


def learning_rate_at(step: tf.Tensor, init_lr: float, num_train_steps: int, num_warmup_steps: int) -> tf.Tensor:
    """Returns the learning rate of the update from `step` to `step + 1`; float32, the shape of `step`.

    During warmup, the rate rises from 0 by init_lr / num_warmup_steps per step. After that, it follows the line from
    init_lr at step 0 to 0 at num_train_steps. The line starts at step 0 and not at the end of warmup, so the rate drops
    slightly when warmup ends. Past num_train_steps, the rate stays 0.
    """
    done = tf.cast(step, tf.float32)
    # TensorFlow 1 multiplies by 1 / n instead of dividing by n; near the end, the last bit matters.
    share = tf.minimum(done, float(num_train_steps)) * (1.0 / num_train_steps)
    decayed = init_lr * (1.0 - share)
    if not num_warmup_steps:
        return decayed
    # TensorFlow 1 also multiplies the two constants first.
    rise = np.float32(init_lr) * np.float32(1.0 / num_warmup_steps)
    return tf.where(done < num_warmup_steps, done * rise, decayed)


def square_norm(*gradients: Gradient) -> tf.Tensor:
    """Returns the sum of the squares of gradients, 0 without gradients.

    The gradient of a lookup (IndexedSlices) counts each row separately, even if a row was looked up several times,
    because TensorFlow 1 clips by this norm. In pretraining, the word table is also the output layer, which makes its
    gradient dense; in fine-tuning, the table's gradient is the gradient of a lookup.
    """
    values = [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in gradients]
    wide = [tf.cast(one, tf.float32) for one in values]
    if wide and placement.in_program_for_gpu():
        return _sum_of_squares_for_gpu(wide)
    return 2.0 * tf.add_n([tf.constant(0.0), *(tf.nn.l2_loss(one) for one in wide)])


def _sum_of_squares_for_gpu(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """The same sum, of which XLA makes 179 kernels fewer in a step of BERT-Base."""
    squares = [tf.square(one) for one in values]
    rows = [tf.reduce_sum(one, axis=-1) if one.shape.rank > 1 else one for one in squares]
    # All numbers are positive. Without tf.abs, XLA would sum the rows of each gradient by themselves again.
    return tf.reduce_sum(tf.abs(tf.concat([tf.reshape(one, [-1]) for one in rows], axis=0)))


def clip_scale(global_norm: tf.Tensor, clip_norm: float = CLIP_NORM) -> tf.Tensor:
    """Returns the factor that scales gradients of this global norm to a norm of at most `clip_norm`."""
    return clip_norm * tf.minimum(1.0 / global_norm, 1.0 / clip_norm)


class AdamWeightDecayOptimizer:
    """Adam (Kingma & Ba, 2015) without bias correction, with the decay added to the update (Loshchilov & Hutter, 2019).

    The update of a variable w with gradient g:
        m = beta_1 m + (1 - beta_1) g
        v = beta_2 v + (1 - beta_2) g^2
        w = w - learning_rate (m / (sqrt(v) + epsilon) + weight_decay_rate w)
    Adding the decay to the gradient instead, as L2 regularization does, would divide the decay by sqrt(v), so that
    variables with large gradients would hardly decay.

    Attributes:
      slots: `NAME/adam_m` and `NAME/adam_v` -> variable, the names in checkpoints.
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
        fused: bool = True,
        shares: Mapping[str, float] | None = None,
    ):
        """Creates the slots, so call it in the scope of the distribution strategy.

        Args:
          variables: full name -> variable to update. The name determines whether weight decay applies.
          weight_decay_rate, beta_1, beta_2, epsilon: see above.
          exclude_from_weight_decay: regular expressions; a variable whose full name matches one of them is not decayed.
          bias_correction: whether to correct m and v for their start at 0. The reference does not; later papers found
            fine-tuning on small data sets more stable with the correction (Mosbach et al., 2021).
          fused: whether XLA compiles the update. False for a TPU's program; see programs.can_compile.
          shares: full name -> the share of the learning rate that a variable has; 1 for other variables.
        """
        self._variables, self._shares = dict(variables), shares or {}
        self._weight_decay_rate, self._exclude = weight_decay_rate, tuple(exclude_from_weight_decay)
        self._beta_1, self._beta_2, self._epsilon = beta_1, beta_2, epsilon
        self._bias_correction = bias_correction
        # XLA fuses fourteen operations into one pass over memory, and memory bandwidth limits this step. A GPU launches
        # one kernel for each variable instead of fourteen. Given a variable's handle, XLA also writes into the
        # variable's memory. New values in new memory would be scattered among the activations, and the holes cost
        # 0.7 GB.
        self.fused_step = tf.function(self._update, jit_compile=fused, autograph=False)
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
        """Updates each variable once; the caller counts the steps, which only the bias correction uses.

        `gradients`: full name -> dense gradient. `gradient_scale`: a factor for all gradients, see clip_scale; passing
        it avoids a copy of the gradients.
        """
        gradient_scale = tf.convert_to_tensor(gradient_scale)
        corrections = self.corrections(step)
        for name, gradient in gradients.items():
            variable, m, v = self._variables[name], self.slots[f"{name}/adam_m"], self.slots[f"{name}/adam_v"]
            decay = self._weight_decay_rate if self.uses_weight_decay(name) else 0.0
            # Every replica updates its own copy with the same numbers. `assign` would require a rule to merge copies.
            handles = [target.handle for target in (variable, m, v)]
            share = self._shares.get(name, 1.0)
            rate = learning_rate if share == 1.0 else learning_rate * share
            self.fused_step(handles, gradient, gradient_scale, rate, tf.constant(decay), *corrections)

    def _update(self, handles: Sequence[tf.Tensor], *settings: tf.Tensor) -> None:
        """Replaces w, m and v, given by their resource handles; `settings` are the other arguments of `updated`."""
        values = (tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) for handle in handles)
        for handle, value in zip(handles, self.updated(*values, *settings), strict=True):
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def updated(self, w, m, v, g, scale, learning_rate, decay, correction_1, correction_2):
        """Returns the new w, m and v by the formulas of the class: all float32, of the shape of g. The rest is [].

        TensorFlow's fused Adam is not used, because it computes 1 - beta_2 in float32, with an error of 1e-5.
        """
        g = g * scale
        m = self._beta_1 * m + (1.0 - self._beta_1) * g
        v = self._beta_2 * v + (1.0 - self._beta_2) * tf.square(g)
        update = (m / correction_1) / (tf.sqrt(v / correction_2) + self._epsilon) + decay * w
        return w - learning_rate * update, m, v

    def corrections(self, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The fractions of their final level that m and v have reached after this update: 1 - beta^(step + 1)."""
        if not self._bias_correction:
            return tf.constant(1.0), tf.constant(1.0)
        count = tf.cast(step + 1, tf.float32)
        return 1.0 - tf.pow(self._beta_1, count), 1.0 - tf.pow(self._beta_2, count)

"""The dynamic loss scale of float16, whose smallest number is 6e-8: smaller gradients would become 0.

The loss is multiplied by a scale before the gradients are computed, and the gradients are divided by it afterwards. A
scale that is too large makes a gradient infinite; that step is left out, and the scale is halved. After many good steps
it is doubled. After Micikevicius et al., "Mixed Precision Training" (2018), section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

_FIRST = 2.0**15
_MOST = 2.0**30
_STEPS_BEFORE_GROWTH = 2000

NAMES = ("loss_scale", "loss_scale_good_steps")
"""The names of the state in checkpoints; weights.names takes them for optimizer state."""


class LossScale:
    """The scale and the number of good steps since it changed. Create it in the scope of the strategy.

    Attributes:
      state: name -> variable; the contents of a checkpoint.
    """

    def __init__(self):
        self._scale = tf.Variable(_FIRST, trainable=False, name="loss_scale")
        self._good_steps = tf.Variable(0.0, trainable=False, name="good_steps")
        self.state = dict(zip(NAMES, (self._scale, self._good_steps), strict=True))

    def value(self) -> tf.Tensor:
        """The factor for the loss, float32."""
        return tf.convert_to_tensor(self._scale)

    def apply(self, norm: tf.Tensor, update: Callable[[], None]) -> tf.Tensor:
        """Calls `update` if the global norm of the gradients is finite, and adapts the scale.

        Args:
          norm: of the gradients of all replicas, so that all of them decide alike.
          update: changes the variables.

        Returns:
          float32, 1 if the step was left out, otherwise 0.
        """
        good = update_if_finite(norm, update)
        scale, steps = tf.convert_to_tensor(self._scale), tf.convert_to_tensor(self._good_steps) + 1.0
        grows = steps >= _STEPS_BEFORE_GROWTH
        larger = tf.where(grows, tf.minimum(scale * 2.0, _MOST), scale)
        smaller = tf.maximum(scale * 0.5, 1.0)
        # Every replica changes its own copy by the same rule; `assign` would require a rule to merge them.
        for variable, value in (
            (self._scale, tf.where(good, larger, smaller)),
            (self._good_steps, tf.where(good & ~grows, steps, 0.0)),
        ):
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
        return 1.0 - tf.cast(good, tf.float32)


def update_if_finite(norm: tf.Tensor, update: Callable[[], None]) -> tf.Tensor:
    """Calls `update` if a number is finite, and returns whether it is."""

    def do() -> tf.Tensor:
        update()
        return tf.constant(0)

    good = tf.math.is_finite(norm)
    tf.cond(good, do, lambda: tf.constant(0))
    return good

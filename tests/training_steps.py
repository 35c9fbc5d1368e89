"""A training step without the update: losses and gradients, and their comparison."""

import numpy as np
import pytest
import tensorflow as tf
from small_models import batch_for

from bert_tf2.training.step import local_gradients, reduce_gradients
from bert_tf2.weights import checkpoint

SEED = tf.constant([1, 2])


def batch_of(kind):
    """Whose labels are all at tokens, as in records; among 9 rows are a full one and one without predictions."""
    batch = batch_for(kind, 9)
    lengths = batch["input_mask"].sum(1)
    if kind == "tagging":
        batch["label_ids"] = np.where(batch["input_mask"] > 0, batch["label_ids"], -1)
    for name in ("start_positions", "end_positions"):
        batch[name] %= lengths
    return {name: tf.constant(values) for name, values in batch.items()}


def step_of(model, batch, parts=1, jit_compile=False):
    """Losses, gradients by name, and their norm."""

    @tf.function(autograph=False, jit_compile=jit_compile)
    def compute():
        variables = checkpoint.trained_variables(model)
        losses, gradients = local_gradients(model, variables, batch, SEED, parts=parts)
        return losses, *reduce_gradients(gradients)

    return compute()


def check(found, wanted, norm=1e-5, **tolerance):
    (ours, our_gradients, our_norm), (losses, gradients, plain_norm) = found, wanted
    for name, loss in losses.items():
        np.testing.assert_allclose(ours[name], loss, rtol=tolerance["rtol"])
    assert float(our_norm) == pytest.approx(float(plain_norm), rel=norm)  # rows of the tables count as they did
    assert our_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        np.testing.assert_allclose(our_gradients[name], gradient, **tolerance, err_msg=name)
    assert all(np.abs(gradient).max() > 1e-4 for name, gradient in our_gradients.items() if name.endswith("kernel"))

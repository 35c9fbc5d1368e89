"""Small models with dropout, and training steps without the update: losses, gradients, their norm, compared."""

import numpy as np
import pytest
import tensorflow as tf
from small_models import MAKERS, batch_for, randomize, small_config

from bert_tf2.training.options import PRECISIONS
from bert_tf2.training.step import local_gradients, reduce_gradients
from bert_tf2.weights import checkpoint

DROPOUT = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
ONE = tf.distribute.get_strategy()


def make(kind, precision="float32", strategy=ONE, **changes):
    with strategy.scope():
        model = MAKERS[kind](small_config(**{**DROPOUT, **changes}), dtype=PRECISIONS[precision].policy)
    model.head_dropout = 0.0
    randomize(model)
    return model


def batch_of(kind):
    """Whose labels are all at tokens, as in records; among 9 rows are a full one and one without predictions."""
    batch = batch_for(kind, 9)
    lengths = batch["input_mask"].sum(1)
    if kind == "tagging":
        batch["label_ids"] = np.where(batch["input_mask"] > 0, batch["label_ids"], -1)
    for name in ("start_positions", "end_positions"):
        batch[name] %= lengths
    return {name: tf.constant(values) for name, values in batch.items()}


def step_of(model, parts=1, jit_compile=False):
    """A graph function: batch -> losses, gradients by name, and their norm."""
    variables = checkpoint.trained_variables(model)

    @tf.function(jit_compile=jit_compile, autograph=False)
    def step(batch):
        losses, gradients = local_gradients(model, variables, batch, tf.constant([1, 2]), parts=parts)
        return losses, *reduce_gradients(gradients)

    return step


def check(found, wanted, norm=1e-5, rtol=1e-4, atol=3e-6):
    """Compares two results of such a step."""
    (ours, our_gradients, our_norm), (losses, gradients, plain_norm) = found, wanted
    for name, loss in losses.items():
        np.testing.assert_allclose(ours[name], loss, rtol=rtol)
    assert float(our_norm) == pytest.approx(float(plain_norm), rel=norm)  # rows of the tables count as they did
    assert our_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        np.testing.assert_allclose(our_gradients[name], gradient, rtol=rtol, atol=atol, err_msg=name)
    assert all(np.abs(gradient).max() > 1e-4 for name, gradient in our_gradients.items() if name.endswith("kernel"))

"""Small models with dropout, and the gradients of their training steps."""

import tensorflow as tf
from small_models import MAKERS, batch_for, randomize, small_config

from bert_tf2.training.options import PRECISIONS
from bert_tf2.training.step import local_gradients, reduce_gradients
from bert_tf2.weights import checkpoint

DROPOUT = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
ONE = tf.distribute.get_strategy()


def make(kind, precision="float32", strategy=ONE, **changes):
    with strategy.scope():
        model = MAKERS[kind](small_config(**DROPOUT, **changes), dtype=PRECISIONS[precision].policy)
    randomize(model)
    return model


def step_of(model, parts=1, jit_compile=False):
    """A graph function batch -> gradients by name."""
    variables = checkpoint.trained_variables(model)

    @tf.function(jit_compile=jit_compile)
    def step(batch):
        _, gradients = local_gradients(model, variables, batch, tf.constant([1, 2]), parts=parts)
        return reduce_gradients(gradients)[0]

    return step


def batch_of(kind):
    return {name: tf.constant(values) for name, values in batch_for(kind).items()}


def on_second_replica(model, two, kind):
    """The gradients by name, as the second of two replicas has them."""
    gradients = two.run(step_of(model), args=(batch_of(kind),))
    return {name: two.experimental_local_results(g)[1].numpy() for name, g in gradients.items()}

"""Training steps of this project on a clock, and the matrix products that they are compared with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import workload


def step_flops(config, lengths: Sequence[int], predictions: int = 0) -> float:
    """Floating-point operations of the matrix products of one training step: forward, and twice that backward.

    Args:
      config: the model's BertConfig.
      lengths: the number of tokens of each row, without padding.
      predictions: the masked words of all rows; 0 for a classifier.
    """
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    per_token = 2 * (4 * width * width + 2 * width * inner)
    # The second term are the scores of attention and the context.
    encoder = layers * sum(float(n) * (per_token + 2 * 2 * width * n) for n in lengths)
    head = predictions * 2 * (width * width + width * config.vocab_size) + len(lengths) * 2 * width * width
    return 3.0 * (encoder + head)


def product_rate(config, rows: int, precision: str) -> float:
    """Operations per second of [rows, hidden] x [hidden, intermediate]; the best of several tries."""
    import tensorflow as tf

    left = tf.cast(tf.random.normal([rows, config.hidden_size]), precision)
    right = tf.cast(tf.random.normal([config.hidden_size, config.intermediate_size]), precision)
    product = tf.function(lambda a, b: tf.matmul(a, b))

    def timed(count: int = 20) -> float:
        began = time.perf_counter()
        for _ in range(count):
            product(left, right)  # on a CPU this is synchronous
        return (time.perf_counter() - began) / count

    timed(3)
    return 2.0 * rows * config.hidden_size * config.intermediate_size / min(timed() for _ in range(5))


def time_training(
    make_model: Callable[[], Any],
    batches: Sequence[dict],
    unpad: str = "groups",
    profile_dir: str | None = None,
    **settings: Any,
) -> list[float]:
    """The seconds of each training step but the first ones, dropout and optimizer included.

    Args:
      make_model: creates the model.
      batches: features by name, one batch a step.
      unpad: how padding is left out; see fast.Plan.
      profile_dir: a folder for a profile of the timed steps.
      settings: fields of TrainOptions.
    """
    import tensorflow as tf

    from bert_tf2.fast.encoder import Plan, accelerate
    from bert_tf2.training.devices import build_model
    from bert_tf2.training.loop import Trainer
    from bert_tf2.training.options import TrainOptions

    strategy = tf.distribute.get_strategy()
    model = build_model(strategy, make_model, 1)
    schedule = {"learning_rate": 1e-4, "num_train_steps": 1000, "num_warmup_steps": 10}
    rows = len(next(iter(batches[0].values())))
    options = TrainOptions(output_dir="", train_batch_size=rows, **schedule, **settings)
    accelerate(model, Plan(unpad, options.recompute, share_graph=not options.xla))
    compiled = Trainer(model, strategy, options).step.compiled(jit_compile=options.xla)
    number = iter(range(len(batches)))

    def step(batch: dict) -> float:
        count = next(number)
        if count == workload.WARM_UP and profile_dir:
            tf.profiler.experimental.start(profile_dir)
        return compiled(batch, tf.constant(count, tf.int64))["loss"].numpy()

    tensors = [{name: tf.constant(values) for name, values in batch.items()} for batch in batches]
    for batch in tensors[workload.WARM_UP :]:  # XLA compiles for each number of tokens, once in a training
        compiled(batch, tf.constant(0, tf.int64))["loss"].numpy()
    seconds = workload.time_steps(step, tensors)
    if profile_dir:
        tf.profiler.experimental.stop()
    return seconds

"""Training steps of this project on a clock, and the matrix products that they are compared with."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
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
            product(left, right)
        tf.test.experimental.sync_devices()  # a GPU is only asked above
        return (time.perf_counter() - began) / count

    timed(3)
    return 2.0 * rows * config.hidden_size * config.intermediate_size / min(timed() for _ in range(5))


def measure(config, make_model: Callable[..., Any], batches: Sequence[dict], options, uneven: bool, **settings: Any):
    """Times training steps, dropout and optimizer included, between two measurements of the machine's rate.

    Args:
      config: the model's BertConfig.
      make_model: creates the model from `config` and a dtype.
      batches: features by name, one batch a step.
      options: the flags of a program: `precision`, `unpad`, and `profile_dir` where there is one.
      uneven: whether the batches have different lengths, so that the mean counts and not the median.
      settings: further fields of TrainOptions.

    Returns:
      The seconds of each step but the first ones, and a dictionary: `gflops` per second of the real work in a step,
      `machine_gflops` of a product alone, the `share` of the former in the latter, and all `losses`.
    """
    import tensorflow as tf

    from bert_tf2.fast.encoder import Plan, accelerate
    from bert_tf2.training.devices import build_model, computes_on
    from bert_tf2.training.loop import Trainer
    from bert_tf2.training.options import PRECISIONS, TrainOptions

    precision, (rows, length) = PRECISIONS[options.precision], batches[0]["input_mask"].shape
    rate = product_rate(config, rows * length, precision.exported)
    strategy, profile_dir = tf.distribute.get_strategy(), getattr(options, "profile_dir", None)
    model = build_model(strategy, lambda: make_model(config, dtype=precision.policy), 1)
    schedule = {"learning_rate": 1e-4, "num_train_steps": 1000, "num_warmup_steps": 10}
    training = TrainOptions(output_dir="", train_batch_size=rows, **schedule, **settings)
    on_cpu = computes_on(strategy) == "CPU"
    accelerate(model, Plan(options.unpad, training.recompute, share_graph=on_cpu and not training.xla))
    compiled = Trainer(model, strategy, training).step.compiled(jit_compile=training.xla)
    number, losses = iter(range(len(batches))), []

    def step(batch: dict) -> float:
        count = next(number)
        if count == workload.WARM_UP and profile_dir:
            tf.profiler.experimental.start(profile_dir)
        losses.append(float(compiled(batch, tf.constant(count, tf.int64))["loss"]))
        return losses[-1]

    tensors = [{name: tf.constant(values) for name, values in batch.items()} for batch in batches]
    for batch in tensors[workload.WARM_UP :] if uneven else []:  # XLA compiles for each number of tokens, once
        compiled(batch, tf.constant(0, tf.int64))["loss"].numpy()
    seconds = workload.time_steps(step, tensors)
    if profile_dir:
        tf.profiler.experimental.stop()
    rate = max(rate, product_rate(config, rows * length, precision.exported))
    flops = statistics.mean(
        step_flops(config, batch["input_mask"].sum(axis=1), batch.get("masked_lm_weights", np.zeros(1)).sum())
        for batch in batches[workload.WARM_UP :]
    )
    in_step = flops / (statistics.mean(seconds) if uneven else statistics.median(seconds))
    rates = {"gflops": in_step / 1e9, "machine_gflops": rate / 1e9, "share": in_step / rate}
    return seconds, {**rates, "losses": losses}

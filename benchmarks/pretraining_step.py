"""Times the pretraining step: examples/s, and the share of the machine's matrix-product rate that it reaches.

    python benchmarks/pretraining_step.py
    python benchmarks/pretraining_step.py --bert_config_file bert_config.json --batch_size 32 --precision bfloat16

The rate that counts as 100 % is measured in the same run, on the product that widens the states in a block. The
operations of a step are those of its matrix products, once forward and twice backward; no others are counted.
"""

from __future__ import annotations

import statistics
import time

from absl import flags as absl_flags

from bert_tf2.support import flags
from bert_tf2.support.settings import MODEL, TRAINING, options, setting
from bert_tf2.training.options import PrecisionOptions

FLAGS = absl_flags.FLAGS


@options
class BenchmarkOptions(PrecisionOptions):
    """Times the pretraining step: examples/s, and the share of the machine's matrix-product rate that it reaches."""

    bert_config_file: str | None = setting("Configuration of the model; BERT-Base without it.", None, group=MODEL)
    batch_size: int = setting("Examples per step.", 8, group=TRAINING, low=1)
    max_seq_length: int = setting("Tokens per example.", 128, group=TRAINING, low=5)
    max_predictions_per_seq: int = setting("Masked words per example.", 20, group=TRAINING, low=1)
    steps: int = setting("Steps to time.", 10, group=TRAINING, low=1)
    recompute: bool = setting("As in run_pretraining.py.", False, group=TRAINING)
    xla: bool = setting("Compile the whole step with XLA.", False, group=TRAINING)
    profile_dir: str | None = setting("Folder for a profile of the steps that TensorBoard shows.", None, group=TRAINING)


def step_flops(config, batch: int, length: int, predictions: int) -> float:
    """Floating-point operations of one training step's matrix products."""
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    per_token = 2 * (4 * width * width + 2 * width * inner) + 2 * 2 * width * length  # weights, then scores and context
    encoder = batch * length * layers * per_token
    head = batch * predictions * 2 * (width * width + width * config.vocab_size) + batch * 2 * width * width
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


def random_batch(config, batch: int, length: int, predictions: int) -> dict:
    import numpy as np
    import tensorflow as tf

    draw = np.random.default_rng(1)
    arrays = {
        "input_ids": draw.integers(0, config.vocab_size, [batch, length]),
        "input_mask": np.ones([batch, length]),
        "segment_ids": draw.integers(0, 2, [batch, length]),
        "masked_lm_positions": draw.integers(0, length, [batch, predictions]),
        "masked_lm_ids": draw.integers(0, config.vocab_size, [batch, predictions]),
        "next_sentence_labels": draw.integers(0, 2, [batch]),
    }
    batch_of_ids = {name: tf.constant(value, tf.int32) for name, value in arrays.items()}
    return {**batch_of_ids, "masked_lm_weights": tf.ones([batch, predictions])}


def step_seconds(config) -> list[float]:
    """The time of each of --steps training steps, dropout and optimizer included."""
    import tensorflow as tf

    from bert_tf2 import heads
    from bert_tf2.training.devices import build_model
    from bert_tf2.training.loop import Trainer
    from bert_tf2.training.options import POLICIES, TrainOptions

    strategy = tf.distribute.get_strategy()
    policy = POLICIES[FLAGS.precision]
    model = build_model(strategy, lambda: heads.PretrainingModel(config, dtype=policy), 1)
    options = TrainOptions(
        output_dir="", learning_rate=1e-4, num_train_steps=1000, num_warmup_steps=10, train_batch_size=FLAGS.batch_size,
        precision=FLAGS.precision, recompute=FLAGS.recompute,
    )  # fmt: skip
    step = Trainer(model, strategy, options).compiled_step(jit_compile=FLAGS.xla)
    batch = random_batch(config, FLAGS.batch_size, FLAGS.max_seq_length, FLAGS.max_predictions_per_seq)
    seconds = []
    for number in range(FLAGS.steps + 2):
        if number == 2 and FLAGS.profile_dir:
            tf.profiler.experimental.start(FLAGS.profile_dir)
        began = time.perf_counter()
        step(batch, tf.constant(number, tf.int64))["loss"].numpy()
        seconds.append(time.perf_counter() - began)
    if FLAGS.profile_dir:
        tf.profiler.experimental.stop()
    return seconds[2:]  # the first traces the graph, the second still allocates


def main(_: BenchmarkOptions) -> None:
    flags.load_tensorflow()
    import machine

    from bert_tf2.config import BertConfig

    config = (
        BertConfig.from_json_file(FLAGS.bert_config_file)
        if FLAGS.bert_config_file
        else BertConfig(vocab_size=30522, type_vocab_size=2)
    )
    rows = FLAGS.batch_size * FLAGS.max_seq_length
    before = product_rate(config, rows, FLAGS.precision)
    seconds = step_seconds(config)
    rate = max(before, product_rate(config, rows, FLAGS.precision))
    median = statistics.median(seconds)
    flops = step_flops(config, FLAGS.batch_size, FLAGS.max_seq_length, FLAGS.max_predictions_per_seq)
    print(machine.describe())
    print(
        f"{config.num_hidden_layers} layers, hidden {config.hidden_size}, batch {FLAGS.batch_size}, length"
        f" {FLAGS.max_seq_length}, {FLAGS.max_predictions_per_seq} predictions, {FLAGS.precision}"
    )
    print(
        f"step            {median:.3f} s (fastest {min(seconds):.3f}, slowest {max(seconds):.3f}, {len(seconds)} steps)"
    )
    print(f"examples/s      {FLAGS.batch_size / median:.2f}")
    print(f"matrix products {flops / median / 1e9:.0f} GFLOP/s in the step, {rate / 1e9:.0f} GFLOP/s alone")
    print(f"share           {100 * flops / median / rate:.0f} %")
    print(f"peak memory     {machine.peak_memory_gb():.2f} GB")


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

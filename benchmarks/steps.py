"""Times training steps of this project, and the matrix products that they are compared with."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import machine
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
    # The second term is the scores of attention and the context.
    encoder = layers * sum(float(n) * (per_token + 2 * 2 * width * n) for n in lengths)
    head = predictions * 2 * (width * width + width * config.vocab_size) + len(lengths) * 2 * width * width
    return 3.0 * (encoder + head)


# The size of each side of the product that measures a GPU. A GPU computes the product of a block in less time than it
# takes to start it, so the product of a block would measure the rate of the host.
_GPU_SIDE = 8192


def product_rate(config, rows: int, policy: str) -> float:
    """Operations per second of [rows, hidden] x [hidden, intermediate] (a larger product on a GPU); the best try.

    `policy`: the Keras dtype policy of the model, whose products have its compute dtype.
    """
    import tensorflow as tf

    sides = (rows, config.hidden_size, config.intermediate_size)
    if tf.config.list_logical_devices("GPU"):
        sides = (_GPU_SIDE,) * 3
    left, right = (tf.cast(tf.random.normal(shape), policy.removeprefix("mixed_")) for shape in (sides[:2], sides[1:]))
    product = tf.function(lambda a, b: tf.matmul(a, b))

    def timed(count: int = 20) -> float:
        began = time.perf_counter()
        for _ in range(count):
            product(left, right)
        tf.test.experimental.sync_devices()  # the calls above only enqueue work on a GPU
        return (time.perf_counter() - began) / count

    timed(3)
    return 2.0 * math.prod(sides) / min(timed() for _ in range(5))


def peak_memory_gb() -> float:
    """The peak of the GPU's memory (without a GPU, of this process' memory), in GB of 10^9 bytes."""
    import tensorflow as tf

    if tf.config.list_logical_devices("GPU"):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"] / 1e9
    return machine.peak_memory_gb()


def measure(config, make_model: Callable[..., Any], batches: Sequence[dict], options, uneven: bool, **settings: Any):
    """Times training steps, dropout and optimizer included, between two measurements of the machine's rate.

    Args:
      config: the model's BertConfig.
      make_model: creates the model from `config` and a dtype.
      batches: features by name, one batch a step.
      options: the flags of a program: `precision`, `unpad`, and optionally `profile_dir`.
      uneven: whether the batches have different lengths, so that the mean counts and not the median.
      settings: further fields of LoopOptions.

    Returns:
      The seconds of each step after the warm-up, and a dictionary: `gflops` per second of the real work in a step,
      `machine_gflops` of a product alone, the `share` of `gflops` in `machine_gflops`, all `losses`, the seconds of the
      `first_step`, and `memory_gb`, see peak_memory_gb. With `options.loop`, the steps are calls of the loop of a
      training, which XLA thus compiles once, and there is `examples_per_second_in_loop`, the rate of a training: one
      call runs several steps, and no step waits until its loss is read. On a GPU, there is also
      `examples_per_second_with_copies`, the same if each step copies its batch to the GPU.
    """
    import tensorflow as tf

    from bert_tf2.training.options import PRECISIONS

    policy, (rows, length) = PRECISIONS[options.precision].policy, batches[0]["input_mask"].shape
    rate, profile_dir = product_rate(config, rows * length, policy), getattr(options, "profile_dir", None)
    training_step, compiled = _step_of(config, make_model, rows, options, options.unpad, **settings)
    loop = _loop_of(training_step, batches) if getattr(options, "loop", False) else None
    number, losses, took = iter(range(len(batches))), [], []

    def loss_of(batch: dict, count: int) -> float:
        return loop(count, 1) if loop else float(compiled(batch, tf.constant(count, tf.int64))["loss"])

    def step(batch: dict) -> float:
        count = next(number)
        if count == workload.WARM_UP and profile_dir and not loop:
            tf.profiler.experimental.start(profile_dir)
        began = time.perf_counter()
        losses.append(loss_of(batch, count))
        took.append(time.perf_counter() - began)
        return losses[-1]

    tensors = [{name: tf.constant(values) for name, values in batch.items()} for batch in batches]
    for batch in tensors if uneven else []:  # XLA compiles for each number of tokens, once
        loss_of(batch, 0)
    seconds = workload.time_steps(step, tensors)
    if profile_dir and not loop:
        tf.profiler.experimental.stop()
    rate = max(rate, product_rate(config, rows * length, policy))
    flops = statistics.mean(
        step_flops(config, batch["input_mask"].sum(axis=1), batch.get("masked_lm_weights", np.zeros(1)).sum())
        for batch in batches[workload.WARM_UP :]
    )
    in_step = flops / (statistics.mean(seconds) if uneven else statistics.median(seconds))
    rates = {"gflops": in_step / 1e9, "machine_gflops": rate / 1e9, "share": in_step / rate}
    measured = {**rates, "losses": losses, "first_step": took[0], "memory_gb": peak_memory_gb()}
    if loop:
        measured["examples_per_second_in_loop"] = rows * _rate_of(loop, len(batches))
        if tf.config.list_logical_devices("GPU"):
            copying = functools.partial(loop, copies=True)
            measured["examples_per_second_with_copies"] = rows * _rate_of(copying, len(batches))
        if profile_dir:
            with tf.profiler.experimental.Profile(profile_dir):
                loop(0, len(batches) - workload.WARM_UP)
    return seconds, measured


def _step_of(config, make_model: Callable[..., Any], rows: int, options, unpad: str, **settings: Any):
    """A training step of batches of `rows` examples, and its graph for one batch: (batch, step) -> measures."""
    import tensorflow as tf

    from bert_tf2.fast import fused_attention
    from bert_tf2.fast.encoder import Plan, accelerate
    from bert_tf2.training.devices import build_model, computes_on
    from bert_tf2.training.loop import Trainer
    from bert_tf2.training.options import PRECISIONS, LoopOptions

    strategy = tf.distribute.get_strategy()
    model = build_model(strategy, lambda: make_model(config, dtype=PRECISIONS[options.precision].policy), 1)
    schedule = {"learning_rate": 1e-4, "num_train_steps": 1000, "num_warmup_steps": 10}
    training = LoopOptions(output_dir="", train_batch_size=rows, **schedule, **settings)
    jit_compile = training.xla == "true"
    on_cpu = computes_on(strategy) == "CPU"
    fused = fused_attention.attend if training.attention == "fused" else None
    accelerate(model, Plan(unpad, training.recompute, share_graph=on_cpu and not jit_compile, attention=fused))
    training_step = Trainer(model, strategy, training).step
    return training_step, training_step.compiled(jit_compile=jit_compile)


def in_turn(config, make_model: Callable[..., Any], batches: Sequence[dict], options, **settings: Any):
    """Times the variants without padding: each batch in all variants before the next batch.

    Args: see `measure`. With `options.xla`, which needs fixed shapes, "groups" is left out, and the batches are those
      with the most frequent number of rows, since XLA would compile a program, a minute on a GPU, for each number.

    Returns:
      Variant -> the seconds of the batches after the warm-up, and the number of rows that each batch computed.
    """
    import tensorflow as tf

    from bert_tf2.data.batching import packed
    from bert_tf2.data.records import PACKED

    rows, ways = len(batches[0]["input_mask"]), ("padded", *([] if options.xla == "true" else ["groups"]), "packed")
    unpad = {"groups": "groups", "padded": "none", "packed": "none" if options.xla == "true" else "groups"}
    parts, runs = settings.get("gradient_accumulation_steps", 1), {}
    with tf.device("CPU:0"):  # as in the pipeline of a training
        tensors = [{name: tf.constant(values) for name, values in batch.items()} for batch in batches]
        of_packed = [packed(batch, parts) for batch in tensors]
    if options.xla == "true":
        usual = statistics.mode(batch[PACKED[0]].shape[0] for batch in of_packed)
        alike = [batch for batch in of_packed if batch[PACKED[0]].shape[0] == usual]
        of_packed = [alike[number % len(alike)] for number in range(len(batches))]
    for way in ways:
        counts = [batch[PACKED[0]].shape[0] if way == "packed" else rows for batch in of_packed]
        tensors = of_packed
        if way != "packed":
            tensors = [{name: batch[name] for name in batches[0]} for batch in of_packed]
        how = {**settings, "pack_rows": way == "packed"}
        step = _step_of(config, make_model, rows, options, unpad[way], **how)[1]
        specs = {name: tf.TensorSpec(values.shape, values.dtype) for name, values in tensors[0].items()}
        if way == "packed":  # a graph for all numbers of rows, as in a training
            specs[PACKED[0]] = tf.TensorSpec([None, *specs[PACKED[0]].shape[1:]], tf.int32)
        signature = None if options.attention == "fused" else [specs, tf.TensorSpec([], tf.int64)]
        run = tf.function(step, input_signature=signature, autograph=False)
        runs[way] = run, tensors, counts
    for way, (run, tensors, _) in runs.items():  # XLA compiles for each number of tokens or rows, once
        began = time.perf_counter()
        for batch in tensors:
            run(batch, tf.constant(0, tf.int64))["loss"].numpy()
        print(f"{way:8s} first steps in {time.perf_counter() - began:.1f} s", flush=True)
    seconds = {way: [] for way in ways}
    for number in range(workload.WARM_UP, len(batches)):
        for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
            run, tensors, _ = runs[way]
            began = time.perf_counter()
            float(run(tensors[number], tf.constant(number, tf.int64))["loss"])
            seconds[way].append(time.perf_counter() - began)
    return {way: (seconds[way], runs[way][2][workload.WARM_UP :]) for way in ways}


def _loop_of(training_step, batches: Sequence[dict]) -> Callable[..., float]:
    """The loop of a training: (the first step, the number of steps, copies=False) -> the sum of the losses.

    Each call continues with the batch after the last batch of the call before. `copies`: see `measure`.
    """
    import tensorflow as tf

    columns = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
    data = tf.data.Dataset.from_tensor_slices(columns).repeat().prefetch(tf.data.AUTOTUNE)
    iterators = {False: iter(training_step.batches_on_device(data)), True: iter(data)}
    steps = training_step.several()

    def run(first: int, count: int, copies: bool = False) -> float:
        return float(steps(iterators[copies], tf.constant(first, tf.int64), tf.constant(count))[0]["loss"])

    return run


def _rate_of(loop: Callable[[int, int], float], count: int) -> float:
    """Steps per second of the fastest of some calls of a loop, each of `count` steps."""
    return count / min(workload.time_steps(lambda steps: loop(0, steps), [count] * (workload.WARM_UP + 3)))

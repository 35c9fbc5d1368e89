"""How much memory a training needs, estimated before the first step, and how much the device has."""

from __future__ import annotations

import tensorflow as tf
from absl import logging

from bert_tf2.config import BertConfig
from bert_tf2.fast.recompute import keeps_activations
from bert_tf2.support import free_memory
from bert_tf2.support.environment import human
from bert_tf2.support.errors import UserError
from bert_tf2.training.devices import computes_on
from bert_tf2.training.options import TrainOptions
from bert_tf2.training.precision import PRECISIONS
from bert_tf2.weights import checkpoint

_FLOAT32 = 4
# What TensorFlow itself needs on a GPU (its libraries, buffers of the matrix products). On a CPU it is in use already.
_OF_A_GPU = 0.5e9
# Fitted: what the backward pass of a block has at once, in activations of a block, and in tensors of its scores.
_BACKWARD, _SCORES = 1.5, 3
# The share of the estimate that a training needs at least, and of the activations if texts are short and their padding
# is left out.
_CERTAIN = 0.8
_SHORT = 0.125


def estimate(
    config: BertConfig, parameters: int, rows: int, length: int, predictions: int, options: TrainOptions
) -> dict[str, float]:
    """Estimates the memory of a training; the measurements that it was fitted to are in docs/performance.md.

    Args:
      config: of the encoder.
      parameters: the number of trained values.
      rows: examples in a batch, or in a part of it, of one device.
      length: tokens in each of them.
      predictions: masked words in each of them; 0 for other tasks.
      options: the settings: precision, recompute, gradient_accumulation_steps.

    Returns:
      The bytes of the `parameters`, of the `optimizer` (Adam's two means), of the `gradients` (with their sums over the
      parts of a batch, before and after an addition), and of the `activations` that the backward pass needs.
    """
    width = PRECISIONS[options.precision].activation_bytes
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    # What a block keeps for the backward pass. Of each token: its state, query, key, value, context by head and merged,
    # both branches before their addition, the state between them; the wide states before and after the activation
    # function; two times the random bits of dropout. Of each attention score: the probability in float32, and whether
    # dropout keeps it.
    of_token = config.hidden_size * (9 * width + 4) + config.intermediate_size * 2 * width
    block = rows * length * (of_token + heads * length * (_FLOAT32 + 1))
    states, scores = rows * length * config.hidden_size * width, rows * heads * length**2 * _FLOAT32
    words = rows * predictions * config.vocab_size * _FLOAT32
    blocks = layers * block
    if options.recompute:  # the inputs, the blocks that are kept, and the one that is computed again beside them
        blocks = layers * states + min(layers, sum(keeps_activations(layers)) + 1) * block
    weights = _FLOAT32 * parameters
    return {
        "parameters": weights,
        "optimizer": 2 * weights,
        "gradients": (3 if options.gradient_accumulation_steps > 1 else 1) * weights,
        "activations": blocks + _BACKWARD * block + _SCORES * scores + 3 * states + 3 * words,
    }


def check(model, strategy: tf.distribute.Strategy, options: TrainOptions, batches: dict[str, tf.TensorSpec]) -> None:
    """Logs the memory that a training needs, and warns if the device may have less; not for batches of unknown shapes.

    Args:
      model: one of `heads`, with its optimizer's slots.
      strategy: the devices.
      options: the settings.
      batches: the features of a batch, by name.

    Raises:
      UserError: it computes on the CPU, which certainly has less.
    """
    masked, width = batches.get("masked_lm_positions"), batches["input_ids"].shape[1]
    length, predictions = options.max_seq_length or width, 0 if masked is None else masked.shape[1]
    if length is None or predictions is None:
        return
    replicas = strategy.num_replicas_in_sync
    rows = -(-options.train_batch_size // (replicas * options.gradient_accumulation_steps))
    parameters = sum(variable.shape.num_elements() for variable in checkpoint.trained_variables(model).values())
    parts = estimate(model.config, parameters, rows, length, predictions, options)
    kept, activations = parts["parameters"] + parts["optimizer"], parts["activations"]
    kind = computes_on(strategy)
    on_cpu, capacity, other = kind == "CPU", _of_the_gpu() if kind == "GPU" else None, _OF_A_GPU
    if on_cpu:
        capacity, other = _of_this_machine(), max(0.0, (free_memory.own_bytes() or 0.0) - kept)
        parts["a copy for checkpoints"] = kept  # that of a GPU is in the memory of the host
    parts["other"] = other
    total = sum(parts.values())
    logging.info(
        "Memory%s: about %s%s: %s",
        " of each device" if replicas > 1 else "",
        human(total),
        f" of {human(capacity)}" if capacity else "",
        ", ".join(f"{name} {human(size)}" for name, size in parts.items()),
    )
    if not capacity or total <= capacity:
        return
    fixed = total - activations
    advice = f"{human(fixed)} without any batch, so use a smaller model or a device with more memory"
    if fixed < capacity:
        advice = f"what may help: {', '.join(_remedies(options, rows))}"
    padded = width is not None and model.encoder.computes_padding
    least = _CERTAIN * (fixed + activations * (1.0 if padded else _SHORT))
    sizes = f"about {human(total)} of {human(capacity)}; {advice}"
    if on_cpu and least > _of_this_machine(swap=True):
        raise UserError(f"the training needs more memory than there is for this process: {sizes}")
    logging.warning("The training may need more memory than there is: %s", sizes)


def _remedies(options: TrainOptions, rows: int) -> list[str]:
    """The flags that lower the memory of a batch."""
    found = {
        "--recompute": not options.recompute,
        f"--gradient_accumulation_steps={2 * options.gradient_accumulation_steps}": rows > 1,
        f"a --train_batch_size below {options.train_batch_size}": rows > 1,
        "a smaller --max_seq_length": True,
        "--precision=bfloat16": not PRECISIONS[options.precision].is_narrow,
        "a higher limit (ulimit -v)": free_memory.address_limit() is not None,
    }
    return [remedy for remedy, helps in found.items() if helps]


def _of_this_machine(swap: bool = False) -> float | None:
    """The bytes that this process has and may still get; None if the system does not tell."""
    used, free = free_memory.own_bytes(), free_memory.available_bytes(swap=swap)
    return None if used is None or free is None else used + free


def _of_the_gpu() -> float | None:
    """The bytes that TensorFlow may use on the smallest GPU; None if it does not tell, or there is none."""
    try:
        from tensorflow.python.client import device_lib  # the only place where TensorFlow tells it

        limits = [device.memory_limit for device in device_lib.list_local_devices() if device.device_type == "GPU"]
    except (ImportError, RuntimeError, tf.errors.OpError):
        return None
    return float(min(limits)) if limits else None

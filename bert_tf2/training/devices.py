"""The devices that a model runs on, and the creation of a model on them."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from bert_tf2.support.errors import UserError
from bert_tf2.training import tpu
from bert_tf2.training.options import DeviceOptions

_HERE = DeviceOptions()


def create_strategy(options: DeviceOptions = _HERE) -> tf.distribute.Strategy:
    """Returns the distribution strategy: a TPU if requested, else all visible GPUs, else the CPU.

    Raises:
      UserError: the TPU cannot be reached, or does not have num_tpu_cores cores.
    """
    if options.use_tpu:
        return _tpu_strategy(options)
    gpus = tf.config.list_logical_devices("GPU")
    return tf.distribute.MirroredStrategy() if len(gpus) > 1 else tf.distribute.get_strategy()


def _tpu_strategy(options: DeviceOptions) -> tf.distribute.Strategy:
    strategy = tpu.connect(options.tpu_name or options.master, options.tpu_zone, options.gcp_project)
    if strategy.num_replicas_in_sync != options.num_tpu_cores:
        raise UserError(
            f"--num_tpu_cores={options.num_tpu_cores}, but this TPU has {strategy.num_replicas_in_sync} cores"
        )
    return strategy


def build_model(strategy: tf.distribute.Strategy, make_model: Callable[[], keras.Model], random_seed: int):
    """Creates a model in the scope of the strategy; the same seed gives the same initial weights."""
    keras.utils.set_random_seed(random_seed)
    with strategy.scope():
        return make_model()

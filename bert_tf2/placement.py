"""The devices and the compiler for which a graph is built, where the best operations depend on them."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.ops import control_flow_util


def computes_on(strategy: tf.distribute.Strategy) -> str:
    """The kind of the devices of a strategy: CPU, GPU or TPU."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return "TPU"
    if isinstance(strategy, (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)):
        return "GPU" if any("GPU" in device for device in strategy.extended.worker_devices) else "CPU"
    return "GPU" if tf.config.list_logical_devices("GPU") else "CPU"  # the default strategy places nothing


def built_for() -> str:
    """The kind of the devices for which a graph is built now: CPU, GPU or TPU."""
    return computes_on(tf.distribute.get_strategy())


def in_program() -> bool:
    """Whether the graph that is built now belongs to a program of XLA."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def in_program_for_gpu() -> bool:
    return built_for() == "GPU" and in_program()

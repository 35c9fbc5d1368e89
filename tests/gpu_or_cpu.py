"""The device that a test computes on: the GPU where there is one and it is not hidden, and the CPU.

conftest.py hides GPUs unless BERT_TF2_TEST_GPU is set, as `make test-gpu` does. Then the first one is divided into two
logical devices, because two replicas are needed.
"""

from __future__ import annotations

import contextlib

import pytest
import tensorflow as tf

NONE_HERE = "there is no GPU, or it is hidden: make test-gpu, on a machine that has one"


def divide() -> None:
    """Makes two logical CPUs, and two logical GPUs if there is one that is not hidden. This cannot be done later."""
    for device in [*tf.config.list_physical_devices("CPU")[:1], *tf.config.list_physical_devices("GPU")[:1]]:
        memory = {"memory_limit": 4096} if device.device_type == "GPU" else {}
        tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration(**memory)] * 2)


def need(kind: str) -> None:
    """Skips the test if there is no device of a kind, CPU or GPU."""
    if not tf.config.list_logical_devices(kind):
        pytest.skip(NONE_HERE)


@contextlib.contextmanager
def computing_on(kind: str):
    """Variables and operations on the first device of a kind."""
    with tf.device(f"/{kind}:0"):
        yield tf.distribute.get_strategy()


def replicas(kind: str, of_cpus: tf.distribute.Strategy) -> tf.distribute.Strategy:
    """Two replicas; those of a GPU without NCCL, which refuses two devices that are one."""
    if kind == "CPU":
        return of_cpus
    return tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice())

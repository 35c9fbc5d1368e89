"""Settings that must precede the start of TensorFlow, and fixtures that several test files share."""

import logging
import os
import signal

if os.environ.get("BERT_TF2_TEST_GPU") != "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the tolerances are those of a CPU
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import gpu_or_cpu
import pytest
import tensorflow as tf
from command_lines import CommandLines

gpu_or_cpu.divide()  # so that a test can train on two replicas

# Under nohup or in the background of a shell script, these are ignored, also by the scripts that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def two() -> tf.distribute.Strategy:
    """Two replicas. One strategy for all tests: those of several would take each other's collective operations."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(scope="session")
def command_lines():
    """Runs the scripts; started once, because it imports TensorFlow in a separate process."""
    with CommandLines() as started:
        yield started


class _Messages(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture
def log_lines():
    """A list of the messages logged through absl during the test, which grows as they are logged."""
    logger = logging.getLogger("absl")
    handler, level = _Messages(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler.lines
    logger.removeHandler(handler)
    logger.setLevel(level)

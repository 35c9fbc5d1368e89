"""Settings that must precede the start of TensorFlow, and fixtures that several test files share."""

import ctypes
import gc
import logging
import os
import signal

if os.environ.get("BERT_TF2_TEST_GPU") != "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the tolerances are those of a CPU
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["HF_HUB_OFFLINE"] = "1"  # a wrong path is not looked for elsewhere
if "PYTEST_XDIST_WORKER" in os.environ:  # one worker for each core, which needs no more threads than one
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import absl.logging
import pytest
from command_lines import CommandLines

pytest_plugins = ("text_fixtures",)

# All of what is in them needs an extra, and has the mark.
NEED_EXTRAS = ("test_dask_run.py", "test_interop.py", "test_runtimes.py", "test_trained_weights.py")

# Under nohup or in the background of a shell script, these are ignored, also by the scripts that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure(config):
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # this process only distributes the tests, and can do without TensorFlow
    if os.environ.get("BERT_TF2_TEST_GPU") == "1":  # as for users; XLA's autotuner would take minutes
        from bert_tf2.support import xla_flags

        xla_flags.prepare(xla_flags.NO_CACHE)
    import tensorflow as tf

    # Two logical devices, so that a test can train on two replicas; also of a GPU that is not hidden, for test_gpu.py.
    for device in [*tf.config.list_physical_devices("CPU")[:1], *tf.config.list_physical_devices("GPU")[:1]]:
        memory = {"memory_limit": 4096} if device.device_type == "GPU" else {}
        tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration(**memory)] * 2)


def pytest_make_parametrize_id(val, argname):
    """Names contents of files by their argument: gzip writes the time into them, and all workers need equal names."""
    return argname if isinstance(val, bytes) else None


def pytest_ignore_collect(collection_path, config):
    """Leaves out the files with the mark `extra` before they import torch and the like: seconds, and memory."""
    return True if "not extra" in config.option.markexpr and collection_path.name in NEED_EXTRAS else None


@pytest.fixture(scope="session", autouse=True)
def without_xla():
    """Leaves out XLA, whose compilation takes longer than what tiny models compute; returns what decides on it."""
    from bert_tf2.fast import compiled

    with pytest.MonkeyPatch.context() as patch:
        can_compile = compiled.can_compile
        patch.setattr(compiled, "can_compile", lambda: False)
        yield can_compile


@pytest.fixture(autouse=True)
def xla_where_asked_for(request, without_xla, monkeypatch):
    """Tests with the mark `compiled` compute as users do; so do scripts, which are other processes."""
    if request.node.get_closest_marker("compiled"):
        monkeypatch.setattr("bert_tf2.fast.compiled.can_compile", without_xla)


@pytest.fixture(scope="session", autouse=True)
def imports_stay():
    """What the imports made is garbage never; to look for it again after every module takes half a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def graphs_are_forgotten(imports_stay):
    """Frees the graphs of a module's tests; otherwise a worker grows to several GB.

    TensorFlow registers every gradient of tf.custom_gradient in a graph for good, and with it all that it refers to.
    """
    from tensorflow.python.framework import ops

    gradients = ops.gradient_registry._registry
    before = {*gradients}
    yield
    for name in gradients.keys() - before:
        if name.startswith("CustomGradient-"):
            del gradients[name]
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # in glibc: gives free memory back to the system
        trim(0)


@pytest.fixture(scope="session")
def two():
    """Two replicas. One strategy for all tests: those of several would take each other's collective operations."""
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(scope="session")
def command_lines():
    """Runs the scripts; started once, because it imports TensorFlow in a separate process."""
    with CommandLines() as started:
        yield started


@pytest.fixture(scope="session")
def quick_lines():
    """Runs the scripts where TensorFlow cannot be imported: a command line that needs it fails with a traceback."""
    with CommandLines(quick=True) as started:
        yield started


@pytest.fixture(scope="session")
def bad_files(tmp_path_factory):
    """A folder with valid and damaged files of every kind, which no test changes."""
    import bad_calls

    path = tmp_path_factory.mktemp("files")
    bad_calls.write_files(path)
    return path


class _Messages(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture
def log_lines():
    """A list of the messages logged through absl during the test, which grows as they are logged."""
    logger, handler, verbosity = logging.getLogger("absl"), _Messages(), absl.logging.get_verbosity()
    logger.addHandler(handler)
    # The level of the logger alone does not last: tf.saved_model.save restores the level that absl remembers.
    absl.logging.set_verbosity(absl.logging.INFO)
    yield handler.lines
    logger.removeHandler(handler)
    absl.logging.set_verbosity(verbosity)

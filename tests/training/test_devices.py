"""What TensorFlow computes on, what is said about it, and settings of the whole process."""

import pytest
import tensorflow as tf

from bert_tf2.fast.encoder import Plan
from bert_tf2.support import xla_flags
from bert_tf2.support.errors import UserError
from bert_tf2.training import devices
from bert_tf2.training.options import PRECISIONS, DeviceOptions, PrecisionOptions, TrainingOptions

REQUIRED = {"bert_config_file": "x", "output_dir": "x"}
ONE = tf.distribute.get_strategy()


@pytest.mark.compiled
def test_the_first_line_names_devices_and_precision(log_lines):
    strategy = devices.create_strategy(DeviceOptions(precision="float32"))
    (line,) = (line for line in log_lines if line.startswith("Computing on"))
    assert line.startswith("Computing on the CPU (") and line.endswith("cores), precision float32")
    assert devices.computes_on(strategy) == "CPU" and devices.can_compile(strategy)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", [DeviceOptions, PrecisionOptions])  # as run_*.py have, and predict_masked.py
def test_only_float32_forbids_tf32(precision, kind):
    with devices.configured(kind(precision=precision)):
        assert tf.config.experimental.tensor_float_32_execution_enabled() == (precision != "float32")
    assert tf.config.experimental.tensor_float_32_execution_enabled()


def test_a_gpu_that_tensorflow_cannot_use_is_reported(monkeypatch, log_lines):
    monkeypatch.setattr("glob.glob", lambda pattern: ["/dev/nvidia0"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices.create_strategy()
    (line,) = (line for line in log_lines if "NVIDIA" in line)
    assert line.startswith("this machine has an NVIDIA GPU, but TensorFlow cannot use it and computes on the CPU")
    assert "pip install 'tensorflow[and-cuda]'" in line
    for hidden in ("", "-1"):  # hidden on purpose
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert not xla_flags.has_gpu()


def plan(hidden_size=128, **settings):
    return devices.plan_for(TrainingOptions(**REQUIRED, **settings), ONE, hidden_size)


@pytest.mark.parametrize(
    ("kind", "hidden_size", "settings", "expected"),
    [
        ("CPU", 128, {}, Plan("groups", share_graph=True)),
        ("CPU", 96, {}, Plan("none", share_graph=True)),
        ("CPU", 768, {"xla": "true"}, Plan("none", share_graph=False)),
        ("CPU", 96, {"xla": "true"}, Plan("none", share_graph=False)),
        ("CPU", 128, {"unpad": "groups", "recompute": True}, Plan("groups", recompute=True, share_graph=True)),
        ("GPU", 128, {}, Plan("none", share_graph=False)),
        ("TPU", 128, {}, Plan("none", share_graph=False)),
        ("GPU", 128, {"unpad": "groups"}, Plan("groups", share_graph=False)),
    ],
)
def test_a_model_is_accelerated_as_the_devices_gain_by_it(monkeypatch, kind, hidden_size, settings, expected):
    monkeypatch.setattr(devices, "computes_on", lambda strategy: kind)
    assert plan(hidden_size, **settings) == expected


def test_fixed_shapes_keep_their_padding(monkeypatch):
    with pytest.raises(UserError, match="--unpad=groups: a TPU and --xla compute fixed shapes"):
        plan(unpad="groups", xla="true")
    monkeypatch.setattr(devices, "computes_on", lambda strategy: "TPU")
    with pytest.raises(UserError, match="--unpad=groups: a TPU and --xla"):
        plan(unpad="groups")
    assert devices.plan_for(TrainingOptions(**REQUIRED, unpad="groups"), ONE, 128, padded=True).unpad == "none"

"""The devices that TensorFlow computes on, what the log reports about them, and settings of the whole process.

A TPU as far as it can be tried without one: its resolver is a fake, and its strategy computes on the CPU.
"""

from __future__ import annotations

import contextlib
import socket
import types

import grpc
import pytest
import tensorflow as tf
from refused import message_of, refuses
from small_models import small_config

from bert_tf2.fast import fused_attention
from bert_tf2.fast.encoder import Plan
from bert_tf2.finetuning.options import SquadOptions
from bert_tf2.training import devices, programs
from bert_tf2.training.options import PRECISIONS, DeviceOptions, PrecisionOptions, ProgramOptions, TrainingOptions

ONE = tf.distribute.get_strategy()


class OnCpu(tf.distribute.OneDeviceStrategy):
    """In place of TPUStrategy."""

    def __init__(self, resolver):
        super().__init__("/cpu:0")


@pytest.fixture
def calls(monkeypatch) -> list[tuple]:
    """What was asked of the system of a TPU, in order."""
    made: list[tuple] = []

    def resolver(tpu, zone, project):
        made.append(("resolve", tpu, zone, project))
        return types.SimpleNamespace(master=lambda: "local")

    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", resolver)
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", lambda resolver: made.append(("connect",)))
    experimental = types.SimpleNamespace(initialize_tpu_system=lambda resolver: made.append(("initialize",)))
    monkeypatch.setattr(tf, "tpu", types.SimpleNamespace(experimental=experimental))
    monkeypatch.setattr(tf.distribute, "TPUStrategy", OnCpu)
    return made


@pytest.mark.compiled
def test_the_first_line_names_devices_and_precision(log_lines, two):
    strategy = devices.create_strategy(DeviceOptions(precision="bfloat16"))
    (line,) = (line for line in log_lines if line.startswith("Computing on"))
    assert line.startswith("Computing on the CPU (") and line.endswith("cores), precision bfloat16")
    assert programs.can_compile(strategy)
    with two.scope():
        assert devices.create_strategy() is two


@pytest.mark.parametrize("kind", [DeviceOptions, PrecisionOptions])  # as run_*.py have, and predict_masked.py
def test_only_float32_forbids_tf32(kind):
    for precision in PRECISIONS:
        with devices.configured(kind(precision=precision)):
            assert tf.config.experimental.tensor_float_32_execution_enabled() == (precision != "float32")
        assert tf.config.experimental.tensor_float_32_execution_enabled()


def test_a_gpu_that_tensorflow_cannot_use_is_reported_unless_it_is_hidden(monkeypatch, log_lines):
    monkeypatch.setattr("glob.glob", lambda pattern: ["/dev/nvidia0"])
    for hidden in ("-1", "", None):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden or "")
        if hidden is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        devices.create_strategy()
        assert any("pip install 'tensorflow[and-cuda]'" in line for line in log_lines) == (hidden is None)


@pytest.mark.parametrize(("capability", "is_slow"), [((7, 5), True), ((8, 0), False)])
def test_bfloat16_on_a_gpu_without_it_is_reported(monkeypatch, log_lines, capability, is_slow):
    monkeypatch.setattr(devices, "computes_on", lambda strategy: "GPU")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"])
    details = {"compute_capability": capability, "device_name": "a GPU"}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)
    devices.create_strategy(DeviceOptions(precision="bfloat16"))
    assert any("--precision=float16" in line for line in log_lines) == is_slow


FUSED = {"attention": "fused", "precision": "bfloat16", "xla": "true"}


@pytest.mark.parametrize(
    ("words", "changes", "of_config"),
    [
        ("--attention=fused bfloat16 float32", {"precision": "float32"}, {}),
        ("--attention=fused --xla", {"xla": "auto"}, {}),
        ("--attention=fused --pad_to_max_length --pack_rows", {"pad_to_max_length": False}, {}),
        ("--attention=fused attention_probs_dropout_prob config.json", {}, {"attention_probs_dropout_prob": 0.1}),
        ("--attention=fused multiple config.json", {}, {"num_attention_heads": 2}),
        ("--attention=plain GPU", {}, {}),
    ],
)
def test_attention_in_one_kernel_is_refused_where_it_is_impossible(tmp_path, words, changes, of_config):
    """Each cause is one sentence; the last is a machine without a GPU."""
    made = {"num_attention_heads": 1, **of_config}
    (tmp_path / "config.json").write_text(small_config(**made).to_json_string())
    given = {"output_dir": "out", "bert_config_file": tmp_path / "config.json", "do_train": True, **FUSED}
    given |= {"vocab_file": "x", "train_file": "x", "pad_to_max_length": True, "max_seq_length": 16, **changes}

    def prepare():
        options = SquadOptions(**given)
        ProgramOptions.check_inputs(options)
        devices.plan_for(options, ONE, 8)

    refuses(words, prepare)


@pytest.mark.parametrize(
    ("kind", "hidden_size", "settings", "expected"),
    [
        ("CPU", 128, {}, Plan("groups", share_graph=True)),
        ("CPU", 127, {}, Plan("none", share_graph=True)),
        ("CPU", 768, {"xla": "true"}, Plan("none", share_graph=False)),
        ("CPU", 128, {"unpad": "groups", "recompute": True}, Plan("groups", recompute=True, share_graph=True)),
        ("CPU", 128, {"unpad": "groups", "xla": "true"}, None),
        ("GPU", 128, {}, Plan("none", share_graph=False)),
        ("GPU", 128, {"unpad": "groups"}, Plan("groups", share_graph=False)),
        ("GPU", 128, {"precision": "bfloat16", "xla": "true"}, Plan()),
        ("GPU", 128, FUSED, Plan(attention=fused_attention.attend)),
        ("GPU", 128, {**FUSED, "pack_rows": True}, Plan(attention=fused_attention.attend)),
        ("GPU", 128, {**FUSED, "attention": "plain"}, Plan()),
        ("TPU", 128, {}, Plan("none", share_graph=False)),
        ("TPU", 128, {"unpad": "groups"}, None),
    ],
)
def test_a_model_is_accelerated_as_the_devices_gain_by_it(monkeypatch, calls, kind, hidden_size, settings, expected):
    """A TPU and --xla compute fixed shapes, so they keep their padding."""
    if kind == "GPU":
        monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind] if kind == "GPU" else [])
    given = TrainingOptions(bert_config_file="x", output_dir="x", **settings)
    strategy = OnCpu(None) if kind == "TPU" else ONE
    if expected:
        assert devices.plan_for(given, strategy, hidden_size) == expected
    else:
        refuses("--unpad=groups --xla", devices.plan_for, given, strategy, hidden_size)
    assert devices.plan_for(given, strategy, hidden_size, padded=True).unpad == "none"


def test_attention_in_one_kernel_and_packed_rows_are_refused_on_several_gpus(monkeypatch, two):
    monkeypatch.setattr(devices, "computes_on", lambda strategy: "GPU")
    given = TrainingOptions(bert_config_file="x", output_dir="x", pack_rows=True, **FUSED)
    refuses("--attention=fused --pack_rows one GPU", devices.plan_for, given, two, 128)


@pytest.mark.compiled
def test_the_step_is_compiled_if_the_user_wants_it_or_a_gpu_gains_by_it(calls, log_lines):
    assert programs.compiles_step(ONE, "true", 1) and not programs.compiles_step(ONE, "false", 10**6)
    assert not programs.compiles_step(ONE, "auto", 10**6)  # a CPU
    assert not programs.compiles_step(OnCpu(None), "true", 1)
    assert any("--xla" in line and "TPU" in line for line in log_lines)


@pytest.mark.parametrize(
    ("capability", "cuda", "expected"), [((9, 0), "12.5.1", True), ((12, 0), "12.5.1", False), ((12, 0), "12.9", True)]
)
def test_xla_does_not_compile_for_a_gpu_that_its_cuda_does_not_know(
    monkeypatch, without_xla, capability, cuda, expected
):
    """LLVM would end the process."""
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["a GPU"])
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: {"compute_capability": capability})
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: {"cuda_version": cuda})
    monkeypatch.setattr(tf, "device", lambda name: contextlib.nullcontext())
    without_xla.cache_clear()
    assert without_xla() == expected
    without_xla.cache_clear()


def test_the_flags_of_a_tpu_reach_its_resolver(calls, log_lines):
    options = DeviceOptions(tpu_name="mine", tpu_zone="zone", gcp_project="project", use_tpu=True)
    strategy = devices.create_strategy(options)
    assert calls == [("resolve", "mine", "zone", "project"), ("connect",), ("initialize",)]
    assert isinstance(strategy, OnCpu) and "Computing on 1 TPU cores, precision float32" in log_lines
    assert not programs.can_compile(strategy)  # XLA compiles the program as a whole, not parts of it
    devices.create_strategy(DeviceOptions(master="grpc", use_tpu=True))
    assert calls[3] == ("resolve", "grpc", None, None)


def test_an_address_without_a_tpu_is_refused(monkeypatch):
    def soon(channel, ready=grpc.channel_ready_future):
        future = ready(channel)
        return types.SimpleNamespace(result=lambda timeout: future.result(timeout=timeout / 20))

    monkeypatch.setattr(grpc, "channel_ready_future", soon)
    resolver = lambda tpu, **_: types.SimpleNamespace(master=lambda: tpu)  # noqa: E731
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", resolver)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for address in (f"127.0.0.1:{silent.getsockname()[1]}", "127.0.0.1:1"):
            found = message_of(devices.create_strategy, DeviceOptions(use_tpu=True, tpu_name=f"grpc://{address}"))
            assert found.startswith("--use_tpu: ") and address in found and "--tpu_name" in found

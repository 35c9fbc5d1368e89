"""A TPU as far as it can be tried without one: its resolver is mocked, and its strategy computes on the CPU."""

from __future__ import annotations

import socket
import types

import pytest
import tensorflow as tf
from refused import message_of

from bert_tf2.fast.encoder import Plan
from bert_tf2.training import devices
from bert_tf2.training.options import DeviceOptions, TrainingOptions

LENGTH = 32


class OnCpu(tf.distribute.OneDeviceStrategy):
    """In place of TPUStrategy."""

    def __init__(self, resolver):
        super().__init__("/cpu:0")
        self.resolver = resolver


@pytest.fixture
def calls(monkeypatch) -> list[tuple]:
    """What was asked of the system of a TPU, in order."""
    made: list[tuple] = []

    class Resolver:
        def __init__(self, tpu, zone, project):
            made.append(("resolve", tpu, zone, project))

        def master(self) -> str:
            return "local"

    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", Resolver)
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", lambda resolver: made.append(("connect",)))
    experimental = types.SimpleNamespace(initialize_tpu_system=lambda resolver: made.append(("initialize",)))
    monkeypatch.setattr(tf, "tpu", types.SimpleNamespace(experimental=experimental))
    monkeypatch.setattr(tf.distribute, "TPUStrategy", OnCpu)
    return made


def test_the_flags_reach_the_resolver(calls, log_lines):
    options = DeviceOptions(tpu_name="mine", tpu_zone="zone", gcp_project="project", use_tpu=True)
    strategy = devices.create_strategy(options)
    assert calls == [("resolve", "mine", "zone", "project"), ("connect",), ("initialize",)]
    assert isinstance(strategy, OnCpu) and devices.computes_on(strategy) == "TPU"
    assert "Computing on 1 TPU cores, precision float32" in log_lines
    calls.clear()
    devices.create_strategy(DeviceOptions(master="grpc", use_tpu=True))
    assert calls[0] == ("resolve", "grpc", None, None)


def test_nothing_depends_on_shapes_that_are_not_known(calls, log_lines):
    strategy = devices.create_strategy(DeviceOptions(use_tpu=True))
    assert devices.plan_for(TrainingOptions(bert_config_file="x", output_dir="x"), strategy, 768) == Plan("none")
    assert not devices.can_compile(strategy)  # XLA compiles the program as a whole, not parts of it
    assert not devices.compiles_step(strategy, "true", 1)
    assert any("--xla has no effect on a TPU" in line for line in log_lines)


def test_what_answers_is_no_tpu(monkeypatch):
    monkeypatch.setattr(devices, "_TPU_SECONDS", 0.3)
    resolver = lambda tpu, **_: types.SimpleNamespace(master=lambda: tpu)  # noqa: E731
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", resolver)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for address in (f"127.0.0.1:{silent.getsockname()[1]}", "127.0.0.1:1", "no-such-host.invalid"):
            message = message_of(devices.create_strategy, DeviceOptions(use_tpu=True, tpu_name=f"grpc://{address}"))
            assert message.startswith(f"--use_tpu: no TPU can be reached (no gRPC server answers at {address} within")

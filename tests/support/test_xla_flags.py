"""The variables for XLA that are set before TensorFlow starts on a machine with a GPU; nvidia-smi is a fake."""

import json
import os
import subprocess
import sys

import pytest

SHOW = """
import glob, json, os, sys
glob.glob = lambda pattern: ["/dev/nvidia0"] if pattern.startswith("/dev/nvidia") else []
import importlib.metadata
if os.environ.get("OTHER_BUILD"):
    found = importlib.metadata.version
    importlib.metadata.version = lambda name: found("no-" + name)
from bert_tf2.support import xla_flags
xla_flags.prepare(*sys.argv[1:])
print(json.dumps({name: os.environ.get(name, "") for name in ("XLA_FLAGS", "TF_XLA_FLAGS")}))
"""


@pytest.fixture
def prepared(tmp_path):
    """The variables after `prepare`, in a process of its own."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    kept = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "TF_XLA_FLAGS")}
    kept |= {"CUDA_VISIBLE_DEVICES": "0", "PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}

    def run(*arguments, gpu="NVIDIA A100, 550.1", **variables) -> dict[str, str]:
        program.write_text(f"#!/bin/sh\necho '{gpu}'\n")
        program.chmod(0o755)
        environment = {**kept, "XDG_CACHE_HOME": str(tmp_path / "cache"), **variables}
        command = [sys.executable, "-c", SHOW, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return run


def cache_of(variables: dict[str, str]) -> str:
    words = dict(word.split("=", 1) for word in variables["TF_XLA_FLAGS"].split())
    return words["--tf_xla_persistent_cache_directory"]


def test_what_the_user_has_set_stays(prepared):
    found = prepared(XLA_FLAGS="--xla_gpu_enable_triton_gemm=true --xla_dump_to=/x")["XLA_FLAGS"]
    assert found.count("xla_gpu_enable_triton_gemm") == 1
    assert "--xla_gpu_enable_triton_gemm=true --xla_dump_to=/x" in found and "command_buffer" in found
    theirs = "--tf_xla_persistent_cache_directory=/their/own"
    assert prepared(TF_XLA_FLAGS=theirs)["TF_XLA_FLAGS"] == theirs


def test_a_program_is_found_again_by_the_same_machine_only(prepared, tmp_path):
    first = cache_of(prepared())
    assert os.path.isdir(first) and first.startswith(str(tmp_path / "cache"))
    assert cache_of(prepared()) == first
    assert cache_of(prepared(gpu="NVIDIA H100, 550.1")) != first
    assert cache_of(prepared(XLA_FLAGS="--xla_gpu_autotune_level=0")) != first
    assert cache_of(prepared(str(tmp_path / "mine"))).startswith(str(tmp_path / "mine"))


@pytest.mark.parametrize(
    ("arguments", "variables", "names"),
    [
        (["none"], {}, {"XLA_FLAGS"}),
        ([], {"XDG_CACHE_HOME": "/dev/null/x"}, {"XLA_FLAGS"}),
        ([], {"CUDA_VISIBLE_DEVICES": "-1"}, set()),
        ([], {"OTHER_BUILD": "1"}, set()),  # of TensorFlow, with another name
    ],
)
def test_where_no_program_is_kept(prepared, arguments, variables, names):
    assert {name for name, value in prepared(*arguments, **variables).items() if value} == names


def test_the_cache_is_bounded(prepared, tmp_path):
    folder = tmp_path / "cache" / "bert_tf2" / "xla" / "tensorflow-2.0-old"
    folder.mkdir(parents=True)
    for number in range(4):  # without blocks on the disk
        path = folder / f"{number}.pb"
        with open(path, "wb") as stream:
            stream.truncate(1 << 30)
        os.utime(path, (number + 1, number + 1))
    prepared()
    assert sorted(path.name for path in folder.iterdir()) == ["2.pb", "3.pb"]

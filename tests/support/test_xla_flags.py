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


def prepared(folder, *arguments, gpu="NVIDIA A100, 550.1", **variables) -> dict[str, str]:
    """The variables after `prepare`, in a process of its own."""
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\necho '{gpu}'\n")
    program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "TF_XLA_FLAGS")}
    kept |= {"CUDA_VISIBLE_DEVICES": "0", "PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(folder)}
    kept |= {"XDG_CACHE_HOME": str(folder / "cache"), **variables}
    command = [sys.executable, "-c", SHOW, *arguments]
    done = subprocess.run(command, env=kept, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def cache_of(variables: dict[str, str]) -> str:
    words = dict(word.split("=", 1) for word in variables["TF_XLA_FLAGS"].split())
    return words["--tf_xla_persistent_cache_directory"]


def test_what_the_user_has_set_stays(tmp_path):
    found = prepared(tmp_path, XLA_FLAGS="--xla_gpu_enable_triton_gemm=true --xla_dump_to=/x")["XLA_FLAGS"]
    assert found.count("xla_gpu_enable_triton_gemm") == 1
    assert "--xla_gpu_enable_triton_gemm=true --xla_dump_to=/x" in found and "command_buffer" in found
    theirs = "--tf_xla_persistent_cache_directory=/their/own"
    assert prepared(tmp_path, TF_XLA_FLAGS=theirs)["TF_XLA_FLAGS"] == theirs


def test_a_program_is_found_again_by_the_same_machine_only(tmp_path):
    first = cache_of(prepared(tmp_path))
    assert os.path.isdir(first) and first.startswith(str(tmp_path / "cache"))
    assert cache_of(prepared(tmp_path)) == first
    assert cache_of(prepared(tmp_path, gpu="NVIDIA H100, 550.1")) != first
    assert cache_of(prepared(tmp_path, XLA_FLAGS="--xla_gpu_autotune_level=0")) != first
    assert cache_of(prepared(tmp_path, str(tmp_path / "mine"))).startswith(str(tmp_path / "mine"))


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [(["none"], {}), ([], {"CUDA_VISIBLE_DEVICES": "-1"}), ([], {"XDG_CACHE_HOME": "/dev/null/x"})],
)
def test_where_no_program_is_kept(tmp_path, arguments, variables):
    found = prepared(tmp_path, *arguments, **variables)
    assert not found["TF_XLA_FLAGS"]
    assert bool(found["XLA_FLAGS"]) is ("CUDA_VISIBLE_DEVICES" not in variables)


def test_a_build_of_tensorflow_with_another_name_keeps_its_settings(tmp_path):
    assert prepared(tmp_path, OTHER_BUILD="1") == {"XLA_FLAGS": "", "TF_XLA_FLAGS": ""}


def test_the_cache_is_bounded(tmp_path):
    folder = tmp_path / "cache" / "bert_tf2" / "xla" / "tensorflow-2.0-old"
    folder.mkdir(parents=True)
    for number in range(4):  # without blocks on the disk
        path = folder / f"{number}.pb"
        with open(path, "wb") as stream:
            stream.truncate(1 << 30)
        os.utime(path, (number + 1, number + 1))
    prepared(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["2.pb", "3.pb"]

"""The variables for XLA that are set before TensorFlow starts on a machine with a GPU; nvidia-smi is a fake."""

import json
import os
import subprocess
import sys

import pytest
from command_lines import environment

SHOW = """
import glob, json, os, sys
glob.glob = lambda pattern: ["/dev/nvidia0"] if pattern.startswith("/dev/nvidia") else []
import importlib.metadata
if os.environ.get("OTHER_BUILD"):
    found = importlib.metadata.version
    importlib.metadata.version = lambda name: found("no-" + name)
from bert_tf2.support import xla_flags
if os.environ.get("FREE"):
    xla_flags.shutil.disk_usage = lambda folder: type("Usage", (), {"free": int(os.environ["FREE"])})
xla_flags.prepare(*sys.argv[1:])
print(json.dumps({name: os.environ.get(name, "") for name in ("XLA_FLAGS", "TF_XLA_FLAGS")}))
"""


@pytest.fixture
def prepared(tmp_path):
    """(XLA_FLAGS, the words of TF_XLA_FLAGS) after `prepare`, in a process of its own."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    fixed = {"CUDA_VISIBLE_DEVICES": "0", "PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    fixed |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XLA_FLAGS": "", "TF_XLA_FLAGS": ""}

    def run(*arguments, gpu="NVIDIA A100, 550.1", **variables) -> tuple[str, dict[str, str]]:
        program.write_text(f"#!/bin/sh\necho '{gpu}'\n")
        program.chmod(0o755)
        command = [sys.executable, "-c", SHOW, *arguments]
        how = {"env": environment(**{**fixed, **variables}), "capture_output": True, "text": True, "check": True}
        done = subprocess.run(command, **how)
        found = json.loads(done.stdout)
        run.warned = "cannot keep XLA's programs" in done.stderr
        return found["XLA_FLAGS"], dict(word.split("=", 1) for word in found["TF_XLA_FLAGS"].split())

    return run


CACHE = "--tf_xla_persistent_cache_directory"


def test_flags_of_the_user_stay_and_a_program_is_found_again_by_the_same_machine_only(prepared, tmp_path):
    old = tmp_path / "cache" / "bert_tf2" / "xla" / "tensorflow-2.0-0123456789ab"
    other = old.with_name("tensorflow-models") / "graph.pb"  # not of this project
    old.mkdir(parents=True)
    other.parent.mkdir()
    other.touch()
    for number in range(4):  # of 1 GiB, without blocks on the disk
        with open(old / f"{number}.pb", "wb") as stream:
            # A field of 1 byte, a number, 8 bytes and 4 bytes of a newer TensorFlow, and a field of 1 GiB - 28 bytes.
            stream.write(b"\x0a\x01k\xa0\x06\xff\x01\x29********\xad\x06****\x1a\xe4\xff\xff\xff\x03")
            stream.truncate(1 << 30)
        os.utime(old / f"{number}.pb", (number + 1, number + 1))
    for number, damaged in enumerate((b"", b"\0" * 4096, b"\x0a\x01k\x1a\x02v", b"\x0a\x01k\x1a\xff", b"\x29***")):
        (old / f"damaged{number}.pb").write_bytes(damaged)
    first = prepared()[1][CACHE]
    assert os.path.isdir(first) and first.startswith(str(tmp_path / "cache")) and prepared()[1][CACHE] == first
    assert sorted(path.name for path in old.iterdir()) == ["2.pb", "3.pb"] and other.exists()  # the cache is bounded
    assert prepared(gpu="NVIDIA H100, 550.1")[1][CACHE] != first
    given = "--xla_gpu_enable_triton_gemm=true --xla_dump_to=/x"
    found, theirs = prepared(str(tmp_path / "mine"), XLA_FLAGS=given)
    assert given in found and found.count("xla_gpu_enable_triton_gemm") == 1 and "command_buffer" in found
    assert theirs[CACHE].startswith(str(tmp_path / "mine")) and os.path.basename(theirs[CACHE]) not in first
    assert prepared(TF_XLA_FLAGS=f"{CACHE}=/their/own")[1] == {CACHE: "/their/own"}


@pytest.mark.parametrize(
    ("arguments", "variables", "compiles", "warns"),
    [
        (["none"], {}, True, False),
        ([], {"XDG_CACHE_HOME": "/dev/null/x"}, True, True),
        (["/tmp/a folder"], {}, True, True),
        ([], {"FREE": "1000000"}, True, True),
        ([], {"CUDA_VISIBLE_DEVICES": "-1"}, False, False),
        ([], {"OTHER_BUILD": "1"}, False, False),  # of TensorFlow, with another name
    ],
)
def test_where_no_program_is_kept(prepared, arguments, variables, compiles, warns):
    """TensorFlow would end the run over a program that it cannot keep."""
    flags, kept = prepared(*arguments, **variables)
    assert (bool(flags), kept, prepared.warned) == (compiles, {}, warns)

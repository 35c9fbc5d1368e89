"""Settings of XLA's compiler for NVIDIA GPUs, which TensorFlow reads from the environment when it starts.

Each choice was measured: docs/gpu.md has the table. `benchmarks/xla_settings.py` prints such a table.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys

# The releases of TensorFlow whose XLA knows these flags. XLA ends the process over a flag that it does not know.
_RELEASES = ("2.20.", "2.21.", "2.22.")
_FLAGS = {
    # With Triton, the autotuner compiles each matrix product in dozens of ways, and BERT-Base's first step did not end
    # within two minutes. Without Triton, cuBLAS computes the products.
    "xla_gpu_enable_triton_gemm": "false",
    # CUDA graphs are turned off. They are faster only if a step uses the same memory as the step before, as in JAX.
    # TensorFlow gives a step other memory, and XLA then updates the whole graph while the GPU waits.
    "xla_gpu_enable_command_buffer": "",
    # Numbers are rounded to bfloat16 where the model rounds them. Otherwise XLA keeps float32 numbers that are rounded
    # and widened again, among them the gradients of gelu, and writes them to memory with twice the bytes.
    "xla_allow_excess_precision": "false",
}
NO_CACHE = "none"
"""The value of --xla_cache_dir with which compiled programs are not kept."""
_MOST_BYTES = 2 << 30  # in the cache; a step of BERT-Base takes 12 MB
_LEAST_FREE = 256 << 20  # bytes on the disk of the cache


def has_gpu() -> bool:
    """Returns whether the machine has an NVIDIA GPU that CUDA_VISIBLE_DEVICES does not hide."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1", "NoDevFiles")
    return bool(glob.glob("/dev/nvidia[0-9]*")) and not hidden


def prepare(cache_dir: str | None = None) -> None:
    """Sets XLA_FLAGS and TF_XLA_FLAGS for a machine with a GPU; a flag that the user has set is not changed.

    TensorFlow reads these variables once, so this function does nothing after TensorFlow's import. It also does nothing
    without a GPU, or with a release of TensorFlow that was not tried.

    Args:
      cache_dir: the folder for compiled programs, which later processes load; None for a folder in the user's cache
        folder; `NO_CACHE` keeps no programs.
    """
    if "tensorflow" in sys.modules or not has_gpu():
        return
    try:
        release = importlib.metadata.version("tensorflow")
    except importlib.metadata.PackageNotFoundError:  # a build with another name, such as tf-nightly
        return
    if not release.startswith(_RELEASES):
        return
    given = os.environ.get("XLA_FLAGS", "")
    ours = [f"--{name}={value}" for name, value in _FLAGS.items() if f"--{name}" not in given]
    os.environ["XLA_FLAGS"] = " ".join([*given.split(), *ours])
    given = os.environ.get("TF_XLA_FLAGS", "")
    if cache_dir == NO_CACHE or "persistent_cache" in given:
        return
    if folder := _cache_folder(cache_dir, release):
        # Only programs for GPUs are kept, because a program for a CPU depends on the processor, and takes only seconds.
        ours = [f"--tf_xla_persistent_cache_directory={folder}", "--tf_xla_persistent_cache_device_types=GPU"]
        os.environ["TF_XLA_FLAGS"] = " ".join([*given.split(), *ours])


def _cache_folder(cache_dir: str | None, release: str) -> pathlib.Path | None:
    """Returns the folder for the programs of this machine, None if no folder is possible.

    A program runs only with the GPU, driver, TensorFlow and flags for which it was compiled, so the folder's name has a
    hash of their names.
    """
    gpus = _gpus()
    base = pathlib.Path(cache_dir or os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    base = base if cache_dir else base / "bert_tf2" / "xla"
    if not gpus:
        return None
    made_for = hashlib.sha1(f"{gpus}\n{os.environ['XLA_FLAGS']}".encode()).hexdigest()[:12]
    try:
        base = base.expanduser()
        folder = base / f"tensorflow-{release}-{made_for}"
        problem = _problem_of(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home folder
        problem = getattr(error, "strerror", None) or str(error)
    if problem:
        from absl import logging  # late, because `process` imports this module before signals are handled

        how = "--xla_cache_dir=FOLDER selects another folder, --xla_cache_dir=none keeps none"
        logging.warning("%s: cannot keep XLA's programs (%s), so each run compiles them; %s", base, problem, how)
        return None
    _bound(base)
    return folder


def _problem_of(folder: pathlib.Path) -> str:
    """Makes a folder; returns why TensorFlow cannot keep programs there, "" if it can.

    TensorFlow ends a run if it cannot write a program.
    """
    if re.search(r"\s", str(folder)):
        return "TF_XLA_FLAGS allows no blank in its name"
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        return "not writable"
    return f"less than {_LEAST_FREE >> 20} MB are free" if shutil.disk_usage(folder).free < _LEAST_FREE else ""


def _gpus() -> str:
    """Returns the names of the GPUs and the version of their driver; "" if unknown."""
    question = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(question, capture_output=True, text=True, timeout=20, check=True).stdout
    return ""


def _bound(base: pathlib.Path) -> None:
    """Deletes the oldest programs until the rest has at most _MOST_BYTES; another process may delete them, too.

    Also deletes incomplete programs, which a power failure can leave, because they would end a run.
    """
    found = []
    for path in base.glob(f"tensorflow-*-{'[0-9a-f]' * 12}/*"):  # a user may name a folder that has others, too
        with contextlib.suppress(OSError):
            if path.suffix == ".pb" and not _is_whole(path):  # TensorFlow writes a program under another name first
                path.unlink()
            else:
                found.append((path.stat().st_mtime, path.stat().st_size, path))
    excess = sum(size for _, size, _ in found) - _MOST_BYTES
    for _, size, path in sorted(found):
        if excess > 0:
            with contextlib.suppress(OSError):
                path.unlink()
        excess -= size


def _is_whole(path: pathlib.Path) -> bool:
    """Whether a program's file, a message of protobuf, ends where a field ends.

    A field is a tag and a number, 8 or 4 bytes, or a length and as many bytes. Fields may have any number, because a
    newer TensorFlow may write more of them.
    """
    place, size = 0, path.stat().st_size
    with open(path, "rb") as stream:
        while place < size:
            stream.seek(place)
            head = re.match(rb"([\x80-\xff]{0,4}[\0-\x7f])([\x80-\xff]{0,9}[\0-\x7f])?", stream.read(15))
            if not head:
                return False
            tag, value = (_varint(digits) for digits in head.groups(b""))
            ends = {0: head.end(), 1: head.end(1) + 8, 2: head.end() + value, 5: head.end(1) + 4}  # by the kind
            if tag < 8 or tag & 7 not in ends or (tag & 7 in (0, 2) and not head[2]):
                return False
            place += ends[tag & 7]
    return place == size > 0


def _varint(digits: bytes) -> int:
    return sum((byte & 127) << 7 * place for place, byte in enumerate(digits))

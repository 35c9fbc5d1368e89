"""The memory that this process can still get: of the machine, of its container, and of its own limit (ulimit -v)."""

from __future__ import annotations

import contextlib
import itertools
import os

from bert_tf2.support.environment import human
from bert_tf2.support.errors import UserError

# Threads reserve address space that they never use: for stacks, and for the pools that they allocate from. This is what
# those that a training starts reserve on 2 cores; without it, one that fits the limit ends in a crash.
_OF_THREADS = 0.4e9
# Measured with TensorFlow 2.21: libraries and the first operations; threads for each core, with 2 and 32 of them.
_OF_TENSORFLOW, _OF_A_CORE = 2.5e9, 40e6


def own_bytes(root: str = "/") -> float | None:
    """The memory that this process has; None where the system does not tell."""
    sizes = _own_sizes(root)
    return sizes[1] if sizes else None


def available_bytes(root: str = "/", swap: bool = False) -> float | None:
    """The memory that processes can still get: of the machine, of the control groups (a container's limit), and of
    the address space that this process may have (ulimit -v).

    Args:
      root: the folder that has proc and sys.
      swap: whether memory on the disk counts, which is there, but slow.

    Returns:
      None where the system does not tell.
    """
    limits = []
    machine = _numbers(os.path.join(root, "proc/meminfo"))
    if "MemAvailable:" in machine:
        limits.append(1024.0 * (machine["MemAvailable:"] + (machine.get("SwapFree:", 0) if swap else 0)))
    for folder, limit, usage, unused_files in (
        ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, used, parts = (_numbers(os.path.join(root, folder, name)) for name in (limit, usage, "memory.stat"))
        if most and used:
            # Files that were read and are not used now count as used, but make room.
            limits.append(most[""] - used[""] + parts.get(unused_files, 0))
    most, sizes = address_limit(), _own_sizes(root)
    if most is not None and sizes:
        limits.append(max(0.0, most - sizes[0] - _OF_THREADS))
    return float(min(limits)) if limits else None


def address_limit() -> int | None:
    """The bytes of address space that this process may have, as `ulimit -v` sets them; None without a limit."""
    with contextlib.suppress(ImportError):  # not on every system
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        return None if most == resource.RLIM_INFINITY else most
    return None


def check_tensorflow_starts() -> None:
    """Raises UserError if TensorFlow would crash for lack of address space, while it is loaded or soon after."""
    limit = address_limit()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    least = _OF_TENSORFLOW + cores * _OF_A_CORE
    if limit is not None and limit < least:
        raise UserError(
            f"this process may have {human(limit)} of address space (ulimit -v), and TensorFlow needs {human(least)}"
            " before it computes anything; raise the limit (ulimit -v unlimited)"
        )


def _own_sizes(root: str) -> list[int]:
    """The bytes of address space and of memory that this process has; empty where the system does not tell."""
    return [int(word) * os.sysconf("SC_PAGE_SIZE") for word in _words(os.path.join(root, "proc/self/statm"))[:2]]


def _words(path: str) -> list[str]:
    """The words of a file; none if it cannot be read."""
    with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
        return file.read().split()
    return []


def _numbers(path: str) -> dict[str, int]:
    """The numbers in a file, by the word before each, which is "" for the first word."""
    return {name: int(word) for name, word in itertools.pairwise(["", *_words(path)]) if word.isdigit()}

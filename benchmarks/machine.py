"""The description of the machine that every benchmark prints."""

from __future__ import annotations

import datetime
import os
import pathlib
import platform
import resource

# The default input of the benchmarks. A larger text gives more stable numbers.
DEMO = pathlib.Path(__file__).resolve().parents[1] / "bert_tf2" / "demo"
CORPUS, VOCAB = str(DEMO / "corpus.txt"), str(DEMO / "vocab.txt")


def describe() -> str:
    """One line: processor, cores, Python, date."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass  # not Linux
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores, Python {platform.python_version()}, {datetime.date.today().isoformat()}"


def peak_memory_gb(who: int = resource.RUSAGE_SELF) -> float:
    """The peak memory of this process (or its children), in GB of 10^9 bytes."""
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(who).ru_maxrss * unit / 1e9

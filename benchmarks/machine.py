"""What every benchmark prints of where and when it ran."""

from __future__ import annotations

import datetime
import os
import pathlib
import platform
import resource

# What the benchmarks read unless told otherwise. A larger text gives steadier numbers.
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
    """The most memory this process (or its children) ever held, in GB of 10^9 bytes."""
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(who).ru_maxrss * unit / 1e9

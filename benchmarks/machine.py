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
# The processor's units for products in bfloat16, by their names in Linux; the fastest first.
_UNITS = ("amx_bf16", "avx512_bf16")


def describe() -> str:
    """One line: processor, its units for bfloat16, cores, Python, date."""
    name = platform.processor() or platform.machine()
    try:  # not with training.options, because peers' programs run this function without the package
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
        name = next(
            (line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")), name
        )
        name += next((f" ({unit})" for unit in _UNITS if unit in text.split()), "")
    except OSError:
        pass  # not Linux
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores, Python {platform.python_version()}, {datetime.date.today().isoformat()}"


def peak_memory_gb(who: int = resource.RUSAGE_SELF) -> float:
    """The peak memory of this process (or its children), in GB of 10^9 bytes."""
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(who).ru_maxrss * unit / 1e9

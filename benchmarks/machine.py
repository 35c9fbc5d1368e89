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


# What a processor may have for products in bfloat16, as Linux names it; the fastest first.
_UNITS = ("amx_bf16", "avx512_bf16")


def describe() -> str:
    """One line: processor, its units for bfloat16, cores, Python, date."""
    name = platform.processor() or platform.machine()
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
        of_first = dict(line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
        facts = {key.strip(): value.strip() for key, value in of_first.items()}
        units = [unit for unit in _UNITS if unit in facts.get("flags", "").split()]
        name = f"{facts.get('model name', name)} ({units[0] if units else 'no bfloat16 units'})"
    except OSError:
        pass  # not Linux
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores, Python {platform.python_version()}, {datetime.date.today().isoformat()}"


def peak_memory_gb(who: int = resource.RUSAGE_SELF) -> float:
    """The peak memory of this process (or its children), in GB of 10^9 bytes."""
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(who).ru_maxrss * unit / 1e9

"""Times the first step and the later steps on a GPU with several settings of XLA: the table of docs/gpu.md.

    python benchmarks/xla_settings.py
    python benchmarks/xla_settings.py --batch_size=128 --settings="as bert_tf2 sets them,without XLA"
    python benchmarks/xla_settings.py --max_seq_length=512 --settings="no attention dropout,attention in one kernel"

Each row is a process of `pretraining_step.py`. Without a cache, XLA compiles the step; the last row loads the program
that an earlier row has kept. A row that takes longer than --limit is stopped and marked.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time

import machine
import processes

from bert_tf2.support import flags
from bert_tf2.support.settings import MODEL, TO_DO, TRAINING, Options, options, setting

_OURS = "as bert_tf2 sets them"
# Name in the table -> XLA_FLAGS in place of the flags that bert_tf2 sets; None: the step is not compiled.
SETTINGS: dict[str, str | None] = {
    "without XLA": None,
    _OURS: "",
    "Triton as XLA has it": "--xla_gpu_enable_triton_gemm=true",
    "the autotuner off": "--xla_gpu_autotune_level=0",
    "the autotuner at 2": "--xla_gpu_autotune_level=2",
    "several compiler threads": "--xla_gpu_enable_llvm_module_compilation_parallelism=true",
    "CUDA graphs as XLA has it": "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUDNN",
}
# Steps without dropout in attention, by the value of --attention.
ATTENTION = {"no attention dropout": "plain", "attention in one kernel": "fused"}
SETTINGS |= dict.fromkeys(ATTENTION, "")


@options
class BenchmarkOptions(Options):
    """Times the first step and the later steps on a GPU with several settings of XLA."""

    bert_config_file: str | None = setting("Configuration of the model; BERT-Base without it.", None, group=MODEL)
    settings: str = setting("Which rows, separated by commas.", "", group=TO_DO)
    limit: int = setting("Seconds after which a row is stopped.", 300, group=TO_DO, low=1)
    batch_size: int = setting("Examples per step.", 32, group=TRAINING, low=1)
    max_seq_length: int = setting("Tokens per example.", 128, group=TRAINING, low=5)
    precision: str = setting("As in run_pretraining.py.", "bfloat16", group=TRAINING)

    def check(self) -> None:
        if self.settings:
            processes.check_words("settings", self.settings, SETTINGS)


def row(options: BenchmarkOptions, name: str, xla_flags: str | None, cache: str) -> list[str]:
    """Returns a row of the table: the seconds of the first step and of the process, examples/s of later steps, GB."""
    given = {name: getattr(options, name) for name in ("batch_size", "max_seq_length", "precision")}
    given |= {"unpad": "none", "attention": ATTENTION.get(name, "auto")}
    given |= {
        "loop": True,
        "bert_config_file": options.bert_config_file,
        "xla": xla_flags is not None,
        "xla_cache_dir": cache,
    }
    command = processes.ours("pretraining_step.py", *processes.flags_of(**given), "--json")
    began = time.perf_counter()
    try:
        given = " ".join([os.environ.get("XLA_FLAGS", ""), xla_flags or ""]).strip()
        found = processes.measure(command, limit=options.limit, XLA_FLAGS=given)
    except subprocess.TimeoutExpired:
        return [name, f"over {options.limit}", "", "", ""]
    except processes.Failed as failure:
        print(f"{name}: {failure}", flush=True)
        return [name, "failed", "", "", ""]
    whole = time.perf_counter() - began
    loop = found["examples_per_second_in_loop"]
    return [name, f"{found['first_step']:.1f}", f"{whole:.0f}", f"{loop:.0f}", f"{found['memory_gb']:.2f}"]


def main(options: BenchmarkOptions) -> None:
    print(f"{machine.describe()}, revision {processes.revision()}", flush=True)
    wanted = options.settings.split(",") if options.settings else list(SETTINGS)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            rows.append(row(options, name, SETTINGS[name], folder if name == _OURS else "none"))
            print(*rows[-1], sep=" | ", flush=True)
        if _OURS in wanted:
            rows.append(row(options, f"{_OURS}, once more", SETTINGS[_OURS], folder))
    header = ["", "first step, s", "whole process, s", "examples/s", "GB"]
    print(f"\n{processes.render(header, rows)}")


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

"""Measures the costs and savings of training flags, and the time from the command to the first step.

    python benchmarks/training_flags.py
    python benchmarks/training_flags.py --runs accumulation --rounds 3

Runs: `accumulation`, a batch of 64 in 8 equal parts against the whole batch; `recompute`, time and memory with
--recompute and without; `start`, run_pretraining.py from the command to the end of its first step, without saving.
Each side is a separate process. Results are kept in WORK_DIR/flags.jsonl and are not measured again with the same
revision of this checkout.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import machine
import processes
import workload

from bert_tf2.support import flags
from bert_tf2.support.settings import DATA, MODEL, TO_DO, TRAINING, Options, options, setting


@options
class BenchmarkOptions(Options):
    """Measures the costs and savings of training flags, and the time from the command to the first step."""

    runs: str = setting("Which runs, separated by commas.", "accumulation,recompute,start", group=TO_DO)
    rounds: int = setting("How often the sides take turns.", 1, group=TO_DO, low=1)
    steps: int = setting("Steps to time in each process.", 3, group=TRAINING, low=1)
    bert_config_file: str | None = setting("Configuration of the model; BERT-Base without it.", None, group=MODEL)
    work_dir: str = setting("Folder for flags.jsonl, the results.", "bench_output", group=DATA)

    def check(self) -> None:
        processes.check_words("runs", self.runs, RUNS)


def medians(options: BenchmarkOptions, sides: Mapping[str, Sequence[str]]) -> dict[str, tuple[float, float]]:
    """The seconds of a step and the memory in GB from pretraining_step.py, by side; medians over the rounds."""
    config = options.bert_config_file and Path(options.bert_config_file).resolve()
    shared = ["--json", *processes.flags_of(steps=options.steps, bert_config_file=config)]
    results = processes.Results(Path(options.work_dir) / "flags.jsonl", processes.revision())
    arguments = {name: [*shared, *own] for name, own in sides.items()}
    measured = processes.in_turn(results, "pretraining_step.py", arguments, options.rounds)
    return {
        side: (
            statistics.median(statistics.median(result["seconds"]) for result in found),
            statistics.median(result["memory_gb"] for result in found),
        )
        for side, found in measured.items()
    }


def accumulation(options: BenchmarkOptions) -> str:
    batch = "--batch_size=64"
    found = medians(options, {"whole": [batch], "parts": [batch, "--gradient_accumulation_steps=8"]})
    (whole, memory), (parts, memory_of_parts) = found["whole"], found["parts"]
    return (
        f"batch 64, length 128: whole {whole:.2f} s, {memory:.2f} GB; in 8 parts {parts:.2f} s,"
        f" {memory_of_parts:.2f} GB; cost {100 * (parts / whole - 1):+.1f} %"
    )


def recompute(options: BenchmarkOptions) -> str:
    """Activation memory is the memory of a process minus its memory with batches of one row."""
    batch = "--batch_size=32"
    found = medians(options, {"one": ["--batch_size=1"], "plain": [batch], "again": [batch, "--recompute"]})
    (_, least), (plain, memory), (again, memory_again) = found["one"], found["plain"], found["again"]
    activations, of_again = memory - least, memory_again - least
    return (
        f"batch 32, length 128: without --recompute {plain:.2f} s, {memory:.2f} GB, with it {again:.2f} s,"
        f" {memory_again:.2f} GB; activations {activations:.2f} and {of_again:.2f} GB"
        f" ({100 * of_again / activations:.0f} %), time {100 * (again / plain - 1):+.0f} %"
    )


def make_records(folder: Path, length: int, input_file: str, vocab_file: str) -> Path:
    """The records of a corpus, once over, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"records-{length}.tfrecord"
    command = processes.script(
        "create_pretraining_data.py", input_file=input_file, output_file=path, vocab_file=vocab_file,
        max_seq_length=length, dupe_factor=5,
    )  # fmt: skip
    processes.run(command, folder / "records.log")
    return path


def pretraining_command(work: Path, bert_config_file: str | None) -> tuple[dict, list[str]]:
    """The sizes of the model, and a command line that pretrains it on the demo's corpus, with files in `work`."""
    records = make_records(work, 128, machine.CORPUS, machine.VOCAB)
    sizes, config = workload.load_config(bert_config_file), work / "bert_config.json"
    config.write_text(json.dumps(sizes), encoding="utf-8")
    given = {"input_file": records, "do_train": True, "bert_config_file": config, "num_warmup_steps": 1}
    return sizes, processes.script("run_pretraining.py", **given)


def start(options: BenchmarkOptions) -> str:
    work = Path(options.work_dir) / "start"
    sizes, command = pretraining_command(work, options.bert_config_file)
    output = work / "output"
    # 0, so that no checkpoint is written before the first step.
    command += ["--train_batch_size=8", "--num_train_steps=1", "--save_checkpoints_steps=0", f"--output_dir={output}"]
    seconds = []
    for _ in range(options.rounds):
        shutil.rmtree(output, ignore_errors=True)
        began = time.time()
        processes.run(command, work / "run.log")
        seconds.append(processes.seconds_to_first_step(output, began))
    shutil.rmtree(output)
    return (
        f"run_pretraining.py, {sizes['num_hidden_layers']} layers, hidden {sizes['hidden_size']}: first step ends"
        f" {statistics.median(seconds):.1f} s after the command ({min(seconds):.1f} to {max(seconds):.1f})"
    )


RUNS = {"accumulation": accumulation, "recompute": recompute, "start": start}


def main(options: BenchmarkOptions) -> None:
    print(machine.describe(), flush=True)
    for name in options.runs.split(","):
        print(f"{name:<13} {RUNS[name](options)}", flush=True)


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

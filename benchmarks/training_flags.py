"""What the flags of a training cost and save, and the time from the command to the first step.

    python benchmarks/training_flags.py
    python benchmarks/training_flags.py --runs accumulation --rounds 3

Runs: `accumulation`, a batch of 64 in 8 equal parts against the whole batch; `recompute`, time and memory with
--recompute and without; `start`, run_pretraining.py from the command to the end of its first step, without saving.
Each side is a process of its own. Results are kept in WORK_DIR/flags.jsonl and are not measured again with the same
revision of this checkout.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import machine
import processes
import workload

from bert_tf2.support import flags
from bert_tf2.support.settings import DATA, MODEL, TO_DO, TRAINING, Options, options, setting


@options
class BenchmarkOptions(Options):
    """What the flags of a training cost and save, and the time from the command to the first step."""

    runs: str = setting("Which runs, separated by commas.", "accumulation,recompute,start", group=TO_DO)
    rounds: int = setting("How often the sides take turns.", 1, group=TO_DO, low=1)
    steps: int = setting("Steps to time in each process.", 3, group=TRAINING, low=1)
    bert_config_file: str | None = setting("Configuration of the model; BERT-Base without it.", None, group=MODEL)
    work_dir: str = setting("Folder for flags.jsonl, the results.", "bench_output", group=DATA)

    def check(self) -> None:
        processes.check_words("runs", self.runs, RUNS)


class Medians:
    """The medians over rounds of the results of pretraining_step.py, by side."""

    def __init__(self, options: BenchmarkOptions, sides: dict[str, Sequence[str]]):
        shared = ["--json", f"--steps={options.steps}"]
        if options.bert_config_file:
            shared.append(f"--bert_config_file={Path(options.bert_config_file).resolve()}")
        results = processes.Results(Path(options.work_dir) / "flags.jsonl", processes.revision())
        arguments = {name: [*shared, *own] for name, own in sides.items()}
        self._measured = processes.in_turn(results, "pretraining_step.py", arguments, options.rounds)

    def seconds(self, side: str) -> float:
        return statistics.median(statistics.median(result["seconds"]) for result in self._measured[side])

    def memory(self, side: str) -> float:
        return statistics.median(result["memory_gb"] for result in self._measured[side])


def accumulation(options: BenchmarkOptions) -> Iterator[str]:
    batch = "--batch_size=64"
    medians = Medians(options, {"whole": [batch], "parts": [batch, "--gradient_accumulation_steps=8"]})
    whole, parts = medians.seconds("whole"), medians.seconds("parts")
    yield (
        f"batch 64, length 128: whole {whole:.2f} s, {medians.memory('whole'):.2f} GB; in 8 parts {parts:.2f} s,"
        f" {medians.memory('parts'):.2f} GB; cost {100 * (parts / whole - 1):+.1f} %"
    )


def recompute(options: BenchmarkOptions) -> Iterator[str]:
    """Activation memory is what a process needs beyond that of batches of one row."""
    batch = "--batch_size=32"
    medians = Medians(options, {"one": ["--batch_size=1"], "plain": [batch], "again": [batch, "--recompute"]})
    plain, again = (medians.memory(side) - medians.memory("one") for side in ("plain", "again"))
    slower = medians.seconds("again") / medians.seconds("plain") - 1
    yield (
        f"batch 32, length 128: without --recompute {medians.seconds('plain'):.2f} s, {medians.memory('plain'):.2f} GB,"
        f" with it {medians.seconds('again'):.2f} s, {medians.memory('again'):.2f} GB; activations {plain:.2f} and"
        f" {again:.2f} GB ({100 * again / plain:.0f} %), time {100 * slower:+.0f} %"
    )


def make_records(folder: Path, length: int, input_file: str, vocab_file: str) -> Path:
    """The records of a corpus, once over, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"records-{length}.tfrecord"
    command = [sys.executable, str(processes.ROOT / "create_pretraining_data.py"), f"--input_file={input_file}"]
    command += [f"--output_file={path}", f"--vocab_file={vocab_file}", f"--max_seq_length={length}", "--dupe_factor=5"]
    processes.run(command, folder / "records.log")
    return path


def pretraining_command(work: Path, bert_config_file: str | None) -> tuple[dict, list[str]]:
    """The sizes of the model, and a command line that pretrains it on the demo's corpus, with files in `work`."""
    records = make_records(work, 128, machine.CORPUS, machine.VOCAB)
    sizes, config = workload.load_config(bert_config_file), work / "bert_config.json"
    config.write_text(json.dumps(sizes), encoding="utf-8")
    command = [sys.executable, str(processes.ROOT / "run_pretraining.py"), f"--input_file={records}", "--do_train"]
    return sizes, [*command, f"--bert_config_file={config}", "--num_warmup_steps=1"]


def start(options: BenchmarkOptions) -> Iterator[str]:
    work = Path(options.work_dir) / "start"
    sizes, command = pretraining_command(work, options.bert_config_file)
    # 0: no checkpoint before the first step.
    command += ["--train_batch_size=8", "--num_train_steps=1", "--save_checkpoints_steps=0"]
    command += [f"--output_dir={work / 'output'}"]
    seconds = []
    for _ in range(options.rounds):
        shutil.rmtree(work / "output", ignore_errors=True)
        began = time.time()
        processes.run(command, work / "run.log")
        seconds.append(processes.seconds_to_first_step(work / "output", began))
    shutil.rmtree(work / "output")
    yield (
        f"run_pretraining.py, {sizes['num_hidden_layers']} layers, hidden {sizes['hidden_size']}: first step ends"
        f" {statistics.median(seconds):.1f} s after the command ({min(seconds):.1f} to {max(seconds):.1f})"
    )


RUNS = {"accumulation": accumulation, "recompute": recompute, "start": start}


def main(options: BenchmarkOptions) -> None:
    print(machine.describe(), flush=True)
    for name in options.runs.split(","):
        for line in RUNS[name](options):
            print(f"{name:<13} {line}", flush=True)


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

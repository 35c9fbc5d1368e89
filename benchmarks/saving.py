"""What checkpoints cost: steps per second of a training that saves often, against one that saves at its end only.

    python benchmarks/saving.py
    python benchmarks/saving.py --save_checkpoints_steps=100 --saves=2

Runs run_pretraining.py, in turn with and without --save_checkpoints_steps, each in a process of its own. The clock runs
from the end of the first step, which compiles, to the end of the last one, an interval after the last of --saves
checkpoints: it contains the copying, writing and deleting of all of them on one side, and of none on the other. Results
are kept in WORK_DIR/saving.jsonl and are not measured again with the same revision of this checkout.
"""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
from pathlib import Path

import machine
import processes
import training_flags
import workload

from bert_tf2.support import flags
from bert_tf2.support.settings import DATA, MODEL, TO_DO, TRAINING, Options, options, setting


@options
class BenchmarkOptions(Options):
    """What checkpoints cost: steps per second of a training that saves often, against one that saves at its end."""

    rounds: int = setting("How often the sides take turns.", 1, group=TO_DO, low=1)
    saves: int = setting("Checkpoints within the time that is measured.", 4, group=TRAINING, low=1)
    save_checkpoints_steps: int = setting("Steps between checkpoints.", 10, group=TRAINING, low=1)
    train_batch_size: int = setting("Examples per step, of 128 tokens.", 8, group=TRAINING, low=1)
    bert_config_file: str | None = setting("Configuration of the model; BERT-Base without it.", None, group=MODEL)
    work_dir: str = setting("Folder for checkpoints, and saving.jsonl, the results.", "bench_output", group=DATA)

    @property
    def num_train_steps(self) -> int:
        return self.save_checkpoints_steps * (self.saves + 1)


def train(options: BenchmarkOptions, command: list[str]) -> float:
    """Trains in a process of its own; returns the seconds of all steps but the first."""
    output = Path(options.work_dir) / "saving" / "output"
    shutil.rmtree(output, ignore_errors=True)
    try:
        processes.run([*command, f"--output_dir={output}"], output.with_name("run.log"))
        ends = processes.ends_of_steps(output)
    finally:
        shutil.rmtree(output, ignore_errors=True)
    return ends[options.num_train_steps] - ends[1]


def measured(options: BenchmarkOptions) -> dict[int, list[float]]:
    """The seconds by --save_checkpoints_steps, 0 and that of the options, one value for each round."""
    interval, batch = options.save_checkpoints_steps, options.train_batch_size
    sizes, command = training_flags.pretraining_command(Path(options.work_dir) / "saving", options.bert_config_file)
    command += [f"--train_batch_size={batch}", f"--num_train_steps={options.num_train_steps}"]
    command += ["--keep_checkpoint_max=2"]
    results = processes.Results(Path(options.work_dir) / "saving.jsonl", processes.revision())
    seconds: dict[int, list[float]] = {0: [], interval: []}
    for number, steps in itertools.product(range(1, options.rounds + 1), seconds):
        key = f"{steps} {interval} {options.saves} {batch} {json.dumps(sizes)} {number}"
        own = [*command, f"--save_checkpoints_steps={steps}"]
        seconds[steps].append(results.get(key, lambda own=own: {"seconds": train(options, own)})["seconds"])
    return seconds


def main(options: BenchmarkOptions) -> None:
    print(machine.describe(), flush=True)
    without, saving = map(statistics.median, measured(options).values())
    step, interval = without / (options.num_train_steps - 1), options.save_checkpoints_steps
    checkpoint = (saving - without) / options.saves
    sizes = workload.load_config(options.bert_config_file)
    print(
        f"{sizes['num_hidden_layers']} layers, hidden {sizes['hidden_size']}, batch {options.train_batch_size}:"
        f" {1 / step:.3f} steps/s without saving; a checkpoint costs {checkpoint:.2f} s, so that with one every"
        f" {interval} steps there are {1 / (step + checkpoint / interval):.3f} steps/s"
        f" ({100 * step / (step + checkpoint / interval):.1f} %)"
    )


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

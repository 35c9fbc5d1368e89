"""Times the pretraining step: examples/s, and the share of the machine's matrix-product rate that it reaches.

    python benchmarks/pretraining_step.py
    python benchmarks/pretraining_step.py --bert_config_file bert_config.json --batch_size 32 --precision bfloat16
    python benchmarks/pretraining_step.py --max_seq_length 512 --max_predictions_per_seq 76 --mean_length 256
    python benchmarks/pretraining_step.py --max_seq_length 512 --max_predictions_per_seq 76 --mean_length 256 --in_turn

The rate that counts as 100 % is measured in the same run, on the product that widens the states in a block. Only the
operations of a step's matrix products are counted, once forward and twice backward, without padding.

With --mean_length, a quarter of the rows fill --max_seq_length and the lengths of the other rows are uniform, so that
the mean is --mean_length: nearly as in Wikipedia, where at 512 tokens half of the positions are padding.

With --in_turn, each batch is computed with its padding, with --unpad=groups and with --pack_rows, one after the other,
so that other programs on the machine slow down all three variants alike.
"""

from __future__ import annotations

import pathlib
import statistics

import kernels
import machine
import steps
import workload

from bert_tf2.support import flags, settings, xla_flags
from bert_tf2.support.settings import MODEL, TO_DO, TRAINING, options, setting
from bert_tf2.training.options import ProgramOptions


@options
class BenchmarkOptions(ProgramOptions):
    """Times the pretraining step: examples/s, and the share of the machine's matrix-product rate that it reaches."""

    bert_config_file: str | None = setting("Configuration of the model; BERT-Base without it.", None, group=MODEL)
    batch_size: int = setting("Examples per step.", 8, group=TRAINING, low=1)
    max_seq_length: int = setting("Tokens per example.", 128, group=TRAINING, low=5)
    max_predictions_per_seq: int = setting("Masked words per example.", 20, group=TRAINING, low=1)
    mean_length: int = setting("Mean length of the rows; 0: all are full.", 0, group=TRAINING, low=0)
    unpad: str = setting("As in run_pretraining.py.", "groups", group=TRAINING, choices=("none", "groups"))
    gradient_accumulation_steps: int = setting("Parts of a batch, one after the other.", 1, group=TRAINING, low=1)
    recompute: bool = setting("As in run_pretraining.py.", False, group=TRAINING)
    attention: str = setting(
        "plain or fused as in run_pretraining.py, without dropout in attention; auto: with it.", "auto", group=TRAINING,
        choices=("auto", "plain", "fused"),
    )  # fmt: skip
    xla: str = setting(
        "Compile the whole step with XLA; needs --unpad=none.", "false", group=TRAINING, choices=("true", "false"),
        is_switch=True,
    )  # fmt: skip
    xla_cache_dir: str | None = setting("As in run_pretraining.py.", "none", group=TRAINING)
    loop: bool = setting("Time the loop of a training too, in which no step waits for its loss.", False, group=TRAINING)
    steps: int = setting("Steps to time.", 10, group=TRAINING, low=1)
    profile_dir: str | None = setting(
        "Folder for a profile of the steps that TensorBoard shows; prints a GPU's longest kernels.",
        None,
        group=TRAINING,
    )
    in_turn: bool = setting("Compare the variants without padding, batch by batch.", False, group=TO_DO)
    json: bool = setting("Print the result as one line of JSON.", False, group=TO_DO)


def main(options: BenchmarkOptions) -> None:
    flags.load_tensorflow(options.xla_cache_dir)

    from bert_tf2 import heads
    from bert_tf2.config import BertConfig
    from bert_tf2.training.devices import configured
    from bert_tf2.training.options import LoopOptions

    sizes = workload.load_config(options.bert_config_file)
    if options.attention != "auto":
        sizes["attention_probs_dropout_prob"] = 0.0
    config = BertConfig.from_dict(sizes)
    config.check_sequence_length(options.max_seq_length)
    shape = (options.batch_size, options.max_seq_length, options.max_predictions_per_seq, options.mean_length)
    batches = workload.random_batches(sizes, options.steps + workload.WARM_UP, *shape)
    shared = settings.shared(options, LoopOptions)
    given = (config, heads.PretrainingModel, batches, options)
    with configured(options):  # as in a script, float32 is not rounded to TF32
        if options.in_turn:
            show_in_turn(options, steps.in_turn(*given, **shared))
            return
        seconds, measured = steps.measure(*given, bool(options.mean_length), **shared)
    if options.json:
        print(workload.result(options.batch_size, seconds, options.mean_length, **measured))
        return
    lengths = f" (rows of {options.mean_length} on average)" if options.mean_length else ""
    print(machine.describe())
    print(
        f"{sizes['num_hidden_layers']} layers, hidden {sizes['hidden_size']}, batch {options.batch_size}, length"
        f" {options.max_seq_length}{lengths}, {options.max_predictions_per_seq} predictions, {options.precision}"
    )
    print(
        f"step            {statistics.median(seconds):.3f} s (fastest {min(seconds):.3f}, slowest {max(seconds):.3f},"
        f" {len(seconds)} steps)"
    )
    print(f"first step      {measured['first_step']:.1f} s, with the compiler")
    print(f"examples/s      {workload.examples_per_second(options.batch_size, seconds, options.mean_length):.2f}")
    if options.loop:
        print(f"in a loop       {measured['examples_per_second_in_loop']:.2f} examples/s")
        if with_copies := measured.get("examples_per_second_with_copies"):
            print(f"with copies     {with_copies:.2f} examples/s, in a loop whose steps copy their batches to the GPU")
    print(
        f"matrix products {measured['gflops']:.0f} GFLOP/s in the step, {measured['machine_gflops']:.0f} GFLOP/s alone"
    )
    print(f"share           {100 * measured['share']:.0f} %")
    print(f"peak memory     {measured['memory_gb']:.2f} GB")
    if options.profile_dir and xla_flags.has_gpu():
        print(kernels.table(pathlib.Path(options.profile_dir), options.steps))


def show_in_turn(options: BenchmarkOptions, measured) -> None:
    print(machine.describe())
    padded = measured["padded"][0]
    for way, (seconds, rows) in measured.items():
        ratio = statistics.median(before / now for before, now in zip(padded, seconds, strict=True))
        rate = options.batch_size / statistics.mean(seconds)
        print(f"{way:8s} {rate:8.2f} examples/s, {ratio:.2f} times as fast as padded, {statistics.mean(rows):.1f} rows")


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

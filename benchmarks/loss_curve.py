"""Compares the loss curve of a training in bfloat16 with float32, on the same data with the same seeds.

    python benchmarks/loss_curve.py
    python benchmarks/loss_curve.py --compare=all_reduce_dtype
    python benchmarks/loss_curve.py --input_file wiki.txt --vocab_file vocab.txt --seeds 1,2,3,4,5

A small model is pretrained for 300 steps on records of the text. A seed decides the initial weights, dropout and the
order of the records. The curves are smoothed: each value is the mean over --window steps. The program prints the
largest and the mean relative difference from float32, for each seed and for the mean over the seeds.

With --compare=all_reduce_dtype, two devices compute in float32, and only the gradients are sent in bfloat16.

Each training is a separate process. Results are kept in WORK_DIR/curves.jsonl and are not computed again with the same
revision of this checkout.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import machine
import processes
import training_flags
import workload

from bert_tf2.support import flags
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import DATA, MODEL, TO_DO, TRAINING, options, setting
from bert_tf2.training.options import PRECISIONS, PrecisionOptions

_COMPARED = ("precision", "all_reduce_dtype")


@options
class BenchmarkOptions(PrecisionOptions):
    """Compares the loss curve of a training in bfloat16 with float32, with the same data and seeds."""

    input_file: str = setting("Text, one sentence a line.", machine.CORPUS, group=DATA)
    vocab_file: str = setting("The vocabulary.", machine.VOCAB, group=DATA)
    work_dir: str = setting("Folder for the records and curves.jsonl.", "bench_output", group=DATA)
    compare: str = setting(
        "The setting that is bfloat16 in each second training.", "precision", group=TO_DO, choices=_COMPARED
    )
    all_reduce_dtype: str = setting("Internal: as in run_pretraining.py.", "float32", group=TRAINING)
    seeds: str = setting("Seeds of the trainings, separated by commas.", "1,2,3", group=TO_DO)
    window: int = setting("Steps over which the curves are smoothed.", 20, group=TO_DO, low=1)
    num_hidden_layers: int = setting("Layers of the model.", 4, group=MODEL, low=1)
    hidden_size: int = setting("Width of the model; 64 a head.", 256, group=MODEL, low=64)
    steps: int = setting("Steps of a training.", 300, group=TRAINING, low=2)
    batch_size: int = setting("Examples per step.", 16, group=TRAINING, low=1)
    learning_rate: float = setting("The highest learning rate of the schedule.", 5e-4, group=TRAINING, low=0.0)
    records: str | None = setting("Internal: train on these records and print the losses.", None, group=DATA)


LENGTH = 128


def losses(options: BenchmarkOptions) -> list[float]:
    """The loss of every step of one training, with the first seed."""
    import tensorflow as tf

    from bert_tf2 import heads
    from bert_tf2.config import BertConfig
    from bert_tf2.data import record_order, records
    from bert_tf2.training.devices import build_model
    from bert_tf2.training.loop import Trainer
    from bert_tf2.training.options import LoopOptions

    strategy = tf.distribute.get_strategy()
    if options.compare == "all_reduce_dtype":
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    seed, hidden = int(options.seeds.split(",")[0]), options.hidden_size
    with open(options.vocab_file, encoding="utf-8") as lines:
        vocab_size = sum(1 for _ in lines)
    sizes = {"vocab_size": vocab_size, "num_hidden_layers": options.num_hidden_layers, "hidden_size": hidden}
    sizes |= {"num_attention_heads": hidden // 64, "intermediate_size": 4 * hidden}
    config = BertConfig.from_dict(workload.BASE | sizes)
    limits = {"max_seq_length": LENGTH, "max_predictions_per_seq": 20, "vocab_size": vocab_size, "type_vocab_size": 2}
    data = record_order.read_records(
        [options.records], records.PRETRAINING, limits, options.batch_size,
        shuffle_seed=seed, repeat=True, drop_remainder=True,
    )  # fmt: skip
    policy = PRECISIONS[options.precision].policy
    model = build_model(strategy, lambda: heads.PretrainingModel(config, dtype=policy), seed)
    schedule = {"num_train_steps": options.steps, "num_warmup_steps": options.steps // 10}
    train_options = LoopOptions(
        output_dir="", train_batch_size=options.batch_size, learning_rate=options.learning_rate, random_seed=seed,
        precision=options.precision, all_reduce_dtype=options.all_reduce_dtype, **schedule,
    )  # fmt: skip
    steps = Trainer(model, strategy, train_options).step.several()
    batches, one = iter(strategy.experimental_distribute_dataset(data)), tf.constant(1)
    return [float(steps(batches, tf.constant(n, tf.int64), one)[0]["loss"]) for n in range(options.steps)]


def smooth(values: Sequence[float], window: int) -> list[float]:
    """The means over `window` successive values: window - 1 fewer values."""
    return [sum(values[n : n + window]) / window for n in range(len(values) - window + 1)]


def differences(curve: Sequence[float], reference: Sequence[float], window: int) -> tuple[float, float]:
    """The largest and the mean relative difference of two curves, after smoothing."""
    pairs = zip(smooth(curve, window), smooth(reference, window), strict=True)
    relative = [abs(value / expected - 1) for value, expected in pairs]
    return max(relative), sum(relative) / len(relative)


def curves(options: BenchmarkOptions, records: str) -> dict[str, list[list[float]]]:
    """The curves of both types, one for each seed, trained in turn."""
    results = processes.Results(Path(options.work_dir) / "curves.jsonl", processes.revision())
    names = ("vocab_file", "compare", "num_hidden_layers", "hidden_size", "steps", "batch_size", "learning_rate")
    shared = {**{name: getattr(options, name) for name in names}, "records": records}
    found: dict[str, list[list[float]]] = {"float32": [], "bfloat16": []}
    for seed in options.seeds.split(","):
        sides = {name: processes.flags_of(**shared, seeds=seed, **{options.compare: name}) for name in found}
        for name, measured in processes.in_turn(results, "loss_curve.py", sides, 1).items():
            found[name].append(measured[0]["losses"])
    return found


def main(options: BenchmarkOptions) -> None:
    if options.records:
        flags.load_tensorflow()
        print(json.dumps({"losses": losses(options)}))
        return

    if options.window > options.steps:
        raise UserError(f"--window={options.window} is larger than --steps={options.steps}")
    print(machine.describe(), flush=True)
    folder = Path(options.work_dir) / "curves" / Path(options.input_file).stem
    records = training_flags.make_records(folder, LENGTH, options.input_file, options.vocab_file)
    found = curves(options, str(records.resolve()))
    rows = {f"seed {seed}": pair for seed, *pair in zip(options.seeds.split(","), *found.values(), strict=True)}
    rows["mean of the curves"] = [[sum(v) / len(v) for v in zip(*of_seeds, strict=True)] for of_seeds in found.values()]
    print(
        f"{options.steps} steps, {options.num_hidden_layers} layers, hidden {options.hidden_size}, batch"
        f" {options.batch_size}, length {LENGTH}; {options.compare} bfloat16 against float32, smoothed over"
        f" {options.window} steps:"
    )
    for name, (expected, other) in rows.items():
        largest, mean = differences(other, expected, options.window)
        print(f"{name:<18} loss {expected[0]:.2f} to {smooth(expected, options.window)[-1]:.3f}, largest difference"
              f" {100 * largest:.2f} %, mean {100 * mean:.2f} %")  # fmt: skip


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

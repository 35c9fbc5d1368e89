"""Runs of finetuning.py that time whole commands, and the training step, of the default against the padded way.

The sides of a run take turns, --rounds times. Their results count for one revision of this checkout only.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import processes
from absl import flags as absl_flags
from finetuning_commands import classify, has_flag, timed, weights_folder

FLAGS = absl_flags.FLAGS

SIDES = {"default": (), "bfloat16": ("--precision=bfloat16",)}
# What they are compared with; the first of them that a script has.
PADDED = ("pad_to_max_length", "unpad=none")


def sides_of(script: str) -> dict[str, Sequence[str]]:
    """The flags of each side; without "padded" for a script that always leaves out padding."""
    padding = next((flag for flag in PADDED if has_flag(script, flag.split("=")[0])), None)
    return ({"padded": (f"--{padding}", "--precision=float32")} if padding else {}) | SIDES


def in_turn(title: str, script: str, name: str, *arguments: str, keep_from: str | None = None) -> Iterator[str]:
    """Times a script with the flags of each side, and yields a line for each.

    Args:
      keep_from: the name of an earlier run in whose output folder the script works; a folder of its own without it.
    """
    sides = sides_of(script)
    if "padded" not in sides:
        yield f"{title}: {script} has no flag that pads, so there is nothing to compare with"
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number, side in itertools.product(range(1, FLAGS.rounds + 1), sides):
        run = f"{name}-{side}-{number}-{processes.revision()}"
        # The last value of a flag counts.
        folder = [f"--output_dir={Path(FLAGS.work_dir) / keep_from}"] if keep_from else []
        result = timed(run, script, *folder, *arguments, *sides[side])
        seconds[side].append(result["seconds"])
    medians = {side: statistics.median(values) for side, values in seconds.items()}
    for side, median in medians.items():
        ratio = f", {medians['padded'] / median:.2f} times as fast" if "padded" in medians and side != "padded" else ""
        flags = " ".join(sides[side]) or "default flags"
        yield f"{title}, {flags}: {median:.1f} s ({min(seconds[side]):.1f} to {max(seconds[side]):.1f}){ratio}"


def speed() -> Iterator[str]:
    """MRPC from the command to its end, after eval_results.txt."""
    data = [f"--data_dir={FLAGS.data_dir}/MRPC", "--task_name=mrpc", "--do_train", "--do_eval"]
    epochs = f"--num_train_epochs={FLAGS.epochs:g}"
    yield from in_turn(
        f"MRPC command, {FLAGS.epochs:g} epochs", "run_classifier.py", f"speed-{FLAGS.epochs:g}", *data, epochs
    )


def start() -> Iterator[str]:
    """From the command to the end of the first step, without saving."""
    name = f"start-{processes.revision()}"
    result = classify(name, "mrpc", "MRPC", "--num_train_epochs=0.05", "--save_checkpoints_steps=0")
    seconds = processes.seconds_to_first_step(Path(FLAGS.work_dir) / name, result["began"])
    yield f"MRPC  first step ends {seconds:.1f} s after the command, with the preparation of all examples"


def step() -> Iterator[str]:
    """The training step on MRPC's rows at length 64."""
    config, vocabulary = (weights_folder() / name for name in ("bert_config.json", "vocab.txt"))
    shared = [f"--bert_config_file={config}", f"--vocab_file={vocabulary}", f"--data_dir={FLAGS.data_dir}/MRPC"]
    sides = {name: [*shared, *flags] for name, flags in ({"padded": ("--unpad=none",)} | SIDES).items()}
    results = processes.Results(Path(FLAGS.work_dir) / "steps.jsonl", processes.revision())
    for side, measured in processes.in_turn(results, "classifier_step.py", sides, FLAGS.rounds).items():
        seconds = statistics.median(statistics.mean(result["seconds"]) for result in measured)
        gflops = statistics.median(result["gflops"] for result in measured)
        share = statistics.median(result["share"] for result in measured)
        yield (
            f"MRPC step, length 64, batch 32, {side}: {seconds:.3f} s,"
            f" {gflops:.0f} GFLOP/s of real work, {100 * share:.0f} % of the machine's rate"
        )


def features() -> Iterator[str]:
    """extract_features.py on the lines of the corpus, one vector a line."""
    output = Path(FLAGS.work_dir) / "features.npy"
    flags = [f"--input_file={FLAGS.corpus}", f"--output_file={output}", "--pooling=mean", "--layers=-1"]
    yield from in_turn(
        "extract_features.py on the corpus", "extract_features.py", f"features-{Path(FLAGS.corpus).stem}", *flags
    )


def _table(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{line}\t{'even' if number % 2 else 'odd'}" for number, line in enumerate(lines)]
    path.write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")


def evaluation() -> Iterator[str]:
    """run_classifier.py --do_eval on the lines of the corpus, and run_pretraining.py --do_eval on its records."""
    work = Path(FLAGS.work_dir)
    lines = [line.replace("\t", " ") for line in Path(FLAGS.corpus).read_text(encoding="utf-8").splitlines() if line]
    _table(work / "lines" / "train.tsv", lines[:64])
    _table(work / "lines" / "dev.tsv", lines)
    task = [f"--data_dir={work / 'lines'}", "--task_name=tsv", "--text_a_column=text", "--label_column=label"]
    trained = f"lines-{processes.revision()}"
    timed(trained, "run_classifier.py", *task, "--do_train", "--num_train_epochs=1")
    yield from in_turn(
        "run_classifier.py --do_eval on the corpus", "run_classifier.py", "evaluation", *task, "--do_eval",
        keep_from=trained,
    )  # fmt: skip
    records = str(work / "corpus.tfrecord")
    making = [f"--input_file={FLAGS.corpus}", f"--output_file={records}", "--dupe_factor=1"]
    timed(f"records-{processes.revision()}", "create_pretraining_data.py", *making)
    pretraining, few = f"pretraining-{processes.revision()}", ["--num_train_steps=1", "--save_checkpoints_steps=0"]
    timed(pretraining, "run_pretraining.py", f"--input_file={records}", "--do_train", *few)
    held_out = [f"--input_file={records}", f"--eval_input_file={records}", "--do_eval", "--max_eval_steps=1000000"]
    yield from in_turn(
        "run_pretraining.py --do_eval on the corpus", "run_pretraining.py", "masked-words", *held_out,
        keep_from=pretraining,
    )  # fmt: skip


RUNS = {"speed": speed, "step": step, "start": start, "features": features, "evaluation": evaluation}

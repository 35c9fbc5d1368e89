"""Runs of finetuning.py that time whole commands, and the training step, of the default against the padded way.

The sides of a run take turns, --rounds times. Their results count for one revision of this checkout only.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
from finetuning_commands import Runs, has_flag

SIDES = {"default": {}, "bfloat16": {"precision": "bfloat16"}}
# What they are compared with; the first of them that a script has.
PADDED = {"pad_to_max_length": True, "unpad": "none"}


def in_turn(runs: Runs, title: str, script: str, name: str, **flags: Any) -> Iterator[str]:
    """Times a script with the flags of each side, and yields a line for each."""
    sides: dict[str, dict[str, Any]] = SIDES
    if padding := next((flag for flag in PADDED if has_flag(script, flag)), None):
        sides = {"padded": {padding: PADDED[padding], "precision": "float32"}} | SIDES
    else:
        yield f"{title}: {script} has no flag that pads, so there is nothing to compare with"
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number, side in itertools.product(range(1, runs.options.rounds + 1), sides):
        run = f"{name}-{side}-{number}-{processes.revision()}"
        seconds[side].append(runs.timed(run, script, **flags, **sides[side])["seconds"])
    medians = {side: statistics.median(values) for side, values in seconds.items()}
    for side, median in medians.items():
        ratio = f", {medians['padded'] / median:.2f} times as fast" if "padded" in medians and side != "padded" else ""
        given = " ".join(processes.flags_of(**sides[side])) or "default flags"
        yield f"{title}, {given}: {median:.1f} s ({min(seconds[side]):.1f} to {max(seconds[side]):.1f}){ratio}"


def speed(runs: Runs) -> Iterator[str]:
    """MRPC from the command to its end, after eval_results.txt."""
    epochs, data_dir = f"{runs.options.epochs:g}", f"{runs.options.data_dir}/MRPC"
    given = {"data_dir": data_dir, "task_name": "mrpc", "do_train": True, "do_eval": True, "num_train_epochs": epochs}
    yield from in_turn(runs, f"MRPC command, {epochs} epochs", "run_classifier.py", f"speed-{epochs}", **given)


def start(runs: Runs) -> Iterator[str]:
    """From the command to the end of the first step, without saving."""
    name = f"start-{processes.revision()}"
    result = runs.classify(name, "mrpc", "MRPC", num_train_epochs=0.05, save_checkpoints_steps=0)
    seconds = processes.seconds_to_first_step(runs.work / name, result["began"])
    yield f"MRPC  first step ends {seconds:.1f} s after the command, with the preparation of all examples"


def step(runs: Runs) -> Iterator[str]:
    """The training step on MRPC's rows at length 64."""
    weights, data_dir = runs.weights_folder(), f"{runs.options.data_dir}/MRPC"
    given = {
        "bert_config_file": weights / "bert_config.json",
        "vocab_file": weights / "vocab.txt",
        "data_dir": data_dir,
    }
    sides = {
        name: processes.flags_of(**given, **flags) for name, flags in {"padded": {"unpad": "none"}, **SIDES}.items()
    }
    results = processes.Results(runs.work / "steps.jsonl", processes.revision())
    for side, measured in processes.in_turn(results, "classifier_step.py", sides, runs.options.rounds).items():
        seconds = statistics.median(statistics.mean(result["seconds"]) for result in measured)
        gflops, share = (statistics.median(result[name] for result in measured) for name in ("gflops", "share"))
        yield (
            f"MRPC step, length 64, batch 32, {side}: {seconds:.3f} s,"
            f" {gflops:.0f} GFLOP/s of real work, {100 * share:.0f} % of the machine's rate"
        )


def features(runs: Runs) -> Iterator[str]:
    """extract_features.py on the lines of the corpus, one vector a line."""
    corpus, script = runs.options.corpus, "extract_features.py"
    given = {"input_file": corpus, "output_file": runs.work / "features.npy", "pooling": "mean", "layers": -1}
    yield from in_turn(runs, f"{script} on the corpus", script, f"features-{Path(corpus).stem}", **given)


def evaluation(runs: Runs) -> Iterator[str]:
    """run_classifier.py --do_eval on the lines of the corpus, and run_pretraining.py --do_eval on its records."""
    corpus, revision = runs.options.corpus, processes.revision()
    lines = [line.replace("\t", " ") for line in Path(corpus).read_text(encoding="utf-8").splitlines() if line]
    (runs.work / "lines").mkdir(parents=True, exist_ok=True)
    for name, part in (("train", lines[:64]), ("dev", lines)):
        rows = [f"{line}\t{'even' if number % 2 else 'odd'}\n" for number, line in enumerate(part)]
        (runs.work / "lines" / f"{name}.tsv").write_text("".join(["text\tlabel\n", *rows]), encoding="utf-8")
    task = {"data_dir": runs.work / "lines", "task_name": "tsv", "text_a_column": "text", "label_column": "label"}
    trained, pretrained, records = f"lines-{revision}", f"pretraining-{revision}", runs.work / "corpus.tfrecord"
    runs.timed(trained, "run_classifier.py", **task, do_train=True, num_train_epochs=1)
    task |= {"do_eval": True, "output_dir": runs.work / trained}
    yield from in_turn(runs, "run_classifier.py --do_eval on the corpus", "run_classifier.py", "evaluation", **task)
    making = {"input_file": corpus, "output_file": records, "dupe_factor": 1}
    runs.timed(f"records-{revision}", "create_pretraining_data.py", **making)
    few = {"num_train_steps": 1, "save_checkpoints_steps": 0}
    runs.timed(pretrained, "run_pretraining.py", input_file=records, do_train=True, **few)
    given = {"input_file": records, "eval_input_file": records, "do_eval": True, "max_eval_steps": 1000000}
    given["output_dir"] = runs.work / pretrained
    yield from in_turn(
        runs, "run_pretraining.py --do_eval on the corpus", "run_pretraining.py", "masked-words", **given
    )


RUNS = {"speed": speed, "step": step, "start": start, "features": features, "evaluation": evaluation}

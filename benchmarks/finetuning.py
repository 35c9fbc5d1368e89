"""Fine-tunes a trained encoder on real data and prints the scores and the times.

    python benchmarks/finetuning.py --weights WEIGHTS_FOLDER --data_dir DATA_FOLDER --work_dir WORK_FOLDER
    python benchmarks/finetuning.py ... --runs mrpc,cola
    python benchmarks/finetuning.py ... --runs speed,step,start,features,evaluation --corpus wiki.txt

Every run is one command line of run_classifier.py or run_squad.py, with default settings unless noted otherwise
(learning rate 5e-5, batches of 32, three epochs, 128 tokens, for SQuAD 384). Completed runs are stored in
--work_dir/results.jsonl and skipped, so an interrupted call can be resumed.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import statistics
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import machine
import processes

from bert_tf2 import commands
from bert_tf2.support import flags
from bert_tf2.support.settings import DATA, MODEL, TO_DO, TRAINING, Options, options, setting, settings_of


@options
class BenchmarkOptions(Options):
    """Fine-tunes a trained encoder on real data and prints the scores and the times."""

    weights: str = setting("Folder with config.json, model.safetensors and vocab.txt of a BERT encoder.", group=MODEL)
    data_dir: str = setting("Folder with MRPC/, CoLA/, SST-2/ (GLUE layout) and squad/dev-v1.1.json.", group=DATA)
    work_dir: str = setting("Folder for what the runs write, and for results.jsonl.", group=DATA)
    corpus: str = setting("Text for features and evaluation, one sentence a line.", machine.CORPUS, group=DATA)
    runs: str = setting(
        "Which of them to do, separated by commas; also speed, step, start, features, evaluation, which time commands.",
        "mrpc,padding,cola,sst-2,squad",
        group=TO_DO,
    )
    rounds: int = setting("How often the sides of the timed runs take turns.", 1, group=TO_DO, low=1)
    epochs: float = setting("Epochs of the run speed.", 3.0, group=TRAINING, low=0.0)

    def check(self) -> None:
        processes.check_words("runs", self.runs, RUNS)


SEEDS = (1, 2, 3)
LEARNING_RATES = ("5e-5", "1e-4", "2e-4")
TRAIN_ARTICLES, TEST_ARTICLES = 40, 8


class Runs:
    """Runs of scripts, in the work folder of the options."""

    def __init__(self, options):
        self.options, self.work = options, Path(options.work_dir)
        self._results = processes.Results(self.work / "results.jsonl")

    def weights_folder(self) -> Path:
        """The folder of --weights as a TensorFlow 1 checkpoint, which is made once."""
        folder = self.work / "weights"
        if not (folder / "vocab.txt").exists():
            from bert_tf2.weights import convert
            from bert_tf2.weights.options import ConversionOptions

            # The tanh approximation, as in the released models; these weights were trained with the exact function, and
            # fine-tuning compensates for the difference.
            weights = self.options.weights
            convert.run(ConversionOptions(input=weights, output=str(folder), to="tf1", hidden_act="gelu"))
        return folder

    def timed(self, name: str, script: str, **flags: Any) -> dict:
        """Runs a script; returns the seconds that it and its training took. A stored result is returned again.

        Its output folder is work_dir/NAME; with the flag `output_dir` another one, in which it works on.

        Raises:
          processes.Failed: the script failed.
        """
        return self._results.get(name, lambda: self._run(name, script, flags))

    def classify(self, name: str, task: str, folder: str, **flags: Any) -> dict:
        data_dir = os.path.join(self.options.data_dir, folder)
        given = {"task_name": task, "data_dir": data_dir, "do_train": True, "do_eval": True}
        return self.timed(name, "run_classifier.py", **{**given, **flags})

    def _run(self, name: str, script: str, flags: dict[str, Any]) -> dict:
        output_dir, weights = self.work / name, self.weights_folder()
        if "output_dir" not in flags:  # an incomplete run would be resumed, and its time would be wrong
            shutil.rmtree(output_dir, ignore_errors=True)
        model = {
            "bert_config_file": weights / "bert_config.json",
            "init_checkpoint": weights / "bert_model.ckpt",
            "vocab_file": weights / "vocab.txt",
            "output_dir": output_dir,
        }
        model = {flag: path for flag, path in model.items() if has_flag(script, flag)}
        log, began = Path(f"{output_dir}.log"), time.time()
        seconds = processes.run(processes.script(script, **{**model, **flags}), log)
        result = {"seconds": round(seconds, 1), "began": began, "training_seconds": training_seconds(log.read_text())}
        if (measures := output_dir / "eval_metrics.json").exists():
            result["measures"] = json.loads(measures.read_text())
        if (results := output_dir / "eval_results.txt").exists():
            result["results"] = dict(row.split(" = ") for row in results.read_text().splitlines())
        return result


def has_flag(script: str, flag: str) -> bool:
    """Whether a script of this version has a flag."""
    return flag in settings_of(commands.find(commands.COMMANDS[script.removesuffix(".py")].options))


def training_seconds(log: str) -> float | None:
    """The time from the first to the last checkpoint in the log, for the steps and tracing their graph."""
    times = re.findall(r"^I\d{4} (\d\d):(\d\d):([\d.]+) .*Saved .*model\.ckpt-\d+$", log, re.MULTILINE)
    if len(times) < 2:
        return None
    first, *_, last = [int(hours) * 3600 + int(minutes) * 60 + float(seconds) for hours, minutes, seconds in times]
    return round((last - first) % 86400, 1)


# Scores.


def spread(values: Iterable[float]) -> str:
    values = [*values]
    return f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def mrpc(runs: Runs) -> Iterator[str]:
    """The reference's settings except for seed and learning rate."""
    for rate in LEARNING_RATES:
        seeds = SEEDS if rate == LEARNING_RATES[0] else SEEDS[:1]
        found = [
            runs.classify(f"mrpc-{rate}-{seed}", "mrpc", "MRPC", learning_rate=rate, random_seed=seed) for seed in seeds
        ]
        accuracy, f1 = (spread(result["measures"][name] for result in found) for name in ("accuracy", "f1"))
        loss = spread(float(result["results"]["eval_loss"]) for result in found)
        yield (
            f"MRPC  three epochs, learning rate {rate}, seeds {' '.join(map(str, seeds))}: accuracy {accuracy},"
            f" F1 {f1}, loss {loss}"
        )


def padding(runs: Runs) -> Iterator[str]:
    """One epoch with every row padded to 128, and one with batches padded to their longest row."""
    for flag, pads in (("--pad_to_max_length", True), ("--nopad_to_max_length", False)):
        result = runs.classify(f"mrpc-epoch{flag}", "mrpc", "MRPC", pad_to_max_length=pads, num_train_epochs=1)
        yield f"MRPC  one epoch with {flag}: {result['training_seconds']:.0f} s of training"


def cola(runs: Runs) -> Iterator[str]:
    result = runs.classify("cola", "cola", "CoLA")
    yield f"CoLA  three epochs: Matthews {result['measures']['matthews_correlation']:.3f}, {result['seconds']:.0f} s"


def sst2(runs: Runs) -> Iterator[str]:
    result = runs.classify("sst-2", "sst-2", "SST-2", num_train_epochs=1)
    yield f"SST-2 one epoch: accuracy {result['measures']['accuracy']:.3f}, {result['seconds']:.0f} s"


def squad(runs: Runs) -> Iterator[str]:
    """The first articles for training, each question with its first answer, and the last ones for the test."""
    with open(f"{runs.options.data_dir}/squad/dev-v1.1.json", encoding="utf-8") as stream:
        articles = json.load(stream)["data"]
    parts = {"train": articles[:TRAIN_ARTICLES], "predict": articles[-TEST_ARTICLES:]}
    for paragraph in (paragraph for article in parts["train"] for paragraph in article["paragraphs"]):
        for question in paragraph["qas"]:
            del question["answers"][1:]
    given = {"do_train": True, "do_predict": True, "do_eval": True, "num_train_epochs": 2, "pad_to_max_length": False}
    for name, part in parts.items():
        path = runs.work / f"squad-{name}.json"
        path.write_text(json.dumps({"version": "1.1", "data": part}), encoding="utf-8")
        given[f"{name}_file"] = path
    result = runs.timed("squad", "run_squad.py", **given)
    measures = result["measures"]
    yield (
        f"SQuAD 1.1, two epochs on {TRAIN_ARTICLES} articles, tested on {TEST_ARTICLES} others: EM"
        f" {measures['exact_match']:.1f}, F1 {measures['f1']:.1f}, {result['seconds']:.0f} s"
    )


# Times of whole commands, and of the training step: of the default against the padded way. Sides take turns, and their
# results count for one revision of this checkout only.

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


RUNS = {"mrpc": mrpc, "padding": padding, "cola": cola, "sst-2": sst2, "squad": squad}
RUNS |= {"speed": speed, "step": step, "start": start, "features": features, "evaluation": evaluation}


def main(options: BenchmarkOptions) -> None:
    flags.load_tensorflow()
    print(machine.describe(), flush=True)
    runs = Runs(options)
    for name in options.runs.split(","):
        for line in RUNS[name](runs):
            print(line, flush=True)


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

"""Fine-tunes a trained encoder on real data and prints the scores and the times.

    python benchmarks/finetuning.py --weights WEIGHTS_FOLDER --data_dir DATA_FOLDER --work_dir WORK_FOLDER
    python benchmarks/finetuning.py ... --runs mrpc,cola

Every run is one command line of run_classifier.py or run_squad.py, with default settings unless noted otherwise
(learning rate 5e-5, batches of 32, three epochs, 128 tokens, for SQuAD 384). Completed runs are stored in
--work_dir/results.jsonl and skipped, so an interrupted call can be resumed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from absl import flags as absl_flags

from bert_tf2.support import flags
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import DATA, MODEL, TO_DO, Options, options, setting

FLAGS = absl_flags.FLAGS


@options
class BenchmarkOptions(Options):
    """Fine-tunes a trained encoder on real data and prints the scores and the times."""

    weights: str = setting("Folder with config.json, model.safetensors and vocab.txt of a BERT encoder.", group=MODEL)
    data_dir: str = setting("Folder with MRPC/, CoLA/, SST-2/ (GLUE layout) and squad/dev-v1.1.json.", group=DATA)
    work_dir: str = setting("Folder for what the runs write, and for results.jsonl.", group=DATA)
    runs: str = setting("Which of them to do, separated by commas.", "mrpc,padding,cola,sst-2,squad", group=TO_DO)


ROOT = Path(__file__).resolve().parents[1]


SEEDS = (1, 2, 3)
LEARNING_RATES = ("5e-5", "1e-4", "2e-4")
TRAIN_ARTICLES, TEST_ARTICLES = 40, 8


def model_flags() -> list[str]:
    folder = Path(FLAGS.work_dir) / "weights"
    if not (folder / "vocab.txt").exists():
        from bert_tf2.weights import convert
        from bert_tf2.weights.options import ConversionOptions

        # The tanh approximation, as in the released models; these weights were trained with the exact function, and
        # fine-tuning compensates for the difference.
        options = {"input": FLAGS.weights, "output": str(folder), "to": "tf1", "hidden_act": "gelu"}
        convert.run(ConversionOptions(**options))
    return [
        f"--bert_config_file={folder}/bert_config.json",
        f"--init_checkpoint={folder}/bert_model.ckpt",
        f"--vocab_file={folder}/vocab.txt",
    ]


def run(name: str, script: str, *arguments: str) -> dict:
    """Runs a script once and returns its eval_metrics.json, eval_results.txt and the seconds it took."""
    known = Path(FLAGS.work_dir) / "results.jsonl"
    if known.exists():
        for line in known.read_text().splitlines():
            if (result := json.loads(line))["name"] == name:
                return result
    output_dir = Path(FLAGS.work_dir) / name
    shutil.rmtree(output_dir, ignore_errors=True)  # an incomplete run would be resumed, and its time would be wrong
    command = [sys.executable, str(ROOT / script), *model_flags(), f"--output_dir={output_dir}", *arguments]
    began = time.monotonic()
    log = Path(f"{output_dir}.log")
    with open(log, "w", encoding="utf-8") as stream:
        done = subprocess.run(command, check=False, stdout=stream, stderr=subprocess.STDOUT)
    if done.returncode:
        raise UserError(f"{name} failed: {log.read_text().splitlines()[-1]} (all of it is in {log})")
    result = {"name": name, "seconds": round(time.monotonic() - began, 1)}
    result |= {"training_seconds": training_seconds(log.read_text())}
    result |= {"measures": json.loads((output_dir / "eval_metrics.json").read_text())}
    if (output_dir / "eval_results.txt").exists():
        rows = (output_dir / "eval_results.txt").read_text().splitlines()
        result |= {"results": dict(row.split(" = ") for row in rows)}
    with open(known, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(result) + "\n")
    return result


def training_seconds(log: str) -> float:
    """The time from the first to the last checkpoint in the log, for the steps and tracing their graph."""
    times = re.findall(r"^I\d{4} (\d\d):(\d\d):([\d.]+) .*Saved .*model\.ckpt-\d+$", log, re.MULTILINE)
    first, *_, last = [int(hours) * 3600 + int(minutes) * 60 + float(seconds) for hours, minutes, seconds in times]
    return round((last - first) % 86400, 1)


def classify(name: str, task: str, folder: str, *arguments: str) -> dict:
    data = f"--data_dir={FLAGS.data_dir}/{folder}"
    return run(name, "run_classifier.py", f"--task_name={task}", data, "--do_train", "--do_eval", *arguments)


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def mrpc() -> Iterator[str]:
    """The reference's settings except for seed and learning rate."""
    for rate in LEARNING_RATES:
        seeds = SEEDS if rate == LEARNING_RATES[0] else SEEDS[:1]
        results = [
            classify(f"mrpc-{rate}-{seed}", "mrpc", "MRPC", f"--learning_rate={rate}", f"--random_seed={seed}")
            for seed in seeds
        ]
        accuracy = spread([result["measures"]["accuracy"] for result in results])
        f1 = spread([result["measures"]["f1"] for result in results])
        loss = spread([float(result["results"]["eval_loss"]) for result in results])
        yield (
            f"MRPC  three epochs, learning rate {rate}, seeds {' '.join(map(str, seeds))}: accuracy {accuracy},"
            f" F1 {f1}, loss {loss}"
        )


def padding() -> Iterator[str]:
    """One epoch with every row padded to 128, and one with batches padded to their longest row."""
    for flag in ("--pad_to_max_length", "--nopad_to_max_length"):
        result = classify(f"mrpc-epoch{flag}", "mrpc", "MRPC", flag, "--num_train_epochs=1")
        yield f"MRPC  one epoch with {flag}: {result['training_seconds']:.0f} s of training"


def cola() -> Iterator[str]:
    result = classify("cola", "cola", "CoLA")
    matthews = result["measures"]["matthews_correlation"]
    yield f"CoLA  three epochs: Matthews {matthews:.3f}, {result['seconds']:.0f} s"


def sst2() -> Iterator[str]:
    result = classify("sst-2", "sst-2", "SST-2", "--num_train_epochs=1")
    accuracy = result["measures"]["accuracy"]
    yield f"SST-2 one epoch: accuracy {accuracy:.3f}, {result['seconds']:.0f} s"


def split_squad() -> tuple[str, str]:
    """The first articles for training, each question with its first answer, and the last ones for the test."""
    with open(f"{FLAGS.data_dir}/squad/dev-v1.1.json", encoding="utf-8") as stream:
        articles = json.load(stream)["data"]
    train, test = articles[:TRAIN_ARTICLES], articles[-TEST_ARTICLES:]
    for article in train:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                del question["answers"][1:]
    paths = tuple(os.path.join(FLAGS.work_dir, name) for name in ("squad-train.json", "squad-test.json"))
    for path, part in zip(paths, (train, test), strict=True):
        with open(path, "w", encoding="utf-8") as stream:
            json.dump({"version": "1.1", "data": part}, stream)
    return paths


def squad() -> Iterator[str]:
    train, test = split_squad()
    result = run(
        "squad",
        "run_squad.py",
        f"--train_file={train}",
        f"--predict_file={test}",
        "--do_train",
        "--do_predict",
        "--do_eval",
        "--num_train_epochs=2",
        "--nopad_to_max_length",
    )  # fmt: skip
    measures = result["measures"]
    yield (
        f"SQuAD 1.1, two epochs on {TRAIN_ARTICLES} articles, tested on {TEST_ARTICLES} others: EM"
        f" {measures['exact_match']:.1f}, F1 {measures['f1']:.1f}, {result['seconds']:.0f} s"
    )


RUNS = {"mrpc": mrpc, "padding": padding, "cola": cola, "sst-2": sst2, "squad": squad}


def main(_: BenchmarkOptions) -> None:
    flags.load_tensorflow()
    import machine

    os.makedirs(FLAGS.work_dir, exist_ok=True)
    print(machine.describe(), flush=True)
    for name in FLAGS.runs.split(","):
        for line in RUNS[name]():
            print(line, flush=True)


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

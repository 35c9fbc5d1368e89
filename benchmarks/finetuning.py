"""Fine-tunes a trained encoder on real data and prints the scores and the times.

    python benchmarks/finetuning.py --weights WEIGHTS_FOLDER --data_dir DATA_FOLDER --work_dir WORK_FOLDER
    python benchmarks/finetuning.py ... --runs mrpc,cola
    python benchmarks/finetuning.py ... --runs speed,step,start,features,evaluation --corpus wiki.txt

Every run is one command line of run_classifier.py or run_squad.py, with default settings unless noted otherwise
(learning rate 5e-5, batches of 32, three epochs, 128 tokens, for SQuAD 384). Completed runs are stored in
--work_dir/results.jsonl and skipped, so an interrupted call can be resumed.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator

import finetuning_speed
import machine
import processes
from finetuning_commands import Runs

from bert_tf2.support import flags
from bert_tf2.support.settings import DATA, MODEL, TO_DO, TRAINING, Options, options, setting


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


RUNS = {"mrpc": mrpc, "padding": padding, "cola": cola, "sst-2": sst2, "squad": squad, **finetuning_speed.RUNS}


def main(options: BenchmarkOptions) -> None:
    flags.load_tensorflow()
    print(machine.describe(), flush=True)
    runs = Runs(options)
    for name in options.runs.split(","):
        for line in RUNS[name](runs):
            print(line, flush=True)


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

"""Fine-tunes a trained encoder on real data and prints the scores and the times.

    python benchmarks/finetuning.py --weights WEIGHTS_FOLDER --data_dir DATA_FOLDER --work_dir WORK_FOLDER
    python benchmarks/finetuning.py ... --runs mrpc,cola
    python benchmarks/finetuning.py ... --runs distillation,layers
    python benchmarks/finetuning.py ... --runs speed,step

Every run is one command line of run_classifier.py or run_squad.py, with default settings unless noted otherwise
(learning rate 5e-5, batches of 32, three epochs, 128 tokens, for SQuAD 384). Completed runs are stored in
--work_dir/results.jsonl and skipped, so an interrupted call can be resumed.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import machine
import processes
from processes import spread

from bert_tf2.support import flags
from bert_tf2.support.settings import DATA, MODEL, TO_DO, TRAINING, Options, options, setting


@options
class BenchmarkOptions(Options):
    """Fine-tunes a trained encoder on real data and prints the scores and the times."""

    weights: str = setting("Folder with config.json, model.safetensors and vocab.txt of a BERT encoder.", group=MODEL)
    data_dir: str = setting("Folder with MRPC/, CoLA/, SST-2/ (GLUE layout) and squad/dev-v1.1.json.", group=DATA)
    work_dir: str = setting("Folder for the outputs of the runs, and for results.jsonl.", group=DATA)
    runs: str = setting(
        "The runs, separated by commas; also distillation and layers, and speed and step, which time commands.",
        "mrpc,cola,sst-2,squad",
        group=TO_DO,
    )
    rounds: int = setting("How often the sides of the timed runs take turns.", 1, group=TO_DO, low=1)
    epochs: float = setting("Epochs of the run speed.", 3.0, group=TRAINING, low=0.0)

    def check(self) -> None:
        processes.check_words("runs", self.runs, RUNS)


SEEDS = (1, 2, 3)
TRAIN_ARTICLES, TEST_ARTICLES = 40, 8


class Runs:
    """Runs of scripts, in the work folder of the options."""

    def __init__(self, options):
        self.options, self.work = options, Path(options.work_dir)
        self._results = processes.results_of(options, "runs", "rounds", "epochs")

    def weights_folder(self) -> Path:
        """The folder of --weights as a TensorFlow 1 checkpoint, which is made once."""
        folder = self.work / "weights"
        if not (folder / "vocab.txt").exists():
            from bert_tf2.weights import convert
            from bert_tf2.weights.convert import ConversionOptions

            # The tanh approximation, as in the released models. These weights were trained with the exact function;
            # fine-tuning compensates for the difference.
            weights = self.options.weights
            convert.run(ConversionOptions(input=weights, output=str(folder), to="tf1", hidden_act="gelu"))
        return folder

    def timed(self, name: str, script: str, **flags: Any) -> dict:
        """Runs a script; returns the seconds that it took. A stored result is returned again.

        Its output folder is work_dir/NAME.

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
        shutil.rmtree(output_dir, ignore_errors=True)  # an incomplete run would be resumed, and its time would be wrong
        model = {
            "bert_config_file": weights / "bert_config.json",
            "init_checkpoint": weights / "bert_model.ckpt",
            "vocab_file": weights / "vocab.txt",
            "output_dir": output_dir,
        }
        seconds = processes.run(processes.script(script, **{**model, **flags}), Path(f"{output_dir}.log"))
        result = {"seconds": round(seconds, 1)}
        # Before its second event, the training also compiles programs.
        ends = [*processes.ends_of_steps(output_dir).items()][1:]
        if len(ends) > 1:
            (first, began), (last, ended) = ends[0], ends[-1]
            result["examples/s"] = round((last - first) * flags.get("train_batch_size", 32) / (ended - began), 1)
        if (measures := output_dir / "eval_metrics.json").exists():
            result["measures"] = json.loads(measures.read_text())
        if (results := output_dir / "eval_results.txt").exists():
            result["results"] = dict(row.split(" = ") for row in results.read_text().splitlines())
        return result


# Scores.


def mrpc(runs: Runs) -> Iterator[str]:
    """The reference's settings except for the seed."""
    found = [runs.classify(f"mrpc-{seed}", "mrpc", "MRPC", random_seed=seed) for seed in SEEDS]
    accuracy, f1 = (spread(result["measures"][name] for result in found) for name in ("accuracy", "f1"))
    loss = spread(float(result["results"]["eval_loss"]) for result in found)
    yield f"MRPC  three epochs, seeds {' '.join(map(str, SEEDS))}: accuracy {accuracy}, F1 {f1}, loss {loss}"


def cola(runs: Runs) -> Iterator[str]:
    result = runs.classify("cola", "cola", "CoLA")
    yield f"CoLA  three epochs: Matthews {result['measures']['matthews_correlation']:.3f}, {result['seconds']:.0f} s"


def sst2(runs: Runs) -> Iterator[str]:
    result = runs.classify("sst-2", "sst-2", "SST-2", num_train_epochs=1)
    yield f"SST-2 one epoch: accuracy {result['measures']['accuracy']:.3f}, {result['seconds']:.0f} s"


def squad(runs: Runs) -> Iterator[str]:
    """Trains on the first articles, each question with its first answer; tests on the last articles."""
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


def few_rows(runs: Runs, count: int) -> dict[str, Any]:
    """Arguments of `Runs.classify` to train on the first rows of SST-2."""
    few = runs.work / f"sst-2-{count}"
    few.mkdir(exist_ok=True)
    shutil.copy(f"{runs.options.data_dir}/SST-2/dev.tsv", few)
    rows = Path(f"{runs.options.data_dir}/SST-2/train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (few / "train.tsv").write_text("".join(rows[: 1 + count]), encoding="utf-8")
    return {"task": "sst-2", "folder": str(few.absolute()), "max_seq_length": 64, "learning_rate": 1e-4}


LAYERS: dict[str, dict[str, Any]] = {
    "one rate": {},
    "one rate 5e-5": {"learning_rate": 5e-5},  # a decay also lowers the rates
    "layer_decay 0.9": {"layer_decay": 0.9},
    "layer_decay 0.8": {"layer_decay": 0.8},
    "frozen": {"freeze": "embeddings,0-2"},  # half of the six blocks
}


def layers(runs: Runs, rows: int = 1500) -> Iterator[str]:
    """One rate for all layers, lower rates for lower layers, and frozen lower layers."""
    how = few_rows(runs, rows)
    for name, given in LAYERS.items():
        key = f"layers-{name.replace(' ', '-')}"
        found = [runs.classify(f"{key}-{seed}", **{**how, **given}, random_seed=seed) for seed in SEEDS]
        accuracy = spread(result["measures"]["accuracy"] for result in found)
        speed = statistics.median(result["examples/s"] for result in found)
        yield f"SST-2, {rows} rows, {name}: accuracy {accuracy}, {speed:.0f} examples/s"


FEW_ROWS = 3000  # of SST-2's training table
STUDENT = "0,2,4"  # of the six blocks of the teacher


def distillation(runs: Runs) -> Iterator[str]:
    """A teacher on the first rows of SST-2, and students that begin with half of its blocks, without and with it."""
    how = few_rows(runs, FEW_ROWS)
    found = {"teacher": [runs.classify("teacher", **how)]}
    start = {"init_checkpoint": runs.work / "teacher", "init_from_layers": STUDENT, "bert_config_file": None}
    for name, teacher in {"student": None, "student, taught": runs.work / "teacher"}.items():
        found[name] = [
            runs.classify(f"{name.replace(', ', '-')}-{seed}", **how, **start, teacher=teacher, random_seed=seed)
            for seed in SEEDS
        ]
    sizes = answers_of_one_row({"teacher": runs.work / "teacher", "student": runs.work / "student-1"})
    for name, results in found.items():
        parameters, milliseconds = sizes[name.partition(",")[0]]
        accuracy = spread(result["measures"]["accuracy"] for result in results)
        yield (
            f"SST-2, {FEW_ROWS} rows, {name}: accuracy {accuracy}, {parameters / 1e6:.1f} million parameters,"
            f" {milliseconds:.2f} ms for 1 x 16, trained in {statistics.median(r['seconds'] for r in results):.0f} s"
        )


def answers_of_one_row(folders: dict[str, Path], rounds: int = 300) -> dict[str, tuple[int, float]]:
    """The parameters of classifiers, and the ms of an answer to one row of 16 tokens; models take turns, medians."""
    import tensorflow as tf

    import bert_tf2
    from bert_tf2.fast.encoder import accelerated

    row = {name: tf.ones([1, 16], tf.int32) for name in ("input_ids", "input_mask", "segment_ids")}
    graphs, counts, times = {}, {}, {name: [] for name in folders}
    for name, folder in folders.items():
        model = bert_tf2.load(folder).model
        graphs[name] = tf.function(accelerated(model)(lambda batch, model=model: model(batch)), autograph=False)
        graphs[name](row)
        counts[name] = model.count_params()
    for _, (name, graph) in itertools.product(range(rounds), graphs.items()):
        began = time.perf_counter()
        graph(row).numpy()
        times[name].append(1e3 * (time.perf_counter() - began))
    return {name: (counts[name], statistics.median(values)) for name, values in times.items()}


# Times of whole commands and of the training step, by default and with padding. Sides take turns, and results are
# valid for one revision of this checkout only.

SIDES = {"default": {}, "bfloat16": {"precision": "bfloat16"}}


def speed(runs: Runs) -> Iterator[str]:
    """MRPC from the command to its end, after eval_results.txt: a line for each side."""
    epochs, sides = f"{runs.options.epochs:g}", {"padded": {"pad_to_max_length": True}, **SIDES}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number, side in itertools.product(range(1, runs.options.rounds + 1), sides):
        name = f"speed-{epochs}-{side}-{number}-{processes.revision()}"
        done = runs.classify(name, "mrpc", "MRPC", num_train_epochs=epochs, **sides[side])
        seconds[side].append(done["seconds"])
    padded = statistics.median(seconds["padded"])
    for side, values in seconds.items():
        median = statistics.median(values)
        yield (
            f"MRPC command, {epochs} epochs, {side}: {median:.1f} s ({min(values):.1f} to {max(values):.1f}),"
            f" {padded / median:.2f} times as fast as padded"
        )


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


RUNS = {"mrpc": mrpc, "cola": cola, "sst-2": sst2, "squad": squad, "layers": layers}
RUNS |= {"distillation": distillation, "speed": speed, "step": step}


def main(options: BenchmarkOptions) -> None:
    flags.load_tensorflow()
    print(machine.describe(), flush=True)
    runs = Runs(options)
    for name in options.runs.split(","):
        for line in RUNS[name](runs):
            print(line, flush=True)


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

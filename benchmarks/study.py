"""Trains small models with and without parts of BERT, and measures what each part is good for.

    python benchmarks/study.py
    python benchmarks/study.py --input_file=book.txt --vocab_size=4000 --steps=6000
    python benchmarks/study.py --quick

Each variant differs from `base`, which is the reference's BERT, in one thing, see VARIANTS. Every seed holds out other
documents of the text, and no model sees them in its training. The text is cut into documents, the records are made by
create_pretraining_data.py, and the models are trained by the project's own Trainer.

Each training is a process of its own, with one thread; --processes of them run at the same time. Results are kept in
WORK_DIR/study.jsonl and the weights beside it, so an interrupted call continues; without study.jsonl, the weights are
measured again. What is printed is also in WORK_DIR/study.md; --plots
draws it (matplotlib, the extra `plot`). docs/study.md says what the figures mean.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import hashlib
import itertools
import json
import math
import re
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import machine
import processes
import study_report

from bert_tf2.support import flags, plots
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import DATA, MODEL, TO_DO, TRAINING, Options, WrongSetting, options, setting

VARIANTS = {
    "base": "as in the reference",
    "untied": "the head has an output table of its own",
    "cloned_frozen": "the head's table is a copy of the new word table, and is not trained",
    "from_sinusoid": "positions are learned, and start from the sinusoid",
    "sinusoidal": "positions are the fixed sinusoid",
    "no_positions": "no positions",
    "all_masked": "all words to predict are [MASK] in training (100/0/0, not 80/10/10)",
    "no_pairs": "one text, no next sentence",
}
_DOCUMENTS_PER_HELD_OUT = 5
_QUICK = {"steps": 20, "hidden_size": 24, "num_hidden_layers": 1, "dupe_factor": 3}
_QUICK |= {"seeds": "1", "learning_rates": "1.5e-3"}


@options
class BenchmarkOptions(Options):
    """Trains small models with and without parts of BERT, and measures what each part is good for."""

    input_file: str = setting("Text: a sentence a line, a blank line between documents.", machine.CORPUS, group=DATA)
    vocab_file: str | None = setting(
        "The vocabulary; the demo's for its text, and otherwise one that is built from the text.", None, group=DATA
    )
    vocab_size: int = setting("Entries of a vocabulary that is built.", 2000, group=DATA, low=200)
    work_dir: str = setting("Folder for the records, study.jsonl and study.md.", "bench_output/study", group=DATA)
    variants: str = setting("Which variants, separated by commas.", ",".join(VARIANTS), group=TO_DO)
    seeds: str = setting(
        "Seeds, separated by commas; five in a row hold out other documents each.",
        ",".join(map(str, range(1, 11))),
        group=TO_DO,
    )
    tuning_seeds: str = setting("Seeds with which the learning rate of a variant is chosen.", "11", group=TO_DO)
    plots: str | None = setting("A folder for the plots, SVG files.", None, group=TO_DO)
    processes: int = setting("Trainings at the same time.", 2, group=TO_DO, low=1)
    quick: bool = setting("A look at all of it in a minute, whose numbers mean nothing.", False, group=TO_DO)
    one: str | None = setting(
        "Train this VARIANT:SEED:RATE alone and print the result; for the processes.", None, group=TO_DO
    )
    num_hidden_layers: int = setting("Layers of the model.", 2, group=MODEL, low=1)
    hidden_size: int = setting("Width of the model; 24 a head.", 96, group=MODEL, low=24)
    max_seq_length: int = setting("Tokens per example.", 32, group=MODEL, low=8)
    max_predictions_per_seq: int = setting("Masked words per example.", 5, group=MODEL, low=1)
    dupe_factor: int = setting("Passes over the text, each with other pairs and masks.", 50, group=TRAINING, low=1)
    steps: int = setting("Steps of a training.", 1200, group=TRAINING, low=1)
    batch_size: int = setting("Examples per step.", 16, group=TRAINING, low=1)
    learning_rates: str = setting(
        "The highest learning rates of the schedule that are tried; each variant is measured with the best of its own."
        " Where that is the largest, twice as large ones are tried until it is not.",
        "7.5e-4,1.5e-3,3e-3",
        group=TRAINING,
    )

    def check(self) -> None:
        processes.check_words("variants", self.variants, VARIANTS)
        for name in ("seeds", "tuning_seeds"):
            if wrong := [seed for seed in getattr(self, name).split(",") if not seed.isdigit()]:
                raise WrongSetting(f"--{name}: {wrong[0]!r} is no whole number")
        for rate in self.learning_rates.split(","):
            if not re.fullmatch(r"\d+(\.\d+)?(e-?\d+)?", rate):
                raise WrongSetting(f"--learning_rates: {rate!r} is no number")
        if self.hidden_size % 24:
            raise WrongSetting(f"--hidden_size={self.hidden_size} is not divisible by 24, the width of a head")


# What decides a result, besides the text.
_DECISIVE = (
    *("vocab_size", "num_hidden_layers", "hidden_size", "max_seq_length", "max_predictions_per_seq", "dupe_factor"),
    *("steps", "batch_size"),
)


def split(text: str, seed: int) -> tuple[str, str]:
    """Cuts a text at its blank lines; returns the documents to train on, and one in five that is held out."""
    documents = [document.strip("\n") for document in text.split("\n\n") if document.strip()]
    held_out = documents[seed % _DOCUMENTS_PER_HELD_OUT :: _DOCUMENTS_PER_HELD_OUT]
    train = [d for n, d in enumerate(documents) if n % _DOCUMENTS_PER_HELD_OUT != seed % _DOCUMENTS_PER_HELD_OUT]
    if not held_out or not train:
        raise UserError(f"{len(documents)} documents are too few; a blank line must separate them")
    return "\n\n".join(train) + "\n", "\n\n".join(held_out) + "\n"


def prepare(options: BenchmarkOptions, text: str, folder: Path, seed: int) -> None:
    """Writes the records of a seed's split: in pairs and as single texts, to train on and held out."""
    if (folder / "complete").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in zip(("train", "heldout"), split(text, seed), strict=True):
        (folder / f"{name}.txt").write_text(part, encoding="utf-8")
    vocabulary = folder / "vocab.txt"
    if known := options.vocab_file or (machine.VOCAB if options.input_file == machine.CORPUS else None):
        vocabulary.write_text(Path(known).read_text(encoding="utf-8"), encoding="utf-8")
    else:
        given = {"input_file": folder / "train.txt", "vocab_size": options.vocab_size, "num_unused": 0}
        processes.run(processes.script("build_vocab.py", vocab_file=vocabulary, **given), folder / "vocabulary.log")
    sizes = {name: getattr(options, name) for name in ("max_seq_length", "max_predictions_per_seq")}
    for name, dupe_factor in (("train", options.dupe_factor), ("heldout", min(10, options.dupe_factor))):
        for form, objective in (("pairs", "mlm_nsp"), ("single", "mlm")):
            files = {"input_file": folder / f"{name}.txt", "output_file": folder / f"{name}_{form}.tfrecord"}
            command = processes.script(
                "create_pretraining_data.py", **files, **sizes, objective=objective, vocab_file=vocabulary,
                do_lower_case=True, dupe_factor=dupe_factor, random_seed=seed,
            )  # fmt: skip
            processes.run(command, folder / f"{name}_{form}.log")
    (folder / "complete").write_text("")


def guess_by_frequency(folder: Path) -> dict[str, float]:
    """Loss and accuracy on the held-out tokens of a guess that knows only how often words occur in the training.

    Returns:
      `loss`, `accuracy`, and `unseen`, the share of the held-out tokens that do not occur in the training. Half an
      occurrence is added to each word's.
    """
    from bert_tf2 import tokenization
    from bert_tf2.support import files

    tokenizer = tokenization.FullTokenizer(str(folder / "vocab.txt"), do_lower_case=True)
    lines = (map(tokenizer.tokenize, files.read_lines(str(folder / f"{name}.txt"))) for name in ("train", "heldout"))
    train, held_out = (collections.Counter(itertools.chain.from_iterable(tokens)) for tokens in lines)
    total, count = sum(train.values()) + len(tokenizer.vocab) / 2, sum(held_out.values())
    loss = -sum(n * math.log((train[token] + 0.5) / total) for token, n in held_out.items())
    unseen = sum(n for token, n in held_out.items() if token not in train)
    return {"loss": loss / count, "accuracy": held_out[train.most_common(1)[0][0]] / count, "unseen": unseen / count}


def train_all(options: BenchmarkOptions) -> tuple[list[dict], list[dict[str, float]], dict[str, dict[str, float]]]:
    """Chooses the learning rate of each variant, and trains it with all seeds; stored results are not made again.

    Returns:
      The results of all variants and seeds; guess_by_frequency of each seed; and for each variant the mean held-out
      loss of the tuning seeds by learning rate, empty where there was nothing to choose.

    Raises:
      UserError: the text is no text, or a training fails.
    """
    from bert_tf2.support import files

    text = files.read_text(options.input_file, drop_bom=True)
    settings = {name: getattr(options, name) for name in _DECISIVE}
    vocabulary = files.read_text(options.vocab_file) if options.vocab_file else ""
    identity = json.dumps([settings, text, vocabulary], sort_keys=True)
    work = Path(options.work_dir) / hashlib.sha256(identity.encode()).hexdigest()[:10]
    results = processes.Results(Path(options.work_dir) / "study.jsonl")
    shared = [f"--{name}={value}" for name, value in settings.items()]

    def train(variant: str, seed: str, rate: str) -> dict:
        began = time.monotonic()
        command = processes.ours("study.py", *shared, f"--work_dir={work / seed}", f"--one={variant}:{seed}:{rate}")
        found = processes.measure(command, OMP_NUM_THREADS="1")
        print(f"{variant}, seed {seed}, learning rate {rate}: {time.monotonic() - began:.0f} s", flush=True)
        return found

    def results_of(runs: list[tuple[str, str, str]]) -> list[dict]:
        for seed in dict.fromkeys(seed for _, seed, _ in runs):
            prepare(options, text, work / seed, int(seed))
        key = f"{work.name} {{}} {{}} {{}}".format
        known = results.known()
        with concurrent.futures.ThreadPoolExecutor(options.processes) as pool:
            missing = [run for run in runs if key(*run) not in known]
            if len(missing) < len(runs):
                print(f"{len(runs) - len(missing)} of {len(runs)} trainings are in {options.work_dir}/study.jsonl")
            new = {pool.submit(train, *run): run for run in missing}
            try:
                for done in concurrent.futures.as_completed(new):
                    results.add(key(*new[done]), done.result())
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        known = results.known()
        return [known[key(*run)] for run in runs]

    variants, seeds, rates = (getattr(options, name).split(",") for name in ("variants", "seeds", "learning_rates"))
    tried: dict[str, dict[str, float]] = {variant: {} for variant in variants} if len(rates) > 1 else {}
    waiting = [(variant, rate) for variant in tried for rate in rates]
    while waiting:
        runs = [(variant, seed, rate) for variant, rate in waiting for seed in options.tuning_seeds.split(",")]
        losses = dict(zip(runs, map(study_report.held_out_loss, results_of(runs)), strict=True))
        for variant, rate in waiting:
            tried[variant][rate] = statistics.fmean(losses[run] for run in runs if run[::2] == (variant, rate))
        # Where the best is the largest that was tried, a larger one may be better.
        largest = {variant: max(of, key=float) for variant, of in tried.items()}
        waiting = [(variant, _twice(rate)) for variant, rate in largest.items() if rate == _best(tried[variant])]
    best = {variant: _best(tried[variant]) if tried else rates[0] for variant in variants}
    # Variant after variant would leave an interrupted study with one variant whole and others missing.
    found = results_of([(variant, seed, best[variant]) for seed in seeds for variant in variants])
    return found, [guess_by_frequency(work / seed) for seed in seeds], tried


def _best(tried: Mapping[str, float]) -> str:
    return min(tried, key=tried.__getitem__)


def _twice(rate: str) -> str:
    """_twice("6e-3") is "1.2e-2"."""
    value = 2 * float(rate)
    exponent = math.floor(math.log10(value))
    return f"{value / 10**exponent:g}e{exponent}"


def main(options: BenchmarkOptions) -> None:
    if options.one:
        flags.load_tensorflow()
        import study_run

        variant, seed, rate = options.one.split(":")
        print(json.dumps(study_run.train(options, Path(options.work_dir), variant, int(seed), float(rate))))
        return

    if options.plots:
        plots.require("--plots")
    if options.quick:
        given = {field.name for field in dataclasses.fields(options) if getattr(options, field.name) != field.default}
        options = dataclasses.replace(options, **{name: value for name, value in _QUICK.items() if name not in given})
    began = time.monotonic()
    print(machine.describe(), flush=True)
    results, guesses, tried = train_all(options)
    report = study_report.write(results, guesses, tried, options, machine.describe())
    print(report)
    Path(options.work_dir, "study.md").write_text(report + "\n", encoding="utf-8")
    if options.plots:
        print("Plots:", *study_report.draw(results, Path(options.plots)))
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

"""Trains sentence vectors on MRPC here and with sentence-transformers, from the same weights, and prints the scores.

    python benchmarks/sentence_vectors.py --weights WEIGHTS_FOLDER --data_dir MRPC_FOLDER --work_dir WORK_FOLDER

Both sides start from the first layers of an encoder, take batches, rate, warm-up and weight decay from the flags, and
train for one epoch: on the paraphrases with in-batch negatives, and on pairs with the label 0 or 1 as their cosine. The
test pairs have Spearman's correlation of label and cosine, and recall@1: how often the closest of all second sentences
is the paraphrase. Needs sentence-transformers, datasets and accelerate. Completed runs are in --work_dir/results.jsonl.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import itertools
import os
import time
from pathlib import Path
from typing import Any

import machine
import processes

from bert_tf2.support import flags
from bert_tf2.support.settings import DATA, MODEL, TO_DO, TRAINING, Options, options, setting


@options
class BenchmarkOptions(Options):
    """Trains sentence vectors on MRPC here and with sentence-transformers, and prints the scores."""

    weights: str = setting("Folder with config.json, model.safetensors and vocab.txt of a BERT encoder.", group=MODEL)
    data_dir: str = setting("Folder with MRPC's train.tsv and msr_paraphrase_test.txt.", group=DATA)
    work_dir: str = setting("Folder for the weights that both sides start from, and for results.jsonl.", group=DATA)
    layers: int = setting("The number of first layers to start from.", 3, group=MODEL, low=1)
    max_seq_length: int = setting("Tokens per sentence.", 64, group=MODEL, low=3)
    rows: int = setting("The maximum number of training pairs.", 1600, group=TRAINING, low=32)
    batch_size: int = setting("Pairs per step.", 32, group=TRAINING, low=2)
    learning_rate: float = setting("The highest learning rate.", 5e-5, group=TRAINING)
    recipe: bool = setting("Train here with this project's optimizer, not with PyTorch's AdamW.", False, group=TRAINING)
    seeds: str = setting("The seeds, separated by commas.", "1,2,3", group=TRAINING)
    sides: str = setting("The sides, separated by commas.", "here,sentence-transformers", group=TO_DO)

    def check(self) -> None:
        processes.check_words("sides", self.sides, SIDES)


def read(path: Path) -> list[tuple[str, str, float]]:
    with path.open(encoding="utf-8-sig") as stream:
        rows = csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row[3], row[4], float(row[0])) for row in itertools.islice(rows, 1, None)]


def start_folder(options: BenchmarkOptions) -> str:
    """The first layers of the weights, which both sides load; made once."""
    from bert_tf2.weights import convert, model_folder, sources
    from bert_tf2.weights.options import ConversionOptions

    folder = Path(options.work_dir) / f"start-{options.layers}"
    if not folder.exists():
        config = model_folder.find_config(sources.open_weights(options.weights), None)
        path = folder.with_suffix(".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dataclasses.replace(config, num_hidden_layers=options.layers).to_json_string())
        given = {"input": options.weights, "output": str(folder), "bert_config_file": str(path)}
        convert.run(ConversionOptions(**given, to="hf"))
    return str(folder)


def here(options: BenchmarkOptions, rows: list | None, scores: list | None, seed: int) -> Any:
    """Returns a function from texts to vectors; without rows, of the start."""
    import keras

    import bert_tf2

    keras.utils.set_random_seed(seed)
    model = bert_tf2.embedder(start_folder(options), max_seq_length=options.max_seq_length)
    if rows:
        steps = -(-len(rows) // options.batch_size)
        rate = bert_tf2.WarmupAndDecay(options.learning_rate, steps, steps // 10)
        optimizer = keras.optimizers.AdamW(rate, weight_decay=0.01, epsilon=1e-8, global_clipnorm=1.0)  # torch's
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        model.compile(options.learning_rate if options.recipe else optimizer)
        model.fit(rows, scores, batch_size=options.batch_size, verbose=0)
    return model.embed


def with_sentence_transformers(options: BenchmarkOptions, rows: list | None, scores: list | None, seed: int) -> Any:
    import datasets
    import sentence_transformers as library
    from sentence_transformers.sentence_transformer import losses

    model = library.SentenceTransformer(start_folder(options), device="cpu")
    model.max_seq_length = options.max_seq_length
    if rows:
        columns = {"first": [first for first, _ in rows], "second": [second for _, second in rows]}
        loss = losses.CosineSimilarityLoss(model) if scores else losses.MultipleNegativesRankingLoss(model)
        steps = -(-len(rows) // options.batch_size)
        arguments = library.SentenceTransformerTrainingArguments(
            output_dir=os.path.join(options.work_dir, "trainer"),
            num_train_epochs=1,
            per_device_train_batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            warmup_steps=steps // 10,
            weight_decay=0.01,
            seed=seed,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        data = datasets.Dataset.from_dict({**columns, **({"label": scores} if scores else {})})
        library.SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=loss).train()
    return model.encode


SIDES = {"here": here, "sentence-transformers": with_sentence_transformers}


def measure(options: BenchmarkOptions, side: str, kind: str, seed: int) -> dict[str, float]:
    """Trains (with kind "start" not) and tests."""
    from bert_tf2.api.vectors import Closest, unit
    from bert_tf2.finetuning.classification.results import correlations

    folder, rows, scores = Path(options.data_dir), None, None
    if kind != "start":
        train = read(folder / "train.tsv")
        train = train if kind == "scores" else [row for row in train if row[2]]
        rows = [(first, second) for first, second, _ in train[: options.rows]]
        scores = [score for *_, score in train[: options.rows]] if kind == "scores" else None
    before = time.perf_counter()
    embed = SIDES[side](options, rows, scores, seed)
    seconds = time.perf_counter() - before
    *texts, labels = map(list, zip(*read(folder / "msr_paraphrase_test.txt"), strict=True))
    first, second = (unit(embed(column)) for column in texts)
    closest = Closest(first, 1)
    closest.add(second)
    found = [index[0] == number for number, index in enumerate(closest.found().indexes) if labels[number]]
    spearman = correlations(labels, (first * second).sum(-1))["spearman"]
    return {"spearman": spearman, "recall@1": sum(found) / len(found), "seconds": round(seconds, 1)}


def main(options: BenchmarkOptions) -> None:
    flags.load_tensorflow()
    print(machine.describe(), flush=True)
    results = processes.results_of(options, "sides", "seeds", "recipe")
    for kind, side in itertools.product(("start", "negatives", "scores"), options.sides.split(",")):
        how = f"{kind}-{side}{'-recipe' * options.recipe}"
        found = [
            results.get(f"{how}-{seed}", functools.partial(measure, options, side, kind, seed))
            for seed in map(int, options.seeds.split(",")[: 1 if kind == "start" else None])
        ]
        names = ("spearman", "recall@1", "seconds")
        spreads = (f"{name} {processes.spread(result[name] for result in found)}" for name in names)
        print(f"{how}: {', '.join(spreads)}", flush=True)


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

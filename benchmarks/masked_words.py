"""Continues a pretraining on texts of another subject, in Keras and by the script, and prints the gain and the loss.

    python benchmarks/masked_words.py --weights WEIGHTS_FOLDER --data_dir DATA_FOLDER --work_dir WORK_FOLDER

The first blocks of an encoder get a masked-LM head, and learn masked words of a novel ("War and Peace"). From this
model, `fit` of `bert_tf2.masked_lm` and the scripts (create_pretraining_data.py --dynamic_masking, run_pretraining.py)
each continue on the same sentences of film reviews (SST-2), with the same steps, rows, rate and warm-up: a sentence is
a row on both sides; masks, order and dropout differ. Both run in this process, so that the seconds, from texts to a
folder with weights, have no import of TensorFlow.

Each model gets sentences of reviews and of the novel that no training had: the loss and accuracy of masked words, the
same masks for each model, and the pseudo-log-likelihood per token (`score`). Results are in --work_dir/results.jsonl.
"""

from __future__ import annotations

import functools
import itertools
import random
import shutil
import statistics
import time
from pathlib import Path

import machine
import processes
from workload import sentences

from bert_tf2.support import flags
from bert_tf2.support.settings import DATA, MODEL, TO_DO, TRAINING, Options, options, setting


@options
class BenchmarkOptions(Options):
    """Continues a pretraining on texts of another subject, in Keras and by the script."""

    weights: str = setting("Folder with config.json, model.safetensors and vocab.txt of a BERT encoder.", group=MODEL)
    data_dir: str = setting("Folder with SST-2/ (GLUE layout) and corpus/war_and_peace.txt.", group=DATA)
    work_dir: str = setting("Folder for the models, and for results.jsonl.", group=DATA)
    blocks: str = setting("The blocks of the encoder that are used.", "0,1,2", group=MODEL)
    max_seq_length: int = setting("Tokens per row.", 64, group=MODEL, low=8)
    texts: int = setting("The number of sentences of reviews to train on.", 1600, group=DATA, low=32)
    test_texts: int = setting("The number of held-out sentences of each subject.", 800, group=DATA, low=1)
    scored_texts: int = setting("How many of the held-out sentences `score` reads.", 200, group=DATA, low=1)
    first_steps: int = setting("Steps on the novel.", 200, group=TRAINING, low=2)
    first_rate: float = setting("The highest learning rate on the novel.", 5e-4, group=TRAINING)
    epochs: int = setting("Passes over the reviews.", 2, group=TRAINING, low=1)
    learning_rate: float = setting("The highest learning rate on the reviews.", 2e-4, group=TRAINING)
    batch_size: int = setting("Rows per step.", 32, group=TRAINING, low=2)
    seeds: str = setting("The seeds, separated by commas.", "1,2,3", group=TRAINING)
    sides: str = setting("The sides, separated by commas.", "fit,script", group=TO_DO)

    def check(self) -> None:
        processes.check_words("sides", self.sides, SIDES)


def by_script(given: BenchmarkOptions, start: str, texts: list[str], output: Path, steps: int, **more) -> None:
    """Trains with the scripts; consecutive texts of one document share rows, and an empty text ends a document."""
    from bert_tf2 import commands

    shape = {"max_seq_length": given.max_seq_length, "max_predictions_per_seq": -(-15 * given.max_seq_length // 100)}
    made, text, records = {**shape, "objective": "mlm"}, output.with_suffix(".txt"), output.with_suffix(".tfrecord")
    shutil.rmtree(output, ignore_errors=True)  # an incomplete run would be resumed
    text.write_text("\n".join(texts) + "\n", encoding="utf-8")
    made["vocab_file"] = f"{start}/vocab.txt"
    unmasked = {"dynamic_masking": True, "dupe_factor": 1, "short_seq_prob": 0.0}
    commands.call("create_pretraining_data", input_file=str(text), output_file=str(records), **made, **unmasked)
    commands.call(
        "run_pretraining", do_train=True, input_file=str(records), output_dir=str(output), init_checkpoint=start,
        train_batch_size=given.batch_size, num_train_steps=steps, num_warmup_steps=steps // 10, **made, **more,
    )  # fmt: skip


def first(given: BenchmarkOptions, lines: list[str], output: Path) -> dict[str, float]:
    before = time.perf_counter()
    how = {"init_from_layers": given.blocks, "learning_rate": given.first_rate}
    by_script(given, given.weights, lines, output, given.first_steps, **how)
    return {"seconds": time.perf_counter() - before}


def with_fit(given: BenchmarkOptions, start: str, texts: list[str], output: Path, seed: int) -> None:
    import keras

    import bert_tf2

    keras.utils.set_random_seed(seed)
    words = bert_tf2.masked_lm(start, max_seq_length=given.max_seq_length, random_seed=seed)
    words.compile(given.learning_rate)
    words.fit(texts, batch_size=given.batch_size, epochs=given.epochs, verbose=0)
    words.save_folder(output)


def with_script(given: BenchmarkOptions, start: str, texts: list[str], output: Path, seed: int) -> None:
    steps = given.epochs * -(-len(texts) // given.batch_size)
    alone = [line for text in texts for line in (text, "")]
    by_script(given, start, alone, output, steps, learning_rate=given.learning_rate, random_seed=seed)


SIDES = {"fit": with_fit, "script": with_script}


def test(given: BenchmarkOptions, folder: Path, held_out: dict[str, list[str]]) -> dict[str, float]:
    import bert_tf2

    words, bert = bert_tf2.masked_lm(folder, max_seq_length=given.max_seq_length), bert_tf2.load(folder)
    found = {}
    for subject, texts in held_out.items():
        measured = words.evaluate(texts, batch_size=given.batch_size, verbose=0, return_dict=True)
        found |= {f"{subject} {name}": measured[f"masked_lm_{name}"] for name in ("loss", "accuracy")}
        scores = bert.score(texts[: given.scored_texts])
        found[f"{subject} score"] = statistics.mean(itertools.chain(*(one.log_probabilities for one in scores)))
    return found


def measure(given, side: str, start: Path, texts: list[str], held_out: dict[str, list[str]], seed: int) -> dict:
    """Continues, and tests; `seconds` of the first call of a side include the compilation of its programs."""
    output = start.parent / f"{side}-{seed}"
    shutil.rmtree(output, ignore_errors=True)
    before = time.perf_counter()
    SIDES[side](given, str(start), texts, output, seed)
    seconds = time.perf_counter() - before
    return {"seconds": seconds, **test(given, output, held_out)}


def main(given: BenchmarkOptions) -> None:
    flags.load_tensorflow()
    import bert_tf2

    print(machine.describe(), flush=True)
    work, data = Path(given.work_dir), Path(given.data_dir)
    results, draw = processes.results_of(given, "sides", "seeds"), random.Random(1)
    novel = data / "corpus" / "war_and_peace.txt"
    last = sentences(novel, slice(80, 90))  # the file ends with a license
    held_out = {
        "reviews": draw.sample(sentences(data / "SST-2" / "dev.tsv"), given.test_texts),
        "novel": draw.sample(last, given.test_texts),
    }
    texts = draw.sample(sorted({*sentences(data / "SST-2" / "train.tsv")}), 2 * given.texts)
    tokenizer = bert_tf2.load(given.weights).tokenizer
    texts = [text for text in texts if len(tokenizer.tokenize(text)) <= given.max_seq_length - 2][: given.texts]
    lines = novel.read_text(encoding="utf-8").splitlines()
    lines = lines[: lines.index(last[0])]
    start = work / "start"
    pretrained = results.get("first", lambda: first(given, lines, start))
    print(f"{given.first_steps} steps on the novel: {pretrained['seconds']:.0f} s", flush=True)
    found = {"before": [results.get("before", lambda: test(given, start, held_out))]}
    for side in given.sides.split(","):
        one = functools.partial(measure, given, side, start, texts, held_out)
        seeds = map(int, given.seeds.split(","))
        found[side] = [results.get(f"{side}-{seed}", functools.partial(one, seed)) for seed in seeds]
    names = [*[name for name in found["before"][0] if name != "name"], "seconds"]
    rows = [
        [side, *(processes.spread(result[name] for result in measured if name in result) for name in names)]
        for side, measured in found.items()
    ]
    print(processes.render(["", *names], rows))


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

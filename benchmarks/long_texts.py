"""Compares ways to classify texts that are longer than the model: cut at the head, head and tail, windows.

    python benchmarks/long_texts.py --weights WEIGHTS_FOLDER --data_dir DATA_FOLDER

The texts are made: consecutive sentences of WikiText-2 with more than 512 tokens, and a passage of some sentences of a
novel ("War and Peace") or of film reviews (SST-2) at a random place between them. The label is the source of the
passage. Training and test have different sentences, and different articles of WikiText-2. A way that does not read the
passage can only guess, and the passage has the same chance everywhere: in real texts, the head often has more.

The encoder's first layers learn the two sources from single sentences. From these weights, each way answers the test
texts, is trained on the training texts with the recipe of `classifier`, and answers again. Its line has both
accuracies, and the seconds for training and for the last answers.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import machine
from workload import sentences

from bert_tf2.support import flags
from bert_tf2.support.settings import DATA, MODEL, TO_DO, TRAINING, Options, options, setting

LABELS = ("novel", "review")
TOKENS = 512  # a text has more
WAYS = {
    "head": {},
    "head and tail": {},
    "windows, mean": {"pooling": "mean"},
    "windows, max": {"pooling": "max"},
}


@options
class BenchmarkOptions(Options):
    """Compares ways to classify texts that are longer than the model."""

    weights: str = setting("Folder with config.json, model.safetensors and vocab.txt of a BERT encoder.", group=MODEL)
    layers: int = setting("The number of its layers that are used, the first.", 2, group=MODEL, low=1)
    data_dir: str = setting(
        "Folder with SST-2/ (GLUE layout), and corpus/ with wiki.txt and war_and_peace.txt.", group=DATA
    )
    texts: int = setting("The number of training texts.", 120, group=DATA, low=2)
    test_texts: int = setting("The number of test texts.", 100, group=DATA, low=2)
    sentences: int = setting("The number of sentences of the passage with the label.", 20, group=DATA, low=1)
    max_seq_length: int = setting("Tokens that the model reads at once.", 64, group=MODEL, low=8)
    stride: int = setting("Tokens between the starts of two windows.", 48, group=MODEL, low=1)
    epochs: int = setting("Passes over the training texts.", 2, group=TRAINING, low=1)
    learning_rate: float = setting("The learning rate.", 2e-4, group=TRAINING, low=0)
    seeds: int = setting("The number of trainings of each way.", 1, group=TRAINING, low=1)
    short: int = setting("The number of single sentences.", 320, group=DATA, low=2)
    ways: str = setting("The ways, separated by semicolons.", ";".join(WAYS), group=TO_DO)


def make_texts(
    count: int, marked: dict[str, list[str]], lines: list[str], each: int, tokenizer, draw: random.Random
) -> tuple[list[str], list[str]]:
    """Texts and their labels; both labels are equally frequent."""
    texts, labels = [], [LABELS[number % len(LABELS)] for number in range(count)]
    for label in labels:
        start, length, filler = draw.randrange(len(lines) - 200), 0, []
        while length <= TOKENS:
            filler.append(lines[start + len(filler)])
            length += len(tokenizer.tokenize(filler[-1]))
        filler.insert(draw.randrange(len(filler) + 1), " ".join(draw.sample(marked[label], each)))
        texts.append(" ".join(filler))
    return texts, labels


def head_and_tail(texts: list[str], tokenizer, length: int) -> dict:
    """Rows of the first quarter of the room and of the last tokens of a text, as Sun et al. (2019) divide it."""
    from bert_tf2.data.rows import Row, pack, padded

    rows, room = [], length - 2
    for text in texts:
        tokens = tokenizer.tokenize(text)
        kept = tokens if len(tokens) <= room else tokens[: room // 4] + tokens[-(room - room // 4) :]
        tokens, segments = pack(kept)
        rows.append(Row(tokenizer.convert_tokens_to_ids(tokens), segments))
    return padded(rows)


def accuracy(model, x, labels: list[str]) -> float:
    guesses = model.predict(x, batch_size=16, verbose=0).argmax(1)
    return 100 * statistics.mean(LABELS[guess] == label for guess, label in zip(guesses, labels, strict=True))


def main(given: BenchmarkOptions) -> None:
    flags.load_tensorflow()
    import bert_tf2

    print(machine.describe(), flush=True)
    draw, corpus = random.Random(1), Path(given.data_dir, "corpus")
    tokenizer = bert_tf2.load(given.weights).tokenizer
    parts, single = [], {}
    for count, name, part in ((given.texts, "train.tsv", slice(80)), (given.test_texts, "dev.tsv", slice(80, None))):
        sources = (sentences(corpus / "war_and_peace.txt", part), sentences(Path(given.data_dir, "SST-2", name)))
        marked = dict(zip(LABELS, sources, strict=True))
        parts.append(make_texts(count, marked, sentences(corpus / "wiki.txt", part), given.sentences, tokenizer, draw))
        single = single or marked  # of the training
    train, test = parts
    lengths = [len(tokenizer.tokenize(text)) for text in train[0]]
    print(
        f"{given.texts} texts of {min(lengths)} to {max(lengths)} tokens, {statistics.mean(lengths):.0f} on average",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        config = json.loads(Path(given.weights, "config.json").read_text("utf-8"))
        path = Path(folder, "config.json")
        path.write_text(json.dumps({**config, "num_hidden_layers": given.layers}), "utf-8")
        for way in given.ways.split(";"):
            how = {"stride": given.stride, **WAYS[way]} if "pooling" in WAYS[way] else {}
            x = [train[0], test[0]]
            if way == "head and tail":
                x = [head_and_tail(texts, tokenizer, given.max_seq_length) for texts in x]
            found = []
            for seed in range(1, given.seeds + 1):
                start = Path(folder, f"sentences-{seed}")
                sizes = {"max_seq_length": given.max_seq_length, "bert_config_file": path, "random_seed": seed}
                if not start.exists():
                    short = [draw.choice(single[label]) for label in LABELS * (given.short // 2)]
                    model = bert_tf2.classifier(given.weights, LABELS, **sizes)
                    model.compile(3e-4)
                    model.fit(short, [*LABELS] * (given.short // 2), batch_size=8, epochs=3, verbose=0)
                    model.save_folder(start)
                model = bert_tf2.classifier(start, **sizes, **how)
                model.compile(given.learning_rate, metrics=["accuracy"])

                before, begun = accuracy(model, x[1], test[1]), time.perf_counter()
                model.fit(x[0], train[1], batch_size=8, epochs=given.epochs, verbose=0)
                trained = time.perf_counter()
                found.append((before, accuracy(model, x[1], test[1]), trained - begun, time.perf_counter() - trained))
            before, after, training, prediction = map(statistics.mean, zip(*found, strict=True))
            times = f"training {training:.0f} s, answers {prediction:.0f} s"
            print(f"{way:<14} accuracy {before:.1f}, trained {after:.1f}; {times}", flush=True)


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

"""Compares ways to classify texts that are longer than the model: cut at the head, head and tail, windows.

    python benchmarks/long_texts.py --weights WEIGHTS_FOLDER --data_dir DATA_FOLDER

The texts are made: a few consecutive sentences of WikiText-2 with more than 512 tokens, and some sentences of a novel
("War and Peace") or of film reviews (SST-2) between them, at random places. The label is the source of these sentences.
Training and test have different sentences, and different articles of WikiText-2. A way that reads none of the marked
sentences can only guess, and the sentences have the same chance everywhere: in real texts, the head often has more.

The encoder's first layers are fine-tuned with the recipe of `classifier`. A line for each way has the accuracy on the
test texts, and the seconds for training and prediction.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import machine

from bert_tf2.support import flags
from bert_tf2.support.settings import DATA, MODEL, TO_DO, TRAINING, Options, options, setting

LABELS = ("novel", "review")
TOKENS = 512  # a text has more
LEAST_WORDS = 8  # of a sentence with a label
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
    texts: int = setting("The number of training texts.", 160, group=DATA, low=2)
    test_texts: int = setting("The number of test texts.", 200, group=DATA, low=2)
    sentences: int = setting("The number of sentences with the label in a text.", 4, group=DATA, low=1)
    max_seq_length: int = setting("Tokens that the model reads at once.", 128, group=MODEL, low=8)
    stride: int = setting("Tokens between the starts of two windows.", 96, group=MODEL, low=1)
    epochs: int = setting("Passes over the training texts.", 3, group=TRAINING, low=1)
    learning_rate: float = setting("The learning rate.", 1e-4, group=TRAINING, low=0)
    seeds: int = setting("The number of trainings of each way.", 1, group=TRAINING, low=1)
    ways: str = setting("The ways, separated by semicolons.", ";".join(WAYS), group=TO_DO)


def lines_of(path: Path, part: slice = slice(None)) -> list[str]:
    """The sentences of a file or of a table of SST-2, without short sentences: of a share, in hundredths."""
    found = [line.partition("\t")[0] for line in path.read_text("utf-8").splitlines()]
    found = [line for line in found if len(line.split()) >= LEAST_WORDS]
    return found[slice(*(share and len(found) * share // 100 for share in (part.start, part.stop)))]


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
        for sentence in draw.sample(marked[label], each):
            filler.insert(draw.randrange(len(filler) + 1), sentence)
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


def main(given: BenchmarkOptions) -> None:
    flags.load_tensorflow()
    import numpy as np

    import bert_tf2

    print(machine.describe(), flush=True)
    draw, corpus = random.Random(1), Path(given.data_dir, "corpus")
    tokenizer = bert_tf2.load(given.weights).tokenizer
    parts = []
    for count, name, part in ((given.texts, "train.tsv", slice(80)), (given.test_texts, "dev.tsv", slice(80, None))):
        sources = (lines_of(corpus / "war_and_peace.txt", part), lines_of(Path(given.data_dir, "SST-2", name)))
        marked = dict(zip(LABELS, sources, strict=True))
        parts.append(make_texts(count, marked, lines_of(corpus / "wiki.txt", part), given.sentences, tokenizer, draw))
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
            found = []
            for seed in range(1, given.seeds + 1):
                sizes = {"max_seq_length": given.max_seq_length, "bert_config_file": path, "random_seed": seed}
                model = bert_tf2.classifier(given.weights, LABELS, **sizes, **how)
                model.compile(given.learning_rate)
                x = [train[0], test[0]]
                if way == "head and tail":
                    x = [head_and_tail(texts, tokenizer, given.max_seq_length) for texts in x]
                begun = time.perf_counter()
                model.fit(x[0], train[1], batch_size=8, epochs=given.epochs, verbose=0)
                trained = time.perf_counter()
                guesses = model.predict(x[1], batch_size=16, verbose=0).argmax(1)
                seconds = (trained - begun, time.perf_counter() - trained)
                right = np.array([LABELS[guess] for guess in guesses]) == test[1]
                found.append((100 * right.mean(), *seconds))
            accuracy, training, prediction = map(statistics.mean, zip(*found, strict=True))
            each = " ".join(f"{row[0]:.1f}" for row in found)
            print(
                f"{way:<14} accuracy {accuracy:.1f} ({each}), training {training:.0f} s, prediction {prediction:.0f} s"
            )


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

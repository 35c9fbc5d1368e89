"""Data for every task that a tiny model learns in seconds: one word of a sentence determines the answer."""

from __future__ import annotations

import json
import pathlib
import random

from small_models import randomize

from bert_tf2.config import BertConfig
from bert_tf2.weights import bundle, checkpoint
from bert_tf2.weights.task_file import LabelMap, save_label_map

GOOD, BAD = ["good", "fine", "great", "lovely"], ["bad", "poor", "awful", "sad"]
PLACES, NAMES = ["paris", "rome", "oslo", "lima"], ["ann", "bob", "eve", "max"]
OTHERS = "the a film book was is lives in now with and where ? . play ##ing".split()
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *PLACES, *NAMES, *OTHERS]


def config(**changes) -> BertConfig:
    sizes = {
        "vocab_size": len(VOCAB),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
        "initializer_range": 0.2,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return BertConfig(**{**sizes, **changes})


def write_model(folder: pathlib.Path, **changes) -> dict[str, str]:
    """Writes the configuration and the vocabulary; returns their flags."""
    (folder / "bert_config.json").write_text(config(**changes).to_json_string())
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCAB))
    return {"bert_config_file": str(folder / "bert_config.json"), "vocab_file": str(folder / "vocab.txt")}


def write_trained(folder: pathlib.Path, model, labels: LabelMap | None = None, seed: int = 0) -> pathlib.Path:
    """Writes a folder as a training leaves it, with random weights; returns the prefix of its checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder)
    (folder / "bert_config.json").write_text(model.config.to_json_string())
    randomize(model, seed)
    if labels:
        save_label_map(str(folder), labels)
    bundle.CheckpointFolder(str(folder)).save(checkpoint.tf1_variables(model), 7)
    return folder / "model.ckpt-7"


def _around(word: str, draw: random.Random) -> list[str]:
    """A word among others, at a random position."""
    words = draw.choices(OTHERS[:11], k=draw.randrange(1, 12))
    words.insert(draw.randrange(len(words) + 1), word)
    return words


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """(text, "yes" or "no"), alternating."""
    draw = random.Random(seed)
    return [
        (" ".join(_around(draw.choice((GOOD, BAD)[number % 2]), draw)), ("yes", "no")[number % 2])
        for number in range(count)
    ]


def write_table(path: pathlib.Path, header: str, rows: list[tuple]) -> None:
    lines = [header, *("\t".join(map(str, row)) for row in rows)]
    path.write_text("".join(line + "\n" for line in lines if line))


def write_tsv_task(folder: pathlib.Path, examples: int = 64) -> None:
    """train.tsv (of so many examples) and dev.tsv with labels, test.tsv without."""
    folder.mkdir(exist_ok=True)
    for part, count, seed in (("train", examples, 1), ("dev", 21, 2)):
        rows = [(f"{part}{number}", *row) for number, row in enumerate(sentences(count, seed))]
        write_table(folder / f"{part}.tsv", "name\ttext\tanswer", rows)
    rows = [(f"t{number}", text) for number, (text, _) in enumerate(sentences(21, 2))]
    write_table(folder / "test.tsv", "name\ttext", rows)


TSV_COLUMNS = {"text_a_column": "text", "label_column": "answer", "id_column": "name"}


def squad(count: int, seed: int, impossible: bool = False) -> dict:
    """Questions about a place, which is the answer; with `impossible`, every third paragraph has no answer."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        no_answer = impossible and number % 3 == 2
        word = draw.choice(NAMES if no_answer else PLACES)
        words = _around(word, draw)
        context = " ".join(words).title()
        start = sum(len(before) + 1 for before in words[: words.index(word)])
        answers = [{"text": word.title(), "answer_start": start}]
        question = {"id": f"q{number}", "question": "where is it ?", "answers": [] if no_answer else answers}
        question |= {"is_impossible": no_answer} if impossible else {}
        found.append({"context": context, "qas": [question]})
    return {"version": "toy", "data": [{"title": "toy", "paragraphs": found}]}


def write_squad(path: pathlib.Path, count: int, seed: int, impossible: bool = False) -> str:
    path.write_text(json.dumps(squad(count, seed, impossible)))
    return str(path)


def conll(count: int, seed: int, tags: bool = True) -> str:
    """Places and names among other words, in three columns: number, word, tag."""
    draw = random.Random(seed)
    lines = ["-DOCSTART- -X- O" if tags else "-DOCSTART- -X-", ""]
    for number in range(count):
        for place, word in enumerate(_around(draw.choice(PLACES), draw) + _around(draw.choice(NAMES), draw)):
            tag = "B-LOC" if word in PLACES else "B-PER" if word in NAMES else "O"
            lines.append(f"{number}.{place} {word.title()} {tag}" if tags else f"{number}.{place} {word.title()}")
        lines.append("")
    return "\n".join(lines)


def write_conll(path: pathlib.Path, count: int, seed: int, tags: bool = True) -> str:
    path.write_text(conll(count, seed, tags))
    return str(path)

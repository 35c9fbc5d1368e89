"""Checkpoints in the layout of Google's releases, with a cased or uncased toy vocabulary."""

from __future__ import annotations

import pathlib

import toy_data

from bert_tf2 import heads
from bert_tf2.weights import checkpoint

CASED = [word.title() if word.isalpha() else word for word in toy_data.VOCAB]


def write_vocab(path: pathlib.Path, entries: list[str]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")
    return str(path)


def save(model, folder: pathlib.Path) -> str:
    """Saves a checkpoint in the layout of Google's releases, without other files."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.save(str(folder / "bert_model.ckpt"), checkpoint.tf1_variables(model))
    return str(folder)


def google_folder(folder: pathlib.Path, model=None, vocabulary=None, **changes) -> str:
    """The same with bert_config.json and vocab.txt."""
    config = toy_data.config(**{"num_hidden_layers": 1, **changes})
    save(model or heads.PretrainingModel(config), folder)
    (folder / "bert_config.json").write_text(config.to_json_string())
    write_vocab(folder / "vocab.txt", vocabulary or toy_data.VOCAB)
    return str(folder)

"""A model folder as `make demo` leaves it, but for the training, for tests of the examples and the notebooks."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil

from command_lines import ROOT
from small_models import randomize

from bert_tf2 import commands, heads
from bert_tf2.config import BertConfig
from bert_tf2.weights import checkpoint

DEMO = ROOT / "bert_tf2" / "demo"


def shorten(monkeypatch) -> None:
    """Makes the trainings that `commands.call` runs end after a few steps; those of the examples take some seconds."""
    call = commands.call
    limits = {"num_train_epochs": 1.0, "num_train_steps": 8, "num_warmup_steps": 2, "dupe_factor": 1}

    def shorter(name: str, **settings):
        return call(name, **{**settings, **{key: least for key, least in limits.items() if key in settings}})

    monkeypatch.setattr(commands, "call", shorter)


def demo_like_model(folder: pathlib.Path) -> str:
    """Writes a random model with the demo's vocabulary and a configuration with one block; returns the folder."""
    shutil.copy(DEMO / "vocab.txt", folder)
    config = BertConfig.from_json_file(str(DEMO / "bert_config.json"))
    config = dataclasses.replace(config, num_hidden_layers=1, hidden_size=32, intermediate_size=64)
    (folder / "bert_config.json").write_text(config.to_json_string())
    model = heads.PretrainingModel(config)
    randomize(model, seed=1, scale=0.1)
    checkpoint.save(str(folder / "model.ckpt-0"), checkpoint.tf1_variables(model))
    return str(folder)

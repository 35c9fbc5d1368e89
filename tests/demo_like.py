"""A model folder as `make demo` leaves it, but for the training, for tests of the examples and the notebooks."""

from __future__ import annotations

import pathlib
import shutil

from command_lines import ROOT
from small_models import randomize

from bert_tf2 import checkpoint, commands, heads
from bert_tf2.config import BertConfig

DEMO = ROOT / "bert_tf2" / "demo"


def shorten(monkeypatch) -> None:
    """Makes the trainings that `commands.call` runs end after a few steps; those of the examples take some seconds."""
    call = commands.call
    limits = {"num_train_epochs": 1.0, "num_train_steps": 8, "num_warmup_steps": 2, "dupe_factor": 1}

    def shorter(name: str, **settings):
        return call(name, **{**settings, **{key: least for key, least in limits.items() if key in settings}})

    monkeypatch.setattr(commands, "call", shorter)


def demo_like_model(folder: pathlib.Path) -> str:
    """Writes a random model with the demo's configuration and vocabulary; returns the folder."""
    for name in ("bert_config.json", "vocab.txt"):
        shutil.copy(DEMO / name, folder)
    model = heads.PretrainingModel(BertConfig.from_json_file(str(folder / "bert_config.json")))
    randomize(model, seed=1, scale=0.1)
    checkpoint.save(str(folder / "model.ckpt-0"), checkpoint.tf1_variables(model))
    return str(folder)

"""A model folder as `make demo` leaves it, but for the training: for tests of what documents do with such a folder."""

from __future__ import annotations

import pathlib
import shutil

from command_lines import ROOT
from small_models import randomize

from bert_tf2 import checkpoint, heads
from bert_tf2.config import BertConfig

DEMO = ROOT / "bert_tf2" / "demo"


def demo_like_model(folder: pathlib.Path) -> str:
    """Writes a random model with the demo's configuration and vocabulary; returns the folder."""
    for name in ("bert_config.json", "vocab.txt"):
        shutil.copy(DEMO / name, folder)
    model = heads.PretrainingModel(BertConfig.from_json_file(str(folder / "bert_config.json")))
    randomize(model, seed=1, scale=0.1)
    checkpoint.save(str(folder / "model.ckpt-0"), checkpoint.tf1_variables(model))
    return str(folder)

"""Exports of small random models, one for each task."""

from __future__ import annotations

import pathlib
from typing import Any, NamedTuple

import small_models
import toy_data

from bert_tf2 import heads
from bert_tf2.export import run as export
from bert_tf2.export.options import ExportOptions
from bert_tf2.weights import checkpoint
from bert_tf2.weights.labels import LabelMap, save_label_map

LABELS = {"classifier": ("no", "yes", "maybe"), "ner": ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")}
MAX_SEQ_LENGTH, POSITIONS = 32, 48
MAKERS = {
    "features": heads.PretrainingModel,
    "classifier": lambda config: heads.ClassifierModel(config, len(LABELS["classifier"])),
    "regression": lambda config: heads.ClassifierModel(config, 1, regression=True),
    "squad": heads.SpanModel,
    "ner": lambda config: heads.TaggingModel(config, len(LABELS["ner"])),
    "masked_lm": heads.PretrainingModel,
}


class Export(NamedTuple):
    path: str  # of version 1
    model: Any  # of `heads`, with the weights that were exported


def export_small(task: str, folder: pathlib.Path, **options) -> Export:
    """Exports a model with random weights and the vocabulary of toy_data; a regression is also a task here."""
    folder.mkdir(parents=True, exist_ok=True)
    flags = toy_data.write_model(folder, max_position_embeddings=POSITIONS)
    model = MAKERS[task](toy_data.config(max_position_embeddings=POSITIONS))
    small_models.randomize(model, seed=len(task))
    checkpoint.save(str(folder / "model.ckpt"), checkpoint.tf1_variables(model), 1)
    if task in LABELS or task == "regression":
        labels = LabelMap("ner" if task == "ner" else "tsv", LABELS.get(task, ()), task == "regression")
        save_label_map(str(folder), labels)
    settings = {
        "task": "classifier" if task == "regression" else task,
        "init_checkpoint": str(folder / "model.ckpt"),
        "export_dir": str(folder / "export"),
        "max_seq_length": MAX_SEQ_LENGTH,
        "max_query_length": 12,
        "doc_stride": 8,
        "top_k": 3,
        **flags,
        **options,
    }
    return Export(export.run(ExportOptions(**settings)), model)

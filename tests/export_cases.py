"""Small exported models of every task, and the outputs of the Python models for the same inputs.

The folder of an export's weights is one that a training leaves, so scripts, `load` and Keras' models take it, too.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib

import numpy as np
import tensorflow as tf
import toy_data
from small_models import randomize

from bert_tf2 import heads, modeling, tokenization
from bert_tf2.exporting.options import ExportOptions
from bert_tf2.exporting.run import run
from bert_tf2.support.resolution import resolve
from bert_tf2.weights.task_file import TAGGING_TASK, LabelMap

CONFIG = toy_data.config(num_hidden_layers=1)
POSITIONS = CONFIG.max_position_embeddings
IDS = ("input_ids", "input_mask", "segment_ids")
LABELS = ("bad", "fair", "good")
TAGS = ("O", "B-LOC", "B-PER", "I-LOC", "I-PER")
MAKERS = {
    "features": lambda: modeling.BertModel(CONFIG),
    "classifier": lambda: heads.ClassifierModel(CONFIG, len(LABELS)),
    "regression": lambda: heads.ClassifierModel(CONFIG, 0, regression=True),
    "squad": lambda: heads.SpanModel(CONFIG),
    "ner": lambda: heads.TaggingModel(CONFIG, len(TAGS)),
    "masked_lm": lambda: heads.PretrainingModel(CONFIG),
}
"""By task; a regression, which has no labels, is a task of its own here."""
KINDS = {**MAKERS, "multi_label": lambda: heads.ClassifierModel(CONFIG, len(LABELS), multi_label=True)}
"""Also with several labels of a text, which LiteRT and OpenVINO are not asked for."""
LABEL_MAPS = {
    "classifier": LabelMap("tsv", LABELS, False),
    "regression": LabelMap("tsv", (), True),
    "multi_label": LabelMap("tsv", LABELS, False, multi_label=True),
    "ner": LabelMap(TAGGING_TASK, TAGS, False),
}
SETTINGS = {task: {"max_seq_length": 24} for task in KINDS}
SETTINGS["squad"] |= {"max_query_length": 6, "doc_stride": 5, "max_answer_length": 4, "n_best_size": 8}
SETTINGS["masked_lm"] |= {"top_k": 3}
CLS, SEP, MASK = 2, 3, 4  # in toy_data.VOCAB
CLOSE = {"atol": 1e-5, "rtol": 0}


@dataclasses.dataclass
class Exported:
    """An export and its original model; `weights` is a checkpoint in a folder with all that belongs to it."""

    folder: str
    weights: pathlib.Path
    model: object
    tokenizer: tokenization.FullTokenizer
    options: ExportOptions

    @functools.cached_property
    def saved(self):
        return tf.saved_model.load(self.folder)

    def ask(self, signature: str, **inputs) -> dict[str, np.ndarray]:
        found = self.saved.signatures[signature](**{name: tf.constant(value) for name, value in inputs.items()})
        return {name: value.numpy() for name, value in found.items()}

    @property
    def info(self) -> dict:
        return json.loads(pathlib.Path(self.folder, "model_info.json").read_text())


def make_options(folder: pathlib.Path, task: str, weights: pathlib.Path, **changes) -> ExportOptions:
    """With an export_dir in `folder`, and the files beside the weights."""
    files = {"bert_config_file": "bert_config.json", "vocab_file": "vocab.txt", "init_checkpoint": weights.name}
    settings = {flag: str(weights.with_name(name)) for flag, name in files.items()}
    settings |= {**SETTINGS[task], "export_dir": str(folder / "export")}
    kind = "classifier" if task in ("regression", "multi_label") else task
    return resolve(ExportOptions(task=kind, **{**settings, **changes}))


def export(folder: pathlib.Path, task: str, model=None, **changes) -> Exported:
    """Exports a model, by default the task's, with random weights, unless the folder has its export."""
    model, weights, made = model or KINDS[task](), folder / "model.ckpt-7", folder / "export" / "1"
    options = functools.partial(make_options, folder, task, weights, **changes)
    if made.exists():
        randomize(model, seed=5)
    else:
        toy_data.write_trained(folder, model, LABEL_MAPS.get(task), seed=5)
        made = run(options())
    return Exported(str(made), weights, model, tokenization.FullTokenizer(str(folder / "vocab.txt")), options())


def rows(lengths=(4, 17, 9, 24), seed: int = 3) -> dict[str, np.ndarray]:
    """Rows `[CLS] tokens [SEP] tokens [SEP]` of several lengths, with one [MASK] or more, segments and padding."""
    draw = np.random.default_rng(seed)
    inputs = {name: np.zeros([len(lengths), max(lengths)], np.int32) for name in IDS}
    for row, length in enumerate(lengths):
        ids = draw.integers(MASK, len(toy_data.VOCAB), length)
        middle = length // 2
        ids[[0, 1, middle, length - 1]] = CLS, MASK, SEP, SEP
        inputs["input_ids"][row, :length] = ids
        inputs["input_mask"][row, :length] = 1
        inputs["segment_ids"][row, middle + 1 : length] = 1
    return inputs


def expected_outputs(made: Exported, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of the Python model, under the names of the signatures; those at padding are excluded."""
    task, model = made.options.task, made.model
    mask = inputs["input_mask"][..., None]
    if task == "features":
        output = model(*(inputs[name] for name in IDS))
        sequence = output.sequence_output.numpy() * mask
        pooled = {"pooled_output": output.pooled_output.numpy(), "mean_pooled": sequence.sum(1) / mask.sum(1)}
        return {"sequence_output": sequence, **pooled}
    if task == "masked_lm":
        return _expected_words(model, inputs)
    logits = model(inputs)
    if task == "squad":
        start, end = (np.where(mask[..., 0], part.numpy(), modeling.MASKED_SCORE) for part in logits)
        return {"start_logits": start, "end_logits": end}
    if task == "ner":
        probabilities = tf.nn.softmax(logits).numpy()
        labels = np.where(mask[..., 0], np.array(TAGS)[probabilities.argmax(-1)].astype("S"), b"")
        return {"label": labels, "probability": probabilities.max(-1) * mask[..., 0]}
    if model.regression:
        return {"value": logits.numpy()[:, 0]}
    if model.multi_label:
        probabilities = 1 / (1 + np.exp(-logits.numpy()))
        named = [[label for label, one in zip(LABELS, row, strict=True) if one >= 0.5] for row in probabilities]
        labels = [[*found, *[""] * (len(LABELS) - len(found))] for found in named]
        return {"probabilities": probabilities, "labels": np.array(labels).astype("S")}
    probabilities = tf.nn.softmax(logits).numpy()
    return {"probabilities": probabilities, "label": np.array(LABELS)[probabilities.argmax(-1)].astype("S")}


def _expected_words(model, inputs) -> dict[str, np.ndarray]:
    places = [np.flatnonzero(row == MASK) for row in inputs["input_ids"] * inputs["input_mask"]]
    count = max(map(len, places))
    positions = np.array([[*row, *[-1] * (count - len(row))] for row in places], np.int32)
    logits = model({**inputs, "masked_lm_positions": np.maximum(positions, 0)})
    scores, ids = (part.numpy() for part in tf.math.top_k(tf.nn.softmax(logits), 3))
    there = (positions >= 0)[..., None]
    words = np.where(there, np.array(toy_data.VOCAB)[ids].astype("S"), b"")
    return {"positions": positions, "tokens": words, "scores": np.where(there, scores, 0.0)}


def assert_outputs(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], **close) -> None:
    """All outputs `wanted` are there; numbers are close, by default to 1e-5."""
    for name, value in wanted.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found[name], value, err_msg=name, **CLOSE | close)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)

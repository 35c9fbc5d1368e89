"""Very small models and batches for fast tests; all variables are random, including biases and gammas."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from bert_tf2 import heads
from bert_tf2.config import BertConfig
from bert_tf2.weights import checkpoint

SHARED = pathlib.Path(__file__).resolve().parents[2] / "shared"
# All that the reference answered, or the part that lies in every checkout.
ANSWERS = next(path for path in (SHARED / "golden", pathlib.Path(__file__).with_name("golden")) if path.is_dir())
REFERENCE = pathlib.Path(__file__).with_name("golden") / "reference"
GOLDEN = ANSWERS / "model"
needs_golden = pytest.mark.skipif(
    not (GOLDEN / "ckpt").is_dir(), reason="the checkpoints of the reference are not here"
)

VOCAB, LENGTH, PREDICTIONS, LABELS = 23, 10, 4, 3

MAKERS = {
    "pretraining": heads.PretrainingModel,
    "masked_words": heads.MaskedLMModel,
    "classifier": lambda config, **kwargs: heads.ClassifierModel(config, LABELS, **kwargs),
    "span": heads.SpanModel,
    "tagging": lambda config, **kwargs: heads.TaggingModel(config, LABELS, **kwargs),
}


def small_config(**changes) -> BertConfig:
    sizes = {"vocab_size": VOCAB, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 12, "max_position_embeddings": 16, "type_vocab_size": 2}
    sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertConfig(**{**sizes, **changes})


def tiny_config(**changes) -> BertConfig:
    """Few operations and few shapes, because most time is spent on tracing graphs, one per shape in the optimizer."""
    sizes = {"num_hidden_layers": 1, "intermediate_size": 8, "max_position_embeddings": 23}
    return small_config(**{**sizes, **changes})


def randomize(model, seed: int = 0, scale: float = 0.3) -> dict[str, np.ndarray]:
    """Sets every variable of a model to random values; returns them by TensorFlow 1 name."""
    random = np.random.default_rng(seed)
    values = {}
    for name, variable in checkpoint.tf1_variables(model).items():
        center = 1.0 if name.endswith("gamma") else 0.0
        values[name] = random.normal(center, scale, variable.shape).astype(np.float32)
        variable.assign(values[name])
    return values


def values_of(model) -> dict[str, np.ndarray]:
    return {name: variable.numpy() for name, variable in checkpoint.tf1_variables(model).items()}


def small_batch(batch_size: int = 4, seed: int = 1) -> dict[str, np.ndarray]:
    """All features of all models. Rows have 1 to LENGTH tokens, and different numbers of predictions."""
    random = np.random.default_rng(seed)
    lengths = np.linspace(2, LENGTH, batch_size).astype(int)[::-1]
    counts = np.linspace(0, PREDICTIONS, batch_size).astype(int)
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)

    def ints(high: int, *shape: int) -> np.ndarray:
        return random.integers(0, high, (batch_size, *shape)).astype(np.int32)

    return {
        "input_ids": ints(6, LENGTH) * 3 * mask,  # few words, so that each is looked up several times
        "input_mask": mask,
        "segment_ids": ints(2, LENGTH) * mask,
        "masked_lm_positions": ints(LENGTH, PREDICTIONS) % lengths[:, None].astype(np.int32),
        "masked_lm_ids": ints(VOCAB, PREDICTIONS),
        "masked_lm_weights": (np.arange(PREDICTIONS) < counts[:, None]).astype(np.float32),
        "next_sentence_labels": ints(2),
        "start_positions": ints(LENGTH),
        "end_positions": ints(LENGTH),
        "label_ids": ints(LABELS),
    }


def batch_for(kind: str, batch_size: int = 4, seed: int = 1) -> dict[str, np.ndarray]:
    """small_batch with `label_ids` for this kind of model."""
    batch = small_batch(batch_size, seed)
    if kind == "tagging":  # a label for some tokens, unevenly many per row
        random = np.random.default_rng(seed)
        labels = random.integers(0, LABELS, (batch_size, LENGTH))
        counts = np.linspace(1, LENGTH, batch_size).astype(int)[:, None]
        batch["label_ids"] = np.where(np.arange(LENGTH) < counts, labels, -1).astype(np.int32)
    return batch

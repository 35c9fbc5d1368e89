"""Folders in the layout of `transformers` with random weights of a tiny BERT, and the names of all tensors."""

from __future__ import annotations

import json

import numpy as np
import safetensors.numpy

V, P, D, I = 7, 5, 4, 6  # noqa: E741
CONFIG = {
    **{"architectures": ["BertForPreTraining"], "model_type": "bert", "transformers_version": "5.0.0"},
    **{"vocab_size": V, "max_position_embeddings": P, "type_vocab_size": 2, "pad_token_id": 0, "use_cache": True},
    **{"hidden_size": D, "intermediate_size": I, "num_attention_heads": 2, "num_hidden_layers": 1},
    **{"hidden_act": "gelu", "layer_norm_eps": 1e-12, "initializer_range": 0.02, "classifier_dropout": None},
    **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}


def _dense(name: str, outputs: int, inputs: int = D) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.LayerNorm.weight": (D,), f"{name}.LayerNorm.bias": (D,)}


_ROWS = {"word": V, "position": P, "token_type": 2}
# Name and shape in a file of transformers.
POOLER = _dense("pooler.dense", D)
ENCODER = {
    **{f"embeddings.{kind}_embeddings.weight": (rows, D) for kind, rows in _ROWS.items()},
    **_norm("embeddings"),
    **{
        f"encoder.layer.0.{name}": shape
        for part in (
            *(_dense(f"attention.self.{kind}", D) for kind in ("query", "key", "value")),
            *(_dense("attention.output.dense", D), _norm("attention.output")),
            *(_dense("intermediate.dense", I), _dense("output.dense", D, I), _norm("output")),
        )
        for name, shape in part.items()
    },
}
MASKED_LM = {
    **_dense("cls.predictions.transform.dense", D),
    **_norm("cls.predictions.transform"),
    "cls.predictions.bias": (V,),
}
NEXT_SENTENCE = _dense("cls.seq_relationship", 2)
LABELS = _dense("classifier", 3)
CLASSES = {
    "BertModel": POOLER,
    "BertForPreTraining": {**POOLER, **MASKED_LM, **NEXT_SENTENCE},
    "BertForMaskedLM": MASKED_LM,
    "BertForNextSentencePrediction": {**POOLER, **NEXT_SENTENCE},
    "BertForSequenceClassification": {**POOLER, **LABELS},
    "BertForQuestionAnswering": _dense("qa_outputs", 2),
    "BertForTokenClassification": LABELS,
}
WORDS, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"


_OUTPUTS = {"qa_outputs.": "cls/squad/", "classifier.": "", "cls.seq_relationship.": "cls/seq_relationship/"}
_PARTS = {
    **{"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta", "weight": "kernel"},
    **{"embeddings.kernel": "embeddings", "layer.": "layer_", "predictions.bias": "predictions.output_bias", ".": "/"},
}


def reference_name(name: str) -> str:
    """The name in google-research/bert of a tensor of transformers."""
    name = name.removeprefix("bert.")
    for theirs, ours in _OUTPUTS.items():
        if name.startswith(theirs):
            return f"{ours}output_{name.removeprefix(theirs).replace('weight', 'weights')}"
    name = name if name.startswith("cls.") else f"bert.{name}"
    for theirs, ours in _PARTS.items():
        name = name.replace(theirs, ours)
    return name


def tensors_of(architecture: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights under the names that transformers uses for the class."""
    random = np.random.default_rng(seed)
    inside = "" if architecture == "BertModel" else "bert."
    return {
        (inside if name in ENCODER or name in POOLER else "") + name: random.normal(size=shape).astype(np.float32)
        for name, shape in {**ENCODER, **CLASSES[architecture]}.items()
    }


def write_json(path, content) -> None:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def make_folder(folder, tensors=None, architecture="BertForPreTraining", **changes) -> str:
    folder.mkdir(exist_ok=True)
    write_json(folder / "config.json", {**CONFIG, "architectures": [architecture], **changes})
    tensors = tensors_of(architecture) if tensors is None else tensors
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)

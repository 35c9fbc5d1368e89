"""The `config.json` of Hugging Face's `transformers`, translated from and to the keys of a `bert_config.json`.

`"hidden_act": "gelu"` is the exact function there, computed with erf; the reference's is the tanh approximation.
Omitted keys have different defaults. Both directions preserve the function that the weights were trained with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bert_tf2.support.errors import UserError

LEARNED_POSITIONS = "absolute"
"""What `transformers` calls learned positions. Some copies of a bert_config.json have that key."""

# Keys that `transformers` writes and that no bert_config.json has.
_MARKS = ("model_type", "architectures", "transformers_version", "torch_dtype", "id2label", "output_attentions")

# The defaults of `transformers`. Those of the reference are others for type_vocab_size, and it has none for vocab_size.
_DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
}

# Hugging Face's name of each activation function -> ours; five names mean one approximation.
_FROM_THEIRS = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu_erf"),
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_python_tanh", "gelu_accurate"), "gelu"),
    **{name: name for name in ("relu", "tanh", "linear")},
}


def is_huggingface_config(values: Mapping[str, Any]) -> bool:
    """Returns whether an object from JSON is a configuration of `transformers` and not a bert_config.json."""
    return any(mark in values for mark in _MARKS)


def architecture_of(values: Mapping[str, Any]) -> str | None:
    """Returns the class of `transformers` that saved the weights, for example "BertForMaskedLM"; None if unknown."""
    named = values.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else None


def from_huggingface(values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the content of a config.json to the keys of a bert_config.json; drops other keys."""
    for problem in _foreign_parts(values):
        raise UserError(f"this configuration of transformers {problem}")
    known = {name: values.get(name, default) for name, default in _DEFAULTS.items()}
    return {**known, "hidden_act": _FROM_THEIRS[known["hidden_act"]]}


def _foreign_parts(values: Mapping[str, Any]):
    kind = values.get("model_type", "bert")
    if kind != "bert":
        yield f"is one of model_type {kind!r}; only 'bert' has this project's layers"
    architecture = architecture_of(values)
    if architecture and not architecture.startswith("Bert") and "model_type" not in values:
        yield f"is one of {architecture}, which is no BERT"
    if values.get("is_decoder") or values.get("add_cross_attention"):
        yield "is one of a decoder (is_decoder or add_cross_attention), whose tokens see only what is before them"
    position = values.get("position_embedding_type", LEARNED_POSITIONS)
    if position not in (LEARNED_POSITIONS, None):
        yield f"has position_embedding_type {position!r}; BERT's are {LEARNED_POSITIONS!r}"
    if values.get("quantization_config"):
        yield "is one of quantized weights (quantization_config); save the model without quantization first"
    hidden_act = values.get("hidden_act", "gelu")
    if not isinstance(hidden_act, str) or hidden_act not in _FROM_THEIRS:
        yield f"has hidden_act {hidden_act!r}, which is not one of {', '.join(_FROM_THEIRS)}"


def to_huggingface(
    values: Mapping[str, Any], architecture: str, labels: Sequence[str], problem_type: str | None, pad_token_id: int
) -> dict[str, Any]:
    """Returns the content of a config.json, the inverse of from_huggingface.

    Args:
      values: the fields of a BertConfig.
      architecture: the class of `transformers`, for example "BertForPreTraining".
      labels: the names of a classifier's outputs, in their order; empty if there is no classifier.
      problem_type: "regression" or "multi_label_classification" if the classifier is one.
      pad_token_id: the id of the padding token.
    """
    hidden_act = values["hidden_act"].lower()
    content = {
        **{name: values[name] for name in _DEFAULTS},
        "hidden_dropout_prob": values["hidden_dropout_prob"] or 0.0,  # null is not allowed there
        "attention_probs_dropout_prob": values["attention_probs_dropout_prob"] or 0.0,
        "hidden_act": {"gelu": "gelu_pytorch_tanh", "gelu_erf": "gelu"}.get(hidden_act, hidden_act),
        "architectures": [architecture],
        "model_type": "bert",
        "pad_token_id": pad_token_id,
        "position_embedding_type": LEARNED_POSITIONS,
        "torch_dtype": "float32",
        "use_cache": True,
    }
    if labels:
        content["id2label"] = {str(index): label for index, label in enumerate(labels)}
        content["label2id"] = {label: index for index, label in enumerate(labels)}
    if problem_type:
        content["problem_type"] = problem_type
    return content

"""The `config.json` of Hugging Face's `transformers`, to and from the keys of a `bert_config.json`.

The two mostly agree, and differ where it hurts: `"hidden_act": "gelu"` is the exact function there, which uses erf, and
its approximation with tanh here; and what a file leaves out has other defaults (2 segments there, 16 in the reference).
Both directions keep the function that the weights were trained with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bert_tf2.support.errors import UserError

# Keys that `transformers` writes and no bert_config.json has.
_MARKS = ("model_type", "architectures", "transformers_version", "torch_dtype", "id2label", "output_attentions")

# What a model there is made with where its file does not say.
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

# Name there -> name here, as their code computes them: five of its names stand for one approximation.
_ACTIVATIONS = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu_erf"),
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_python_tanh", "gelu_accurate"), "gelu"),
    **{name: name for name in ("relu", "tanh", "linear")},
}
_ACTIVATIONS_THERE = {
    "gelu": "gelu_pytorch_tanh",
    "gelu_erf": "gelu",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
}


def is_huggingface_config(values: Mapping[str, Any]) -> bool:
    """Whether an object read from JSON is a configuration of `transformers` and not a bert_config.json."""
    return any(mark in values for mark in _MARKS)


def architecture_of(values: Mapping[str, Any]) -> str | None:
    """The class there that the weights were saved from, such as "BertForMaskedLM"."""
    named = values.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else None


def from_huggingface(values: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a config.json in the words of a bert_config.json, without anything else that it says.

    Raises:
      UserError: it is not that of a BERT encoder, or of one with a part that this project's model does not have.
    """
    for problem in _problems(values):
        raise UserError(f"this configuration of transformers {problem}")
    known = {**_DEFAULTS, **{name: values[name] for name in _DEFAULTS if name in values}}
    return {**known, "hidden_act": _ACTIVATIONS[known["hidden_act"]]}


def _problems(values: Mapping[str, Any]):
    """What is said of a configuration that cannot be used."""
    kind = values.get("model_type", "bert")
    if kind != "bert":
        yield f"is one of model_type {kind!r}; only 'bert' has this project's layers"
    architecture = architecture_of(values)
    if architecture and not architecture.startswith("Bert") and "model_type" not in values:
        yield f"is one of {architecture}, which is no BERT"
    if values.get("is_decoder") or values.get("add_cross_attention"):
        yield "is one of a decoder (is_decoder or add_cross_attention), whose tokens see only what is before them"
    position = values.get("position_embedding_type", "absolute")
    if position not in ("absolute", None):
        yield f"has position_embedding_type {position!r}; BERT's are 'absolute'"
    if values.get("quantization_config"):
        yield "is one of quantized weights (quantization_config); save the model without quantization first"
    hidden_act = values.get("hidden_act", _DEFAULTS["hidden_act"])
    if not isinstance(hidden_act, str) or hidden_act not in _ACTIVATIONS:
        yield f"has hidden_act {hidden_act!r}, which is not one of {', '.join(_ACTIVATIONS)}"


def remark(values: Mapping[str, Any]) -> str | None:
    """A sentence on the activation function, where it has another name here."""
    theirs = values.get("hidden_act", _DEFAULTS["hidden_act"])
    ours = _ACTIVATIONS.get(theirs) if isinstance(theirs, str) else None
    if ours in (theirs, None):
        return None
    meaning = {"gelu_erf": "the exact function, with erf", "gelu": "the approximation with tanh"}[ours]
    return f'"hidden_act": "{theirs}" of transformers is {meaning}; it is called "{ours}" here.'


def activation_there(hidden_act: str) -> str:
    """What an activation function of this project is called there."""
    return _ACTIVATIONS_THERE[hidden_act.lower()]


def to_huggingface(
    values: Mapping[str, Any], architecture: str, labels: Sequence[str], regression: bool, pad_token_id: int
) -> dict[str, Any]:
    """The content of a config.json.

    Args:
      values: the fields of a BertConfig by name.
      architecture: the class there, such as "BertForPreTraining".
      labels: the names of a classifier's outputs, in their order; empty where there is none.
      regression: whether a classifier's one output is a score.
      pad_token_id: the entry of the vocabulary that fills up rows.
    """
    content = {
        **{name: values[name] for name in _DEFAULTS},
        **{
            name: values[name] or 0.0 for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")
        },  # no null there
        "hidden_act": activation_there(values["hidden_act"]),
        "architectures": [architecture],
        "model_type": "bert",
        "pad_token_id": pad_token_id,
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
        "use_cache": True,
    }
    if labels:
        content["id2label"] = {str(index): label for index, label in enumerate(labels)}
        content["label2id"] = {label: index for index, label in enumerate(labels)}
    if regression:
        content["problem_type"] = "regression"
    return content

"""What each variable of BERT is called: in the reference, in this project's models, and in other libraries.

One table, read in every direction. The reference's name is the key everywhere in this project; shapes are the
reference's too. `{i}` stands for the number of a block, from 0. The letters of the shapes:

    V  vocab_size               D  hidden_size         I  intermediate_size
    X  max_position_embeddings  S  type_vocab_size     L  labels of the head
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from bert_tf2.config import BertConfig


class Variable(NamedTuple):
    """A row of the table.

    Attributes:
      reference: the name in TensorFlow 1 checkpoints.
      shape: a letter for each axis.
      attribute: where a model of `heads` keeps it.
      huggingface: the name in the state dict of `transformers`. What ends in `/kernel` here is transposed there.
      model_garden: the name in Model Garden's BertEncoder, whose attention kernels have a third axis for the heads;
        empty where it has no such variable.
    """

    reference: str
    shape: str
    attribute: str
    huggingface: str
    model_garden: str


def _dense(shape: str, *names: str) -> tuple[Variable, Variable]:
    reference, attribute, huggingface, model_garden = names
    return (
        Variable(
            f"{reference}/kernel", shape, f"{attribute}.kernel", f"{huggingface}.weight", f"{model_garden}/kernel"
        ),
        Variable(f"{reference}/bias", shape[1], f"{attribute}.bias", f"{huggingface}.bias", f"{model_garden}/bias"),
    )


def _layer_norm(*names: str) -> tuple[Variable, Variable]:
    reference, attribute, huggingface, model_garden = names
    return (
        Variable(f"{reference}/beta", "D", f"{attribute}.beta", f"{huggingface}.bias", f"{model_garden}/beta"),
        Variable(f"{reference}/gamma", "D", f"{attribute}.gamma", f"{huggingface}.weight", f"{model_garden}/gamma"),
    )


def _output(*names: str) -> tuple[Variable, Variable]:
    reference, attribute, huggingface = names
    return (
        Variable(f"{reference}output_weights", "LD", f"{attribute}.output_weights", f"{huggingface}.weight", ""),
        Variable(f"{reference}output_bias", "L", f"{attribute}.output_bias", f"{huggingface}.bias", ""),
    )


EMBEDDINGS = (
    Variable(
        "bert/embeddings/word_embeddings",
        "VD",
        "bert.embeddings.word_embeddings",
        "bert.embeddings.word_embeddings.weight",
        "word_embeddings/embeddings",
    ),
    Variable(
        "bert/embeddings/token_type_embeddings",
        "SD",
        "bert.embeddings.token_type_embeddings",
        "bert.embeddings.token_type_embeddings.weight",
        "type_embeddings/embeddings",
    ),
    Variable(
        "bert/embeddings/position_embeddings",
        "XD",
        "bert.embeddings.position_embeddings",
        "bert.embeddings.position_embeddings.weight",
        "position_embedding/embeddings",
    ),
    *_layer_norm(
        "bert/embeddings/LayerNorm", "bert.embeddings.layer_norm", "bert.embeddings.LayerNorm", "embeddings/layer_norm"
    ),
)

_IN_BLOCK = (
    "bert/encoder/layer_{i}",
    "bert.blocks.{i}",
    "bert.encoder.layer.{i}",
    "transformer/layer_{i}",
)


def _within(*tails: str) -> tuple[str, ...]:
    return tuple(head + tail for head, tail in zip(_IN_BLOCK, tails, strict=True))


BLOCK = (
    *_dense(
        "DD", *_within("/attention/self/query", ".attention.query", ".attention.self.query", "/self_attention/query")
    ),
    *_dense("DD", *_within("/attention/self/key", ".attention.key", ".attention.self.key", "/self_attention/key")),
    *_dense(
        "DD", *_within("/attention/self/value", ".attention.value", ".attention.self.value", "/self_attention/value")
    ),
    *_dense(
        "DD",
        *_within(
            "/attention/output/dense",
            ".attention_output",
            ".attention.output.dense",
            "/self_attention/attention_output",
        ),
    ),
    *_layer_norm(
        *_within(
            "/attention/output/LayerNorm",
            ".attention_norm",
            ".attention.output.LayerNorm",
            "/self_attention_layer_norm",
        )
    ),
    *_dense("DI", *_within("/intermediate/dense", ".intermediate", ".intermediate.dense", "/intermediate")),
    *_dense("ID", *_within("/output/dense", ".output_dense", ".output.dense", "/output")),
    *_layer_norm(*_within("/output/LayerNorm", ".output_norm", ".output.LayerNorm", "/output_layer_norm")),
)

POOLER = _dense("DD", "bert/pooler/dense", "bert.pooler", "bert.pooler.dense", "pooler_transform")

MASKED_LM = (
    *_dense(
        "DD",
        "cls/predictions/transform/dense",
        "masked_lm.transform",
        "cls.predictions.transform.dense",
        "cls/predictions/transform/dense",
    ),
    *_layer_norm(
        "cls/predictions/transform/LayerNorm",
        "masked_lm.layer_norm",
        "cls.predictions.transform.LayerNorm",
        "cls/predictions/transform/LayerNorm",
    ),
    Variable(
        "cls/predictions/output_bias",
        "V",
        "masked_lm.output_bias",
        "cls.predictions.bias",
        "cls/predictions/output_bias/bias",
    ),
)
NEXT_SENTENCE = _output("cls/seq_relationship/", "next_sentence", "cls.seq_relationship")
SPAN = _output("cls/squad/", "output_layer", "qa_outputs")
# Of a classifier, and of a tagger: the reference's run_classifier has no scope here.
LABELS = _output("", "output_layer", "classifier")

HEADS = (*MASKED_LM, *NEXT_SENTENCE, *SPAN, *LABELS)

ON_TOP = {
    "BertModel": (),
    "PretrainingModel": (*MASKED_LM, *NEXT_SENTENCE),
    "ClassifierModel": LABELS,
    "SpanModel": SPAN,
    "TaggingModel": LABELS,
}
"""Class of modeling or heads -> what its models have on top of the encoder."""

GLOBAL_STEP = "global_step"
_OPTIMIZER_STATE = re.compile(
    r"/((adam|lamb)_[mv]|Momentum|Adam(_1)?|(Adam|LAMB)\w*Optimizer(_1)?|ExponentialMovingAverage)$|^(beta[12]_power|loss_scale\w*)$"
)


def encoder(num_hidden_layers: int, pooler: bool = True) -> Iterator[Variable]:
    """Every variable of an encoder, in the order in which they are written."""
    yield from EMBEDDINGS
    for index in range(num_hidden_layers):
        for row in BLOCK:
            yield Variable(*(text.replace("{i}", str(index)) for text in row))
    if pooler:
        yield from POOLER


def of_class(class_name: str, num_hidden_layers: int) -> list[Variable]:
    """Every variable of a model of one of the classes in ON_TOP."""
    return [*encoder(num_hidden_layers), *ON_TOP[class_name]]


def tf1_variables(model) -> dict[str, Any]:
    """The reference's name of every variable of a model -> the tf.Variable.

    Args:
      model: a BertModel or one of heads'.
    """
    known = [base.__name__ for base in type(model).__mro__ if base.__name__ in ON_TOP]
    if not known:
        raise TypeError(f"no names are known for the variables of {type(model).__name__}")
    skipped = "bert." if known[0] == "BertModel" else ""
    rows = of_class(known[0], model.config.num_hidden_layers)
    return {row.reference: _attribute(model, row.attribute.removeprefix(skipped)) for row in rows}


def _attribute(model, path: str):
    """The variable at a path like `bert.blocks.0.attention.query.kernel`."""

    def step(owner, part: str):
        return owner[int(part)] if part.isdigit() else getattr(owner, part)

    return functools.reduce(step, path.split("."), model).value


def shape(row: Variable, config: BertConfig, num_labels: int | None = None) -> list[int]:
    """The sizes that a configuration gives a variable. `num_labels` is needed for outputs of labels only."""
    sizes = {
        "V": config.vocab_size,
        "D": config.hidden_size,
        "I": config.intermediate_size,
        "X": config.max_position_embeddings,
        "S": config.type_vocab_size,
        "L": 2 if row in (*NEXT_SENTENCE, *SPAN) else num_labels,
    }
    return [sizes[letter] for letter in row.shape]


def is_encoder(name: str) -> bool:
    """Whether this is the reference's name of what no BERT can do without: all of the encoder but the pooler."""
    return name.startswith(("bert/embeddings/", "bert/encoder/"))


def is_transposed(name: str) -> bool:
    """Whether the variable of this reference name is the transpose of PyTorch's: kernels are [inputs, outputs] here."""
    return name.endswith("/kernel")


def is_optimizer_state(name: str) -> bool:
    """Whether this is an optimizer's (the reference's slots `/adam_m` and `/adam_v`, or those of TensorFlow's own)."""
    return bool(_OPTIMIZER_STATE.search(name))


def without_optimizer(names: Iterable[str]) -> list[str]:
    """The names of weights: neither optimizer state nor the step."""
    return [name for name in names if not is_optimizer_state(name) and name != GLOBAL_STEP]

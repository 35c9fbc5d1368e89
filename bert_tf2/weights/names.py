"""The name of each variable of BERT: in the reference, in this project's models, and in other libraries.

This single table serves all directions. The reference's name is the key throughout this project, and shapes are the
reference's. `{i}` is the index of a block, from 0. The letters of the shapes (a digit is a literal size):

    V  vocab_size               D  hidden_size         I  intermediate_size
    X  max_position_embeddings  S  type_vocab_size     L  labels of the head

The classes in `heads` list the heads of each model as keys of HEADS.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bert_tf2.config import BertConfig


class Variable(NamedTuple):
    """A row of the table.

    Attributes:
      reference: the name in TensorFlow 1 checkpoints.
      shape: a letter or digit for each axis.
      attribute: the attribute path in a model of `heads`.
      huggingface: the name in the state dict of `transformers`. A `/kernel` of the reference is transposed there.
      model_garden: the name in Model Garden's BertEncoder, whose attention kernels have a third axis for the heads;
        empty if it has no such variable.
    """

    reference: str
    shape: str
    attribute: str
    huggingface: str
    model_garden: str


# The ends of the names of a dense layer and of a layer normalization, in the order of Variable's names.
_ENDS = {
    "dense": (("kernel", "kernel", "weight", "kernel"), ("bias", "bias", "bias", "bias")),
    "norm": (("beta", "beta", "bias", "beta"), ("gamma", "gamma", "weight", "gamma")),
}


def _layer(shape: str, reference: str, attribute: str, huggingface: str, model_garden: str) -> tuple[Variable, ...]:
    """Returns the variables of a dense layer with a kernel of this shape, or of a layer normalization ("D")."""
    first, second = _ENDS["dense" if len(shape) == 2 else "norm"]
    return tuple(
        Variable(f"{reference}/{a}", axes, f"{attribute}.{b}", f"{huggingface}.{c}", f"{model_garden}/{d}")
        for axes, (a, b, c, d) in ((shape, first), (shape[-1], second))
    )


def _in_block(shape: str, reference: str, attribute: str, huggingface: str, model_garden: str) -> tuple[Variable, ...]:
    return _layer(
        shape,
        f"bert/encoder/layer_{{i}}/{reference}",
        f"bert.blocks.{{i}}.{attribute}",
        f"bert.encoder.layer.{{i}}.{huggingface}",
        f"transformer/layer_{{i}}/{model_garden}",
    )


def _output(outputs: str, scope: str, attribute: str, huggingface: str) -> tuple[Variable, ...]:
    return (
        Variable(f"{scope}output_weights", f"{outputs}D", f"{attribute}.output_weights", f"{huggingface}.weight", ""),
        Variable(f"{scope}output_bias", outputs, f"{attribute}.output_bias", f"{huggingface}.bias", ""),
    )


POSITIONS = Variable(
    "bert/embeddings/position_embeddings",
    "XD",
    "bert.embeddings.position_embeddings",
    "bert.embeddings.position_embeddings.weight",
    "position_embedding/embeddings",
)
"""Only for the values of the configuration's position_embedding_type that have a table."""

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
    POSITIONS,
    *_layer(
        "D",
        "bert/embeddings/LayerNorm",
        "bert.embeddings.layer_norm",
        "bert.embeddings.LayerNorm",
        "embeddings/layer_norm",
    ),
)

BLOCK = (
    *_in_block("DD", "attention/self/query", "attention.query", "attention.self.query", "self_attention/query"),
    *_in_block("DD", "attention/self/key", "attention.key", "attention.self.key", "self_attention/key"),
    *_in_block("DD", "attention/self/value", "attention.value", "attention.self.value", "self_attention/value"),
    *_in_block(
        "DD", "attention/output/dense", "attention_output", "attention.output.dense", "self_attention/attention_output"
    ),
    *_in_block(
        "D",
        "attention/output/LayerNorm",
        "attention_norm",
        "attention.output.LayerNorm",
        "self_attention_layer_norm",
    ),
    *_in_block("DI", "intermediate/dense", "intermediate", "intermediate.dense", "intermediate"),
    *_in_block("ID", "output/dense", "output_dense", "output.dense", "output"),
    *_in_block("D", "output/LayerNorm", "output_norm", "output.LayerNorm", "output_layer_norm"),
)

POOLER = _layer("DD", "bert/pooler/dense", "bert.pooler", "bert.pooler.dense", "pooler_transform")

_TRANSFORM = "cls/predictions/transform"
MASKED_LM = (
    *_layer(
        "DD",
        f"{_TRANSFORM}/dense",
        "masked_lm.transform",
        "cls.predictions.transform.dense",
        f"{_TRANSFORM}/dense",
    ),
    *_layer(
        "D",
        f"{_TRANSFORM}/LayerNorm",
        "masked_lm.layer_norm",
        "cls.predictions.transform.LayerNorm",
        f"{_TRANSFORM}/LayerNorm",
    ),
    Variable(
        "cls/predictions/output_bias",
        "V",
        "masked_lm.output_bias",
        "cls.predictions.bias",
        "cls/predictions/output_bias/bias",
    ),
)
OUTPUT_TABLE = Variable(
    "cls/predictions/output_weights", "VD", "masked_lm.output_weights", "cls.predictions.decoder.weight", ""
)
"""The masked-LM head's own table, if the configuration's tie_word_embeddings is false. The reference has none."""
NEXT_SENTENCE = _output("2", "cls/seq_relationship/", "next_sentence", "cls.seq_relationship")
SPAN = _output("2", "cls/squad/", "output_layer", "qa_outputs")
# For classifiers and taggers: the reference's run_classifier has no scope here.
LABELS = _output("L", "", "output_layer", "classifier")

HEADS = {"masked_lm": MASKED_LM, "next_sentence": NEXT_SENTENCE, "span": SPAN, "labels": LABELS}

GLOBAL_STEP = "global_step"
_OPTIMIZER_STATE = re.compile(
    r"/((adam|lamb)_[mv]|Momentum|Adam(_1)?|(Adam|LAMB)\w*Optimizer(_1)?|ExponentialMovingAverage)$|^(beta[12]_power|loss_scale\w*)$"
)


def encoder(num_hidden_layers: int, pooler: bool = True, positions: bool = True) -> Iterator[Variable]:
    """Yields every variable of an encoder, in the order in which they are written.

    Args:
      num_hidden_layers: the number of blocks.
      pooler: whether it has one.
      positions: whether its positions are a table, see BertConfig.has_position_table.
    """
    yield from (row for row in EMBEDDINGS if positions or row is not POSITIONS)
    for index in range(num_hidden_layers):
        for row in BLOCK:
            yield Variable(*(text.replace("{i}", str(index)) for text in row))
    if pooler:
        yield from POOLER


def of_heads(heads: Iterable[str], tied: bool = True) -> list[Variable]:
    """Returns the variables of heads, which are keys of HEADS; `tied`: the configuration's tie_word_embeddings."""
    own = {} if tied else {"masked_lm": (OUTPUT_TABLE,)}
    return [row for head in heads for row in (*HEADS[head], *own.get(head, ()))]


def known(num_hidden_layers: int) -> list[Variable]:
    """Returns every variable in this table for an encoder and all heads, also those that not every model has."""
    return [*encoder(num_hidden_layers), *of_heads(HEADS, tied=False)]


def of_model(model, config: BertConfig) -> list[Variable]:
    """Returns every variable of a model with this configuration: a BertModel or one of heads', or the class of one."""
    return [
        *encoder(config.num_hidden_layers, model.has_pooler, config.has_position_table),
        *of_heads(model.heads, config.tie_word_embeddings),
    ]


def of_another_kind(found: Container[str], config: BertConfig, heads: Collection[str]) -> Iterator[str]:
    """Yields a phrase for each key of a configuration that weights show to have another value.

    Args:
      found: the reference's names of the weights.
      config: the configuration.
      heads: the heads that are compared, keys of HEADS.
    """
    table, kind = POSITIONS.reference, config.position_embedding_type
    if EMBEDDINGS[0].reference in found and config.has_position_table != (table in found):
        has = "lack" if config.has_position_table else "have"
        yield (
            f"the weights {has} a table of positions ({table}), but the configuration says position_embedding_type"
            f" {kind}"
        )
    table, tied = OUTPUT_TABLE.reference, config.tie_word_embeddings
    if "masked_lm" in heads and MASKED_LM[-1].reference in found and tied == (table in found):
        has = "have" if tied else "lack"
        yield (
            f"the weights {has} an output table of their own ({table}), but the configuration says tie_word_embeddings"
            f" {str(tied).lower()}"
        )


def tf1_variables(model) -> dict[str, Any]:
    """Returns the reference name -> the tf.Variable for every variable of a model.

    Args:
      model: a BertModel or one of heads'.
    """
    if not hasattr(model, "heads"):
        raise TypeError(f"no names are known for the variables of {type(model).__name__}")
    own = "" if hasattr(model, "bert") else "bert."  # a BertModel is what the other models have as `bert`
    return {row.reference: _attribute(model, row.attribute.removeprefix(own)) for row in of_model(model, model.config)}


def _attribute(model, path: str):
    """Returns the variable at a path like `bert.blocks.0.attention.query.kernel`."""

    def step(owner, part: str):
        return owner[int(part)] if part.isdigit() else getattr(owner, part)

    return functools.reduce(step, path.split("."), model).value


def shape(row: Variable, config: BertConfig, num_labels: int | None = None) -> list[int]:
    """Returns the shape of a variable for a configuration. Only the head "labels" requires `num_labels`."""
    sizes = {
        "V": config.vocab_size,
        "D": config.hidden_size,
        "I": config.intermediate_size,
        "X": config.max_position_embeddings,
        "S": config.type_vocab_size,
        "L": num_labels,
    }
    return [int(letter) if letter.isdigit() else sizes[letter] for letter in row.shape]


def num_labels(shapes: Mapping[str, Sequence[int]]) -> int | None:
    """Returns the number of outputs of a classifier or tagger with these weights, or None if they have no such head."""
    return next(iter(shapes.get(LABELS[0].reference, ())), None)


def num_layers(found: Iterable[str]) -> int:
    """Returns the number of blocks that these reference names state, at most 1000."""
    numbers = (re.match(r"bert/encoder/layer_(\d{1,3})/", name) for name in found)
    return max((int(match[1]) + 1 for match in numbers if match), default=0)


def misfits(
    rows: Iterable[Variable], shapes: Mapping[str, Sequence[int]], config: BertConfig, optional: Container[str] = ()
) -> Iterator[str]:
    """Yields a phrase for each variable that weights lack or have in another shape.

    Args:
      rows: the variables.
      shapes: reference name -> shape in the weights.
      config: the configuration.
      optional: reference names of variables that may be missing.
    """
    for row in rows:
        found, wanted = shapes.get(row.reference), shape(row, config, num_labels(shapes))
        if found is None and row.reference not in optional:
            yield f"{row.reference} is missing"
        elif found is not None and [*found] != wanted:
            yield f"{row.reference} is {[*found]}, not {wanted}"


def is_encoder(name: str) -> bool:
    """Returns whether this is a reference name of an encoder variable, except the pooler, which is optional."""
    return name.startswith(("bert/embeddings/", "bert/encoder/"))


def is_transposed(name: str) -> bool:
    """Returns whether this reference variable is the transpose of PyTorch's: kernels are [inputs, outputs] here."""
    return name.endswith("/kernel")


def is_optimizer_state(name: str) -> bool:
    """Returns whether this is an optimizer variable: the reference's (`/adam_m`, `/adam_v`) or TensorFlow's."""
    return bool(_OPTIMIZER_STATE.search(name))


def without_optimizer(names: Iterable[str]) -> list[str]:
    """Returns the names of weights: neither optimizer state nor the step."""
    return [name for name in names if not is_optimizer_state(name) and name != GLOBAL_STEP]

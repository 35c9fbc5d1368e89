"""The name of each variable of BERT: in the reference, in this project's models, and in other libraries.

This single table serves all directions. The reference's name is the key throughout this project, and shapes are the
reference's. `{i}` is the index of a block, from 0. In a shape, FIELDS explains the letters, L is the number of the
head's labels, and a digit is a literal size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bert_tf2.config import BertConfig
from bert_tf2.support.errors import UserError, and_more

if TYPE_CHECKING:
    import keras


FIELDS = {
    "V": "vocab_size",
    "D": "hidden_size",
    "I": "intermediate_size",
    "X": "max_position_embeddings",
    "S": "type_vocab_size",
}
"""Letter in a shape -> the field of the configuration with this size."""


class Variable(NamedTuple):
    """A row of the table."""

    reference: str  # the name in TensorFlow 1 checkpoints
    shape: str  # a letter or digit for each axis
    attribute: str  # the attribute path in a model of `heads`
    huggingface: str  # the name in the state dict of `transformers`. A `/kernel` of the reference is transposed there
    # the name in Model Garden's BertEncoder, whose attention kernels have a third axis for the heads; empty if there is
    # no such variable, or if its name is ambiguous
    model_garden: str


# The variables of a layer: the ends of their names, in the order of Variable's names.
_VARIABLES = {
    "dense": (("kernel", "kernel", "weight", "kernel"), ("bias", "bias", "bias", "bias")),
    "norm": (("beta", "beta", "bias", "beta"), ("gamma", "gamma", "weight", "gamma")),
    "output": (
        ("output_weights", "output_weights", "weight", "kernel"),
        ("output_bias", "output_bias", "bias", "bias"),
    ),
}


def _rows(scopes: Sequence[str], table: str) -> tuple[Variable, ...]:
    """Reads a part of the table, in which each line is a variable ("one") or a layer with two variables.

    `scopes`: the beginning of all names of a column, by column. The shape of a layer is its first variable's shape.
    """
    rows = []
    for kind, axes, *columns in map(str.split, table.strip().splitlines()):
        stems = ["" if name == "-" else scope + name for scope, name in zip(scopes, columns, strict=True)]
        if kind == "one":
            rows.append(Variable(stems[0], axes, *stems[1:]))
            continue
        reference, *others = stems
        for ends, shape in zip(_VARIABLES[kind], (axes, axes[0] if kind == "output" else axes[-1]), strict=True):
            named = [stem and f"{stem}{mark}{end}" for stem, mark, end in zip(others, "../", ends[1:], strict=True)]
            rows.append(Variable(f"{reference}/{ends[0]}".lstrip("/"), shape, *named))
    return tuple(rows)


# fmt: off
# kind, shape, and the names: in the reference, in the models here, in transformers, in Model Garden
EMBEDDINGS = _rows(("bert/embeddings/", "bert.embeddings.", "bert.embeddings.", ""), """
    one   VD  word_embeddings        word_embeddings        word_embeddings.weight        word_embeddings/embeddings
    one   SD  token_type_embeddings  token_type_embeddings  token_type_embeddings.weight  type_embeddings/embeddings
    one   XD  position_embeddings    position_embeddings    position_embeddings.weight    position_embedding/embeddings
    norm  D   LayerNorm              layer_norm             LayerNorm                     embeddings/layer_norm
""")
WORDS, POSITIONS = EMBEDDINGS[0], EMBEDDINGS[2]

BLOCK = _rows(("bert/encoder/layer_{i}/", "bert.blocks.{i}.", "bert.encoder.layer.{i}.", "transformer/layer_{i}/"), """
    dense DD  attention/self/query        attention.query   attention.self.query        self_attention/query
    dense DD  attention/self/key          attention.key     attention.self.key          self_attention/key
    dense DD  attention/self/value        attention.value   attention.self.value        self_attention/value
    dense DD  attention/output/dense      attention_output  attention.output.dense      self_attention/attention_output
    norm  D   attention/output/LayerNorm  attention_norm    attention.output.LayerNorm  self_attention_layer_norm
    dense DI  intermediate/dense          intermediate      intermediate.dense          intermediate
    dense ID  output/dense                output_dense      output.dense                output
    norm  D   output/LayerNorm            output_norm       output.LayerNorm            output_layer_norm
""")
POOLER = _rows(("bert/", "bert.", "bert.", ""), "dense  DD  pooler/dense  pooler  pooler.dense  pooler_transform")

MASKED_LM = _rows(("cls/predictions/", "masked_lm.", "cls.predictions.", "cls/predictions/"), """
    dense DD  transform/dense      transform       transform.dense      transform/dense
    norm  D   transform/LayerNorm  layer_norm      transform.LayerNorm  transform/LayerNorm
    one   V   output_bias          output_bias     bias                 output_bias/bias
""")

NEXT_SENTENCE, SPAN, LABELS = (_rows([""] * 4, line) for line in (
    "output  2D  cls/seq_relationship  next_sentence  cls.seq_relationship  -",
    "output  2D  cls/squad             output_layer   qa_outputs            -",
    "output  LD  -                     output_layer   classifier            -",
))
"""LABELS is the head of classifiers and taggers; the reference's run_classifier has no scope for its variables."""
# fmt: on

HEADS = {"masked_lm": MASKED_LM, "next_sentence": NEXT_SENTENCE, "span": SPAN, "labels": LABELS}

GLOBAL_STEP = "global_step"
_OPTIMIZER_STATE = re.compile(
    r"/((adam|lamb)_[mv]|Momentum|Adam(_1)?|(Adam|LAMB)\w*Optimizer(_1)?|ExponentialMovingAverage)$|^(beta[12]_power|loss_scale\w*)$"
)


def encoder(num_hidden_layers: int, pooler: bool = True) -> Iterator[Variable]:
    """Yields every variable of an encoder, in the order in which the variables are written."""
    yield from EMBEDDINGS
    for index in range(num_hidden_layers):
        for row in BLOCK:
            yield Variable(*(text.replace("{i}", str(index)) for text in row))
    if pooler:
        yield from POOLER


def of_heads(heads: Iterable[str]) -> list[Variable]:
    return [row for head in heads for row in HEADS[head]]


def known(num_hidden_layers: int) -> list[Variable]:
    return [*encoder(num_hidden_layers), *of_heads(HEADS)]


def missing(rows: Iterable[Variable], found: Container[str]) -> list[str]:
    """The reference names of the variables that weights with the names `found` lack."""
    return [row.reference for row in rows if row.reference not in found]


def of_model(model: keras.Model, config: BertConfig) -> list[Variable]:
    """Returns every variable of a BertModel or a model of `heads`, or of its class, with this configuration."""
    return [*encoder(config.num_hidden_layers, model.has_pooler), *of_heads(model.heads)]


def tf1_variables(model: keras.Model) -> dict[str, Any]:
    """Returns the reference name -> the tf.Variable for every variable of a BertModel or a model of `heads`."""
    own = "" if hasattr(model, "bert") else "bert."  # the other models have a BertModel as their attribute `bert`
    return {row.reference: _attribute(model, row.attribute.removeprefix(own)) for row in of_model(model, model.config)}


def _attribute(model, path: str):
    """Returns the variable at a path like `bert.blocks.0.attention.query.kernel`."""
    for part in path.split("."):
        model = model[int(part)] if part.isdigit() else getattr(model, part)
    return model.value


def shapes_of(rows: Iterable[Variable], config: BertConfig, num_labels: int | None = None) -> dict[str, list[int]]:
    """Returns reference name -> shape for a configuration. Only the head "labels" requires `num_labels`."""
    sizes = {letter: getattr(config, field) for letter, field in FIELDS.items()} | {"L": num_labels}
    return {row.reference: [int(axis) if axis.isdigit() else sizes[axis] for axis in row.shape] for row in rows}


def num_labels(shapes: Mapping[str, Sequence[int]]) -> int | None:
    """The number of outputs of a classifier or tagger, None if the weights have no such head."""
    return next(iter(shapes.get(LABELS[0].reference, ())), None)


def num_layers(found: Iterable[str]) -> int:
    """Returns the number of blocks that these reference names state, at most 1000."""
    numbers = (re.match(r"bert/encoder/layer_(\d{1,3})/", name) for name in found)
    return max((int(match[1]) + 1 for match in numbers if match), default=0)


def of_blocks(found: Iterable[str], blocks: Sequence[int]) -> dict[str, str]:
    """The variables of a model that has these blocks of another model, in this order: new name -> the name there."""
    found, block = [*found], "bert/encoder/layer_{}/".format
    chosen = {name: name for name in found if not re.match(r"bert/encoder/layer_\d+/", name)}
    for new, old in enumerate(blocks):
        chosen |= {name.replace(block(old), block(new)): name for name in found if name.startswith(block(old))}
    return chosen


def misfits(wanted: Mapping[str, Sequence[int]], found: Mapping[str, Sequence[int]], needed: Callable) -> Iterator[str]:
    """Yields a phrase for each wanted variable that is missing, if needed(name), or has another shape."""
    for name, size in wanted.items():
        there = found.get(name)
        if there is None and needed(name):
            yield f"{name} is missing"
        elif there is not None and [*there] != [*size]:
            longer = [*there[1:]] == [*size[1:]] and [*there] < [*size]
            remedy = {
                POSITIONS.reference: longer and f"convert_checkpoint.py --extend_positions={size[0]} makes it longer",
                WORDS.reference: longer and "convert_checkpoint.py --extend_vocab adds words",
                LABELS[0].reference: "a training with --other_task begins with a new head",
            }.get(name)
            remedy = f" ({remedy})" if remedy else ""
            yield f"{name} is {[*there]} in the checkpoint and {[*size]} in the model{remedy}"


def common_prefix(found: Iterable[str], anchor: str) -> str:
    """Returns the prefix before the name `anchor`, which wrappers of a model add; "" if there is not exactly one."""
    prefixes = {name.removesuffix(anchor) for name in found if name.endswith(anchor)}
    return prefixes.pop() if len(prefixes) == 1 else ""


def check_encoder(path: str, found: Collection[str]) -> None:
    """Raises UserError, with some names of present variables, if weights have no block of an encoder."""
    held = without_optimizer(found)
    if not num_layers(held):
        kind = "is an ALBERT, not a BERT" if any("/group_0/" in name for name in found) else "is not a BERT"
        raise UserError(f"{path}: {kind}; it holds {and_more(held or [*found], 4) or 'nothing'}")


def is_encoder(name: str) -> bool:
    """Returns whether this is a reference name of an encoder variable, except the pooler, which is optional."""
    return name.startswith(("bert/embeddings/", "bert/encoder/"))


def is_transposed(name: str) -> bool:
    """Returns whether this reference variable is the transpose of PyTorch's: kernels are [inputs, outputs] here."""
    return name.endswith("/kernel")


def is_optimizer_state(name: str) -> bool:
    """Returns whether this is an optimizer's variable, the reference's or TensorFlow's."""
    return bool(_OPTIMIZER_STATE.search(name))


def without_optimizer(names: Iterable[str]) -> list[str]:
    """Returns the names of weights: neither optimizer state nor the step."""
    return [name for name in names if not is_optimizer_state(name) and name != GLOBAL_STEP]

"""BertConfig: the hyperparameters of a BERT model, from `bert_config.json` or the `config.json` of `transformers`."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging

from bert_tf2.support import files
from bert_tf2.support.errors import UserError

# The values that modeling.get_activation accepts. "gelu" is the tanh approximation, as in all models released by
# Google; "gelu_erf" is the exact function, which `transformers` calls "gelu" and the reference does not have.
ACTIVATIONS = ("gelu", "gelu_erf", "relu", "tanh", "linear")

LAYER_NORM_EPSILON = 1e-12

POSITION_EMBEDDING_TYPES = ("learned", "learned_from_sinusoidal")

# The keys that the reference does not have, with the values that correspond to its behavior.
_WRITTEN_IF_OTHER = {"layer_norm_eps": LAYER_NORM_EPSILON, "position_embedding_type": "learned"}

# Required keys. The reference requires only vocab_size and defaults to BERT-Base's values for the rest, which later
# causes a mismatch with the checkpoint.
_REQUIRED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_SIZES = (*_REQUIRED, "max_position_embeddings", "type_vocab_size")
_PROBABILITIES = ("hidden_dropout_prob", "attention_probs_dropout_prob")

LARGEST_SIZE = 10**7
"""The most words, positions, or numbers in a hidden state. Larger numbers are typing errors and exhaust the memory."""
_MOST_PARAMETERS = 10**11


@functools.cache  # a run reads its file several times
def _warn_of_defaults(name: str, shown: str) -> None:
    logging.warning("%s leaves out some keys; taking the reference's defaults: %s", name, shown)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """The hyperparameters of a BERT model (paper, section 3; the reference's class of the same name).

    Attributes:
      vocab_size: entries of the vocabulary, rows of the word embedding table.
      hidden_size: width of every hidden state.
      num_hidden_layers: Transformer blocks.
      num_attention_heads: heads per block; divides hidden_size.
      intermediate_size: width inside the feed-forward half of a block.
      hidden_act: activation of the feed-forward half, one of ACTIVATIONS.
      hidden_dropout_prob: dropout on embeddings and on the output of each half block; None (`null`) for no dropout.
      attention_probs_dropout_prob: dropout on the attention probabilities; None as above.
      max_position_embeddings: rows of the position table, the maximum sequence length.
      type_vocab_size: rows of the segment table.
      initializer_range: standard deviation of the truncated normal distribution of initial weights; 0 makes them 0.
      layer_norm_eps: added to the variance in LayerNorm. The reference has no key for this and the next field, so both
        are written only if they differ from the reference's behavior.
      position_embedding_type: the initial table of positions: "learned" starts from random numbers,
        "learned_from_sinusoidal" from layers.sinusoidal_positions, scaled to the deviation initializer_range.
      extra: keys of the file that BERT does not use (the multilingual and Chinese releases have some); they are kept.

    Raises UserError for values that make no model.
    """

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | None = 0.1
    attention_probs_dropout_prob: float | None = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 16
    initializer_range: float = 0.02
    layer_norm_eps: float = LAYER_NORM_EPSILON
    position_embedding_type: str = "learned"
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self):
        for problem in self._problems():
            raise UserError(f"model configuration: {problem}")

    def _problems(self):
        for name in _SIZES:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                yield f"{name} must be a whole number above 0, not {value!r:.60}"
            if value > LARGEST_SIZE:
                yield f"{name} {value!r:.60} is more than any model has ({LARGEST_SIZE} is allowed)"
        rows = self.vocab_size + self.max_position_embeddings + self.type_vocab_size
        block = self.hidden_size * (4 * self.hidden_size + 2 * self.intermediate_size)
        if (total := self.hidden_size * rows + self.num_hidden_layers * block) > _MOST_PARAMETERS:
            sizes = ", ".join(f"{name} {getattr(self, name)}" for name in _SIZES)
            yield f"{total:.1e} parameters are more than any model has, so one of its sizes is too large: {sizes}"
        for name in _PROBABILITIES:
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 <= value < 1):
                yield f"{name} must be a number from 0 up to, but not including, 1, or null, not {value!r:.60}"
        for name in ("initializer_range", "layer_norm_eps"):
            if not (_is_number(getattr(self, name)) and 0 <= getattr(self, name) <= 1):
                yield f"{name} must be a number from 0 to 1, not {getattr(self, name)!r:.60}"
        for name, known in (("hidden_act", ACTIVATIONS), ("position_embedding_type", POSITION_EMBEDDING_TYPES)):
            if config_value(self, name) not in known:
                yield f"{name} {getattr(self, name)!r:.60} is not one of {', '.join(known)}"
        if (tied := self.extra.get("tie_word_embeddings", True)) is not True:
            yield f"tie_word_embeddings must be true, not {tied!r:.60}: words are scored with their embeddings"

    def check_heads(self) -> None:
        """Raises UserError if the heads cannot have equal shares. As in the reference, the constructor accepts that."""
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"model configuration: hidden_size {self.hidden_size} is not divisible by num_attention_heads"
                f" {self.num_attention_heads}; every head gets an equal share"
            )

    @property
    def attention_head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def from_dict(cls, json_object: Mapping[str, Any], name: str = "The model configuration") -> BertConfig:
        """Creates a configuration from the content of a `bert_config.json`, which must have the sizes.

        Keys that are missing get the reference's defaults, with one warning in a process for each `name` and defaults.
        Raises UserError for wrong content.
        """
        missing = [name for name in _REQUIRED if name not in json_object]
        if missing:
            raise UserError(f"model configuration: missing {', '.join(missing)}")
        known = {field.name for field in dataclasses.fields(cls)} - {"extra"}
        if json_object.get("position_embedding_type") == LEARNED_POSITIONS:  # some copies have this value; it is kept
            known.remove("position_embedding_type")
        values = {name: value for name, value in json_object.items() if name in known}
        config = cls(**values, extra={name: value for name, value in json_object.items() if name not in known})
        config.check_heads()
        if absent := sorted(known - values.keys() - {*_WRITTEN_IF_OTHER}):
            _warn_of_defaults(name, ", ".join(f"{key} = {getattr(config, key)!r}" for key in absent))
        return config

    @classmethod
    def from_json_file(cls, json_file: str | os.PathLike[str]) -> BertConfig:
        """Reads a `bert_config.json`, or a `config.json` of Hugging Face's `transformers`."""
        values = files.read_json(os.fspath(json_file), flag="--bert_config_file")
        try:
            is_theirs = any(mark in values for mark in _MARKS)
            return cls.from_huggingface(values) if is_theirs else cls.from_dict(values, os.fspath(json_file))
        except UserError as error:
            raise UserError(f"{json_file}: {error}") from error

    @classmethod
    def from_huggingface(cls, values: Mapping[str, Any]) -> BertConfig:
        """Creates a configuration from the content of a `config.json` of `transformers`, with its defaults.

        Raises UserError if this project has no layers for the model.
        """
        for problem in _foreign_parts(values):
            raise UserError(f"this configuration of transformers {problem}")
        known = {name: values.get(name, default) for name, default in HUGGINGFACE_DEFAULTS.items()}
        config = cls(**{**known, "hidden_act": _FROM_THEIRS[known["hidden_act"]]})
        config.check_heads()
        return config

    @classmethod
    def of(cls, config: BertConfig | Mapping[str, Any] | str | os.PathLike[str]) -> BertConfig:
        """Returns a configuration, given itself, its dictionary or the path of its file."""
        if isinstance(config, str | os.PathLike):
            return cls.from_json_file(os.fspath(config))
        if not isinstance(config, cls | Mapping):
            raise UserError(f"config: is a {type(config).__name__}, wanted a BertConfig, its dictionary or its file")
        return config if isinstance(config, cls) else cls.from_dict(config)

    def check_pairs(self, what: str) -> None:
        """Raises UserError if the model cannot distinguish two texts; `what` is their place: "data.txt, line 3"."""
        if self.type_vocab_size < 2:
            raise UserError(
                f"{what}: has two texts (segments), but the model's configuration says type_vocab_size"
                f" {self.type_vocab_size}, so the model cannot distinguish them; take a model with type_vocab_size 2"
            )

    def check_sequence_length(self, max_seq_length: int) -> None:
        """Raises UserError if the model has fewer positions than `max_seq_length`."""
        if max_seq_length > self.max_position_embeddings:
            most = self.max_position_embeddings
            raise UserError(
                f"--max_seq_length={max_seq_length} is more than the model can read: its configuration says"
                f" max_position_embeddings {most}; give --max_seq_length={most}, or less"
            )

    def to_dict(self) -> dict[str, Any]:
        """Returns every key, including `extra`, with plain Python values."""
        values = dataclasses.asdict(self)
        extra = values.pop("extra")
        for name, usual in _WRITTEN_IF_OTHER.items():
            if values[name] == usual:
                del values[name]
        return {**extra, **values}

    def to_json_string(self) -> str:
        """Returns the text of a `bert_config.json`: sorted keys, indentation of two, a final newline."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"


def _refuse_change(config: BertConfig, name: str, value: Any) -> None:
    cure = f"dataclasses.replace(config, {name}={value!r:.60}) makes a changed one"
    raise dataclasses.FrozenInstanceError(f"a BertConfig cannot be changed: {cure}")


BertConfig.__setattr__ = _refuse_change  # because the message of dataclasses has no remedy


def check_vocab_size(name: str, num_entries: int, vocab_size: int) -> None:
    """Raises UserError if the vocabulary `name` has more entries than the model has embeddings; it may have fewer."""
    if num_entries > vocab_size:
        raise UserError(
            f"{name}: {num_entries} entries, but the model's configuration says vocab_size {vocab_size}; take the"
            " vocabulary with which the model was trained, or add words to the model (extend_vocab of"
            " convert_checkpoint.py)"
        )


# The `config.json` of Hugging Face's `transformers`. "gelu" is the exact function there, computed with erf, and the
# tanh approximation in the reference. Missing keys have other defaults there. Reading and writing
# (`weights.huggingface`) keep the function with which the weights were trained.

LEARNED_POSITIONS = "absolute"
"""The name of learned positions in `transformers`. Some copies of a bert_config.json have this value."""

# Keys that `transformers` writes and that no bert_config.json has.
_MARKS = ("model_type", "architectures", "transformers_version", "torch_dtype", "id2label", "output_attentions")

HUGGINGFACE_DEFAULTS = {
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
    "layer_norm_eps": LAYER_NORM_EPSILON,
}

# Hugging Face's name of each activation function -> this project's name; five names mean the same approximation.
_FROM_THEIRS = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu_erf"),
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_python_tanh", "gelu_accurate"), "gelu"),
    **{name: name for name in ("relu", "tanh", "linear")},
}


def architecture_of(values: Mapping[str, Any]) -> str | None:
    """Returns the class of `transformers` that saved the weights, for example "BertForMaskedLM"; None if unknown."""
    named = values.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else None


def _foreign_parts(values: Mapping[str, Any]) -> Iterator[str]:
    kind, architecture = values.get("model_type"), architecture_of(values)
    if kind not in (None, "bert"):
        yield f"has model_type {kind!r}; only 'bert' has this project's layers"
    if kind is None and architecture and not architecture.startswith("Bert"):
        yield f"describes a {architecture}, which is not a BERT"
    if values.get("is_decoder") or values.get("add_cross_attention"):
        yield "describes a decoder (is_decoder or add_cross_attention); only encoders are supported"
    position = values.get("position_embedding_type", LEARNED_POSITIONS)
    if position not in (LEARNED_POSITIONS, None):
        yield f"has position_embedding_type {position!r}; BERT's are {LEARNED_POSITIONS!r}"
    if values.get("quantization_config"):
        yield "describes quantized weights (quantization_config); save the model without quantization first"
    hidden_act = values.get("hidden_act", "gelu")
    if not isinstance(hidden_act, str) or hidden_act not in _FROM_THEIRS:
        yield f"has hidden_act {hidden_act!r}, which is not one of {', '.join(_FROM_THEIRS)}"


# The fields that determine the function that the weights compute: all fields except the dropout rates, the fields of
# initial weights, and keys that BERT does not use. Training may change the other fields.
DECISIVE = tuple(
    field.name
    for field in dataclasses.fields(BertConfig)
    if field.name not in (*_PROBABILITIES, "initializer_range", "position_embedding_type", "extra")
)

SHOWN_BY_SHAPES = ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings", "type_vocab_size")
"""The fields that the shapes of the weights show. Loading compares shapes."""


def config_value(config: BertConfig, name: str) -> Any:
    """Returns the value of a field in the form for comparisons: text in lower case."""
    value = getattr(config, name)
    return value.lower() if isinstance(value, str) else value


def decisive_differences(stated: BertConfig, config: BertConfig) -> list[str]:
    """Returns the names of fields that differ, and with which the same weights compute something else."""
    return [name for name in DECISIVE if config_value(stated, name) != config_value(config, name)]


def not_in_shapes(config: BertConfig) -> dict[str, Any]:
    """Returns the fields on which the outputs of weights depend and that no shape shows."""
    return {name: config_value(config, name) for name in DECISIVE if name not in SHOWN_BY_SHAPES}

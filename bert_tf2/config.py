"""BertConfig: the shape of a BERT model, as `bert_config.json` files state it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from absl import logging

from bert_tf2 import huggingface_config
from bert_tf2.support import files
from bert_tf2.support.errors import UserError

# What modeling.get_activation can make. "gelu" is the tanh approximation, as in every model that Google released;
# "gelu_erf" the exact function, which `transformers` calls "gelu". The reference does not know it.
ACTIVATIONS = ("gelu", "gelu_erf", "relu", "tanh", "linear")

LAYER_NORM_EPSILON = 1e-12

# Without these nobody can know which model is meant. The reference asks for vocab_size only and takes BERT-Base's
# numbers for the rest, which surfaces much later as a checkpoint that does not fit.
_REQUIRED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_SIZES = (*_REQUIRED, "max_position_embeddings", "type_vocab_size")
_PROBABILITIES = ("hidden_dropout_prob", "attention_probs_dropout_prob")

# No encoder is as large. What asks for more is a typing error, which would be noticed after minutes, by the memory.
_MOST_LAYERS = 1000
_LARGEST_SIZE = 10**7
_MOST_PARAMETERS = 10**11


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """The hyperparameters of one BERT model (paper, section 3; the reference's class of the same name).

    Attributes:
      vocab_size: entries of the vocabulary, rows of the word embedding table.
      hidden_size: width of every hidden state.
      num_hidden_layers: Transformer blocks.
      num_attention_heads: heads per block; divides hidden_size.
      intermediate_size: width inside the feed-forward half of a block.
      hidden_act: activation there, one of ACTIVATIONS.
      hidden_dropout_prob: dropout on embeddings and on what each half block adds to its input. None, `null` in the
        file, is no dropout.
      attention_probs_dropout_prob: dropout on the attention probabilities; None as above.
      max_position_embeddings: rows of the position table, the longest sequence the model can read.
      type_vocab_size: rows of the segment table.
      initializer_range: standard deviation of the truncated normal that fresh weights are drawn from; 0 makes them all
        zero.
      layer_norm_eps: what LayerNorm adds to the variance. The reference has 1e-12 and no key for it; a model from
        elsewhere may have another. Written only where it is another.
      extra: keys of the file that BERT does not use (the multilingual and Chinese releases carry some), kept so that
        writing the file again loses nothing.
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
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self):
        for problem in self._problems():
            raise UserError(f"model configuration: {problem}")

    def _problems(self):
        for name in _SIZES:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                yield f"{name} must be a whole number above 0, not {_shown(value)}"
            most = _MOST_LAYERS if name == "num_hidden_layers" else _LARGEST_SIZE
            if value > most:
                yield f"{name} {_shown(value)} is more than any model has ({most} is allowed); correct the number"
        if (total := self._num_parameters()) > _MOST_PARAMETERS:
            sizes = ", ".join(f"{name} {getattr(self, name)}" for name in _SIZES)
            yield f"{total:.1e} parameters are more than any model has, so one of its sizes is too large: {sizes}"
        if self.hidden_size % self.num_attention_heads:
            yield (
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads {self.num_attention_heads};"
                " every head gets an equal share"
            )
        for name in _PROBABILITIES:
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 <= value < 1):
                yield f"{name} must be a number from 0 up to, but not including, 1, or null, not {_shown(value)}"
        if not (_is_number(self.initializer_range) and 0 <= self.initializer_range <= 1):
            yield f"initializer_range must be a number from 0 to 1, not {_shown(self.initializer_range)}"
        if not (_is_number(self.layer_norm_eps) and 0 < self.layer_norm_eps <= 1):
            yield f"layer_norm_eps must be a number above 0 and at most 1, not {_shown(self.layer_norm_eps)}"
        if not isinstance(self.hidden_act, str) or self.hidden_act.lower() not in ACTIVATIONS:
            yield f"hidden_act {_shown(self.hidden_act)} is not one of {', '.join(ACTIVATIONS)}"

    def _num_parameters(self) -> int:
        """About how many numbers the encoder has; biases and the like are left out."""
        rows = self.vocab_size + self.max_position_embeddings + self.type_vocab_size
        block = self.hidden_size * (4 * self.hidden_size + 2 * self.intermediate_size)
        return self.hidden_size * rows + self.num_hidden_layers * block

    @property
    def attention_head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def from_dict(cls, json_object: Mapping[str, Any]) -> BertConfig:
        """Makes a configuration from what a `bert_config.json` holds.

        Raises:
          UserError: a key that decides the model's shape is missing, or a value makes no sense.
        """
        missing = [name for name in _REQUIRED if name not in json_object]
        if missing:
            raise UserError(f"model configuration: missing {', '.join(missing)}")
        known = {field.name for field in dataclasses.fields(cls)} - {"extra"}
        values = {name: value for name, value in json_object.items() if name in known}
        config = cls(**values, extra={name: value for name, value in json_object.items() if name not in known})
        if absent := sorted(known - values.keys() - {"layer_norm_eps"}):
            shown = ", ".join(f"{name} = {getattr(config, name)!r}" for name in absent)
            logging.warning("The model configuration leaves out some keys; taking the reference's defaults: %s", shown)
        return config

    @classmethod
    def from_json_file(cls, json_file: str) -> BertConfig:
        """Reads a `bert_config.json`, or a `config.json` of Hugging Face's `transformers`.

        Raises:
          UserError: no such file, not JSON (names the line), not an object, or not a possible model.
        """
        values = files.read_json(json_file)
        try:
            if huggingface_config.is_huggingface_config(values):
                if remark := huggingface_config.remark(values):
                    logging.info("%s: %s", json_file, remark)
                values = huggingface_config.from_huggingface(values)
            return cls.from_dict(values)
        except UserError as error:
            raise UserError(f"{json_file}: {error}") from error

    def check_sequence_length(self, max_seq_length: int) -> None:
        """Raises UserError if the model has too few positions."""
        if max_seq_length > self.max_position_embeddings:
            raise UserError(
                f"--max_seq_length={max_seq_length} is more than the model can read: its configuration says"
                f" max_position_embeddings {self.max_position_embeddings}"
            )

    def check_pairs(self, what: str) -> None:
        """Makes sure that the model tells two texts apart.

        Otherwise the second text would get no segment embedding at all, as it does in the reference.

        Args:
          what: where there are two texts: "the task mrpc", "data.txt, line 3".

        Raises:
          UserError: it has a single segment.
        """
        if self.type_vocab_size < 2:
            raise UserError(
                f"{what}: has two texts (segments), but the model's configuration says type_vocab_size"
                f" {self.type_vocab_size}, so the model cannot tell them apart; take one with type_vocab_size 2"
            )

    def to_dict(self) -> dict[str, Any]:
        """Every key, the extra ones included, as plain Python values."""
        values = dataclasses.asdict(self)
        extra = values.pop("extra")
        if self.layer_norm_eps == LAYER_NORM_EPSILON:
            del values["layer_norm_eps"]
        return {**values, **extra}

    def to_json_string(self) -> str:
        """The text of a `bert_config.json`: keys sorted, indented by two, a line end at its end."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"


def _shown(value: object) -> str:
    """A value as a file has it, cut where that is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."

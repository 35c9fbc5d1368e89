"""Weights in Hugging Face's layout: a folder with config.json, model.safetensors and vocab.txt.

The two sides hold the same numbers under other names, and their kernels are each other's transpose: [inputs, outputs]
here, [outputs, inputs] there.
"""

from __future__ import annotations

import json
import os
import re
from typing import NamedTuple

import numpy as np

from bert_tf2 import files
from bert_tf2.config import BertConfig
from bert_tf2.errors import UserError

# What the reference's names turn into, in this order.
_RENAMES = (
    (r"^bert/", ""),
    (r"/layer_(\d+)/", r"/layer/\1/"),
    (r"(word|position|token_type)_embeddings$", r"\1_embeddings/weight"),
    (r"/gamma$", "/weight"),
    (r"/beta$", "/bias"),
    (r"/kernel$", "/weight"),
    (r"/", "."),
)


class Named(NamedTuple):
    """Where a variable of ours is on the other side."""

    name: str
    transposed: bool


def huggingface_name(name: str) -> Named:
    """An encoder variable's name there, from the reference's; without the prefix `bert.` that some files have."""
    other = name
    for pattern, replacement in _RENAMES:
        other = re.sub(pattern, replacement, other)
    return Named(other, transposed=name.endswith("/kernel"))


def read_config(folder: str) -> BertConfig:
    """The model's configuration, from the folder's config.json."""
    return BertConfig.from_json_file(os.path.join(folder, "config.json"))


def read_encoder(folder: str, names: list[str]) -> dict[str, np.ndarray]:
    """Reads the encoder variables of these reference names.

    Args:
      folder: holds `model.safetensors`.
      names: `bert/...`; see checkpoint.tf1_variables.

    Returns:
      Name -> array in our shape.

    Raises:
      UserError: the library safetensors or the file is missing, or the file is damaged or lacks a variable.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError as error:
        raise UserError("reading model.safetensors needs the package safetensors: pip install safetensors") from error
    path = os.path.join(folder, "model.safetensors")
    if not files.exists(path):
        raise UserError(f"{path}: no such file")
    try:
        tensors = {name.removeprefix("bert."): value for name, value in load_file(path).items()}
    except SafetensorError as error:
        raise UserError(f"{path}: cannot be read ({error}); copy it again") from error
    wanted = {name: huggingface_name(name) for name in names}
    missing = [other.name for other in wanted.values() if other.name not in tensors]
    if missing:
        raise UserError(f"{path}: lacks {', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}")
    return {name: tensors[other.name].T if other.transposed else tensors[other.name] for name, other in wanted.items()}


def write_tf1_folder(folder: str, target: str) -> None:
    """Turns a folder of theirs into one of Google's: `bert_model.ckpt`, `bert_config.json`, `vocab.txt`.

    `"hidden_act": "gelu"` is taken over as it is. It means the exact function there and the tanh approximation here;
    the two differ by less than 5e-4.

    Raises:
      UserError: a file is missing or damaged, or config.json and model.safetensors disagree.
    """
    from bert_tf2 import checkpoint, modeling

    config = read_config(folder)
    model = modeling.BertModel(config)
    variables = checkpoint.tf1_variables(model)
    vocabulary = files.read_text(os.path.join(folder, "vocab.txt"))
    for name, value in read_encoder(folder, list(variables)).items():
        if variables[name].shape != value.shape:
            raise UserError(
                f"{folder}: {huggingface_name(name).name} of model.safetensors has another shape than config.json says;"
                " the two do not belong together"
            )
        variables[name].assign(value)
    checkpoint.save(os.path.join(target, "bert_model.ckpt"), variables)
    plain = {name: value for name, value in config.to_dict().items() if name not in config.extra}
    files.write_text(os.path.join(target, "bert_config.json"), json.dumps(plain, indent=2, sort_keys=True) + "\n")
    files.write_text(os.path.join(target, "vocab.txt"), vocabulary)

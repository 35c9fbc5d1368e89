"""What every kind of checkpoint is to the rest of the program: named arrays, under the reference's names and shapes.

TensorFlow 1 checkpoints (`bundle`), Hugging Face folders (`huggingface`), Model Garden's checkpoints and SavedModels
(`model_garden`) and Keras files (`keras_files`) each have a reader with this interface. `sources.open_weights` finds
out which one a path needs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from bert_tf2 import tokenization
from bert_tf2.config import BertConfig
from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.weights import names
from bert_tf2.weights.labels import LabelMap


class Weights:
    """Named arrays that are read one at a time.

    Attributes:
      path: what was opened, for messages: the prefix, file or folder.
      kind: what it is, in words.
      shapes: reference name -> list of sizes, of every variable in it. What has no such name keeps its own.
      dtypes: the same names -> the dtype in the file, in numpy's spelling ("float32", "bfloat16").
      config: the model's configuration, where the source itself holds it.
      config_file: the file beside the weights that `config` was read from, where there is one.
      uncertain: field of `config` -> other values that may be right too, where the source's word is not certain.
      remarks: sentences for the user about what is not as it seems.
    """

    kind = ""

    def __init__(self, path: str):
        self.path = path
        self.shapes: dict[str, list[int]] = {}
        self.dtypes: dict[str, str] = {}
        self.config: BertConfig | None = None
        self.config_file: str | None = None
        self.uncertain: dict[str, Collection] = {}
        self.remarks: list[str] = []

    def get(self, name: str) -> np.ndarray:
        """One variable, in the reference's shape. Raises UserError where it cannot be read or is damaged."""
        raise NotImplementedError

    @property
    def folder(self) -> str:
        """Where the files lie, and with them perhaps vocab.txt and label_map.json."""
        return self.path if files.is_directory(self.path) else os.path.dirname(self.path)

    def vocabulary_file(self) -> str | None:
        """The vocab.txt that lies with the weights, None where there is none."""
        path = os.path.join(self.folder, "vocab.txt")
        return path if files.exists(path) else None

    def vocabulary(self) -> list[str] | None:
        """The entries of the vocabulary that lies with the weights, None where there is none."""
        path = self.vocabulary_file()
        return None if path is None else tokenization.read_entries(path)

    def tokenizer_settings(self) -> Mapping[str, Any]:
        """What the source says of its tokenizer, such as `do_lower_case`; nothing where it says nothing."""
        return {}

    def labels(self) -> LabelMap | None:
        """What the outputs mean as far as the source itself says it, None where it names no labels."""
        return None

    @property
    def num_labels(self) -> int | None:
        """The number of outputs of a classifier or tagger, None if there is no such head."""
        return next(iter(self.shapes.get(names.LABELS[0].reference, [])), None)

    @property
    def global_step(self) -> int:
        """The number of steps it was trained for; 0 where it does not say."""
        return int(self.get(names.GLOBAL_STEP)) if names.GLOBAL_STEP in self.shapes else 0


def as_float32(value: np.ndarray) -> np.ndarray:
    """Weights in the precision that models compute in; whole numbers and strings as they are.

    bfloat16, which numpy does not know by itself, has the kind "V".
    """
    return value.astype(np.float32) if value.dtype.kind in "fV" and value.dtype != np.float32 else value


def check_finite(path: str, name: str, value: np.ndarray) -> None:
    """Raises UserError if a float array holds NaN or infinity."""
    if value.dtype.kind in "iubOSU" or np.isfinite(value).all():
        return
    bad = int(value.size - np.isfinite(value).sum())
    raise UserError(
        f"{path}: {bad} of the {value.size} numbers of {name} are NaN or infinite; a model with them answers nothing"
        " but NaN. Take an earlier checkpoint of that training"
    )

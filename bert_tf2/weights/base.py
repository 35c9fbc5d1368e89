"""The interface of every kind of checkpoint: named arrays with the reference's names and shapes.

Each kind has a reader with this interface; `sources.open_weights` chooses the reader for a path.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes  # noqa: F401 - with it, numpy knows bfloat16
import numpy as np

from bert_tf2 import tokenization
from bert_tf2.config import BertConfig
from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.weights import names
from bert_tf2.weights.text_rules import VOCABULARY_FILE, Stated, stated_in

if TYPE_CHECKING:
    from bert_tf2.weights.task_file import LabelMap

CONFIG_FILE = "bert_config.json"


class Place(NamedTuple):
    """A variable in a file."""

    shape: list[int]  # its sizes in the reference
    dtype: str  # in the file, as a numpy name ("float32", "bfloat16")
    where: Any  # the reader's own data, by which it finds the variable


class Weights:
    """Named arrays that are read one at a time: a reader gives `_hold` their places, and `_read` reads an array."""

    kind = ""  # the kind of checkpoint, for messages

    def __init__(self, path: str):
        self.path = path  # the prefix, file or folder, for messages
        self._places: dict[str, Place] = {}
        # reference name -> list of sizes of each variable. A variable without a reference name keeps its own
        self.shapes: dict[str, list[int]] = {}
        self.dtypes: dict[str, str] = {}  # the same names -> the dtype in the file, as a numpy name
        self.config: BertConfig | None = None  # the model's configuration, None if the source does not contain it
        self.config_file: str | None = None  # the file of `config` beside the weights, None if there is no such file
        self.other_activations: Collection[str] = ()  # other possible hidden_act, if `config.hidden_act` is uncertain
        self.remarks: list[str] = []  # messages for the user about the weights

    def _hold(self, places: Mapping[str, Place]) -> None:
        self._places = dict(places)
        self.shapes = {name: place.shape for name, place in self._places.items()}
        self.dtypes = {name: place.dtype for name, place in self._places.items()}
        others = sorted({*self.dtypes.values()} & {"float16", "bfloat16", "float64"})
        self.remarks += [f"Numbers that are {dtype} in the file are read as float32." for dtype in others]

    def under(self, new_names: Mapping[str, str]) -> Weights:
        """The same weights with other names: new name -> the name here. Other variables are left out."""
        renamed = copy.copy(self)
        renamed.remarks = []  # `_hold` adds to the list
        renamed._hold({new: self._places[old] for new, old in new_names.items()})
        renamed.remarks = self.remarks
        return renamed

    def without_labels(self, num_labels: int | None) -> Weights:
        """The same weights without a head for another number of labels."""
        if names.num_labels(self.shapes) in (None, num_labels):
            return self
        head = {row.reference for row in names.LABELS}
        return self.under({name: name for name in self.shapes if name not in head})

    def get(self, name: str) -> np.ndarray:
        """Returns one variable in the reference's shape, floats as float32."""
        return as_float32(self._read(name))

    def arrays(self, chosen: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Yields these variables. Reads all others, too, because damage in one place suggests damage elsewhere.

        Raises UserError if a number of a chosen variable is not finite.
        """
        chosen = dict.fromkeys(chosen)
        for name in [*chosen, *(name for name in self.shapes if name not in chosen)]:
            value = self.get(name)
            if name not in chosen:
                continue
            is_float = value.dtype.kind not in "iubOSU"
            if is_float and (bad := value.size - np.count_nonzero(np.isfinite(value))):
                raise UserError(
                    f"{self.path}: {bad} of the {value.size} numbers of {name} are NaN or infinite; a model with them"
                    " answers nothing but NaN. Take an earlier checkpoint of the training run"
                )
            yield name, value

    def _read(self, name: str) -> np.ndarray:
        """Returns one variable in the reference's shape, in any dtype."""
        raise NotImplementedError

    @property
    def folder(self) -> str:
        """The folder of the files, which may also contain vocab.txt and label_map.json."""
        return files.folder_of(self.path)

    @functools.cached_property
    def text(self) -> Stated | None:
        """The statements of the files beside the weights about splitting text; None if there are no such files."""
        return stated_in(self.folder)

    def vocabulary_file(self) -> str | None:
        """Returns the path of the vocab.txt beside the weights, None if there is no such file."""
        return files.companion(self.folder, VOCABULARY_FILE)

    def vocabulary(self) -> list[str] | None:
        """Returns the entries of the vocabulary beside or in the weights, None if there is no vocabulary."""
        path = self.vocabulary_file()
        return tokenization.read_entries(path) if path else None

    def labels(self) -> LabelMap | None:
        """Returns the meaning of the outputs, None if the source does not define it."""
        return None

    @property
    def num_labels(self) -> int | None:
        """The number of outputs of a classifier or tagger, None if the model has no such head."""
        return names.num_labels(self.shapes)

    @property
    def global_step(self) -> int:
        """The number of training steps, 0 if the source does not contain it."""
        return int(self.get(names.GLOBAL_STEP)) if self.shapes.get(names.GLOBAL_STEP) == [] else 0


def bytes_of(value: np.ndarray) -> np.ndarray:
    """Returns a read-only view of the bytes of an array in C order, for checksums and files."""
    view = np.asarray(value, order="C").reshape(-1).view(np.uint8)
    view.flags.writeable = False  # google_crc32c requires it
    return view


def as_float32(value: np.ndarray) -> np.ndarray:
    """Casts floats to float32, also bfloat16 (kind "V"); returns integers and strings unchanged."""
    return value.astype(np.float32) if value.dtype.kind in "fV" and value.dtype != np.float32 else value

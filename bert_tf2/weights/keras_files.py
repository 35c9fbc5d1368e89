"""Keras files of this project's models, NAME.keras: Keras reads and writes them.

Keras' safe mode creates only objects of Keras and of the models here, and executes nothing in a file.
"""

from __future__ import annotations

import os
import zipfile

import numpy as np

from bert_tf2.support import errors, files
from bert_tf2.support.errors import UserError
from bert_tf2.support.process import load_tensorflow
from bert_tf2.weights import names
from bert_tf2.weights.base import Place, Weights
from bert_tf2.weights.task_file import TAGGING_TASK, UNKNOWN_TASK, LabelMap, numbered
from bert_tf2.weights.tensor_files import damaged_member

ENDING = ".keras"


# The exceptions of Keras for a file that is no valid model, and of the configuration in such a file.
_OF_KERAS = (ValueError, TypeError, KeyError, OSError, UserError)


def _check_class(path: str) -> None:
    """Raises UserError unless a Keras file states that it holds an encoder or a model of `heads`."""
    with files.open_binary(path) as stream, zipfile.ZipFile(stream) as archive:
        if "config.json" not in archive.namelist():
            raise UserError(f"{path}: {errors.DAMAGED.format('it has no config.json')}")
        data = archive.read("config.json")
    with errors.reading(path, UnicodeDecodeError):
        text = data.decode("utf-8")
    content = files.parse_json(text, f"{path}: config.json")
    module, kind = str(content.get("module")), content.get("class_name")
    if module.startswith("bert_tf2.api."):
        raise UserError(
            f"{path}: holds a {kind}, a Keras model that takes texts; keras.models.load_model opens this file (after"
            " `import bert_tf2`), and the model's save_folder(FOLDER) writes a folder for this call"
        )
    if not module.startswith("bert_tf2."):  # Keras would not know the class
        raise UserError(
            f"{path}: holds a {module}.{kind}, which is not a model of this project; keras.models.load_model opens it"
        )


class KerasFile(Weights):
    """A .keras file of one of this project's models. Optimizer state is not in `shapes`."""

    kind = "Keras model file"

    def __init__(self, path: str):
        super().__init__(path)
        files.expect_kind(path, "one of Keras' files")
        if damaged := damaged_member(path):
            raise UserError(f"{path}: {errors.DAMAGED.format(f'the checksum of {damaged} differs')}")
        _check_class(path)
        load_tensorflow()
        import keras

        with errors.reading(path, *_OF_KERAS):
            self._model = keras.saving.load_model(path, compile=False)
        variables = names.tf1_variables(self._model)
        self.config = self._model.config
        self._hold({name: Place(v.shape.as_list(), v.dtype.name, v) for name, v in variables.items()})

    def labels(self) -> LabelMap | None:
        """Returns numbered labels of a tagger, regression or multi-label model, because no shape shows these kinds."""
        labels = numbered(self.num_labels or 0)
        if self._model.labeled == "tokens":
            return LabelMap(TAGGING_TASK, labels, regression=False)
        if getattr(self._model, "multi_label", False):
            return LabelMap(UNKNOWN_TASK, labels, regression=False, multi_label=True)
        return LabelMap(UNKNOWN_TASK, (), regression=True) if len(labels) == 1 else None

    def _read(self, name: str) -> np.ndarray:
        return self._places[name].where.numpy()


def write(path: str, model) -> None:
    """Writes a BertModel, or a model of heads, to a local path that ends in .keras, completely or not at all."""
    with files.complete_or_absent(path) as (beside,), files.folder_beside(f"{path}.folder") as folder:
        made = os.path.join(folder, f"model{ENDING}")  # Keras requires a name with this ending
        model.save(made)
        os.replace(made, beside)

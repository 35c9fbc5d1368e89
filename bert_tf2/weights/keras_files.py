"""Keras files of this project's models, NAME.keras: Keras reads and writes them.

Keras' safe mode makes no objects but its own and those of the models here, and executes nothing in a file.
"""

from __future__ import annotations

import os
import shutil
import zipfile

import numpy as np

from bert_tf2.support import environment, files, outputs
from bert_tf2.support.errors import UserError
from bert_tf2.support.process import load_tensorflow
from bert_tf2.weights import names
from bert_tf2.weights.base import Place, Weights
from bert_tf2.weights.task_file import TAGGING_TASK, UNKNOWN_TASK, LabelMap, numbered

ENDING = ".keras"


class KerasFile(Weights):
    """A .keras file of one of this project's models. Optimizer state is not in `shapes`."""

    kind = "Keras model file"

    def __init__(self, path: str):
        super().__init__(path)
        files.expect_kind(path, "one of Keras' files")
        with environment.reading(path):
            with files.open_binary(path) as stream, zipfile.ZipFile(stream) as archive:
                if damaged := archive.testzip():
                    raise ValueError(f"the checksum of {damaged} differs")
                said = files.parse_json(archive.read("config.json").decode("utf-8"), "config.json")
            if not str(said.get("module")).startswith("bert_tf2."):  # Keras would not know its class
                what = f"{said.get('module')}.{said.get('class_name')}"
                raise UserError(f"{path}: holds a {what}, which is not a model of this project")
            load_tensorflow()
            import keras

            self._model = keras.saving.load_model(path, compile=False)
            variables = names.tf1_variables(self._model)
        self.config = self._model.config
        self._hold({name: Place(v.shape.as_list(), v.dtype.name, v) for name, v in variables.items()})

    def labels(self) -> LabelMap | None:
        """Returns the labels of a tagger, regression or multi-label model, which no shape shows; names are numbered."""
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
    with files.complete_or_absent(path) as (beside,):
        # Keras wants a name that ends so. If this process is killed, the next one removes the folder.
        folder = outputs.name_beside(f"{path}.folder")
        made = os.path.join(folder, f"model{ENDING}")
        try:
            os.makedirs(folder, exist_ok=True)
            model.save(made)
            os.replace(made, beside)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

"""Runs an exported model in Python, without a server: `load` returns a callable for texts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf2.exporting.saved_model_files import log_level
from bert_tf2.support import files
from bert_tf2.support.environment import reading
from bert_tf2.support.errors import UserError
from bert_tf2.support.process import load_tensorflow_text
from bert_tf2.support.settings import check_type
from bert_tf2.weights.sources import EXPORT_INFO_FILE

Text = str | tuple[str, str]

# For each task, the outputs for texts that are filled in a batch -> all outputs of the same length.
_FILLED = {
    "classifier": {"labels": ("labels",)},  # for a multi-label model
    "features": {"tokens": ("tokens", "sequence_output")},
    "ner": {"starts": ("words", "labels", "probabilities", "starts", "ends")},
    "masked_lm": {"positions": ("positions", "tokens", "scores")},
}
# The inputs of the signature for texts, and what they are called in messages.
_TAKES = {
    ("text_a",): "a text",
    ("text_a", "text_b"): "a text or a pair of texts",
    ("question", "context"): "a pair (question, context)",
}


def load(path: str | os.PathLike[str]) -> ExportedModel:
    """Loads the export in a folder, or the newest of the versions there.

    Example:
      answer = exporting.load("export")
      answer("a lovely film")                        # {"label": "yes", "probabilities": ...}
      answer([("Where is it?", "It is in Oslo.")])   # [{"answer": "Oslo", ...}]

    Raises:
      UserError: there is no export, it is damaged, or it takes no texts.
    """
    folder = os.fspath(path)
    if not files.exists(os.path.join(folder, EXPORT_INFO_FILE)):
        versions = filter(str.isdecimal, (name.strip("/") for name in files.list_directory(folder)))
        folder = os.path.join(folder, *sorted(versions, key=int)[-1:])
    path = os.path.join(folder, EXPORT_INFO_FILE)
    if not files.exists(path):
        raise UserError(
            f"{folder}: is no export (there is no {EXPORT_INFO_FILE}); give a folder that export_saved_model.py wrote"
        )
    info = files.read_json(path)
    load_tensorflow_text(f"{folder}: its signature for texts")
    # It warns about gradients, which are omitted on purpose.
    with reading(folder, "is damaged or incomplete ({}); export it again"), log_level(logging.ERROR):
        return ExportedModel(tf.saved_model.load(folder), folder, info)


class ExportedModel:
    """A callable for texts, created by `load`; `info` is the content of model_info.json."""

    def __init__(self, model: Any, folder: str, info: Mapping[str, Any]):
        self.info = info
        self._filled = _FILLED.get(info["task"], {})
        self._model = model  # it owns the variables
        if "serving_text" not in model.signatures:
            raise UserError(f"{folder}: was exported with --text_signatures=false and takes no texts; export it again")
        is_pair = "serving_text_pair" in model.signatures  # which takes "" for a second text that is not there
        self._signature = model.signatures["serving_text_pair" if is_pair else "serving_text"]
        inputs = {*self._signature.structured_input_signature[1]}
        if own := inputs.difference(*_TAKES):
            raise UserError(f"{folder}: takes {', '.join(sorted(own))} beside texts; use tf.saved_model.load")
        self._inputs = next(names for names in _TAKES if inputs == {*names})

    def __call__(self, texts: Text | Iterable[Text], *, batch_size: int = 32) -> dict[str, Any] | list[dict[str, Any]]:
        """The outputs (see `signatures`) for a text, or a tuple of two; for several, a list. `batch_size`: of texts.

        Rows of numbers are numpy arrays, everything else is of Python; what fills a batch up is left out. Raises
        UserError if something is no text, or the model refuses it.
        """
        if isinstance(texts, str | bytes | tuple | Mapping) or not isinstance(texts, Iterable):
            return self([texts])[0]
        check_type("batch_size", batch_size, int, low=1)
        rows = [self._row(number, text) for number, text in enumerate(texts)]
        return [
            answer
            for begin in range(0, len(rows), batch_size)
            for answer in self._answer(rows[begin : begin + batch_size], begin)
        ]

    def _row(self, number: int, text: Text) -> tuple[str, ...]:
        row = tuple(text) if isinstance(text, tuple | list) else (text,)
        row += ("",) * (len(row) == 1 and self._inputs[-1] == "text_b")
        if len(row) != len(self._inputs) or not all(isinstance(part, str) for part in row):
            takes = f"a model of the task {self.info['task']} takes {_TAKES[self._inputs]}"
            raise UserError(f"row {number} is {text!r:.60}; {takes}")
        return row

    def _answer(self, rows: Sequence[tuple[str, ...]], begin: int) -> list[dict[str, Any]]:
        columns = zip(self._inputs, zip(*rows, strict=True), strict=True)
        try:
            outputs = self._signature(**{name: tf.constant(column) for name, column in columns})
        except tf.errors.InvalidArgumentError as error:
            sentence = re.search(r"assertion failed: \[(.*)\]", error.message)
            if not sentence:
                raise
            counted = re.sub(r"^row (\d+)", lambda row: f"row {begin + int(row[1])}", sentence[1])
            raise UserError(counted) from error
        found = {name: _rows(value.numpy()) for name, value in outputs.items()}
        answers = [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
        for answer in answers:
            for counted, filled in self._filled.items():
                length = sum(value not in ("", -1) for value in answer.get(counted, ()))
                answer.update((output, answer[output][:length]) for output in filled if output in answer)
        return answers


def _rows(values: np.ndarray) -> list[Any]:
    """The values for each text: rows of floats as arrays, everything else as Python types."""
    if values.dtype == object:
        values = np.vectorize(bytes.decode, otypes=[object])(values)
    return [*values] if values.ndim > 1 and values.dtype.kind == "f" else values.tolist()

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
from bert_tf2.support.quiet import load_tensorflow_text
from bert_tf2.weights.sources import EXPORT_INFO_FILE

Text = str | tuple[str, str]

# For each task, the outputs for texts that are padded in a batch -> all outputs of the same length.
_FILLED = {
    "classifier": {"labels": ("labels",)},  # for a multi-label model
    "features": {"tokens": ("tokens", "sequence_output")},
    "ner": {"starts": ("words", "labels", "probabilities", "starts", "ends")},
    "masked_lm": {"positions": ("positions", "tokens", "scores")},
}


def load(path: str | os.PathLike[str]) -> ExportedModel:
    """Loads an export in Python, without a server.

    Example:
      answer = exporting.load("export")
      answer("a lovely film")                        # {"label": "yes", "probabilities": ...}
      answer([("Where is it?", "It is in Oslo.")])   # [{"answer": "Oslo", ...}]

    `path`: the folder with the versions, of which the newest is loaded, or the folder of a version.
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
        self._signatures = model.signatures
        if "serving_text" not in self._signatures:
            raise UserError(f"{folder}: was exported with --text_signatures=false and takes no texts; export it again")
        inputs = {*self._signatures["serving_text"].structured_input_signature[1]}
        if own := inputs - {"text_a", "question", "context"}:
            raise UserError(f"{folder}: takes {', '.join(sorted(own))} beside texts; use tf.saved_model.load")
        # The number of texts in a row -> the signature for it, its inputs, and its words in messages.
        self._asks = {1: ("serving_text", ("text_a",), "a text")}
        if "serving_text_pair" in self._signatures:
            self._asks[2] = ("serving_text_pair", ("text_a", "text_b"), "a pair of texts")
        if "question" in inputs:
            self._asks = {2: ("serving_text", ("question", "context"), "a pair (question, context)")}

    def __call__(self, texts: Text | Iterable[Text], *, batch_size: int = 32) -> dict[str, Any] | list[dict[str, Any]]:
        """Answers a text or a pair of texts with a dictionary, and a list of them with a list of dictionaries.

        Args:
          texts: str, or a tuple of two: text_a and text_b, or question and context.
          batch_size: number of texts per batch.

        Returns:
          The outputs of the signature for each text (see `signatures`), without the padding of the batch; rows of
          numbers as numpy arrays, everything else as Python types.
        """
        if isinstance(texts, str | tuple):
            return self([texts])[0]
        if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable):
            raise self._wrong(f"{texts!r:.60} is given")
        rows = [self._row(number, text) for number, text in enumerate(texts)]
        return [
            answer
            for begin in range(0, len(rows), batch_size)
            for answer in self._answer(rows[begin : begin + batch_size], begin)
        ]

    def _wrong(self, what: str) -> UserError:
        kinds = " or ".join(kind for _, _, kind in self._asks.values())
        return UserError(f"{what}; a model of the task {self.info['task']} takes {kinds}")

    def _row(self, number: int, text: Text) -> tuple[str, ...]:
        row = tuple(text) if isinstance(text, tuple | list) else (text,)
        if not all(isinstance(part, str) for part in row) or len(row) not in self._asks:
            raise self._wrong(f"row {number} is {text!r:.60}")
        return row

    def _answer(self, rows: Sequence[tuple[str, ...]], begin: int) -> list[dict[str, Any]]:
        signature, inputs, _ = self._asks[max(map(len, rows))]
        columns = zip(*(row + ("",) * (len(inputs) - len(row)) for row in rows), strict=True)
        tensors = {name: tf.constant(column) for name, column in zip(inputs, columns, strict=True)}
        try:
            found = {name: _rows(value.numpy()) for name, value in self._signatures[signature](**tensors).items()}
        except tf.errors.InvalidArgumentError as error:
            sentence = re.search(r"assertion failed: \[(.*)\]", error.message)
            if not sentence:
                raise
            counted = re.sub(r"^row (\d+)", lambda row: f"row {begin + int(row[1])}", sentence[1])
            raise UserError(counted) from error
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

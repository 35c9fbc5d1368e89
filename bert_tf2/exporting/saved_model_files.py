"""Exports as folders: their numbered versions, SavedModels in them, and `load`, a callable for texts without a server.

A version is written under another name and gets its number when it is complete, because TensorFlow Serving loads every
folder whose name is a number.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf2.support import files
from bert_tf2.support.containers import Text, encodable
from bert_tf2.support.errors import UserError, filtered, reading
from bert_tf2.support.process import check_process, load_tensorflow_text
from bert_tf2.support.settings import check_type
from bert_tf2.weights.sources import EXPORT_INFO_FILE

# Task -> the outputs for texts that are padded to one length in a batch; the first output shows where padding begins.
_FILLED = {
    "classifier": ("labels",),  # for a multi-label model
    "features": ("tokens", "sequence_output"),
    "ner": ("starts", "words", "labels", "probabilities", "ends"),
    "masked_lm": ("positions", "tokens", "scores"),
}
# The inputs of the signature for texts -> their name in messages.
_TAKES = {
    ("text_a",): "a text",
    ("text_a", "text_b"): "a text or a pair of texts",
    ("question", "context"): "a pair (question, context)",
}


# TensorFlow's reader of variables takes a path with one of these characters as a pattern, and does not find the file.
_OF_PATTERNS = {*"*?[\\"}
# The exceptions that TensorFlow raises for a SavedModel that it cannot read.
_OF_SAVED_MODELS = (tf.errors.OpError, OSError, ValueError, KeyError, IndexError, TypeError, RuntimeError)


@contextlib.contextmanager
def _errors_alone() -> Iterator[None]:
    """Hides TensorFlow's warnings about gradients (left out on purpose) and about the inputs of each function."""
    with filtered(lambda record: record.levelno >= logging.ERROR):
        yield


def write_version(export_dir: str, write: Callable[[str], None]) -> str:
    """Calls `write` with a new folder and gives the folder the next number; returns its path.

    If `write` raises, the folder is removed.

    Raises:
      UserError: the newest version there is an ONNX file and this one a SavedModel, or the reverse.
    """
    # Servers ignore a name that is not a number. A random name, because processes on other machines are not visible.
    with files.folder_beside(os.path.join(export_dir, f"version-{secrets.token_hex(4)}")) as beside:
        write(beside)
        newest = os.path.join(export_dir, str(_newest(export_dir)))
        before, now = _format(newest), _format(beside)
        if before and now and before != now:
            raise UserError(
                f"{newest}: is of the format {before}, and a server would open {now} next; give another folder"
            )
        return _give_number(beside, export_dir)


def _newest(export_dir: str) -> int:
    there = [name.strip("/") for name in files.list_directory(export_dir)]
    return max((int(name) for name in there if re.fullmatch("[0-9]{1,18}", name)), default=0)  # servers have 64 bits


def _format(folder: str) -> str | None:
    """The format of an export; None for another folder."""
    path = files.companion(folder, EXPORT_INFO_FILE)
    return files.read_json(path).get("format", "saved_model") if path else None


def _give_number(folder: str, export_dir: str) -> str:
    while True:
        path = os.path.join(export_dir, str(_newest(export_dir) + 1))
        try:
            tf.io.gfile.rename(folder, path) if files.is_remote(path) else os.rename(folder, path)
            return path
        except (tf.errors.OpError, OSError) as error:
            if not files.exists(path):  # if it exists, another process has taken the number in the meantime
                raise UserError(f"{path}: cannot be written: {str(error).splitlines()[0]}") from error


def save(task: tf.Module, signatures: Mapping[str, Callable], folder: str) -> dict[str, Any]:
    """Writes a SavedModel; returns a description of its signatures: name -> inputs, outputs -> name -> dtype, shape."""
    # A server does not need the gradients of an exported model.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with _errors_alone():
        tf.saved_model.save(task, folder, signatures, options)

    def describe(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {name: {"dtype": it.dtype.name, "shape": it.shape.as_list()} for name, it in sorted(tensors.items())}

    return {
        name: {
            "inputs": describe({spec.name: spec for spec in function.input_signature}),
            "outputs": describe(function.get_concrete_function().structured_outputs),
        }
        for name, function in sorted(signatures.items())
    }


def load(path: str | os.PathLike[str]) -> ExportedModel:
    """Loads the export in a folder, or the newest version in a folder of versions.

    Example:
      answer = exporting.load("export")
      answer("a lovely film")                        # {"label": "yes", "probabilities": ...}
      answer([("Where is it?", "It is in Oslo.")])   # [{"answer": "Oslo", ...}]

    Raises:
      UserError: there is no export, it is damaged, or it takes no texts.
    """
    check_type("path", path, os.PathLike)
    folder = str(os.fspath(path))
    if not files.companion(folder, EXPORT_INFO_FILE):
        versions = filter(str.isdecimal, (name.strip("/") for name in files.list_directory(folder)))
        folder = os.path.join(folder, *sorted(versions, key=int)[-1:])
    path = files.companion(folder, EXPORT_INFO_FILE)
    if path is None:
        raise UserError(
            f"{folder}: is no export ({EXPORT_INFO_FILE} is missing); give a folder that export_saved_model.py wrote"
        )
    info = files.read_json(path)
    if info.get("format") == "onnx":
        raise UserError(f"{folder}: is for ONNX Runtime, which opens model.onnx; for this call, export a SavedModel")
    if info.get("text_signatures", True):
        load_tensorflow_text(f"{folder}: its signature for texts")
    problem = "is damaged or incomplete ({}); export it again"
    if not isinstance(info.get("task"), str):
        raise UserError(f"{path}: {problem.format('it names no task')}")
    if set(folder) & _OF_PATTERNS:
        problem = "TensorFlow takes *, ?, [ and \\ in the path of an export as a pattern; rename its folder ({})"
    with reading(folder, *_OF_SAVED_MODELS, problem=problem), _errors_alone():
        model = tf.saved_model.load(folder)
    return ExportedModel(model, folder, info)


class ExportedModel:
    """A callable for texts, created by `load`; `info` is the content of model_info.json."""

    def __init__(self, model: Any, folder: str, info: Mapping[str, Any]):
        self.info, self._model = info, model  # the model owns the variables
        self._counted, *self._others = _FILLED.get(info["task"], ("",))
        if "serving_text" not in model.signatures:
            raise UserError(f"{folder}: was exported with --text_signatures=false and takes no texts; export it again")
        is_pair = "serving_text_pair" in model.signatures  # takes "" for a missing second text
        self._signature = model.signatures["serving_text_pair" if is_pair else "serving_text"]
        inputs = {*self._signature.structured_input_signature[1]}
        if own := inputs.difference(*_TAKES):
            raise UserError(f"{folder}: takes {', '.join(sorted(own))} beside texts; use tf.saved_model.load")
        self._inputs = next(names for names in _TAKES if inputs == {*names})

    def __call__(self, texts: Text | Iterable[Text], *, batch_size: int = 32) -> dict[str, Any] | list[dict[str, Any]]:
        """The outputs (see `signatures`) for a text or a tuple of two texts; a list of outputs for several texts.

        Rows of numbers are numpy arrays, all other values are Python values; the padding of a batch is removed. Raises
        UserError if an element is not a text, or the model refuses it.
        """
        if isinstance(texts, str | bytes | tuple | Mapping) or not isinstance(texts, Iterable):
            return self([texts])[0]
        check_type("batch_size", batch_size, int, low=1)
        check_process()
        rows = [self._row(number, text) for number, text in enumerate(texts)]
        begins = range(0, len(rows), batch_size)
        return [answer for begin in begins for answer in self._answer(rows[begin : begin + batch_size], begin)]

    def _row(self, number: int, text: Text) -> tuple[str, ...]:
        row = tuple(text) if isinstance(text, tuple | list) else (text,)
        row += ("",) * (len(row) == 1 and self._inputs[-1] == "text_b")
        if len(row) != len(self._inputs) or not all(isinstance(part, str) for part in row):
            takes = f"a model of the task {self.info['task']} takes {_TAKES[self._inputs]}"
            raise UserError(f"row {number} is {text!r:.60}; {takes}")
        return (*map(encodable, row),)

    def _answer(self, rows: Sequence[tuple[str, ...]], begin: int) -> list[dict[str, Any]]:
        columns = dict(zip(self._inputs, map(tf.constant, zip(*rows, strict=True)), strict=True))
        try:
            found = {name: _rows(value.numpy()) for name, value in sorted(self._signature(**columns).items())}
        except tf.errors.InvalidArgumentError as error:
            sentence = re.search(r"assertion failed: \[(.*)\]", error.message)
            if not sentence:
                raise
            counted = re.sub(r"^row (\d+)", lambda row: f"row {begin + int(row[1])}", sentence[1])
            raise UserError(counted) from error
        answers = [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
        if self._counted in found:
            for answer in answers:
                length = sum(value not in ("", -1) for value in answer[self._counted])
                answer.update((name, answer[name][:length]) for name in (self._counted, *self._others))
        return answers


def _rows(values: np.ndarray) -> list[Any]:
    """The values for each text: rows of floats as arrays, all other values as Python types."""
    if values.dtype == object:
        values = np.vectorize(bytes.decode, otypes=[object])(values)
    return [*values] if values.ndim > 1 and values.dtype.kind == "f" else values.tolist()

"""Runs an exported model in Python, without a server: `load` returns a callable for texts."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.support.quiet import load_tensorflow_text
from bert_tf2.support.settings import check_type
from bert_tf2.weights.sources import EXPORT_INFO_FILE

Text = str | tuple[str, str]

# For each task, the outputs for texts that are padded in a batch -> all outputs of the same length.
_FILLED = {
    "classifier": {"labels": ("labels",)},  # for a multi-label model
    "features": {"tokens": ("tokens", "sequence_output")},
    "ner": {
        "starts": ("words", "labels", "probabilities", "starts", "ends"),
        "entity_starts": ("entities", "entity_labels", "entity_starts", "entity_ends"),
    },
    "masked_lm": {"positions": ("positions", "tokens", "scores")},
}


@contextlib.contextmanager
def log_level(level: int) -> Iterator[None]:
    """Suppresses log messages that are less severe than `level`, one of absl's levels."""
    before = logging.get_verbosity()
    logging.set_verbosity(level)
    try:
        yield
    finally:
        logging.set_verbosity(before)


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
    try:
        inputs = {*info["signatures"]["serving_text"]["inputs"]} if info["text_signatures"] else None
    except (KeyError, TypeError):
        inputs = set()
    if inputs is None:
        raise UserError(f"{folder}: was exported with --text_signatures=false and takes no texts; export it again")
    if not inputs:
        raise UserError(f"{path}: is damaged; export the model again")
    if own := inputs - {"text_a", "question", "context"}:
        raise UserError(f"{folder}: takes {', '.join(sorted(own))} beside texts; use tf.saved_model.load")
    load_tensorflow_text(f"{folder}: its signature for texts")
    try:
        with log_level(logging.ERROR):  # it warns about gradients, which are omitted on purpose
            model = tf.saved_model.load(folder)
    except Exception as error:  # damaged files raise various errors, including ValueError and IndexError
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(
            f"{folder}: cannot be loaded, it is damaged or incomplete ({reason}); export it again"
        ) from error
    return ExportedModel(model, info)


class ExportedModel:
    """A callable for texts, created by `load`; `info` is the content of model_info.json."""

    def __init__(self, model: Any, info: Mapping[str, Any]):
        self.info = info
        self._model = model  # it owns the variables
        self._signatures = model.signatures
        # The number of texts in a row -> the signature for it, and its inputs.
        self._asks: dict[int, tuple[str, tuple[str, ...]]] = {1: ("serving_text", ("text_a",))}
        if "question" in info["signatures"]["serving_text"]["inputs"]:
            self._asks = {2: ("serving_text", ("question", "context"))}
        if "serving_text_pair" in self._signatures:
            self._asks[2] = ("serving_text_pair", ("text_a", "text_b"))
        kinds = "a pair (question, context)" if 1 not in self._asks else "a text"
        kinds += " or a pair of texts" * (len(self._asks) > 1)
        self._wanted = f"a model of the task {info['task']} takes {kinds}"  # part of an error message

    def __call__(
        self, texts: Text | Iterable[Text], second: str | None = None, batch_size: int = 32
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Answers a text or a pair of texts with a dictionary, and a list of them with a list of dictionaries.

        Args:
          texts: str, or a tuple of two: text_a and text_b, or question and context.
          second: the second text of a single pair; `texts` is then the first.
          batch_size: number of texts per batch.

        Returns:
          The outputs of the signature for each text (see `signatures`), without the padding of the batch; rows of
          numbers as numpy arrays, everything else as Python types.

        Raises:
          ValueError: batch_size is below 1.
        """
        check_type("batch_size", batch_size, int)
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; 1 is the least")
        if second is not None:
            texts = (texts, second)
        if isinstance(texts, str | tuple):
            return self([texts], batch_size=batch_size)[0]
        if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable):
            raise UserError(f"{texts!r:.60} is given; {self._wanted}, or a list of such")
        rows = [self._row(number, text) for number, text in enumerate(texts)]
        answers: list[dict[str, Any]] = []
        for begin in range(0, len(rows), batch_size):
            answers += self._answer(rows[begin : begin + batch_size], begin)
        return answers

    def _row(self, number: int, text: Text) -> tuple[str, ...]:
        row = tuple(text) if isinstance(text, tuple | list) else (text,)
        if not all(isinstance(part, str) for part in row) or len(row) not in self._asks:
            raise UserError(f"row {number} is {text!r:.60}; {self._wanted}")
        return row

    def _answer(self, rows: Sequence[tuple[str, ...]], begin: int) -> list[dict[str, Any]]:
        name, inputs = self._asks[max(map(len, rows))]
        columns = zip(*(row + ("",) * (len(inputs) - len(row)) for row in rows), strict=True)
        found = self._ask(name, dict(zip(inputs, map(list, columns), strict=True)), begin)
        filled = _FILLED.get(self.info["task"], {})
        answers = []
        for index in range(len(rows)):
            answer = {output: _plain(values[index]) for output, values in found.items()}
            for counted, outputs in filled.items():
                length = sum(value not in ("", -1) for value in answer.get(counted, ()))
                answer.update((output, answer[output][:length]) for output in outputs if output in answer)
            answers.append(answer)
        return answers

    def _ask(self, signature: str, inputs: Mapping[str, list[str]], begin: int) -> dict[str, np.ndarray]:
        try:
            tensors = {name: tf.constant([text.encode() for text in texts]) for name, texts in inputs.items()}
            return {name: value.numpy() for name, value in self._signatures[signature](**tensors).items()}
        except UnicodeEncodeError as error:
            raise UserError(f"a text holds half a character, U+{ord(error.object[error.start]):X}; mend it") from error
        except tf.errors.InvalidArgumentError as error:
            sentence = re.search(r"assertion failed: \[(.*)\]", error.message)
            if not sentence:
                raise
            counted = re.sub(r"^row (\d+)", lambda row: f"row {begin + int(row[1])}", sentence[1])
            raise UserError(counted) from error


def _plain(value: Any) -> Any:
    """Converts texts and single numbers, and integers, to Python types; leaves rows of other numbers unchanged."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [_plain(part) for part in value]
    return value if value.ndim and value.dtype.kind == "f" else value.tolist()

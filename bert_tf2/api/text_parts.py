"""The parts of the models that take texts: weights, a tokenizer, and the meaning of the outputs."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf2 import long_texts
from bert_tf2.data.records import MOST_TOKENS
from bert_tf2.exporting.tokenize_layer import Tokenize
from bert_tf2.finetuning.classification.examples import log_cut
from bert_tf2.finetuning.options import ClassifierOptions, checked_length
from bert_tf2.finetuning.tables import warn_of_amounts
from bert_tf2.inference.answering import CLASSIFIER, SQUAD
from bert_tf2.layers import initial_weights_from
from bert_tf2.support import hub
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import check_type, settings_of
from bert_tf2.training.forward import check_process
from bert_tf2.weights import checkpoint, model_folder, task_file, text_rules
from bert_tf2.weights.base import Weights
from bert_tf2.weights.task_file import LabelMap

_STATED = settings_of(ClassifierOptions)
RANDOM_SEED: int = _STATED["random_seed"][2]
TEMPERATURE: float = _STATED["temperature"][2]
ALPHA: float = _STATED["alpha"][2]
_USUAL_LENGTH = _STATED["max_seq_length"][0].flag_default
_TASK = "tsv"  # the task of run_classifier.py for the user's own tables


def path_of(name: str, given: Any) -> str:
    """The path in an argument; raises UserError if it is empty."""
    check_type(name, given, os.PathLike)
    if not os.fspath(given).strip():
        raise UserError(f"{name}={given!r}: is empty; give a path")
    return os.path.expanduser(os.fspath(given))


def path_of_weights(name: str, weights: Any, bert_config_file: Any, vocab_file: Any, do_lower_case: Any) -> str:
    """The path of weights (fetched if it is a name at a hub); raises UserError for arguments of other types."""
    path = path_of(name, weights)
    for other, given in (("bert_config_file", bert_config_file), ("vocab_file", vocab_file)):
        check_type(other, given, os.PathLike, optional=True)
    check_type("do_lower_case", do_lower_case, bool, optional=True)
    return hub.fetched(path)


class Parts:
    """The parts of a model that takes texts; see `classifier` for the arguments."""

    def __init__(
        self,
        weights,
        bert_config_file,
        vocab_file,
        do_lower_case,
        max_seq_length,
        usual=_USUAL_LENGTH,
        blocks=None,
        windows=None,
    ):
        """`usual`: the default of max_seq_length; `blocks`: init_from_layers; `windows`: window, stride and pooling."""
        check_process()
        path = path_of_weights("weights", weights, bert_config_file, vocab_file, do_lower_case)
        self.source = checkpoint.open_weights(path)
        self.config = model_folder.find_config(self.source, bert_config_file)
        if blocks is not None:
            if not isinstance(blocks, Iterable) or not [*blocks] or any(type(block) is not int for block in blocks):
                raise UserError(f"init_from_layers={blocks!r:.60}: must be numbers of blocks from 0, such as [0, 2, 4]")
            self.source = model_folder.with_blocks(self.source, [*blocks], "init_from_layers")
            self.config = dataclasses.replace(self.config, num_hidden_layers=len([*blocks]))
        self.tokenizer = text_rules.find_tokenizer(self.source, self.config, vocab_file, do_lower_case)
        longest = self.config.max_position_embeddings
        kept = task_file.settings(self.source.folder, {name: type(usual) for name, usual in CLASSIFIER.items()})
        window, *others = windows or (None,)
        name, length = long_texts.length_of(window, max_seq_length)
        length = (kept.get("max_seq_length") or min(usual, longest)) if length is None else length
        self.max_seq_length = checked_length(length, longest, name)
        self.windows = long_texts.chosen(kept, self.max_seq_length, window, *others) if windows else None

    @functools.cached_property
    def tokenize(self) -> Tokenize:
        return Tokenize(self.tokenizer, MOST_TOKENS if self.windows else self.max_seq_length)

    def model(self, kind: type, *settings, seed: int) -> keras.Model:
        """A model of `heads` with the weights."""
        check_type("random_seed", seed, int, low=0)
        with initial_weights_from(seed):
            model = kind(self.config, *settings)
        checkpoint.initialize(model, self.source)
        return model


class CutTexts:
    """Counts the texts that are cut, as the pipeline tokenizes them."""

    def __init__(self, max_seq_length: int, steps: int | None = None, *, is_logged: bool = True):
        """`steps`: the batches of an epoch, None if not known before its end; `is_logged`: logs the first epoch."""
        self.none_are_cut = False  # True for pipelines that read long texts in windows
        self._max_seq_length = max_seq_length
        self._steps = steps
        self._is_logged = is_logged
        self._lock = threading.Lock()
        self._batches: dict[int, list[int]] = {}  # batch -> the number of cut texts, in each pass over the data
        self._first = [0, 0, 0]  # counts of the first epoch: batches, cut texts, all texts

    def add(self, number: tf.Tensor, cut: tf.Tensor) -> tf.Operation:
        """Counts the cut texts of batch `number` in a graph; `cut`: bool [B]. Batches may come in any order."""

        def note(number: np.int64, cut: np.ndarray) -> None:
            with self._lock:
                passes = self._batches.setdefault(int(number), [])
                passes.append(int(cut.sum()))
                if len(passes) == 1 and number < (self._steps or np.inf):  # further batches are prefetched
                    self._first = [
                        have + more for have, more in zip(self._first, (1, passes[0], len(cut)), strict=True)
                    ]
                    if self._is_logged and self._first[0] == self._steps:
                        log_cut(*self._first[1:], self._max_seq_length)

        return tf.numpy_function(note, [number, cut], [])

    def of_epochs(self, epochs: int, batches: int | None = None) -> list[int] | None:
        """The number of cut texts for each epoch; None if the pipeline has ids, not texts.

        `batches`: the number of batches of the data if each epoch reads the next `steps` batches; None if each epoch
        begins with the first batch.
        """
        if self.none_are_cut:
            return [0] * epochs
        if self._is_logged and self._steps is None and self._batches:
            log_cut(*self._first[1:], self._max_seq_length)
        return [self._of_epoch(epoch, batches) for epoch in range(epochs)] if self._batches else None

    def _of_epoch(self, epoch: int, batches: int | None) -> int:
        if self._steps is None or batches is None:
            places = [(epoch, number) for number in self._batches if number < (self._steps or np.inf)]
        else:
            places = [divmod(step, batches) for step in range(epoch * self._steps, (epoch + 1) * self._steps)]
        counts = (self._batches.get(number, [])[one_pass : one_pass + 1] for one_pass, number in places)
        return sum(map(sum, counts))


def span_settings(
    method: str, folder: str, given: Mapping[str, Any], may_be_missing: bool | None, **usual: int
) -> dict[str, Any]:
    """The settings of SQUAD: as given, else as kept by the training in `folder`, else `usual`, else the script's.

    The result also has `version_2_with_negative`: `may_be_missing`, else as in the training. Raises UserError.
    """
    check_type("may_be_missing", may_be_missing, bool, optional=True)
    kept = task_file.settings(folder, {name: type(usual) for name, usual in SQUAD.items()})
    if unknown := sorted(given.keys() - SQUAD.keys()):
        raise UserError(f"{method}() has no setting {unknown[0]}; the settings are {', '.join(SQUAD)}")
    stated = {**SQUAD, **usual, **kept, **given}
    for name, default in SQUAD.items():
        check_type(name, stated[name], type(default), low=1 if type(default) is int else None)
    if may_be_missing is None:
        may_be_missing = bool(task_file.read(folder).get("version_2_with_negative"))
    return {**stated, "version_2_with_negative": may_be_missing}


def find_labels(
    source: Weights,
    given: Sequence[str] | None,
    regression: bool = False,
    multi_label: bool = False,
    tags: bool = False,
) -> LabelMap:
    """The meaning of the outputs: as given, else as the weights have it; `tags`: whether words have the labels."""
    found = task_file.label_map_of(source)
    for name, value in (("regression", regression), ("multi_label", multi_label)):
        check_type(name, value, bool)
    if regression and (multi_label or given is not None):
        other = "multi_label=True" if multi_label else f"labels={given!r:.60}"
        raise UserError(f"regression=True, {other}: a text has a number in place of labels; give only one of both")
    if isinstance(given, str | set | frozenset | Mapping) or (given is not None and not isinstance(given, Iterable)):
        raise UserError(f"labels={given!r:.60}: must be a list of names, in the order of the outputs")
    if given is None and not regression:
        if found is None or found.labeled != ("tokens" if tags else "texts"):
            what = "words; give labels=[...]" if tags else "texts; give labels=[...], or regression=True"
            raise UserError(f"{source.path}: has no labels of {what}")
        return dataclasses.replace(found, activation="")  # `fit` trains the score itself
    names = () if given is None else tuple(str(name) if isinstance(name, str) else name for name in given)
    if [*range(len(names))] == [*names]:  # `y` has the same numbers, as the indexes of the labels
        names = tuple(map(str, names))
    if any(isinstance(name, str) and not name.strip() for name in names):
        raise UserError(f"labels={given!r:.60}: a label is empty; leave out the rows of the table without a label")
    if not all(isinstance(name, str) for name in names) or (len(names) < 2 and not regression):
        raise UserError(
            f"labels={given!r:.60}: must be two names or more, as texts (or 0, 1, 2, ...); y may have the names or"
            " their indexes"
        )
    if found and found.labels == names and names and tags == (found.labeled == "tokens"):
        return found
    asked = LabelMap(task_file.TAGGING_TASK if tags else found.task if found else _TASK, names, regression, multi_label)
    asked.check_unique("labels")
    if not tags:
        warn_of_amounts("labels", names, sys.maxsize, "give regression=True")
    if found and found.labels != task_file.numbered(found.num_labels) and not (found.regression and regression):
        raise UserError(f"{source.path}: was trained for {found.describe()}; leave labels out, or give other weights")
    return asked

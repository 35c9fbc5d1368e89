"""The parts of the models that take texts: weights, a tokenizer, and the meaning of the outputs."""

from __future__ import annotations

import dataclasses
import functools
import numbers
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras

from bert_tf2.finetuning.options import ClassifierOptions, checked_length
from bert_tf2.finetuning.tables import warn_of_similar
from bert_tf2.inference.answering import KEPT, SQUAD
from bert_tf2.layers import initial_weights_from
from bert_tf2.long_texts import LEAST, POOLINGS, Windows
from bert_tf2.support import hub
from bert_tf2.support.errors import UserError, naming_arguments
from bert_tf2.support.process import check_process
from bert_tf2.support.settings import check_type, settings_of
from bert_tf2.weights import checkpoint, model_folder, sources, task_file, text_rules
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
    path = str(os.fspath(given))  # os.listdir gives bytes for numpy's strings
    if not path.strip():
        raise UserError(f"{name}={path!r}: is empty; give a path")
    return os.path.expanduser(path)


def kept_settings(folder: str) -> dict[str, Any]:
    """The settings of the training in a folder that decide an answer, from its task.json."""
    return task_file.settings(folder, {name: type(usual) for name, usual in KEPT.items()})


class Parts:
    """Opened weights, `source`, with the `config` and the `tokenizer` beside them."""

    @naming_arguments()
    def __init__(self, weights: Any, files: Sequence[Any] = (None,) * 3, blocks: Any = None, name: str = "weights"):
        """Raises UserError for wrong arguments; see `load` and `classifier`.

        Args:
          weights: a path, or a name at a hub, from which the weights are fetched.
          files: bert_config_file, vocab_file and do_lower_case.
          blocks: init_from_layers.
          name: the name of the argument `weights`.
        """
        bert_config_file, vocab_file, do_lower_case = files
        path = path_of(name, weights)
        for other, given in (("bert_config_file", bert_config_file), ("vocab_file", vocab_file)):
            check_type(other, given, os.PathLike, optional=True)
        check_type("do_lower_case", do_lower_case, bool, optional=True)
        check_process()
        self.source = sources.open_weights(hub.fetched(path))
        self.config = model_folder.find_config(self.source, bert_config_file)
        if blocks is not None:
            chosen = [*blocks] if isinstance(blocks, Iterable) else []
            if not chosen or any(type(block) is bool or not isinstance(block, numbers.Integral) for block in chosen):
                raise UserError(f"init_from_layers={blocks!r:.60}: must be numbers of blocks from 0, such as [0, 2, 4]")
            self.source = model_folder.with_blocks(self.source, [*map(int, chosen)], "init_from_layers")
            self.config = dataclasses.replace(self.config, num_hidden_layers=len(chosen))
        self.tokenizer = text_rules.find_tokenizer(self.source, self.config, vocab_file, do_lower_case)

    @functools.cached_property
    def kept(self) -> dict[str, Any]:
        return kept_settings(self.source.folder)

    def length(self, given: int | None, usual: int = _USUAL_LENGTH, name: str = "max_seq_length") -> int:
        """The tokens of a row: as given in the argument `name`, else as in the weights' training, else `usual`."""
        longest = self.config.max_position_embeddings
        given = (self.kept.get("max_seq_length") or min(usual, longest)) if given is None else given
        return checked_length(given, longest, name)

    def label_map(self, labels: Sequence[str] | None, other_task: bool = False, **kinds: bool) -> LabelMap:
        """See find_labels. With `other_task`, weights with another number of labels begin with a new head."""
        found = find_labels(self.source, labels, check_type("other_task", other_task, bool), **kinds)
        if other_task:
            self.source = self.source.without_labels(found.num_labels)
        return found

    @naming_arguments()
    def model(self, kind: type, *settings, seed: int) -> keras.Model:
        """A model of `heads` with the weights."""
        seed = check_type("random_seed", seed, int, low=0)
        if seed > (most := _STATED["random_seed"][0].high):
            raise UserError(f"random_seed={seed}: must be {most} or less")
        with initial_weights_from(seed):
            model = kind(self.config, *settings)
        checkpoint.initialize(model, self.source)
        return model


def row_of(
    kept: Mapping[str, Any],
    checked: Callable[..., int],
    max_seq_length: int | None,
    window: int | None,
    stride: int | None,
    pooling: str | None,
) -> tuple[int, Windows | None]:
    """The most tokens of a row in a call, and how longer texts are divided; None if they are cut.

    `kept`: the settings in the task.json of the weights, which count where an argument is None. `checked`: returns the
    checked length of a row, given the argument and its `name`. Raises UserError for wrong arguments.
    """
    check_type("window", window, int, low=LEAST, optional=True)
    if window is not None and max_seq_length not in (None, window):
        raise UserError(f"window={window} and max_seq_length={max_seq_length}: give one length of a row")
    length = checked(max_seq_length, name="max_seq_length") if window is None else checked(window, name="window")
    stride = check_type("stride", stride, int, low=0, optional=True)
    if pooling not in (None, *POOLINGS):
        raise UserError(f"pooling={pooling!r}: must be {' or '.join(POOLINGS)}")
    kept = kept if "pooling" in kept else {}  # run_squad.py and run_ner.py keep a doc_stride with another meaning
    if stride is None:
        stride = kept.get("doc_stride", 0) if window is None else max(length // 2, 1)
    if not stride:
        if pooling is not None:
            raise UserError(f"pooling={pooling!r}: is for windows; give window or stride as well")
        return length, None
    if length < LEAST:
        what = f"must be {LEAST} or more in windows, for [CLS], a word and two [SEP] of a pair"
        raise UserError(f"max_seq_length={length}: {what}")
    return length, Windows(length, stride, pooling or kept.get("pooling", POOLINGS[0]))


def span_settings(
    method: str,
    kept: Mapping[str, Any],
    task: Mapping[str, Any],
    given: Mapping[str, Any],
    may_be_missing: bool | None,
    **usual: int,
) -> dict[str, Any]:
    """The settings of SQUAD: as given, else as the training `kept` them, else `usual`, else the script's.

    `task`: the task.json of the training, {} without it. The result also has `version_2_with_negative`:
    `may_be_missing`, else as in the training. Raises UserError.
    """
    may_be_missing = check_type("may_be_missing", may_be_missing, bool, optional=True)
    is_of_questions = "max_query_length" in kept  # run_classifier.py and run_ner.py keep other doc_strides
    kept = {name: value for name, value in kept.items() if name in SQUAD} if is_of_questions else {}
    if unknown := sorted(given.keys() - SQUAD.keys()):
        raise UserError(f"{method}() has no setting {unknown[0]}; the settings are {', '.join(SQUAD)}")
    stated = {**SQUAD, **usual, **kept, **given}
    for name, default in SQUAD.items():
        stated[name] = check_type(name, stated[name], type(default), low=1 if type(default) is int else None)
    if may_be_missing is None:
        may_be_missing = bool(task.get("version_2_with_negative"))
    return {**stated, "version_2_with_negative": may_be_missing}


def find_labels(
    source: Weights,
    given: Sequence[str] | None,
    other_task: bool = False,
    regression: bool = False,
    multi_label: bool = False,
    tags: bool = False,
) -> LabelMap:
    """The meaning of the outputs: as given, else as the weights have it; with `other_task`, only as given.

    `tags`: whether words have the labels.
    """
    found = None if other_task else task_file.label_map_of(source)
    regression, multi_label = check_type("regression", regression, bool), check_type("multi_label", multi_label, bool)
    if regression and (multi_label or given is not None):
        other = "multi_label=True" if multi_label else f"labels={given!r:.60}"
        raise UserError(f"regression=True, {other}: a text has a number in place of labels; give only one of both")
    names = () if given is None else _checked_names(given)
    has_names = found is not None and found.labels != task_file.numbered(found.num_labels)
    if multi_label and has_names and not found.multi_label:
        raise _misfit(source, found, "multi_label")
    if not (names or regression):
        if found is None or found.labeled != ("tokens" if tags else "texts"):
            problem = f"{source.path}: has no labels of {'words' if tags else 'texts'}"
            problem = "other_task=True: the labels of the weights are not used" if other_task else problem
            raise UserError(f"{problem}; give labels=[...]{'' if tags else ', or regression=True'}")
        # `fit` trains the score itself.
        return dataclasses.replace(found, multi_label=found.multi_label or multi_label, activation="")
    if found and found.labels == names and names and tags == (found.labeled == "tokens"):
        return found
    asked = LabelMap(task_file.TAGGING_TASK if tags else found.task if found else _TASK, names, regression, multi_label)
    asked.check_unique("labels")
    if wrong := [name for name in names if re.search("[ \t\r\n]" if tags else "[\t\r\n]", name)]:
        what = "a blank or a line end, which ends a tag" if tags else "a TAB or a line end, which ends a cell"
        raise UserError(f"labels: {wrong[0]!r} has {what} in a file; give another name")
    warn_of_similar("labels", {name: number for number, name in enumerate(names, 1)})
    if has_names and not (found.regression and regression):
        raise _misfit(source, found, "regression" if regression else "labels", f", not for {asked.describe()}")
    return asked


def _checked_names(given: Any) -> tuple[str, ...]:
    """The names in the argument `labels`, two or more. Raises UserError."""
    if isinstance(given, str | set | frozenset | Mapping) or not isinstance(given, Iterable):
        raise UserError(f"labels={given!r:.60}: must be a list of names, in the order of the outputs")
    names = tuple(str(name) if isinstance(name, str) else name for name in given)
    if [*range(len(names))] == [*names]:  # `y` has the same numbers, as the indexes of the labels
        names = tuple(map(str, names))
    if any(isinstance(name, str) and not name.strip() for name in names):
        raise UserError(f"labels={given!r:.60}: a label is empty; leave out the rows of the table without a label")
    if not all(isinstance(name, str) for name in names) or len(names) < 2:
        raise UserError(
            f"labels={given!r:.60}: must be two names or more, as texts (or 0, 1, 2, ...); y may have the names or"
            " their indexes"
        )
    return names


def _misfit(source: Weights, found: LabelMap, argument: str, asked: str = "") -> UserError:
    return UserError(
        f"{source.path}: was trained for {found.describe()}{asked}; leave {argument} out, give other weights, or"
        " other_task=True to train another task from these weights"
    )

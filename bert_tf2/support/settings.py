"""The settings of a task. Each is defined once, as a field of an options class.

    vocab_file: str = setting("The vocabulary to write.", group=DATA, writes_file=True)  # required
    vocab_size: int = setting("The most entries of the vocabulary.", 30522, group=DATA, low=1)

`flags.define` defines a flag for every field, and --help begins with the docstring of the class. Settings
take two steps:

    constructor   the given values: types, bounds, rules of the class and of its bases; reads no file
    resolution    the values with which a run begins: fetches weights, reads missing values from files beside them
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
import math
import numbers
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from bert_tf2.support.errors import UserError

options = dataclasses.dataclass(frozen=True, kw_only=True)

# The groups of the help screen, in its order.
GROUPS = (
    TO_DO := "Actions",
    DATA := "Data",
    CONVERSION := "Conversion",
    MODEL := "Model",
    EXAMPLES := "Training examples",
    TRAINING := "Training",
    EVALUATION := "Evaluation and prediction",
    ANSWERS := "Answers",
    FEATURES := "Features",
    VOCABULARY := "Vocabulary",
    DEVICES := "Devices",
    EXPORT := "Export",
    LOG := "Log",
)

_LARGEST_INTEGER = 2**31 - 1  # TensorFlow's int32


class WrongSetting(UserError):
    """Invalid settings. The message names them as flags."""

    status = 2


@dataclasses.dataclass(frozen=True)
class Setting:
    """The properties of a field, in addition to its name, type and default."""

    help: str  # one sentence for the help screen
    group: str  # its group on the help screen, one of GROUPS
    low: float | None = None  # the bounds, both included
    high: float | None = None
    choices: Sequence[str] | None = None  # the possible values
    flag_default: Any = None  # the default of the flag, for a field whose default None means "not given"
    reads: bool | str = False  # whether the value names files to be read; "weights" for a checkpoint
    writes: Sequence[str] | None = None  # for an output folder: patterns of the files that are written into the folder
    writes_file: bool = False  # whether the value names a file to be written
    # the consequence of another value for a training run that continues, "the dropout changes"; None if nothing changes
    decides: str | None = None
    is_switch: bool = False  # whether "true" and "false" are choices, also given as True, False and a flag alone
    kept: bool = False  # whether the answers of a fine-tuned model depend on it, so that task.json keeps it
    beside_weights: str | None = None  # the file beside the weights that is the default of a required setting


def setting(help: str, default: Any = dataclasses.MISSING, **stated: Any) -> Any:
    """Defines a field of an options class; see Setting for `stated`. A setting without a default is required."""
    return dataclasses.field(default=default, metadata={"setting": Setting(help, **stated)})


# The settings of each group, in the order of GROUPS.
(
    of_to_do, of_data, of_conversion, of_model, of_examples, of_training, of_evaluation, of_answers, of_features,
    of_vocabulary, of_devices, of_export, of_log,
) = (functools.partial(setting, group=group) for group in GROUPS)  # fmt: skip


def kept_setting(help: str, usual: float | str | None, **stated: Any) -> Any:
    """A setting that task.json keeps. None means "not given", until `resolve` takes the training's value."""
    return setting(help, None, flag_default=usual, kept=True, **stated)


@options
class Options:
    """The base of all options classes. A class states its own rules; the rules of all its bases apply as well."""

    any_of: ClassVar[Sequence[str]] = ()  # switches, at least one of which must be on
    needs: ClassVar[Sequence[tuple[str, str]]] = ()  # (setting, the setting that it requires)
    not_both: ClassVar[Sequence[tuple[str, str]]] = ()  # pairs of settings that exclude each other
    # (setting, the setting without which it has no effect); the second may be "name=value", also of several values
    only_with: ClassVar[Sequence[tuple[str, str]]] = ()
    words: ClassVar[str | None] = None  # the setting, a sequence of texts, that also gets the words that are not flags

    def __post_init__(self) -> None:
        """Raises WrongSetting for the first broken rule."""
        for name, (stated, kind, default) in settings_of(type(self)).items():
            value = getattr(self, name)
            if typing.get_origin(kind) is Sequence and isinstance(value, str):  # from Python
                value = [value]
            if kind is str and isinstance(value, os.PathLike | str):
                value = os.fspath(value)
                if stated.reads or "text" not in name:
                    value = _HOME.sub(lambda _: os.path.expanduser("~"), value)
            if stated.is_switch and type(value).__name__ in ("bool", "bool_"):
                value = str(bool(value)).lower()
            value = check_type(name, value, kind, optional=default in (None, dataclasses.MISSING), finite=False)
            object.__setattr__(self, name, value)
        if problem := next(_problems(self), None):
            raise WrongSetting(problem)
        self.check()
        if problem := next(without_effect(self), None):
            raise WrongSetting(problem)

    def check(self) -> None:
        """Checks rules for given settings that attributes cannot express. Raises WrongSetting for a broken rule."""

    def from_files(self) -> dict[str, Any]:
        """Returns, by name, values from files beside the weights for settings that were not given."""
        return {}

    def check_inputs(self) -> None:
        """Raises UserError for wrong resolved settings, and for missing or wrong files, before TensorFlow is loaded."""


_HOME = re.compile(r"(?:^|(?<=,))~(?=/)")  # in names of files with commas; a shell replaces ~ only in front of a word


@functools.cache
def settings_of(cls: type[Options]) -> dict[str, tuple[Setting, type, Any]]:
    """The settings of a class by name: the Setting, the type (without None), the default or MISSING.

    The settings that the class defines come first, then the settings of its bases.
    """
    kinds = typing.get_type_hints(cls)
    kinds |= {name: typing.get_args(kind)[0] for name, kind in kinds.items() if isinstance(kind, types.UnionType)}
    fields = {field.name: field for field in dataclasses.fields(cls) if "setting" in field.metadata}
    names = dict.fromkeys(name for base in cls.__mro__ for name in vars(base).get("__annotations__", ()))
    return {
        name: (fields[name].metadata["setting"], kinds[name], fields[name].default) for name in names if name in fields
    }


def required(cls: type[Options]) -> list[str]:
    stated = settings_of(cls).items()
    return [name for name, (it, _, default) in stated if default is dataclasses.MISSING or it.beside_weights]


def made(cls: type[Options], given: Mapping[str, Any]) -> Any:
    """An object of the class with the settings given by name. Raises WrongSetting for a name that is no setting."""
    known = [field.name for field in dataclasses.fields(cls)]
    if unknown := [name for name in given if name not in known]:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
        raise WrongSetting(f"{cls.__name__} has no setting {unknown[0]!r}; {remedy}")
    return cls(**given)


def needed(cls: type[Options]) -> Iterator[tuple[str, str]]:
    """(switch, setting) for every setting that is required if the switch is on."""
    return _of_all_bases(cls, "needs")


def without_effect(given: Options, others: Options | None = None) -> Iterator[str]:
    """Yields a phrase for each given setting of `only_with` whose partner is not given.

    Files beside the weights may have the partner of a setting that `task.json` keeps. Such settings are only compared
    with `others`, the settings after `resolve` has read the files.
    """
    known = settings_of(type(given))
    for name, partner in _of_all_bases(type(given), "only_with"):
        stated, _, default = known[name]
        value, (other, _, wanted) = getattr(given, name), partner.partition("=")
        if stated.kept != (others is not None) or value in (None, default, stated.flag_default):
            continue
        found = getattr(others or given, other)
        if str(found).lower() not in wanted.lower().split(",") if wanted else not found:
            needs = partner.replace(",", " or ")
            shown = f"--{name}" if value is True else f"--{name}={value}"
            yield f"{shown} needs --{needs}, because --{name} has no effect otherwise"


def shared(source: Options, target: type[Options]) -> dict[str, Any]:
    """The settings that an object shares with another class, to create an object of the other class."""
    return {
        field.name: getattr(source, field.name) for field in dataclasses.fields(target) if hasattr(source, field.name)
    }


def _of_all_bases(cls: type[Options], attribute: str) -> Iterator[Any]:
    """The elements of an attribute of the class and of its bases, first the elements of the bases."""
    return itertools.chain.from_iterable(vars(base).get(attribute, ()) for base in reversed(cls.__mro__))


def deciding(given: Options) -> dict[str, tuple[Any, str]]:
    """The settings that decide the steps of a training run: name -> value, and the consequence of another value."""
    stated = {name: found.decides for name, (found, _, _) in settings_of(type(given)).items() if found.decides}
    return {name: (getattr(given, name), change) for name, change in stated.items()}


def kept(given: Options) -> dict[str, Any]:
    """The settings that decide the answers of a fine-tuned model, by name."""
    return {name: getattr(given, name) for name, (stated, _, _) in settings_of(type(given)).items() if stated.kept}


def _problems(given: Options) -> Iterator[str]:
    """Yields a phrase for each broken rule of attributes, in the order in which a user corrects them."""
    cls, known = type(given), settings_of(type(given))
    missing = [name for name in required(cls) if getattr(given, name) in (None, "", (), [])]
    surely = [name for name in missing if known[name][2] is dataclasses.MISSING]
    has_weights = any(stated.reads == "weights" and getattr(given, name) for name, (stated, _, _) in known.items())
    if surely:  # `resolve` may find the other settings beside the weights
        wanted = " and ".join(f"--{name}" for name in (surely if has_weights else missing))
        beside = "" if has_weights else " and ".join(f"--{name}" for name in missing if name not in surely)
        yield f"{wanted} must be given{beside and f'; --init_checkpoint may have {beside} beside it'}"
    for name, (stated, _, _) in known.items():
        value = getattr(given, name)
        if value is not None and (problem := _value_problem(stated, value, name)):
            yield f"--{name}={value}: {problem}"
    if cls.any_of and not any(getattr(given, name) for name in cls.any_of):
        yield f"nothing to do: give at least one of {', '.join(f'--{name}' for name in cls.any_of)}"
    for one, other in _of_all_bases(cls, "not_both"):
        if getattr(given, one) and getattr(given, other):
            yield f"--{one} and --{other} exclude each other: give one of them"


def _value_problem(stated: Setting, value: Any, name: str) -> str | None:
    if stated.choices:
        return None if value in stated.choices else f"must be one of {', '.join(stated.choices)}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not math.isfinite(value):  # nan passes every comparison with a bound
        return "a finite number is needed"
    bounds = {sign: bound for sign, bound in ((">=", stated.low), ("<=", stated.high)) if bound is not None}
    if value < bounds.get(">=", value) or value > bounds.get("<=", value):
        return "must be " + " and ".join(f"{sign} {bound:.12g}" for sign, bound in bounds.items())
    # Python's random accepts seeds of any size; all other integers are sizes or passed to TensorFlow.
    if isinstance(value, int) and abs(value) > _LARGEST_INTEGER and name != "random_seed":
        return f"is too large; at most {_LARGEST_INTEGER} is possible"
    return None


# Arguments from Python


_KINDS = {
    bool: (bool, "True or False"),
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    str: (str, "a text"),
    os.PathLike: ((str, os.PathLike), "a path"),
}


def check_type(
    name: str, value: Any, kind: Any, *, optional: bool = False, low: int | None = None, finite: bool = True
) -> Any:
    """Returns an argument. Numbers and booleans of numpy become Python's, as JSON and TensorFlow's operations need.

    Raises WrongSetting for an argument of another type, or below `low`. `kind` is a key of _KINDS; any other kind
    accepts every value. `optional`: whether None is accepted. `finite`: whether nan and infinity are refused.
    """
    accepted, what = _KINDS.get(kind, (object, ""))
    is_bool = type(value).__name__ in ("bool", "bool_")  # numpy's has both names
    good = is_bool if kind is bool else isinstance(value, accepted) and not (is_bool and kind in (int, float))
    if not good and not (optional and value is None):
        raise WrongSetting(f"{name}={value!r:.60}: must be {what}")
    if finite and kind is float and value is not None and not math.isfinite(value):
        raise WrongSetting(f"{name}={value}: a finite number is needed")
    if low is not None and value is not None and value < low:
        raise WrongSetting(f"{name}={value}: must be {low} or more")
    return value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value

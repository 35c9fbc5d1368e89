"""The settings of a task. Each is stated once: a field of an options class.

    @options
    class VocabularyOptions(Options):
        \"\"\"The first words of --help.\"\"\"

        vocab_file: str = setting("The vocabulary to write.", group=DATA, writes_file=True)  # required
        vocab_size: int = setting("How many entries there may be.", 30522, group=DATA, low=1)

`flags.define` makes a command-line flag of every field. What must be given together and what excludes each other is
stated in the class too (`any_of`, `needs`, `not_both`). An object cannot be made of settings that break a rule, on the
command line or in Python: the constructor raises WrongSetting.

Options classes are composed of parts that several tasks share: a part is an options class to inherit from.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import typing
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from bert_tf2.support.errors import UserError

options = dataclasses.dataclass(frozen=True, kw_only=True)

# The groups of the help screen, in its order.
TO_DO = "What to do"
DATA = "Data"
CONVERSION = "Conversion"
MODEL = "Model"
EXAMPLES = "Training examples"
TRAINING = "Training"
EVALUATION = "Evaluation and prediction"
ANSWERS = "Answers"
FEATURES = "Features"
VOCABULARY = "Vocabulary"
DEVICES = "Devices"
EXPORT = "Export"
LOG = "Log"
GROUPS = (
    *(TO_DO, DATA, CONVERSION, MODEL, EXAMPLES, TRAINING, EVALUATION, ANSWERS, FEATURES, VOCABULARY, DEVICES, EXPORT),
    LOG,
)

_LARGEST_INTEGER = 2**31 - 1  # TensorFlow's int32


class WrongSetting(UserError):
    """A setting, or several together, that make no sense. The text names them as flags."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is stated of a field beside its name, type and default.

    Attributes:
      help: what it does, one sentence.
      group: where the help screen shows it, one of GROUPS.
      low, high: the bounds, both included.
      choices: the possible values.
      flag_default: the default that the flag shows, for a field whose own default None means "not given".
      reads: whether it names files to be read. "weights" for a checkpoint.
      writes: for a folder that is written into: patterns of the files that come into it.
      writes_file: whether it names a file to be written.
      memory: None if it has no influence on the memory that is needed; else the switches with which it has one, () for
        always.
    """

    help: str
    group: str
    low: float | None = None
    high: float | None = None
    choices: Sequence[str] | None = None
    flag_default: Any = None
    reads: bool | str = False
    writes: Sequence[str] | None = None
    writes_file: bool = False
    memory: Sequence[str] | None = None


def setting(help: str, default: Any = dataclasses.MISSING, **stated: Any) -> Any:
    """A field of an options class; see Setting for `stated`. Without a default it must be given."""
    return dataclasses.field(default=default, metadata={"setting": Setting(help, **stated)})


@options
class Options:
    """The base of all options classes.

    Class attributes (a class states its own; those of all its bases count):
      any_of: switches of which at least one must be on, so that there is something to do.
      needs: (setting, the setting that must be given when it is).
      not_both: pairs of settings that exclude each other.
    """

    any_of: ClassVar[Sequence[str]] = ()
    needs: ClassVar[Sequence[tuple[str, str]]] = ()
    not_both: ClassVar[Sequence[tuple[str, str]]] = ()

    def __post_init__(self) -> None:
        """Raises WrongSetting for the first rule that is broken."""
        problems = (problem for find in (_missing, _out_of_bounds, _combined) for problem in find(self))
        if problem := next(problems, None):
            raise WrongSetting(problem)
        for stated in _stated(type(self), "check"):
            stated(self)

    def check(self) -> None:
        """Rules that no attribute can state; a class and its bases may each have their own. Raises WrongSetting."""


@functools.cache
def settings_of(cls: type[Options]) -> dict[str, tuple[Setting, type, Any]]:
    """The settings of a class by name: what is stated, the type (without None), the default or MISSING.

    Those that the class itself states come first, then those of its parts.
    """
    types = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if "setting" in field.metadata}
    names = dict.fromkeys(
        name for base in cls.__mro__ for name in vars(base).get("__annotations__", ()) if name in fields
    )
    return {
        name: (fields[name].metadata["setting"], _without_none(types[name]), fields[name].default) for name in names
    }


def required(cls: type[Options]) -> list[str]:
    return [name for name, (_, _, default) in settings_of(cls).items() if default is dataclasses.MISSING]


def needed(cls: type[Options]) -> Iterator[tuple[str, str]]:
    """(switch, setting) for every setting that must be given where the switch is on."""
    return itertools.chain.from_iterable(_stated(cls, "needs"))


def shared(source: Options, target: type[Options]) -> dict[str, Any]:
    """The settings that an object has in common with another class, to make an object of that class."""
    return {
        field.name: getattr(source, field.name) for field in dataclasses.fields(target) if hasattr(source, field.name)
    }


def _stated(cls: type[Options], attribute: str) -> Iterator[Any]:
    """An attribute of the class and of its bases, the bases first, wherever it is stated anew."""
    for base in reversed(cls.__mro__):
        if base is not Options and attribute in vars(base):
            yield vars(base)[attribute]


def _without_none(annotation: Any) -> type:
    """`int | None` -> int."""
    kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    return kinds[0] if len(kinds) < len(typing.get_args(annotation)) else annotation


def _missing(given: Options) -> Iterator[str]:
    missing = [f"--{name}" for name in required(type(given)) if getattr(given, name) in (None, "")]
    if missing:
        yield f"{' and '.join(missing)} must be given"


def _out_of_bounds(given: Options) -> Iterator[str]:
    for name, (stated, _, _) in settings_of(type(given)).items():
        value = getattr(given, name)
        if value is not None and (problem := _value_problem(stated, value, name)):
            yield f"--{name}={value}: {problem}"


def _value_problem(stated: Setting, value: Any, name: str) -> str | None:
    if isinstance(value, bool) or (isinstance(value, str) and not stated.choices):
        return None
    if stated.choices:
        return None if value in stated.choices else f"must be one of {', '.join(stated.choices)}"
    if isinstance(value, float) and not math.isfinite(value):  # it passes every comparison with a bound
        return "a finite number is needed"
    if isinstance(value, (int, float)) and not _within(value, stated.low, stated.high):
        bounds = [f">= {stated.low:g}" if stated.low is not None else "", f"<= {stated.high:g}" if stated.high else ""]
        return f"must be {' and '.join(filter(None, bounds))}"
    # Python's own random numbers take a seed of any size; everything else ends up in TensorFlow or as a size.
    if isinstance(value, int) and abs(value) > _LARGEST_INTEGER and name != "random_seed":
        return f"is too large; at most {_LARGEST_INTEGER} is possible"
    return None


def _within(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def _combined(given: Options) -> Iterator[str]:
    cls = type(given)
    for switches in _stated(cls, "any_of"):
        if switches and not any(getattr(given, name) for name in switches):
            yield f"nothing to do: give at least one of {', '.join(f'--{name}' for name in switches)}"
    for switch, name in needed(cls):
        if getattr(given, switch) and not getattr(given, name):
            yield f"--{switch} needs --{name}"
    for pairs in _stated(cls, "not_both"):
        for one, other in pairs:
            if getattr(given, one) and getattr(given, other):
                yield f"--{one} and --{other} exclude each other: give one of them"

"""The command line: flags from an options class, what --help shows, and how a script starts and fails.

Only this module and the scripts use flags. TensorFlow is imported after the flags have been checked, so that a wrong
flag is reported immediately.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import itertools
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from typing import Any

from absl import app, flags, logging

from bert_tf2 import __version__
from bert_tf2.support import console, outputs, process, progress, settings
from bert_tf2.support.quiet import load_tensorflow as load_tensorflow  # for the scripts
from bert_tf2.support.settings import Options, WrongSetting

FLAGS = flags.FLAGS

_NARROWEST_HELP, _WIDEST_HELP = 20, 120
_COLUMN = 30  # where the explanations start; a longer flag gets its own line
_LONGEST_CHOICES = 24  # in characters; longer lists of choices are part of the explanation


def run(options_class: type[Options], main: Callable[[Any], None]) -> None:
    """Parses the command line, calls `main` with the options, and turns errors of users into one line on stderr.

    The exit status is 0 on success and after --help, 1 for a UserError and for errors of the machine, 2 for a wrong
    command line, 130 when interrupted and 143 after SIGTERM.

    Args:
      options_class: each of its settings becomes a flag; its docstring is the description that --help shows.
      main: called with an object of that class.
    """
    define(options_class)
    FLAGS.set_default("verbosity", logging.INFO)  # the reference logs its progress at this level
    FLAGS["verbosity"].help = "What to log: -1 only warnings, 0 also progress, 1 everything."
    console.set_up_log()
    script = _Script(options_class, main)
    with console.in_one_line(script.memory_settings, _tidy):
        app.run(script.main, flags_parser=script.parse)


class _Whole(flags.IntegerParser):
    def convert(self, argument: Any) -> int:
        return super().convert(_without_bars(argument))


class _Number(flags.FloatParser):
    def convert(self, argument: Any) -> float:
        return super().convert(_without_bars(argument))


def _without_bars(argument: Any) -> Any:
    """For Python, 1_0 is 10; whoever types it means something else."""
    return argument.replace("_", "x") if isinstance(argument, str) else argument


_DEFINE = {
    bool: flags.DEFINE_bool,
    int: functools.partial(flags.DEFINE, _Whole()),
    float: functools.partial(flags.DEFINE, _Number()),
    str: flags.DEFINE_string,
}


def define(options_class: type[Options]) -> None:
    """Defines a flag for every setting of a class, with its default, its help text and its choices.

    The bounds are checked with all other rules when the options object is created. Flags of a script that ran before in
    this process, a notebook for example, are no flags any more.
    """
    for flag in FLAGS.get_flags_for_module(__name__):
        delattr(FLAGS, flag.name)
    for name, (stated, kind, default) in settings.settings_of(options_class).items():
        default = stated.flag_default if default in (None, MISSING) else default
        if stated.choices:
            flags.DEFINE_enum(name, default, [*stated.choices], stated.help)
        elif kind in _DEFINE:
            _DEFINE[kind](name, default, stated.help)
        else:
            flags.DEFINE_multi_string(name, default, stated.help)


class _Script:
    """One run of a script: parses the command line, checks the files that it names, and calls `main`."""

    def __init__(self, options_class: type[Options], main: Callable[[Any], None]):
        self._class = options_class
        self._settings = settings.settings_of(options_class)
        self._main = main
        self._options: Options | None = None

    def parse(self, argv: Sequence[str]) -> Sequence[str]:
        words = [word.partition("=") for word in itertools.takewhile("--".__ne__, argv[1:])]
        given = {name for name, _, value in words if value.lower() in ("", "1", "true")}
        if given & _HELP or given & _VERSION:
            process.show(self._help() if given & _HELP else f"bert_tf2 {__version__}")
            sys.exit(0)
        if odd := [word for word in argv if word.endswith("\r") or (word.startswith("-") and "\r" in word)]:
            what = "holds a carriage return: the shell script has Windows' line ends, which tr -d '\\r' removes"
            console.fail(2, f"{odd[0]!r}: {what}")
        try:
            os.getcwd()
        except OSError:
            console.fail(1, "the working directory was deleted; change to one that exists (cd)")
        try:
            end = argv.index("--") if self._class.passes_on and "--" in argv else len(argv)
            passed_on = {self._class.passes_on: tuple(argv[end + 1 :])} if end < len(argv) else {}
            argv = argv[:end]
            if self._class.words is not None:
                FLAGS.set_gnu_getopt()  # flags may also stand behind the words
            rest = _parse(list(argv))
            if len(rest) > 1 and self._class.words is None:
                raise flags.Error(_stray_word(rest[1], before=argv[len(argv) - len(rest)]))
            values = {name: self._value(name) for name in self._settings}
            if self._class.words is not None:
                values[self._class.words] = (*(values[self._class.words] or ()), *rest[1:])
            self._options = self._class(**values, **passed_on)
            if getattr(self._options, "verbose_logging", False):
                logging.set_verbosity(max(logging.DEBUG, logging.get_verbosity()))
        except flags.UnrecognizedFlagError as error:
            console.fail(2, _unknown_flag(error.flagname) + _SEE_HELP)
        except (flags.Error, WrongSetting) as error:
            console.fail(2, _plain(" ".join(str(error).split())) + _SEE_HELP)
        return rest

    def _value(self, name: str) -> Any:
        """The value of a flag; None if it was not given and the field defaults to None."""
        stated, _, default = self._settings[name]
        is_default = default is None and stated.flag_default is not None and FLAGS[name].using_default_value
        return None if is_default else FLAGS[name].value

    def main(self, argv: Sequence[str]) -> None:
        del argv  # only flags
        self._main(self._options)

    def memory_settings(self) -> list[str]:
        """The flags to lower when memory is exhausted, with their values."""
        return [
            f"--{name}={getattr(self._options, name)}"
            for name, (stated, _, _) in self._settings.items()
            if getattr(self._options, name, None) and settings.applies(self._options, stated.memory)
        ]

    def _help(self) -> str:
        must = settings.required(self._class)
        shown: dict[str, list] = {title: [] for title in ("Required", *settings.GROUPS)}
        for name, (stated, _, _) in self._settings.items():
            shown["Required" if name in must else stated.group].append(FLAGS[name])
        order = [*self._class.any_of]
        shown[settings.TO_DO].sort(key=lambda flag: order.index(flag.name) if flag.name in order else len(order))
        if self._class.any_of:
            shown = {"Required": shown.pop("Required"), _ONE_OF_THESE: shown.pop(settings.TO_DO), **shown}
        shown[settings.LOG].append(FLAGS["verbosity"])
        needed_with: dict[str, list[str]] = {}
        for switch, name in settings.needed(self._class):
            needed_with.setdefault(name, []).append(switch)
        return help_screen(
            inspect.cleandoc(self._class.__doc__ or ""), shown, needed_with, "To see the flags of absl: --helpfull."
        )


_HELP = {"-h", "--h", "-help", "--help", "-helpshort", "--helpshort", "-?", "--?"}  # absl's names; --helpfull is absl's
_VERSION = {"-version", "--version"}
_ONE_OF_THESE = f"{settings.TO_DO} (at least one of these)"
_SEE_HELP = " (--help lists the flags)"


def _parse(argv: Sequence[str]) -> list[str]:
    """What is left of the command line without the flags. Raises flags.Error also where absl raises ValueError."""
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):  # a file of flags that names itself is only told there
            rest = FLAGS(argv)
        if told.getvalue():
            raise flags.Error(told.getvalue())
        return rest
    except SystemExit:  # absl's --helpfull and --helpxml end with 1
        sys.exit(0)
    except UnicodeDecodeError as error:
        named = [word for word in argv if word.lstrip("-").startswith("flagfile")]
        raise flags.Error(f"{' '.join(named)}: not text in {error.encoding}; one flag in a line is needed") from error
    except ValueError as error:
        raise flags.Error(str(error)) from error


# What absl's messages say, and what to write instead.
_PLAIN = {
    r"^--no(\w+)=(.*) does not take an argument$": r"--no\1=\2: write --no\1, or --\1=True or --\1=False",
    r"^flag (--\w+)=(.*?): \('Non-boolean argument .*\)$": r"\1=\2: write \1=True or \1=False",
    r"^flag (--.*): invalid literal for int\(\) with base.*$": r"\1: a whole number is needed",
    r"^flag (--.*): could not convert string to float.*$": r"\1: a number is needed",
    r"^ERROR:: (.*?)\[Errno \d+\] ": r"\1",
    r"^Warning: Hit circular flagfile dependency. Ignoring flagfile: (\S+).*$": r"--flagfile=\1: names itself",
}


def _plain(message: str) -> str:
    for pattern, instead in _PLAIN.items():
        message = re.sub(pattern, instead, message)
    return message


def _unknown_flag(name: str) -> str:
    """The message for a flag that does not exist. The reference ignores it, so the setting has no effect there."""
    if name == "bert_hub_module_handle":  # of the reference's run_classifier_with_tfhub.py
        return f"there is no flag --{name}; give the folder of the SavedModel as --init_checkpoint"
    near = " or ".join(f"--{flag}" for flag in _near_flags(name))
    return f"there is no flag --{name}" + (f"; did you mean {near}?" if near else "")


def _near_flags(name: str) -> list[str]:
    """The script's own flags that are similar to a wrong name."""
    known = [flag.name for flag in FLAGS.flags_by_module_dict()[__name__]]
    if name.startswith("no") and (found := [flag for flag in settings.near(name[2:], known) if FLAGS[flag].boolean]):
        return [f"no{flag}" for flag in found]
    return settings.near(name, known)


def _stray_word(word: str, before: str) -> str:
    """The message for a word that is not a flag and follows the word `before`."""
    switch = before.lstrip("-")
    if word.lower() in ("true", "false", "1", "0") and switch in FLAGS and FLAGS[switch].boolean:
        return f"--{switch} {word}: the value of a switch stands behind an equals sign, --{switch}={word}"
    problem = f"unexpected argument {word!r}: every setting is a flag, --name=value"
    name, *value = word.lstrip("-\u2010\u2011\u2012\u2013\u2014\u2212").split("=", 1)  # dashes of word processors
    return problem + (f"; did you mean --{'='.join([name, *value])}?" if name in FLAGS else "")


def _tidy() -> None:
    progress.close_all()
    outputs.remove_partial()


# The help screen


def help_screen(
    description: str,
    groups: Mapping[str, Sequence],
    needed_with: Mapping[str, Sequence[str]],
    closing: str,
    width: int | None = None,
) -> str:
    """Returns the help screen of a script.

    Args:
      description: the script's docstring; paragraphs are wrapped, indented lines are kept.
      groups: title -> flags (objects of absl), in the order to show; an empty group is omitted.
      needed_with: name of a flag -> the switches that require it.
      closing: a last sentence.
      width: in characters; defaults to the terminal's.
    """
    width = max(min(width or shutil.get_terminal_size().columns, _WIDEST_HELP) - 1, _NARROWEST_HELP)
    parts = [_paragraphs(description, width)]
    for title, shown in groups.items():
        if shown:
            entries = (_entry(flag, needed_with.get(flag.name, ()), width) for flag in shown)
            parts.append("\n".join([f"{title}:", *entries]))
    return "\n\n".join([*parts, textwrap.fill(closing, width)])


def _paragraphs(text: str, width: int) -> str:
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(_wrapped(paragraph.splitlines(), width) for paragraph in paragraphs)


def _wrapped(lines: Sequence[str], width: int) -> str:
    """Wraps a paragraph; indented lines are commands, which are broken before a flag if they do not fit."""
    if not any(line.startswith(" ") for line in lines):
        return textwrap.fill(" ".join(lines), width)
    whole = re.sub(r" *\\\n *", " ", "\n".join(lines))
    return "\n".join(break_command(line, width) for line in whole.splitlines())


def break_command(line: str, width: int) -> str:
    """Breaks a command that is longer than `width` into lines that can be typed."""
    first, *flags = re.split(r" --(?=(?:[^']*'[^']*')*[^']*$)", line)  # not within a quoted value
    broken = [first]
    for flag in flags:
        if len(broken[-1]) + len(flag) + 5 > width:  # with the space, the dashes and " \\"
            broken[-1] += " \\"
            broken.append(f"      --{flag}")
        else:
            broken[-1] += f" --{flag}"
    return "\n".join(broken)


def _entry(flag, switches: Sequence[str], width: int) -> str:
    """Formats one flag: its name and kind of value on the left, its help and default on the right."""
    left = f"  --{flag.name}{_value(flag)}"
    own = re.sub(r"^<.*?>: |;\s+repeat this option.*", "", flag.help, flags=re.DOTALL)  # without what absl adds
    text = " ".join([own, *_remarks(flag, switches)])
    lines = textwrap.wrap(text, max(width - _COLUMN, 20), break_on_hyphens=False)
    lines = [" " * _COLUMN + line.replace("\u00a0", " ") for line in lines]
    if len(left) > _COLUMN - 2:
        return "\n".join([left, *lines])
    return "\n".join([left + lines[0][len(left) :], *lines[1:]])


def _value(flag) -> str:
    """Returns the text after the name: nothing for a switch."""
    kind = flag.flag_type()
    if "bool" in kind:
        return "=True|False" if flag.default is None else ""
    if choices := getattr(flag.parser, "enum_values", None):
        shown = "|".join(choices)
        return f"={shown}" if len(shown) <= _LONGEST_CHOICES else "=NAME"
    if "int" in kind or "float" in kind:
        return "=N" if "int" in kind else "=X"
    ending = flag.name.rpartition("_")[2]
    return "=" + {"file": "FILE", "dir": "FOLDER", "checkpoint": "PATH"}.get(ending, "TEXT")


def _remarks(flag, switches: Sequence[str]) -> list[str]:
    remarks = [f"One of {', '.join(flag.parser.enum_values)}."] if _value(flag) == "=NAME" else []
    facts = [f"needed with {' or '.join(f'--{name}' for name in switches)}"] if switches else []
    if flag.default is not None:
        off = f"; --{flag.name}=False turns it off" if flag.default is True else ""
        facts.append(f"default:\u00a0{flag.default}{off}")  # no line break here
    return [*remarks, f"({'; '.join(facts)})"] if facts else remarks

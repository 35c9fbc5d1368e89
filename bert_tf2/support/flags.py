"""The command line: flags from an options class, what --help shows, and how a script starts and fails.

Only this module and the scripts use flags. TensorFlow is imported after the flags have been checked, so that a wrong
flag is reported immediately.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import itertools
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from typing import Any

from absl import app, flags, logging

from bert_tf2 import __version__
from bert_tf2.support import console, outputs, process, progress, settings
from bert_tf2.support.quiet import load_tensorflow as load_tensorflow  # for the scripts
from bert_tf2.support.settings import Options, WrongSetting

FLAGS = flags.FLAGS

_WIDEST_HELP = 120
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
    parsed: list[Options] = []

    def parse(argv: Sequence[str]) -> Sequence[str]:
        parsed.append(_parse(options_class, argv))
        return argv[:1]

    def memory_settings() -> list[str]:
        return [text for options in parsed for text in settings.memory_settings(options)]

    with console.in_one_line(memory_settings, _tidy):
        app.run(lambda argv: main(parsed[0]), flags_parser=parse)


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


_HELP = {"-h", "--h", "-help", "--help", "-helpshort", "--helpshort", "-?", "--?"}  # absl's names; --helpfull is absl's
_VERSION = {"-version", "--version"}


def _parse(cls: type[Options], argv: Sequence[str]) -> Options:
    """The options of a command line; ends the script after --help and --version, and if the command line is wrong."""
    words = [word.partition("=") for word in itertools.takewhile("--".__ne__, argv[1:])]
    given = {name for name, _, value in words if value.lower() in ("", "1", "true")}
    if given & _HELP or given & _VERSION:
        process.show(_help(cls) if given & _HELP else f"bert_tf2 {__version__}")
        sys.exit(0)
    if odd := [word for word in argv if word.endswith("\r") or (word.startswith("-") and "\r" in word)]:
        what = "holds a carriage return: the shell script has Windows' line ends, which tr -d '\\r' removes"
        console.fail(2, f"{odd[0]!r}: {what}")
    try:
        end = argv.index("--") if cls.passes_on and "--" in argv else len(argv)
        passed_on = {cls.passes_on: tuple(argv[end + 1 :])} if end < len(argv) else {}
        if cls.words is not None:
            FLAGS.set_gnu_getopt()  # flags may also stand behind the words
        rest = FLAGS([*argv[:end]])
        if len(rest) > 1 and cls.words is None:
            raise flags.Error(_stray_word(rest[1], before=argv[end - len(rest)]))
        values = {name: _given(name, *row) for name, row in settings.settings_of(cls).items()}
        if cls.words is not None:
            values[cls.words] = (*(values[cls.words] or ()), *rest[1:])
        options = cls(**values, **passed_on)
    except flags.UnrecognizedFlagError as error:
        problem = f"there is no flag --{error.flagname}"
        if error.flagname == "bert_hub_module_handle":  # of the reference's run_classifier_with_tfhub.py
            problem += "; give the folder of the SavedModel as --init_checkpoint"
        elif near := " or ".join(f"--{flag}" for flag in _near_flags(error.flagname)):
            problem += f"; did you mean {near}?"
    except (flags.Error, WrongSetting, ValueError) as error:
        problem = " ".join(str(error).split())
        for pattern, instead in _PLAIN.items():
            problem = re.sub(pattern, instead, problem)
    else:
        if getattr(options, "verbose_logging", False):
            logging.set_verbosity(max(logging.DEBUG, logging.get_verbosity()))
        return options
    console.fail(2, f"{problem} (--help lists the flags)")


def _given(name: str, stated: settings.Setting, kind: type, default: Any) -> Any:
    """The value of a flag; None if it was not given and the field defaults to None."""
    is_default = default is None and stated.flag_default is not None and FLAGS[name].using_default_value
    return None if is_default else FLAGS[name].value


# What absl's messages say, and what to write instead.
_PLAIN = {
    r"^flag (--\w+)=(.*?): \('Non-boolean argument .*\)$": r"\1=\2: write \1=True or \1=False",
    r"^flag (--.*): invalid literal for int\(\) with base.*$": r"\1: a whole number is needed",
    r"^flag (--.*): could not convert string to float.*$": r"\1: a number is needed",
}


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


class _Layout(argparse.RawDescriptionHelpFormatter):
    """Flags as this package writes them, --name=VALUE, in a wide first column."""

    def __init__(self, prog: str):
        super().__init__(
            prog, max_help_position=_COLUMN, width=min(shutil.get_terminal_size().columns, _WIDEST_HELP) - 1
        )

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return action.option_strings[0] + (f"={action.metavar}" if action.metavar else "")


def _help(cls: type[Options]) -> str:
    """What --help shows: the docstring, and the flags in their groups."""
    paragraphs = inspect.cleandoc(cls.__doc__ or "").split("\n\n")
    width = _Layout("")._width
    text = [each if "\n " in each else textwrap.fill(each, width) for each in paragraphs]
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS, description="\n\n".join(text), epilog="To see the flags of absl: --helpfull.",
        add_help=False, formatter_class=_Layout,
    )  # fmt: skip
    titles = {settings.TO_DO: f"{settings.TO_DO} (at least one of these)"} if cls.any_of else {}
    order = ("Required", *titles, *settings.GROUPS)
    groups = {title: parser.add_argument_group(titles.get(title, title)) for title in dict.fromkeys(order)}
    must, found = settings.required(cls), settings.settings_of(cls)
    for name in sorted(found, key=lambda name: name not in cls.any_of):
        stated, kind, _ = found[name]
        group = groups["Required" if name in must else stated.group]
        group.add_argument(f"--{name}", metavar=_value(name, stated, kind), help=_explained(cls, name, stated))
    groups[settings.LOG].add_argument("--verbosity", metavar="N", help=f"{FLAGS['verbosity'].help} (default:\u00a00)")
    return parser.format_help().replace("\u00a0", " ").rstrip("\n")


def _value(name: str, stated: settings.Setting, kind: type) -> str:
    """The text after the name: nothing for a switch."""
    if kind is bool:
        return "True|False" if FLAGS[name].default is None else ""
    if stated.choices:
        shown = "|".join(stated.choices)
        return shown if len(shown) <= _LONGEST_CHOICES else "NAME"
    of_text = {"file": "FILE", "dir": "FOLDER", "checkpoint": "PATH"}.get(name.rpartition("_")[2], "TEXT")
    return {int: "N", float: "X"}.get(kind, of_text)


def _explained(cls: type[Options], name: str, stated: settings.Setting) -> str:
    default = FLAGS[name].default
    parts = [stated.help.replace("%", "%%")]
    if _value(name, stated, str) == "NAME":
        parts.append(f"One of {', '.join(stated.choices)}.")
    facts = [f"--{switch}" for switch, needed in settings.needed(cls) if needed == name]
    facts = [f"needed with {' or '.join(facts)}"] if facts else []
    if default is not None:
        off = f"; --{name}=False turns it off" if default is True else ""
        facts.append(f"default:\u00a0{default}{off}")  # no line break here
    return " ".join([*parts, *([f"({'; '.join(facts)})"] if facts else [])])
